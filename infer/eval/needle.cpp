// needle.cpp - see needle.h.
#include "needle.h"

#include <algorithm>

#include "base/console.h"
#include "base/file.h"
#include "base/philox.h"
#include "base/table.h"
#include "files/picture.h"
#include "data/loader.h"

namespace {
constexpr uint64_t NEEDLE = 0x4EED1Eull << 32,
                   HAYSTACK = 0xF111Eull << 32;    // Philox streams; separate from the seed's other uses
constexpr int PAIR = 2 * NEEDLE_TOKENS;            // tokens of a key and its value
}

std::vector<int> needle_sequence(const NeedleOptions& o, int length, double depth, int trial) {
    const int fill = length - int(o.begin.size()) - 2 * PAIR;
    CHECK(fill >= 0, "length %d", length);
    std::vector<int> pair, all = o.begin;
    for (int i = 0; i < PAIR; i++)    // the tokens of a pair are all different
        pair.push_back(o.choices[size_t(shuffled(uint64_t(o.seed) ^ NEEDLE, trial, int64_t(o.choices.size()), i))]);
    auto draw = [&](int i, size_t n) {
        const Philox4 r = philox(uint64_t(o.seed), HAYSTACK + uint64_t(trial), uint64_t(i));
        return size_t((r.v[0] | uint64_t(r.v[1]) << 32) % n);
    };
    const size_t start = o.haystack.empty() ? 0 : draw(0, o.haystack.size());
    auto haystack = [&](int from, int to) {
        for (int i = from; i < to; i++)
            all.push_back(o.haystack.empty() ? o.choices[draw(i, o.choices.size())]
                                             : o.haystack[(start + size_t(i)) % o.haystack.size()]);
    };
    const int before = int(std::lround(depth * fill));
    haystack(0, before);
    all.insert(all.end(), pair.begin(), pair.end());
    haystack(before, fill);
    all.insert(all.end(), pair.begin(), pair.end());
    return all;
}

namespace {
struct Task {
    size_t cell;
    int trial;
};
// Runs the model on the tasks, whose sequences have equal length.
void answer(Model& model, KvCache& cache, const NeedleOptions& o, const std::vector<Task>& tasks,
            std::vector<NeedleCell>& cells) {
    const int B = int(tasks.size()), V = model.c.V, length = cells[tasks[0].cell].length;
    std::vector<std::vector<int>> rows;
    std::vector<int> running;
    for (const Task& t : tasks) {
        running.push_back(int(rows.size()));
        cache.table.rewind(running.back(), 0);
        rows.push_back(needle_sequence(o, length, cells[t.cell].depth, t.trial));
    }
    PendingHead head;
    auto feed = [&](int from, int to, Pages::SumOrder sum_order) {
        std::vector<int> tokens;
        for (auto& row : rows) tokens.insert(tokens.end(), row.begin() + from, row.begin() + to);
        head = extend(model, cache, tokens.data(), to - from, running, {}, sum_order);
    };
    const int question_end = length - NEEDLE_TOKENS, chunk = std::max(1, int(model.plan.max_tokens() / B));
    for (int s = 0; s < question_end; s += chunk) feed(s, std::min(question_end, s + chunk), Pages::SumOrder::prefill);
    std::vector<float> logits(size_t(B) * size_t(V));
    std::vector<char> right(size_t(B), 1);
    for (int s = question_end; s < length; s++) {
        compute_logits(model, head, logits.data());
        for (int b = 0; b < B; b++) {
            const float* z = &logits[size_t(b) * size_t(V)];
            const int wanted = rows[size_t(b)][size_t(s)];
            const float top = *std::max_element(z, z + V);
            double sum = 0;
            for (int v = 0; v < V; v++) sum += std::exp(double(z[v] - top));
            cells[tasks[size_t(b)].cell].logprob += double(z[wanted] - top) - std::log(sum);
            if (std::max_element(z, z + V) - z != wanted) right[size_t(b)] = 0;
        }
        if (s + 1 < length) feed(s, s + 1, Pages::SumOrder::decode);
    }
    for (size_t b = 0; b < tasks.size(); b++) {
        cells[tasks[b].cell].trials++;
        cells[tasks[b].cell].found += right[b];
    }
}
}    // namespace

Result<std::vector<NeedleCell>> find_needles(Model& model, const NeedleOptions& o,
                                             const std::function<void(int64_t done, int64_t all)>& progress) {
    const int least = int(o.begin.size()) + 2 * PAIR + 1;
    if (int(o.choices.size()) < PAIR)
        return fail(Exit::usage, "--needle draws %d different tokens; the vocabulary has %zu", PAIR, o.choices.size());
    if (o.longest < least)
        return fail(Exit::usage, "--needle: a needle and its question take %d tokens, a sequence has %d", least,
                    o.longest);
    std::vector<NeedleCell> cells;
    int64_t all = 0, done = 0;
    for (int i = 1; i <= o.lengths; i++) {
        const int length = int(int64_t(o.longest) * i / o.lengths);
        if (length < least || (!cells.empty() && length == cells.back().length)) continue;
        for (int k = 0; k < o.depths; k++) cells.push_back({length, o.depths > 1 ? double(k) / (o.depths - 1) : 0.5});
        all += int64_t(length) * o.depths * o.trials;
    }
    KvCache cache;
    TRY(allocate_cache(model, cache, o.batch, o.longest));
    std::vector<Task> tasks;
    for (size_t cell = 0; cell < cells.size(); cell++)
        for (int trial = 0; trial < o.trials; trial++) {
            tasks.push_back({cell, trial});
            const bool last = trial + 1 == o.trials &&
                              (cell + 1 == cells.size() || cells[cell + 1].length != cells[cell].length);
            if (!last && int(tasks.size()) < o.batch) continue;
            answer(model, cache, o, tasks, cells);
            done += int64_t(tasks.size()) * cells[cell].length;
            if (progress) progress(done, all);
            tasks.clear();
        }
    for (NeedleCell& cell : cells) cell.logprob /= cell.trials * NEEDLE_TOKENS;
    return cells;
}

// ---- output -------------------------------------------------------------------------------------

namespace {
Heatmap grid_of(const std::vector<NeedleCell>& cells) {    // rows are depths, columns lengths
    Heatmap grid;
    for (auto& cell : cells) grid.rows += cell.length == cells[0].length;
    grid.columns = int(cells.size()) / grid.rows;
    for (int i = 0; i < grid.rows; i++) {
        grid.row_names.push_back(formatted("%.0f %%", 100 * cells[size_t(i)].depth));
        for (int j = 0; j < grid.columns; j++) {
            const NeedleCell& cell = cells[size_t(j * grid.rows + i)];
            grid.values.push_back(double(cell.found) / cell.trials);
            grid.texts.push_back(formatted("%.0f", 100 * grid.values.back()));
            if (i == 0) grid.column_names.push_back(std::to_string(cell.length));
        }
    }
    return grid;
}
}    // namespace

Json needle_json(const std::vector<NeedleCell>& cells) {
    Json all = Json::list();
    for (auto& cell : cells)
        all.add(Json::object("length", cell.length, "depth", cell.depth, "trials", cell.trials, "found", cell.found,
                             "logprob", cell.logprob));
    return Json::object("needle", std::move(all));
}
void print_needles(const std::vector<NeedleCell>& cells) {
    Heatmap grid = grid_of(cells);
    int found = 0, trials = 0;
    double logprob = 0;
    for (auto& cell : cells) {
        found += cell.found;
        trials += cell.trials;
        logprob += cell.logprob;
    }
    int names = 0, texts = 0;
    for (auto& name : grid.row_names) names = std::max(names, display_width(name));
    for (auto& text : grid.texts) texts = std::max(texts, display_width(text));
    const int cell = std::clamp((terminal_size().columns - 2 - names) / grid.columns, 1, 7);
    if (texts >= cell) grid.texts.clear();    // they would touch
    puts("needles found, %: rows are depths, columns lengths in tokens");
    print_heatmap(grid, cell);
    if (grid.texts.empty()) print_heatmap_legend({{0, "0"}, {0.25, "25"}, {0.5, "50"}, {0.75, "75"}, {1, "100"}});
    printf("found %d of %d  mean log-probability of a token %.3f\n", found, trials, logprob / double(cells.size()));
}
Status write_needle_csv(const std::string& path, const std::vector<NeedleCell>& cells) {
    std::string out = "length,depth,trials,found,logprob\n";
    for (auto& cell : cells)
        out += csv_line({cell.length, {cell.depth, "%.6g"}, cell.trials, cell.found, {cell.logprob, "%.6f"}});
    return replace_file(path, out);
}
Status write_needle_picture(const std::string& path, const std::vector<NeedleCell>& cells) {
    return write_heatmaps(path, {"needles found, %",
                                 "depth",
                                 "length in tokens",
                                 {{grid_of(cells)}},
                                 1,
                                 400,
                                 {{0, "0"}, {0.5, "50"}, {1, "100"}}});
}
