// info.cpp - `flatgpt info`: checks and describes files and directories; lists the losses of runs.
#include <cerrno>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "checkpoint/adapter_files.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "checkpoint/nanochat.h"
#include "checkpoint/tensor_check.h"
#include "data/tokenizer_files/tokenizer_gguf.h"
#include "base/command.h"
#include "base/console.h"
#include "base/table.h"
#include "model/kv_cache.h"
#include "model/device.h"
#include "model/families/families.h"
#include "train/metrics.h"
#include "base/toml.h"
#include "base/file.h"
#include "files/json.h"
#include "data/bpe.h"
#include "data/loader.h"
#include "data/tokenizer_files/sentencepiece.h"
#include "files/text_file.h"
#include "layers/quant/quant.h"

namespace {
struct Row {
    const char* key;    // for --json; text output replaces underscores
    nlohmann::ordered_json value;
    std::string text = {};    // for text output; empty: the value
};
// Each kind of file has a function that adds rows. After an error, those added before it remain.
typedef std::vector<Row> Rows;
struct InfoOptions {
    bool devices = false;
    std::vector<std::string> paths;
    bool json = false, raw_u16 = false;
    int vocab = 0;
};

Row kind(const char* name) { return {"kind", name}; }
Row bytes_row(int64_t bytes) { return {"bytes", bytes, human_bytes(double(bytes))}; }
Row count_row(const char* key, int64_t n) {
    return {key, n, n < 10000 ? std::to_string(n) : std::to_string(n) + " (" + human_count(double(n)) + ")"};
}

std::string hex(uint64_t n) { return formatted("%016llx", (unsigned long long)n); }

// Appends an error's message to the others. The exit code stays the first error's.
void add_error(Status* all, const Status& one) {
    if (one.ok()) return;
    if (!all->ok()) all->message += "\n" + one.message;
    else *all = one;
}
bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// ---- files --------------------------------------------------------------------------------------

Status shard_info(const std::string& path, const InfoOptions& o, Rows& rows) {
    const Shard s = TRY(shard_open(path, o.raw_u16));
    constexpr int64_t PIECE = 1 << 20;    // tokens per read
    std::vector<int> tokens(size_t(std::min(PIECE, s.tokens)));
    int largest = -1;
    rows = {kind("shard"), count_row("tokens", s.tokens), {"token_bytes", s.token_bytes}, bytes_row(s.file_bytes)};
    if (s.tokenizer)    // fingerprint of the tokenizer; 0: unknown
        rows.push_back({"tokenizer",
                        {{"vocabulary", s.vocab}, {"fingerprint", hex(s.tokenizer)}},
                        std::to_string(s.vocab) + " tokens, fingerprint " + hex(s.tokenizer)});
    if (s.documents) rows.push_back(count_row("documents", s.documents));
    if (s.set.id)
        rows.push_back({"set",
                        {{"id", hex(s.set.id)}, {"place", s.set.index}, {"shards", s.set.shards}},
                        formatted("number %d of %d shards written together", s.set.index, s.set.shards)});
    for (int64_t first = 0; first < s.tokens; first += PIECE) {
        int64_t count = std::min(PIECE, s.tokens - first);
        TRY(shard_read(s, first, count, o.vocab ? o.vocab : INT32_MAX, tokens.data()));
        largest = std::max(largest, *std::max_element(tokens.begin(), tokens.begin() + count));
    }
    if (s.tokens) rows.push_back({"largest_id", largest});
    return {};
}

// Checks a tensor's bytes in pieces of whole blocks. Exit 3: an element is NaN or infinite.
template <class F> Status check_finite(const F& file, const std::string& path, const std::string& tensor,
                                       const BlockFormat& format, int64_t at, int64_t bytes) {
    const int64_t piece = (4 << 20) / format.bytes * format.bytes;
    std::vector<char> blocks(size_t(std::min(piece, bytes)));
    for (int64_t done = 0; done < bytes; done += piece) {
        const int64_t n = std::min(piece, bytes - done);
        TRY(file.read_bytes(at + done, blocks.data(), n));
        if (!all_finite(format, blocks.data(), n / format.bytes * format.numbers)) return not_finite(path, tensor);
    }
    return {};
}
Status check_finite(const SafetensorsFile& file) {
    for (const TensorEntry& e : file.entries()) {
        if (e.end - e.begin <= 4) continue;    // a constant such as attention.masked_bias, which may be infinite
        const BlockFormat& format = block_format(block_type(e.type));
        TRY(check_finite(file, file.path(), e.name, format, file.data_begin() + e.begin, e.end - e.begin));
    }
    return {};
}

Status safetensors_info(const std::string& path, int64_t bytes, Rows& rows) {
    const SafetensorsFile file = TRY(SafetensorsFile::open(path));
    int64_t numbers = 0;
    std::set<std::string> types;
    std::set<std::string> prefixes;
    for (const TensorEntry& e : file.entries()) {
        numbers += (e.end - e.begin) / (e.type == TensorType::f32 ? 4 : 2);
        prefixes.insert(e.name.substr(0, e.name.find('.')));
        types.insert(e.type == TensorType::f32 ? "F32" : e.type == TensorType::bf16 ? "BF16" : "F16");
    }
    std::set<std::string> states = {AVERAGE.name};
    for (const Optimizer* o : optimizers())
        for (const OptimizerState& s : o->states) states.insert({s.name, s.name + std::string("_scales")});
    const bool optimizer = !prefixes.empty() && std::ranges::includes(states, prefixes);
    rows = {kind(optimizer ? "optimizer state" : "safetensors"),
            {"tensors", file.entries().size()},
            count_row("numbers", numbers),
            {"types", types, join({types.begin(), types.end()}, " ")},
            bytes_row(bytes)};
    if (optimizer) rows.insert(rows.begin() + 1, {"states", prefixes, join({prefixes.begin(), prefixes.end()}, " ")});
    return {};
}

void add_model(const Config& c, Rows& rows);

Status gguf_info(const std::string& path, Rows& rows) {
    const GgufFile file = TRY(GgufFile::open(path));
    rows = {kind("GGUF model")};
    for (const char* key : {"architecture", "name"}) {
        std::string text;
        if (file.metadata().get(std::string("general.") + key, &text).ok()) rows.push_back({key, text});
    }
    std::map<std::string, int64_t> numbers;
    for (const GgufTensor& t : file.tensors()) numbers[t.format->name] += t.numbers();
    nlohmann::ordered_json types;
    std::string text;
    for (auto& [name, n] : numbers) {
        types[name] = n;
        text += (text.empty() ? "" : ", ") + name + " " + human_count(double(n));
    }
    rows.insert(rows.end(), {{"tensors", file.tensors().size()}, {"types", types, text}, bytes_row(file.bytes())});
    add_model(TRY(gguf_config(file)), rows);
    const Tokenizer tokenizer = TRY(gguf_tokenizer(file));
    if (tokenizer.vocab_size()) rows.push_back({"tokenizer", tokenizer.vocab_size()});
    for (const GgufTensor& t : file.tensors()) TRY(check_finite(file, path, t.name, *t.format, t.at, t.bytes));
    return {};
}

Status tokenizer_info(const std::string& path, Rows& rows) {
    const Tokenizer t = TRY(Tokenizer::load(path));
    int special = 0;
    for (int id = 0; id < t.vocab_size(); id++) special += t.is_special(id);
    const Vocabulary& v = t.vocabulary();
    const bool bytes = v.symbols == Symbols::bytes;
    const char* pieces = v.pattern == Pattern::other ? "its own" : pattern_row(v.pattern).name;
    rows = {kind("tokenizer"),           {"vocabulary", t.vocab_size()},
            {"special_tokens", special}, {"symbols", bytes ? "bytes" : "characters"},
            {"pieces", pieces},          {"end_of_text", t.end_of_text()},
            {"before_a_text", v.before}, {"fingerprint", hex(t.fingerprint())}};
    return {};
}

nlohmann::ordered_json field_value(const Config& c, const ConfigRow& row) {
    const double value = config_value(c, row);
    if (!row.choices.empty()) return row.choices[size_t(value)][0];
    if (std::holds_alternative<bool Config::*>(row.member)) return value != 0;
    return std::holds_alternative<float Config::*>(row.member) ? nlohmann::ordered_json(value)
                                                               : nlohmann::ordered_json(int(value));
}
void add_model(const Config& c, Rows& rows) {
    Row shape = {"shape", {}};
    Rows sizes;
    std::vector<const ConfigRow*> listed;
    for (const ConfigRow* row : config_listed(c)) {
        const auto value = field_value(c, *row);
        if (row->member == ConfigRow::Member(&Config::T) || row->member == ConfigRow::Member(&Config::V)) {
            sizes.push_back({row->name, value});
        } else {
            shape.value[row->name] = value;
            listed.push_back(row);
        }
    }
    shape.text = config_text(c, listed);
    rows.insert(rows.end(), {{"family", c.family->type}, count_row("parameters", config_parameters(c))});
    if (c.experts) {
        rows.push_back(count_row("parameters_used", config_used(c)));
        rows.back().text += " for each token";
    }
    rows.push_back(shape);
    rows.insert(rows.end(), sizes.begin(), sizes.end());
    nlohmann::ordered_json cache;    // bytes of a full sequence's cache
    for (auto [type, name] : {std::pair{Element::f32, "fp32"}, {Element::bf16, "bf16"}, {Element::int8, "int8"}})
        cache[name] = cache_bytes(c, type);
    rows.push_back({"cache", cache, cache_text(c)});
}
Status config_info(const std::string& text, const std::string& path, Rows& rows) {
    rows = {kind("model configuration")};
    add_model(TRY(config_parse(text, path)), rows);
    return {};
}
Status state_info(const std::string& text, const std::string& path, Rows& rows) {
    rows = {kind("training state")};
    const TrainState s = TRY(state_parse(text, path));
    rows.insert(rows.end(), {count_row("step", s.step), count_row("tokens", s.tokens), count_row("epoch", s.epoch),
                             count_row("skipped_updates", s.skipped)});
    return {};
}
// Adds the most informative options of a run.toml.
Status toml_info(const std::string& text, const std::string& path, Rows& rows) {
    Result<std::vector<TomlSetting>> settings = toml_parse(text, path);
    if (!settings.ok()) return {Exit::input, settings.status.message};
    rows = {kind("run configuration"), {"options", settings.value.size()}};
    for (const char* key : {"model", "from", "data", "val", "tokenizer", "out", "steps", "batch", "seq-len", "lr"})
        for (const TomlSetting& s : settings.value)
            if (s.key == key && s.values.size() == 1 && !s.values[0].empty()) rows.push_back({key, s.values[0]});
    return {};
}
// JSON files are recognised by their keys, else by name; the parser then reports missing keys.
Status json_info(const std::string& path, Rows& rows) {
    const std::string text = TRY(read_file(path, 256 << 20));
    const nlohmann::json j = TRY(json_parse(text, path, 64));
    auto has = [&](const char* key) { return j.is_object() && j.contains(key); };
    auto named = [&](const char* name) { return std::filesystem::path(path).filename() == name; };
    if (has("model") || named("tokenizer.json")) return tokenizer_info(path, rows);
    if (has("metrics_bytes") || named("state.json")) return state_info(text, path, rows);
    if (has("model_type") || has("n_embd") || named("config.json")) return config_info(text, path, rows);
    return fail(Exit::input, "%s: JSON, but none of tokenizer.json, config.json and state.json", path.c_str());
}

// ---- metrics ------------------------------------------------------------------------------------

struct Losses {
    int64_t rows = 0;               // number of steps in the file
    int64_t first = 0, last = 0;    // first and last step
    double loss = NAN, val = NAN, best = NAN;
    int64_t val_step = 0, best_step = 0;
};
Status read_losses(const std::string& path, Losses* l) {
    return read_metrics(path, [&](const nlohmann::json& object, const std::string& where) {
        JsonFields fields{object, where};
        TRY(fields.get("step", &l->last, 0, INT64_MAX));
        if (l->rows++ == 0) l->first = l->last;
        if (fields.has("loss")) TRY(fields.get("loss", &l->loss, -1e30, 1e30));
        if (!fields.has("val_loss")) return Status{};
        TRY(fields.get("val_loss", &l->val, -1e30, 1e30));
        l->val_step = l->last;
        if (!(l->best <= l->val)) l->best = l->val, l->best_step = l->last;
        return Status{};
    });
}
Row loss_row(const char* key, double loss, int64_t step) {
    return {key, {{"loss", loss}, {"step", step}}, formatted("%.4f at step %lld", loss, (long long)step)};
}
void add_losses(const Losses& l, Rows& rows) {
    if (std::isfinite(l.loss)) rows.push_back(loss_row("last_loss", l.loss, l.last));
    if (std::isfinite(l.val)) rows.push_back(loss_row("last_validation", l.val, l.val_step));
    if (std::isfinite(l.best)) rows.push_back(loss_row("best_validation", l.best, l.best_step));
}
Status metrics_info(const std::string& path, Rows& rows) {
    Losses l;
    Status status = read_losses(path, &l);
    std::string steps = std::to_string(l.first) + " to " + std::to_string(l.last);
    rows = {kind("metrics"), count_row("rows", l.rows)};
    if (l.rows) rows.push_back({"steps", {l.first, l.last}, steps});
    add_losses(l, rows);
    return status;
}

// ---- any file -----------------------------------------------------------------------------------

Status unknown_file(const std::string& path, std::string_view head) {
    std::string what = head.empty() ? "an empty file" : not_text_reason(head);
    size_t hint = std::min(what.find(';'), what.find(", no text"));
    if (Result<TextFile> text = TextFile::open(path); !head.empty() && text.ok()) {
        what = std::string(text.value.plain() ? "" : "compressed or UTF-16 ") +
               "text (flatgpt tokenize makes shards of it)";
        hint = what.size();
    }
    return fail(Exit::input,
                "%s: found %s; known are shards of tokens (.bin), safetensors, GGUF, tokenizer.json, "
                "tokenizer.model, config.json, state.json, metrics.jsonl, run.toml, and folders: checkpoints, runs, "
                "folders of runs",
                path.c_str(), what.substr(0, hint).c_str());
}

// Files are recognised by their first bytes, else by name; the parser then reports errors.
Status file_info(const std::string& path, const InfoOptions& o, Rows& rows) {
    const File file = TRY(File::open(path));
    std::string head(size_t(std::min<int64_t>(4096, file.bytes())), '\0');
    TRY(file.read(0, head.data(), int64_t(head.size())));
    if (o.raw_u16) return shard_info(path, o, rows);
    bool safetensors = head.size() > 8 && head[7] == 0 && head[8] == '{';    // a length, then JSON
    if (head.starts_with("GGUF") || path.ends_with(".gguf")) return gguf_info(path, rows);
    if (safetensors || path.ends_with(".safetensors")) return safetensors_info(path, file.bytes(), rows);
    if (path.ends_with(".jsonl")) {
        bool metrics = head.starts_with("{\"step\"") || path.ends_with("metrics.jsonl");
        return metrics ? metrics_info(path, rows) : unknown_file(path, head);
    }
    if (head.starts_with('{') || path.ends_with(".json")) return json_info(path, rows);
    if (path.ends_with(".model") || sentencepiece_begins(head)) return tokenizer_info(path, rows);
    if (path.ends_with(".toml")) return toml_info(TRY(read_file(path, 16 << 20)), path, rows);
    return path.ends_with(".bin") || shard_begins(head) ? shard_info(path, o, rows) : unknown_file(path, head);
}

// ---- directories --------------------------------------------------------------------------------

Status checkpoint_info(const std::string& dir, Rows& rows) {
    rows = {kind("checkpoint")};
    TRY(checkpoint_verify(dir));
    const Config config = TRY(checkpoint_config(dir));
    const Tokenizer tokenizer = TRY(checkpoint_tokenizer(dir));
    const bool ours = exists(dir + "/state.json");
    const TrainState state = TRY(ours ? checkpoint_state(dir) : TrainState{});
    add_model(config, rows);
    if (tokenizer.vocab_size()) rows.push_back({"tokenizer", tokenizer.vocab_size()});
    if (ours) rows.insert(rows.end(), {count_row("step", state.step), count_row("tokens", state.tokens)});
    std::string weights;
    const bool adapter = is_adapter(dir);
    const std::vector<std::string> files = adapter ? std::vector{dir + "/adapter_model.safetensors"}
                                                   : TRY(checkpoint_tensor_files(dir, "model"));
    if (adapter) {
        rows.push_back(count_row("adapter", trained_parameters(config)));
        rows.back().text += formatted(" parameters, rank up to %d%s", config.adapter.widest(),
                                      config.adapter.magnitudes ? ", with magnitudes (DoRA)" : "");
        rows.push_back({"base", config.adapter.base});
    }
    for (const std::string& file : files)
        weights += (weights.empty() ? "" : ", ") + std::filesystem::path(file).filename().string();
    rows.push_back({"weights", weights});
    rows.push_back({"checksums", ours ? "verified" : "none"});
    for (const std::string& file : files) TRY(check_finite(TRY(SafetensorsFile::open(file))));
    return {};
}

// Checks every checkpoint of the run. Adds details of the newest valid one, and the losses.
Status run_info(const std::string& run, Rows& rows) {
    std::vector<std::string> dirs = checkpoint_list(run);
    Status status;
    Rows newest;
    Losses losses;
    if (exists(run + "/metrics.jsonl")) add_error(&status, read_losses(run, &losses));
    std::string name;
    for (auto dir = dirs.rbegin(); dir != dirs.rend(); ++dir) {
        Rows one;
        const Status s = checkpoint_info(*dir, one);
        add_error(&status, s);
        if (s.ok() && name.empty()) name = *dir, newest = one;
    }
    if (name.empty() && losses.rows == 0 && status.ok()) return checkpoint_find(run, nullptr).status;
    rows = {kind("run"), {"checkpoints", dirs.size()}};
    if (name.empty() && losses.rows) rows.push_back(count_row("step", losses.last));
    if (!name.empty()) {
        rows.push_back({"newest", name});
        rows.insert(rows.end(), newest.begin() + 1, newest.end());
    }
    add_losses(losses, rows);
    return status;
}

bool is_run(const std::string& dir) {
    return exists(dir + "/run.toml") || exists(dir + "/metrics.jsonl") || !checkpoint_list(dir).empty();
}
// Returns the names of the runs in a folder, sorted.
std::vector<std::string> runs_in(const std::string& dir) {
    std::vector<std::string> runs;
    std::error_code error;
    std::filesystem::directory_iterator it(dir, error), end;
    for (; !error && it != end; it.increment(error))
        if (it->is_directory(error) && is_run(it->path())) runs.push_back(it->path().filename());
    std::sort(runs.begin(), runs.end());
    return runs;
}
// Adds one line per run, from its metrics and the names of its checkpoints, which are not opened.
Status runs_info(const std::string& dir, const std::vector<std::string>& runs, Rows& rows) {
    Status status;
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    std::string text = std::to_string(runs.size());
    size_t widest = 0;
    for (const std::string& run : runs) widest = std::max(widest, run.size());
    auto number = [](double x) { return std::isfinite(x) ? nlohmann::ordered_json(x) : nlohmann::ordered_json(); };
    for (const std::string& run : runs) {
        const std::string path = dir + "/" + run;
        std::vector<std::string> checkpoints = checkpoint_list(path);
        Losses l;
        if (exists(path + "/metrics.jsonl")) add_error(&status, read_losses(path, &l));
        std::string newest = checkpoints.empty() ? "" : std::filesystem::path(checkpoints.back()).filename().string();
        list.push_back({{"name", run},
                        {"step", l.last},
                        {"loss", number(l.loss)},
                        {"val_loss", number(l.val)},
                        {"newest", newest}});
        text += "\n    " + run + std::string(widest - run.size(), ' ') + "  step " + std::to_string(l.last);
        if (std::isfinite(l.loss)) text += formatted(", loss %.4f", l.loss);
        if (std::isfinite(l.val)) text += formatted(", validation %.4f", l.val);
        text += newest.empty() ? ", no checkpoint" : ", newest " + newest;
    }
    rows = {kind("runs"), {"runs", list, text}};
    return status;
}

Status info_of(const std::string& path, const InfoOptions& o, Rows& rows) {
    struct stat s;
    const bool there = stat(path.c_str(), &s) == 0;
    if (!there && errno == ENOENT) return checkpoint_find(path, nullptr).status;    // a Hub name gets its hint
    if (!there || !S_ISDIR(s.st_mode)) return file_info(path, o, rows);
    if (exists(path + "/config.json") || exists(path + "/MANIFEST") || is_adapter(path) ||
        !nanochat_weights(path).empty())
        return checkpoint_info(path, rows);
    std::vector<std::string> runs = is_run(path) ? std::vector<std::string>{} : runs_in(path);
    return runs.empty() ? run_info(path, rows) : runs_info(path, runs, rows);
}

void print(const std::string& path, const Rows& rows, const Status& status, bool json) {
    if (json) {
        nlohmann::ordered_json j = {{"path", path}};
        for (const Row& row : rows) j[row.key] = row.value;
        if (!status.ok()) j["error"] = status.message;
        puts(j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
        return;
    }
    if (rows.empty()) return;    // main prints the error
    const std::vector<int> COLUMNS = {-17, 0};
    puts(escape_control(path).c_str());
    for (const Row& row : rows) {
        std::string key = row.key;
        std::replace(key.begin(), key.end(), '_', ' ');
        std::string value = row.value.is_string() ? row.value.get<std::string>() : row.value.dump();
        std::string text = row.text.empty() ? value : row.text;
        print_table_line(COLUMNS, {"  " + key, escape_control(text)});
    }
    std::istringstream errors(status.message);
    for (std::string line; std::getline(errors, line);) print_table_line(COLUMNS, {"  damaged", escape_control(line)});
}
}    // namespace

Command info_command() {
    auto o = std::make_shared<InfoOptions>();
    return {"info",
            "Say what a shard, checkpoint, run or other file is, and check every byte of it.",
            "flatgpt info runs/a data/*.bin        flatgpt info runs        flatgpt info --devices",
            {{.name = "PATH", .to = &o->paths, .help = "files or directories", .required_unless = {"--devices"}},
             {"--devices", &o->devices, "the GPUs that this binary can use, or why there is none, and the CPU"},
             {"--vocab", &o->vocab, "token ids in shards must be below this; 0: any", 0, 1 << 24},
             {"--raw-u16", &o->raw_u16, "the files are shards of uint16 without a header"},
             {"--json", &o->json, "one JSON object per line"}},
            [o]() -> Status {
                Status status;
                if (o->devices) fputs(describe_devices().c_str(), stdout);
                for (const std::string& path : o->paths) {
                    Rows rows;
                    const Status one = info_of(path, *o, rows);
                    print(path, rows, one, o->json);
                    add_error(&status, one);
                }
                return status;
            }};
}
