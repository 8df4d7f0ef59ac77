// tokenize.cpp - `flatgpt train-tokenizer` and `flatgpt tokenize`: text to merges, text to shards.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sys/stat.h>

#include "base/command.h"
#include "base/console.h"
#include "bpe.h"
#include "corpus.h"
#include "documents/duplicates.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/meter.h"
#include "base/pool.h"
#include "files/json.h"
#include "merge.h"
#include "shard_set.h"
#include "documents/special_flag.h"
#include "tokenizer_models/piece_model.h"
#include "tokenizer_models/training.h"

namespace {
namespace fs = std::filesystem;
using nlohmann::json, nlohmann::ordered_json;
// Bytes of text that all threads encode together, and that each thread has at least.
constexpr int64_t BATCH = 16 << 20, THREAD_BATCH = 2 << 20;
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

// Counts records that are skipped because they cannot be read.
struct BadLines {
    int64_t count = 0;
    std::string first;
    // status: result of reading one record. Without `skip`, its error is returned and ends the run.
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
    int vocab = 4096, words = 64;    // words: limit of TokenizerTraining::most_bytes, MiB
    std::string out, kind = "bpe", pattern = "gpt2";
    std::vector<std::string> special;
    bool cased = false, overwrite = false;
    Input input;
};

Status train_tokenizer(const TrainOptions& o) {
    TokenizerTraining training;
    for (const ModelRow& row : MODEL_ROWS)
        if (o.kind == row.name) training.kind = row.kind;
    training.cased = o.cased;
    training.vocab = o.vocab;
    training.special = o.special;
    training.most_bytes = int64_t(o.words) << 20;
    for (const PatternRow& row : pattern_rows())
        if (o.pattern == row.name) training.pattern = row.pattern;
    auto cut = [&](std::string_view text, size_t limit) { return training_cut(training, text, limit); };
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
        const bool prunes = phase == std::string("prune");
        progress.line(prunes
                          ? "pruning: " + std::to_string(done) + " pieces, until " + std::to_string(total) + " are left"
                          : "merging: " + std::to_string(done) + " of " + std::to_string(total));
    };
    Result<Tokenizer> trained = ::train_tokenizer(training);
    bad.print_notes(progress);
    if (const std::string note = corpus.encoding_note(); !note.empty()) progress.note(note);
    if (!trained.ok()) return trained.status;
    TRY(replace_file(o.out, trained.value.to_json(), o.overwrite ? Overwrite::yes : Overwrite::no));
    int got = trained.value.vocab_size();
    std::string why = got == o.vocab                        ? ""
                      : training.kind == ModelKind::unigram ? " (there are no more pieces that occur twice)"
                                                            : " (no pair of tokens occurs twice any more)";
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
                .help = "tokens; bpe: 256 bytes, merges, <|endoftext|>",
                .min = 16,
                .max = 1 << 20},
               {.name = "--kind",
                .to = &o->kind,
                .help = "bpe: merges of bytes (GPT-2); wordpiece: of characters, with ## within words (BERT); unigram: "
                        "scored pieces of words (T5), white space between words becomes one space",
                .choices = {"bpe", "wordpiece", "unigram"}},
               {.name = "--cased",
                .to = &o->cased,
                .help = "wordpiece: keep capitals and accents",
                .needs = {"--kind wordpiece"}},
               {.name = "--pattern",
                .to = &o->pattern,
                .help = "bpe: how text is cut into words before merging",
                .choices = {"gpt2", "cl100k", "qwen2", "o200k", "smollm"}},
               {.name = "--special-tokens",
                .to = &o->special,
                .help = "names of further special tokens, the vocabulary's last ones, an option for each: '<mask>' "
                        "(BART), or '<extra_id_0>' and on (T5)"},
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
    double save_every = 10;    // seconds
    bool overwrite = false;
    Input input;
    DedupOptions dedup;
};

// Beginning of the shards' paths: "OUT_", or "OUT/" if OUT is a directory.
std::string shard_prefix(const std::string& out) {
    std::error_code error;
    if (out.ends_with('/')) return out;
    return out + (fs::is_directory(out, error) ? "/" : "_");
}

// A part of the input, which is read, parsed, encoded and written, in this order.
struct Batch {
    std::vector<Segment> segments;
    std::vector<Sketch> sketches;         // by segment, for deduplication
    std::vector<char> kept;               // by segment: neither unreadable nor a duplicate
    std::vector<std::vector<int>> ids;    // by segment
    std::vector<Status> status;           // by segment: whether its record was read
    std::vector<int> special;             // by segment: first special token in its text; -1: none
};

// Encodes the input in four stages: read, parse, encode, write. Four batches are under way at a
// time, each one stage ahead of the batch behind it, and a round moves all of them on by a stage.
// In a round one thread reads a batch, another one writes a batch, and all other threads parse and
// encode segments of the two batches between; both join them when they are done. Between two rounds
// deduplication decides which documents of the parsed batch are kept. Reads, decisions and writes
// are in the input's order, so that the shards do not depend on the threads.
class Run {
  public:
    Run(const TokenizeOptions& options, const Tokenizer& t, Corpus& c, DuplicateFilter& d, ShardSetWriter& shards)
        : o(options), tokenizer(t), corpus(c), duplicates(d), set(shards) {}
    Status resume(const json& counters);
    Status all();
    void print_notes();
    ordered_json counters() const;
    Progress progress;
    int64_t text_bytes = 0;

  private:
    const TokenizeOptions& o;
    const Tokenizer& tokenizer;
    Corpus& corpus;
    DuplicateFilter& duplicates;
    ShardSetWriter& set;
    Meter meter{"tokenize"};
    BadLines bad;
    bool ended = false;
    double saved = now_seconds();    // time of the last journal
    int64_t segments = 0;            // written
    int64_t spelling = 0;            // documents that spell special tokens
    std::string spelled;             // the first of these tokens
    bool counted_one = false;        // the current document is in `spelling`
    bool tokens() const { return o.special == "token"; }

    Status read(Batch& batch);
    Status read(Batch& batch, const std::function<bool(int64_t bytes)>& goes_on);
    void parse(Batch& batch, size_t i) const;
    Status choose(Batch& batch);
    void encode(Batch& batch, size_t i) const;
    Status write(Batch& batch);
};

// Reads segments until their texts are enough for all threads. An empty batch: the input ended.
Status Run::read(Batch& batch) {
    const int64_t full = std::max<int64_t>(BATCH, int64_t(pool_threads()) * THREAD_BATCH);
    return read(batch, [&](int64_t bytes) { return bytes < full && !ended; });
}

// Reads segments while `goes_on`(bytes so far). What was read before an error is in the batch.
Status Run::read(Batch& batch, const std::function<bool(int64_t bytes)>& goes_on) {
    Status status;
    for (int64_t bytes = 0; goes_on(bytes);) {
        Segment segment;
        const Result<bool> more = corpus.next(segment);
        status = more.status;
        ended = !more.ok() || !more.value;
        if (ended) break;
        bytes += int64_t(segment.text.size()) + 64 + duplicates.sketch_bytes();
        batch.segments.push_back(std::move(segment));
    }
    const size_t n = batch.segments.size();
    batch.sketches.resize(n);
    batch.kept.resize(n);
    batch.ids.resize(n);
    batch.status.resize(n);
    batch.special.assign(n, -1);
    return status;
}

// Replaces a raw record by its text, and computes what deduplication compares.
void Run::parse(Batch& batch, size_t i) const {
    batch.status[i] = corpus.json_text(batch.segments[i]);
    if (batch.status[i].ok()) batch.sketches[i] = duplicates.sketch(batch.segments[i]);
}

// Decides which segments are kept. Neither a bad line nor a duplicate is encoded.
Status Run::choose(Batch& batch) {
    for (size_t i = 0; i < batch.segments.size(); i++)
        batch.kept[i] = batch.status[i].ok() && TRY(duplicates.keep(batch.segments[i], batch.sketches[i]));
    return {};
}

void Run::encode(Batch& batch, size_t i) const {
    const Segment& segment = batch.segments[i];
    if (!batch.kept[i]) return;
    batch.ids[i] = tokenizer.encode(segment.text, tokens(), !segment.begins_document);
    if (!tokens()) batch.special[i] = tokenizer.first_special(segment.text);
}

// Writes the batch's tokens to the shards, and a journal if it is time. An unreadable record ends
// the run, unless such records are skipped.
Status Run::write(Batch& batch) {
    for (size_t i = 0; i < batch.segments.size(); i++) {
        const Segment& segment = batch.segments[i];
        segments++;
        TRY(bad.add(batch.status[i], o.input.skip_bad_lines));
        if (segment.begins_document) counted_one = false;
        if (batch.special[i] >= 0 && !std::exchange(counted_one, true) && spelling++ == 0)
            spelled = tokenizer.token(batch.special[i]);
        text_bytes += batch.kept[i] ? int64_t(segment.text.size()) : 0;
        if (batch.ids[i].empty()) continue;    // documents without text are skipped
        ShardSeries& to = segment.validation ? set.val : set.train;
        if (segment.begins_document) TRY(to.begin_document());
        TRY(to.append(batch.ids[i]));
    }
    if (batch.segments.empty() || now_seconds() < saved + o.save_every) return {};
    TRY(set.save(counters()));
    saved = now_seconds();
    return {};
}

// Runs rounds until every batch is written. After a read error, the batches before are written
// first.
Status Run::all() {
    Batch next, parsed, now, last;
    for (Status read_status;;) {
        Status written;
        const int64_t parses = int64_t(parsed.segments.size()), encodes = int64_t(now.segments.size());
        const int64_t all = 2 + parses + encodes, writes = std::clamp<int64_t>(all / pool_threads(), 1, all - 1);
        // The pool's first worker begins with chunk 0, the second one with chunk `writes`.
        each_chunk(all, [&](int64_t chunk, int) {
            const int64_t i = chunk - 1 - (chunk > writes);
            if (chunk == writes) written = write(last);
            else if (chunk > 0) i < parses ? parse(parsed, size_t(i)) : encode(now, size_t(i - parses));
            else if (read_status.ok()) read_status = read(next);
        });
        TRY(written);
        if (next.segments.empty() && parsed.segments.empty() && now.segments.empty()) return read_status;
        TRY(choose(parsed));
        last = std::move(now);
        now = std::move(parsed);
        parsed = std::move(next);
        next = {};
        meter.show(corpus.bytes_read(), corpus.bytes(), text_bytes, progress);
    }
}

ordered_json Run::counters() const {
    return {{"segments", segments},           {"text_bytes", text_bytes}, {"bad_lines", bad.count},
            {"first_bad", bad.first},         {"spelling", spelling},     {"spelled", spelled},
            {"counted_one", int(counted_one)}};
}

// Reads past the segments that an interrupted run has written, without encoding them: the input
// gives equal segments again, and the shards have their tokens. Deduplication decides about them
// again, because the journal does not have its tables.
Status Run::resume(const json& saved_counters) {
    const JsonFields fields{saved_counters, set.journal_path()};
    int64_t skip = 0, one = 0;
    TRY(fields.get("segments", &skip, 0, INT64_MAX));
    TRY(fields.get("text_bytes", &text_bytes, 0, INT64_MAX));
    TRY(fields.get("bad_lines", &bad.count, 0, INT64_MAX));
    TRY(fields.get("first_bad", &bad.first));
    TRY(fields.get("spelling", &spelling, 0, INT64_MAX));
    TRY(fields.get("spelled", &spelled));
    TRY(fields.get("counted_one", &one, 0, 1));
    counted_one = one;
    if (set.complete()) return {};
    while (segments < skip) {
        Batch batch;
        const size_t most = size_t(std::min<int64_t>(skip - segments, 1 << 12));
        TRY(read(batch, [&](int64_t bytes) { return batch.segments.size() < most && bytes < BATCH; }));
        if (batch.segments.empty())
            return fail(Exit::input, "expected the %lld parts of text that an interrupted run has read, found %lld",
                        (long long)skip, (long long)segments);
        segments += int64_t(batch.segments.size());
        if (!duplicates.active()) continue;
        each_chunk(int64_t(batch.segments.size()), [&](int64_t i, int) { parse(batch, size_t(i)); });
        TRY(choose(batch));
    }
    progress.note("continues an interrupted run after " + human_bytes(double(text_bytes)) + " of text");
    return {};
}

void Run::print_notes() {
    bad.print_notes(progress);
    if (spelling)
        progress.note(counted(spelling, "document") + (spelling > 1 ? " spell" : " spells") +
                      " special tokens such as " + escape_control(spelled) +
                      ", read as ordinary text; --special token makes tokens of them");
    if (const std::string note = corpus.encoding_note(); !note.empty()) progress.note(note);
}

// Hash of all that determines the shards: input files, options, tokenizer. 0: the input is stdin,
// which cannot be read again.
uint64_t run_hash(const TokenizeOptions& o, const Tokenizer& tokenizer) {
    constexpr int VERSION = 1;    // grows with each change of segments, ids or the journal
    ordered_json all = {VERSION,
                        tokenizer.fingerprint(),
                        tokenizer.vocabulary().before,
                        tokenizer.vocabulary().after,
                        tokenizer.end_of_text(),
                        o.special,
                        o.val_fraction,
                        o.shard_tokens,
                        o.input.field,
                        o.input.format,
                        o.input.longest,
                        o.input.skip_bad_lines,
                        o.dedup.kind,
                        o.dedup.threshold,
                        o.dedup.ngram,
                        o.dedup.num_perm};
    for (const std::string& file : o.input.files) {
        struct stat s {};
        if (file == "-") return 0;
        (void)stat(file.c_str(), &s);    // opening the file reports what is wrong
        all.push_back({file, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec});
    }
    uint64_t hash = FNV_OFFSET_BASIS;
    for (const char c : all.dump(-1, ' ', true, json::error_handler_t::replace)) hash = mix(hash, uint64_t(c));
    return hash | 1;
}

// Message that says why nothing was held out, with a remedy.
std::string too_short(int64_t documents, int64_t bytes, double fraction) {
    char text[160];
    snprintf(text, sizeof text,
             "%s of text in %s are too little to hold out %g of it; give more text, or a larger "
             "--val-fraction",
             human_bytes(double(bytes)).c_str(), counted(documents, "document").c_str(), fraction);
    return text;
}

// Encodes what no interrupted run has encoded, and names the shards. counters: of the interrupted
// run; null: there is none.
Status write_shards(Run& run, DuplicateFilter& duplicates, ShardSetWriter& set, const json& counters) {
    Progress& progress = run.progress;
    if (!counters.is_null()) TRY(run.resume(counters));
    const bool was_complete = set.complete();    // the run before has written everything, the report too
    if (!was_complete) {
        TRY(run.all());
        TRY(set.train.end());
        TRY(set.val.end());
    }
    run.print_notes();
    if (!was_complete) duplicates.print_notes(progress);
    if (set.train.tokens() + set.val.tokens() == 0) return fail(Exit::input, "expected text, found none in the input");
    if (!was_complete) TRY(duplicates.finish());
    return set.publish(run.counters());
}

void print_summary(const TokenizeOptions& o, Run& run, const ShardSeries& train, const ShardSeries& val) {
    std::vector<std::string> written = train.paths();
    written.insert(written.end(), val.paths().begin(), val.paths().end());
    const int64_t tokens = train.tokens() + val.tokens();
    char text[256];
    snprintf(text, sizeof text, "%lld tokens (%lld train, %lld validation), %.2f bytes per token, in ",
             (long long)tokens, (long long)train.tokens(), (long long)val.tokens(),
             double(run.text_bytes) / double(tokens));
    run.progress.line(text + written[0] + (written.size() > 1 ? " ... " + written.back() : ""), true);
    if (o.val_fraction > 0 && val.tokens() == 0)
        run.progress.note("no validation shard: " + too_short(train.documents(), run.text_bytes, o.val_fraction));
}

Status tokenize(const TokenizeOptions& o) {
    const Tokenizer tokenizer = TRY(Tokenizer::load(o.tokenizer));
    if (tokenizer.end_of_text() < 0 && tokenizer.vocabulary().before.empty())
        return fail(Exit::input,
                    "%s: expected a token <|endoftext|>, EOS or BOS, which parts documents; train "
                    "one with flatgpt train-tokenizer, or add it to added_tokens",
                    o.tokenizer.c_str());
    const std::string prefix = shard_prefix(o.out);
    ShardSetWriter set(prefix, tokenizer, o.shard_tokens, run_hash(o, tokenizer));
    const json counters = TRY(set.resume(o.overwrite));
    const std::vector<std::string> old = ShardSetWriter::existing(prefix);
    if (!old.empty() && !o.overwrite && !set.complete())
        return fail(Exit::usage, "--out: %s exists; give another name, or --overwrite", old[0].c_str());
    o.input.note_stdin();
    auto cut = [&](std::string_view text, size_t limit) {
        return tokenizer.safe_cut(text, limit, o.special == "token");
    };
    CorpusConfig config = o.input.config(o.val_fraction, cut);
    config.whole_documents = o.dedup.kind != "none";
    Corpus corpus = TRY(Corpus::open(config));
    TRY(make_parent(prefix));
    DedupOptions dedup = o.dedup;
    if (set.complete()) dedup.report.clear();    // the run before has written the report
    DuplicateFilter duplicates = TRY(DuplicateFilter::create(dedup, o.input.files, o.val_fraction, o.overwrite));
    Run run(o, tokenizer, corpus, duplicates, set);
    // Removes files, so all that can be refused was checked before.
    const std::string note = counters.is_null() ? TRY(set.begin_anew()) : "";
    if (!note.empty()) run.progress.note(note);
    const Status status = write_shards(run, duplicates, set, counters);
    if (!status.ok()) return {status.code, status.message + set.kept_note()};
    print_summary(o, run, set.train, set.val);
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
        {.name = "--save-every",
         .to = &o->save_every,
         .help = "seconds between two points from which the same command continues after an interruption "
                 "(text of stdin is encoded anew)",
         .min = 0,
         .max = 1e6},
        {.name = "--overwrite", .to = &o->overwrite, .help = "replace the shards of that name"}};
    add_input_flags(c.flags, o->input);
    for (Flag& flag : dedup_flags(o->dedup)) c.flags.push_back(flag);
    c.run = [o] { return tokenize(*o); };
    c.removes_temporaries = true;
    return c;
}
