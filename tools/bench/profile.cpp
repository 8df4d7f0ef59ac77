// profile.cpp - time and cost of each operation of a step. An Observer between the unchanged model
// and its table of operations measures them.
#include "bench.h"
#include "base/console.h"
#include "base/pool.h"
#include "base/table.h"
#include "files/json_write.h"
#include "model/decoder.h"

void Profile::call(const Cost& work, const std::function<void()>& run) {
    const int64_t loops = pool_loops();
    const double called = now_seconds();
    run();
    real.wait(real.mark());
    const double done = now_seconds();
    std::string name = operation_name(work.call.operation);
    if (work.call.out) name += " " + std::to_string(work.call.in) + " to " + std::to_string(work.call.out);
    auto row = std::find_if(noted.begin(), noted.end(), [&](const ProfileRow& r) { return r.name == name; });
    if (row == noted.end()) row = noted.insert(row, {.name = name});
    row->calls++;
    row->loops += pool_loops() - loops;
    row->seconds += done - called;
    row->floor += peak.floor(work);
    row->work += work;
    row->weights += double(work.call.in) * work.call.out;
    noting += now_seconds() - done;
}

void Profile::start() { noted.clear(), noting = 0, started = now_seconds(); }
std::vector<ProfileRow> Profile::rows() const {
    double rest = now_seconds() - started - noting;
    std::vector<ProfileRow> rows = noted;
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
    double weights = 0;
    for (const ProfileRow& r : rows) rest -= r.seconds, weights += r.weights;
    for (ProfileRow& r : rows)
        if (bytes_beside_fp32 != 0 && r.weights > 0) {
            if (integers) r.work.products = 0;
            r.work.bytes += bytes_beside_fp32 * r.weights / weights;
            r.floor = peak.floor(r.work);
        }
    rows.push_back({.name = "everything else, on the host", .seconds = rest});
    return rows;
}

// ---- tables -------------------------------------------------------------------------------------

namespace {
ProfileRow sum_of(const std::vector<ProfileRow>& rows) {
    ProfileRow sum = {.name = "sum"};
    for (const ProfileRow& r : rows) {
        sum.calls += r.calls, sum.loops += r.loops, sum.seconds += r.seconds, sum.floor += r.floor;
        sum.work += r.work;
    }
    return sum;
}

const std::vector<int> COLUMNS = {-38, 6, 6, 10, 8, 10, 7, 8, 0};
void print_row(const Bench& bench, const std::string& what, const ProfileRow& r, double total) {
    const double flops = r.work.flops(), bytes = r.work.bytes;
    const double compute = r.work.products / bench.peak.products + r.work.arithmetic / bench.peak.flops;
    if (bench.o.json) {
        Json::object("profile", what, "name", r.name, "device", bench.device.text, "calls", r.calls, "loops", r.loops,
                     "ms", r.seconds * 1e3, "share", r.seconds / total, "floor_ms", r.floor * 1e3, "FLOPs",
                     std::llround(flops), "bytes", std::llround(bytes))
            .print();
        return;
    }
    Cell calls, loops, floor, ratio, rate;
    if (r.calls) calls = r.calls;
    if (r.loops) loops = r.loops;
    if (r.floor > 0) {
        floor = {r.floor * 1e3, "%.3f"};
        ratio = {r.floor / r.seconds * 100, "%.0f %%"};
        rate = compute > bytes / bench.peak.bytes ? Cell(flops / r.seconds / 1e9, "  %.1f GFLOP/s")
                                                  : Cell(bytes / r.seconds / 1e9, "  %.1f GB/s");
    }
    print_table_line(
        COLUMNS, {"  " + r.name, calls, loops, Cell(r.seconds * 1e3, "%.3f"), Cell(r.seconds / total * 100, "%.1f %%"),
                  floor, ratio, Cell(std::max(0.0, r.seconds - r.floor) * 1e3, "%.3f"), rate});
}

void print(const Bench& bench, const std::string& what, int steps, const std::vector<ProfileRow>& rows) {
    const ProfileRow sum = sum_of(rows);
    if (!bench.o.json)
        printf(
            "\nprofile: %s, the fastest of %d%s\nfloors take data from memory: above 100 %%, a cache held them\n"
            "%s\n",
            what.c_str(), steps, bench.device.gpu ? "; every call is waited for, which the row above does not do" : "",
            table_line(COLUMNS, {"", "calls", "loops", "ms", "share", "floor ms", "ratio", "above"}).c_str());
    for (const ProfileRow& r : rows) print_row(bench, what, r, sum.seconds);
    print_row(bench, what, sum, sum.seconds);
    if (!bench.o.json) printf("\n");
    fflush(stdout);
}

// Prints the rows of the fastest of several steps, except for the first one, which allocates.
template <class Step> void profile(const Bench& bench, Profile& p, const std::string& what, int most, Step step) {
    std::vector<ProfileRow> best;
    int n = 0;
    for (double spent = 0; n < 3 || (n < most && spent < 3); n++) {
        p.start();
        step();
        const std::vector<ProfileRow> rows = p.rows();
        const double seconds = sum_of(rows).seconds;
        spent += seconds;
        if (n > 0 && (best.empty() || seconds < sum_of(best).seconds)) best = rows;
    }
    print(bench, what, n - 1, best);
}
}    // namespace

Status profile_training(const Bench& bench, const Config& c, int B, int S) {
    Profile p(bench.device.model->op, bench.peak);
    Model model(p.table);
    TRY(model.allocate(c, {RunMode::train, B, S}));
    model.init(1);
    TrainingStep step(c, B, S);
    profile(bench, p, "training step B=" + std::to_string(B) + " T=" + std::to_string(S), 50, [&] {
        step.run(model);
        (void)model.train.finish();
    });
    return {};
}

Status profile_decode(const Bench& bench, const Config& c, int rows, const std::string& weights) {
    Profile p(bench.device.model->op, inference_peak(bench));
    Model model(p.table);
    TRY(model.allocate(c, inference_plan(bench, c, {RunMode::infer, rows, 1}, weights)));
    model.init(1);
    KvCache cache;
    TRY(allocate_cache(model, cache, rows, c.T));
    DecodeSteps steps(model, cache, rows, c.V);
    TRY(steps.open());
    p.bytes_beside_fp32 = double(model.store.packed.bytes_beside_fp32()), p.integers = !weights.empty();
    const std::string type = weights.empty() ? "" : ", " + weights;
    profile(bench, p, "generation, a token of " + counted(rows, "sequence") + type, std::min(c.T, 64),
            [&] { steps.step(); });
    return {};
}
