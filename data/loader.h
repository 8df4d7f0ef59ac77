// loader.h - token shards: what is in them, and batches in an order that is a pure function of (seed, epoch, index).
//
// A shard is llm.c's: 256 little-endian int32 of header, [0] magic, [1] version, [2] token count, then the tokens.
// magic 20240520 version 1: uint16. magic 20240801 version 7: uint32. Headerless uint16 (nanoGPT) on request.
// Words that llm.c leaves 0 say which tokenizer made the shard: [3] its vocabulary size, [4] and [5] its fingerprint
// (low, high), [6] how many documents begin here with end-of-text. [7] and [8] identify the set of shards
// that were written together (low, high), [9] is the shard's place in it, [10] how many shards it has.
// 0: unknown.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"

class Tokenizer;

// Shards that were written together, and the place of one among them.
struct ShardSet {
    uint64_t id = 0;    // a hash of all their tokens; 0: unknown
    int index = 0, shards = 0;
};
struct Shard {
    std::string path;
    int64_t tokens = 0;
    int64_t data_offset = 1024;    // bytes before the first token
    int token_bytes = 2;           // 2 or 4
    int64_t file_bytes = 0;        // and when the file was last written: shard_read notices a change
    int64_t modified = 0;
    int vocab = 0;    // the size and fingerprint of the tokenizer that made it; 0: unknown
    uint64_t tokenizer = 0;
    int64_t documents = 0;    // that begin in this shard, each with end-of-text
    ShardSet set;
};
// Header against file size; exit 3 naming file, field and offset, 4 where the disk fails.
Result<Shard> shard_open(const std::string& path, bool raw_u16);
// The same on bytes. head: the file's first bytes (1024 where it has them); file_bytes: its whole size.
Result<Shard> shard_parse(std::string_view head, int64_t file_bytes, const std::string& path, bool raw_u16);
// Exit 3 naming the first shard that is known to be made with another tokenizer or, where there is none (it is empty),
// with one that has more tokens than vocab. whose: where the tokenizer comes from, and what to do, for the message.
struct TokenizerSource {
    std::string name, advice;
};
Status check_shard_tokenizer(const std::vector<Shard>& shards, const Tokenizer& tokenizer, int vocab,
                             const TokenizerSource& whose);
// Exit 3, with the file's name, where a shard is there twice, or (parts: false) a set lacks one or has one that belongs
// to another set. Shards whose set is unknown fit anywhere.
Status check_shard_sets(const std::vector<Shard>& shards, bool allow_partial_set);
bool shard_begins(std::string_view head);    // with the magic of a shard
// Reads tokens [first, first+count) into out. Exit 3 with file and offset: the file is gone or was changed since
// shard_open, or a token is outside [0, vocab).
Status shard_read(const Shard& shard, int64_t first, int64_t count, int vocab, int* out);
// Files of a glob pattern (or a comma-separated list of them), sorted by name, each once; a pattern that
// matches none is exit 3; two names of one file are exit 2.
Result<std::vector<std::string>> shard_glob(const std::string& pattern);

// Writes one shard, as a NewFile (base/file.h): the header last, when the counts are known. Errors: exit 4.
class ShardWriter {
  public:
    // vocab > 65536 takes uint32. tokenizer: the fingerprint of the one with this vocabulary; 0: none is named.
    Status open(const std::string& path, int vocab, uint64_t tokenizer = 0);
    Status append(const int* tokens, int64_t count);
    void count_document();                      // the next token is the end-of-text that a document begins with
    Status close();                             // no more tokens
    Status finish(const ShardSet& set = {});    // all but its name
    Status publish();
    Status commit();    // finish and publish
    int64_t tokens() const;

  private:
    struct State;
    std::shared_ptr<State> s;    // copies share it
};

struct LoaderConfig {
    std::string pattern;    // glob
    bool raw_u16 = false;
    bool allow_partial_set = false;    // a part of a set of shards is enough
    int B = 0, S = 0;                  // what one call of next gives
    int vocab = 0;
    int rank = 0, ranks = 1;
    uint64_t seed = 1;
    bool shuffle = true;       // false: the order of the files (validation)
    int64_t max_tokens = 0;    // an epoch is as many samples as these take, spread evenly over all; 0: all samples
};

// Place i of epoch e's order of n samples: a bijection on [0, n), in O(1) time and memory.
int64_t shuffled(uint64_t seed, int64_t epoch, int64_t n, int64_t i);

// Sample i is a window of S+1 tokens of one shard, windows S apart, the shard's tail shorter than that left out. Epoch
// e visits every sample once, in the order shuffled(seed, e, n, .). One next() of all ranks consumes ranks*B
// consecutive places of that order, going on into the next epoch: rank r takes places index + r*B ... + B-1. So the
// samples of a step depend on (seed, epoch, index) and the global batch alone, not on the number of ranks.
class Loader {
  public:
    static Result<Loader> open(const LoaderConfig& config);
    // tokens, targets (B,S): targets are tokens one later. Read ahead by a thread; waits only when that is behind.
    // After an error (that of shard_read) every further call gives the same one, until seek.
    Status next(int* tokens, int* targets);
    struct Position {
        int64_t epoch = 0, index = 0;
        bool operator==(const Position&) const = default;
    };
    Position position() const;    // where the next batch begins, whatever has been read ahead
    void seek(Position p);        // index may be any number of samples: it is carried into epochs
    int64_t samples() const;      // in an epoch
    int64_t tokens() const;       // in all shards
    const std::vector<Shard>& shards() const;
    uint64_t fingerprint() const;    // hash of the shards' names, sizes, token counts and of S: resume checks it

  private:
    struct State;
    std::shared_ptr<State> s;    // copies share it
};
