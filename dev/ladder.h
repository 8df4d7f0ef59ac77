// ladder.h - the frame of the kernel ladders in dev/. A ladder shows one operation, from the
// simplest kernel (or the library's: version 0) to the production kernel, one idea and its gain per
// rung.
//
// A rung is a function with the signature of the operation's entry in Ops<T>. Put into a copy of
// the table (`with`), it must pass the production kernel's check in tools/selftest/. Then it is
// timed. The last rung is the table's own entry.
//
// int main() {
//     if (!ladder_open()) return int(Exit::device);
//     const Ops<bf16>& op = cuda_ops<bf16>(Dtype::bf16);
//     const int64_t n = ladder_size(64 << 20, 1000);           // on a GPU, on the emulator
//     Ladder ladder("add_scaled bf16 n=64M", 6.0 * n);
//     Sets<bf16> x(op, ladder.sets, n), y(op, ladder.sets, n);
//     for (auto [name, f] : {Rung{"element a thread", add_0}, Rung{"production", op.add_scaled}})
//         ladder.rung(
//             name, check_add_scaled(with(op, &Ops<bf16>::add_scaled, f), 1000, Sum::apart),
//             [&](int set) { f(y[set], x[set], n); });
//     return ladder_result();
// }
//
// The emulator has no useful clock. There a ladder only checks its rungs, at small sizes, so that
// `make test` runs every ladder.
#pragma once
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/philox.h"
#include "layers/cuda.cuh"
#include "layers/cuda.h"
#include "tools/selftest/check.h"

template <class F> struct Rung {
    const char* name;
    F function;
};
template <class F> Rung(const char*, F) -> Rung<F>;

template <class T, class F> Ops<T> with(Ops<T> table, F Ops<T>::*entry, F function) {
    table.*entry = function;
    return table;
}

template <class X> X ladder_size(X gpu, X emulated) { return EMULATED ? emulated : gpu; }

// ---- inputs -------------------------------------------------------------------------------------

// Several sets of n random elements (normal times scale). Runs rotate over the sets, so L2 has
// evicted a set before its next use.
template <class X> class Sets {
  public:
    template <class T> Sets(const Ops<T>& op, int sets, int64_t n, double scale = 1)
        : memory(op), stride(round_up(n, 256)), bytes(stride * sets * int64_t(sizeof(X))) {
        base = static_cast<X*>(memory.allocate(bytes));
        CHECK(base, "no memory for %lld bytes", (long long)bytes);
        std::vector<X> block(size_t(std::min<int64_t>(stride * sets, 1 << 20)));
        for (size_t i = 0; i < block.size(); i++) block[i] = as<X>(scale * double(philox_normal(7, uint64_t(n), i)));
        for (int64_t at = 0; at < stride * sets; at += int64_t(block.size()))
            memory.upload(base + at, block.data(),
                          std::min(int64_t(block.size()), stride * sets - at) * int64_t(sizeof(X)));
    }
    Sets(const Sets&) = delete;
    ~Sets() { memory.release(base, bytes); }
    X* operator[](int set) const { return base + stride * set; }

  private:
    Memory memory;
    int64_t stride, bytes;
    X* base;
};

// ---- time ---------------------------------------------------------------------------------------

// Seconds of one run, back to back with others on rotating sets: the median of 15 batches >= 5 ms.
inline double ladder_seconds(int sets, const std::function<void(int)>& run) {
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    int set = 0;
    auto batch = [&](int runs) {
        CUDA_CHECK(cudaEventRecord(begin, cuda_stream()));
        for (int i = 0; i < runs; i++) run(set++ % sets);
        CUDA_CHECK(cudaEventRecord(end, cuda_stream()));
        CUDA_CHECK(cudaEventSynchronize(end));
        float ms = 0;
        CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
        return double(ms) * 1e-3 / runs;
    };
    batch(3);    // warm-up: first launches, clock rates
    const int runs = std::clamp(int(5e-3 / batch(3)), 1, 10000);
    std::vector<double> times;
    for (int i = 0; i < 15; i++) times.push_back(batch(runs));
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Bytes per second read and written by the driver's copy of half a GB: reachable bandwidth.
inline double copy_bandwidth() {
    static const double bandwidth = [] {
        const int64_t bytes = 1 << 29;
        char* p = nullptr;
        CUDA_CHECK(cudaMalloc(&p, size_t(2 * bytes)));
        double seconds = ladder_seconds(1, [&](int) {
            CUDA_CHECK(cudaMemcpyAsync(p + bytes, p, size_t(bytes), cudaMemcpyDeviceToDevice, cuda_stream()));
        });
        CUDA_CHECK(cudaFree(p));
        return 2 * double(bytes) / seconds;
    }();
    return bandwidth;
}

// ---- the ladder ---------------------------------------------------------------------------------

inline int ladder_failures = 0;

class Ladder {
  public:
    const int sets;    // together half a GB, over 4 x the largest L2 (126 MB)

    // bytes, flops: the least that one run must move and compute. flops 0: no TFLOP/s column.
    Ladder(const std::string& title, double bytes, double flops = 0)
        : sets(EMULATED ? 1 : int(std::clamp(double(1 << 29) / bytes + 1, 2.0, 1000.0))), bytes(bytes), flops(flops) {
        printf("\n%s\n", title.c_str());
        if (EMULATED) printf("    emulated: not timed\n%-46s %12s\n", "    rung", "error/limit");
        else
            printf("    %.1f MB, %.1f GFLOP; a copy of memory runs at %.0f GB/s\n%-46s %12s %10s %8s %7s %s %6s\n",
                   bytes / 1e6, flops / 1e9, copy_bandwidth() / 1e9, "    rung", "error/limit", "us", "GB/s", "% copy",
                   flops > 0 ? " TFLOP/s" : "", "x v0");
    }

    // run(set) launches the rung on that set's arrays. moves: bytes that this rung moves; 0: the
    // ladder's bytes.
    void rung(const std::string& name, const Check& check, const std::function<void(int set)>& run, double moves = 0) {
        printf("%3d %-42s %12.2g", version++, name.c_str(), check.worst);
        if (!check.ok()) {
            printf("   WRONG: %s of %s %s\n", check.output.c_str(), check.op.c_str(), check.shape.c_str());
            ladder_failures++;
            return;
        }
        if (!EMULATED) {
            const double seconds = ladder_seconds(sets, run), rate = (moves > 0 ? moves : bytes) / seconds;
            if (first == 0) first = seconds;
            printf(" %10.1f %8.0f %7.1f", seconds * 1e6, rate / 1e9, rate / copy_bandwidth() * 100);
            if (flops > 0) printf(" %8.1f", flops / seconds / 1e12);
            printf(" %6.2f", first / seconds);
        }
        printf("\n");
        fflush(stdout);
    }

  private:
    const double bytes, flops;
    double first = 0;    // seconds of version 0
    int version = 0;
};

// Opens the first GPU. If there is none, prints the reason and returns false.
inline bool ladder_open() {
    std::string why;
    if (cuda_devices(&why).empty()) {
        fprintf(stderr, "no GPU: %s\n", why.c_str());
        return false;
    }
    if (Status s = cuda_open(0); !s.ok()) {
        fprintf(stderr, "%s\n", s.message.c_str());
        return false;
    }
    printf("%s\n", cuda_device().name.c_str());
    return true;
}
inline int ladder_result() { return ladder_failures ? int(Exit::run) : int(Exit::ok); }
