// test_ranks.cpp - a training step of several ranks with emulated GPUs: which work overlaps, and
// how a run ends whose collectives fail. Emulator only.
#include <cuda_runtime.h>
#include <unistd.h>

#include <map>

#include "base/console.h"
#include "nccl_ranks.h"
#include "test/toy_model.h"

// ---- the order of a step ------------------------------------------------------------------------

namespace {
typedef std::vector<emu::Entry> Journal;
bool is_collective(const emu::Entry& e) { return e.what.find("nccl") == 0; }

// Begin and end of each entry on an ideal device, where an entry begins as soon as its stream has
// reached it and the event that it waits for is recorded. A collective takes `wire`, other work 1,
// records and waits 0.
struct Span {
    double begin, end;
};
std::vector<Span> run_journal(const Journal& journal, double wire) {
    std::map<cudaStream_t, double> free;
    std::map<std::pair<cudaEvent_t, uint64_t>, double> recorded;
    std::vector<Span> spans;
    for (const emu::Entry& e : journal) {
        double& at = free[e.stream];
        const double begin = at;
        if (e.what == "wait") at = std::max(at, recorded[{e.event, e.number}]);    // record before the journal: time 0
        else if (e.what == "record") recorded[{e.event, e.number}] = at;
        else at += is_collective(e) ? wire : 1;
        spans.push_back({begin, at});
    }
    return spans;
}

struct Recorded {
    Journal journal;
    cudaStream_t work = nullptr;
    size_t last_batch = 0, backward = 0, update = 0;    // begin of last batch, its backward, update
    std::vector<size_t> collectives;                    // in the last batch's backward
    bool works(size_t i) const { return journal[i].stream == work && journal[i].what == "kernel"; }
};

// Journal of a run's second step, which has two batches.
Recorded record_step(Comm& comm, const Config& c, int zero, Element comm_dtype) {
    constexpr int B = 2, S = 8;
    Model g(cuda_ops<float>(Dtype::fp32));
    g.store.comm = &comm;
    toy_model(g, c,
              {.mode = RunMode::train,
               .B = B,
               .S = S,
               .rank = comm.rank,
               .ranks = comm.ranks,
               .zero = zero,
               .comm_dtype = comm_dtype});
    const std::vector<int> in = toy_tokens(B * S, c.V, 1), out = toy_tokens(B * S, c.V, 2);
    Recorded r;
    for (const bool kept : {false, true}) {
        if (kept) emu::journal = &r.journal;
        g.train.begin(0, 1, kept, 0);
        for (const bool last : {false, true}) {
            r.last_batch = r.journal.size();
            g.batch.upload(in.data(), out.data(), B, S);
            g.forward(true);
            g.loss(true, 1.0f / (B * S));
            r.backward = r.journal.size();
            g.backward(last);
        }
        r.update = r.journal.size();
        g.train.update({1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f}, {}, 1, 0);
        emu::journal = nullptr;
        g.train.finish();
    }
    for (size_t i = r.backward; i < r.update; i++) {
        if (is_collective(r.journal[i])) r.collectives.push_back(i);
        if (r.journal[i].what == "kernel" && !r.work) r.work = r.journal[i].stream;
    }
    return r;
}

void check_order(const Recorded& r, int L, int zero) {
    const size_t n = r.collectives.size();
    REQUIRE(n == size_t(L) + 1);    // the last layer's first, the embeddings' last
    for (size_t i = 0; i < r.backward; i++)
        if (is_collective(r.journal[i])) CHECK((zero == 2 || r.journal[i].what == "ncclAllGather"));
    const std::vector<Span> fast = run_journal(r.journal, 1), slow = run_journal(r.journal, 1e4),
                            none = run_journal(r.journal, 0);
    const auto work_ends = [&](const std::vector<Span>& spans, size_t from, size_t to) {
        double end = 0;
        for (size_t i = from; i < to; i++)
            if (r.journal[i].stream == r.work) end = std::max(end, spans[i].end);
        return end;
    };
    for (size_t k = 0; k < n; k++) {
        CAPTURE(k);
        const size_t at = r.collectives[k], next = k + 1 < n ? r.collectives[k + 1] : r.update;
        const cudaStream_t stream = r.journal[at].stream;
        CHECK(stream != r.work);
        CHECK(stream == r.journal[r.collectives[0]].stream);
        // A collective begins once the layer's gradients are there, at most 3 conversions later.
        CHECK(fast[at].begin >= work_ends(fast, r.last_batch, at));
        CHECK(fast[at].begin <= work_ends(fast, r.last_batch, at) + 3);
        if (k + 1 == n) break;
        // Meanwhile the device works on the layer below: at least 5 kernels, none of which waits
        // for this collective.
        int kernels = 0;
        for (size_t i = at; i < next; i++) {
            if (!r.works(i)) continue;
            kernels++;
            CHECK(slow[i].end < slow[at].end);
        }
        CHECK(kernels >= 5);
        CHECK(fast[at].begin + 5 < work_ends(fast, r.backward, r.update));
    }
    // The update's work waits for all collectives.
    size_t first = r.update;
    while (first < r.journal.size() && !r.works(first)) first++;
    REQUIRE(first < r.journal.size());
    CHECK(slow[first].begin >= slow[r.collectives[n - 1]].end);
    // With slow collectives, too, backward ends as early as with none. ZeRO 2 has only three
    // buckets at a time and may wait.
    if (zero < 2) CHECK(work_ends(slow, r.backward, r.update) == work_ends(none, r.backward, r.update));
}
}    // namespace

TEST_CASE("rank: the order of a step" * doctest::skip()) {
    std::unique_ptr<Comm> comm = join_others();
    const int L = 4;
    const Config c = {.V = 61, .T = 8, .L = L, .NH = 2, .C = 32};
    for (const int zero : {0, 1, 2})
        for (const Element comm_dtype : {Element::f32, Element::bf16}) {
            CAPTURE(zero);
            CAPTURE(int(comm_dtype));
            check_order(record_step(*comm, c, zero, comm_dtype), L, zero);
        }
}
TEST_CASE("nccl: a layer's gradients travel while the layer below is worked on") {
    for (const Ended& e : run_ranks("rank: the order of a step", 2, 2)) CHECK_MESSAGE(e.status == 0, e.text);
}

// ---- collectives that fail ----------------------------------------------------------------------

namespace {
// Connects the ranks as a run does, so that they watch each other. Rank 0 listens at TEST_PORT.
void meet_others(Ranks& ranks, double timeout) {
    CommOptions o;
    o.rank = number("TEST_RANK"), o.ranks = number("TEST_RANKS"), o.local_rank = 0, o.timeout = timeout;
    o.master = "127.0.0.1:" + std::to_string(number("TEST_PORT"));
    const Status s = ranks.open(o);
    REQUIRE_MESSAGE(s.ok(), s.message);
}
std::vector<Ended> run_watched(const char* name, int ranks, const std::string& more = "") {
    const Result<Listener> free = Listener::open("127.0.0.1", 0);
    REQUIRE(free.ok());
    close(free.value.fd);
    return run_ranks(name, ranks, ranks, " TEST_PORT=" + std::to_string(free.value.port) + more);
}
}    // namespace

// The second sum fails at one rank while all ranks wait for it: in download(), in wait() (TEST_WAY
// 1), or with rank 1's host asleep (TEST_WAY 2).
TEST_CASE("rank: a collective fails" * doctest::skip()) {
    Ranks ranks;
    meet_others(ranks, 20);
    REQUIRE(ranks.start(true).ok());
    const auto& op = cuda_ops<float>(Dtype::fp32);
    float* x = static_cast<float*>(op.allocate(4000));
    std::vector<float> host(1000);
    for (int i = 0; i < 2; i++) {
        ranks.comm->all_reduce(x, 1000, Element::f32, Element::f32);
        ranks.comm->join(ranks.comm->mark());
        if (i == 1 && number("TEST_WAY") == 1) op.wait(op.mark());
        if (i == 1 && number("TEST_WAY") == 2 && ranks.rank() == 1) sleep(30);    // rank 1's device continues
        op.download(host.data(), x, 4000);
    }
    FAIL("the sum that fails has come");
}
TEST_CASE("nccl: a collective that fails on the device ends the run while all wait for it") {
    for (const int way : {0, 1, 2}) {
        CAPTURE(way);
        const double start = now_seconds();
        const auto all =
            run_watched("rank: a collective fails", 3, " EMU_NCCL_FAIL=1:2 TEST_WAY=" + std::to_string(way));
        CHECK(now_seconds() - start < 10);
        for (const Ended& e : all) {
            CHECK_MESSAGE(e.status == int(Exit::peer), e.text);
            const size_t at = e.text.find(
                "): a collective has failed: remote process exited or there was a network "
                "error (NCCL_DEBUG=INFO tells more)");
            REQUIRE_MESSAGE(at != std::string::npos, e.text);
            CHECK_MESSAGE(e.text.rfind("rank 1 (", at) != std::string::npos, e.text);
        }
    }
}

// The error names the rank that died, although its death makes collectives of the others fail, too.
TEST_CASE("rank: dies while a collective fails" * doctest::skip()) {
    Ranks ranks;
    meet_others(ranks, 20);
    REQUIRE(ranks.start(true).ok());
    const auto& op = cuda_ops<float>(Dtype::fp32);
    float* x = static_cast<float*>(op.allocate(4000));
    if (ranks.rank() == 2) usleep(150'000), _exit(9);    // dies 150 ms after the failure
    ranks.comm->all_reduce(x, 1000, Element::f32, Element::f32);
    ranks.comm->join(ranks.comm->mark());
    std::vector<float> host(1000);
    op.download(host.data(), x, 4000);
}
TEST_CASE("nccl: a rank that dies is named, not the failure of others that follows") {
    const auto all = run_watched("rank: dies while a collective fails", 3, " EMU_NCCL_FAIL=1:1");
    CHECK(all[2].status == 9);
    for (const int r : {0, 1}) {
        CHECK_MESSAGE(all[size_t(r)].status == int(Exit::peer), all[size_t(r)].text);
        CHECK_MESSAGE(all[size_t(r)].text.find(") died; it was at ") != std::string::npos, all[size_t(r)].text);
    }
}

TEST_CASE("rank: comes alone" * doctest::skip()) {
    const auto comm = nccl_join(bytes_of(getenv("TEST_ID")), 0, 2, nullptr, 1.5);
    CHECK(comm.status.code == Exit::peer);
    CHECK_MESSAGE(comm.status.message == "rank 0 of 2 cannot open NCCL: not all ranks came within 1.5 s (--timeout)",
                  comm.status.message);
}
TEST_CASE("nccl: who waits for others to join gives up after the timeout") {
    const double start = now_seconds();
    const Ended e = run_ranks("rank: comes alone", 2, 1)[0];
    CHECK_MESSAGE(e.status == 0, e.text);
    CHECK(now_seconds() - start > 1.5);
    CHECK(now_seconds() - start < 10);
}

// The second rank connects and reports progress, but never opens NCCL.
TEST_CASE("rank: does not come to NCCL" * doctest::skip()) {
    Ranks ranks;
    meet_others(ranks, 2);
    if (ranks.first()) {
        const Status s = ranks.start(true);
        FAIL(s.message);
    }
    REQUIRE(ranks.agree({}).ok());    // same calls as nccl_open
    ranks.coordinator->broadcast("");
    REQUIRE(ranks.agree({}).ok());
    for (;;) count_progress(), usleep(10000);
}
TEST_CASE("nccl: a run whose ranks do not all come to NCCL ends after --timeout") {
    const double start = now_seconds();
    for (const Ended& e : run_watched("rank: does not come to NCCL", 2)) {
        CHECK_MESSAGE(e.status == int(Exit::peer), e.text);
        CHECK_MESSAGE(
            e.text.find("rank 0 of 2 cannot open NCCL: not all ranks came within 2 s (--timeout)") != std::string::npos,
            e.text);
    }
    CHECK(now_seconds() - start > 2);
    CHECK(now_seconds() - start < 10);
}
