// train_step.cpp - an optimizer step: its beginning, its update, its outcome.
#include "model/train_step.h"

#include "base/pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>

TrainStep::~TrainStep() {
    if (results) op.release_host(results, 2 * result_bytes());
}
int64_t TrainStep::result_bytes() const {
    return int64_t(sizeof(Step)) + store.ranks * int64_t(sizeof(RankReport)) + 8 * totals.more() + first_bytes();
}
int64_t TrainStep::first_bytes() const { return g.plan.first_squares ? 8 * int64_t(store.buckets.size()) : 0; }
void TrainStep::lay_out(Layout& at) {
    totals.router_totals_count = g.c.experts ? int64_t(g.c.L) * (g.c.experts + 2) : 0;
    const int next = g.c.predicts_next();
    at.reserve(totals.loss, 1 + store.squares_count() + 2 * store.ranks + totals.router_totals_count + next);
    totals.squares = totals.loss + 1;
    totals.reports = reinterpret_cast<RankReport*>(totals.squares + store.squares_count());
    auto* const after = reinterpret_cast<double*>(totals.reports + store.ranks);
    if (g.c.experts) totals.router_totals = after;
    if (next) totals.next_loss = after + totals.router_totals_count;
    at.reserve(verdict, 1);
    if (g.plan.first_squares) at.reserve(store.first_squares, int64_t(store.buckets.size()));
    g.step = {totals.loss, totals.router_totals, totals.next_loss};
}
bool TrainStep::allocate() {
    results = static_cast<char*>(op.allocate_host(2 * result_bytes()));
    return results;
}

void TrainStep::begin(int64_t targets, uint64_t seed, int64_t number, int64_t positions) {
    store.clear_gradients();
    op.zero(totals.loss, int64_t(sizeof(double)));
    if (totals.router_totals) op.zero(totals.router_totals, 8 * totals.router_totals_count);
    if (totals.next_loss) op.zero(totals.next_loss, int64_t(sizeof(double)));
    if (store.first_squares) op.zero(store.first_squares, first_bytes());
    all_targets = targets;
    g.step = {totals.loss, totals.router_totals, totals.next_loss, 0, 0, positions, seed, number};
}

double TrainStep::grad_norm() {
    double square;
    op.sum_of_squares(totals.squares, store.grads, store.flat);
    op.download(&square, totals.squares, int64_t(sizeof square));
    return std::sqrt(square);
}

// ---- norms of single tensors --------------------------------------------------------------------

// Calls f(tensor, part, first element, elements) for chunks of the trained tensors that this rank
// updates; the ranks' chunks together are all elements.
template <class F> void TrainStep::each_own_chunk(F f) {
    constexpr int64_t CHUNK = 1 << 22;
    size_t number = 0;
    for (const Tensor& t : config_tensors(g.c, store.ranks)) {
        if (t.frozen) continue;
        const Partition s = store.comm ? store.partition(t.bucket) : Partition{-1, 0, store.flat, 0};
        const int64_t end = std::min(t.offset + t.size(), s.first + s.size);
        for (int64_t first = std::max(t.offset, s.first); first < end; first += CHUNK)
            f(number, s, first, std::min(CHUNK, end - first));
        number++;
    }
}
namespace {
// Sum over i of f(i)^2. Pieces have a fixed length, so the sum does not depend on the threads.
template <class F> double sum_of_squares(int64_t n, F f) {
    constexpr int64_t PIECE = 1 << 14;
    std::vector<double> sums(size_t(ceil_div(n, PIECE)), 0.0);
    each_chunk(int64_t(sums.size()), [&](int64_t k, int) {
        double sum = 0;
        for (int64_t i = k * PIECE; i < std::min(n, (k + 1) * PIECE); i++) sum += f(i) * f(i);
        sums[size_t(k)] = sum;
    });
    double all = 0;
    for (const double sum : sums) all += sum;
    return all;
}
}    // namespace

// Measures the gradients, which the optimizer may overwrite, and returns the weights.
std::vector<float> TrainStep::measure_gradients() {
    std::vector<float> before, some;
    const std::vector<Tensor> all = config_tensors(g.c, store.ranks);
    measured->assign(size_t(std::ranges::count(all, false, &Tensor::frozen)), {});    // also those of other ranks
    int64_t own = 0;    // growing by itself, the vector would take up to three times as much
    each_own_chunk([&](size_t, const Partition&, int64_t, int64_t n) { own += n; });
    before.reserve(size_t(own));
    each_own_chunk([&](size_t tensor, const Partition& s, int64_t first, int64_t n) {
        some.resize(size_t(n));
        store.read_own(StateKind::gradients, s, first, n, some.data());
        (*measured)[tensor].gradient += sum_of_squares(n, [&](int64_t i) { return double(some[size_t(i)]); });
        store.read_own(StateKind::weights, s, first, n, some.data());
        before.insert(before.end(), some.begin(), some.end());
    });
    return before;
}
void TrainStep::measure_weights(const std::vector<float>& before) {
    std::vector<float> some;
    const float* old = before.data();
    each_own_chunk([&](size_t tensor, const Partition& s, int64_t first, int64_t n) {
        some.resize(size_t(n));
        store.read_own(StateKind::weights, s, first, n, some.data());
        TensorSquares& to = (*measured)[tensor];
        to.weights += sum_of_squares(n, [&](int64_t i) { return double(some[size_t(i)]); });
        to.update += sum_of_squares(n, [&](int64_t i) { return double(some[size_t(i)]) - double(old[i]); });
        old += n;
    });
    measured = nullptr;
}

// ---- the update ---------------------------------------------------------------------------------

void TrainStep::update(const OptimizerParams& params, const Limits& limits, uint64_t seed, int signal) {
    CHECK(updates - finished < 2, "two updates are pending");
    const int squares = store.sum(totals, signal);
    const double all = all_targets ? double(all_targets) : double(std::max<int64_t>(1, g.step.targets)) * store.ranks;
    op.step_verdict(verdict, totals.loss, 1 / all, totals.squares,
                    store.clipped.empty() ? nullptr : store.square_groups, squares, params, limits);
    std::vector<float> before;
    if (measured) before = measure_gradients();
    store.update(verdict, params, seed);
    if (measured) measure_weights(before);
    char* to = results + updates % 2 * result_bytes();
    op.download_async(to, verdict, int64_t(sizeof(Step)));
    // Downloads the ranks' reports, and the router totals that follow them in memory.
    const int64_t end = result_bytes() - first_bytes();
    op.download_async(to + sizeof(Step), totals.reports, end - int64_t(sizeof(Step)));
    if (store.first_squares) op.download_async(to + end, store.first_squares, first_bytes());
    marks[updates++ % 2] = op.mark();
}

Step TrainStep::finish(std::vector<RankReport>* reports, std::vector<double>* router_totals) {
    CHECK(finished < updates, "no update is pending");
    {
        Waiting waiting(store.comm ? store.comm->activity : nullptr);
        op.wait(marks[finished % 2]);
    }
    const char* from = results + finished++ % 2 * result_bytes();
    Step s;
    memcpy(&s, from, sizeof s);
    if (reports) {
        reports->resize(size_t(store.ranks));
        memcpy(reports->data(), from + sizeof s, reports->size() * sizeof(RankReport));
    }
    const auto* more = reinterpret_cast<const double*>(from + result_bytes() - first_bytes()) - totals.more();
    if (router_totals) router_totals->assign(more, more + totals.router_totals_count);
    if (totals.next_loss) next_loss = more[totals.router_totals_count];
    first_square = 0;
    const auto* squares_end = reinterpret_cast<const double*>(from + result_bytes());
    for (const auto* square = squares_end - first_bytes() / 8; square < squares_end; square++) first_square += *square;
    return s;
}

void TrainStep::set_updates(int64_t done) {
    Step s = {};
    s.updates = done;
    op.upload(verdict, &s, int64_t(sizeof s));
}
