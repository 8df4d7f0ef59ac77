// toy_run.h - data and command lines for small runs of `flatgpt train`, and comparisons of results.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/philox.h"
#include "data/bpe.h"
#include "data/loader.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "test.h"

namespace fs = std::filesystem;

// A directory with a byte tokenizer (257 tokens) and shards train and val of noisy repetition.
struct Toy {
    std::string dir = temporary_directory();
    Toy() {
        Tokenizer bytes = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"});
        std::ofstream(dir + "/tok.json") << bytes.to_json();
        write("train", 20000, 1);
        write("val", 2000, 2);
    }
    void write(const std::string& name, int n, uint64_t stream, int add = 0) {
        std::vector<int> text(static_cast<size_t>(n));
        for (int i = 0; i < n; i++) {
            uint32_t r = philox(3, stream, uint64_t(i)).v[0];
            text[size_t(i)] = (r % 4 ? (i * 7) % 64 : int(r >> 8) % 64) + add;
        }
        ShardWriter w;
        REQUIRE(w.open(dir + "/" + name + ".bin", 65536).ok());
        REQUIRE(w.append(text.data(), n).ok());
        REQUIRE(w.commit().ok());
    }
    std::vector<std::string> args(const std::string& out, std::vector<std::string> more = {}) const {
        std::vector<std::string> a = {"train",
                                      "--data",
                                      dir + "/train.bin",
                                      "--val",
                                      dir + "/val.bin",
                                      "--tokenizer",
                                      dir + "/tok.json",
                                      "--layers",
                                      "2",
                                      "--heads",
                                      "2",
                                      "--channels",
                                      "32",
                                      "--out",
                                      dir + "/" + out,
                                      "--batch",
                                      "4",
                                      "--seq-len",
                                      "32",
                                      "--lr",
                                      "3e-3",
                                      "--seed",
                                      "5",
                                      "--dtype",
                                      "fp32",
                                      "--eval-tokens",
                                      "256"};
        for (size_t i = 0; i + 1 < more.size(); i += 2) set(a, more[i], more[i + 1]);
        return a;
    }
    std::vector<std::string> started(const std::string& out, const std::vector<std::string>& more) const {
        std::vector<std::string> a = args(out, more);
        a.insert(a.begin(), flatgpt_binary());
        return a;
    }
    static void set(std::vector<std::string>& args, const std::string& flag, const std::string& value) {
        auto at = std::find(args.begin(), args.end(), flag);
        if (at == args.end()) args.insert(args.end(), {flag, value});
        else at[1] = value;
    }
    // metrics.jsonl without times, which differ from run to run.
    std::string metrics(const std::string& out) const {
        std::ifstream file(dir + "/" + out + "/metrics.jsonl");
        std::string all, line;
        while (std::getline(file, line)) {
            size_t from = line.find(",\"ms\":"), to = line.find(",\"tokens\":");
            REQUIRE(from != std::string::npos);
            REQUIRE(to != std::string::npos);
            all += line.substr(0, from) + line.substr(to) + "\n";
        }
        return all;
    }
    std::string newest(const std::string& out) const {
        auto all = checkpoint_list(dir + "/" + out);
        return all.empty() ? "" : all.back();
    }
};
inline std::vector<std::string> with(std::vector<std::string> args, const std::vector<std::string>& more) {
    args.insert(args.end(), more.begin(), more.end());
    return args;
}
inline bool same_file(const std::string& a, const std::string& b) {
    std::string x = read_file(a), y = read_file(b);
    return !x.empty() && x == y;
}
inline double number(const std::string& text, const std::string& after) {
    return std::stod(text.substr(text.find(after) + after.size()));    // throws without a number
}
// The command must exit with `code`, and its output must contain `says`.
inline ProcessResult must(const std::vector<std::string>& args, int code = 0, const std::string& says = "") {
    ProcessResult r = run_flatgpt(args);
    INFO(r.err);
    REQUIRE(r.exit_code == code);
    CHECK(contains(r.err + r.out, says));
    return r;
}
inline void wait_for_training(Process& p) {
    for (int i = 0; i < 5000 && p.running() && !contains(p.err(), " parameters, "); i++) usleep(2000);
}
// Peak memory of a process in bytes, polled until it ends: wait4's value includes the memory that
// this process held when p began.
inline double peak_memory(Process& p) {
    double peak = 0;
    for (; p.running(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
        const std::string status = read_file("/proc/" + std::to_string(p.id()) + "/status");
        const size_t at = status.find("VmHWM:");
        if (at != std::string::npos) peak = std::max(peak, 1024 * std::stod(status.substr(at + 6)));
    }
    return peak;
}
// The memory of which a dry run tells must be the run's peak, within 3 %. Returns what was told.
inline std::string check_memory(std::vector<std::string> args, double least) {
    std::vector<std::string> dry = args;
    dry.push_back("--dry-run");
    const std::string said = must(dry).out;
    args.insert(args.begin(), flatgpt_binary());
    Process running(args);
    const double measured = peak_memory(running);
    const ProcessResult ran = running.wait();
    INFO(said << ran.err);
    REQUIRE(ran.exit_code == 0);
    const double predicted = std::stod(said.substr(said.rfind('(') + 1));
    MESSAGE("predicted " << predicted / 1e6 << " MB, measured " << measured / 1e6 << " MB");
    CHECK(std::fabs(predicted / measured - 1) < 0.03);
    CHECK(measured > least);
    return said;
}
// Changes state.json as another program might have written it, with its checksum in MANIFEST.
inline void forge(const std::string& dir, const std::function<void(TrainState&)>& change) {
    TrainState s = checkpoint_state(dir).value;
    change(s);
    const std::string text = state_json(s);
    write_file(dir + "/state.json", text);
    std::vector<FileChecksum> sums = manifest_read(dir).value;
    for (FileChecksum& sum : sums)
        if (sum.name == "state.json")
            sum.bytes = int64_t(text.size()), sum.crc = crc32c(0, text.data(), int64_t(text.size()));
    write_file(dir + "/MANIFEST", manifest_text(sums));
}
