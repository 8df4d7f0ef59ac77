// load.h - loads a model for sample, chat, eval, inspect and prune: weights, tokenizer, device.
#pragma once
#include <functional>
#include <memory>

#include "checkpoint/adapter_files.h"
#include "data/loader.h"
#include "infer/decode/generate.h"
#include "infer/model_defaults.h"
#include "infer/trace.h"
#include "model/device.h"

constexpr const char* MODEL_HELP = "a run (see --checkpoint), a checkpoint, a Hugging Face directory or a GGUF file";

struct LoadedModel {
    std::string path, device;
    Tokenizer tokenizer;
    bool own_tokenizer = false;    // the tokenizer is from the model's files
    GenerationConfig generation;
    int64_t documents = -1;          // training documents that begin with end-of-text; -1: unknown
    std::unique_ptr<Trace> trace;    // null: none
    std::unique_ptr<Model> model;
};
// The scores that a command computes with a model's head: of tokens, or of classes. none: a command
// uses the states before the head, and the head of an encoder's file is not loaded. shards: a head
// that learns from shards, of tokens or of replaced tokens.
enum class HeadUse { tokens, classes, none, shards };
struct ModelOptions {
    std::string model, checkpoint = "last", tokenizer;    // as the flags name them
    std::string quantize = "none", trace = {};
    ContextExtension context_extension = {};
    std::vector<std::string> adapters = {};    // directories, each with =WEIGHT or without
    HeadUse head = HeadUse::tokens;
    bool gives_source = false;    // for encoder-decoders: the command has a source
};
struct Capacity {
    int B, S;
    bool spans = false;               // passes use document spans
    RunMode mode = RunMode::infer;    // train: with gradients, but no updates
    bool flat = false;                // fp32 in one buffer; else a CPU may pack weights
    int source = 0, sources = 0;      // for encoder-decoders, as in Plan
};
inline int saturating_rows(bool gpu) { return gpu ? 8192 : 512; }    // tokens per pass that keep the device busy

std::vector<Flag> inference_flags(DeviceOptions& o, ModelOptions& model_options,
                                  const char* auto_dtype);    // options for device and model, with --quantize
Flag adapter_flag(ModelOptions& model_options);
// Longest sequence: --context if given, else the model's context.
int longest_context(const ModelOptions& model_options, const Config& c);
// Sequence length for --seq-len, where 0 means that the option was not given.
int sequence_length(const ModelOptions& model_options, const Config& c, int seq_len);
// Checks that `seq_len` is within the context; exit 2 if it is not. `may_extend`: the message names
// --context.
Status check_length(const ModelOptions& model_options, const Config& c, int seq_len, bool may_extend = true);

// Loads a run's checkpoint or a model, without optimizer state. capacity(config, gpu) returns the
// batch size and sequence length to allocate. The tokenizer is parsed while the weights are read.
// as_trained: losses get the same bits as in training, so --dtype auto means the run's own type if
// this device supports it, and all-fp32 weights are not packed. Exit 3 also if --tokenizer has more
// tokens than the model.
Status load_model(LoadedModel& m, const ModelOptions& model_options, DeviceOptions device, bool as_trained,
                  const std::function<Capacity(const Config& c, bool gpu)>& capacity);
// memory_cost of a model that load_model would load for inference on a device with these
// operations. dtype: --dtype's value.
Result<std::vector<MemoryRow>> model_memory(const ModelOptions& model_options, const Table& like, bool gpu,
                                            const std::string& dtype,
                                            const std::function<Capacity(const Config& c, bool gpu)>& capacity);
// Loads the model of --draft, which drafts for `m`: `count` sequences of at most `longest` tokens.
// Exit 3 also if its tokenizer differs from the tokenizer of `m`.
Status load_draft_model(LoadedModel& draft, const LoadedModel& m, ModelOptions model_options,
                        const DeviceOptions& device, const std::string& path, int count, int64_t longest);
// Opens shards on which the model is evaluated, unshuffled. `what` gives the shards; their
// vocabulary size is the model's. Exit 3 also if they were made with another tokenizer.
Result<Loader> open_shards(const LoadedModel& m, const ModelOptions& model_options, LoaderConfig what);
Status check_tokenizer(const LoadedModel& m);                // exit 3: no tokenizer, or one with too many tokens
std::vector<int> beginning_of_text(const LoadedModel& m);    // empty if check_tokenizer fails
Status check_generative(const LoadedModel& m);               // exit 2: masked language model
// Sets options not in `given` from the model's generation_config.json, and notes them on stderr.
Status load_generation_defaults(LoadedModel& m, const std::vector<std::string>& given, Sampling* sampling, int* tokens);
