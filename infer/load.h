// load.h - a model as `flatgpt sample`, `chat`, `eval`, `inspect` and `prune` open it: checkpoint, tokenizer, device.
#pragma once
#include <functional>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "data/loader.h"
#include "infer/decode/generate.h"
#include "infer/model_defaults.h"
#include "model/device.h"

constexpr const char* MODEL_HELP = "a run (see --checkpoint), a checkpoint, a Hugging Face directory or a GGUF file";

struct LoadedModel {
    std::string path, device;
    Tokenizer tokenizer;
    bool own_tokenizer = false;    // the model's files hold it
    GenerationConfig generation;
    int64_t documents = -1;    // documents in the training data that begin with end-of-text; -1: unknown
    std::unique_ptr<Model> model;
};
struct ModelOptions {
    std::string model, checkpoint = "last", tokenizer;    // as the flags name them
    std::string quantize = "none";
    ContextExtension context_extension = {};
};
struct Capacity {
    int B, S;
    bool spans = false;               // batches come with spans
    RunMode mode = RunMode::infer;    // train: gradients, but no updates
    bool flat = false;                // parameters are floats in one piece; else inference on a CPU may pack them
};
inline int saturating_rows(bool gpu) { return gpu ? 8192 : 512; }    // so many keep the device busy

std::vector<Flag> inference_flags(DeviceOptions& o, ModelOptions& model_options,
                                  const char* auto_dtype);    // and --quantize
// Positions of a sequence at most: --context's, or the model's.
int longest_context(const ModelOptions& model_options, const Config& c);
// Positions of a sequence where --seq-len asks for seq_len, 0: for none.
int sequence_length(const ModelOptions& model_options, const Config& c, int seq_len);
// Exit 2: seq_len is longer than the context. may_extend: the command has --context
Status check_length(const ModelOptions& model_options, const Config& c, int seq_len, bool may_extend = true);

// Opens a run's checkpoint or a model. capacity(its shape, on a GPU) says for how many sequences and positions.
// Reads only what a forward pass needs, and parses the tokenizer while the weights are read. as_trained: --dtype auto
// means the run's own type, if this device has it, and weights that are all fp32 are not packed: losses then have the
// bits of training's. Exit 3 also where --tokenizer has more tokens than the model.
Status load_model(LoadedModel& m, const ModelOptions& model_options, DeviceOptions device, bool as_trained,
                  const std::function<Capacity(const Config& c, bool gpu)>& capacity);
// --draft's model beside m, for so many sequences of at most this length. Exit 3 also where its tokenizer is another.
Status load_draft_model(LoadedModel& draft, const LoadedModel& m, ModelOptions model_options,
                        const DeviceOptions& device, const std::string& path, int count, int64_t longest);
// ParamStore to measure the model with, in the files' order. `what` names them; the vocabulary is the model's. Exit 3
// also where another tokenizer has made them.
Result<Loader> open_shards(const LoadedModel& m, const ModelOptions& model_options, LoaderConfig what);
Status check_tokenizer(const LoadedModel& m);                // exit 3: none, or one with more tokens than the model
std::vector<int> beginning_of_text(const LoadedModel& m);    // empty where check_tokenizer fails
Status check_generative(const LoadedModel& m);               // exit 2: it guesses masked tokens
// Takes the defaults of the model's own generation_config.json, and says so once.
Status load_generation_defaults(LoadedModel& m, const std::vector<std::string>& given, Sampling* sampling, int* tokens);
