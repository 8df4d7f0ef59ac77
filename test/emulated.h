// emulated.h - runs build/emu/flatgpt, a program with an emulated GPU, in tests of commands.
#pragma once
#include "toy_run.h"

inline std::string emulated_binary() {
    const char* path = getenv("FLATGPT_EMU");
    return fs::absolute(path ? path : "build/emu/flatgpt").string();
}
inline ProcessResult run_emulated(std::vector<std::string> args, std::vector<std::string> environment = {}) {
    args.insert(args.begin(), emulated_binary());
    ProcessOptions o;
    o.environment = environment;
    o.timeout = 120;
    return run_process(args, o);
}
#define NEED_EMULATED() \
    if (!fs::exists(emulated_binary())) SKIP("no build/emu/flatgpt: make test builds it")
// A dry run must tell the memory that the run holds, within 2 %.
inline void check_emulated_memory(std::vector<std::string> args) {
    const ProcessResult run = run_emulated(args, {"EMU_REPORT=1"});
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    args.push_back("--dry-run");
    const ProcessResult dry = run_emulated(args);
    INFO(dry.out);
    REQUIRE(dry.exit_code == 0);
    const double told = number(dry.out.substr(dry.out.find("  total")), "(");
    const double held = number(run.err, "emulated GPU: at most ");
    CHECK(told == doctest::Approx(held).epsilon(0.02));
}
