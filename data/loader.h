// loader.h - token shards: what is in them, and batches in an order that is a pure function of (seed, epoch, index).
//
// A shard is llm.c's: 256 little-endian int32 of header, [0] magic, [1] version, [2] token count, then the tokens.
// magic 20240520 version 1: uint16. magic 20240801 version 7: uint32. Headerless uint16 (nanoGPT) on request.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "../common.h"

struct Shard {
    std::string path;
    int64_t tokens = 0;
    int64_t data_offset = 1024;    // bytes before the first token
    int token_bytes = 2;           // 2 or 4
};
// Header against file size; exit 3 naming file, field and offset, 4 where it cannot be read.
Result<Shard> shard_open(const std::string& path, bool raw_u16);
// Reads tokens [first, first+count) into out; a short read or a token outside [0, vocab) is exit 3 with file and offset.
Status shard_read(int fd, const Shard& shard, int64_t first, int64_t count, int vocab, int* out);
// Files of a glob pattern (or a comma-separated list of them) in name order; an empty answer is exit 3.
Result<std::vector<std::string>> shard_glob(const std::string& pattern);

// Writes one shard: the header last, when the count is known; fsync, then rename from path.tmp.
class ShardWriter {
  public:
    ShardWriter();
    ~ShardWriter();    // not committed: the temporary file goes
    Status open(const std::string& path, int vocab);    // vocab > 65536 takes uint32
    Status append(const int* tokens, int64_t count);
    Status commit();
    int64_t tokens() const;

  private:
    struct State;
    std::unique_ptr<State> s;
};

struct LoaderConfig {
    std::string pattern;     // glob
    bool raw_u16 = false;
    int B = 0, S = 0;        // what one call of next gives
    int vocab = 0;
    int rank = 0, ranks = 1;
    uint64_t seed = 1;
    bool shuffle = true;     // false: the order of the files (validation)
};

// Sample i is a window of S+1 tokens of one shard, windows S apart, the shard's tail shorter than that left out. Epoch
// e visits every sample once, in the order perm(seed, e, .), a keyed bijection computed in O(1). One next() of all
// ranks consumes ranks*B consecutive places of that order: rank r takes places index + r*B ... + B-1. So the samples
// of a step depend on (seed, epoch, index) and the global batch alone, not on the number of ranks.
class Loader {
  public:
    Loader();
    ~Loader();
    Loader(Loader&&) noexcept;
    Loader& operator=(Loader&&) noexcept;
    static Result<Loader> open(const LoaderConfig& config);
    // tokens, targets (B,S): targets are tokens one later. Read ahead by a thread; waits only when that is behind.
    Status next(int* tokens, int* targets);
    struct Position { int64_t epoch = 0, index = 0; };
    Position position() const;         // of the next next(), whatever has been read ahead
    void seek(Position p);
    int64_t samples() const;           // an epoch's
    int64_t tokens() const;            // of all shards
    const std::vector<Shard>& shards() const;
    uint64_t fingerprint() const;      // hash of the shards' names, sizes and token counts: resume checks it

  private:
    struct State;
    std::unique_ptr<State> s;
};
