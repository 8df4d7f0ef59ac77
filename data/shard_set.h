// shard_set.h - writes the shards of one run of `tokenize`, and continues those of a killed run.
//
// Until all shards are complete they have temporary names. PREFIXtokenize.journal says how far an
// interrupted run has come: the tokens that are safely in each temporary, and the command's own
// counters. The same command then goes on from there. The files are those of an uninterrupted
// run, because the temporaries are cut to the tokens that the journal counts.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bpe.h"
#include "loader.h"

// Shards STEM_000.bin and following, as many as the tokens need. <|endoftext|> precedes each
// document and ends the last one; with a tokenizer that has BOS, BOS precedes a document and EOS
// follows it.
class ShardSeries {
  public:
    ShardSeries(std::string path_stem, const Tokenizer& t, int64_t tokens_of_shard)
        : stem(std::move(path_stem)), tokenizer(t), limit(tokens_of_shard) {}
    Status begin_document();
    Status append(const std::vector<int>& ids, bool begins = false);
    Status end();
    const std::vector<std::string>& paths() const { return files; }
    int64_t tokens() const { return written; }
    int64_t documents() const { return begun; }

  private:
    friend class ShardSetWriter;
    std::string stem;
    const Tokenizer& tokenizer;
    int64_t limit, written = 0, begun = 0;
    uint64_t hash = 0;    // covers the tokens written
    std::vector<std::string> files;
    std::vector<ShardWriter> writers;
    bool open = false;    // the last shard takes more tokens

    Status open_next();
    void allow_open_files() const;
    Status end_document();
    Status close();
    Status finish(uint64_t text);
    Result<nlohmann::ordered_json> save();
    Status restore(const nlohmann::json& saved, bool complete, const std::string& journal);
    bool is_named(const std::string& path) const;
    uint64_t set_id(uint64_t text) const;
    Status check_named(const nlohmann::json& saved, uint64_t text) const;
};

// A lock on a file during this object's lifetime, so that no two processes write the same shards.
class SetLock {
  public:
    SetLock() = default;
    ~SetLock();
    SetLock(const SetLock&) = delete;
    // Creates and locks the file. False: the file system has no locks, or the file cannot be
    // created. Exit 2: another process has the lock.
    Result<bool> take(const std::string& path);

  private:
    std::string name;
    int descriptor = -1;
};

class ShardSetWriter {
  public:
    // prefix: of the shards' paths. run: hash of all that determines the shards; 0: no journal.
    ShardSetWriter(const std::string& prefix, const Tokenizer& t, int64_t shard_tokens, uint64_t run);
    ~ShardSetWriter();
    ShardSeries train, val;

    // Takes up an interrupted run of the same command, and returns its counters; null if no run was
    // interrupted. An interrupted run with other input or options is exit 2 without `overwrite`,
    // and null with it; its files stay until begin_anew. Exit 2 also: another process writes these
    // shards. Exit 3: the journal is damaged, or a shard that already has its final name is damaged
    // or not the run's. Exit 4: a temporary is missing or too short.
    Result<nlohmann::json> resume(bool overwrite);
    // Before a run from the beginning: removes all that interrupted runs have left of these shards.
    // The note says that a run is given up; empty: there was none. Exit 2: another process writes
    // these shards.
    Result<std::string> begin_anew();
    // Whether the interrupted run had completed all shards, which only lack their names.
    bool complete() const { return publishing; }
    // After an error: names what is kept, and says how to go on; empty: no file is kept.
    std::string kept_note() const;
    const std::string& journal_path() const { return journal; }
    // Makes all that was appended safe, together with the command's counters. Exit 4.
    Status save(const nlohmann::ordered_json& counters);
    // Completes the shards and names them, validation shards first, after removing the shards of an
    // earlier run. A training shard of this run thus never lacks its validation shards.
    Status publish(const nlohmann::ordered_json& counters);
    // Existing files PREFIX{train,val}_N.bin, sorted.
    static std::vector<std::string> existing(const std::string& prefix);

  private:
    std::string begin, journal;
    int64_t shard_tokens;
    uint64_t run_hash;
    bool keep = false, publishing = false;    // temporaries outlive this object; all are complete
    SetLock lock;
    bool locked = false;    // lock_set was called

    Status lock_set();
    bool remove_journal() const;
    uint64_t text_hash() const;
};
