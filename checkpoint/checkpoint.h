// checkpoint.h - checkpoints as Hugging Face model directories; one that exists is whole. Where a ModelSource is read,
// it may also be a GGUF file (gguf.h).
//
// RUN/step_00000500/{model.safetensors, config.json, tokenizer.json, tokenizer_config.json,
//                    generation_config.json, optimizer.safetensors, state.json, MANIFEST}
// Written under a temporary name (base/file.h) in RUN, every file fsynced, MANIFEST (size and CRC-32C of each file,
// then of itself) last, the directory fsynced, renamed, RUN fsynced: a crash at any moment leaves the old checkpoints
// and either all or nothing of the new one. Several ranks each write the tensors that config_owners gives them, to
// {model,optimizer}-00001-of-00008.safetensors, ..., which {model,optimizer}.safetensors.index.json lists (Hugging
// Face's way to divide a model); any number of ranks reads them back.
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

// A model as it lies there: a directory, or a regular file, which can only be a GGUF, whatever its name. The file is
// opened and its header parsed once for all that is asked of this ModelSource.
struct ModelSource {
    std::string path;
    std::shared_ptr<const GgufFile> gguf;    // null: a directory
    Status opened;                           // exit 3, 4: the file is no GGUF; all that reads it returns this
    ModelSource() = default;
    ModelSource(const std::string& path);
    // A directory's files of weights, their headers parsed: when it is first asked for. Exit 3, 4.
    Result<std::shared_ptr<const std::vector<SafetensorsFile>>> weights() const;

  private:
    mutable std::shared_ptr<const std::vector<SafetensorsFile>> files;
};

// What a resumed run needs beyond weights and moments to go on bit for bit.
struct TrainState {
    int64_t step = 0;                // updates done (skipped ones count)
    int64_t tokens = 0;              // seen so far
    int64_t updates = 0;             // AdamW's own step count: skipped ones do not count
    int64_t skipped = 0;             // updates left out because of a gradient that was not finite or an outlier
    int64_t bad_in_a_row = 0;        // the last steps skipped for a loss or norm that is not finite
    int64_t epoch = 0, index = 0;    // the loader's position
    uint64_t data = 0;               // the loader's fingerprint
    uint64_t seed = 0;
    int64_t metrics_bytes = 0;    // length of metrics.jsonl at this step
    OutlierDetector loss, grad_norm;
    // Optional fields: a default means that the run did not record it.
    int64_t best_step = -1;         // the checkpoint with the lowest validation loss so far
    double best_loss = INFINITY;    // its validation loss
    int64_t bad_validations = 0;    // validations since then, none of them better
    int64_t documents = -1;         // documents of the training data that begin with end-of-text
    uint64_t validation = 0;        // hash of what the validation loss is measured on
    std::string dtype, backend;     // what computed the products: "bf16", "cpu bf16 (AMX)"
    std::string algorithms;         // device_choices(): what the products were computed with
    std::string unwritten;          // rows that metrics.jsonl would not take; an open last one awaits its validation
    std::string config;             // the resolved command line (TOML), for people
    bool operator==(const TrainState&) const = default;
};

// The file calls of a checkpoint as a table, so that tests can make each of them fail. Each returns 0 or -errno, write
// the bytes written.
struct Disk {
    int (*open_write)(const char* path);    // a new file: fd or -errno
    int64_t (*write)(int fd, const void* data, int64_t bytes);
    int (*sync)(int fd);
    int (*close)(int fd);
    // Moves a directory; one at `to` changes places with it, or with Overwrite::no it is -EEXIST.
    int (*rename)(const char* from, const char* to, Overwrite overwrite);
    int (*mkdir)(const char* path);
    int (*remove)(const char* path);    // file or empty directory
    int (*sync_dir)(const char* path);
};
const Disk& real_disk();

// exit 4 with what failed; the temporary directory is removed and older checkpoints are untouched. watch: of several
// ranks, which all come here (after Model::collect); where one fails all fail, the others with exit 7 naming it.
Status checkpoint_write(const std::string& run, const Model& g, const Tokenizer& tokenizer, const TrainState& state,
                        const Disk& disk = real_disk(), Coordinator* coordinator = nullptr,
                        const GenerationConfig& generation = {});
// The model alone, as Hugging Face has it: model.safetensors and the files that say how to use it, in a new directory,
// or in the place of one that holds such files and no others. Exit 2: it is there; 3; 4.
// readme: README.md's text; empty: none is written.
Status checkpoint_export(const std::string& dir, const WeightsReader& weights, const Tokenizer& tokenizer,
                         const GenerationConfig& generation, const std::string& readme = "",
                         Overwrite overwrite = Overwrite::no, const Disk& disk = real_disk());
Status check_export(const std::string& dir, Overwrite overwrite);    // whether it may be written; exit 2, 4
// Removes what interrupted writes left, and the checkpoints older than the newest `keep` that verify (0: none), except
// the one that the newest of these names as its best_step. It reads those that it keeps.
Status checkpoint_prune(const std::string& run, int keep, const Disk& disk = real_disk());
// Every file against MANIFEST; exit 3 naming file and what differs. A directory without MANIFEST and state.json (from
// the Hub) passes if config.json and the weights' headers parse.
Status checkpoint_verify(const ModelSource& m);
// The same without what safetensors files hold: of the weights the sizes only, nothing of the optimizer's.
// checkpoint_weights(verify) finds the rest while it loads.
Status checkpoint_verify_headers(const ModelSource& m);
// `path` is a checkpoint or a run. Of a run `which` is "last", the newest that verifies; "best", the best_step of that
// one's state; or a step. Each damaged one passed over for "last" is reported through `damaged` (may be null). Exit 2:
// there is no such step, or no validation was recorded, or path is itself a checkpoint and which is not "last". Exit 3:
// what was asked for is gone or damaged. Where `use` ends with 3 or 4 that is damage; its other errors
// end the search.
Result<ModelSource> checkpoint_find(const std::string& path, std::vector<std::string>* damaged,
                                    const std::string& which = "last",
                                    const std::function<Status(const ModelSource& m)>& use = checkpoint_verify);
// Directories RUN/step_NNNNNNNN, oldest first, whole or not.
std::vector<std::string> checkpoint_list(const std::string& run);
int64_t checkpoint_step(const std::string& dir);    // by its name; -1: it has none

Result<Config> checkpoint_config(const ModelSource& m);    // exit 3: what we cannot run, and why
// model.safetensors, or the files its index names; in parallel where the model lies in this process's memory. verify:
// exit 3 where the bytes that were loaded are not those of MANIFEST, if there is one; the model then holds anything.
Status checkpoint_weights(const ModelSource& m, Model& g, bool verify = false);
// In which formats the files have the model's matrices. The source must outlive the function. Exit 3, 4.
Result<WeightFormats> checkpoint_stored(const ModelSource& m, const Config& c);
Status checkpoint_optimizer(const std::string& dir, Model& g);    // m and v
Result<TrainState> checkpoint_state(const std::string& dir);
Result<Tokenizer> checkpoint_tokenizer(const ModelSource& m);      // empty tokenizer where there is none
std::string checkpoint_tokenizer_file(const std::string& path);    // the file that it is in, path itself if none is
Result<GenerationConfig> checkpoint_generation(const std::string& path);    // empty where there is none: in a GGUF
// The model's tensors that this rank saves, as a file holds them, appended; prefix: "" of the weights, "m." or "v.".
void checkpoint_tensors(const Model& g, StateKind part, const std::string& prefix, std::vector<TensorSource>* sources);
std::vector<TensorSource> checkpoint_tensors(const WeightsReader& weights);
// The file in which a rank saves tensors, stem "model" or "optimizer"; and of several ranks the index of these files.
std::string checkpoint_file(const std::string& stem, int rank, int ranks);
std::string checkpoint_index(const Model& g, const std::string& stem, const std::vector<std::string>& prefixes);

// The files that hold weights (stem model) or moments (optimizer): one, or those that the index names.
Result<std::vector<std::string>> checkpoint_tensor_files(const std::string& dir, const std::string& stem);
// Every file of the weights, its header alone; exit 3.
Status checkpoint_weight_headers(const ModelSource& m, const Family& family);

// Parsers on bytes, for the fuzzers. name: for messages.
Result<Config> config_parse(std::string_view json, const std::string& name);
Result<TrainState> state_parse(std::string_view json, const std::string& name);
std::string config_json(const Config& c, const std::vector<int>& ends, int bos = -1);    // ends: eos_token_id
// The fields of c that its family's class in transformers has no place for.
std::vector<const ConfigRow*> config_beyond_class(const Config& c);
std::string beyond_class_warning(const Config& c);    // says which, and what follows; "" where there is none
std::string state_json(const TrainState& s);
