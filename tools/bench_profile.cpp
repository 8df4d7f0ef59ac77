// bench_profile.cpp - where a step's time goes: a table of operations whose entries note time and work, and call the
// real ones. The model does not know.
#include "bench.h"
#include "base/console.h"
#include "files/json.h"
#include "gpt.h"

namespace {
struct Notes {
    Peaks peak;
    std::vector<ProfileRow> rows;
    double start = 0, noting = 0;    // seconds; noting: spent on notes
} notes;

void note(const char* entry, const Work& w, double seconds) {
    std::string name = entry;
    if (w.in) name += " " + std::to_string(w.in) + " to " + std::to_string(w.out);
    auto row = std::find_if(notes.rows.begin(), notes.rows.end(), [&](const ProfileRow& r) { return r.name == name; });
    if (row == notes.rows.end()) row = notes.rows.insert(row, {name, 0, 0, 0, {}});
    row->calls++;
    row->seconds += seconds;
    row->floor += notes.peak.floor(w);
    row->work.products += w.products, row->work.flops += w.flops, row->work.bytes += w.bytes;
}

Table real;    // global, as operations take no context argument

template <class Count, class Call> void timed(const char* entry, Count count, Call call) {
    const double called = now_seconds();
    const Work w = count();
    const double start = now_seconds();
    call();
    real.wait(real.mark());
    const double end = now_seconds();
    note(entry, w, end - start);
    notes.noting += start - called + now_seconds() - end;
}
}    // namespace

Table profiled(const Table& op) {
    real = op;
    Table table = op;
    table.record = nullptr, table.recorded = nullptr, table.replay = nullptr, table.release_graph = nullptr;
#define OPERATION(entry, need, arguments)                                                         \
    if (op.entry)                                                                                 \
        table.entry = [](auto... a) {                                                             \
            timed(#entry, [&] { return WorkOf(real).entry(a...); }, [&] { real.entry(a...); });   \
        };
#include "layers/operations.inc"
#undef OPERATION
    return table;
}

void profile_start(const Peaks& peak) { notes = {peak, {}, now_seconds(), 0}; }
std::vector<ProfileRow> profile_rows() {
    double rest = now_seconds() - notes.start - notes.noting;
    std::vector<ProfileRow> rows = notes.rows;
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
    for (const ProfileRow& r : rows) rest -= r.seconds;
    rows.push_back({"everything else, on the host", 0, rest, 0, {}});
    return rows;
}

// ---- tables ---------------------------------------------------------------------------------------------------------

namespace {
ProfileRow sum_of(const std::vector<ProfileRow>& rows) {
    ProfileRow sum = {"sum", 0, 0, 0, {}};
    for (const ProfileRow& r : rows) {
        sum.calls += r.calls, sum.seconds += r.seconds, sum.floor += r.floor;
        sum.work.products += r.work.products, sum.work.flops += r.work.flops, sum.work.bytes += r.work.bytes;
    }
    return sum;
}

void print_row(const Bench& bench, const std::string& what, const ProfileRow& r, double total) {
    const double flops = r.work.products + r.work.flops, bytes = r.work.bytes;
    const double compute = r.work.products / bench.peak.products + r.work.flops / bench.peak.flops;
    const char* bound = r.floor == 0 ? "" : compute > bytes / bench.peak.bytes ? "FLOPs" : "bytes";
    if (bench.o.json) {
        printf("{\"profile\":%s,\"name\":%s,\"device\":%s,\"calls\":%lld,\"ms\":%s,\"share\":%s,\"floor_ms\":%s,"
               "\"FLOPs\":%s,\"bytes\":%s}\n",
               json_string(what).c_str(), json_string(r.name).c_str(), json_string(bench.device.text).c_str(),
               (long long)r.calls, json_number(r.seconds * 1e3).c_str(), json_number(r.seconds / total).c_str(),
               json_number(r.floor * 1e3).c_str(), json_number(flops).c_str(), json_number(bytes).c_str());
        return;
    }
    char text[4][24] = {"", "", "", ""};
    if (r.calls) snprintf(text[0], sizeof text[0], "%lld", (long long)r.calls);
    if (r.floor > 0) {
        snprintf(text[1], sizeof text[1], "%.3f", r.floor * 1e3);
        snprintf(text[2], sizeof text[2], "%.0f %%", r.floor / r.seconds * 100);
        if (*bound == 'F') snprintf(text[3], sizeof text[3], "%.1f GFLOP/s", flops / r.seconds / 1e9);
        else snprintf(text[3], sizeof text[3], "%.1f GB/s", bytes / r.seconds / 1e9);
    }
    printf("  %-36s %6s %10.3f %6.1f %% %10s %7s %8.3f   %s\n", r.name.c_str(), text[0], r.seconds * 1e3,
           r.seconds / total * 100, text[1], text[2], std::max(0.0, r.seconds - r.floor) * 1e3, text[3]);
}

void print(const Bench& bench, const std::string& what, int steps, const std::vector<ProfileRow>& rows) {
    const ProfileRow sum = sum_of(rows);
    if (!bench.o.json)
        printf("\nprofile: %s, the fastest of %d%s\nfloors in bytes are of memory: above 100 %% it lay in a cache\n"
               "  %-36s %6s %10s %8s %10s %7s %8s\n", what.c_str(), steps,
               bench.device.gpu ? "; every call is waited for, which the row above does not do" : "", "", "calls", "ms",
               "share", "floor ms", "of it", "above");
    for (const ProfileRow& r : rows) print_row(bench, what, r, sum.seconds);
    print_row(bench, what, sum, sum.seconds);
    if (!bench.o.json) printf("\n");
    fflush(stdout);
}

// The rows of the fastest of several steps; the first ones, which allocate, do not count.
template <class Step> void profile(const Bench& bench, const std::string& what, int most, Step step) {
    std::vector<ProfileRow> best;
    int n = 0;
    for (double spent = 0; n < 3 || (n < most && spent < 3); n++) {
        profile_start(bench.peak);
        step();
        const std::vector<ProfileRow> rows = profile_rows();
        const double seconds = sum_of(rows).seconds;
        spent += seconds;
        if (n > 0 && (best.empty() || seconds < sum_of(best).seconds)) best = rows;
    }
    print(bench, what, n - 1, best);
}
}    // namespace

Status profile_training(const Bench& bench, const Config& c, int B, int S) {
    Model g(profiled(bench.device.model->op));
    TRY(g.allocate(c, {Use::train, B, S}));
    g.init(1);
    TrainingStep step(c, B, S);
    profile(bench, "training step B=" + std::to_string(B) + " T=" + std::to_string(S), 50, [&] {
        step.run(g);
        (void)g.finish();
    });
    return {};
}

Status profile_generation(const Bench& bench, const Config& c, int rows) {
    Model g(profiled(bench.device.model->op));
    TRY(g.allocate(c, {Use::infer, rows, 1}));
    g.init(1);
    Cache cache;
    TRY(g.cache_allocate(cache, rows, c.T));
    std::vector<int> tok(size_t(rows), 1);
    std::vector<float> logits(size_t(rows) * size_t(c.V));
    profile(bench, "generation, a token of " + std::to_string(rows) + " sequences", std::min(c.T, 64), [&] {
        g.extend(cache, tok.data(), 1);
        g.logits(logits.data());
    });
    g.cache_free(cache);
    return {};
}
