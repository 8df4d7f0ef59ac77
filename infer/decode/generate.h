// generate.h - text out of a model: generation with a key/value cache.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"
#include "model/decoder.h"
#include "speculate.h"

using TextOut = std::function<bool(std::string_view)>;    // takes text; false: nobody reads it any more
// A sequence's text as its tokens come: whole UTF-8 characters, U+FFFD for one that the last token left unfinished, cut
// before the first stop string. What may yet become a stop string is held back.
struct StreamedText {
    std::string text;        // so far
    bool stopped = false;    // at a stop string
    // Each hands what is new and certain to `out`, which may be empty. False: out said so.
    bool push(std::string_view bytes, const std::vector<std::string>& stop, const TextOut& out);
    bool finish(const std::vector<std::string>& stop, const TextOut& out);    // no more tokens

  private:
    bool append(const std::string& piece, const std::vector<std::string>& stop, const TextOut& out);
    bool give(size_t end, const TextOut& out);
    size_t given = 0;
    StreamDecoder decoder;
};

// How keys and values are kept.
struct CacheFlags {
    std::string type = "auto";    // fp32, bf16, fp8, int8; auto: as activations are
    int positions = 0;            // most of a sequence at a time; 0: the model's context
    int sinks = -1;               // the first so many are never given up, in whole pages; -1: 4
};
// What a model's cache is, for sequences of so many positions. exit 2: an impossible choice
struct CacheLimits {
    int positions, sinks;
    bool evicts, lossless;    // exact: what is given up lies before every layer's window
};
Result<CacheLimits> cache_limits(const Config& c, const CacheFlags& options, int64_t length);
Result<std::optional<Element>> cache_type(const Config& c, const std::string& name, Element activation);
std::vector<Flag> cache_flags(CacheFlags& options);

struct Sample {
    int number;          // from 0: each prompt has `num` of them, one after the other
    std::string text;    // without the prompt
    int64_t tokens = 0, drafted = 0, accepted = 0;
    std::vector<std::vector<TokenLogprob>> logprobs = {};    // each token's, as logprobs() gives them
    double score = 0;                                        // by beam search
    const char* finish_reason = "stop";    // or length, no_token: a grammar's text that no token could continue
};
struct GenerationResult {
    std::vector<std::string> texts = {};              // in order; none where each one was handed out
    int64_t tokens = 0, drafted = 0, accepted = 0;    // all sequences' together
    std::vector<std::vector<std::vector<TokenLogprob>>> logprobs = {};    // as texts
    std::vector<double> scores = {};                                      // each text's, by beam search
    std::vector<const char*> finish_reasons = {};                         // as texts
};
struct GenerationOptions {
    std::vector<std::vector<int>> prompts = {};    // at least one token each
    int num = 1, tokens = 200;    // sequences of each prompt, one after the other; most new tokens of each
    int batch = 16;               // most sequences that run at a time
    Sampling sampling;
    CacheFlags cache = {};
    Speculation speculation = {};
    std::vector<std::string> stop = {};    // a sequence ends before the first of these
    bool end_of_text = true;               // ... and at <|endoftext|> and the tokenizer's other ends
    int logprobs = 0;                      // so many of the likeliest tokens are reported with each that is generated
    // As in StreamedText; false: stop everything.
    std::function<bool(int sequence, std::string_view text)> text = {};
    // In order of their numbers, each as soon as all before it have ended. False: stop everything.
    std::function<bool(const Sample&)> each = {};
    std::function<void(int64_t ended, int64_t all)> progress = {};
    std::function<void(const std::string&)> note = {};    // takes notes for the user
};
std::vector<int> ends_of_text(const Tokenizer& tokenizer);    // each ends one
// What a text without a prompt begins with: end-of-text, as documents do. A line's start where the tokenizer has no
// end-of-text, or where fewer than 16 documents of the training data began with it (-1: unknown).
std::vector<int> beginning_of_text(const Tokenizer& tokenizer, int64_t documents);

// Why standard output took no text, by errno. exit 4
Status output_failed();

// Sequences run together, at most `batch` of them: when one ends, the next one takes its place, is fed its prompt, and
// goes on with the others. Prompts that begin alike share what is computed of that (Slots). What a sequence says
// depends on its prompt and its number among the prompt's sequences alone. When the context is full, the oldest
// positions but the sinks are given up, page by page, and generation goes on for ever; a model whose positions are a
// table, whose attention has a stride or whose prompts see all of themselves is fed the last half of the context again.
// Either is said in a note. exit 2: an impossible cache, drafts that cannot be taken back; 5
Result<GenerationResult> generate(Model& model, const Tokenizer& tokenizer, const GenerationOptions& options);
