// prune.cpp - `flatgpt prune`: removes the least important attention heads from a model.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "base/countdown.h"
#include "base/file.h"
#include "base/table.h"
#include "base/toml.h"
#include "files/gguf.h"
#include "files/json_write.h"
#include "files/safetensors.h"
#include "heads.h"
#include "importance.h"
#include "infer/eval/evaluate.h"
#include "infer/load.h"
#include "train/train.h"

namespace {
namespace fs = std::filesystem;
using Importance = std::vector<double>;    // (L,NH)

struct Options {
    ModelOptions model_options;
    std::string data, eval_data, heads, out, csv;
    int64_t random = -1, tokens = 65536, eval_tokens = 1000000;
    int kv_heads = 0, batch = 8, seq_len = 0;
    bool dry_run = false, raw_u16 = false, json = false;
    DeviceOptions device;
    bool by_importance() const { return dry_run || (!heads.empty() && random < 0); }
};
struct Plans {
    Config before, after;
    int groups = 0;    // kept in each layer
};
// A quantity before and after pruning.
struct Pair {
    const char* name;
    double before, after;
    std::string text;    // both values as text
};

Status check_out(const Options& o) {
    std::error_code none;
    if (fs::exists(o.out, none))
        return fail(Exit::usage, "--out %s: expected a new directory, it is already there", o.out.c_str());
    if (const fs::path in = fs::path(o.out).parent_path(); !in.empty() && !fs::is_directory(in, none))
        return fail(Exit::io, "--out %s: there is no directory %s", o.out.c_str(), in.c_str());
    if (o.csv == o.out) return fail(Exit::usage, "--out, --csv %s: expected two names", o.csv.c_str());
    return check_writable(o.out, "--out");
}
Status check_files(const Options& o) {
    if (!o.out.empty()) TRY(check_out(o));
    return o.csv.empty() ? Status{} : check_writable(o.csv, "--csv");
}
Result<Plans> plans(const Options& o, const Config& c) {
    Plans p = {c, c, c.NKV};
    if (!o.heads.empty()) p.groups -= TRY(groups_to_remove(o.heads, c.NH, c.NKV));
    if (o.kv_heads == p.groups)
        return fail(Exit::usage, "--kv-heads %d: each layer has as many%s, nothing is to be merged", o.kv_heads,
                    o.heads.empty() ? "" : " after --heads");
    if (!o.heads.empty() || o.kv_heads) p.after = TRY(cut_config(c, p.groups, o.kv_heads ? o.kv_heads : p.groups));
    return p;
}

// ---- evaluation ---------------------------------------------------------------------------------

Status open_for(LoadedModel& m, const Options& o, const ModelOptions& model_options, int B, RunMode mode) {
    TRY(load_model(m, model_options, o.device, true, [&](const Config& c, bool) {
        return Capacity{B, sequence_length(model_options, c, o.seq_len), false, mode, true};
    }));
    return check_length(model_options, m.model->c, o.seq_len, false);
}
Result<Loader> shards_for(const Options& o, const LoadedModel& m, const std::string& pattern, int64_t tokens, int B) {
    return open_shards(m, o.model_options,
                       {.pattern = pattern, .raw_u16 = o.raw_u16, .B = B, .S = m.model->plan.S, .max_tokens = tokens});
}
Result<Objective> objective_for(const LoadedModel& m) {
    return objective_of(m.model->c, m.tokenizer, false, Objective{}.fraction, Objective{}.seed);
}
// Measures the model's loss on the evaluation shards. *dtype becomes the type of the computation.
Result<Evaluation> measure(const Options& o, const ModelOptions& model_options, const char* what, std::string* dtype) {
    LoadedModel m;
    TRY(open_for(m, o, model_options, o.batch, RunMode::infer));
    const Objective objective = TRY(objective_for(m));
    *dtype = m.model->op.parameter == Element::bf16 ? "bf16" : "fp32";
    Loader loader = TRY(shards_for(o, m, o.eval_data.empty() ? o.data : o.eval_data, o.eval_tokens, o.batch));
    Countdown countdown{what, "windows"};
    return evaluate(*m.model, loader, m.tokenizer, o.batch, m.model->plan.S, std::ref(countdown), nullptr, objective);
}
Result<Importance> importance_of(const Options& o, const ModelOptions& model_options) {
    LoadedModel m;
    TRY(open_for(m, o, model_options, 1, RunMode::train));
    const Objective objective = TRY(objective_for(m));
    Loader loader = TRY(shards_for(o, m, o.data, o.tokens, 1));
    Countdown countdown{"importance", "windows"};
    return head_importance(*m.model, loader, m.model->plan.S, objective, std::ref(countdown));
}

// ---- importance, as text and JSON ---------------------------------------------------------------

bool is_removed(const Plans& p, const HeadSelection& cut, int l, int h) {
    const std::vector<int>& kept = cut.kept[size_t(l)];
    return !std::binary_search(kept.begin(), kept.end(), h / (p.before.NH / p.before.NKV));
}
void print_importance(const Plans& p, const HeadSelection& cut, const Importance& all) {
    const double most = *std::max_element(all.begin(), all.end());
    printf("importance of heads, 100 is %.3g nats%s\n", most, p.groups < p.before.NKV ? "; x: removed" : "");
    for (int l = 0; l < p.before.L; l++) {
        std::vector<int> widths = {-12};
        std::vector<Cell> cells = {formatted("  layer %d", l)};
        for (int h = 0; h < p.before.NH; h++) {
            const double part = most > 0 ? 100 * all[size_t(l * p.before.NH + h)] / most : 0;
            widths.push_back(6);
            cells.push_back({part, is_removed(p, cut, l, h) ? "%.1fx" : "%.1f "});
        }
        print_table_line(widths, cells);
    }
}
std::string removed_text(const Plans& p, const HeadSelection& cut) {    // "layer 0: 2; layer 1: 0, 3"
    std::string text;
    for (int l = 0; l < p.before.L; l++) {
        text += (l ? "; layer " : "layer ") + std::to_string(l) + ":";
        for (int h = 0, n = 0; h < p.before.NH; h++)
            if (is_removed(p, cut, l, h)) text += (n++ ? ", " : " ") + std::to_string(h);
    }
    return text;
}
Status write_csv(const std::string& path, const Plans& p, const HeadSelection& cut, const Importance& all) {
    std::string text = "layer,head,importance,removed\n";
    for (int l = 0; l < p.before.L; l++)
        for (int h = 0; h < p.before.NH; h++)
            text += csv_line({l, h, {all[size_t(l * p.before.NH + h)], "%.17g"}, int(is_removed(p, cut, l, h))});
    return replace_file(path, text);
}
Json cut_json(const std::string& model, const Plans& p, const HeadSelection& cut, const Importance& all) {
    Json j = Json::object("model", model), importance = Json::list(), removed = Json::list();
    for (int l = 0; l < p.before.L; l++) {
        Json values = Json::list(), heads = Json::list();
        for (int h = 0; h < p.before.NH; h++) {
            if (!all.empty()) values.add(all[size_t(l * p.before.NH + h)]);
            if (is_removed(p, cut, l, h)) heads.add(h);
        }
        importance.add(values);
        removed.add(heads);
    }
    if (!all.empty()) j.set("importance", importance);
    return j.set("removed", removed);
}

// ---- the cut model ------------------------------------------------------------------------------

Result<std::unique_ptr<Model>> whole_model(const Config& c) {
    Device device = TRY(open_device({.device = "cpu", .dtype = "fp32"}, false));
    TRY(device.model->allocate(c, {RunMode::infer, 1, 1}));
    return std::move(device.model);
}
Status write_model(const Options& o, const ModelSource& from, const Plans& p, const HeadSelection& cut) {
    const Tokenizer tokenizer = TRY(checkpoint_tokenizer(from));
    const GenerationConfig generation = TRY(from.gguf ? GenerationConfig() : checkpoint_generation(from.path));
    const std::unique_ptr<Model> before = TRY(whole_model(p.before)), after = TRY(whole_model(p.after));
    TRY(checkpoint_weights(from, *before));
    cut_heads(*after, *before, cut);
    return checkpoint_export(o.out, weights_reader(*after), tokenizer, generation);
}
Result<double> weight_bytes(const ModelSource& m) {
    double bytes = 0;
    std::error_code none;
    const std::vector<std::string> files = m.gguf ? std::vector{m.path} : TRY(checkpoint_tensor_files(m.path, "model"));
    for (const std::string& file : files) bytes += double(fs::file_size(file, none));
    return bytes;
}
// Returns the storage types of the model's matrices: "F32", or "Q6_K, Q8_0" if there are several.
Result<std::string> matrix_types(const ModelSource& m) {
    std::set<std::string> names;
    if (m.gguf) {
        for (const GgufTensor& t : m.gguf->tensors())
            if (t.shape.size() > 1) names.insert(t.format->name);
    } else {
        for (const std::string& path : TRY(checkpoint_tensor_files(m.path, "model"))) {
            const SafetensorsFile file = TRY(SafetensorsFile::open(path));
            for (const TensorEntry& e : file.entries())
                if (e.shape.size() > 1)
                    names.insert(e.type == TensorType::f32 ? "F32" : e.type == TensorType::bf16 ? "BF16" : "F16");
        }
    }
    return join({names.begin(), names.end()}, ", ");
}
// Prints a note if the original is not F32, because the smaller model's file, F32, may be larger.
Status note_type(const Options& o, const ModelSource& from) {
    const std::string types = TRY(matrix_types(from));
    if (types == "F32") return {};
    Progress().note(escape_control(formatted(
        "note: %s is written as F32 (%s), while %s has %s (%s); flatgpt convert with --type writes smaller GGUF files",
        o.out.c_str(), human_bytes(TRY(weight_bytes(ModelSource(o.out)))).c_str(), from.path.c_str(), types.c_str(),
        human_bytes(TRY(weight_bytes(from))).c_str())));
    return {};
}

// Returns an option of the training run that wrote a checkpoint; "" if it is unknown.
std::string run_option(const std::string& dir, const char* key) {
    const Result<TrainState> state = checkpoint_state(dir);
    const auto settings = toml_parse(state.value.config, dir);
    for (const TomlSetting& s : state.ok() && settings.ok() ? settings.value : std::vector<TomlSetting>{})
        if (s.key == key && s.values.size() == 1) return s.values[0];
    return "";
}
// Returns the command that continues training, with a third of the learning rate: enough to recover
// the loss, too little to undo what the model has learned. *of_run: whether rate and batch size are
// the original run's; otherwise they are train's defaults.
std::string training_command(const Options& o, const std::string& from, bool* of_run) {
    const std::string rate = run_option(from, "lr"), batch = run_option(from, "batch");
    *of_run = !rate.empty() && !batch.empty();
    const double lr = *of_run ? strtod(rate.c_str(), nullptr) : TrainOptions{}.lr;
    std::string text = "flatgpt train --from " + shell_quoted(o.out) + " --data " +
                       shell_quoted(o.data.empty() ? "SHARDS" : o.data);
    if (!o.eval_data.empty()) text += " --val " + shell_quoted(o.eval_data);
    if (o.raw_u16) text += " --raw-u16";
    if (!o.model_options.tokenizer.empty()) text += " --tokenizer " + shell_quoted(o.model_options.tokenizer);
    if (o.seq_len) text += formatted(" --seq-len %d", o.seq_len);
    text += " --batch " + (*of_run ? batch : std::to_string(TrainOptions{}.batch));
    return text + formatted(" --lr %.3g --steps 200 --out ", lr / 3) + shell_quoted(o.out + "-trained");
}

Result<std::vector<Pair>> compared(const Options& o, const ModelSource& from, const Plans& p, const Evaluation& whole,
                                   const Evaluation& cut) {
    const double bytes[] = {TRY(weight_bytes(from)), TRY(weight_bytes(ModelSource(o.out)))};
    auto cache = [](const Config& c) { return double(page_bytes(c, Element::f32)) / Pages::SIZE; };
    auto heads = [](int a, int b) { return (b < a ? formatted("%d -> ", a) : "") + formatted("%d in each layer", b); };
    auto row = [](const char* name, double a, double b, std::string (*human)(double), const char* more = "") {
        return Pair{name, a, b, human(a) + " -> " + human(b) + more};
    };
    const Config &a = p.before, &b = p.after;
    const double ppl[] = {std::exp(whole.loss), std::exp(cut.loss)};
    const std::string fewer = b.NH < a.NH ? formatted(" (%.1f %% fewer)", 100 * (1 - double(b.NH) / a.NH)) : "";
    const std::string over = formatted("%.2f -> %.2f over %lld tokens", ppl[0], ppl[1], (long long)cut.tokens);
    return std::vector<Pair>{{"heads", double(a.NH), double(b.NH), heads(a.NH, b.NH) + fewer},
                             {"kv_heads", double(a.NKV), double(b.NKV), heads(a.NKV, b.NKV)},
                             row("parameters", double(config_parameters(a)), double(config_parameters(b)), human_count),
                             row("file_bytes", bytes[0], bytes[1], human_bytes),
                             row("cache_bytes_per_token", cache(a), cache(b), human_bytes, " of fp32"),
                             {"loss", whole.loss, cut.loss, formatted("%.4f -> %.4f", whole.loss, cut.loss)},
                             {"perplexity", ppl[0], ppl[1], over}};
}

const std::vector<int> COLUMNS = {-22, 0};    // name, text

// ---- the command --------------------------------------------------------------------------------

Status prune(Options o) {
    o.out = without_slashes(o.out);
    TRY(check_files(o));
    std::vector<std::string> damaged;
    const ModelSource from = TRY(checkpoint_find(o.model_options.model, &damaged, o.model_options.checkpoint));
    for (const std::string& why : damaged) Progress().note("passed over: " + why);
    const Plans p = TRY(plans(o, TRY(checkpoint_config(from))));
    if (const std::string warning = o.dry_run ? "" : beyond_class_warning(p.after); !warning.empty())
        Progress().note(warning);
    const ModelOptions found = {from.path, "last", o.model_options.tokenizer};
    Options same = o;    // evaluates the pruned model in the original's type
    Evaluation before;
    std::string dtype;
    if (!o.dry_run) before = TRY(measure(o, found, "perplexity before", &dtype));
    if (!std::isfinite(before.loss))
        return fail(Exit::run, "%s: its loss is not a number: %s", from.path.c_str(), NOT_FINITE);
    if (same.device.dtype == "auto") same.device.dtype = dtype;
    const Importance importance = o.by_importance() ? TRY(importance_of(o, found)) : Importance{};
    HeadSelection cut = {random_groups(p.before, p.groups, uint64_t(std::max<int64_t>(0, o.random))), p.after.NKV};
    if (o.random < 0)
        cut.kept = most_important(
            p.before, importance.empty() ? Importance(size_t(p.before.L * p.before.NH)) : importance, p.groups);
    Json j = cut_json(from.path, p, cut, importance);
    if (!o.json && !importance.empty()) print_importance(p, cut, importance);
    if (!o.csv.empty()) TRY(write_csv(o.csv, p, cut, importance));
    if (!o.dry_run) {
        TRY(write_model(o, from, p, cut));
        TRY(note_type(o, from));
        const Evaluation after =
            TRY(measure(same, {o.out, "last", o.model_options.tokenizer}, "perplexity after", &dtype));
        bool of_run = false;
        const std::string command = training_command(o, from.path, &of_run);
        j.set("out", o.out);
        if (!o.json && p.groups < p.before.NKV) print_table_line(COLUMNS, {"removed", removed_text(p, cut)});
        for (const Pair& row : TRY(compared(o, from, p, before, after))) {
            j.set(row.name, Json::object("before", row.before, "after", row.after));
            std::string name = row.name;
            std::replace(name.begin(), name.end(), '_', ' ');
            if (!o.json) print_table_line(COLUMNS, {name, row.text});
        }
        j.set("tokens", after.tokens, "train", command);
        if (!o.json)
            printf("to train on%s:\n  %s\n",
                   of_run ? ""
                          : " (--lr and --batch by train's defaults: the model does not "
                            "say what it was trained with)",
                   command.c_str());
    }
    if (o.json) j.print();
    return {};
}
}    // namespace

static const char* const RANDOM = "--random: random heads leave unmeasured";
Command prune_command() {
    auto o = std::make_shared<Options>();
    Command c{"prune",
              "Measure how much each attention head matters; remove the least important ones, or merge "
              "key/value heads.",
              "flatgpt prune runs/a --heads 30% --data 'tokens/austen_train_*.bin' --out small"};
    c.flags = flag_groups({
        {"Common",
         {{"MODEL", &o->model_options.model, MODEL_HELP, 0, 0, {}, true},
          {.name = "--data",
           .to = &o->data,
           .help = "shards on which importance is measured, and perplexity without "
                   "--eval-data: a path, a glob pattern, or several separated by commas",
           .required_unless = {"--eval-data"}},
          {.name = "--heads",
           .to = &o->heads,
           .help = "how many heads to remove from each layer, the least important "
                   "ones: a percentage (30%), a part (0.3) or a number. Heads that share keys and values are "
                   "removed together: the "
                   "number is a multiple of the group",
           .needs = {"--data or --random: importance is measured on shards"},
           .required_unless = {"--kv-heads", "--dry-run"}},
          {"--kv-heads", &o->kv_heads,
           "merge the remaining key/value heads to N, each the mean of neighbours; "
           "0: do not",
           0, 1024},
          {.name = "--out",
           .to = &o->out,
           .help = "a new directory for the smaller model",
           .required_unless = {"--dry-run"}},
          {.name = "--dry-run",
           .to = &o->dry_run,
           .help = "print the importance of every head, and with --heads the "
                   "removed ones; write no model",
           .needs = {"--data"},
           .excludes = {"--out: it writes no model", "--eval-data, --eval-tokens, --batch: it measures no perplexity",
                        "--random: it shows importance"}},
          {.name = "--tokens",
           .to = &o->tokens,
           .help = "tokens to measure importance on, spread evenly over the "
                   "shards; 0: all",
           .min = 0,
           .max = 1e15,
           .needs = {"--heads or --dry-run"},
           .excludes = {RANDOM}},
          {.name = "--random",
           .to = &o->random,
           .help = "remove random heads instead, drawn by this seed, to compare "
                   "with; -1: the least important",
           .min = -1,
           .max = 9e18,
           .needs = {"--heads: how many to remove"}},
          {"--eval-data", &o->eval_data,
           "shards on which perplexity is measured, before and after; none: those of "
           "--data"},
          {"--eval-tokens", &o->eval_tokens, "tokens of that, spread evenly; 0: all", 0, 1e15},
          {"--batch", &o->batch, "sequences per forward pass of that", 1, 65536},
          {"--seq-len", &o->seq_len, "tokens per sequence; 0: the model's context, at most 2048", 0, 1 << 20},
          {"--checkpoint", &o->model_options.checkpoint, "of a run: best (lowest validation loss), last, or a step"},
          {"--raw-u16", &o->raw_u16, "the shards are headerless uint16 tokens (nanoGPT's)"},
          {"--tokenizer", &o->model_options.tokenizer, "gpt2 or a tokenizer's file, where MODEL has none"},
          {.name = "--csv",
           .to = &o->csv,
           .help = "write layer, head, importance and whether it leaves to this file",
           .needs = {"--heads or --dry-run"},
           .excludes = {RANDOM}},
          {"--json", &o->json, "one JSON object on standard output"}}},
        {"Device", device_flags(o->device, "as the run was trained, else bf16 on a GPU and fp32 on a CPU")},
    });
    c.run = [o] { return prune(*o); };
    return c;
}
