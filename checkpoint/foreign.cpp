// foreign.cpp - see foreign.h.
#include "foreign.h"

#include <cstring>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "files/json.h"

namespace {
namespace fs = std::filesystem;

// nanoGPT uses GPT-2's names, but its matrices are (out, in) and its GELU is exact.
constexpr const char* NANO_GPT =
    "nanoGPT's checkpoint; its weights are GPT-2's with the matrices transposed:\n  python3 -c \"\n"
    "import torch, transformers as t\n"
    "c = torch.load('%s', map_location='cpu', weights_only=False); a = c['model_args']\n"
    "m = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=a['vocab_size'], n_positions=a['block_size'], n_embd=a['n_embd'],\n"
    "    n_layer=a['n_layer'], n_head=a['n_head'], activation_function='gelu'))\n"
    "turned = ('c_attn.weight', 'c_proj.weight', 'c_fc.weight')\n"
    "w = {k.removeprefix('_orig_mod.'): v.T if k.endswith(turned) else v for k, v in c['model'].items()}\n"
    "m.load_state_dict(w, strict=False); m.save_pretrained('OUT')\"";
constexpr const char* TORCH =
    "weights of PyTorch, or another zip; flatgpt reads them as pytorch_model.bin in a directory with config.json, if "
    "they have the names of a Hugging Face model";
constexpr const char* LLM_C =
    "llm.c's model; llm.c itself makes a Hugging Face directory of it:\n  python3 dev/eval/export_hf.py --spin '' "
    "--dtype float32 --input %s --output OUT";
constexpr const char* OLD_GGML =
    "llama.cpp's format before GGUF; llama.cpp converts it:\n  python3 convert_llama_ggml_to_gguf.py --input %s "
    "--output OUT.gguf";

// Recognises a file by its first bytes and, if `name` is not empty, by how its name ends.
struct FileKind {
    std::string_view begins, name;
    const char* what;    // message; may contain the path once
};
constexpr FileKind FILES[] = {
    {"PK\3\4", "ckpt.pt", NANO_GPT},
    {"PK\3\4", "pytorch_model.bin", "a model's weights alone: give the directory that holds it and config.json"},
    {"PK\3\4", "adapter_model.bin", "a LoRA adapter's weights (PEFT): give its directory, with adapter_config.json"},
    {"PK\3\4", "", TORCH},
    {"\x80\x02\x8a\x0a", "", TORCH},
    {{"\xC6\xD7\x34\x01", 4}, "", LLM_C},
    {{"\x88\xD8\x34\x01", 4}, "", "tokens (llm.c's shard), no model: that is what --data takes"},
    {"lmgg", "", OLD_GGML},
    {"fmgg", "", OLD_GGML},
    {"tjgg", "", OLD_GGML},
    {"algg", "", OLD_GGML},
    {"24ka", "",
     "llama2.c's model; llama2.c itself makes a Hugging Face directory of its ckpt.pt:\n  python3 "
     "export.py OUT --version -1 --checkpoint ckpt.pt"},
    {"\x89HDF", "", "TensorFlow's weights (HDF5); fetch the model's model.safetensors"},
    {"", ".safetensors", "a model's weights alone: give the directory that holds it and config.json"},
    {"", ".msgpack", "Flax' weights; fetch the model's model.safetensors"},
    {"", ".onnx", "an ONNX graph; fetch the model's model.safetensors"},
    {"", ".tiktoken", "tiktoken's tokens, no model"},
    {"", "tokenizer.json", "a tokenizer, no model: that is what --tokenizer takes"},
    {"", "config.json", "a model's configuration alone: give the directory that holds it"},
};
Status file_kind(const std::string& path) {
    char magic[4] = {};
    const Result<File> file = File::open(path);
    if (!file.ok() || file.value.bytes() < 4 || !file.value.read(0, magic, 4).ok()) return {};
    for (const FileKind& k : FILES)
        if (std::string_view(magic, 4).starts_with(k.begins) && path.ends_with(k.name)) {
            std::string what = k.what;
            if (const size_t at = what.find("%s"); at != what.npos) what.replace(at, 2, path);
            return fail(Exit::input, "%s: this is %s", path.c_str(), what.c_str());
        }
    return {};
}

// Recognises a directory that has the file `holds` and lacks the file `but`. what: the message.
struct DirectoryKind {
    const char *holds, *but, *what;
};
constexpr DirectoryKind DIRECTORIES[] = {
    {"ckpt.pt", "config.json", NANO_GPT},
    {"params.json", "config.json",
     "a model as its maker publishes it (params.json, consolidated.*); its Hugging Face "
     "directory, with config.json and model.safetensors, is what flatgpt reads"},
    {"tf_model.h5", "model.safetensors",
     "weights of TensorFlow alone (tf_model.h5); fetch the model's "
     "model.safetensors"},
    {"flax_model.msgpack", "model.safetensors",
     "weights of Flax alone (flax_model.msgpack); fetch the model's "
     "model.safetensors"},
    {"model.safetensors", "config.json", "weights without their config.json; fetch that as well"},
    {"pytorch_model.bin", "config.json", "weights without their config.json; fetch that as well"},
    {"tokenizer.json", "config.json", "a tokenizer, no model: that is what --tokenizer takes"},
};
Status directory_kind(const std::string& path) {
    std::error_code error;
    std::set<std::string> names, ggufs;
    for (fs::directory_iterator e(path, error), end; !error && e != end; e.increment(error)) {
        names.insert(e->path().filename());
        if (e->path().extension() == ".gguf") ggufs.insert(e->path());
    }
    for (const DirectoryKind& k : DIRECTORIES)
        if (names.contains(k.holds) && !names.contains(k.but)) {
            std::string what = k.what;
            const bool file = k.what == NANO_GPT;
            if (const size_t at = what.find("%s"); at != what.npos)
                what.replace(at, 2, file ? path + "/" + k.holds : path);
            return fail(Exit::input, "%s: this is %s", path.c_str(), what.c_str());
        }
    if (ggufs.empty()) return {};
    return fail(Exit::input, "%s: a directory with GGUF files (%zu); give one of them:\n  %s", path.c_str(),
                ggufs.size(), ggufs.begin()->c_str());
}
}    // namespace

Status check_foreign(const std::string& path) {
    std::error_code error;
    return fs::is_directory(path, error) ? directory_kind(path) : file_kind(path);
}
