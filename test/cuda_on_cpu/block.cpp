// block.cpp - one block: fibers and their scheduler, barriers, collectives, shared memory.
#include "block.h"

#include <sys/mman.h>

#include <algorithm>

namespace emu {
namespace {
constexpr size_t GUARD = 4096, RED_ZONE = 64;
// Whether stacks are reused: to TSan another thread's traces on a stack would look like a race. It
// is a function because a constant might be initialised before TSAN.
bool reuse() { return !TSAN; }

void* map(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw Error("no memory for the emulated block");
    return p;
}
// The first bit of the set from bit `from` % 32 on.
int bit(unsigned set, unsigned from) {
    from %= 32;
    return static_cast<int>((static_cast<unsigned>(__builtin_ctz(set >> from | set << (32 - from) % 32)) + from) % 32);
}
std::string text(const uint3& i) {
    return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}
}    // namespace

Block::Block() {
    shared_bytes = (config.shared_limit + (64 << 10)) & ~size_t{4095};    // plus red zones
    shared = static_cast<char*>(map(shared_bytes));
}
Block::~Block() {
    munmap(shared, shared_bytes);
    if (stacks) munmap(stacks, mapped);
    for (Fiber& f : fibers)
        if (TSAN && f.exited) __tsan_destroy_fiber(f.tsan);    // an unfinished fiber cannot be destroyed
}

void Block::run(uint3 at, const Grid& g, void (*body)(void*), void* arg) {
    start(at, g, body, arg, Run::whole);
    resume();
}
void Block::start(uint3 at, const Grid& g, void (*body)(void*), void* arg, Run now) {
    kernel = body, kernel_arg = arg, error = nullptr;
    index = at, must_wait = g.overlaps, how = now;
    runs++;
    publish(&begins);
    host_stack = nullptr;    // may be another OS thread's
    prepare_shared(g.shared);
    prepare_fibers(static_cast<int>(g.threads.x * g.threads.y * g.threads.z), g.threads);
    units.reset(), at_end.clear();
}
bool Block::resume() {
    struct Running {    // pick() throws at a deadlock
        ~Running() { block = nullptr, self = nullptr; }
    } running;
    block = this, self = &host;
    blockIdx = index, blockDim = fibers_dim;
    Fiber* first = pick();
    const bool moves = first != &host;
    if (moves) switch_to(*first);    // until all exited, one failed, or others run
    if (error) abandon_fibers();
    else if (over()) finish();
    if (error) std::rethrow_exception(error);
    return moves;
}
void Block::previous_ended() {
    publish(&begins);
    how = Run::whole;
    for (int w = 0; w < 32; w++)
        if (held[w]) wake(w, std::exchange(held[w], 0));
}

void Block::fail(const char* what, Location at, const std::string& why) {
    throw Error("thread " + text(threadIdx) + " of block " + text(blockIdx) + ", " + what + " at " + at.text() + ": " +
                why);
}
bool Block::toss() {
    Hidden hidden;
    return rng.below(2);
}

// ---- shared memory ------------------------------------------------------------------------------

void Block::allow(size_t at, size_t bytes) {
    if (ASAN) __asan_unpoison_memory_region(shared + at, bytes);
}

void Block::prepare_shared(size_t bytes) {
    allow(0, shared_bytes);
    std::memset(shared, 0xff, bytes + RED_ZONE);    // NaN as float and as bfloat16
    if (ASAN) __asan_poison_memory_region(shared, shared_bytes);
    dynamic_bytes = shared_used = bytes;
    allow(0, bytes);
    statics.clear();
    static_end = bytes + RED_ZONE;
}

void* Block::static_shared(const void* key, size_t bytes, size_t align) {
    Hidden hidden;
    for (Array& a : statics)
        if (a.key == key) return shared + a.at;
    const size_t at = (static_end + align - 1) / align * align;
    shared_used += bytes;
    if (shared_used - dynamic_bytes > 48 << 10) throw Error("more than 48 KiB of SHARED() arrays, the limit of nvcc");
    if (shared_used > config.shared_limit)
        throw Error("a block takes " + std::to_string(shared_used) + " bytes of shared memory: sm_" +
                    std::to_string(config.capability) + " has " + std::to_string(config.shared_limit));
    allow(at, bytes);
    std::memset(shared + at, 0xff, bytes);
    static_end = at + bytes + RED_ZONE;
    statics.push_back({key, at, bytes});
    if (!ASAN) std::memset(shared + at + bytes, 0xff, RED_ZONE);
    return shared + at;
}

// Called when all threads have exited: runs the asynchronous units' final work, and checks for
// writes behind an array, which AddressSanitizer would have reported.
void Block::finish() {
    try {
        for (size_t i = 0; i < at_end.size(); i++) at_end[i]();
    } catch (...) { error = std::current_exception(); }
    if (ASAN) return;
    auto check = [&](size_t end, const char* what) {
        for (size_t i = 0; i < RED_ZONE; i++)
            if (static_cast<unsigned char>(shared[end + i]) != 0xff)
                error = std::make_exception_ptr(Error(std::string("block ") + text(blockIdx) + " wrote " +
                                                      std::to_string(i) + " bytes behind its " + what +
                                                      " (AddressSanitizer shows where)"));
    };
    check(dynamic_bytes, "dynamic shared memory");
    for (Array& a : statics) check(a.at + a.bytes, ("SHARED() array of " + std::to_string(a.bytes) + " bytes").c_str());
}

// ---- fibers -------------------------------------------------------------------------------------

void Block::prepare_stacks(size_t n) {
    if (n > capacity || stack_stride != config.stack_bytes + GUARD) {
        if (stacks) munmap(stacks, mapped);
        capacity = n, stack_stride = config.stack_bytes + GUARD, mapped = stack_stride * capacity;
        stacks = static_cast<char*>(map(mapped));
        for (size_t i = 0; i < capacity; i++) mprotect(stacks + i * stack_stride, GUARD, PROT_NONE);
        if (ASAN) __asan_unpoison_memory_region(stacks, mapped);
    }
    free_stacks.resize(capacity);
    for (size_t i = 0; i < capacity; i++) free_stacks[i] = static_cast<int>(capacity - 1 - i);
}

void Block::prepare_fibers(int n, dim3 dim) {
    prepare_stacks(static_cast<size_t>(n));
    if (dim.x != fibers_dim.x || dim.y != fibers_dim.y || dim.z != fibers_dim.z) {
        fibers_dim = dim;
        fibers.resize(std::max(fibers.size(), static_cast<size_t>(n)));
        warps.resize(static_cast<size_t>(n + 31) / 32);
        for (int i = 0; i < n; i++) {
            const unsigned u = static_cast<unsigned>(i);
            fibers[u].id = i, fibers[u].index = {u % dim.x, u / dim.x % dim.y, u / dim.x / dim.y};
        }
    }
    for (int i = 0; i < n; i++) {
        Fiber& f = fibers[static_cast<size_t>(i)];
        f.started = f.exited = f.waited = false;
        if (!f.copies.empty()) f.copies.clear();
        if (!f.copy_groups.empty()) f.copy_groups.clear();
        if (TSAN && !f.tsan) f.tsan = __tsan_create_fiber(0);
    }
    for (Barrier& b : barriers) b = {};
    threads = alive = n, pollers.clear(), engine.clear();
    for (int w = 0; w < 32; w++) ready[w] = held[w] = 0, rank[w] = warp_at[w] = w;
    ready_ranks = 0, fair = false;
    for (size_t w = 0; w < warps.size(); w++) {
        const int lanes = std::min(32, n - static_cast<int>(w) * 32);
        warps[w].alive = ready[w] = lanes == 32 ? ~0u : (1u << lanes) - 1;
        warps[w].open = 0, warps[w].pending.clear(), warps[w].groups.clear();
        ready_ranks |= 1u << w;
    }
    if (config.seed) shuffle_ranks();
    if (TSAN) {
        host.tsan = __tsan_get_current_fiber();
        // Thread-local variables of the OS thread are shared by its fibers.
        AnnotateBenignRaceSized("", 0, &threadIdx, sizeof threadIdx, "");
        AnnotateBenignRaceSized("", 0, &self, sizeof self, "");
    }
    host.started = true;
}

// Fibers were left in a collective: orders all their accesses before the host's.
EMU_UNSEEN void Block::abandon_fibers() {
    for (int i = 0; TSAN && i < threads; i++) {
        __tsan_switch_to_fiber(fibers[static_cast<size_t>(i)].tsan, 1);
        __tsan_switch_to_fiber(host.tsan, 0);
    }
}

EMU_UNSEEN void Block::begin(Fiber& f, int stack) {
    f.started = true, f.stack = stack;
    char* bottom = stacks + static_cast<size_t>(stack) * stack_stride + GUARD;
    // The last thread on this stack left entry() and switch_to() without returning.
    if (ASAN) __asan_unpoison_memory_region(bottom + config.stack_bytes - (8 << 10), 8 << 10);
    // Stacks lie a multiple of 4096 apart: unshifted, their ends would share sets of L1.
    make_context(f.context, bottom, config.stack_bytes - static_cast<size_t>(stack) * 13 * 64 % 4096, entry);
}

EMU_UNSEEN void Block::switch_to(Fiber& to) {
    Fiber* from = self;
    if (!to.started) {
        begin(to, reuse() ? free_stacks.back() : to.id);
        if (reuse()) free_stacks.pop_back();
    }
    if (reuse() && from->exited) free_stacks.push_back(from->stack);
    self = &to, threadIdx = to.index;
    if (ASAN) {
        const bool home = &to == &host;
        __sanitizer_start_switch_fiber(
            from->exited ? nullptr : &from->fake_stack,
            home ? host_stack : stacks + static_cast<size_t>(to.stack) * stack_stride + GUARD,
            home ? host_stack_bytes : config.stack_bytes);
    }
    if (TSAN) __tsan_switch_to_fiber(to.tsan, 1);
    swap_context(&from->context, to.context);
    if (ASAN) __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
}

EMU_UNSEEN void Block::entry() {
    Block& b = *block;
    if (ASAN) {
        const void* bottom;
        size_t bytes;
        __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
        if (!b.host_stack) b.host_stack = bottom, b.host_stack_bytes = bytes;    // the first switch comes from the host
    }
    while (true) {
        observe(&b.begins), observe(&b.ends[(b.runs + 1) % 2]);
        Fiber* next = &b.host;
        try {
            b.kernel(b.kernel_arg);
            Hidden hidden;
            next = b.leave();
        } catch (...) { b.error = std::current_exception(); }
        publish(&b.ends[b.runs % 2]);
        Fiber* done = self;
        done->exited = true;
        if (next->started || !reuse()) b.switch_to(*next);
        next->started = true, next->stack = done->stack;    // threads that never wait share one stack
        self = next, threadIdx = next->index;
    }
}

// The running fiber has returned from the kernel: ends waits for it.
Fiber* Block::leave() {
    if (must_wait && !self->waited)
        throw Error("thread " + text(threadIdx) + " of block " + text(blockIdx) +
                    " has ended without wait_for_previous(): its kernel overlaps the one before it");
    Warp& w = warp();
    w.alive &= ~(1u << self->lane());
    alive--;
    for (unsigned open = w.open; open; open &= open - 1) {
        Meeting& m = w.meetings[__builtin_ctz(open)];
        if ((m.mask & w.alive) == m.arrived) conclude(m, false);
    }
    if (barriers[0].arrived && barriers[0].arrived == alive) conclude(barriers[0]);
    return alive ? pick() : &host;
}

// ---- collectives, barriers and waits ------------------------------------------------------------

void Block::wait(const char* what, Location at) {
    self->waits_for = what, self->at = at;
    Fiber* next = pick();
    if (next != self) switch_to(*next);
}
void Block::yield() {
    wake(self->warp(), 1u << self->lane());
    fair = true;
    wait("yield", {});
}
void Block::wait_until(const char* what, Location at, bool (*is_ready)(void*), void* arg) {
    if (is_ready(arg)) return;
    self->ready = is_ready, self->ready_arg = arg;
    pollers.push_back(self);
    wait(what, at);
}
void Block::wait_for_grid(Location at) {
    Hidden hidden;
    self->waited = true;
    if (how == Run::ahead) {
        held[self->warp()] |= 1u << self->lane();
        wait("wait_for_previous", at);
    }
    observe(&begins);
}
void Block::wake(int w, unsigned lanes) {
    ready[w] |= lanes;
    ready_ranks |= 1u << rank[w];
}

void Block::meet(const char* what, Location at, unsigned mask, void* slot, void (*act)(Meeting&), bool fence) {
    Hidden hidden;
    Warp& w = warp();
    const unsigned me = 1u << self->lane();
    if (!(mask & me)) fail(what, at, "the calling lane is not in its mask");
    Meeting* m = nullptr;
    for (unsigned open = w.open; open; open &= open - 1) {
        Meeting& o = w.meetings[__builtin_ctz(open)];
        if (!(o.mask & mask)) continue;
        if (o.mask != mask || o.act != act)
            fail(what, at, std::string("lanes of its mask wait in ") + o.what + " at " + o.at.text());
        m = &o;
    }
    if (!m) {
        const int i = __builtin_ctz(~w.open);
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

void Block::conclude(Meeting& m, bool fence) {
    Warp& w = warp();
    const unsigned me = 1u << self->lane();
    if (m.act) m.act(m);
    if (fence) w.phase++;
    w.open &= ~(1u << (&m - w.meetings));
    if (m.arrived & ~me) wake(self->warp(), m.arrived & ~me);
    // In thread order the running fiber continues at once; with a seed it is drawn like the rest.
    if (config.seed && (m.arrived & me)) yield();
}

int Block::sync(int id, int want, int vote, const char* what, Location at, bool arrive_only) {
    Hidden hidden;
    Barrier& b = barriers[id];
    if (b.arrived == 0) b.what = what, b.at = at, b.want = want, b.votes = 0;
    if (b.want != want || (id == 0 && !(b.at == at)))
        fail(what, at, std::string("other threads of the block wait in ") + b.what + " at " + b.at.text());
    b.arrived++, b.votes += vote;
    void* sync = &b.sync[b.phase & 1];
    publish(sync);
    if (!arrive_only) b.waiting[self->warp()] |= 1u << self->lane();
    if (b.arrived == (want ? want : alive)) conclude(b);
    else if (!arrive_only) wait(what, at);
    if (!arrive_only) observe(sync);
    return b.result;
}

void Block::conclude(Barrier& b) {
    b.result = b.votes, b.arrived = 0, b.phase++;
    const unsigned me = 1u << self->lane();
    unsigned& mine = b.waiting[self->warp()];
    const bool waited = mine & me;
    mine &= ~me;
    for (size_t w = 0; w < warps.size(); w++)
        if (b.waiting[w]) wake(static_cast<int>(w), std::exchange(b.waiting[w], 0));
    if (waited && config.seed) yield();
}

// ---- the scheduler ------------------------------------------------------------------------------

// The next fiber to run: in thread order or, with a seed, such that some warps run far ahead of
// others, with changes at times, and lanes are drawn. (Even draws among all threads keep them in
// step, and miss bugs that need one warp far ahead.)
Fiber* Block::pick() {
    const bool seeded = config.seed != 0;
    while (ready_ranks == 0 || (seeded && (!engine.empty() || !pollers.empty()) && rng.below(4) == 0)) {
        const bool moved = advance();
        if (!moved && ready_ranks == 0 && how != Run::whole) return &host;
        if (!moved && ready_ranks == 0) deadlock();
        if (!moved) break;
    }
    if (how == Run::together && seeded && self != &host && rng.below(64) == 0) return &host;
    const unsigned draw = seeded || fair ? static_cast<unsigned>(rng() >> 32) : 0;
    if (seeded && draw >> 24 == 0) shuffle_ranks();
    const int w = warp_at[bit(ready_ranks, fair ? draw : 0)], lane = bit(ready[w], draw >> 8);
    fair = false;
    if ((ready[w] &= ~(1u << lane)) == 0) ready_ranks &= ~(1u << rank[w]);
    return &fibers[static_cast<size_t>(w * 32 + lane)];
}

// Runs one piece of the asynchronous units' work, and wakes fibers whose condition now holds.
bool Block::advance() {
    bool moved = false;
    if (!engine.empty()) {
        const size_t i = config.seed ? rng.below(engine.size()) : 0;
        auto op = std::move(engine[i]);
        engine.erase(engine.begin() + static_cast<long>(i));
        op();
        moved = true;
    }
    for (size_t i = 0; i < pollers.size();) {
        Fiber* f = pollers[i];
        if (!f->ready(f->ready_arg)) {
            i++;
            continue;
        }
        wake(f->warp(), 1u << f->lane());
        pollers.erase(pollers.begin() + static_cast<long>(i));
        moved = true;
    }
    return moved;
}

void Block::shuffle_ranks() {
    const size_t n = warps.size();
    for (size_t i = n; i > 1; i--) std::swap(warp_at[i - 1], warp_at[rng.below(i)]);
    ready_ranks = 0;
    for (size_t r = 0; r < n; r++) {
        rank[warp_at[r]] = static_cast<int>(r);
        if (ready[warp_at[r]]) ready_ranks |= 1u << r;
    }
}

void Block::deadlock() {
    struct Place {
        const Fiber* first;
        int threads;
    };
    std::vector<Place> places;
    int exited = 0;
    for (int i = 0; i < threads; i++) {
        const Fiber& f = fibers[static_cast<size_t>(i)];
        if (!(warps[static_cast<size_t>(f.warp())].alive >> f.lane() & 1)) {
            exited++;
            continue;
        }
        auto same = std::find_if(places.begin(), places.end(), [&](Place& p) {
            return p.first->at == f.at && !std::strcmp(p.first->waits_for, f.waits_for);
        });
        same == places.end() ? places.push_back({&f, 1}) : void(same->threads++);
    }
    std::string s = "deadlock in block " + text(index) + ":";
    for (const Place& p : places)
        s += " " + std::to_string(p.threads) + " threads wait in " + p.first->waits_for + " at " + p.first->at.text() +
             " (the first is " + text(p.first->index) + ");";
    throw Error(s + " " + std::to_string(exited) + " have exited");
}

}    // namespace emu
