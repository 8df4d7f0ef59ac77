// loader.h - token shards, and batches in an order that is a pure function of (seed, epoch, index).
//
// Shards have llm.c's format: a header of 256 little-endian int32 ([0] magic, [1] version, [2]
// number of tokens), then the tokens.
// Magic 20240520, version 1: uint16 tokens. Magic 20240801, version 7: uint32 tokens. On request,
// nanoGPT's files are read: uint16 tokens without a header.
// Further words of the header, 0 in llm.c's files (0: unknown), identify the tokenizer and the set
// of shards written together: [3] vocabulary size, [4] and [5] the tokenizer's fingerprint (low,
// high), [6] number of documents that begin in this shard, [7] and [8] the set's id (low, high),
// [9] the shard's index in the set, [10] the number of shards in it.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"

class SampleSource;
struct PairTemplate;
class Tokenizer;
struct Text;

// A set of shards written together, and the shard's index in it.
struct ShardSet {
    uint64_t id = 0;    // hash of all its tokens; 0: unknown
    int index = 0, shards = 0;
};
struct Shard {
    std::string path;
    int64_t tokens = 0;
    int64_t data_offset = 1024;    // bytes before the first token
    int token_bytes = 2;           // 2 or 4
    int64_t file_bytes = 0;        // size, mtime when opened: shard_read compares
    int64_t modified = 0;
    int vocab = 0;    // tokenizer's size and fingerprint; 0: unknown
    uint64_t tokenizer = 0;
    int64_t documents = 0;    // documents that begin here
    ShardSet set;
};
// Reads and checks the header. Exit 3, with file, field and offset: the header is wrong; 4: reading
// fails.
Result<Shard> shard_open(const std::string& path, bool raw_u16);
// Parses a shard like shard_open, from bytes in memory. `head`: the file's first 1024 bytes, or all
// of a shorter file.
Result<Shard> shard_parse(std::string_view head, int64_t file_bytes, const std::string& path, bool raw_u16);
struct TokenizerSource {
    std::string name, advice;
};
// Checks that the shards which record their tokenizer were made with this one. If `tokenizer` is
// empty, checks instead that theirs have at most `vocab` tokens. Exit 3 names the first shard that
// fails. `whose`: name of the tokenizer, and advice, for the message.
Status check_shard_tokenizer(const std::vector<Shard>& shards, const Tokenizer& tokenizer, int vocab,
                             const TokenizerSource& whose);
// Checks that the shards belong together. Exit 3, with the file's name: a shard occurs twice, or
// (unless `allow_partial_set`) a set lacks a shard or has one of another set. Shards that record no
// set are accepted.
Status check_shard_sets(const std::vector<Shard>& shards, bool allow_partial_set);
bool shard_begins(std::string_view head);    // whether head begins with a shard's magic
// Reads tokens [first, first+count) into out. Exit 3: the file is missing or was changed since
// shard_open, or a token is outside [0, vocab); names file and offset.
Status shard_read(const Shard& shard, int64_t first, int64_t count, int vocab, int* out);
// Calls found(i), in order, for each token i of the shard that equals `token`. Errors are those of
// shard_read, but the vocabulary is not checked.
Status shard_find(const Shard& shard, int token, const std::function<void(int64_t index)>& found);
// Expands a glob pattern, or a comma-separated list of patterns, to file names, sorted. Exit 3: a
// pattern matches no file; 2: see check_distinct.
Result<std::vector<std::string>> shard_glob(const std::string& pattern);
// Checks that no file is given twice, under one name or, by a link or another spelling, under two.
// Exit 2: names both. `pattern`: the user's text, for the message.
Status check_distinct(std::vector<std::string> files, const std::string& pattern);

// Writes one shard as a NewFile (base/file.h). The header is written last, because it has counts.
// Exit 4: writing fails.
class ShardWriter {
  public:
    // Tokens are stored as uint32 if `vocab` > 65536. `tokenizer` is the tokenizer's fingerprint;
    // 0: not recorded.
    Status open(const std::string& path, int vocab, uint64_t tokenizer = 0);
    Status append(const int* tokens, int64_t count);
    void count_document();                      // call before appending the document's first token
    Status close();                             // writes buffered tokens
    Status finish(const ShardSet& set = {});    // completes the file under its temporary name
    Status publish();
    Status commit();    // finish, then publish
    int64_t tokens() const;
    int64_t documents() const;
    const std::string& path() const;

    // Takes up the temporary of a killed process, with so many tokens and documents; `more`: others
    // may be appended. Exit 2: another process writes it; 4: it is missing or too short.
    Status reopen(const std::string& path, int vocab, uint64_t tokenizer, int64_t tokens, int64_t documents, bool more);
    Status save();    // makes the tokens so far safe for `reopen`
    void keep();      // leaves the temporary to `reopen`

  private:
    struct State;
    std::shared_ptr<State> s;    // copies share it
};

struct LoaderConfig {
    std::string pattern = {};    // glob patterns of shards, separated by commas
    bool weighted = false;       // `pattern` may be a mixture's text (mixture.h)
    int begin = -1;              // token that begins the documents to pack (packing.h); -1: windows
    std::shared_ptr<const PairTemplate> pairs = {};    // pairs of texts (encoders/sentence_pairs.h); null: none
    bool raw_u16 = false;
    bool allow_partial_set = false;    // accepts an incomplete set of shards
    int B = 0, S = 0;                  // one rank's batch
    int vocab = 0;
    int rank = 0, ranks = 1;
    uint64_t seed = 1;
    bool shuffle = true;       // false: file order (validation)
    int64_t max_tokens = 0;    // samples of an epoch, in tokens, evenly spaced; 0: all
    int64_t group = 0;         // adjacent samples of similar lengths (seq2seq/length_groups.h); 0: no groups
};

// Element i of epoch e's permutation of n samples, a bijection on [0, n); O(1) time and memory.
int64_t shuffled(uint64_t seed, int64_t epoch, int64_t n, int64_t i);

// Samples come from a source (samples.h). A sample of shards is a window of S+1 tokens of one
// shard; windows begin S tokens apart, and a shorter rest of the shard is dropped. Epoch e visits
// every sample once, in the order shuffled(seed, e, n, .). A source of several parts has the order
// of a MixtureOrder (mixture.h), in which an epoch is as many samples as all parts have. Together,
// the ranks' next() calls consume ranks*B consecutive samples of that order, into the next epoch if
// necessary: rank r takes B samples from index + r*B on. So a step's samples depend on (seed,
// epoch, index) and the global batch size alone, not on the number of ranks.
class Loader {
  public:
    static Result<Loader> open(const LoaderConfig& config);    // over the shards that `config` names
    static Result<Loader> open(std::shared_ptr<const SampleSource> source, const LoaderConfig& config);
    // Returns the next batch: tokens and targets (B,S), where -1 is no target. `texts` gets the
    // texts in each sample. A thread reads batches in advance, and `next` waits only if the thread
    // is behind. After an error of the source, each call returns the error again until `seek`.
    Status next(int* tokens, int* targets, std::vector<std::vector<Text>>* texts = nullptr);
    struct Position {
        int64_t epoch = 0, index = 0;
        bool operator==(const Position&) const = default;
    };
    Position position() const;           // start of the next batch, without batches read ahead
    void seek(Position p);               // an index beyond the epoch counts into later ones
    int64_t samples() const;             // samples in an epoch
    int64_t tokens() const;              // tokens of the source
    int64_t targets(int64_t n) const;    // targets of the next n samples, over all ranks
    int64_t sample(int64_t i) const;     // the source's number of the i-th of these samples
    // Samples of each of the source's parts among the run's first n, and the parts' shares.
    std::vector<int64_t> drawn(int64_t n) const;
    std::vector<double> shares() const;
    const SampleSource& source() const;
    const std::vector<Shard>& shards() const;
    uint64_t fingerprint() const;    // the source's

  private:
    struct State;
    std::shared_ptr<State> s;    // copies share it
};
