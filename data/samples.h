// samples.h - sources of training samples: windows of shards here, packed documents in packing.h,
// mixtures of sources in mixture.h, conversations in train/conversations.h. The loader orders
// samples; a source only reads them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/loader.h"
#include "model/spans.h"

// A part of a source that is drawn by its weight (mixture.h).
struct SamplePart {
    std::string name = {};    // its patterns
    double weight = 1;
    int64_t samples = 0, tokens = 0;
};
class SampleSource {
  public:
    virtual ~SampleSource() = default;
    virtual int64_t samples() const = 0;
    virtual int64_t tokens() const = 0;                    // tokens in all
    virtual int64_t targets(int64_t sample) const = 0;     // positions of a sample that have a target
    virtual int64_t length(int64_t) const { return 0; }    // LoaderConfig::group sorts by it
    virtual uint64_t fingerprint() const = 0;              // changes whenever a sample's tokens or targets may
    virtual std::string text() const = 0;                  // "2.1M tokens in 3 shards, 120 windows of 128"
    // Reads a sample: `tokens` and `targets` (S), where -1 is no target, and the texts in it, which
    // do not attend to each other. May be called by several threads.
    virtual Status read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const = 0;
    virtual std::vector<SamplePart> parts() const { return {{.samples = samples(), .tokens = tokens()}}; }
    virtual double cropped() const { return 0; }       // share of the tokens that packing cuts off
    virtual std::string note() const { return ""; }    // text on tokens that are in no sample
    virtual const std::vector<Shard>& shards() const {
        static const std::vector<Shard> none;
        return none;
    }
};

// The windows, or packed documents, of the shards that `config` names; of several sources with
// weights, their mixture. Exit 2: see mixture_parse, shard_glob; 3: see shard_open,
// check_shard_sets; a source has no sample.
Result<std::shared_ptr<const SampleSource>> shard_samples(const LoaderConfig& config);
// Tokens of at most 2^20 / S samples, evenly spaced.
Result<std::vector<int>> tokens_of(const SampleSource& source, int S);
uint64_t shards_fingerprint(const std::vector<Shard>& shards, int S);

// Cuts all sequences (B,S) to one length, behind the last target that any of them has: a causal
// model needs nothing from there on. Moves them together. Returns the length, a multiple of 16 or
// S. Not for a GPU: algorithms are chosen for each length, by timing, so a resumed run could choose
// others.
int cut_behind_targets(int* tokens, int* targets, int B, int S);
