// source.cpp - reads a model's directory or GGUF file, except its weights.
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "adapter_files.h"
#include "checkpoint.h"
#include "data/tokenizer_files/tokenizer_gguf.h"
#include "data/tokenizer_files/vocab_merges.h"
#include "disk.h"
#include "foreign.h"
#include "gguf.h"
#include "nanochat.h"

ModelSource::ModelSource(const std::string& source) : path(source) {
    struct stat s;
    if (stat(path.c_str(), &s) != 0 || !S_ISREG(s.st_mode)) return;
    Result<GgufFile> file = GgufFile::open(path);
    opened = file.ok() || is_gguf(path) ? file.status : check_foreign(path);
    if (opened.ok()) opened = file.status;
    if (file.ok()) gguf = std::make_shared<const GgufFile>(file.take());
}

static Result<Config> adapter_config(const ModelSource& m);

Result<Config> checkpoint_config(const ModelSource& m) {
    TRY(m.opened);
    if (m.gguf) return gguf_config(*m.gguf);
    if (is_adapter(m.path)) return adapter_config(m);
    const std::string nanochat = nanochat_weights(m.path), path = nanochat.empty() ? m.path + "/config.json" : nanochat;
    const Config c = nanochat.empty() ? TRY(config_parse(TRY(read_file(path, 1 << 20)), path))
                                      : TRY(nanochat_config(nanochat));
    // The claimed sizes are compared with the files' bytes before memory is allocated for them: an
    // element has at least two bytes. A config.json without weights is valid, too.
    int64_t least = 2 * config_parameters(c), found = 0;
    struct stat file;
    for (const std::string& weights : TRY(checkpoint_tensor_files(m.path, "model")))
        if (stat(weights.c_str(), &file) == 0) found += file.st_size;
    if (found && found < least)
        return fail(Exit::input, "%s: the model it describes takes at least %lld bytes, the weights have %lld",
                    path.c_str(), (long long)least, (long long)found);
    return c;
}

// A run's adapters lie beside their base's config.json, so that the base need not be opened.
static Result<Config> adapter_config(const ModelSource& m) {
    const AdapterFiles files = TRY(adapter_open(m.path));
    const std::string own = m.path + "/config.json";
    Config c = exists(own) ? TRY(config_parse(TRY(read_file(own, 1 << 20)), own))
                           : TRY(checkpoint_config(TRY(base_of(m))));
    TRY(add_adapters(&c, {files}));
    return c;
}

std::string checkpoint_tokenizer_file(const std::string& path) {
    for (const char* name : {"/tokenizer.json", "/tokenizer.model", "/spiece.model"})
        if (exists(path + name)) return path + name;
    if (exists(path + "/vocab.json") && exists(path + "/merges.txt")) return path + "/vocab.json";
    if (const std::string config = path + "/tokenizer_config.json"; is_byt5(config)) return config;
    return path;
}
Result<Tokenizer> checkpoint_tokenizer(const ModelSource& m) {
    TRY(m.opened);
    if (m.gguf) return gguf_tokenizer(*m.gguf);
    const std::string file = checkpoint_tokenizer_file(m.path);
    if (file == m.path && is_adapter(m.path)) return checkpoint_tokenizer(TRY(base_of(m)));
    return file == m.path ? Tokenizer() : Tokenizer::load(file);
}

Result<GenerationConfig> checkpoint_generation(const std::string& path) {
    const std::string file = path + "/generation_config.json";
    if (!exists(file) && is_adapter(path)) return checkpoint_generation(TRY(base_of(path)).path);
    if (!exists(file)) return GenerationConfig();
    return generation_config_parse(TRY(read_file(file, 16 << 20)), file);
}
