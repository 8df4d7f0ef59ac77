// shard_set.cpp - see shard_set.h.
#include "shard_set.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/console.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "files/json.h"
#include "merge.h"

namespace fs = std::filesystem;
using nlohmann::json, nlohmann::ordered_json;

namespace {
constexpr int64_t LONGEST_JOURNAL = 64 << 20;
constexpr const char* KEYS[] = {"train", "val"};
// The lock's file has this name behind the prefix, with a temporary's mark.
constexpr const char* LOCK = "tokenize.lock.flatgpt-0000000000000000.tmp";

bool exists(const std::string& path) {
    std::error_code error;
    return fs::exists(path, error);
}
// Whether `name` is `begin` and a shard's number and ending, NNN.bin.
bool is_shard(const std::string& name, const std::string& begin) {
    if (!name.starts_with(begin) || !name.ends_with(".bin") || name.size() <= begin.size() + 4) return false;
    return name.find_first_not_of("0123456789", begin.size()) == name.size() - 4;
}
}    // namespace

// ---- one series ---------------------------------------------------------------------------------

Status ShardSeries::begin_document() {
    const std::vector<int>& bos = tokenizer.vocabulary().before;
    if (begun++ && !bos.empty()) TRY(end_document());
    return append(bos.empty() ? std::vector<int>{tokenizer.end_of_text()} : bos, true);
}
Status ShardSeries::append(const std::vector<int>& ids, bool begins) {
    for (size_t at = 0; at < ids.size();) {
        if (!open) TRY(open_next());
        ShardWriter& writer = writers.back();
        if (begins) writer.count_document();
        const int64_t n = std::min(int64_t(ids.size() - at), limit - writer.tokens());
        TRY(writer.append(ids.data() + at, n));
        for (int64_t i = 0; i < n; i++) hash = mix(hash, uint64_t(ids[at + size_t(i)]));
        at += size_t(n);
        written += n;
        if (writer.tokens() == limit) TRY(close());
    }
    return {};
}
Status ShardSeries::end() {
    if (begun) TRY(end_document());
    return close();
}
Status ShardSeries::end_document() {
    return tokenizer.end_of_text() < 0 ? Status{} : append({tokenizer.end_of_text()});
}
Status ShardSeries::close() { return std::exchange(open, false) ? writers.back().close() : Status{}; }

// Every shard stays open until all are renamed; the usual limit is 1024 open files.
void ShardSeries::allow_open_files() const {
    rlimit files_open;
    if (writers.size() != 500 || getrlimit(RLIMIT_NOFILE, &files_open) != 0) return;
    files_open.rlim_cur = files_open.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files_open);
}
Status ShardSeries::open_next() {
    allow_open_files();
    files.push_back(stem + formatted("_%03zu.bin", files.size()));
    open = true;
    return writers.emplace_back().open(files.back(), tokenizer.vocab_size(), tokenizer.fingerprint());
}
// Completes all shards under their temporary names. `text`: hash of all tokens of this run.
Status ShardSeries::finish(uint64_t text) {
    for (size_t i = 0; i < writers.size(); i++) TRY(writers[i].finish({set_id(text), int(i), int(writers.size())}));
    return {};
}

uint64_t ShardSeries::set_id(uint64_t text) const { return mix(text, hash) | 1; }

Result<ordered_json> ShardSeries::save() {
    ordered_json shards = ordered_json::array();
    for (ShardWriter& writer : writers) {
        TRY(writer.save());
        shards.push_back({{"tokens", writer.tokens()}, {"documents", writer.documents()}});
    }
    return ordered_json{{"tokens", written}, {"documents", begun}, {"hash", hash}, {"open", open}, {"shards", shards}};
}
// `complete`: a shard without a temporary has its name already.
Status ShardSeries::restore(const json& saved, bool complete, const std::string& journal) {
    const JsonFields fields{saved, journal};
    TRY(fields.get("tokens", &written, 0, INT64_MAX));
    TRY(fields.get("documents", &begun, 0, INT64_MAX));
    TRY(fields.get("hash", &hash));
    const bool listed = saved.contains("shards") && saved["shards"].is_array();
    if (!listed || !saved.contains("open") || !saved["open"].is_boolean())
        return fail(Exit::input, "%s: expected a list of shards, found none", journal.c_str());
    open = saved["open"].get<bool>();
    for (const json& one : saved["shards"]) {
        if (!one.is_object()) return fail(Exit::input, "%s: expected an object for each shard", journal.c_str());
        int64_t tokens = 0, documents = 0;
        TRY((JsonFields{one, journal}.get("tokens", &tokens, 0, limit)));
        TRY((JsonFields{one, journal}.get("documents", &documents, 0, INT32_MAX)));
        allow_open_files();
        files.push_back(stem + formatted("_%03zu.bin", files.size()));
        ShardWriter writer;
        Status reopened = writer.reopen(files.back(), tokenizer.vocab_size(), tokenizer.fingerprint(), tokens,
                                        documents, open && &one == &saved["shards"].back());
        if (!reopened.ok() && complete && exists(files.back())) continue;
        if (!reopened.ok())
            return fail(reopened.code,
                        "%s (%s has the rest of an interrupted run; remove that file to "
                        "begin anew)",
                        reopened.message.c_str(), journal.c_str());
        writers.push_back(writer);
    }
    return {};
}
// Whether this run has given the path to a shard: no writer has a temporary of that name any more.
bool ShardSeries::is_named(const std::string& path) const {
    const auto of_path = [&](const ShardWriter& writer) { return writer.path() == path; };
    return std::count(files.begin(), files.end(), path) > 0 && std::none_of(writers.begin(), writers.end(), of_path);
}
// Checks that the shards without a temporary are those that the interrupted run has named.
Status ShardSeries::check_named(const json& saved, uint64_t text) const {
    for (size_t i = 0; i < files.size(); i++) {
        if (!is_named(files[i])) continue;
        const Shard found = TRY(shard_open(files[i], false));
        const int64_t tokens = saved["shards"][i]["tokens"].get<int64_t>();
        if (found.set.id == set_id(text) && found.set.index == int(i) && found.tokens == tokens) continue;
        return fail(Exit::input,
                    "%s: expected shard %zu of the interrupted run, with %lld tokens, found another shard, "
                    "with %lld; move that file away, and remove the journal to begin anew",
                    files[i].c_str(), i, (long long)tokens, (long long)found.tokens);
    }
    return {};
}

// ---- the lock -----------------------------------------------------------------------------------

Result<bool> SetLock::take(const std::string& path) {
    for (int tries = 0; tries < 10; tries++) {
        const int f = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
        if (f < 0) return false;    // the shards, which cannot be created either, say why
        const bool ours = lock_call(f, LOCK_EX | LOCK_NB) == 0, elsewhere = !ours && errno == EWOULDBLOCK;
        // A process that ends removes the file, perhaps between open and lock.
        struct stat s {};
        if (ours && fstat(f, &s) == 0 && s.st_nlink > 0) {
            note_temporary(path);
            name = path;
            descriptor = f;
            return true;
        }
        close(f);
        if (elsewhere)
            return fail(Exit::usage, "%s: another process writes these shards; wait for its end, or give another --out",
                        path.substr(0, path.size() - std::string(LOCK).size()).c_str());
        if (ours) continue;
        unlink(path.c_str());
        return false;
    }
    return false;
}
SetLock::~SetLock() {
    if (descriptor < 0) return;
    unlink(name.c_str());    // while it is locked: the next process creates its own
    close(descriptor);
}

// ---- the set ------------------------------------------------------------------------------------

ShardSetWriter::ShardSetWriter(const std::string& prefix, const Tokenizer& t, int64_t tokens_of_shard, uint64_t run)
    : train(prefix + "train", t, tokens_of_shard), val(prefix + "val", t, tokens_of_shard), begin(prefix),
      journal(prefix + "tokenize.journal"), shard_tokens(tokens_of_shard), run_hash(run) {}
ShardSetWriter::~ShardSetWriter() {
    for (ShardSeries* series : {&train, &val})
        for (ShardWriter& writer : series->writers)
            if (keep) writer.keep();
}

// Without locks, a temporary in use cannot be told from a leftover. Then there is no journal.
Status ShardSetWriter::lock_set() {
    if (!std::exchange(locked, true) && !TRY(lock.take(begin + LOCK))) run_hash = 0;
    return {};
}

// Removes the journal and its temporaries; false: there is no journal.
bool ShardSetWriter::remove_journal() const {
    (void)remove_leftovers(journal, Paths::one, [](const std::string& left) {
        unlink(left.c_str());
        return Status{};
    });
    return unlink(journal.c_str()) == 0;
}

Result<std::string> ShardSetWriter::begin_anew() {
    TRY(lock_set());
    for (const char* key : KEYS) {
        const std::string stem = begin + key + "_";
        TRY(remove_leftovers(stem, Paths::with_prefix, [&](const std::string& left) {
            if (is_shard(left.substr(0, left.rfind(".flatgpt-")), stem)) unlink(left.c_str());
            return Status{};
        }));
    }
    if (!remove_journal()) return std::string();
    return journal + ": an interrupted run with other files or options is given up";
}

Result<json> ShardSetWriter::resume(bool overwrite) {
    if (!exists(journal)) return json();
    TRY(lock_set());
    if (!exists(journal)) return json();    // the process with the lock has ended
    const std::string text = TRY(read_file(journal, LONGEST_JOURNAL));
    const json saved = TRY(json_parse(text, journal, 8));
    uint64_t run = 0;
    bool whole = saved.is_object() && saved.contains("complete") && saved["complete"].is_boolean();
    for (const char* key : {"train", "val", "counters"}) whole = whole && saved.contains(key) && saved[key].is_object();
    if (!whole)
        return fail(Exit::input, "%s: expected the journal of an interrupted run; remove the file to begin anew",
                    journal.c_str());
    TRY((JsonFields{saved, journal}.get("run", &run)));
    if (run_hash == 0 || run != run_hash) {
        if (overwrite) return json();
        return fail(Exit::usage,
                    "%s has what an interrupted run with other files, other options or another tokenizer has "
                    "done; repeat its command to go on, or give --overwrite to begin anew",
                    journal.c_str());
    }
    publishing = saved["complete"].get<bool>();
    keep = true;    // also if one cannot be taken up: the others are hours of work
    keep_temporaries();
    TRY(train.restore(saved["train"], publishing, journal));
    TRY(val.restore(saved["val"], publishing, journal));
    if (publishing) {
        TRY(train.check_named(saved["train"], text_hash()));
        TRY(val.check_named(saved["val"], text_hash() + 1));
    }
    return saved["counters"];
}

std::string ShardSetWriter::kept_note() const {
    if (!keep) return "";
    return "; the part that is done is kept for the same command (to give it up, remove " + journal + " and " + begin +
           "*.flatgpt-*.tmp)";
}

// Hash of all tokens of this run, and of their places.
uint64_t ShardSetWriter::text_hash() const { return mix(mix(train.hash, val.hash), uint64_t(shard_tokens)); }

Status ShardSetWriter::save(const ordered_json& counters) {
    if (run_hash == 0) return {};
    const ordered_json all = {{"run", run_hash},
                              {"complete", publishing},
                              {"counters", counters},
                              {"train", TRY(train.save())},
                              {"val", TRY(val.save())}};
    keep_temporaries();    // first: a journal needs the temporaries that it lists
    TRY(replace_file(journal, all.dump(1) + "\n"));
    keep = true;
    return {};
}

Status ShardSetWriter::publish(const ordered_json& counters) {
    if (!publishing) {
        TRY(train.finish(text_hash()));
        TRY(val.finish(text_hash() + 1));
        publishing = true;
        TRY(save(counters));
    }
    keep_temporaries();
    for (const std::string& path : existing(begin)) {    // shards of an earlier run
        if (train.is_named(path) || val.is_named(path)) continue;
        if (remove(path.c_str())) return fail(Exit::io, "%s: cannot be replaced: %s", path.c_str(), strerror(errno));
    }
    for (ShardSeries* series : {&val, &train})
        for (ShardWriter& writer : series->writers) TRY(writer.publish());
    (void)remove_journal();
    keep = false;
    return {};
}

std::vector<std::string> ShardSetWriter::existing(const std::string& prefix) {
    std::vector<std::string> found;
    // Splits by hand, because fs::path would change dir//x_ to dir/x_, unlike the written names.
    const size_t cut = prefix.rfind('/') + 1;    // 0 if there is no slash
    const std::string dir = prefix.substr(0, cut), begin = prefix.substr(cut);
    std::error_code error;
    fs::directory_iterator it(dir.empty() ? "." : dir, error), end;
    for (; !error && it != end; it.increment(error)) {
        const std::string name = it->path().filename().string();
        if (is_shard(name, begin + "train_") || is_shard(name, begin + "val_")) found.push_back(dir + name);
    }
    std::sort(found.begin(), found.end());
    return found;
}
