// inspect.cpp - `flatgpt inspect`: attention maps of a text, and scores of heads.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <sstream>

#include "base/command.h"
#include "base/countdown.h"
#include "base/file.h"
#include "head_report.h"
#include "importance.h"
#include "infer/load.h"
#include "infer/eval/text_loss.h"

namespace {
using Strings = std::vector<std::string>;
// Number of sequences that measure induction, and maximum positions of one: BOS and two halves.
constexpr int REPEATED = 4, REPEATED_POSITIONS = 2 * REPEATED_HALF + 1;

struct Options {
    ModelOptions model_options;
    std::string text, text_file, data, csv, picture;
    Strings layer, head;
    int seq_len = 0, sequences = 0, prefix = 0;
    int64_t seed = 1;
    bool raw_u16 = false, importance = false, json = false;
    DeviceOptions device;
    Strings given;                     // names of given options
    const char* text_flag() const {    // null: no text
        return was_given(given, "--text") ? "--text" : was_given(given, "--text-file") ? "--text-file" : nullptr;
    }
    bool chooses() const { return !layer.empty() || !head.empty(); }
};

// ---- options ------------------------------------------------------------------------------------

Status check_files(const Options& o) {
    if (!o.csv.empty()) TRY(check_writable(o.csv, "--csv"));
    return o.picture.empty() ? Status{} : picture_check(o.picture);
}
// Parses words, each a number below n or several of them separated by commas. Without words, all
// numbers below n are returned. They are sorted, without duplicates.
Result<std::vector<int>> numbers(const Strings& words, const char* flag, int n) {
    std::vector<int> out;
    std::istringstream parts(join(words, ",") + ",");
    for (std::string word; !words.empty() && std::getline(parts, word, ',');) {
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
Result<std::vector<HeadIndex>> chosen_heads(const Options& o, const Config& c) {
    std::vector<HeadIndex> all;
    const std::vector<int> heads = TRY(numbers(o.head, "--head", c.NH));
    for (int l : TRY(numbers(o.layer, "--layer", c.L))) {
        if (const char* why = why_no_map(c, l)) {
            if (o.layer.empty()) continue;
            return fail(Exit::usage, "--layer %d has no map: %s", l, why);
        }
        for (int h : heads) all.push_back({l, h});
    }
    if (all.empty()) return fail(Exit::usage, "no layer of this model has a map: %s", why_no_map(c, 0));
    return all;
}

// ---- measuring ----------------------------------------------------------------------------------

// Checks that the map of one head fits into MAP_BYTES. Exit 2: it does not.
Status map_fits(int tokens, const char* advice) {
    if (maps_that_fit(tokens, 1)) return {};
    return fail(Exit::usage, "a head's map of %d tokens takes %s, more than the limit of %s; %s", tokens,
                human_bytes(8.0 * tokens * tokens).c_str(), human_bytes(MAP_BYTES).c_str(), advice);
}
// Returns the text's tokens, cut to the longest context. Exit 2: there are none, or --prefix does
// not fit the model or the text.
Result<std::vector<int>> tokens_of(const Options& o, const LoadedModel& m, const std::string& text) {
    std::vector<int> tokens = m.tokenizer.encode_prompt(text);
    const int longest = longest_context(o.model_options, m.model->c), all = int(tokens.size());
    if (text.empty() || !all)
        return fail(Exit::usage, "%s: expected a text of at least one token, found none", o.text_flag());
    if (all > longest) {
        Progress().note(
            formatted("note: the first %d of the text's %d tokens: the context holds no more", longest, all));
        tokens.resize(size_t(longest));
    }
    if (o.prefix && m.model->c.mask_kind != MaskKind::prefix)
        return fail(Exit::usage, "--prefix needs a model with --objective prefix");
    if (o.prefix > int(tokens.size()))
        return fail(Exit::usage, "--prefix %d: the text has %zu tokens", o.prefix, tokens.size());
    return tokens;
}
Status measure_text(const Options& o, const LoadedModel& m, const std::string& text, HeadReport& found) {
    found.tokens = TRY(tokens_of(o, m, text));
    const int S = int(found.tokens.size());
    TRY(map_fits(S, "give a shorter text"));
    const bool printed = o.json ? o.chooses() : found.heads.size() <= MAPS_SHOWN;
    const bool keep = printed || !o.csv.empty() || !o.picture.empty();
    // Maps become JSON one after the other. A probability then takes 16 bytes as a value and up to
    // 24 as text, twice while the text grows: 64 in all.
    const int64_t cells = int64_t(S) * S, json = o.json && printed ? 64 * cells : 0;
    const int64_t kept = (keep ? 8 * cells * int64_t(found.heads.size()) : 0) + json;
    if (!maps_that_fit(S, 1, MAP_BYTES - kept))
        return fail(Exit::usage,
                    "maps of %d tokens, of %s, take %s, and one more while it is computed: over the limit "
                    "of %s; choose fewer with --layer, --head, or give a shorter text",
                    S, counted(int64_t(found.heads.size()), "head").c_str(), human_bytes(double(kept)).c_str(),
                    human_bytes(MAP_BYTES).c_str());
    if (keep) found.maps.resize(found.heads.size());
    Countdown countdown{"inspect"};
    int done = 0;
    attention_maps(
        *m.model, found.tokens, o.prefix, found.heads,
        [&](size_t i, const double* p, const int* visible) {
            found.sums[i].add(p, visible, S);
            if (keep) found.maps[i].assign(p, p + cells);
        },
        [&] { countdown(++done, layers_with_map(m.model->c)); }, MAP_BYTES - kept);
    return {};
}
Status measure_importance(const LoadedModel& m, Loader& loader, int S, HeadReport& found) {
    const Objective objective =
        TRY(objective_of(m.model->c, m.tokenizer, false, Objective{}.fraction, Objective{}.seed));
    Countdown countdown{"importance", "windows"};
    const std::vector<double> all = TRY(head_importance(*m.model, loader, S, objective, std::ref(countdown)));
    for (auto& head_index : found.heads)
        found.importance.push_back(all[size_t(head_index.layer * m.model->c.NH + head_index.head)]);
    return {};
}
Status measure_shards(const Options& o, const LoadedModel& m, HeadReport& found) {
    const int S = sequence_length(o.model_options, m.model->c, o.seq_len), sequences = o.sequences ? o.sequences : 8;
    TRY(map_fits(S, "choose a shorter --seq-len"));
    Loader loader = TRY(
        open_shards(m, o.model_options,
                    {.pattern = o.data, .raw_u16 = o.raw_u16, .B = 1, .S = S, .max_tokens = int64_t(sequences) * S}));
    std::vector<int> tokens(static_cast<size_t>(S)), targets(tokens);
    const int64_t all = loader.samples() * layers_with_map(m.model->c);
    Countdown countdown{"inspect"};
    int64_t done = 0;
    for (int64_t n = 0; n < loader.samples(); n++) {
        TRY(loader.next(tokens.data(), targets.data()));
        attention_maps(
            *m.model, tokens, 0, found.heads,
            [&](size_t i, const double* p, const int* visible) { found.sums[i].add(p, visible, S); },
            [&] { countdown(++done, all); });
    }
    return o.importance ? measure_importance(m, loader, S, found) : Status{};
}
// Measures the induction score on repeated tokens and, if there is no other input (alone), the
// other scores, too.
void measure_repeated(const Options& o, const LoadedModel& m, bool alone, HeadReport& found) {
    const int most = std::min(longest_context(o.model_options, m.model->c), REPEATED_POSITIONS);
    const std::vector<int> choices = ordinary_tokens(m.tokenizer, m.model->c.V);
    const std::vector<int> begin = beginning_of_text(m);
    for (int n = 0; n < REPEATED; n++) {
        const Repeated r = repeated_tokens(choices, begin, most, uint64_t(o.seed), uint64_t(n));
        const int S = int(r.tokens.size());
        if (!r.length) return;
        attention_maps(*m.model, r.tokens, 0, found.heads, [&](size_t i, const double* p, const int* visible) {
            if (alone) found.sums[i].add(p, visible, S);
            found.sums[i].add_induction(p, S, r.before, r.length);
        });
    }
}

Status inspect(const Options& o) {
    TRY(check_files(o));
    // A text has at most 8 MiB: encoding takes some 20 bytes of memory per byte of text, and a map
    // of so many tokens would not fit anyway.
    const std::string text = was_given(o.given, "--text-file") ? TRY(read_file(o.text_file, 8 << 20)) : o.text;
    const bool has_text = o.text_flag(), has_data = !o.data.empty();
    LoadedModel m;
    TRY(load_model(m, o.model_options, o.device, true, [&](const Config& c, bool) {
        const int longest = longest_context(o.model_options, c);
        const int64_t most = has_text   ? int64_t(text.size()) + 2
                             : has_data ? sequence_length(o.model_options, c, o.seq_len)
                                        : 0;
        return Capacity{1, int(std::min<int64_t>(longest, std::max<int64_t>(REPEATED_POSITIONS, most))), false,
                        o.importance ? RunMode::train : RunMode::infer, true};
    }));
    TRY(check_length(o.model_options, m.model->c, o.seq_len));
    if (has_text) TRY(check_tokenizer(m));
    HeadReport found{m.tokenizer};
    found.heads = TRY(chosen_heads(o, m.model->c));
    found.sums.resize(found.heads.size());
    if (has_text) TRY(measure_text(o, m, text, found));
    else if (has_data) TRY(measure_shards(o, m, found));
    measure_repeated(o, m, !has_text && !has_data, found);
    Strings broken;
    for (int l : found.broken_layers()) broken.push_back(std::to_string(l));
    if (!broken.empty())
        Progress().note(formatted("warning: the maps of layer%s %s are not finite: %s", broken.size() > 1 ? "s" : "",
                                  join(broken, ", ").c_str(), NOT_FINITE));
    if (o.json) print_report_json(found, has_text && o.chooses());
    else print_report(found);
    if (!o.csv.empty()) TRY(write_report_csv(o.csv, found));
    return o.picture.empty() ? Status{}
                             : write_report_picture(o.picture, found, has_data ? "" : "random tokens, twice");
}
}    // namespace

Command inspect_command() {
    auto o = std::make_shared<Options>();
    Command c{"inspect", "Look at what a model's attention heads do.",
              "flatgpt inspect runs/a --text \"It is a truth\" --layer 2 --head 0 --picture head.svg"};
    c.flags = flag_groups({
        {"Common",
         {{"MODEL", &o->model_options.model, MODEL_HELP, 0, 0, {}, true},
          {"--checkpoint", &o->model_options.checkpoint, "of a run: best (lowest validation loss), last, or a step"},
          {.name = "--text",
           .to = &o->text,
           .help = "whose attention is shown: the maps of up to 4 heads, the scores "
                   "of all; no text, no --data: the scores for random tokens that come twice",
           .excludes = {"--text-file, --data"}},
          {.name = "--text-file",
           .to = &o->text_file,
           .help = "the same of a file's text, of at most 8 MiB",
           .excludes = {"--data"}},
          {"--layer", &o->layer, "layers, from 0, separated by commas; none: all"},
          {"--head", &o->head, "heads, from 0, separated by commas; none: all"},
          {"--csv", &o->csv, "a file for the maps' probabilities; without a text, for the scores"},
          {"--picture", &o->picture,
           "a .png or .svg for the maps: one with its tokens, or many small ones; without a "
           "text, for the scores"},
          {.name = "--prefix",
           .to = &o->prefix,
           .help = "of a model with --objective prefix: tokens of the text that "
                   "see each other",
           .min = 0,
           .max = 1 << 24,
           .needs = {"--text or --text-file"}},
          {"--seed", &o->seed, "of the random tokens that the induction score is measured with", 0, 9e18},
          {"--tokenizer", &o->model_options.tokenizer, "gpt2 or a tokenizer's file, where the MODEL holds none"},
          {"--json", &o->json, "one JSON object on standard output; with --layer or --head also their maps"}}},
        {"Scores over shards",
         {{"--data", &o->data, "shards: a path, a glob pattern, or several separated by commas"},
          {.name = "--sequences",
           .to = &o->sequences,
           .help = "sequences, spread evenly over the shards; 0: 8",
           .min = 0,
           .max = 1 << 20,
           .needs = {"--data"}},
          {.name = "--importance",
           .to = &o->importance,
           .help = "also how much the loss depends on each head, in "
                   "nats, as prune measures it; takes the memory of training",
           .needs = {"--data"}},
          {.name = "--seq-len",
           .to = &o->seq_len,
           .help = "tokens per sequence; 0: the model's context, at most 2048",
           .min = 0,
           .max = 1 << 20,
           .needs = {"--data"}},
          {.name = "--raw-u16",
           .to = &o->raw_u16,
           .help = "the files are headerless uint16 tokens (nanoGPT's)",
           .needs = {"--data"}}}},
        {"Context", context_extension_flags(o->model_options.context_extension)},
        {"Device", device_flags(o->device, "as the run was trained, else bf16 on a GPU and fp32 on a CPU")},
    });
    c.given = &o->given;
    c.run = [o] { return inspect(*o); };
    return c;
}
