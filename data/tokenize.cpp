// tokenize.cpp - `flatgpt train-tokenizer` and `flatgpt tokenize`: text to merges, text to shards.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sys/resource.h>

#include "base/command.h"
#include "base/console.h"
#include "bpe.h"
#include "corpus.h"
#include "documents/duplicates.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/meter.h"
#include "base/pool.h"
#include "loader.h"
#include "merge.h"
#include "documents/special_flag.h"

namespace {
namespace fs = std::filesystem;
constexpr int64_t BATCH = 16 << 20;    // bytes of text that all threads encode together
// Input options of both commands, train-tokenizer and tokenize.
struct Input {
    std::vector<std::string> files;
    std::string field, format = "auto";
    int longest = 32;
    bool skip_bad_lines = false;

    CorpusConfig config(double val_fraction, decltype(CorpusConfig::safe_cut) cut) const {
        return {files, field, val_fraction, std::move(cut), false, text_format(format), longest};
    }
    void note_stdin() const {
        if (std::count(files.begin(), files.end(), "-")) note_typed_input();
    }
};
void add_input_flags(std::vector<Flag>& flags, Input& in) {
    flags.insert(flags.end(), {Flag{.name = "--field",
                                    .to = &in.field,
                                    .help = "the key of JSON, or the column of CSV and Parquet, that holds the "
                                            "text (empty: text); a.b: b within a; if given, no file is plain text",
                                    .excludes = {"--format text: a text has no fields"}},
                               Flag{.name = "--format",
                                    .to = &in.format,
                                    .help = "what the files are; auto: by content JSON lines, other JSON (an array, "
                                            "values one after the other) or Parquet, by name .jsonl, .csv, .tsv, else "
                                            "text",
                                    .choices = TEXT_FORMATS},
                               Flag{.name = "--skip-bad-lines",
                                    .to = &in.skip_bad_lines,
                                    .help = "leave out JSON lines and CSV records that cannot be read, "
                                            "and count them"},
                               Flag{.name = "--longest-line",
                                    .to = &in.longest,
                                    .help = "MiB: a longer line or record, or text without a place to cut "
                                            "it, is refused; encoding takes some 20 bytes of memory a byte",
                                    .min = 1,
                                    .max = 1024}});
}

Status make_parent(const std::string& path) {
    std::error_code error;
    fs::path parent = fs::path(path).parent_path();
    if (!parent.empty()) fs::create_directories(parent, error);
    if (!error) return {};
    return fail(Exit::io, "%s: cannot create the directory: %s", parent.c_str(), error.message().c_str());
}
// Checks that --out can be written, and creates its directory if necessary.
Status check_out(const std::string& path, bool overwrite) {
    std::error_code error;
    if (fs::exists(path, error) && !fs::is_directory(path, error) && !overwrite)
        return fail(Exit::usage, "--out: %s exists; give another name, or --overwrite", path.c_str());
    if (!path.ends_with('/')) TRY(make_parent(path));
    return check_writable(path, "--out");
}

// Counts JSON lines that are skipped because they cannot be read.
struct BadLines {
    int64_t count = 0;
    std::string first;
    // status: result of reading one line. Without `skip`, a bad line's error is returned and ends
    // the run.
    Status add(const Status& status, bool skip) {
        if (status.ok()) return {};
        if (!skip) return {status.code, status.message + " (--skip-bad-lines leaves such lines out)"};
        if (count++ == 0) first = status.message;
        return {};
    }
    void print_notes(Progress& progress) const {
        if (count) progress.note(counted(count, "line") + " left out (--skip-bad-lines); the first: " + first);
    }
};
}    // namespace

// ---- train-tokenizer ----------------------------------------------------------------------------

namespace {
struct TrainOptions {
    int vocab = 4096, words = 64;    // words: limit of BpeTraining::most_bytes, MiB
    std::string out, pattern = "gpt2";
    bool overwrite = false;
    Input input;
};

Status train_tokenizer(const TrainOptions& o) {
    BpeTraining training;
    training.vocab = o.vocab;
    training.most_bytes = int64_t(o.words) << 20;
    for (const PatternRow& row : pattern_rows())
        if (o.pattern == row.name) training.pattern = row.pattern;
    auto cut = [&](std::string_view text, size_t limit) { return safe_cut(training.pattern, text, limit); };
    o.input.note_stdin();
    Corpus corpus = TRY(Corpus::open(o.input.config(0, cut)));
    TRY(check_out(o.out, o.overwrite));
    BadLines bad;
    training.read = [&](std::string& text) -> Result<bool> {
        for (;;) {
            Segment segment;
            if (!TRY(corpus.next(segment))) return false;
            Status read = corpus.json_text(segment);
            TRY(bad.add(read, o.input.skip_bad_lines));
            if (!read.ok()) continue;
            text = std::move(segment.text);
            return true;
        }
    };
    Progress progress;
    Meter counting("counting words");
    double shown = 0;
    training.progress = [&](const char* phase, int64_t done, int64_t total) {
        if (phase == std::string("count")) return counting.show(corpus.bytes_read(), corpus.bytes(), done, progress);
        if (done < total && now_seconds() < shown + 0.1) return;
        shown = now_seconds();
        progress.line("merging: " + std::to_string(done) + " of " + std::to_string(total));
    };
    Result<Tokenizer> trained = bpe_train(training);
    bad.print_notes(progress);
    if (const std::string note = corpus.encoding_note(); !note.empty()) progress.note(note);
    if (!trained.ok()) return trained.status;
    TRY(replace_file(o.out, trained.value.to_json(), o.overwrite ? Overwrite::yes : Overwrite::no));
    int got = trained.value.vocab_size();
    std::string why = got < o.vocab ? " (no pair of tokens occurs twice any more)" : "";
    progress.line(o.out + ": " + std::to_string(got) + " tokens" + why + " from " +
                      human_bytes(double(corpus.bytes_read())) + " of text",
                  true);
    return {};
}
}    // namespace

Command train_tokenizer_command() {
    auto o = std::make_shared<TrainOptions>();
    Command c{"train-tokenizer", "Learn a vocabulary from text.",
              "flatgpt train-tokenizer --vocab 4096 --out tok.json text.txt"};
    c.flags = {{.name = "FILE",
                .to = &o->input.files,
                .help = "text, JSON, CSV or Parquet; all but Parquet also as .gz and .zst, or - for "
                        "stdin",
                .required = true},
               {.name = "--out", .to = &o->out, .help = "tokenizer.json to write", .required = true, .letter = 'o'},
               {.name = "--vocab",
                .to = &o->vocab,
                .help = "tokens: 256 bytes, merges, <|endoftext|>",
                .min = 258,
                .max = 1 << 20},
               {.name = "--pattern",
                .to = &o->pattern,
                .help = "how text is cut into words before merging",
                .choices = {"gpt2", "cl100k", "qwen2", "o200k", "smollm"}},
               {.name = "--distinct-words",
                .to = &o->words,
                .help = "MiB: text with more bytes of distinct words is "
                        "refused; they take some 30 bytes of memory a byte",
                .min = 1,
                .max = 2047},
               {.name = "--overwrite", .to = &o->overwrite, .help = "replace the file of that name"}};
    add_input_flags(c.flags, o->input);
    c.run = [o] { return train_tokenizer(*o); };
    c.removes_temporaries = true;
    return c;
}

// ---- tokenize -----------------------------------------------------------------------------------

namespace {
struct TokenizeOptions {
    std::string tokenizer = "gpt2", out, special = "text";
    double val_fraction = 0;
    int64_t shard_tokens = 100'000'000;
    bool overwrite = false;
    Input input;
    DedupOptions dedup;
};

// Writes shards OUT_train_000.bin and following, as many as the tokens need. <|endoftext|> precedes
// each document and ends the last one; with a tokenizer that has BOS, BOS precedes a document and
// EOS follows it. Until publish, all files have temporary names.
class Shards {
  public:
    Shards(std::string out, const Tokenizer& t, int64_t tokens_of_shard)
        : stem(std::move(out)), tokenizer(t), limit(tokens_of_shard) {}
    Status begin_document() {
        const std::vector<int>& bos = tokenizer.vocabulary().before;
        if (documents++ && !bos.empty()) TRY(end_document());
        return append(bos.empty() ? std::vector<int>{tokenizer.end_of_text()} : bos, true);
    }
    Status append(const std::vector<int>& ids, bool begins = false) {
        for (size_t at = 0; at < ids.size();) {
            if (!open) TRY(open_next());
            ShardWriter& writer = writers.back();
            if (begins) writer.count_document();
            int64_t n = std::min(int64_t(ids.size() - at), limit - writer.tokens());
            TRY(writer.append(ids.data() + at, n));
            for (int64_t i = 0; i < n; i++) hash = mix(hash, uint64_t(ids[at + size_t(i)]));
            at += size_t(n);
            tokens += n;
            if (writer.tokens() == limit) TRY(close());
        }
        return {};
    }
    Status end() {
        if (documents) TRY(end_document());
        return close();
    }
    // Completes all shards under their temporary names. `text`: hash of all tokens of this run.
    Status finish(uint64_t text) {
        const uint64_t id = mix(text, hash) | 1;
        for (size_t i = 0; i < writers.size(); i++) TRY(writers[i].finish({id, int(i), int(writers.size())}));
        return {};
    }
    Status publish() {
        for (ShardWriter& writer : writers) TRY(writer.publish());
        return {};
    }
    std::vector<std::string> files;
    int64_t tokens = 0, documents = 0;
    uint64_t hash = 0;    // hash of the tokens written

  private:
    std::string stem;
    const Tokenizer& tokenizer;
    int64_t limit;
    std::vector<ShardWriter> writers;
    bool open = false;

    Status open_next() {
        // Every shard stays open until all are renamed; the usual limit is 1024 open files.
        rlimit files_open;
        if (writers.size() == 500 && getrlimit(RLIMIT_NOFILE, &files_open) == 0) {
            files_open.rlim_cur = files_open.rlim_max;
            (void)setrlimit(RLIMIT_NOFILE, &files_open);
        }
        char number[16];
        snprintf(number, sizeof number, "_%03zu.bin", files.size());
        files.push_back(stem + number);
        open = true;
        return writers.emplace_back().open(files.back(), tokenizer.vocab_size(), tokenizer.fingerprint());
    }
    Status end_document() { return tokenizer.end_of_text() < 0 ? Status{} : append({tokenizer.end_of_text()}); }
    Status close() { return std::exchange(open, false) ? writers.back().close() : Status{}; }
};

// Removes old shards, then renames the new ones, validation shards first. After an interruption
// only new shards have final names, and training shards only together with validation shards.
Status publish(Shards& train, Shards& val, const std::vector<std::string>& old, int64_t shard_tokens) {
    const uint64_t text = mix(mix(train.hash, val.hash), uint64_t(shard_tokens));
    TRY(train.finish(text));
    TRY(val.finish(text + 1));
    keep_temporaries();
    for (const std::string& path : old)
        if (remove(path.c_str())) return fail(Exit::io, "%s: cannot be replaced: %s", path.c_str(), strerror(errno));
    TRY(val.publish());
    return train.publish();
}

// Beginning of the shards' paths: "OUT_", or "OUT/" if OUT is a directory.
std::string shard_prefix(const std::string& out) {
    std::error_code error;
    if (out.ends_with('/')) return out;
    return out + (fs::is_directory(out, error) ? "/" : "_");
}

// Returns the existing files PREFIX{train,val}_N.bin.
std::vector<std::string> existing_shards(const std::string& prefix) {
    std::vector<std::string> found;
    // Splits by hand, because fs::path would change dir//x_ to dir/x_, unlike the written names.
    const size_t cut = prefix.rfind('/') + 1;    // 0 if there is no slash
    const std::string dir = prefix.substr(0, cut), begin = prefix.substr(cut);
    std::error_code error;
    fs::directory_iterator it(dir.empty() ? "." : dir, error), end;
    for (; !error && it != end; it.increment(error)) {
        const std::string name = it->path().filename().string();
        for (const std::string& stem : {begin + "train_", begin + "val_"}) {
            bool named = name.starts_with(stem) && name.ends_with(".bin") && name.size() > stem.size() + 4;
            size_t digits = named ? name.find_first_not_of("0123456789", stem.size()) : 0;
            if (named && digits == name.size() - 4) found.push_back(dir + name);
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

// Reads segments until their texts have BATCH bytes; none: the input ended.
Status read_batch(Corpus& corpus, int64_t sketch_bytes, std::vector<Segment>& batch) {
    batch.clear();
    for (int64_t bytes = 0; bytes < BATCH;) {
        Segment segment;
        if (!TRY(corpus.next(segment))) break;
        bytes += int64_t(segment.text.size()) + 64 + sketch_bytes;
        batch.push_back(std::move(segment));
    }
    return {};
}

// Encodes texts with all threads. tokens: names of special tokens in a text become these tokens.
class Encoder {
  public:
    Encoder(const Tokenizer& t, bool special_tokens) : tokenizer(t), tokens(special_tokens) {}
    // Fills ids and status of each segment; status: an error if its record cannot be read.
    // Documents that `duplicates` leaves out get no ids.
    Status encode(const Corpus& corpus, DuplicateFilter& duplicates, std::vector<Segment>& batch) {
        const auto n = int64_t(batch.size());
        ids.assign(batch.size(), {});
        status.assign(batch.size(), {});
        std::vector<int> first_special(batch.size(), -1);
        std::vector<Sketch> sketches(batch.size());
        kept.assign(batch.size(), true);
        each_chunk(n, [&](int64_t chunk, int) {
            const size_t i = size_t(chunk);
            status[i] = corpus.json_text(batch[i]);
            if (status[i].ok()) sketches[i] = duplicates.sketch(batch[i]);
        });
        for (size_t i = 0; i < batch.size(); i++)
            kept[i] = status[i].ok() && TRY(duplicates.keep(batch[i], sketches[i]));
        each_chunk(n, [&](int64_t chunk, int) {
            const size_t i = size_t(chunk);
            if (!kept[i]) return;
            ids[i] = tokenizer.encode(batch[i].text, tokens, !batch[i].begins_document);
            if (!tokens) first_special[i] = tokenizer.first_special(batch[i].text);
        });
        for (size_t i = 0; i < batch.size(); i++) {
            if (batch[i].begins_document) counted_one = false;
            if (first_special[i] < 0 || std::exchange(counted_one, true)) continue;
            if (documents++ == 0) first = tokenizer.token(first_special[i]);
        }
        return {};
    }
    void print_notes(Progress& progress) const {
        if (documents)
            progress.note(counted(documents, "document") + (documents > 1 ? " spell" : " spells") +
                          " special tokens such as " + escape_control(first) +
                          ", read as ordinary text; --special token makes tokens of them");
    }
    std::vector<std::vector<int>> ids;
    std::vector<Status> status;
    std::vector<char> kept;    // not left out as duplicates

  private:
    const Tokenizer& tokenizer;
    bool tokens, counted_one = false;    // counted_one: the current document was counted
    int64_t documents = 0;               // documents with names of special tokens
    std::string first;
};

// Message that says why nothing was held out, with a remedy.
std::string too_short(int64_t documents, int64_t bytes, double fraction) {
    char text[160];
    snprintf(text, sizeof text,
             "%s of text in %s are too little to hold out %g of it; give more text, or a larger "
             "--val-fraction",
             human_bytes(double(bytes)).c_str(), counted(documents, "document").c_str(), fraction);
    return text;
}

Status tokenize(const TokenizeOptions& o) {
    const Tokenizer tokenizer = TRY(Tokenizer::load(o.tokenizer));
    if (tokenizer.end_of_text() < 0 && tokenizer.vocabulary().before.empty())
        return fail(Exit::input,
                    "%s: expected a token <|endoftext|>, EOS or BOS, which parts documents; train "
                    "one with flatgpt train-tokenizer, or add it to added_tokens",
                    o.tokenizer.c_str());
    const std::string prefix = shard_prefix(o.out);
    std::vector<std::string> old = existing_shards(prefix);
    if (!old.empty() && !o.overwrite)
        return fail(Exit::usage, "--out: %s exists; give another name, or --overwrite", old[0].c_str());
    o.input.note_stdin();
    const bool tokens = o.special == "token";
    Encoder encoder(tokenizer, tokens);
    auto cut = [&](std::string_view text, size_t limit) { return tokenizer.safe_cut(text, limit, tokens); };
    CorpusConfig config = o.input.config(o.val_fraction, cut);
    config.whole_documents = o.dedup.kind != "none";
    Corpus corpus = TRY(Corpus::open(config));
    TRY(make_parent(prefix));
    DuplicateFilter duplicates = TRY(DuplicateFilter::create(o.dedup, o.input.files, o.val_fraction, o.overwrite));

    Shards train(prefix + "train", tokenizer, o.shard_tokens), val(prefix + "val", tokenizer, o.shard_tokens);
    BadLines bad;
    Progress progress;
    Meter meter("tokenize");
    int64_t text_bytes = 0;
    for (std::vector<Segment> batch;;) {
        TRY(read_batch(corpus, duplicates.sketch_bytes(), batch));
        if (batch.empty()) break;
        TRY(encoder.encode(corpus, duplicates, batch));
        for (size_t i = 0; i < batch.size(); i++) {
            TRY(bad.add(encoder.status[i], o.input.skip_bad_lines));
            text_bytes += encoder.kept[i] ? int64_t(batch[i].text.size()) : 0;
            if (encoder.ids[i].empty()) continue;    // documents without text are skipped
            Shards& to = batch[i].validation ? val : train;
            if (batch[i].begins_document) TRY(to.begin_document());
            TRY(to.append(encoder.ids[i]));
        }
        meter.show(corpus.bytes_read(), corpus.bytes(), text_bytes, progress);
    }
    TRY(train.end());
    TRY(val.end());
    bad.print_notes(progress);
    duplicates.print_notes(progress);
    encoder.print_notes(progress);
    if (const std::string note = corpus.encoding_note(); !note.empty()) progress.note(note);
    if (train.tokens + val.tokens == 0) return fail(Exit::input, "expected text, found none in the input");
    TRY(duplicates.finish());
    TRY(publish(train, val, old, o.shard_tokens));
    std::vector<std::string> written = train.files;
    written.insert(written.end(), val.files.begin(), val.files.end());

    char text[256];
    snprintf(text, sizeof text, "%lld tokens (%lld train, %lld validation), %.2f bytes per token, in ",
             (long long)(train.tokens + val.tokens), (long long)train.tokens, (long long)val.tokens,
             double(text_bytes) / double(train.tokens + val.tokens));
    progress.line(text + written[0] + (written.size() > 1 ? " ... " + written.back() : ""), true);
    if (o.val_fraction > 0 && val.tokens == 0)
        progress.note("no validation shard: " + too_short(train.documents, text_bytes, o.val_fraction));
    return {};
}
}    // namespace

Command tokenize_command() {
    auto o = std::make_shared<TokenizeOptions>();
    Command c{"tokenize", "Turn text into token shards.",
              "flatgpt tokenize --tokenizer tok.json --out tokens/austen --val-fraction 0.1 text.txt"};
    c.flags = {
        {.name = "FILE",
         .to = &o->input.files,
         .help = "text: each file is a document; JSON lines, a JSON array, CSV, Parquet: each line, element, "
                 "record or row is; all but Parquet also as .gz and .zst; -: stdin",
         .required = true},
        {.name = "--out",
         .to = &o->out,
         .help = "writes OUT_train_000.bin ... and OUT_val_000.bin ...; into a "
                 "directory (OUT/): train_000.bin ...",
         .required = true,
         .letter = 'o'},
        {.name = "--tokenizer",
         .to = &o->tokenizer,
         .help = "gpt2, or a tokenizer.json, tokenizer.model, "
                 "GGUF file or a directory with one"},
        {.name = "--val-fraction",
         .to = &o->val_fraction,
         .help = "part held out for validation: whole "
                 "documents of records or of more than 100 files, otherwise the tail of each file (compressed text "
                 "is then unpacked twice)",
         .min = 0,
         .max = 0.5},
        {.name = "--shard-tokens", .to = &o->shard_tokens, .help = "most tokens per shard", .min = 1, .max = 1e9},
        special_flag(&o->special, "a text"),
        {.name = "--overwrite", .to = &o->overwrite, .help = "replace the shards of that name"}};
    add_input_flags(c.flags, o->input);
    for (Flag& flag : dedup_flags(o->dedup)) c.flags.push_back(flag);
    c.run = [o] { return tokenize(*o); };
    c.removes_temporaries = true;
    return c;
}
