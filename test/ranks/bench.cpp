// tools/bench/bench.cpp - all_reduce beside MPI's own and memcpy.
#include "ranks_test.h"
#ifndef HAVE_MPI
int bench(const Engine&) {
    fprintf(stderr, "built without MPI\n");
    return 1;
}
#else
#include <algorithm>
#include <chrono>

#include <dlfcn.h>
#include <mpi.h>

namespace {
template <class F> double median_seconds(const Engine& e, int times, F f) {
    std::vector<double> seconds;
    for (int i = -1; i < times; i++) {    // the first one warms up
        double all = 0;
        e.comm->all_reduce(&all, 1, Element::f64, Element::f64);    // barrier: ranks begin together
        e.comm->join(e.comm->mark());
        const auto start = std::chrono::steady_clock::now();
        f();
        all = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (i >= 0) seconds.push_back(all);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
}
}    // namespace

// Calls MPI from another thread than the one that initialised it, which waits meanwhile: all MPI
// libraries allow this.
int bench(const Engine& e) {
    auto reduce = reinterpret_cast<decltype(&MPI_Allreduce)>(dlsym(RTLD_DEFAULT, "MPI_Allreduce"));
#ifdef OPEN_MPI
    auto* world = static_cast<MPI_Comm>(dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world"));
    auto* type = static_cast<MPI_Datatype>(dlsym(RTLD_DEFAULT, "ompi_mpi_float"));
    auto* sum = static_cast<MPI_Op>(dlsym(RTLD_DEFAULT, "ompi_mpi_op_sum"));
#else
    const MPI_Comm world = MPI_COMM_WORLD;
    const MPI_Datatype type = MPI_FLOAT;
    const MPI_Op sum = MPI_SUM;
#endif
    const bool prints = e.comm->rank == 0;
    if (prints)
        printf("%s, %d ranks, milliseconds\n%8s %9s %9s %9s %9s %7s\n", e.comm->name().c_str(), e.comm->ranks, "MB",
               "ours", "by bf16", "MPI's", "memcpy", "ratio");
    for (int64_t n : {int64_t(8), int64_t(1024), int64_t(250000), int64_t(10000000), int64_t(40000000)}) {
        auto* x = static_cast<float*>(e.device->allocate(n * 4));
        auto* y = static_cast<float*>(e.device->allocate(n * 4));
        CHECK(x && y, "out of memory");
        const int times = n < 1000000 ? 51 : 7;
        auto ours = [&](Element comm_dtype) {
            e.comm->all_reduce(x, n, Element::f32, comm_dtype);
            e.comm->join(e.comm->mark());
        };
        const double f32 = median_seconds(e, times, [&] { ours(Element::f32); });
        const double half = median_seconds(e, times, [&] { ours(Element::bf16); });
        const double theirs = median_seconds(e, times, [&] { reduce(MPI_IN_PLACE, x, int(n), type, sum, world); });
        const double copy = median_seconds(e, times, [&] { memcpy(y, x, size_t(n) * 4); });
        if (prints)
            printf("%8.3f %9.3f %9.3f %9.3f %9.3f %7.2f\n", double(n) * 4e-6, f32 * 1e3, half * 1e3, theirs * 1e3,
                   copy * 1e3, f32 / theirs);
        e.device->release(x, n * 4);
        e.device->release(y, n * 4);
    }
    return 0;
}
#endif
