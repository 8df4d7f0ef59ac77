// ranks_test.h - shared by the program test_ranks: the engine under test, guarded device memory,
// failures.
#pragma once
#include <cstring>
#include <type_traits>

#include "comm/comm.h"
#include "layers/ops.h"

struct Engine {
    Comm* comm = nullptr;
    const Table* device = nullptr;    // allocates and copies memory
    bool ordered = false;             // sums in order of ranks: known bits
};

// Unless right, counts a failure and prints it with the rank.
[[gnu::format(printf, 2, 3)]] bool expect(bool right, const char* format, ...);

void test_collectives(const Engine& e);
void test_in_flight(const Engine& e);
int bench(const Engine& e);    // exit status

// ---- memory -------------------------------------------------------------------------------------

// n elements of the device between guards.
template <class T> class Guarded {
  public:
    Guarded(const Engine& e, int64_t n) : e(e), n(n), raw(size_t(2 * GUARD + n * int64_t(sizeof(T))), BYTE) {
        base = static_cast<unsigned char*>(e.device->allocate(int64_t(raw.size())));
        CHECK(base, "out of memory");
        e.device->upload(base, raw.data(), int64_t(raw.size()));
    }
    ~Guarded() { e.device->release(base, int64_t(raw.size())); }
    Guarded(const Guarded&) = delete;
    T* data() { return reinterpret_cast<T*>(base + GUARD); }
    void set(const T* from, int64_t at, int64_t count) {
        if (count) e.device->upload(data() + at, from, count * int64_t(sizeof(T)));
    }
    std::vector<T> get(const char* what) {
        e.device->download(raw.data(), base, int64_t(raw.size()));
        bool intact = true;
        for (int64_t i = 0; i < GUARD; i++) intact &= raw[size_t(i)] == BYTE && raw[raw.size() - 1 - size_t(i)] == BYTE;
        expect(intact, "%s wrote beyond its %lld elements", what, static_cast<long long>(n));
        std::vector<T> result(static_cast<size_t>(n));
        if (n) memcpy(result.data(), raw.data() + GUARD, result.size() * sizeof(T));
        return result;
    }

  private:
    static constexpr int64_t GUARD = 256;
    static constexpr unsigned char BYTE = 0xA5;
    const Engine& e;
    int64_t n;
    std::vector<unsigned char> raw;
    unsigned char* base;
};
