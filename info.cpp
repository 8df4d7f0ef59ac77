// info.cpp - `flatgpt info`: what a file or directory is, checked from end to end.
#include <cerrno>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#include "checkpoint.h"
#include "command.h"
#include "console.h"
#include "device.h"
#include "data/file.h"
#include "data/json.h"
#include "data/loader.h"

namespace {
struct Row {
    const char* key;              // for --json; for people with spaces
    nlohmann::ordered_json value;
    std::string text = {};        // for people; empty: the value
};
struct Info {
    std::vector<Row> rows;
    Status status;                // the rows are what was found out before the error
};
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

std::string hex(uint64_t n) {
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)n);
    return text;
}

// The first error decides the exit code; all are told.
void add_error(Status* all, const Status& one) {
    if (one.ok()) return;
    if (!all->ok()) all->message += "\n" + one.message;
    else *all = one;
}
bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// ---- files ---------------------------------------------------------------------------------------------------------

Info shard_info(const std::string& path, const InfoOptions& o) {
    Result<Shard> shard = shard_open(path, o.raw_u16);
    if (!shard.ok()) return {{}, shard.status};
    const Shard& s = shard.value;
    constexpr int64_t PIECE = 1 << 20;    // tokens
    std::vector<int> tokens(size_t(std::min(PIECE, s.tokens)));
    int largest = -1;
    Info info;
    info.rows = {kind("shard"), count_row("tokens", s.tokens), {"token_bytes", s.token_bytes}, bytes_row(s.file_bytes)};
    if (s.tokenizer)
        info.rows.insert(info.rows.end(), {{"tokenizer_vocabulary", s.vocab}, {"tokenizer", hex(s.tokenizer)}});
    if (s.documents) info.rows.push_back(count_row("documents", s.documents));
    for (int64_t first = 0; first < s.tokens && info.status.ok(); first += PIECE) {
        int64_t count = std::min(PIECE, s.tokens - first);
        info.status = shard_read(s, first, count, o.vocab ? o.vocab : INT32_MAX, tokens.data());
        if (info.status.ok()) largest = std::max(largest, *std::max_element(tokens.begin(), tokens.begin() + count));
    }
    if (info.status.ok() && s.tokens) info.rows.push_back({"largest_id", largest});
    return info;
}

Info safetensors_info(const std::string& path, int64_t bytes) {
    Result<SafetensorsFile> file = SafetensorsFile::open(path);
    if (!file.ok()) return {{}, file.status};
    int64_t numbers = 0;
    std::set<std::string> types;
    for (const TensorEntry& e : file.value.entries()) {
        numbers += (e.end - e.begin) / (e.type == TensorType::f32 ? 4 : 2);
        types.insert(e.type == TensorType::f32 ? "F32" : e.type == TensorType::bf16 ? "BF16" : "F16");
    }
    std::string all;
    for (const std::string& t : types) all += (all.empty() ? "" : " ") + t;
    return {{kind("safetensors"), {"tensors", file.value.entries().size()}, count_row("numbers", numbers),
             {"types", types, all}, bytes_row(bytes)}, {}};
}

Info tokenizer_info(const std::string& path) {
    Result<Tokenizer> t = Tokenizer::load(path);
    if (!t.ok()) return {{}, t.status};
    int special = 0;
    for (int id = 0; id < t.value.vocab_size(); id++) special += t.value.is_special(id);
    return {{kind("tokenizer"), {"vocabulary", t.value.vocab_size()}, {"special_tokens", special},
             {"end_of_text", t.value.end_of_text()}, {"fingerprint", hex(t.value.fingerprint())}}, {}};
}

// By what it begins with; where that says nothing, by its name, and the parser says what is wrong.
Info file_info(const std::string& path, const InfoOptions& o) {
    Result<File> file = File::open(path);
    if (!file.ok()) return {{}, file.status};
    char head[9] = {};
    if (Status s = file.value.read(0, head, std::min<int64_t>(9, file.value.bytes())); !s.ok()) return {{}, s};
    if (o.raw_u16) return shard_info(path, o);
    if (head[8] == '{' || path.ends_with(".safetensors")) return safetensors_info(path, file.value.bytes());
    if (head[0] == '{' || path.ends_with(".json")) return tokenizer_info(path);
    return shard_info(path, o);
}

// ---- directories ---------------------------------------------------------------------------------------------------

Info checkpoint_info(const std::string& dir) {
    Info info{{kind("checkpoint")}, checkpoint_verify(dir)};
    if (!info.status.ok()) return info;
    Result<Config> config = checkpoint_config(dir);
    Result<Tokenizer> tokenizer = checkpoint_tokenizer(dir);
    bool ours = exists(dir + "/state.json");
    Result<TrainState> state = ours ? checkpoint_state(dir) : Result<TrainState>(TrainState{});
    for (const Status& s : {config.status, tokenizer.status, state.status})
        if (!s.ok()) return {info.rows, s};
    const Config& c = config.value;
    std::string shape = std::to_string(c.L) + " layers, " + std::to_string(c.NH) + " heads, " + std::to_string(c.C) +
                        " channels, ffn " + std::to_string(c.F);
    std::vector<Row> rows = {count_row("parameters", config_parameters(c)),
                             {"shape", {{"layers", c.L}, {"heads", c.NH}, {"channels", c.C}, {"ffn", c.F}}, shape},
                             {"context", c.T},
                             {"vocabulary", c.V}};
    if (tokenizer.value.vocab_size()) rows.push_back({"tokenizer", tokenizer.value.vocab_size()});
    if (ours) rows.insert(rows.end(), {count_row("step", state.value.step), count_row("tokens", state.value.tokens)});
    rows.push_back({"checksums", ours ? "verified" : "none"});
    info.rows.insert(info.rows.end(), rows.begin(), rows.end());
    return info;
}

// Every checkpoint of the run; more about the newest whole one.
Info run_info(const std::string& run) {
    std::vector<std::string> dirs = checkpoint_list(run);
    Info info, newest;
    std::string name;
    for (auto dir = dirs.rbegin(); dir != dirs.rend(); ++dir) {
        Info one = checkpoint_info(*dir);
        if (!one.status.ok()) add_error(&info.status, one.status);
        else if (name.empty()) name = *dir, newest = one;
    }
    if (name.empty()) return {{}, checkpoint_find(run, nullptr).status};
    info.rows = {kind("run"), {"checkpoints", dirs.size()}, {"newest", name}};
    info.rows.insert(info.rows.end(), newest.rows.begin() + 1, newest.rows.end());
    return info;
}

Info info_of(const std::string& path, const InfoOptions& o) {
    struct stat s;
    const bool there = stat(path.c_str(), &s) == 0;
    if (!there && errno == ENOENT) return {{}, checkpoint_find(path, nullptr).status};    // a Hub name gets its hint
    if (!there || !S_ISDIR(s.st_mode)) return file_info(path, o);
    return exists(path + "/config.json") || exists(path + "/MANIFEST") ? checkpoint_info(path) : run_info(path);
}

void print(const std::string& path, const Info& info, bool json) {
    if (json) {
        nlohmann::ordered_json j = {{"path", path}};
        for (const Row& row : info.rows) j[row.key] = row.value;
        if (!info.status.ok()) j["error"] = info.status.message;
        puts(j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
        return;
    }
    if (info.rows.empty()) return;    // the error says it all
    puts(escape_control(path).c_str());
    for (const Row& row : info.rows) {
        std::string key = row.key;
        std::replace(key.begin(), key.end(), '_', ' ');
        std::string value = row.value.is_string() ? row.value.get<std::string>() : row.value.dump();
        std::string text = row.text.empty() ? value : row.text;
        printf("  %-16s%s\n", key.c_str(), escape_control(text).c_str());
    }
    if (!info.status.ok()) puts("  damaged");
}
}   // namespace

Command info_command() {
    auto o = std::make_shared<InfoOptions>();
    return {"info", "What a shard, checkpoint, run, tokenizer or safetensors file is; every byte is checked.",
            "flatgpt info runs/a data/*.bin        flatgpt info --devices",
            {{"PATH", &o->paths, "files or directories"},
             {"--devices", &o->devices, "the GPUs that this binary can use, or why there is none, and the CPU"},
             {"--vocab", &o->vocab, "token ids in shards must be below this; 0: any", 0, 1 << 24},
             {"--raw-u16", &o->raw_u16, "the files are shards of uint16 without a header"},
             {"--json", &o->json, "one JSON object a line"}},
            [o]() -> Status {
                Status status;
                if (o->paths.empty() && !o->devices)
                    return fail(Exit::usage, "PATH is required: a file or a directory; or --devices");
                if (o->devices) fputs(describe_devices().c_str(), stdout);
                for (const std::string& path : o->paths) {
                    Info info = info_of(path, *o);
                    print(path, info, o->json);
                    add_error(&status, info.status);
                }
                return status;
            }};
}
