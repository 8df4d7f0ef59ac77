// common.h - for every file: CHECK for our mistakes, Status and Result for other errors.
#pragma once
#include <atomic>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__    // callable in kernels
#else
#define HOST_DEVICE
#endif

// ---- errors -------------------------------------------------------------------------------------

// The process's exit codes. A Status carries the code with which main ends if no caller handles the
// error.
enum class Exit : int {
    ok = 0,
    run = 1,
    usage = 2,
    input = 3,
    io = 4,
    device = 5,
    diverged = 6,
    peer = 7,
    sigint = 130,
    sigterm = 143
};

// An error from outside: a file, a flag, a device. The message says what was expected and found.
struct [[nodiscard]] Status {
    Exit code = Exit::ok;
    std::string message;
    bool ok() const { return code == Exit::ok; }
    const Status& error() const { return *this; }
    void take() const {}
};

// printf into a std::string.
[[gnu::format(printf, 1, 0)]] inline std::string formatted(const char* format, va_list args) {
    va_list again;
    va_copy(again, args);
    std::string text(static_cast<size_t>(vsnprintf(nullptr, 0, format, again)), '\0');
    va_end(again);
    vsnprintf(text.data(), text.size() + 1, format, args);
    return text;
}
[[gnu::format(printf, 1, 2)]] inline std::string formatted(const char* format, ...) {
    va_list args;
    va_start(args, format);
    std::string text = formatted(format, args);
    va_end(args);
    return text;
}
[[gnu::format(printf, 2, 3)]] inline Status fail(Exit code, const char* format, ...) {
    va_list args;
    va_start(args, format);
    std::string text = formatted(format, args);
    va_end(args);
    return {code, text};
}

// A value, or the reason why there is none.
template <class V> struct [[nodiscard]] Result {
    Status status;
    V value{};
    Result(V v) : value(std::move(v)) {}
    Result(Status s) : status(std::move(s)) {}
    bool ok() const { return status.ok(); }
    const Status& error() const { return status; }
    V take() { return std::move(value); }
};

// Evaluates to a Result's value; on an error the enclosing function returns the error. The counter
// gives each TRY a variable of its own, so that they can be nested.
#define TRY(expression) TRY_COUNTED(expression, __COUNTER__)
#define TRY_COUNTED(expression, n) TRY_NAMED(expression, n)
#define TRY_NAMED(expression, n)                   \
    ({                                             \
        auto try_##n = (expression);               \
        if (!try_##n.ok()) return try_##n.error(); \
        try_##n.take();                            \
    })

// Aborts, in release builds too, if a condition that our code guarantees is false. Prints the
// location and the condition. Nothing is saved, because the state may be wrong.
#define CHECK(condition, ...)                                                            \
    do {                                                                                 \
        if (!(condition)) check_failed(__FILE__, __LINE__, #condition, " " __VA_ARGS__); \
    } while (0)

[[noreturn, gnu::format(printf, 4, 5)]] inline void check_failed(const char* file, int line, const char* condition,
                                                                 const char* format, ...) {
    fprintf(stderr, "\n%s:%d: CHECK(%s) failed.", file, line, condition);
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

// ---- progress -----------------------------------------------------------------------------------

// Increases with any progress. The other ranks of a run watch it to detect a stalled process.
inline std::atomic<int64_t> progress_count{0};
inline void count_progress() { progress_count.fetch_add(1, std::memory_order_relaxed); }

// ---- sizes --------------------------------------------------------------------------------------

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Multiplies sizes that a file gives; false: the product is outside [0, 2^63).
inline bool mul_checked(int64_t a, int64_t b, int64_t* out) {
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}

// ---- hashing ------------------------------------------------------------------------------------

constexpr uint64_t FNV_OFFSET_BASIS = 0xCBF29CE484222325ull;
// Continues hash h by FNV-1a on 8-byte words, the last one padded with zeros. A change of one word
// always changes the result.
inline uint64_t fnv1a_words(uint64_t h, const void* data, int64_t bytes) {
    auto* p = static_cast<const unsigned char*>(data);
    for (; bytes > 0; bytes -= 8, p += 8) {
        uint64_t word = 0;
        __builtin_memcpy(&word, p, size_t(bytes < 8 ? bytes : 8));
        h = (h ^ word) * 0x100000001B3ull;
    }
    return h;
}
