// head_report.cpp - see head_report.h.
#include "head_report.h"

#include <algorithm>

#include "base/console.h"
#include "base/file.h"
#include "base/table.h"
#include "files/json_write.h"

using Strings = std::vector<std::string>;

std::vector<ScoreColumn> HeadReport::columns() const {
    std::vector<ScoreColumn> all = {{"entropy", "entropy", "%.3f", false, &HeadScores::entropy},
                                    {"relative_entropy", "of most", "%.3f", true, &HeadScores::relative},
                                    {"distance", "distance", "%.2f", false, &HeadScores::distance},
                                    {"previous", "previous", "%.3f", true, &HeadScores::previous},
                                    {"first", "first", "%.3f", true, &HeadScores::first},
                                    {"induction", "induction", "%.3f", true, &HeadScores::induction}};
    if (!importance.empty()) all.push_back({"importance", "importance", "%.3g", false, &HeadScores::importance});
    return all;
}
HeadScores HeadReport::scores(size_t i) const {
    HeadScores s = sums[i].scores();
    if (!importance.empty()) s.importance = importance[i];
    return s;
}
std::vector<int> HeadReport::layers() const {
    std::vector<int> all;
    for (auto& head_index : heads)
        if (all.empty() || all.back() != head_index.layer) all.push_back(head_index.layer);
    return all;
}
HeadScores HeadReport::layer(int l, std::optional<int>* best) const {
    HeadScores mean, top;
    const double n =
        double(std::count_if(heads.begin(), heads.end(), [&](auto& head_index) { return head_index.layer == l; }));
    best->reset();
    for (size_t i = 0; i < heads.size(); i++) {
        if (heads[i].layer != l) continue;
        const HeadScores s = scores(i);
        if (s.induction && std::isfinite(*s.induction) && (!*best || *s.induction > *top.induction))
            top = s, *best = heads[i].head;
        for (auto& column : columns())
            if (auto& score = s.*column.field) mean.*column.field = (mean.*column.field).value_or(0) + *score / n;
    }
    return mean;
}
std::vector<int> HeadReport::broken_layers() const {
    std::vector<int> all;
    for (int l : layers()) {
        std::optional<int> best;
        const HeadScores mean = layer(l, &best);
        if (!std::isfinite(mean.entropy.value_or(0) + mean.induction.value_or(0))) all.push_back(l);
    }
    return all;
}

// ---- text ---------------------------------------------------------------------------------------

namespace {
// Returns a token's text as one line of UTF-8, with middle dots for spaces.
std::string token_name(const Tokenizer& tokenizer, int id) {
    if (id >= tokenizer.vocab_size()) return "#" + std::to_string(id);
    std::string out;
    for (char c : escape_control(tokenizer.token(id)))
        out += c == ' ' ? "\u00B7" : c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string{c};
    return out;
}
std::string cut(const std::string& text, int width) {    // shortens to `width` columns
    std::string out, rest = text;
    for (bool complete; !rest.empty();) {
        const std::string one = rest.substr(0, utf8_character(rest, complete));
        if (display_width(out + one) > width) break;
        out += one, rest.erase(0, one.size());
    }
    return out;
}
Strings token_names(const HeadReport& r, int bin, int width) {
    Strings names;
    for (size_t i = 0; i < r.tokens.size(); i += size_t(bin))
        names.push_back(cut(token_name(r.tokenizer, r.tokens[i]), width));
    return names;
}
// Shades are square roots of probabilities, so that small ones are visible.
HeatmapLegend legend() {
    HeatmapLegend all;
    for (double x : {0.0, 0.01, 0.1, 0.25, 0.5, 1.0}) all.push_back({std::sqrt(x), formatted("%g", x)});
    return all;
}

void print_map(const HeadReport& r, size_t i) {
    constexpr int NAME = 14;
    const int S = int(r.tokens.size()), digits = int(std::to_string(S - 1).size());
    const int most = std::max(8, terminal_size().columns - 1 - NAME - digits - 2);
    const SmallMap small = small_map(r.maps[i].data(), S, most);
    Heatmap shades{small.n, small.n, small.values, token_names(r, small.bin, NAME)};
    for (double& x : shades.values) x = std::sqrt(x);
    for (int k = 0; k < small.n; k++) {
        const std::string number = std::to_string(k * small.bin);
        shades.row_names[size_t(k)] = std::string(size_t(digits) - number.size(), ' ') + number + " " +
                                      shades.row_names[size_t(k)];
        shades.column_names.push_back(number);
    }
    printf("layer %d, head %d: rows are queries, columns keys%s\n", r.heads[i].layer, r.heads[i].head,
           small.bin == 1 ? ""
                          : formatted("; a cell is %d x %d tokens: the mean over its queries of the sum over its "
                                      "keys",
                                      small.bin, small.bin)
                                .c_str());
    print_heatmap(shades, 2 * small.n <= most ? 2 : 1);
    print_heatmap_legend(legend());
    puts("");
}
}    // namespace

void print_report(const HeadReport& r) {
    for (size_t i = 0; i < r.maps.size() && r.heads.size() <= MAPS_SHOWN; i++) print_map(r, i);
    std::vector<int> widths = {5, 4};
    std::vector<Cell> titles = {"layer", "head"};
    for (auto& column : r.columns()) {
        titles.push_back(column.title);
        widths.push_back(int(strlen(column.title)) + 1);
    }
    widths.push_back(0);
    auto print = [&](std::vector<Cell> cells, const HeadScores& s, const std::optional<int>& best) {
        for (auto& column : r.columns()) {
            auto& score = s.*column.field;
            cells.push_back(score ? Cell(*score, column.format) : "-");
        }
        if (best) cells.push_back(formatted(" most: head %d", *best));
        print_table_line(widths, cells);
    };
    print_table_line(widths, titles);
    for (size_t i = 0; i < r.heads.size(); i++) print({r.heads[i].layer, r.heads[i].head}, r.scores(i), {});
    for (int l : r.layers()) {
        std::optional<int> best;
        const HeadScores mean = r.layer(l, &best);
        print({l, "mean"}, mean, best);
    }
}

// ---- JSON and CSV -------------------------------------------------------------------------------

void print_report_json(const HeadReport& r, bool with_maps) {
    auto set_scores = [&](Json& to, const HeadScores& s) {
        for (auto& column : r.columns()) to.set(column.name, (s.*column.field).value_or(NAN));
    };
    const size_t S = r.tokens.size();
    Json rest = Json::object(), layers = Json::list();
    fputs("{\"heads\":[", stdout);    // one head after the other: all maps as JSON would not fit the memory
    for (size_t i = 0; i < r.heads.size(); i++) {
        Json head = Json::object("layer", r.heads[i].layer, "head", r.heads[i].head), map = Json::list();
        set_scores(head, r.scores(i));
        for (size_t q = 0; q < S && with_maps; q++) {
            const double* row = &r.maps[i][q * S];
            map.add(Json::list(std::vector<double>(row, row + S)));
        }
        if (!map.empty()) head.set("map", std::move(map));
        fputs(((i ? "," : "") + head.text()).c_str(), stdout);
    }
    for (int l : r.layers()) {
        std::optional<int> best;
        Json layer = Json::object("layer", l);
        set_scores(layer, r.layer(l, &best));
        layers.add(layer.set("induction_head", best ? Json(*best) : Json()));
    }
    rest.set("layers", std::move(layers));
    if (S) rest.set("tokens", Json::list(r.tokens));
    printf("],%s}\n", rest.fields().c_str());
}

Status write_report_csv(const std::string& path, const HeadReport& r) {
    return replace_file(path, [&](const FileSink& sink) -> Status {
        auto put = [&](const std::string& text) { return sink(text.data(), int64_t(text.size())); };
        const size_t S = r.tokens.size();
        std::string header = "layer,head";
        for (auto& column : r.columns()) header += std::string(",") + column.name;
        TRY(put((S ? "layer,head,query,key,query_token,key_token,probability" : header) + "\n"));
        Strings names;
        for (int id : r.tokens) names.push_back(token_name(r.tokenizer, id));
        for (size_t i = 0; i < r.heads.size(); i++) {
            const auto [l, h] = r.heads[i];
            std::vector<Cell> cells = {l, h};
            const HeadScores s = r.scores(i);
            for (auto& column : r.columns())
                cells.push_back(s.*column.field ? Cell(*(s.*column.field), "%.6g") : Cell());
            if (!S) TRY(put(csv_line(cells)));
            for (size_t q = 0; q < S; q++) {
                std::string lines;
                for (size_t k = 0; k < S; k++)
                    if (const double p = r.maps[i][q * S + k]; p != 0)
                        lines += csv_line({l, h, q, k, names[q], names[k], {p, "%.6g"}});
                TRY(put(lines));
            }
        }
        return {};
    });
}

// ---- pictures -----------------------------------------------------------------------------------

namespace {
HeatmapPicture maps_picture(const HeadReport& r) {
    const size_t n = r.heads.size(), layers = r.layers().size();
    const bool one = n == 1;
    HeatmapPicture all;
    all.title = one ? formatted("layer %d, head %d", r.heads[0].layer, r.heads[0].head)
                    : "attention: rows are queries, columns keys";
    all.across = int(layers > 1 ? n / layers : std::ceil(std::sqrt(double(n))));
    all.size = one ? 1400 : std::clamp(1400 / all.across, 90, 320);
    if (one) all.row_axis = "query", all.column_axis = "key";
    for (size_t i = 0; i < n; i++) {
        const SmallMap small = small_map(r.maps[i].data(), int(r.tokens.size()), all.size);
        HeatmapPanel map{{small.n, small.n, small.values}};
        if (!one) map.title = formatted("L%d H%d", r.heads[i].layer, r.heads[i].head);
        for (double& x : map.values) x = x == 0 ? NAN : std::sqrt(x);    // masked pairs are grey
        if (one) map.row_names = map.column_names = token_names(r, small.bin, 24);
        all.maps.push_back(map);
    }
    all.legend = legend();
    return all;
}
HeatmapPicture scores_picture(const HeadReport& r, const std::string& subject) {
    const std::vector<int> layers = r.layers();
    const int rows = int(layers.size()), columns = int(r.heads.size()) / rows;
    HeatmapPicture all{.title = "heads: rows are layers, columns heads" + (subject.empty() ? "" : " (" + subject + ")"),
                       .across = 3,
                       .size = 320,
                       .legend = {{0, "0"}, {0.5, "0.5"}, {1, "1"}}};
    for (auto& column : r.columns()) {
        HeatmapPanel map{{rows, columns}, column.name};
        std::replace(map.title.begin(), map.title.end(), '_', ' ');
        double most = 0;
        for (size_t i = 0; i < r.heads.size(); i++) {
            map.values.push_back((r.scores(i).*column.field).value_or(NAN));
            if (map.values.back() > most) most = map.values.back();
        }
        if (!column.part) {
            for (double& x : map.values) x /= most > 0 ? most : 1;
            map.title += formatted(", of %.3g", most);
        }
        for (int l : layers) map.row_names.push_back(std::to_string(l));
        for (int k = 0; k < columns; k++) map.column_names.push_back(std::to_string(r.heads[size_t(k)].head));
        all.maps.push_back(map);
    }
    return all;
}
}    // namespace

Status write_report_picture(const std::string& path, const HeadReport& r, const std::string& subject) {
    return write_heatmaps(path, r.tokens.empty() ? scores_picture(r, subject) : maps_picture(r));
}
