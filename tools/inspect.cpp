// inspect.cpp - `flatgpt inspect`: what each attention head does: maps of a text, and scores of them.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <sstream>

#include "attention_maps.h"
#include "base/command.h"
#include "base/countdown.h"
#include "base/file.h"
#include "base/picture.h"
#include "files/json.h"
#include "infer/open.h"
#include "infer/texts.h"

namespace {
using Strings = std::vector<std::string>;
constexpr int REPEATED = 4;    // sequences of repeated tokens
constexpr size_t MAPS_SHOWN = 4;

struct Options {
    Source source;
    std::string text, text_file, data, csv, picture;
    Strings layer, head;
    int seq_len = 0, sequences = 0, prefix = 0;
    int64_t seed = 1;
    bool raw_u16 = false, json = false;
    DeviceOptions device;
    bool has_text() const { return !text.empty() || !text_file.empty(); }
    bool chooses() const { return !layer.empty() || !head.empty(); }
};
struct ScoreColumn {
    const char *name, *title;
    double HeadScores::*field;
};
const ScoreColumn COLUMNS[] = {{"entropy", "entropy", &HeadScores::entropy},
                               {"relative_entropy", "of most", &HeadScores::relative},
                               {"distance", "distance", &HeadScores::distance},
                               {"previous", "previous", &HeadScores::previous},
                               {"first", "first", &HeadScores::first},
                               {"induction", "induction", &HeadScores::induction}};

// What was measured.
struct Found {
    std::vector<HeadPlace> heads;    // chosen ones, by layer
    std::vector<HeadSums> sums;
    std::vector<int> tokens;         // the text's
    std::vector<std::vector<double>> maps;    // (S,S) each; empty where nobody looks at them
    HeadScores scores(size_t i) const { return sums[i].scores(); }
    // A layer's mean over the chosen heads; its head with the highest induction score.
    HeadScores layer(int l, int* best) const {
        HeadScores mean, top;
        int n = 0;
        for (size_t i = 0; i < heads.size(); i++) {
            if (heads[i].layer != l) continue;
            const HeadScores s = scores(i);
            if (n++ == 0 || s.induction > top.induction) top = s, *best = heads[i].head;
            for (auto& column : COLUMNS) mean.*column.field += s.*column.field;
        }
        for (auto& column : COLUMNS) mean.*column.field /= n;
        return mean;
    }
    std::vector<int> layers() const {
        std::vector<int> all;
        for (auto& place : heads)
            if (all.empty() || all.back() != place.layer) all.push_back(place.layer);
        return all;
    }
};

// ---- what is asked for ----------------------------------------------------------------------------------------------

Status check_flags(const Options& o) {
    const struct { const char* name; bool given; } inputs[] = {
        {"--text", !o.text.empty()}, {"--text-file", !o.text_file.empty()}, {"--data", !o.data.empty()}};
    for (auto& a : inputs)
        for (auto& b : inputs)
            if (&a < &b && a.given && b.given)
                return fail(Exit::usage, "%s, %s: expected at most one of them", a.name, b.name);
    const struct { const char* name; bool given; } of_shards[] = {
        {"--seq-len", o.seq_len > 0}, {"--sequences", o.sequences > 0}, {"--raw-u16", o.raw_u16}};
    for (auto& row : of_shards)
        if (row.given && o.data.empty()) return fail(Exit::usage, "%s needs --data", row.name);
    if (o.prefix && !o.has_text()) return fail(Exit::usage, "--prefix needs --text or --text-file");
    if (!o.picture.empty()) TRY(picture_check(o.picture));
    return {};
}
// Words, also with commas in them, as numbers below n; all of them where there are no words.
Result<std::vector<int>> numbers(const Strings& words, const char* flag, int n) {
    std::vector<int> out;
    std::istringstream parts(join(words, ","));
    for (std::string word; std::getline(parts, word, ',');) {
        int x = -1;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), x);
        if (error != std::errc() || end != word.data() + word.size() || x < 0 || x >= n)
            return fail(Exit::usage, "%s '%s': expected a number from 0 to %d", flag, escape_control(word).c_str(),
                        n - 1);
        out.push_back(x);
    }
    for (int i = 0; i < n && words.empty(); i++) out.push_back(i);
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}
Result<std::vector<HeadPlace>> chosen_heads(const Options& o, const Config& c) {
    std::vector<HeadPlace> all;
    const std::vector<int> heads = TRY(numbers(o.head, "--head", c.NH));
    for (int l : TRY(numbers(o.layer, "--layer", c.L))) {
        if (const char* why = without_map(c, l)) {
            if (o.layer.empty()) continue;
            return fail(Exit::usage, "--layer %d has no map: %s", l, why);
        }
        for (int h : heads) all.push_back({l, h});
    }
    if (all.empty()) return fail(Exit::usage, "no layer of this model has a map: %s", without_map(c, 0));
    return all;
}

// ---- measuring ------------------------------------------------------------------------------------------------------

// Whether the map of one head can be computed.
Status map_fits(int tokens, const char* advice) {
    if (maps_that_fit(tokens, 1)) return {};
    return fail(Exit::usage, "a head's map of %d tokens takes %s, more than the limit of %s; %s", tokens,
                human_bytes(8.0 * tokens * tokens).c_str(), human_bytes(MAP_BYTES).c_str(), advice);
}
Status measure_text(const Options& o, const Opened& m, const std::string& text, Found& found) {
    const Config& c = m.g->c;
    found.tokens = m.tokenizer.encode_prompt(text);
    const int S = m.g->plan.S, all = int(found.tokens.size());
    if (!all) return fail(Exit::usage, "--text: expected a text of at least one token, found none");
    if (all > S) {
        Progress().note(formatted("note: the first %d of the text's %d tokens: the context holds no more", S, all));
        found.tokens.resize(size_t(S));
    }
    if (o.prefix && c.sees != Sees::prefix)
        return fail(Exit::usage, "--prefix needs a model with --objective prefix");
    if (o.prefix > int(found.tokens.size()))
        return fail(Exit::usage, "--prefix %d: the text has %zu tokens", o.prefix, found.tokens.size());
    TRY(map_fits(int(found.tokens.size()), "give a shorter text"));
    const bool printed = o.json ? o.chooses() : found.heads.size() <= MAPS_SHOWN;
    const bool keep = printed || !o.csv.empty() || !o.picture.empty();
    const size_t cells = found.tokens.size() * found.tokens.size();
    if (keep && cells * found.heads.size() > size_t(1) << 29)
        return fail(Exit::usage, "%zu heads' maps of %zu tokens are over 4 GiB; choose fewer with --layer, --head",
                    found.heads.size(), found.tokens.size());
    if (keep) found.maps.resize(found.heads.size());
    Countdown countdown{"inspect"};
    int done = 0;
    attention_maps(*m.g, found.tokens, o.prefix, found.heads, [&](size_t i, const double* p, const int* visible) {
        found.sums[i].add(p, visible, int(found.tokens.size()));
        if (keep) found.maps[i].assign(p, p + cells);
    }, [&] { countdown(++done, layers_with_map(c)); });
    return {};
}
Status measure_shards(const Options& o, const Opened& m, Found& found) {
    const int S = m.g->plan.S, sequences = o.sequences ? o.sequences : 8;
    TRY(map_fits(S, "choose a shorter --seq-len"));
    Loader loader = TRY(open_shards(m, o.source, {.pattern = o.data, .raw_u16 = o.raw_u16, .B = 1, .S = S,
                                                  .most_tokens = int64_t(sequences) * S}));
    std::vector<int> tokens(static_cast<size_t>(S)), targets(tokens);
    const int64_t all = loader.samples() * layers_with_map(m.g->c);
    Countdown countdown{"inspect"};
    int64_t done = 0;
    for (int64_t n = 0; n < loader.samples(); n++) {
        TRY(loader.next(tokens.data(), targets.data()));
        attention_maps(*m.g, tokens, 0, found.heads, [&](size_t i, const double* p, const int* visible) {
            found.sums[i].add(p, visible, S);
        }, [&] { countdown(++done, all); });
    }
    return {};
}
// Induction; where there is nothing else, the other scores, too.
void measure_repeated(const Options& o, const Opened& m, bool alone, Found& found) {
    const std::vector<int> choices = ordinary_tokens(m.tokenizer, m.g->c.V);
    const std::vector<int> begin = m.tokenizer.vocab_size() ? beginning_of_text(m.tokenizer, m.documents)
                                                            : std::vector<int>{};
    for (int n = 0; n < REPEATED; n++) {
        const Repeated r = repeated_tokens(choices, begin, m.g->plan.S, uint64_t(o.seed), uint64_t(n));
        const int S = int(r.tokens.size());
        if (S < 2) return;
        attention_maps(*m.g, r.tokens, 0, found.heads, [&](size_t i, const double* p, const int* visible) {
            if (alone) found.sums[i].add(p, visible, S);
            found.sums[i].add_induction(p, S, r.before, r.length);
        });
    }
}

// ---- text -----------------------------------------------------------------------------------------------------------

// A token as one line of UTF-8: spaces as middle dots.
std::string token_name(const Tokenizer& tokenizer, int id) {
    if (id >= tokenizer.vocab_size()) return "#" + std::to_string(id);
    std::string out;
    for (char c : escape_control(tokenizer.token(id)))
        out += c == ' ' ? "\u00B7" : c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string{c};
    return out;
}
std::string cut(const std::string& text, int width) {    // at most so many columns
    std::string out, rest = text;
    for (bool complete; !rest.empty();) {
        const std::string one = rest.substr(0, utf8_character(rest, complete));
        if (shown_width(out + one) > width) break;
        out += one, rest.erase(0, one.size());
    }
    return out;
}
Strings token_names(const Opened& m, const Found& found, int bin, int width) {
    Strings names;
    for (size_t i = 0; i < found.tokens.size(); i += size_t(bin))
        names.push_back(cut(token_name(m.tokenizer, found.tokens[i]), width));
    return names;
}
const double LEGEND[] = {0, 0.01, 0.1, 0.25, 0.5, 1};    // shades are square roots: small probabilities are seen

void print_map(const Opened& m, const Found& found, size_t i) {
    constexpr int NAME = 14;
    const int S = int(found.tokens.size()), digits = int(std::to_string(S - 1).size());
    const int most = std::max(8, terminal_size().columns - 1 - NAME - digits - 2);
    const SmallMap small = small_map(found.maps[i].data(), S, most);
    ShadeMap shades{small.n, small.n, 2 * small.n <= most ? 2 : 1, small.values, token_names(m, found, small.bin, NAME),
                    {}};
    for (double& x : shades.values) x = std::sqrt(x);
    for (int k = 0; k < small.n; k++) {
        const std::string number = std::to_string(k * small.bin);
        shades.row_names[size_t(k)] = std::string(size_t(digits) - number.size(), ' ') + number + " " +
                                      shades.row_names[size_t(k)];
        shades.column_names.push_back(number);
    }
    printf("layer %d, head %d: rows are queries, columns keys%s\n", found.heads[i].layer, found.heads[i].head,
           small.bin == 1 ? "" : formatted("; a cell is %d x %d tokens: the mean over its queries of the sum over its "
                                           "keys", small.bin, small.bin).c_str());
    print_shades(shades);
    std::vector<std::pair<double, std::string>> legend;
    for (double x : LEGEND) legend.push_back({std::sqrt(x), formatted("%g", x)});
    print_shade_legend(legend);
    puts("");
}
void print_scores(const char* name, const HeadScores& s, const std::string& more = "") {
    printf("%s  %7.3f %8.3f %9.2f %9.3f %6.3f %10.3f%s\n", name, s.entropy, s.relative, s.distance, s.previous, s.first,
           s.induction, more.c_str());
}
void print_text(const Opened& m, const Found& found) {
    for (size_t i = 0; i < found.maps.size() && found.heads.size() <= MAPS_SHOWN; i++) print_map(m, found, i);
    puts("layer head  entropy  of most  distance  previous  first  induction");
    for (size_t i = 0; i < found.heads.size(); i++)
        print_scores(formatted("%5d %4d", found.heads[i].layer, found.heads[i].head).c_str(), found.scores(i));
    for (int l : found.layers()) {
        int best = 0;
        const HeadScores mean = found.layer(l, &best);
        print_scores(formatted("%5d mean", l).c_str(), mean, formatted("  most: head %d", best));
    }
}
void print_json(const Options& o, const Found& found) {
    auto fields = [](const HeadScores& s) {
        std::string out;
        for (auto& column : COLUMNS) out += formatted(",\"%s\":", column.name) + json_number(s.*column.field);
        return out;
    };
    std::string out = "{\"heads\":[";
    for (size_t i = 0; i < found.heads.size(); i++) {
        out += formatted("%s{\"layer\":%d,\"head\":%d", i ? "," : "", found.heads[i].layer, found.heads[i].head) +
               fields(found.scores(i));
        if (!found.maps.empty() && o.chooses()) {
            const size_t S = found.tokens.size();
            for (size_t k = 0; k < S * S; k++)
                out += (k == 0 ? ",\"map\":[[" : k % S == 0 ? "],[" : ",") + json_number(found.maps[i][k]);
            out += "]]";
        }
        out += "}";
    }
    out += "],\"layers\":[";
    for (int l : found.layers()) {
        int best = 0;
        const HeadScores mean = found.layer(l, &best);
        out += formatted("%s{\"layer\":%d", l == found.heads[0].layer ? "" : ",", l) + fields(mean) +
               formatted(",\"induction_head\":%d}", best);
    }
    out += "]";
    for (size_t s = 0; s < found.tokens.size(); s++)
        out += (s ? "," : ",\"tokens\":[") + std::to_string(found.tokens[s]);
    puts((out + (found.tokens.empty() ? "}" : "]}")).c_str());
}

// ---- files ----------------------------------------------------------------------------------------------------------

// A text's maps, a line for each key that is not 0; without a text the scores.
Status write_csv(const Options& o, const Opened& m, const Found& found) {
    auto quoted = [&](int id) {
        std::string out = "\"";
        for (char c : token_name(m.tokenizer, id)) out += c == '"' ? "\"\"" : std::string{c};
        return out + "\"";
    };
    return replace_file(o.csv, [&](const FileSink& sink) -> Status {
        auto put = [&](const std::string& text) { return sink(text.data(), int64_t(text.size())); };
        const size_t S = found.tokens.size();
        std::string header = "layer,head", lines;
        for (auto& column : COLUMNS) header += std::string(",") + column.name;
        TRY(put((S ? "layer,head,query,key,query_token,key_token,probability" : header) + "\n"));
        for (size_t i = 0; i < found.heads.size(); i++, lines.clear()) {
            const std::string place = formatted("%d,%d", found.heads[i].layer, found.heads[i].head);
            const HeadScores s = found.scores(i);
            if (!S) lines = place;
            for (auto& column : COLUMNS) lines += S ? "" : formatted(",%.6g", s.*column.field);
            if (!S) lines += "\n";
            for (size_t q = 0; q < S; q++)
                for (size_t k = 0; k < S; k++)
                    if (const double p = found.maps[i][q * S + k]; p > 0)
                        lines += place + formatted(",%zu,%zu,", q, k) + quoted(found.tokens[q]) + "," +
                                 quoted(found.tokens[k]) + formatted(",%.6g\n", p);
            TRY(put(lines));
        }
        return {};
    });
}
// The maps: one with its tokens' texts, or many small ones.
ColourMaps maps_picture(const Opened& m, const Found& found) {
    const size_t n = found.heads.size(), layers = found.layers().size();
    const bool one = n == 1;
    ColourMaps all;
    all.title = one ? formatted("layer %d, head %d", found.heads[0].layer, found.heads[0].head)
                    : "attention: rows are queries, columns keys";
    all.across = int(layers > 1 ? n / layers : std::ceil(std::sqrt(double(n))));
    all.size = one ? 1400 : std::clamp(1400 / all.across, 90, 320);
    if (one) all.row_axis = "query", all.column_axis = "key";
    for (size_t i = 0; i < n; i++) {
        const SmallMap small = small_map(found.maps[i].data(), int(found.tokens.size()), all.size);
        ColourMap map{one ? "" : formatted("L%d H%d", found.heads[i].layer, found.heads[i].head), small.n, small.n,
                      small.values};
        for (double& x : map.values) x = x == 0 ? NAN : std::sqrt(x);    // what is not seen is grey
        if (one) map.row_names = map.column_names = token_names(m, found, small.bin, 24);
        all.maps.push_back(map);
    }
    for (double x : LEGEND) all.legend.push_back({std::sqrt(x), formatted("%g", x)});
    return all;
}
// The scores: a map of layers and heads for each.
ColourMaps scores_picture(const Options& o, const Found& found) {
    const std::vector<int> layers = found.layers();
    const int rows = int(layers.size()), columns = int(found.heads.size()) / rows;
    const std::string title = "heads: rows are layers, columns heads";
    ColourMaps all{.title = o.data.empty() ? title + " (random tokens, twice)" : title, .across = 3, .size = 320,
                   .legend = {{0, "0"}, {0.5, "0.5"}, {1, "1"}}};
    for (auto& column : COLUMNS) {
        ColourMap map{column.field == &HeadScores::relative ? "entropy, of the most" : column.title, rows, columns, {}};
        double most = 0;
        for (size_t i = 0; i < found.heads.size(); i++) {
            map.values.push_back(found.scores(i).*column.field);
            most = std::max(most, map.values.back());
        }
        if (column.field == &HeadScores::entropy || column.field == &HeadScores::distance) {    // not within 0 to 1
            for (double& x : map.values) x /= most > 0 ? most : 1;
            map.title += formatted(", of %.3g", most);
        }
        for (int l : layers) map.row_names.push_back(std::to_string(l));
        for (int k = 0; k < columns; k++) map.column_names.push_back(std::to_string(found.heads[size_t(k)].head));
        all.maps.push_back(map);
    }
    return all;
}

Status inspect(const Options& o) {
    TRY(check_flags(o));
    const std::string text = o.text_file.empty() ? o.text : TRY(read_file(o.text_file, 1 << 26));
    Opened m;
    TRY(open_model(m, o.source, o.device, true, [&](const Config& c, bool) {
        const int repeated = 2 * 64 + 1;
        const int64_t most = o.has_text() ? int64_t(text.size()) + 2
                             : o.data.empty() ? 0 : o.seq_len ? o.seq_len : c.usual_length();
        return Room{1, int(std::min<int64_t>(c.T, o.data.empty() ? std::max<int64_t>(repeated, most) : most))};
    }));
    if (o.seq_len > m.g->c.T)
        return fail(Exit::usage, "--seq-len %d: the model's context has %d positions", o.seq_len, m.g->c.T);
    if (o.has_text()) TRY(has_tokenizer(m));
    Found found;
    found.heads = TRY(chosen_heads(o, m.g->c));
    found.sums.resize(found.heads.size());
    if (o.has_text()) TRY(measure_text(o, m, text, found));
    else if (!o.data.empty()) TRY(measure_shards(o, m, found));
    measure_repeated(o, m, !o.has_text() && o.data.empty(), found);
    if (!o.csv.empty()) TRY(write_csv(o, m, found));
    if (!o.picture.empty())
        TRY(write_maps(o.picture, o.has_text() ? maps_picture(m, found) : scores_picture(o, found)));
    if (o.json) print_json(o, found);
    else print_text(m, found);
    return {};
}
}    // namespace

Command inspect_command() {
    auto o = std::make_shared<Options>();
    Command c{"inspect", "Look at what a model's attention heads do.",
              "flatgpt inspect runs/a --text \"It is a truth\" --layer 2 --head 0 --picture head.svg"};
    c.flags = flag_groups({
        {"Common",
         {{"MODEL", &o->source.model, MODEL_HELP, 0, 0, {}, true},
          {"--checkpoint", &o->source.checkpoint, "of a run: best (lowest validation loss), last, or a step"},
          {"--text", &o->text, "whose attention is shown: the maps of up to 4 heads, the scores of all; no text, no "
           "--data: the scores for random tokens that come twice"},
          {"--text-file", &o->text_file, "the same of a file's text"},
          {"--layer", &o->layer, "layers, from 0, separated by commas; none: all"},
          {"--head", &o->head, "heads, from 0, separated by commas; none: all"},
          {"--csv", &o->csv, "a file for the maps' probabilities; without a text, for the scores"},
          {"--picture", &o->picture, "a .png or .svg for the maps: one with its tokens, or many small ones; without a "
           "text, for the scores"},
          {"--prefix", &o->prefix, "of a model with --objective prefix: tokens of the text that see each other", 0,
           1 << 24},
          {"--seed", &o->seed, "of the random tokens that the induction score is measured with", 0, 9e18},
          {"--tokenizer", &o->source.tokenizer, "gpt2 or a tokenizer's file, where the MODEL holds none"},
          {"--json", &o->json, "one JSON object on standard output; with --layer or --head also their maps"}}},
        {"Scores over shards",
         {{"--data", &o->data, "shards: a path, a glob pattern, or several separated by commas"},
          {"--sequences", &o->sequences, "sequences, spread evenly over the shards; 0: 8", 0, 1 << 20},
          {"--seq-len", &o->seq_len, "tokens per sequence; 0: the model's context, at most 2048", 0, 1 << 20},
          {"--raw-u16", &o->raw_u16, "the files are headerless uint16 tokens (nanoGPT's)"}}},
        {"Context", stretch_flags(o->source.stretch)},
        {"Device", device_flags(o->device, "as the run was trained, else bf16 on a GPU and fp32 on a CPU")},
    });
    c.run = [o] { return inspect(*o); };
    return c;
}
