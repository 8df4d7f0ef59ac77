// main.cpp - the tests of the CUDA backend: as plain C++ on the emulator, by nvcc on a GPU.
#define DOCTEST_CONFIG_IMPLEMENT
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_test.h"
#include "test/count.h"

namespace emu {    // null in a GPU's binary
[[gnu::weak]] void schedule(uint64_t seed);
[[gnu::weak]] int64_t launches(bool overlapping);
}
bool cuda_emulated() { return emu::schedule; }
void cuda_schedule(uint64_t seed) {
    if (cuda_emulated()) emu::schedule(seed);
}
int64_t cuda_launches(bool overlapping) { return cuda_emulated() ? emu::launches(overlapping) : 0; }

std::string run_again(const std::string& environment, const std::string& arguments, int* status) {
    char self[4096] = {};
    REQUIRE(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    FILE* f = popen((environment + " '" + self + "' " + arguments + " 2>&1").c_str(), "r");
    REQUIRE(f);
    std::string text;
    char line[1024];
    while (fgets(line, sizeof line, f)) text += line;
    const int ended = pclose(f);
    *status = WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
    return text;
}

int main(int argc, char** argv) {
    const char* device = getenv("FLATGPT_TEST_DEVICE");    // device of one rank's process
    const Status opened = cuda_open(device ? atoi(device) : 0);
    if (opened.ok()) return run_counted(argc, argv);
    // This binary is only started to test on a GPU. Without one the tests fail; they are not
    // skipped.
    printf(
        "FAILED: no test of the CUDA backend ran: expected a GPU that CUDA can use, found: %s. `make test` runs the "
        "same tests on the emulator.\n\n0 passed, 1 failed, 0 skipped\n",
        opened.message.c_str());
    return int(opened.code);
}
