// open.h - a model as `flatgpt sample`, `chat`, `eval`, `inspect` and `prune` open it: checkpoint, tokenizer, device.
#pragma once
#include <functional>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "data/loader.h"
#include "infer/generate.h"
#include "infer/model_files.h"
#include "model/device.h"

constexpr const char* MODEL_HELP = "a run (see --checkpoint), a checkpoint, a Hugging Face directory or a GGUF file";

struct Opened {
    std::string path, device;
    Tokenizer tokenizer;
    bool own_tokenizer = false;    // the model's files hold it
    GenerationConfig generation;
    int64_t documents = -1;    // documents in the training data that begin with end-of-text; -1: unknown
    std::unique_ptr<Model> g;
};
struct Source {
    std::string model, checkpoint = "last", tokenizer;    // as the flags name them
    std::string quantize = "none";
    Stretch stretch = {};
};
struct Room {
    int B, S;
    bool spans = false;      // batches come with spans
    Use use = Use::infer;    // train: gradients, but no updates
    bool flat = false;       // parameters are floats in one piece; else inference on a CPU may pack them
};
inline int filling_rows(bool gpu) { return gpu ? 8192 : 512; }    // so many keep the device busy

std::vector<Flag> inference_flags(DeviceOptions& o, Source& source, const char* auto_dtype);    // and --quantize
// Positions of a sequence at most: --context's, or the model's.
int longest_context(const Source& source, const Config& c);
// Positions of a sequence where --seq-len asks for seq_len, 0: for none.
int sequence_length(const Source& source, const Config& c, int seq_len);
// Exit 2: seq_len is longer than the context. may_stretch: the command has --context
Status check_length(const Source& source, const Config& c, int seq_len, bool may_stretch = true);

// Opens a run's checkpoint or a model. room(its shape, on a GPU) says for how many sequences and positions.
// Reads only what a forward pass needs, and parses the tokenizer while the weights are read. as_trained: --dtype auto
// means the run's own type, if this device has it, and weights that are all fp32 are not packed: losses then have the
// bits of training's. Exit 3 also where --tokenizer has more tokens than the model.
Status open_model(Opened& m, const Source& source, DeviceOptions device, bool as_trained,
                  const std::function<Room(const Config& c, bool gpu)>& room);
// --draft's model beside m, for so many sequences of at most this length. Exit 3 also where its tokenizer is another.
Status open_draft(Opened& draft, const Opened& m, Source source, const DeviceOptions& device, const std::string& path,
                  int count, int64_t longest);
// ParamStore to measure the model with, in the files' order. `what` names them; the vocabulary is the model's. Exit 3
// also where another tokenizer has made them.
Result<Loader> open_shards(const Opened& m, const Source& source, LoaderConfig what);
Status has_tokenizer(const Opened& m);                  // exit 3: none, or one with more tokens than the model
std::vector<int> beginning_of_text(const Opened& m);    // empty where has_tokenizer fails
Status writes_text(const Opened& m);                    // exit 2: it guesses masked tokens
// Takes the defaults of the model's own generation_config.json, and says so once.
Status own_defaults(Opened& m, const std::vector<std::string>& given, Sampling* sampling, int* tokens);
