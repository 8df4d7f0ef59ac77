// generate.h - text generation with a key/value cache.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"
#include "model/decoder.h"
#include "speculate.h"

using TextOut = std::function<bool(std::string_view)>;    // receives text; false: the reader is gone
// A sequence's text while tokens arrive: whole UTF-8 characters, U+FFFD for an unfinished last one,
// cut before the first stop string. A suffix that may become a stop string is held back.
struct StreamedText {
    std::string text;
    bool stopped = false;    // at a stop string
    // Both pass new, certain text to `out`, which may be empty. False: `out` returned false.
    bool push(std::string_view bytes, const std::vector<std::string>& stop, const TextOut& out);
    bool finish(const std::vector<std::string>& stop, const TextOut& out);    // after the last token

  private:
    bool append(const std::string& piece, const std::vector<std::string>& stop, const TextOut& out);
    bool give(size_t end, const TextOut& out);
    size_t given = 0;
    StreamDecoder decoder;
};

// Options for the cached keys and values.
struct CacheFlags {
    std::string type = "auto";    // fp32, bf16, fp8, int8; auto: the activations' type
    int positions = 0;            // positions per sequence; 0: the model's context
    int sinks = -1;               // first positions never evicted, in whole pages; -1: 4
};
// A model's cache for sequences of `length` positions. exit 2: an impossible choice
struct CacheLimits {
    int positions, sinks;
    bool evicts, lossless;    // lossless: evicted positions lie before every layer's window
};
Result<CacheLimits> cache_limits(const Config& c, const CacheFlags& options, int64_t length);
Result<std::optional<Element>> cache_type(const Config& c, const std::string& name, Element activation);
std::vector<Flag> cache_flags(CacheFlags& options);

struct Sample {
    int number;          // from 0; a prompt's `num` samples are consecutive
    std::string text;    // without the prompt
    int64_t tokens = 0, drafted = 0, accepted = 0;
    std::vector<std::vector<TokenLogprob>> logprobs = {};    // per token, from logprobs()
    double score = 0;                                        // beam search's
    const char* finish_reason = "stop";                      // or length, or no_token: no token continues the grammar
};
struct GenerationResult {
    std::vector<std::string> texts = {};                                  // in order; empty if `each` is set
    int64_t tokens = 0, drafted = 0, accepted = 0;                        // sums over all sequences
    std::vector<std::vector<std::vector<TokenLogprob>>> logprobs = {};    // by text
    std::vector<double> scores = {};                                      // by text, of beam search
    std::vector<const char*> finish_reasons = {};                         // by text
};
struct GenerationOptions {
    std::vector<std::vector<int>> prompts = {};    // at least one token each
    int num = 1, tokens = 200;                     // sequences per prompt; new tokens per sequence
    int batch = 16;                                // sequences that run at a time
    Sampling sampling;
    CacheFlags cache = {};
    Speculation speculation = {};
    std::vector<std::string> stop = {};    // texts that end a sequence and are cut off
    bool end_of_text = true;               // also ends at the tokenizer's end tokens
    int logprobs = 0;                      // most probable tokens reported per generated token
    // Receives text as StreamedText's `out`. False stops all sequences.
    std::function<bool(int sequence, std::string_view text)> text = {};
    // Receives samples in order of number, each once all before it have ended. False stops all
    // sequences.
    std::function<bool(const Sample&)> each = {};
    std::function<void(int64_t ended, int64_t all)> progress = {};
    std::function<void(const std::string&)> note = {};    // receives notes for the user
};
std::vector<int> ends_of_text(const Tokenizer& tokenizer);
// The tokens that start a text without a prompt: end-of-text, as in documents. A newline if the
// tokenizer has no end-of-text, or fewer than 16 training documents began with it (-1: unknown).
std::vector<int> beginning_of_text(const Tokenizer& tokenizer, int64_t documents);

// Standard output refused text; the reason is errno's. exit 4
Status output_failed();

// Runs at most `batch` sequences together: when one ends, the next is prefilled in its place.
// Prompts with a common prefix share its cache pages (CachedSequences). A sequence's text depends
// only on its prompt and its number among the prompt's samples. When the context is full, the
// oldest positions except the sinks are evicted, page by page, and generation continues without
// end. Models with learned positions, strided attention or bidirectional prompts are instead fed
// the last half of the context again. A note reports either. exit 2: an impossible cache, drafts
// that cannot be rolled back; 5
Result<GenerationResult> generate(Model& model, const Tokenizer& tokenizer, const GenerationOptions& options);
