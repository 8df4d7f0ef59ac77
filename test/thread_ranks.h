// thread_ranks.h - ranks as threads of one process: a Comm for tests of code that uses one.
#pragma once
#include <barrier>
#include <deque>
#include <thread>
#include <vector>

#include "comm/comm.h"

// State shared by the ranks. Collectives run in join, as late as on a device: earlier reads are
// old.
struct Meeting {
    std::barrier<> barrier;
    std::vector<void*> x;
    explicit Meeting(int ranks) : barrier(ranks), x(size_t(ranks)) {}
};
struct ThreadComm final : Comm {
    Meeting& meeting;
    std::deque<std::function<void()>> queue;
    int64_t done = 0, calls = 0;
    double bytes = 0;    // sent by this rank
    ThreadComm(Meeting& m, int rank_, int ranks_) : meeting(m) { rank = rank_, ranks = ranks_; }

    std::string name() const override { return "threads"; }
    int64_t mark() override { return done + int64_t(queue.size()); }
    void join(int64_t mark) override {
        for (; done < mark; done++) {
            queue.front()();
            queue.pop_front();
        }
    }
    // Sum over the ranks of elements [from, from+n).
    template <class X> std::vector<X> sum(X* mine, int64_t from, int64_t n) {
        std::vector<X> all(size_t(n), X(0));
        meeting.x[size_t(rank)] = mine;
        meeting.barrier.arrive_and_wait();
        for (int r = 0; r < ranks; r++)
            for (int64_t i = 0; i < n; i++) all[size_t(i)] += static_cast<X*>(meeting.x[size_t(r)])[from + i];
        meeting.barrier.arrive_and_wait();
        return all;
    }
    template <class F> void typed(Element type, F f) { type == Element::f64 ? f(double()) : f(float()); }
    void all_reduce(void* x, int64_t n, Element type, Element) override {
        calls++, bytes += 2 * double(n * element_bytes(type)) * (ranks - 1) / ranks;
        queue.push_back([=, this] {
            typed(type, [&](auto zero) {
                auto* to = static_cast<decltype(zero)*>(x);
                auto all = sum(to, 0, n);
                std::copy(all.begin(), all.end(), to);
                meeting.barrier.arrive_and_wait();
            });
        });
    }
    void reduce_scatter(void* out, void* x, int64_t n, Element type, Element) override {
        calls++, bytes += double(n * element_bytes(type)) * (ranks - 1);
        queue.push_back([=, this] {
            typed(type, [&](auto zero) {
                using X = decltype(zero);
                auto all = sum(static_cast<X*>(x), rank * n, n);
                // x is scratch afterwards: NaN exposes code that reads it.
                for (int64_t i = 0; i < n * ranks; i++) static_cast<X*>(x)[i] = X(NAN);
                std::copy(all.begin(), all.end(), static_cast<X*>(out));
                meeting.barrier.arrive_and_wait();
            });
        });
    }
    void broadcast(void* x, int64_t n, Element type, int from) override {
        calls++, bytes += rank == from ? double(n * element_bytes(type)) * (ranks - 1) : 0;
        queue.push_back([=, this] {
            meeting.x[size_t(rank)] = x;
            meeting.barrier.arrive_and_wait();
            if (rank != from)
                std::copy_n(static_cast<char*>(meeting.x[size_t(from)]), n * element_bytes(type),
                            static_cast<char*>(x));
            meeting.barrier.arrive_and_wait();
        });
    }
    void pass_on(void* to, const void* from, int64_t n, Element type, int ring) override {
        calls++, bytes += double(n * element_bytes(type));
        queue.push_back([=, this] {
            meeting.x[size_t(rank)] = const_cast<void*>(from);
            meeting.barrier.arrive_and_wait();
            std::copy_n(static_cast<char*>(meeting.x[size_t(neighbour(ring, -1))]), n * element_bytes(type),
                        static_cast<char*>(to));
            meeting.barrier.arrive_and_wait();
        });
    }
    void all_gather(void* x, int64_t n, Element type) override {
        calls++, bytes += double(n * element_bytes(type)) * (ranks - 1);
        queue.push_back([=, this] {
            const int64_t size = n * element_bytes(type);
            meeting.x[size_t(rank)] = x;
            meeting.barrier.arrive_and_wait();
            for (int r = 0; r < ranks; r++)
                if (r != rank)
                    std::copy_n(static_cast<char*>(meeting.x[size_t(r)]) + r * size, size,
                                static_cast<char*>(x) + r * size);
            meeting.barrier.arrive_and_wait();
        });
    }
};
