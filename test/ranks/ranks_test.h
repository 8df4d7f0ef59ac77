// ranks_test.h - what the program of the ranks shares: an engine under test, guarded memory of its device, failures.
#pragma once
#include <cstring>
#include <type_traits>

#include "comm/comm.h"
#include "layers/ops.h"

struct Engine {
    Comm* comm = nullptr;
    const Table* device = nullptr;    // its memory
    bool ordered = false;             // sums are taken in the order of ranks: their bits are known
};

// Counts and says what went wrong, with the rank.
[[gnu::format(printf, 2, 3)]] bool expect(bool right, const char* format, ...);

void test_collectives(const Engine& e);
void test_in_flight(const Engine& e);
int bench(const Engine& e);    // exit status

// ---- memory ---------------------------------------------------------------------------------------------------------

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
