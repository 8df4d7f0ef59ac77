// test.h - shared by the tests: guarded buffers, seeded inputs, comparison, skips that are counted.
//
// Include it after the project's headers: from here on CHECK is doctest's.
#pragma once
#include "base/common.h"
#include "base/philox.h"
#undef CHECK
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// Says why a case cannot run here; the closing line counts it as skipped.
void skip(const char* why);
#define SKIP(why)  \
    do {           \
        skip(why); \
        return;    \
    } while (0)
bool test_long();                     // FLATGPT_TEST_LONG is set
std::string flatgpt_binary();         // environment variable FLATGPT, or ./flatgpt
std::string temporary_directory();    // fresh, removed when the case ends

// ---- processes ----------------------------------------------------------------------------------

struct ProcessResult {
    int exit_code = -1;    // -1: ended by `signal`
    int signal = 0;
    bool timed_out = false;    // out of time and killed
    std::string out, err;
};
struct ProcessOptions {
    std::string stdin_text = {};                  // standard input is a file with this text
    std::vector<std::string> environment = {};    // "NAME=value": added; "NAME": removed
    std::string directory = {};                   // working directory; empty: ours
    double timeout = 60;                          // seconds; then SIGKILL
};
// A child process whose output goes to files. Killed if it still runs at the end of its scope.
class Process {
  public:
    explicit Process(const std::vector<std::string>& args, const ProcessOptions& options = {});
    ~Process();
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;
    int id() const { return pid; }
    bool running();             // does not block
    void send(int signal);      // ignored after its end
    std::string out() const;    // output so far
    std::string err() const;
    ProcessResult wait();

  private:
    std::string files;    // directory of stdin, stdout, stderr
    int pid = -1, status = 0;
    bool ended = false, timed_out = false;
    double deadline = 0;
};
ProcessResult run_process(const std::vector<std::string>& args, const ProcessOptions& options = {});
// args: without the binary's path
ProcessResult run_flatgpt(std::vector<std::string> args, const ProcessOptions& options = {});
std::string read_file(const std::string& path);    // empty without a file
void write_file(const std::string& path, std::string_view text);
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// ---- buffers ------------------------------------------------------------------------------------

// n values with GUARD sentinels on each side. They start as NaN, so that an unwritten output shows.
template <class T> struct Guarded {
    static constexpr int64_t GUARD = 256;
    static constexpr unsigned char BYTE = 0xA5;
    std::vector<unsigned char> raw;
    int64_t n;
    explicit Guarded(int64_t n, double fill = NAN)
        : raw(size_t((n + 2 * GUARD) * int64_t(sizeof(T)) + 64), BYTE), n(n) {
        for (int64_t i = 0; i < n; i++)
            if constexpr (std::is_arithmetic_v<T>) data()[i] = T(fill);
            else data()[i] = from_float<T>(float(fill));
    }
    // 64-byte aligned, as the model's buffers are
    T* data() {
        auto p = reinterpret_cast<uintptr_t>(raw.data()) + GUARD * sizeof(T);
        return reinterpret_cast<T*>((p + 63) / 64 * 64);
    }
    operator T*() { return data(); }
    T& operator[](int64_t i) { return data()[i]; }
    bool intact() {
        auto *first = reinterpret_cast<unsigned char*>(data()), *last = first + n * int64_t(sizeof(T));
        for (unsigned char* p = raw.data(); p < first; p++)
            if (*p != BYTE) return false;
        for (unsigned char* p = last; p < raw.data() + raw.size(); p++)
            if (*p != BYTE) return false;
        return true;
    }
};

// Seeded normal numbers, equal for all element types but for rounding.
template <class T> void fill_normal(T* x, int64_t n, uint64_t stream, double scale = 1) {
    for (int64_t i = 0; i < n; i++) x[i] = T(float(scale * double(philox_normal(7, stream, uint64_t(i)))));
}

// The larger error; NaN counts as infinite, because std::max would drop it.
inline double worse(double worst, double error) { return std::isnan(error) ? INFINITY : std::max(worst, error); }

// max |a - b| / (max |b| + tiny): the error relative to the result's size; NaN if a or b has one.
template <class A, class B> double relative_error(const A* a, const B* b, int64_t n) {
    double worst = 0, size = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        double d = std::fabs(double(a[i]) - double(b[i]));
        if (std::isnan(d)) return NAN;
        worst = std::fmax(worst, d);
        size = std::fmax(size, std::fabs(double(b[i])));
    }
    return worst / size;
}
