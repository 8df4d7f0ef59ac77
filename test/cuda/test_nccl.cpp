// Collectives between processes, each with an emulated device or one of this machine's GPUs.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "base/philox.h"
#include "nccl_ranks.h"

namespace {
const Ops<float>& table() { return cuda_ops<float>(Dtype::fp32); }

// ---- buffers ------------------------------------------------------------------------------------

template <class T> T make(double x) {
    if constexpr (sizeof(T) == 8) return x;
    else return from_float<T>(float(x));
}
template <class T> bool same(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
constexpr int64_t GUARD = 64;
// Device memory of n elements, and a guard behind them.
template <class T> struct Buffer {
    int64_t n;
    T* p;
    explicit Buffer(const std::vector<T>& host) : n(int64_t(host.size())) {
        p = static_cast<T*>(table().allocate(bytes()));
        REQUIRE(p);
        std::vector<T> all = host;
        all.resize(size_t(n + GUARD), make<T>(77));
        table().upload(p, all.data(), bytes());
    }
    ~Buffer() { table().release(p, bytes()); }
    Buffer(const Buffer&) = delete;
    int64_t bytes() const { return (n + GUARD) * int64_t(sizeof(T)); }
    std::vector<T> read() const {
        std::vector<T> all(static_cast<size_t>(n + GUARD));
        table().download(all.data(), p, bytes());
        CHECK(same(std::vector<T>(all.begin() + n, all.end()), std::vector<T>(GUARD, make<T>(77))));
        all.resize(size_t(n));
        return all;
    }
};
// Small integers: their sums are exact in every type and order.
double value(int rank, int64_t i) { return double((i * 7 + rank * 13) % 33 - 16); }
template <class T> std::vector<T> values(int rank, int64_t n) {
    std::vector<T> x(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) x[size_t(i)] = make<T>(value(rank, i));
    return x;
}
template <class T> std::vector<T> sums(int ranks, int64_t from, int64_t n) {
    std::vector<T> x(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int r = 0; r < ranks; r++) sum += value(r, from + i);
        x[size_t(i)] = make<T>(sum);
    }
    return x;
}
template <class T> std::vector<T> poison(int64_t n) { return std::vector<T>(size_t(n), make<T>(NAN)); }

// ---- the ranks' work ----------------------------------------------------------------------------

// Each collective follows an upload of its input, and work behind the join overwrites its buffers:
// a missing wait on either side gives wrong sums.
template <class T> void each_collective(Comm& c, int64_t n, Element comm_dtype) {
    const Ops<float>& op = table();
    const Element type = element_of<T>;
    const int64_t part = n * int64_t(sizeof(T));
    {
        Buffer<T> x(values<T>(c.rank, n)), y(poison<T>(n));
        c.all_reduce(x.p, n, type, comm_dtype);
        c.join(c.mark());
        op.copy(y.p, x.p, part);
        op.zero(x.p, part);
        CHECK(same(y.read(), sums<T>(c.ranks, 0, n)));
    }
    {
        Buffer<T> x(values<T>(c.rank, n * c.ranks)), out(poison<T>(n));
        c.reduce_scatter(out.p, x.p, n, type, comm_dtype);
        c.join(c.mark());
        op.zero(x.p, part * c.ranks);
        CHECK(same(out.read(), sums<T>(c.ranks, c.rank * n, n)));
    }
    {
        Buffer<T> x(values<T>(c.rank, n * c.ranks)), y(poison<T>(n));
        c.reduce_scatter(x.p + c.rank * n, x.p, n, type, comm_dtype);
        c.join(c.mark());
        op.copy(y.p, x.p + c.rank * n, part);
        op.zero(x.p, part * c.ranks);
        CHECK(same(y.read(), sums<T>(c.ranks, c.rank * n, n)));
    }
    {
        Buffer<T> x(poison<T>(n * c.ranks)), mine(values<T>(c.rank, n));
        op.copy(x.p + c.rank * n, mine.p, part);
        c.all_gather(x.p, n, type);
        c.join(c.mark());
        std::vector<T> all;
        for (int r = 0; r < c.ranks; r++)
            for (const T v : values<T>(r, n)) all.push_back(v);
        CHECK(same(x.read(), all));
    }
}

// In rings of all ranks and of 2: what a rank receives overwrites what work before has written, and
// work behind the join overwrites both arrays.
template <class T> void passed_on(Comm& c, int64_t n) {
    const Ops<float>& op = table();
    const int64_t bytes = n * int64_t(sizeof(T));
    for (const int ring : {c.ranks, 2}) {
        if (c.ranks % ring) continue;
        Buffer<T> mine(values<T>(c.rank, n)), x(poison<T>(n)), to(poison<T>(n)), y(poison<T>(n));
        op.copy(x.p, mine.p, bytes);
        c.pass_on(to.p, x.p, n, element_of<T>, ring);
        c.join(c.mark());
        op.copy(y.p, to.p, bytes);
        op.zero(x.p, bytes);
        op.zero(to.p, bytes);
        const int first = c.rank - c.rank % ring;
        CHECK(same(y.read(), values<T>(first + (c.rank - first + ring - 1) % ring, n)));
    }
}

// Sums of normal numbers: equal bits on every rank and each time, near the sum in double.
void bits_agree(Comm& c, Element comm_dtype) {
    const Ops<float>& op = table();
    const int64_t n = 1001;
    std::vector<float> host(n), exact(n), first;
    for (int r = 0; r < c.ranks; r++)
        for (int64_t i = 0; i < n; i++) {
            const float x = philox_normal(3, uint64_t(r), uint64_t(i));
            exact[size_t(i)] += x;
            if (r == c.rank) host[size_t(i)] = x;
        }
    for (int times = 0; times < 3; times++) {
        Buffer<float> x(host), all(poison<float>(n * c.ranks));
        c.all_reduce(x.p, n, Element::f32, comm_dtype);
        c.join(c.mark());
        op.copy(all.p + c.rank * n, x.p, n * 4);
        c.all_gather(all.p, n, Element::f32);
        c.join(c.mark());
        const std::vector<float> got = all.read();
        const std::vector<float> row(got.begin(), got.begin() + n);
        for (auto at = got.begin(); at != got.end(); at += n) CHECK(same(row, std::vector<float>(at, at + n)));
        for (size_t i = 0; i < size_t(n); i++)
            CHECK(std::fabs(row[i] - exact[i]) < (comm_dtype == Element::bf16 ? 0.1f : 1e-5f));
        if (times == 0) first = row;
        CHECK(same(row, first));
    }
}

// Collectives in flight together and beside other operations. Joins come late and out of order, and
// not for each collective.
void in_flight(Comm& c) {
    const Ops<float>& op = table();
    const int64_t n = 3000;
    Buffer<float> a(values<float>(c.rank, n)), b(values<float>(c.rank + 1, n)), other(values<float>(5, n));
    Buffer<float> copy(poison<float>(n));
    c.all_reduce(a.p, n, Element::f32, Element::f32);
    const int64_t after_a = c.mark();
    op.copy(copy.p, other.p, n * 4);
    c.all_reduce(b.p, n, Element::f32, Element::bf16);
    const int64_t after_b = c.mark();
    op.zero(other.p, n * 4);
    c.join(after_a);
    CHECK(same(a.read(), sums<float>(c.ranks, 0, n)));
    c.all_reduce(a.p, n, Element::f32, Element::f32);    // input: the first sum
    c.join(after_b);
    std::vector<float> expected(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++)
        for (int r = 0; r < c.ranks; r++) expected[size_t(i)] += float(value(r + 1, i));
    CHECK(same(b.read(), expected));
    CHECK(same(copy.read(), values<float>(5, n)));
    int64_t last = 0;
    for (int i = 0; i < 100; i++) last = c.mark();    // more than there are events
    c.join(last - 99);
    expected = sums<float>(c.ranks, 0, n);
    for (float& x : expected) x *= float(c.ranks);
    CHECK(same(a.read(), expected));
}

void collectives(Comm& c, int64_t n) {
    for (const Element comm_dtype : {Element::f32, Element::bf16}) each_collective<float>(c, n, comm_dtype);
    each_collective<double>(c, n, Element::f64);
    each_collective<bf16>(c, n, Element::bf16);
    passed_on<float>(c, n);
    passed_on<bf16>(c, n);
}
}    // namespace

TEST_CASE("rank: collectives" * doctest::skip()) {
    std::unique_ptr<Comm> c = join_others();
    CHECK(c->name().find("NCCL 2.") == 0);
    for (const uint64_t seed : {0, 1, 2, 4, 5, 6, 7, 12}) {
        if (seed && !cuda_emulated()) break;
        for (const bool differ : {false, true}) {    // each rank on its own schedule
            CAPTURE(seed);
            CAPTURE(differ);
            cuda_schedule(differ ? (seed + 3 * uint64_t(c->rank)) % 8 : seed);
            for (const int64_t n : {1, 7, 1000}) collectives(*c, n);
            if (seed == 0 || (seed == 7 && differ)) collectives(*c, 70000 + seed);    // several chunks
            for (const Element comm_dtype : {Element::f32, Element::bf16}) bits_agree(*c, comm_dtype);
            in_flight(*c);
        }
    }
    cuda_schedule(0);
}

TEST_CASE("nccl: each collective, type and wire, alone and in flight") {
    for (int ranks = 1; ranks <= most_ranks(); ranks++)
        for (const Ended& e : run_ranks("rank: collectives", ranks, ranks)) CHECK_MESSAGE(e.status == 0, e.text);
}

// Shows that the tests above can fail: without a join the sum is missing.
TEST_CASE("rank: no join" * doctest::skip()) {
    std::unique_ptr<Comm> c = join_others();
    const int64_t n = 1000;
    for (const Element comm_dtype : {Element::f32, Element::bf16}) {
        cuda_schedule(4);    // the collectives' stream is late
        Buffer<float> x(values<float>(c->rank, n));
        c->all_reduce(x.p, n, Element::f32, comm_dtype);
        CHECK(same(x.read(), values<float>(c->rank, n)));
        c->join(c->mark());
        CHECK(same(x.read(), sums<float>(c->ranks, 0, n)));
        Buffer<float> gathered(poison<float>(n * c->ranks)), mine(values<float>(c->rank, n));
        table().copy(gathered.p + c->rank * n, mine.p, n * 4);
        c->all_gather(gathered.p, n, Element::f32);
        CHECK(std::isnan(gathered.read()[size_t(1 - c->rank) * size_t(n)]));
        c->join(c->mark());
        CHECK(same(gathered.read(), [&] {
            std::vector<float> all = values<float>(0, n), second = values<float>(1, n);
            all.insert(all.end(), second.begin(), second.end());
            return all;
        }()));
        Buffer<float> passed(poison<float>(n));
        c->pass_on(passed.p, mine.p, n, Element::f32, 2);
        CHECK(std::isnan(passed.read()[0]));
        c->join(c->mark());
        CHECK(same(passed.read(), values<float>(1 - c->rank, n)));
    }
}

// ---- waits and failures: emulator only ----------------------------------------------------------

#ifdef EMULATED_GPU
namespace {
typedef std::chrono::steady_clock Clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
void expect_part(const Ended& e, const std::string& part) {
    CHECK_MESSAGE(e.text.find(part) != std::string::npos, "'" << part << "' is not in: " << e.text);
}
}    // namespace

TEST_CASE("nccl: without a join a late collective is seen") {
    for (const Ended& e : run_ranks("rank: no join", 2, 2)) CHECK_MESSAGE(e.status == 0, e.text);
}

// Rank 0 waits for a sum, while rank 1's host waits for a file that rank 0 writes after it: rank
// 1's device must take part without its host.
TEST_CASE("rank: the host waits" * doctest::skip()) {
    std::unique_ptr<Comm> c = join_others();
    cuda_schedule(7);    // all streams are late
    Buffer<float> x(values<float>(c->rank, 1000));
    c->all_reduce(x.p, 1000, Element::f32, Element::f32);
    c->join(c->mark());
    if (c->rank == 0) {
        CHECK(same(x.read(), sums<float>(2, 0, 1000)));
        fclose(fopen(getenv("TEST_FILE"), "w"));
        return;
    }
    const Clock::time_point start = Clock::now();
    while (access(getenv("TEST_FILE"), F_OK) && seconds_since(start) < 20) usleep(1000);
    CHECK(seconds_since(start) < 10);
    CHECK(same(x.read(), sums<float>(2, 0, 1000)));
}
TEST_CASE("nccl: a device goes on while its host waits for another") {
    char folder[] = "/tmp/flatgpt-test-XXXXXX";
    REQUIRE(mkdtemp(folder));
    const std::string file = std::string(folder) + "/here";
    for (const Ended& e : run_ranks("rank: the host waits", 2, 2, " TEST_FILE=" + file))
        CHECK_MESSAGE(e.status == 0, e.text);
    unlink(file.c_str());
    rmdir(folder);
}

TEST_CASE("rank: aborts" * doctest::skip()) {
    std::unique_ptr<Comm> c = join_others();
    if (c->rank == 1) {    // no collective of rank 1
        usleep(1'200'000);
        _exit(0);
    }
    cuda_schedule(uint64_t(number("TEST_SEED")));
    Buffer<float> x(values<float>(0, 1000));
    const Clock::time_point start = Clock::now();
    std::thread other([&] { usleep(300'000), nccl_abort(*c); });
    c->all_reduce(x.p, 1000, Element::f32, Element::f32);
    c->join(c->mark());
    x.read();
    other.join();
    CHECK(seconds_since(start) > 0.2);
    CHECK(seconds_since(start) < 1);
}
TEST_CASE("nccl: an abort releases who waits for a rank that never comes") {
    for (const char* seed : {" TEST_SEED=0", " TEST_SEED=7"})
        for (const Ended& e : run_ranks("rank: aborts", 2, 2, seed)) CHECK_MESSAGE(e.status == 0, e.text);
}

TEST_CASE("rank: alone" * doctest::skip()) {
    Activity activity;
    std::thread watch([&] {
        usleep(300'000);
        const int64_t before = progress_count;
        usleep(100'000);
        _exit(activity.waiting && progress_count > before ? 0 : 1);
    });
    join_others(&activity);
    watch.join();
}
TEST_CASE("nccl: who waits for others to join says so") {
    const Ended e = run_ranks("rank: alone", 2, 1)[0];
    CHECK_MESSAGE(e.status == 0, e.text);
}

// A waiting rank must report no progress of its own: that would hide the other's absence.
TEST_CASE("rank: keeps waiting" * doctest::skip()) {
    Activity activity;
    std::unique_ptr<Comm> c = join_others(&activity);
    if (c->rank == 1) usleep(1'500'000), _exit(0);
    std::thread watch([&] {
        usleep(500'000);
        const int64_t before = progress_count;
        usleep(100'000);
        _exit(activity.waiting && progress_count == before ? 0 : 1);
    });
    Buffer<float> x(values<float>(0, 1000));
    c->all_reduce(x.p, 1000, Element::f32, Element::f32);
    watch.join();
}
TEST_CASE("nccl: who waits for another to call gives no sign of life") {
    for (const Ended& e : run_ranks("rank: keeps waiting", 2, 2, " EMU_NCCL_CONNECT=1"))
        CHECK_MESSAGE(e.status == 0, e.text);
}

TEST_CASE("rank: dies" * doctest::skip()) {
    std::unique_ptr<Comm> c = join_others();
    if (c->rank == 1) _exit(3);
    Buffer<float> x(values<float>(0, 1000));
    c->all_reduce(x.p, 1000, Element::f32, Element::f32);
}
TEST_CASE("rank: other sizes" * doctest::skip()) {
    std::unique_ptr<Comm> c = join_others();
    Buffer<float> x(values<float>(0, 1000));
    c->all_reduce(x.p, 1000 - c->rank, Element::f32, Element::f32);
}
TEST_CASE("rank: other types" * doctest::skip()) {
    std::unique_ptr<Comm> c = join_others();
    Buffer<double> x(values<double>(0, 1000));
    c->all_reduce(x.p, 1000, c->rank ? Element::f32 : Element::f64, Element::f64);
}
TEST_CASE("rank: other collectives" * doctest::skip()) {
    std::unique_ptr<Comm> c = join_others();
    Buffer<float> x(values<float>(0, 1000));
    if (c->rank) c->all_gather(x.p, 500, Element::f32);
    else c->all_reduce(x.p, 500, Element::f32, Element::f32);
}
TEST_CASE("nccl: the emulator says who died and what differs between ranks") {
    const std::vector<Ended> died = run_ranks("rank: dies", 2, 2);
    CHECK(died[0].status != 0);
    CHECK(died[1].status == 3);
    expect_part(died[0], "rank 0 waits in ncclAllReduce for rank 1, which has died");
    for (const Ended& e : run_ranks("rank: other sizes", 2, 2)) {
        CHECK(e.status != 0);
        expect_part(e, "ncclAllReduce of 999 of type 7");
    }
    for (const Ended& e : run_ranks("rank: other types", 2, 2)) {
        CHECK(e.status != 0);
        expect_part(e, "ncclAllReduce of 1000 of type 8");
    }
    for (const Ended& e : run_ranks("rank: other collectives", 2, 2)) {
        CHECK(e.status != 0);
        expect_part(e, "ncclAllGather of 500");
    }
}

TEST_CASE("rank: no memory" * doctest::skip()) {
    std::unique_ptr<Comm> c = join_others();
    c->all_reduce(nullptr, 1000, Element::f32, Element::f32);
}
TEST_CASE("rank: host memory" * doctest::skip()) {
    std::unique_ptr<Comm> c = join_others();
    float x[4];
    c->all_reduce(x, 4, Element::f32, Element::f32);
}
TEST_CASE("rank: twice" * doctest::skip()) {
    std::unique_ptr<Comm> c = join_others();
    const auto again = nccl_join(bytes_of(getenv("TEST_ID")), 0, 1, nullptr, 60);
    CHECK(again.status.code == Exit::peer);
    CHECK_MESSAGE(again.status.message == "rank 0 of 1 cannot open NCCL: invalid usage (NCCL_DEBUG=INFO tells more)",
                  again.status.message);
}
TEST_CASE("nccl: a call that fails says so and ends the process with 7") {
    const Ended e = run_ranks("rank: no memory", 1, 1)[0];
    CHECK(e.status == int(Exit::peer));
    expect_part(e, "rank 0: all_reduce: invalid argument");
    const Ended host = run_ranks("rank: host memory", 1, 1)[0];
    CHECK(host.status != 0);
    expect_part(host, "not all of it lies in an allocation of the device");
    const Ended twice = run_ranks("rank: twice", 1, 1)[0];
    CHECK_MESSAGE(twice.status == 0, twice.text);
}
#endif
