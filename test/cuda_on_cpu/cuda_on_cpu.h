// Compiles CUDA kernel sources as plain C++ and runs them on the CPU, for unit tests on machines without a GPU.
//
// Every thread of a block is a fiber; a block runs on one OS thread and its fibers switch only where CUDA threads
// meet: barriers, warp collectives, waits. So a kernel runs deterministically, in an order that a seed chooses:
// seed 0 is thread order, any other seed shuffles blocks and fibers, which uncovers missing barriers. Shared and device
// memory starts out as NaN. Divergent barriers, mismatched collectives and deadlocks throw emu::Error from launch().
// AddressSanitizer checks bounds (shared memory included), UBSan alignment, ThreadSanitizer races between fibers.
#pragma once
#include "cuda_types_on_cpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define EMU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#elif __has_feature(thread_sanitizer)
#define EMU_TSAN 1
#endif
#endif
#if EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if EMU_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char*, int);
extern "C" void AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int);
extern "C" void AnnotateIgnoreWritesEnd(const char*, int);
extern "C" void AnnotateBenignRaceSized(const char*, int, const volatile void*, size_t, const char*);
#define EMU_UNSEEN __attribute__((no_sanitize("thread")))
#else
#define EMU_UNSEEN
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

// ---------------------------------------------------------------- language

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __shared__ static thread_local  // works, but is neither poisoned nor bounds-checked: prefer SHARED (gpu.cuh)
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) alignas(n)
// __noinline__ stays undefined: libstdc++ spells an attribute that way.

inline thread_local uint3 threadIdx;
inline thread_local uint3 blockIdx;
inline thread_local dim3 blockDim;
inline thread_local dim3 gridDim;
constexpr int warpSize = 32;

namespace emu {

struct Location {
  const char* file = "";
  int line = 0;
  static constexpr Location here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Location& o) const { return line == o.line && std::strcmp(file, o.file) == 0; }
  std::string text() const { return std::string(file) + ":" + std::to_string(line); }
};

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Config {
  uint64_t seed = 0;                  // 0: thread order; else blocks and fibers run in an order drawn from this
  unsigned os_threads = 1;            // blocks run on this many OS threads (only with seed 0)
  size_t stack_bytes = 128 << 10;     // of one fiber
  size_t shared_limit = 227 << 10;    // dynamic and static shared memory of one block
  bool same_barrier_line = true;      // all threads of a barrier must stand at the same source line
};
inline Config config;

struct Rng {  // splitmix64
  uint64_t state;
  uint64_t operator()() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  size_t below(size_t n) { return static_cast<size_t>((*this)() >> 11) % n; }
};

// ThreadSanitizer sees each fiber as a thread of its own; what the emulator itself does is hidden from it.
struct Hidden {
#if EMU_TSAN
  Hidden() { AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0); }
  ~Hidden() { AnnotateIgnoreReadsEnd("", 0), AnnotateIgnoreWritesEnd("", 0); }
#else
  Hidden() {}
#endif
};
inline void publish([[maybe_unused]] void* at) {
#if EMU_TSAN
  __tsan_release(at);
#endif
}
inline void observe([[maybe_unused]] void* at) {
#if EMU_TSAN
  __tsan_acquire(at);
#endif
}

// ---------------------------------------------------------------- fibers

#if defined(__x86_64__)
using Context = void*;  // the stack pointer; everything else lies on the stack
__attribute__((naked, noinline)) inline void swap_context(Context* /*from*/, Context /*to*/) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
      "popq %rcx\n jmpq *%rcx\n");  // a return would always be mispredicted
}
inline void make_context(Context& c, char* stack, size_t bytes, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack + bytes);
  *--top = nullptr;  // the return address of entry
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  c = top;
}
#else
using Context = ucontext_t;
inline void swap_context(Context* from, Context& to) { swapcontext(from, &to); }
inline void make_context(Context& c, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&c);
  c.uc_stack.ss_sp = stack, c.uc_stack.ss_size = bytes, c.uc_link = nullptr;
  makecontext(&c, entry, 0);
}
#endif

struct Copy {  // a cp.async on its way
  void* to;
  const void* from;
  size_t bytes, zeros;
};

struct Fiber {
  Context context{};
  char* stack = nullptr;
  uint3 index{};
  int id = 0;
  bool exited = false;
  const char* waits_for = nullptr;
  Location at;
  bool (*ready)(void*) = nullptr;  // of a polling wait
  void* ready_arg = nullptr;
  std::vector<Copy> copies;
  std::vector<size_t> copy_groups;  // how many copies each committed group has
  void* fake_stack = nullptr;       // AddressSanitizer's
  void* tsan = nullptr;
  int lane() const { return id & 31; }
  int warp() const { return id >> 5; }
};

// The lanes of one warp that meet in one collective. The last to come acts for all.
struct Meeting {
  unsigned mask = 0, arrived = 0;
  void (*act)(Meeting&) = nullptr;
  const char* what = nullptr;
  Location at;
  void* slot[32];
};

struct Barrier {
  const char* what = nullptr;
  Location at;
  int want = 0, here = 0, votes = 0, result = 0;
  unsigned phase = 0;
  char sync[2];  // addresses for ThreadSanitizer, alternating by phase
  std::vector<Fiber*> waiting;
};

struct Warp {
  unsigned alive = 0;
  unsigned open = 0;  // which of the meetings have begun
  std::vector<std::function<void()>> pending;  // wgmma operations on their way
  std::vector<size_t> groups;                  // where each committed group of them ends
  Meeting meetings[16];
  char sync[2];
  unsigned phase = 0;
};

class Block;
inline char launch_end;            // an address for ThreadSanitizer
inline thread_local Block* block;  // the block that this OS thread runs
inline thread_local Fiber* self;   // and its fiber

class Block {
 public:
  Block() : rng{config.seed} {
    shared_bytes = (config.shared_limit + 4095) & ~size_t{4095};
    shared = static_cast<char*>(map(shared_bytes));
  }
  ~Block() {
    munmap(shared, shared_bytes);
    if (stacks) munmap(stacks, stack_stride * capacity);
  }
  Block(const Block&) = delete;

  void run(uint3 index, dim3 dim, size_t dynamic_bytes, void (*body)(void*), void* arg) {
    size_t n = size_t{dim.x} * dim.y * dim.z;
    if (n == 0 || n > 1024) throw Error("a block of " + std::to_string(n) + " threads");
    if (dynamic_bytes > config.shared_limit) throw Error("too much dynamic shared memory");
    block = this, kernel = body, kernel_arg = arg, error = nullptr;
    blockIdx = index, blockDim = dim;
    prepare_shared(dynamic_bytes);
    prepare_fibers(static_cast<int>(n), dim);
    switch_to(*pick());  // comes back once every fiber has exited, or one has failed
    retire_fibers();
    block = nullptr, self = nullptr;
    if (error) std::rethrow_exception(error);
  }

  // ---- scheduling: called by the running fiber

  void wake(Fiber* f) {
    f->waits_for = nullptr;
    ready[f->warp()] |= 1u << f->lane();
    ready_ranks |= 1u << rank[f->warp()];
  }
  void wait(const char* what, Location at) {
    self->waits_for = what, self->at = at;
    Fiber* next = pick();
    if (next != self) switch_to(*next);
  }
  void yield() {
    wake(self);
    fair = true;
    wait(nullptr, {});
  }
  void wait_until(const char* what, Location at, bool (*ready)(void*), void* arg) {
    if (ready(arg)) return;
    self->ready = ready, self->ready_arg = arg;
    pollers.push_back(self);
    wait(what, at);
  }
  void later(std::function<void()> op) { engine.push_back(std::move(op)); }  // an asynchronous unit's work

  // ---- meeting points

  void meet(const char* what, Location at, unsigned mask, void* slot, void (*act)(Meeting&), bool fence = false) {
    Hidden hidden;
    Warp& w = warps[static_cast<size_t>(self->warp())];
    unsigned me = 1u << self->lane();
    if (!(mask & me)) fail(what, at, "the calling lane is not in its mask");
    Meeting* m = nullptr;
    for (unsigned open = w.open; open; open &= open - 1) {
      Meeting& o = w.meetings[__builtin_ctz(open)];
      if (!(o.mask & mask)) continue;
      if (o.mask != mask || o.act != act) fail(what, at, std::string("lanes of its mask wait in ") + o.what + " at " + o.at.text());
      m = &o;
    }
    if (!m) {
      int i = __builtin_ctz(~w.open);
      w.open |= 1u << i;
      m = &w.meetings[i];
      m->what = what, m->at = at, m->mask = mask, m->arrived = 0, m->act = act;
    }
    m->slot[self->lane()] = slot;
    m->arrived |= me;
    void* sync = &w.sync[w.phase & 1];
    if (fence) publish(sync);
    if ((m->mask & w.alive) == m->arrived) conclude(*m, fence);
    else wait(what, at);
    if (fence) observe(sync);
  }

  // Returns the sum of the votes. want: how many threads take part, 0 for all that have not exited.
  int sync(int id, int want, int vote, const char* what, Location at, bool arrive_only = false) {
    Hidden hidden;
    Barrier& b = barriers[id];
    if (b.here == 0) b.what = what, b.at = at, b.want = want, b.votes = 0;
    if (b.want != want || (config.same_barrier_line && id == 0 && !(b.at == at)))
      fail(what, at, std::string("other threads of the block wait in ") + b.what + " at " + b.at.text());
    b.here++, b.votes += vote;
    void* sync = &b.sync[b.phase & 1];
    publish(sync);
    if (!arrive_only) b.waiting.push_back(self);
    if (b.here == (want ? want : alive)) conclude(b);
    else if (!arrive_only) wait(what, at);
    if (!arrive_only) observe(sync);
    return b.result;
  }

  [[noreturn]] void fail(const char* what, Location at, const std::string& why) {
    throw Error("thread (" + std::to_string(threadIdx.x) + "," + std::to_string(threadIdx.y) + "," + std::to_string(threadIdx.z) + ") of block (" + std::to_string(blockIdx.x) + "," +
                std::to_string(blockIdx.y) + "," + std::to_string(blockIdx.z) + "), " + what + " at " + at.text() + ": " + why);
  }

  bool toss() {
    Hidden hidden;
    return rng.below(2);
  }
  Warp& warp() { return warps[static_cast<size_t>(self->warp())]; }
  unsigned alive_lanes() const { return warps[static_cast<size_t>(self->warp())].alive; }

  // ---- shared memory

  void* static_shared(const void* key, size_t bytes, size_t align) {
    Hidden hidden;
    for (auto& [k, p] : statics)
      if (k == key) return p;
    size_t at = (static_end + align - 1) / align * align;
    if (at + bytes > config.shared_limit) throw Error("too much shared memory");
    allow(at, bytes);
    std::memset(shared + at, 0xff, bytes);
    static_end = at + bytes + 64;  // a red zone
    statics.emplace_back(key, shared + at);
    return shared + at;
  }
  bool is_shared(const void* p) const { return p >= shared && p < shared + shared_bytes; }

  char* shared = nullptr;
  size_t dynamic_bytes = 0;
  Rng rng;
  unsigned long switches = 0;

 private:
  static void* map(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw Error("no memory for the emulated block");
    return p;
  }
  void allow([[maybe_unused]] size_t at, [[maybe_unused]] size_t bytes) {
#if EMU_ASAN
    ASAN_UNPOISON_MEMORY_REGION(shared + at, bytes);
#endif
  }
  void prepare_shared(size_t bytes) {
    allow(0, shared_bytes);
    std::memset(shared, 0xff, bytes);  // NaN as float and as bfloat16
#if EMU_ASAN
    ASAN_POISON_MEMORY_REGION(shared, shared_bytes);
#endif
    dynamic_bytes = bytes;
    allow(0, bytes);
    statics.clear();
    static_end = bytes + 64;
  }

  void prepare_fibers(int n, dim3 dim) {
    if (static_cast<size_t>(n) > capacity || stack_stride != config.stack_bytes + 4096) {
      if (stacks) munmap(stacks, stack_stride * capacity);
      capacity = static_cast<size_t>(n), stack_stride = config.stack_bytes + 4096;
      stacks = static_cast<char*>(map(stack_stride * capacity));
      for (size_t i = 0; i < capacity; ++i) mprotect(stacks + i * stack_stride, 4096, PROT_NONE);
    }
    fibers.clear();
    fibers.resize(static_cast<size_t>(n));
    warps.assign(static_cast<size_t>(n + 31) / 32, {});
    for (Barrier& b : barriers) b = {};
    alive = n, pollers.clear(), engine.clear();
    for (int w = 0; w < 32; ++w) ready[w] = 0, rank[w] = warp_at[w] = w;
    ready_ranks = 0, fair = false;
    if (config.seed) shuffle_ranks();
    for (int i = 0; i < n; ++i) {
      Fiber& f = fibers[static_cast<size_t>(i)];
      unsigned u = static_cast<unsigned>(i);
      f.id = i, f.index = {u % dim.x, u / dim.x % dim.y, u / dim.x / dim.y};
      f.stack = stacks + static_cast<size_t>(i) * stack_stride + 4096;
#if EMU_ASAN
      ASAN_UNPOISON_MEMORY_REGION(f.stack, config.stack_bytes);
#endif
#if EMU_TSAN
      f.tsan = __tsan_create_fiber(0);
#endif
      make_context(f.context, f.stack, config.stack_bytes, entry);
      warps[static_cast<size_t>(f.warp())].alive |= 1u << f.lane();
      wake(&f);
    }
#if EMU_TSAN
    host.tsan = __tsan_get_current_fiber();
    // Thread-local to the OS thread, so shared by the fibers.
    AnnotateBenignRaceSized("", 0, &threadIdx, sizeof threadIdx, "");
    AnnotateBenignRaceSized("", 0, &self, sizeof self, "");
#endif
    self = &host;
  }
  EMU_UNSEEN void retire_fibers() {
#if EMU_TSAN
    for (Fiber& f : fibers)
      if (f.exited) __tsan_destroy_fiber(f.tsan);
      else {  // given up amid a meeting: cannot be destroyed, but all that it did lies behind the host now
        __tsan_switch_to_fiber(f.tsan, __tsan_switch_to_fiber_no_sync);
        __tsan_switch_to_fiber(host.tsan, 0);
      }
#endif
  }

  EMU_UNSEEN void switch_to(Fiber& to) {
    Fiber* from = self;
    self = &to, threadIdx = to.index;
    ++switches;
#if EMU_ASAN
    __sanitizer_start_switch_fiber(from->exited ? nullptr : &from->fake_stack, to.stack ? to.stack : host_stack, to.stack ? config.stack_bytes : host_stack_bytes);
#endif
#if EMU_TSAN
    __tsan_switch_to_fiber(to.tsan, __tsan_switch_to_fiber_no_sync);
#endif
    swap_context(&from->context, to.context);
#if EMU_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
  }

  EMU_UNSEEN static void entry() {
    Block& b = *block;
#if EMU_ASAN
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (!b.host_stack) b.host_stack = bottom, b.host_stack_bytes = bytes;  // the first comes from the host
#endif
    Fiber* next = &b.host;
    try {
      b.kernel(b.kernel_arg);
      Hidden hidden;
      next = b.leave();
    } catch (...) {
      b.error = std::current_exception();
    }
    publish(&launch_end);
    self->exited = true;
    b.switch_to(*next);
  }

  // The running fiber has returned from the kernel: those who wait for it wait no more.
  Fiber* leave() {
    Warp& w = warps[static_cast<size_t>(self->warp())];
    w.alive &= ~(1u << self->lane());
    --alive;
    for (unsigned open = w.open; open; open &= open - 1) {
      Meeting& m = w.meetings[__builtin_ctz(open)];
      if ((m.mask & w.alive) == m.arrived) conclude(m, false);
    }
    for (Barrier& b : barriers)
      if (b.here && b.want == 0 && b.here == alive) conclude(b);
    return alive ? pick() : &host;
  }

  void conclude(Meeting& m, bool fence) {
    Warp& w = warps[static_cast<size_t>(self->warp())];
    if (m.act) m.act(m);
    if (fence) ++w.phase;
    unsigned lanes = m.arrived;
    w.open &= ~(1u << (&m - w.meetings));
    release([&](auto each) {
      for (; lanes; lanes &= lanes - 1) each(&fibers[static_cast<size_t>(self->warp() * 32 + __builtin_ctz(lanes))]);
    });
  }
  void conclude(Barrier& b) {
    b.result = b.votes, b.here = 0, ++b.phase;
    std::vector<Fiber*> waiting;
    waiting.swap(b.waiting);
    release([&](auto each) {
      for (Fiber* f : waiting) each(f);
    });
    waiting.clear();
    if (b.waiting.empty()) b.waiting.swap(waiting);  // keep its memory
  }
  // Wakes them all; the running fiber, if among them, goes on at once in thread order but is drawn like the rest else.
  template <class Each>
  void release(Each each_of) {
    bool me = false;
    each_of([&](Fiber* f) { f == self ? void(me = true) : wake(f); });
    if (me && config.seed) yield();
  }

  Fiber* pick() {
    bool seeded = config.seed != 0;
    while (ready_ranks == 0 || (seeded && (!engine.empty() || !pollers.empty()) && rng.below(4) == 0)) {
      bool moved = false;
      if (!engine.empty()) {
        size_t i = seeded ? rng.below(engine.size()) : 0;
        auto op = std::move(engine[i]);
        engine.erase(engine.begin() + static_cast<long>(i));
        op();
        moved = true;
      }
      for (size_t i = 0; i < pollers.size();) {
        if (!pollers[i]->ready(pollers[i]->ready_arg)) {
          ++i;
          continue;
        }
        wake(pollers[i]), moved = true;
        pollers.erase(pollers.begin() + static_cast<long>(i));
      }
      if (!moved && ready_ranks == 0) deadlock();
      if (!moved) break;
    }
    // Thread order; with a seed some warps run far ahead of others, which ones changes at times, and lanes are drawn.
    // (Drawing evenly among all threads keeps them in step, and misses bugs that one warp far ahead shows.)
    if (seeded && rng.below(256) == 0) shuffle_ranks();
    int w = warp_at[bit(ready_ranks, fair)];
    int lane = bit(ready[w], fair || seeded);
    fair = false;
    if ((ready[w] &= ~(1u << lane)) == 0) ready_ranks &= ~(1u << rank[w]);
    return &fibers[static_cast<size_t>(w * 32 + lane)];
  }
  int bit(unsigned set, bool any) {
    if (any)
      for (size_t skip = rng.below(static_cast<size_t>(__builtin_popcount(set))); skip; --skip) set &= set - 1;
    return __builtin_ctz(set);
  }
  void shuffle_ranks() {
    size_t n = warps.size();
    for (size_t i = n; i > 1; --i) std::swap(warp_at[i - 1], warp_at[rng.below(i)]);
    ready_ranks = 0;
    for (size_t r = 0; r < n; ++r) {
      rank[warp_at[r]] = static_cast<int>(r);
      if (ready[warp_at[r]]) ready_ranks |= 1u << r;
    }
  }

  [[noreturn]] void deadlock() {
    std::string s = "deadlock in block (" + std::to_string(blockIdx.x) + "," + std::to_string(blockIdx.y) + "," + std::to_string(blockIdx.z) + "):";
    std::vector<std::pair<std::string, int>> seen;  // what is waited for, by how many threads
    int exited = 0;
    for (Fiber& f : fibers) {
      if (f.exited || !f.waits_for) { exited++; continue; }
      std::string key = std::string(f.waits_for) + " at " + f.at.text() + " (first: thread " + std::to_string(f.index.x) + ")";
      auto same = std::find_if(seen.begin(), seen.end(), [&](auto& p) { return p.first.substr(0, p.first.find(" (")) == key.substr(0, key.find(" (")); });
      same == seen.end() ? void(seen.emplace_back(key, 1)) : void(same->second++);
    }
    for (auto& [key, n] : seen) s += " " + std::to_string(n) + " threads wait in " + key + ";";
    throw Error(s + " " + std::to_string(exited) + " have exited");
  }

  size_t shared_bytes = 0, static_end = 0;
  std::vector<std::pair<const void*, void*>> statics;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barriers[16];
  unsigned ready[32];     // of each warp, the lanes that can run
  unsigned ready_ranks = 0;  // the warps that have such, by rank: the order in which they run
  int rank[32], warp_at[32];
  bool fair = false;  // whether the next to run is drawn from all
  int alive = 0;
  std::vector<Fiber*> pollers;
  std::vector<std::function<void()>> engine;
  void (*kernel)(void*) = nullptr;
  void* kernel_arg = nullptr;
  std::exception_ptr error;
  Fiber host;
  [[maybe_unused]] const void* host_stack = nullptr;
  [[maybe_unused]] size_t host_stack_bytes = 0;
  char* stacks = nullptr;
  size_t capacity = 0, stack_stride = 0;
};

inline void run_grid(dim3 grid, dim3 dim, size_t shared, bool in_order, void (*body)(void*), void* arg) {
  std::vector<uint3> blocks;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
  Rng order{config.seed};
  if (config.seed && !in_order)
    for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[order.below(i)]);
  size_t workers = config.seed ? 1 : std::min<size_t>(config.os_threads, blocks.size());
  std::vector<std::exception_ptr> errors(workers);
  auto work = [&](size_t worker) {
    Hidden hidden;
    static thread_local std::unique_ptr<Block> reused;  // its stacks and shared memory serve many launches
    Rng draws{config.seed};
    gridDim = grid;
    try {
      for (size_t i = worker; i < blocks.size(); i += workers) {
#if EMU_TSAN
        reused.reset();  // memory that ThreadSanitizer has not seen: it shall find races between blocks, not this reuse
#endif
        if (!reused) reused = std::make_unique<Block>();
        reused->rng.state = draws();
        reused->run(blocks[i], dim, shared, body, arg);
      }
    } catch (...) {
      errors[worker] = std::current_exception();
    }
  };
  if (workers == 1) work(0);
  else {
    std::vector<std::thread> team;
    for (size_t i = 0; i < workers; ++i) team.emplace_back(work, i);
    for (auto& t : team) t.join();
  }
  observe(&launch_end);
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
}

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 dim, size_t shared, bool in_order, A&&... args) {
  std::tuple<P...> params(std::forward<A>(args)...);
  auto body = [&] { std::apply([&](auto... p) { kernel(p...); }, params); };
  run_grid(grid, dim, shared, in_order, [](void* b) { (*static_cast<decltype(body)*>(b))(); }, &body);
}

}  // namespace emu

#include "cuda_intrinsics_on_cpu.h"
