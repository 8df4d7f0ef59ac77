// adapter_files.h - low-rank adapters in PEFT's format: a directory with adapter_config.json and
// adapter_model.safetensors, which hold the adapters of one base model.
//
// A run with --lora-rank writes such directories as its checkpoints. The base model itself is not
// copied: adapter_config.json has its path.
#pragma once
#include <map>

#include "checkpoint/checkpoint.h"
#include "model/adapter.h"

// Matrices a (rank,C) and b (rows,rank) of one matrix in the base's files, and the factor of b a.
// With DoRA also the magnitudes (rows); else magnitude has no shape.
struct AdapterModule {
    std::string name;    // as in the base's files, without ".weight" and the family's prefix
    TensorEntry a, b, magnitude;
    double scale;
};
struct AdapterFiles {
    std::string dir;
    bool magnitudes = false;    // DoRA
    std::string base;           // path of the base model, or its name on the Hub; "": not recorded
    double weight = 1;          // further factor, from --adapter DIR=WEIGHT
    double dropout = 0;
    std::shared_ptr<const SafetensorsFile> file = {};
    std::vector<AdapterModule> modules = {};
};
bool is_adapter(const std::string& path);    // a directory with adapter_config.json, and no whole model
// Reads both files' headers. Exit 3: another kind of adapter, or one that changes more than the
// matrices of blocks; names the field or the tensor.
Result<AdapterFiles> adapter_open(const std::string& dir);
// Opens directories of adapters, or the newest checkpoints of runs, each given as DIR or
// DIR=WEIGHT. Exit 2: a weight is no number; 3: as adapter_open.
Result<std::vector<AdapterFiles>> open_adapters(const std::vector<std::string>& named);
// The base model of an adapter's directory, or m itself if it is no adapter. Exit 3: the base is
// not there.
Result<ModelSource> base_of(const ModelSource& m);

// Gives c the adapters in all these directories, which together act as one. Exit 2: DoRA beside
// others or with a weight; 3: a module is no matrix of the model, or has another shape.
Status add_adapters(Config* c, const std::vector<AdapterFiles>& adapters);
// Loads them into a model with that configuration. Exit 3, 4.
Status load_adapters(Model& g, const std::vector<AdapterFiles>& adapters);
// The adapters' matrices of one product, in memory's order.
struct AdapterMatrices {
    int R = 0;
    RowBlocks blocks = {};      // b is zero outside of these
    std::vector<float> a, b;    // (R,C), (OC,R)
    std::vector<float> m;       // magnitudes (OC), 0 in rows without an adapter; empty: none
};
// Reads all adapters of c, to which add_adapters has added them. Returns the matrices by names of
// tensors: "0.qkvw".
Result<std::map<std::string, AdapterMatrices>> adapter_matrices(const Config& c,
                                                                const std::vector<AdapterFiles>& adapters);
// Writes the adapters alone as a GGUF file, as llama.cpp's --lora reads it. Exit 2: no GGUF
// architecture can express the model; 3, 4.
Status gguf_save_adapters(const Config& c, const std::vector<AdapterFiles>& adapters, const FileSink& sink);
// Returns a reader of the base's weights with the adapters added to them.
Result<WeightsReader> merged_reader(WeightsReader base, const std::vector<AdapterFiles>& adapters);

// For writing: the tensors of adapter_model.safetensors, or their gradients, and the text of
// adapter_config.json.
std::vector<TensorSource> adapter_sources(const Model& g, StateKind part = StateKind::weights);
std::string adapter_config_json(const Config& c);
