// checkpoint.h - checkpoints as Hugging Face model directories; an existing one is complete.
// Functions of a ModelSource also read a GGUF file (gguf.h).
//
// RUN/step_00000500/{model.safetensors, config.json, tokenizer.json, tokenizer_config.json,
//                    generation_config.json, optimizer.safetensors, state.json, MANIFEST}
// Written in RUN under a temporary name (base/file.h): every file fsynced, MANIFEST (size and
// CRC-32C of each file, then of itself) last, the directory fsynced, renamed, RUN fsynced. A crash
// at any moment leaves the old checkpoints and all or nothing of the new one. With several ranks
// each rank writes the tensors that config_owners assigns to it, to
// {model,optimizer}-00001-of-00008.safetensors, ..., listed in
// {model,optimizer}.safetensors.index.json (Hugging Face's sharded format); any number of ranks
// reads them.
#pragma once
#include <cmath>
#include <functional>
#include <memory>
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
#include "checkpoint/outlier_detector.h"

class GgufFile;

// A model on disk: a directory, or a regular file, which must be a GGUF, whatever its name. The
// file is opened and its header parsed once per ModelSource.
struct ModelSource {
    std::string path;
    std::shared_ptr<const GgufFile> gguf;    // null: a directory
    Status opened;                           // exit 3, 4: the file is no GGUF; readers return it
    ModelSource() = default;
    ModelSource(const std::string& path);
    // A directory's weight files, their headers parsed on the first call. Exit 3, 4.
    Result<std::shared_ptr<const std::vector<SafetensorsFile>>> weights() const;

  private:
    mutable std::shared_ptr<const std::vector<SafetensorsFile>> files;
};

// Everything besides weights and moments that a resumed run needs to continue bit for bit.
struct TrainState {
    int64_t step = 0;                // steps done, including skipped ones
    int64_t tokens = 0;              // trained on so far
    int64_t updates = 0;             // the optimizer's step count, without skipped updates
    int64_t skipped = 0;             // updates skipped for a non-finite or outlier gradient
    int64_t bad_in_a_row = 0;        // consecutive steps skipped for a non-finite loss or norm
    int64_t epoch = 0, index = 0;    // the loader's position
    uint64_t data = 0;               // the loader's fingerprint
    uint64_t seed = 0;
    int64_t metrics_bytes = 0;    // length of metrics.jsonl at this step
    OutlierDetector loss, grad_norm;
    // Optional fields; a default means that the run did not record the field.
    int64_t best_step = -1;         // the checkpoint with the lowest validation loss so far
    double best_loss = INFINITY;    // its validation loss
    int64_t bad_validations = 0;    // validations since then, none better
    int64_t documents = -1;         // documents of the training data that begin with end-of-text
    uint64_t validation = 0;        // hash of the validation data and its settings
    std::string dtype, backend;     // type of the products: "bf16", "cpu bf16 (AMX)"
    std::string algorithms;         // device_choices(): algorithms of the matrix products
    std::string unwritten;          // rows not yet written to metrics.jsonl; an open last one awaits its validation
    std::string config;             // the resolved command line (TOML), for users
    bool operator==(const TrainState&) const = default;
};

// File calls of a checkpoint as a table, so that tests can make each of them fail. Each returns 0
// or -errno; write returns the bytes written.
struct Disk {
    int (*open_write)(const char* path);    // a new file: fd or -errno
    int64_t (*write)(int fd, const void* data, int64_t bytes);
    int (*sync)(int fd);
    int (*close)(int fd);
    // Renames a directory. If `to` exists: exchanges both; with Overwrite::no -EEXIST.
    int (*rename)(const char* from, const char* to, Overwrite overwrite);
    int (*mkdir)(const char* path);
    int (*remove)(const char* path);    // file or empty directory
    int (*sync_dir)(const char* path);
};
const Disk& real_disk();

// Exit 4 with the reason; the temporary directory is removed and older checkpoints stay untouched.
// coordinator: with several ranks, which all call this (after Model::collect); if one rank fails,
// all fail, the others with exit 7 naming it.
Status checkpoint_write(const std::string& run, const Model& g, const Tokenizer& tokenizer, const TrainState& state,
                        const Disk& disk = real_disk(), Coordinator* coordinator = nullptr,
                        const GenerationConfig& generation = {});
// Writes the model alone in Hugging Face's layout, model.safetensors and the files beside it, to a
// new directory, or in place of one that holds such files and no others. Exit 2: the directory
// exists; 3; 4. readme: text of README.md; empty: none.
Status checkpoint_export(const std::string& dir, const WeightsReader& weights, const Tokenizer& tokenizer,
                         const GenerationConfig& generation, const std::string& readme = "",
                         Overwrite overwrite = Overwrite::no, const Disk& disk = real_disk());
Status check_export(const std::string& dir, Overwrite overwrite);    // exit 2, 4: not writable
// Removes leftovers of interrupted writes, and all checkpoints older than the newest `keep` valid
// ones (0: none), except the best_step of the newest. Reads the checkpoints that it keeps.
Status checkpoint_prune(const std::string& run, int keep, const Disk& disk = real_disk());
// Compares every file with MANIFEST; exit 3 naming the file and the difference. A directory without
// MANIFEST and state.json (from the Hub) passes if config.json and the weights' headers parse.
Status checkpoint_verify(const ModelSource& m);
// checkpoint_verify without the data of safetensors files: only sizes of the weights, and no
// optimizer files. checkpoint_weights(verify) checks the data while it loads.
Status checkpoint_verify_headers(const ModelSource& m);
// `path` is a checkpoint or a run. For a run `which` selects "last", the newest valid checkpoint;
// "best", the best_step of the last one; or a step. Damaged ones skipped for "last" are appended to
// `damaged` (may be null). Exit 2: no such step, no recorded validation, or path is a checkpoint
// and which is not "last". Exit 3: the selected checkpoint is missing or damaged. Exit 3 or 4 of
// `use` counts as damage; other errors end the search.
Result<ModelSource> checkpoint_find(const std::string& path, std::vector<std::string>* damaged,
                                    const std::string& which = "last",
                                    const std::function<Status(const ModelSource& m)>& use = checkpoint_verify);
// Directories RUN/step_NNNNNNNN, oldest first, valid or not.
std::vector<std::string> checkpoint_list(const std::string& run);
int64_t checkpoint_step(const std::string& dir);    // parsed from the name; -1: no step name

Result<Config> checkpoint_config(const ModelSource& m);    // exit 3: why the model is not supported
// Loads model.safetensors, or the files its index names; in parallel if the model is in host
// memory. verify: exit 3 if the loaded bytes differ from MANIFEST, if any; the model is then
// undefined.
Status checkpoint_weights(const ModelSource& m, Model& g, bool verify = false);
// The formats of the model's matrices in the files. m must outlive the function. Exit 3, 4.
Result<WeightFormats> checkpoint_stored(const ModelSource& m, const Config& c);
Status checkpoint_optimizer(const std::string& dir, Model& g);    // loads the optimizer's states
Result<TrainState> checkpoint_state(const std::string& dir);
Result<Tokenizer> checkpoint_tokenizer(const ModelSource& m);    // empty if there is none
std::string checkpoint_tokenizer_file(
    const std::string& path);    // the file in path that holds the tokenizer; path itself if none
Result<GenerationConfig> checkpoint_generation(const std::string& path);    // empty if there is none: GGUF
// One of the model's flat buffers in files: the prefix of its tensors' names, and their shapes.
struct SavedState {
    StateKind part;
    std::string prefix;    // "" for weights, "m." for the state m
    std::vector<Tensor> tensors;
};
SavedState weights_state(const Model& g);
std::vector<SavedState> optimizer_states(const Model& g);
// The tensors that this rank saves, in the files' layout.
std::vector<TensorSource> checkpoint_tensors(const Model& g, const std::vector<SavedState>& states);
std::vector<TensorSource> checkpoint_tensors(const WeightsReader& weights);
// Name of a rank's tensor file (stem "model" or "optimizer"), and the index of several ranks'
// files.
std::string checkpoint_file(const std::string& stem, int rank, int ranks);
std::string checkpoint_index(const Model& g, const std::string& stem, const std::vector<SavedState>& states);

// The files with weights (stem model) or the optimizer's states (optimizer): one, or all files of
// the index.
Result<std::vector<std::string>> checkpoint_tensor_files(const std::string& dir, const std::string& stem);
// Parses the header of every weights file; exit 3.
Status checkpoint_weight_headers(const ModelSource& m, const Family& family);

// Parsers on bytes, for the fuzzers. name: for messages.
Result<Config> config_parse(std::string_view json, const std::string& name);
Result<TrainState> state_parse(std::string_view json, const std::string& name);
std::string config_json(const Config& c, const std::vector<int>& ends, int bos = -1);    // ends: eos_token_id
// The fields of c that its family's class in transformers cannot express.
std::vector<const ConfigRow*> config_beyond_class(const Config& c);
std::string beyond_class_warning(const Config& c);    // "": none
std::string state_json(const TrainState& s);
