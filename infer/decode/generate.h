// generate.h - text generation with a key/value cache.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"
#include "model/decoder.h"
#include "speculate.h"

using TextOut = std::function<bool(std::string_view)>;    // receives text; false: stop, the output is closed
// A sequence's text while its tokens arrive: whole UTF-8 characters, U+FFFD for an unfinished last
// one, cut before the first stop string. An end that may become a stop string is held back.
struct StreamedText {
    std::string text;
    bool stopped = false;    // a stop string was found
    // `push` and `finish` pass new final text to `out`, which may be empty. They return false if
    // `out` returned false.
    bool push(std::string_view bytes, const std::vector<std::string>& stop, const TextOut& out);
    bool finish(const std::vector<std::string>& stop, const TextOut& out);    // call after the last token

  private:
    bool append(const std::string& piece, const std::vector<std::string>& stop, const TextOut& out);
    bool give(size_t end, const TextOut& out);
    size_t given = 0;
    StreamDecoder decoder;
};

// Options for the cached keys and values.
struct CacheFlags {
    std::string type = "auto";    // fp32, bf16, fp8, int8; auto: see cache_type
    int positions = 0;            // positions per sequence; 0: the model's context
    int sinks = -1;               // first positions, never evicted, in whole pages; -1: 4
};
// Limits of a model's cache for sequences of `length` positions. Exit 2: the model's cache cannot
// have these options.
struct CacheLimits {
    int positions, sinks;
    bool evicts, lossless;    // lossless: no layer's window reaches evicted positions
};
Result<CacheLimits> cache_limits(const Config& c, const CacheFlags& options, int64_t length);
// Whether matrices take fewer bytes than in fp32 (a file's 16 bits, or blocks).
bool has_narrow_weights(const Model& model);
// The cache's type for a value of --cache-dtype; none: the activations' type. With "auto" keys and
// values of narrow weights are rounded to bf16, as their rounding adds little to the weights'.
Result<std::optional<Element>> cache_type(const Config& c, const std::string& name, Element activation,
                                          bool narrow_weights);
std::vector<Flag> cache_flags(CacheFlags& options);

struct Sample {
    int number;          // from 0; samples of a prompt are consecutive
    std::string text;    // without its prompt
    int64_t tokens = 0, drafted = 0, accepted = 0;
    std::vector<std::vector<TokenLogprob>> logprobs = {};    // logprobs(), for each token
    double score = 0;                                        // beam search's score
    const char* finish_reason = "stop";                      // or length, or no_token: the grammar allows no token
    std::vector<int> ids = {};                               // tokens; beam search leaves them out
};
struct GenerationResult {
    std::vector<std::string> texts = {};                                  // by sequence; empty if `each` is set
    int64_t tokens = 0, drafted = 0, accepted = 0;                        // sums over all sequences
    std::vector<std::vector<std::vector<TokenLogprob>>> logprobs = {};    // by text
    std::vector<double> scores = {};                                      // by text; beam search only
    std::vector<const char*> finish_reasons = {};                         // by text
    std::vector<std::vector<int>> ids = {};                               // by text: its tokens, with an end token
};
struct GenerationOptions {
    std::vector<std::vector<int>> prompts = {};    // each has at least one token
    std::vector<std::vector<int>> sources = {};    // encoder-decoders: what a prompt's sequences attend to
    int num = 1, tokens = 200;                     // sequences per prompt; new tokens of a sequence
    int batch = 16;                                // most sequences that run together
    // Number of the first sequence for random numbers, which then differ between prompts, too;
    // none: each prompt's samples count from 0.
    std::optional<int64_t> first_sequence = {};
    Sampling sampling;
    CacheFlags cache = {};
    Speculation speculation = {};
    std::vector<std::string> stop = {};    // stop strings, cut off the text
    bool end_of_text = true;               // stops at the tokenizer's end tokens too
    int logprobs = 0;                      // number of likeliest tokens to report per token
    // Receives each new piece of a sequence's final text. Returning false stops all sequences.
    std::function<bool(int sequence, std::string_view text)> text = {};
    // Receives each sample when it and all earlier ones have ended. Returning false stops all
    // sequences.
    std::function<bool(const Sample&)> each = {};
    std::function<void(int64_t ended, int64_t all)> progress = {};
    std::function<void(const std::string&)> note = {};    // receives notes for the user
};
std::vector<int> ends_of_text(const Tokenizer& tokenizer);
// Returns the tokens that start a text without a prompt: the end-of-text token, which separates
// documents in training data. documents: number of training documents that began with it, or -1 if
// unknown. A newline takes its place if that number is 0 to 15 or the tokenizer has no end-of-text.
std::vector<int> beginning_of_text(const Tokenizer& tokenizer, int64_t documents);

// Returns the error of a failed write to standard output: exit 4, with errno's reason.
Status output_failed();

// Runs at most `batch` sequences together; when one ends, the next is prefilled in its place.
// Prompts with a common prefix share its cache pages (CachedSequences). A sequence's text depends
// only on its prompt and on its number among the prompt's samples. When the context is full, the
// oldest positions except the sinks are evicted, page by page, and generation goes on without end.
// Models with learned positions, strided attention or bidirectional prompts cannot evict: for them
// the last half of the context is fed again. A note reports the eviction or the feeding. Exit 2:
// the cache is impossible, or drafts cannot be rolled back; 5: not enough memory.
Result<GenerationResult> generate(Model& model, const Tokenizer& tokenizer, const GenerationOptions& options);
