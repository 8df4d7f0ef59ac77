// convert.cpp - `flatgpt convert`: a model from one format to another, GGUF files and Hugging Face directories.
#include <filesystem>
#include <memory>

#include "base/console.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "data/tokenizer_gguf.h"
#include "model/device.h"

namespace {
struct Options {
    std::string model, out, type = "f32", checkpoint = "last";
};

// "model" of runs/model.gguf
std::string stem_of(const std::string& path) { return std::filesystem::path(path).stem().string(); }

Status convert(const Options& o) {
    const bool to_gguf = o.out.ends_with(".gguf");
    const GgufFileType* type = find_gguf_file_type(o.type);
    CHECK(type, "%s", o.type.c_str());
    if (!to_gguf && type->matrices != BlockType::f32)
        return fail(Exit::usage, "--type %s: a Hugging Face directory is written as f32; for a GGUF file give OUT the "
                    "ending .gguf", o.type.c_str());
    std::vector<std::string> damaged;
    const ModelSource from = TRY(checkpoint_find(o.model, &damaged, o.checkpoint));
    for (const std::string& why : damaged) Progress().note("passed over: " + why);
    const Config config = TRY(checkpoint_config(from));
    // Before the weights are read.
    const GgufArchitecture* written = to_gguf ? TRY(gguf_architecture_for(config)) : nullptr;
    if (written && written->window_unused && config.window && config.window < config.T)
        Progress().note(formatted("note: llama.cpp does not use this model's window of %d tokens: beyond it, it says "
                                  "other things than flatgpt", config.window));
    const Tokenizer tokenizer = TRY(checkpoint_tokenizer(from));
    const GgufKeys vocabulary = to_gguf ? TRY(gguf_vocabulary(tokenizer, config.V)) : GgufKeys{};
    const GenerationConfig generation = to_gguf ? GenerationConfig{} : TRY(checkpoint_generation(from.path));
    if (const std::string lost = to_gguf ? beyond_gguf(tokenizer) : ""; !lost.empty())
        Progress().note(escape_control("note: GGUF has no place for this: " + lost));
    Device device = TRY(open_device({.device = "cpu", .dtype = "fp32"}, false));
    TRY(device.model->allocate(config, {Use::infer, 1, 1}));
    TRY(checkpoint_weights(from, *device.model));
    if (!to_gguf) return checkpoint_export(o.out, *device.model, tokenizer, generation);
    return replace_file(o.out, [&](const FileSink& sink) {
        return gguf_save(*device.model, *type, stem_of(o.out), vocabulary, sink);
    });
}
}   // namespace

Command convert_command() {
    auto o = std::make_shared<Options>();
    std::vector<std::string> types;
    for (const GgufFileType& t : gguf_file_types()) types.push_back(t.name);
    return {.name = "convert",
            .summary = "Write a model as a GGUF file or as a Hugging Face directory.",
            .example = "flatgpt convert runs/a a.gguf --type q8_0",
            .flags =
                {{.name = "MODEL", .to = &o->model, .help = "a run, a checkpoint, a Hugging Face directory or a GGUF "
                  "file", .required = true},
                 {.name = "OUT", .to = &o->out, .help = "a name that ends with .gguf, or a new directory",
                  .required = true},
                 {.name = "--type", .to = &o->type, .help = "how a GGUF file stores matrices", .choices = types},
                 {.name = "--checkpoint", .to = &o->checkpoint, .help = "of a run: last, best or a step"}},
            .run = [o] {
                TRY(convert(*o));
                Progress().note(escape_control("wrote " + o->out));
                return Status{};
            }};
}
