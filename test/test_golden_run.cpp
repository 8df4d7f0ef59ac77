// test_golden_run.cpp - fp32 training on the CPU has the bits of a run that was recorded once
// (test/golden/train_fp32.txt): losses and norms in all digits, checksums of weights and moments.
//
// With FLATGPT_ISA=base our loops fix the order of every sum, and x86-64 without FMA rounds each
// operation by itself, whatever the compiler. The C library is left: log, sin and cos make the
// first weights, cos and pow the rates, logf the loss; the recorded bits are glibc's. With another
// C library, or a CPU that multiplies and adds with one rounding, numbers agree to 1e-5.
//
// A change that is meant to change bits records the run anew, and its commit says why:
//     FLATGPT_GOLDEN=write build/test_all -tc='golden run*'
#include <sys/utsname.h>

#include <sstream>

#include "files/crc.h"
#include "tensors.h"
#include "toy_run.h"

extern "C" [[gnu::weak]] const char* gnu_get_libc_version();

namespace {
const char GOLDEN[] = "test/golden/train_fp32.txt";

// CRC-32C of all tensors of a file, in the order of their names.
std::string checksum(const std::string& path) {
    Result<SafetensorsFile> file = SafetensorsFile::open(path);
    REQUIRE(file.ok());
    std::vector<TensorEntry> entries = file.value.entries();
    std::sort(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.name < b.name; });
    uint32_t crc = 0;
    for (const TensorEntry& e : entries) {
        int64_t n = 1;
        for (int64_t d : e.shape) n *= d;
        std::vector<float> values(static_cast<size_t>(n));
        REQUIRE(read_tensor(file.value, e, 0, n, values.data()).ok());
        crc = crc32c(crc, values.data(), 4 * n);
    }
    char text[16];
    snprintf(text, sizeof text, "%08x", crc);
    return text;
}

// Trains six steps of two batches: "step loss norm" for each, the validation loss, two checksums.
std::string recorded(const Toy& toy, const std::string& isa, const std::string& threads) {
    const std::string out = isa + threads;
    ProcessOptions options;
    options.environment = {"FLATGPT_AMX=refuse"};
    if (!isa.empty()) options.environment.push_back("FLATGPT_ISA=" + isa);
    const ProcessResult r =
        run_flatgpt(toy.args(out, {"--device", "cpu", "--layers",  "2",    "--heads",       "3",   "--channels", "48",
                                   "--batch",  "3",   "--seq-len", "40",   "--total-batch", "240", "--steps",    "6",
                                   "--warmup", "2",   "--threads", threads}),
                    options);
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    std::istringstream lines(toy.metrics(out));
    std::string text;
    for (std::string line; std::getline(lines, line);)
        for (const char* key : {"\"step\":", "\"loss\":", "\"grad_norm\":", "\"val_loss\":"}) {
            const size_t at = line.find(key);
            if (at == std::string::npos) continue;
            const size_t from = at + strlen(key);
            text += (key == std::string("\"step\":") ? text.empty() ? "" : "\n" : " ") +
                    line.substr(from, line.find_first_of(",}", from) - from);
        }
    for (const char* file : {"/model.safetensors", "/optimizer.safetensors"})
        text += std::string("\n") + (file + 1) + " " + checksum(toy.newest(out) + file);
    return text + "\n";
}
// The numbers before the checksums: steps, losses, norms.
std::vector<double> numbers(const std::string& text) {
    std::vector<double> all;
    std::istringstream in(text);
    for (double x; in >> x;) all.push_back(x);
    return all;
}
}    // namespace

TEST_CASE("golden run: training in fp32 on the CPU has the recorded bits, with one thread and with two") {
    const Toy toy;
    const std::string run = recorded(toy, "base", "1");
    CHECK(recorded(toy, "base", "2") == run);
    const char* wanted = getenv("FLATGPT_GOLDEN");
    if (wanted && wanted == std::string("write")) write_file(GOLDEN, run);
    const std::string golden = read_file(GOLDEN);
    utsname machine;
    REQUIRE(uname(&machine) == 0);
    if (gnu_get_libc_version && machine.machine == std::string("x86_64")) CHECK(run == golden);
    // Wider vectors add in another order: these are the same sums within rounding.
    const std::vector<double> expected = numbers(golden);
    CHECK(expected.size() >= 18);
    for (const std::string& text : {run, recorded(toy, "", "2")}) {
        const std::vector<double> found = numbers(text);
        REQUIRE(found.size() == expected.size());
        for (size_t i = 0; i < found.size(); i++) CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-5));
    }
}
