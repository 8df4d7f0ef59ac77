// collectives.cpp - every collective, element type, comm_dtype and size against sums that each rank
// computes from all ranks' inputs.
#include "base/philox.h"
#include "ranks_test.h"

#include <algorithm>

namespace {
template <class T> constexpr Element element = std::is_same_v<T, double>  ? Element::f64
                                               : std::is_same_v<T, float> ? Element::f32
                                                                          : Element::bf16;
const char* text(Element e) { return e == Element::f64 ? "f64" : e == Element::f32 ? "f32" : "bf16"; }
double value(double x) { return x; }
double value(float x) { return double(x); }
double value(bf16 x) { return double(to_float(x)); }
template <class T> T rounded(double x) {
    if constexpr (std::is_same_v<T, bf16>) return to_bf16(float(x));
    else return T(x);
}

// A rank's input, which every rank can compute. Its sizes vary, so the order of additions shows in
// the bits.
template <class T> std::vector<T> input(int rank, int64_t n, uint64_t seed) {
    std::vector<T> x(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) {
        const Philox4 bits = philox(seed, uint64_t(rank), uint64_t(i));
        x[size_t(i)] = rounded<T>(std::ldexp(double(philox_uniform(bits.v[0])) - 0.5, int(bits.v[1] % 8)));
    }
    return x;
}
template <class T> struct Inputs {
    std::vector<std::vector<T>> of;
    Inputs(const Engine& e, int64_t n, uint64_t seed) {
        for (int r = 0; r < e.comm->ranks; r++) of.push_back(input<T>(r, n, seed));
    }
    const std::vector<T>& mine(const Engine& e) const { return of[size_t(e.comm->rank)]; }
};

uint64_t digest(const void* p, size_t n) {
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < n; i++) h = (h ^ static_cast<const unsigned char*>(p)[i]) * 0x100000001b3;
    return h;
}
template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
// Expects equal x on all ranks: gathers each rank's digest of it, in four doubles.
template <class T> void expect_same_everywhere(const Engine& e, const std::vector<T>& x, const char* what) {
    const int64_t row = 64;
    const uint64_t mine = digest(x.data(), x.size() * sizeof(T));
    double parts[4];
    for (int i = 0; i < 4; i++) parts[i] = double(mine >> 16 * i & 0xffff);
    Guarded<double> all(e, row * e.comm->ranks);
    all.set(parts, row * e.comm->rank, 4);
    e.comm->all_gather(all.data(), row, Element::f64);
    e.comm->join(e.comm->mark());
    const std::vector<double> got = all.get("all_gather of digests");
    for (int r = 0; r < e.comm->ranks; r++)
        expect(memcmp(&got[size_t(r * row)], parts, sizeof parts) == 0, "%s: rank %d holds other bits", what, r);
}

// Expects got to be the elements from `from` on of the sum of all inputs.
template <class T> void expect_sum(const Engine& e, const std::vector<T>& got, const Inputs<T>& in, int64_t from,
                                   Element comm_dtype, const char* what) {
    const bool exact = e.ordered && comm_dtype == element<T> && comm_dtype != Element::bf16;
    const double eps = comm_dtype == Element::f64 ? 0x1p-52 : comm_dtype == Element::f32 ? 0x1p-23 : 0x1p-8;
    int64_t wrong = 0, first = -1;
    for (size_t i = 0; i < got.size(); i++) {
        const size_t at = size_t(from) + i;
        T ordered = in.of[0][at];
        double sum = 0, size = 0;
        for (size_t r = 0; r < in.of.size(); r++) {
            if constexpr (!std::is_same_v<T, bf16>)
                if (r > 0) ordered += in.of[r][at];
            sum += value(in.of[r][at]);
            size += std::fabs(value(in.of[r][at]));
        }
        const bool right = exact ? memcmp(&got[i], &ordered, sizeof(T)) == 0
                                 : std::fabs(value(got[i]) - sum) <= eps * double(in.of.size()) * size;
        if (!right && wrong++ == 0) first = int64_t(i);
    }
    expect(!wrong, "%s: %lld of %zu elements are not the sum, first [%lld] = %g", what, static_cast<long long>(wrong),
           got.size(), static_cast<long long>(first), first < 0 ? 0 : value(got[size_t(first)]));
}

template <class T>
std::vector<T> all_reduced(const Engine& e, const Inputs<T>& in, int64_t n, Element comm_dtype, const char* what) {
    Guarded<T> x(e, n);
    x.set(in.mine(e).data(), 0, n);
    e.comm->all_reduce(x.data(), n, element<T>, comm_dtype);
    e.comm->join(e.comm->mark());
    return x.get(what);
}
template <class T> void test_all_reduce(const Engine& e, Element comm_dtype, int64_t n) {
    const std::string what = std::string("all_reduce of ") + std::to_string(n) + " " + text(element<T>) + " by " +
                             text(comm_dtype);
    const Inputs<T> in(e, n, uint64_t(n) + 1);
    const std::vector<T> got = all_reduced(e, in, n, comm_dtype, what.c_str());
    expect_sum(e, got, in, 0, comm_dtype, what.c_str());
    expect_same_everywhere(e, got, what.c_str());
    expect(same_bits(got, all_reduced(e, in, n, comm_dtype, what.c_str())), "%s: other bits the second time",
           what.c_str());
}

template <class T> std::vector<T> reduce_scattered(const Engine& e, const Inputs<T>& in, int64_t n, Element comm_dtype,
                                                   bool apart, const char* what) {
    const int64_t all = n * e.comm->ranks, from = n * e.comm->rank;
    Guarded<T> x(e, all), out(e, apart ? n : 0);
    x.set(in.mine(e).data(), 0, all);
    e.comm->reduce_scatter(apart ? out.data() : x.data() + from, x.data(), n, element<T>, comm_dtype);
    e.comm->join(e.comm->mark());
    const std::vector<T> got = x.get(what), separate = out.get(what);
    return apart ? separate : std::vector<T>(got.begin() + from, got.begin() + from + n);
}
template <class T> void test_reduce_scatter(const Engine& e, Element comm_dtype, int64_t n) {
    const std::string what = std::string("reduce_scatter of ") + std::to_string(n) + " " + text(element<T>) +
                             " a rank by " + text(comm_dtype);
    const int64_t all = n * e.comm->ranks, from = n * e.comm->rank;
    const Inputs<T> in(e, all, uint64_t(n) + 2);
    const std::vector<T> in_place = reduce_scattered(e, in, n, comm_dtype, false, what.c_str());
    const std::vector<T> apart = reduce_scattered(e, in, n, comm_dtype, true, what.c_str());
    expect_sum(e, in_place, in, from, comm_dtype, what.c_str());
    expect(same_bits(in_place, apart), "%s: other bits in place than apart", what.c_str());
    if (!e.ordered || comm_dtype != element<T>) return;
    const std::vector<T> whole = all_reduced(e, in, all, comm_dtype, what.c_str());
    expect(same_bits(in_place, std::vector<T>(whole.begin() + from, whole.begin() + from + n)),
           "%s: other bits than all_reduce", what.c_str());
}
template <class T> void test_all_gather(const Engine& e, int64_t n) {
    const std::string what = std::string("all_gather of ") + std::to_string(n) + " " + text(element<T>) + " a rank";
    const Inputs<T> in(e, n, uint64_t(n) + 3);
    Guarded<T> x(e, n * e.comm->ranks);
    x.set(in.mine(e).data(), n * e.comm->rank, n);
    e.comm->all_gather(x.data(), n, element<T>);
    e.comm->join(e.comm->mark());
    std::vector<T> whole;
    for (auto& row : in.of) whole.insert(whole.end(), row.begin(), row.end());
    expect(same_bits(whole, x.get(what.c_str())), "%s: other bits than the ranks gave", what.c_str());
}
template <class T> void test_broadcast(const Engine& e, int64_t n, int from) {
    const std::string what = std::string("broadcast of ") + std::to_string(n) + " " + text(element<T>);
    const Inputs<T> in(e, n, uint64_t(n) + 4);
    Guarded<T> x(e, n);
    x.set(in.mine(e).data(), 0, n);
    e.comm->broadcast(x.data(), n, element<T>, from);
    e.comm->join(e.comm->mark());
    expect(same_bits(in.of[size_t(from)], x.get(what.c_str())), "%s: other bits than rank %d gave", what.c_str(), from);
}
// In rings of all ranks and, if there are four, of two.
template <class T> void test_pass_on(const Engine& e, int64_t n) {
    const Inputs<T> in(e, n, uint64_t(n) + 5);
    for (int ring : {e.comm->ranks, 2}) {
        if (e.comm->ranks % ring) continue;
        const std::string what = formatted("pass_on of %lld %s in rings of %d", (long long)n, text(element<T>), ring);
        const int first = e.comm->rank / ring * ring, before = first + (e.comm->rank - first + ring - 1) % ring;
        Guarded<T> from(e, n), to(e, n);
        from.set(in.mine(e).data(), 0, n);
        e.comm->pass_on(to.data(), from.data(), n, element<T>, ring);
        e.comm->join(e.comm->mark());
        expect(same_bits(in.of[size_t(before)], to.get(what.c_str())), "%s: other bits than rank %d gave", what.c_str(),
               before);
        expect(same_bits(in.mine(e), from.get(what.c_str())), "%s: sent bits have changed", what.c_str());
    }
}
template <class T> void test_type(const Engine& e, Element comm_dtype) {
    for (int64_t n : {0, 1, 63, 64, 1000, 1000007}) test_all_reduce<T>(e, comm_dtype, n);
    for (int64_t n : {64, 1024, 64 * 4099}) test_reduce_scatter<T>(e, comm_dtype, n);
    if (comm_dtype == element<T>)
        for (int64_t n : {64, 1024, 64 * 4099}) {
            test_all_gather<T>(e, n);
            for (int from : {0, e.comm->ranks - 1}) test_broadcast<T>(e, n, from);
        }
}
}    // namespace

void test_collectives(const Engine& e) {
    test_type<float>(e, Element::f32);
    test_type<float>(e, Element::bf16);
    test_type<double>(e, Element::f64);
    test_type<bf16>(e, Element::bf16);
    if (!e.ordered) return;
    for (int64_t n : {1, 1000, 70007}) test_pass_on<float>(e, n), test_pass_on<double>(e, n), test_pass_on<bf16>(e, n);
    // more than one chunk per exchange
    test_all_reduce<float>(e, Element::f32, 2200007);
    test_all_reduce<float>(e, Element::bf16, 2200007);
    test_reduce_scatter<float>(e, Element::bf16, 64 * 9001);
}

// Many collectives of all kinds and sizes in flight, while the main thread computes; joined in
// another order.
void test_in_flight(const Engine& e) {
    constexpr int MANY = 24;
    const int64_t sizes[] = {1, 5000, 70007, 300};
    std::vector<std::unique_ptr<Guarded<float>>> x;
    std::vector<Inputs<float>> in;
    std::vector<int64_t> marks;
    const int64_t before = e.comm->mark();
    for (int k = 0; k < MANY; k++) {
        const int64_t n = sizes[k % 4];
        in.emplace_back(e, n, uint64_t(100 + k));
        x.push_back(std::make_unique<Guarded<float>>(e, n));
        x.back()->set(in.back().mine(e).data(), 0, n);
    }
    for (int k = 0; k < MANY; k++) {
        e.comm->all_reduce(x[size_t(k)]->data(), sizes[k % 4], Element::f32, Element::f32);
        marks.push_back(e.comm->mark());
        expect(marks.back() > (k ? marks[size_t(k) - 1] : before), "marks do not grow");
    }
    double busy = 0;
    for (int i = 0; i < 3000000; i++) busy += std::sqrt(double(i));
    expect(busy > 0, "no computation");
    for (int k = 0; k < MANY; k++) {
        const int j = k * 7 % MANY;    // 7 and MANY have no common divisor
        e.comm->join(marks[size_t(j)]);
        expect_sum(e, x[size_t(j)]->get("a collective in flight"), in[size_t(j)], 0, Element::f32, "in flight");
    }
    e.comm->join(before);    // long done

    // more collectives than any queue holds, each of one number
    constexpr int TIMES = 600, APART = 8;
    Guarded<double> numbers(e, TIMES * APART);
    std::vector<double> mine(TIMES * APART), sums(TIMES * APART);
    for (size_t i = 0; i < mine.size(); i++) {
        mine[i] = double(i) * (e.comm->rank + 1);
        sums[i] = i % APART ? mine[i] : double(i) * e.comm->ranks * (e.comm->ranks + 1) / 2;
    }
    numbers.set(mine.data(), 0, int64_t(mine.size()));
    for (int k = 0; k < TIMES; k++) e.comm->all_reduce(numbers.data() + k * APART, 1, Element::f64, Element::f64);
    e.comm->join(e.comm->mark());
    expect(same_bits(numbers.get("numbers"), sums), "%d collectives at once: a wrong sum", TIMES);
}
