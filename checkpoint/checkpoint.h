// checkpoint.h - checkpoints as Hugging Face model directories. A checkpoint that exists is
// complete. Functions with a ModelSource also read GGUF files (gguf.h).
//
// RUN/step_00000500/{model.safetensors, config.json, tokenizer.json, tokenizer_config.json,
//                    generation_config.json, optimizer.safetensors, state.json, MANIFEST}
// A checkpoint is written in RUN under a temporary name (base/file.h). Every file is fsynced,
// MANIFEST last: it lists the size and CRC-32C of each file, then the CRC of its own lines. Then
// the directory is fsynced and renamed, and RUN is fsynced. A crash at any moment leaves the old
// checkpoints, and all or nothing of the new one. With several ranks, each writes the tensors that
// config_owners assigns to it, into {model,optimizer}-00001-of-00008.safetensors, ... These files
// are listed in {model,optimizer}.safetensors.index.json (Hugging Face's sharded format), and any
// number of ranks can read them.
#pragma once
#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "data/bpe.h"
#include "files/crc.h"
#include "files/safetensors.h"
#include "generation_config.h"
#include "model/model.h"
#include "reader.h"
#include "checkpoint/noise_scale.h"
#include "checkpoint/outlier_detector.h"

class GgufFile;

// A model on disk: a directory, or a regular file, which must be GGUF, whatever its name. A GGUF
// file is opened and its header parsed once per ModelSource.
struct ModelSource {
    std::string path;
    std::shared_ptr<const GgufFile> gguf;    // null: a directory
    Status opened;                           // exit 3, 4: no readable GGUF; readers return it
    ModelSource() = default;
    ModelSource(const std::string& path);
    // A directory's weight files; the first call parses their headers. Exit 3, 4.
    Result<std::shared_ptr<const std::vector<SafetensorsFile>>> weights() const;

  private:
    mutable std::shared_ptr<const std::vector<SafetensorsFile>> files;
};

// Everything besides weights and moments that a resumed run needs to continue bit for bit.
struct TrainState {
    int64_t step = 0;                // steps done, including skipped ones
    int64_t tokens = 0;              // tokens trained on so far
    int64_t updates = 0;             // the optimizer's step count, without skipped updates
    int64_t skipped = 0;             // updates skipped for a non-finite or outlier gradient
    int64_t bad_in_a_row = 0;        // consecutive steps skipped for a non-finite loss or norm
    int64_t epoch = 0, index = 0;    // loader's position: epoch, next sequence
    uint64_t data = 0;               // fingerprint of the training data
    uint64_t seed = 0;
    int64_t metrics_bytes = 0;    // length of metrics.jsonl at this step
    int64_t samples_bytes = 0;    // optional: length of samples.jsonl at this step
    OutlierDetector loss, grad_norm;
    // Optional fields, except for `config`. A default value means that the run did not record the
    // field.
    int64_t best_step = -1;         // step with the lowest validation loss so far
    double best_loss = INFINITY;    // validation loss of best_step
    int64_t bad_validations = 0;    // number of validations since then
    int64_t averaged = 0;           // updates that the weights' average contains
    int64_t documents = -1;         // documents of the training data that begin with end-of-text
    int64_t decay_begin = -1;       // --decay-from: its checkpoint's step, and the rate of that step
    double decay_rate = 0;
    NoiseScale noise;           // --noise-scale
    uint64_t validation = 0;    // hash of the validation data and its settings
    std::string dtype;          // --dtype: "bf16"
    std::string backend;        // device and type of the products: "cpu bf16 (AMX)"
    std::string algorithms;     // device_choices(): algorithms of the matrix products
    std::string unwritten;      // rows not yet in metrics.jsonl; last one may await validation
    std::string config;         // resolved options (TOML), for users
    bool operator==(const TrainState&) const = default;
};

// File calls of a checkpoint, in a table so that tests can make each call fail. Each returns 0 or
// -errno; write returns the number of bytes written.
struct Disk {
    int (*open_write)(const char* path);    // a new file: fd or -errno
    int64_t (*write)(int fd, const void* data, int64_t bytes);
    int (*sync)(int fd);
    int (*close)(int fd);
    // Renames a directory. If `to` exists, exchanges both; with Overwrite::no, returns -EEXIST.
    int (*rename)(const char* from, const char* to, Overwrite overwrite);
    int (*mkdir)(const char* path);
    int (*remove)(const char* path);    // file or empty directory
    int (*sync_dir)(const char* path);
};
const Disk& real_disk();

// Writes a checkpoint of state.step. Exit 4: writing failed; the temporary directory is then
// removed, and older checkpoints stay untouched. coordinator: null for one rank; with several
// ranks, all call this, after ParamStore::collect. If one rank fails, all fail, the others with
// exit 7 naming that rank. CheckpointWriter (writer.h) does so beside training.
Status checkpoint_write(const std::string& run, const Model& g, const Tokenizer& tokenizer, const TrainState& state,
                        const Disk& disk = real_disk(), Coordinator* coordinator = nullptr,
                        const GenerationConfig& generation = {});
// Writes the model alone in Hugging Face's layout (model.safetensors and the files beside it) to a
// new directory; with Overwrite::yes also in place of a directory that holds such files and no
// others. readme: text of README.md; empty: none. Exit 2: `dir` exists, or holds other files; 3, 4:
// reading or writing failed.
Status checkpoint_export(const std::string& dir, const WeightsReader& weights, const Tokenizer& tokenizer,
                         const GenerationConfig& generation, const std::string& readme = "",
                         Overwrite overwrite = Overwrite::no, const Disk& disk = real_disk());
Status check_export(const std::string& dir, Overwrite overwrite);    // exit 2, 4: dir cannot be written
// Removes leftovers of interrupted writes, and every checkpoint older than the newest `keep` valid
// ones, except the best_step that the newest valid checkpoint records. keep 0: removes leftovers
// only. Reads all files of the checkpoints that it keeps, to know whether they are valid, except of
// those in `known`, to which it adds what it has read; null: none.
Status checkpoint_prune(const std::string& run, int keep, const Disk& disk = real_disk(),
                        std::set<std::string>* known = nullptr);
// Compares every file with MANIFEST. Exit 3: names the file and the difference. A directory without
// MANIFEST and state.json (from the Hub) is valid if config.json and the weights' headers parse.
Status checkpoint_verify(const ModelSource& m);
// Like checkpoint_verify, but reads no tensor data: checks only the sizes of the weights' files,
// and skips the optimizer's files. checkpoint_weights(verify) checks the data while it loads.
Status checkpoint_verify_headers(const ModelSource& m);
// Selects a checkpoint if path is a run, or checks path if it is a checkpoint. which: "last" is the
// newest checkpoint that `use` accepts; "best" is the best_step that the newest valid one records;
// a number is a step. Damaged checkpoints skipped by "last" are appended to `damaged` (may be
// null). Exit 2: no such step, no recorded validation, or path is a checkpoint and `which` is not
// "last". Exit 3: the selected checkpoint is missing or damaged. If `use` returns exit 3 or 4, a
// checkpoint counts as damaged; any other error of `use` ends the search.
Result<ModelSource> checkpoint_find(const std::string& path, std::vector<std::string>* damaged,
                                    const std::string& which = "last",
                                    const std::function<Status(const ModelSource& m)>& use = checkpoint_verify);
// Directories RUN/step_NNNNNNNN, oldest first, whether valid or not.
std::vector<std::string> checkpoint_list(const std::string& run, Status* unreadable = nullptr);
int64_t checkpoint_step(const std::string& dir);    // step in the name; -1: none

Result<Config> checkpoint_config(const ModelSource& m);    // exit 3: unsupported model, and why
// Loads model.safetensors, or the files that its index names; with several threads if the model is
// in host memory. verify: also compares the loaded bytes with MANIFEST, if there is one. Exit 3:
// they differ, and the model's weights are undefined.
Status checkpoint_weights(const ModelSource& m, Model& g, bool verify = false);
// Formats of the model's matrices in its files. m must outlive the returned function. Exit 3, 4.
Result<WeightFormats> checkpoint_stored(const ModelSource& m, const Config& c);
Status checkpoint_optimizer(const std::string& dir, Model& g);    // loads the optimizer's states
Result<TrainState> checkpoint_state(const std::string& dir);
Result<Tokenizer> checkpoint_tokenizer(const ModelSource& m);      // empty if the model has no tokenizer
std::string checkpoint_tokenizer_file(const std::string& path);    // the file in path with the tokenizer, else path
Result<GenerationConfig> checkpoint_generation(const std::string& path);    // empty if there is none: GGUF
// One of the model's flat buffers (weights, or an optimizer state) in the form of files: the prefix
// of its tensors' names, and the tensors' shapes.
struct SavedState {
    StateKind part;
    std::string prefix;    // "" for weights, "m." for the state m
    std::vector<Tensor> tensors;
    TensorType type = TensorType::f32;    // in files
};
SavedState weights_state(const Model& g);
std::vector<SavedState> optimizer_states(const Model& g);
// Tensors that this rank saves, in the files' layout.
std::vector<TensorSource> checkpoint_tensors(const Model& g, const std::vector<SavedState>& states);
std::vector<TensorSource> checkpoint_tensors(const WeightsReader& weights);
// Name of one rank's tensor file; `stem` is "model" or "optimizer". checkpoint_index: text of the
// index over all ranks' files.
std::string checkpoint_file(const std::string& stem, int rank, int ranks);
std::string checkpoint_index(const Model& g, const std::string& stem, const std::vector<SavedState>& states);

// Paths of the files of the weights (stem "model") or of the optimizer's states (stem "optimizer"):
// one file, or all files that the index lists.
Result<std::vector<std::string>> checkpoint_tensor_files(const std::string& dir, const std::string& stem);
// Parses the headers of all weights files. Exit 3.
Status checkpoint_weight_headers(const ModelSource& m, const Family& family);

// Parse the texts of config.json and state.json. Fuzzers call these parsers, too. name: the file's
// name in messages.
Result<Config> config_parse(std::string_view json, const std::string& name);
Result<TrainState> state_parse(std::string_view json, const std::string& name);
std::string config_json(const Config& c, const std::vector<int>& ends,
                        int bos = -1);    // ends: written as eos_token_id
// Fields of c that transformers' class for this family cannot express.
std::vector<const ConfigRow*> config_beyond_class(const Config& c);
std::string beyond_class_warning(const Config& c);    // "": none
std::string state_json(const TrainState& s);
