// convert.cpp - `flatgpt convert`: writes a model as a GGUF file or a Hugging Face directory.
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/console.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "checkpoint/model_card.h"
#include "data/tokenizer_files/tokenizer_gguf.h"
#include "infer/embed/embeddings.h"
#include "layers/ops.h"

namespace fs = std::filesystem;

namespace {
struct Options {
    std::string model, out, type = "f32", checkpoint = "last";
    std::vector<std::string> adapters = {};    // merged into the weights
    bool overwrite = false, adapter_only = false, average = false;
};

std::string stem_of(const std::string& path) { return fs::path(path).stem().string(); }

// Rejects endings of files for a directory, because OUT is then probably meant as a file. Exit 2.
Status check_ending(const std::string& out) {
    std::string ending = fs::path(out).extension().string();
    for (char& letter : ending) letter = char(tolower(letter));
    const char* const formats[] = {".safetensors", ".bin",  ".pt",   ".pth",     ".ckpt",   ".onnx", ".npz", ".h5",
                                   ".ggml",        ".gguf", ".json", ".msgpack", ".tflite", ".zip",  ".tar", ".gz"};
    if (std::find(std::begin(formats), std::end(formats), ending) == std::end(formats)) return {};
    const std::string stem = fs::path(out).replace_extension().string();
    if (ending == ".gguf")
        return fail(Exit::usage, "%s: expected the ending .gguf; give %s.gguf", out.c_str(), stem.c_str());
    return fail(Exit::usage,
                "%s: expected a name that ends with .gguf, or a new directory, in which model.safetensors "
                "and its config.json are written; give %s",
                out.c_str(), stem.c_str());
}
// Rejects an OUT that is (a link to) the input or one of its files, even with --overwrite. Exit 2.
Status check_apart(const std::string& model, const std::string& out) {
    std::error_code none;
    auto same = [&](const fs::path& path) { return fs::equivalent(path, out, none); };
    bool taken = same(model);
    for (fs::directory_iterator file(model, none), end; !none && file != end; file.increment(none))
        taken = taken || same(file->path());
    if (!taken) return {};
    return fail(Exit::usage, "%s is what is read (%s), and is never overwritten; give another name", out.c_str(),
                model.c_str());
}
Status check_out(const Options& o, bool to_gguf) {
    std::error_code none;
    if (!to_gguf) return check_export(o.out, o.overwrite ? Overwrite::yes : Overwrite::no);
    if (!o.overwrite && fs::exists(fs::symlink_status(o.out, none)) && !fs::is_directory(o.out, none))
        return fail(Exit::usage, "%s: expected a new name, it is already there; give another name, or --overwrite",
                    o.out.c_str());
    return check_writable(o.out, "OUT");
}

// Prints what llama.cpp does otherwise, and what a GGUF file leaves out. whole: the model with its
// head.
void note_losses(const GgufArchitecture& written, const Config& config, const Config& whole) {
    if (written.window_unused && config.window && config.window < config.T)
        Progress().note(
            formatted("note: llama.cpp does not use this model's window of %d tokens: beyond it, it says "
                      "other things than flatgpt",
                      config.window));
    if (written.stacks && config.logit_scale != 1)
        Progress().note(
            formatted("note: llama.cpp does not multiply this model's logits by %.4g: greedy texts are the same, and a "
                      "temperature there is %.4g times the one here",
                      double(config.logit_scale), 1 / double(config.logit_scale)));
    if (config.head == HeadKind::texts && config.segments > 1)
        Progress().note(
            "note: llama.cpp gives both texts of a pair segment 0, so its scores of pairs are not this model's");
    if (whole.head != config.head || whole.transform != config.transform)
        Progress().note(formatted("note: GGUF's %s is the body of an encoder, for embed: %s is left out", written.name,
                                  whole.head == HeadKind::none ? "the pooler" : "the head"));
}

Status convert(Options o) {
    o.out = without_slashes(o.out);
    const bool to_gguf = o.out.ends_with(".gguf");
    const GgufFileType* type = find_gguf_file_type(o.type);
    CHECK(type, "%s", o.type.c_str());
    if (!to_gguf) TRY(check_ending(o.out));
    if (!to_gguf && type->matrices != BlockType::f32)
        return fail(Exit::usage,
                    "--type %s: a Hugging Face directory is written as f32; for a GGUF file give OUT the "
                    "ending .gguf",
                    o.type.c_str());
    std::vector<std::string> damaged;
    const ModelSource from = TRY(checkpoint_find(o.model, &damaged, o.checkpoint));
    for (const std::string& why : damaged) Progress().note("passed over: " + why);
    TRY(check_apart(from.path, o.out));
    TRY(check_out(o, to_gguf));
    const Config whole = TRY(checkpoint_config(from)), config = to_gguf ? gguf_model(whole) : whole;
    const Overwrite overwrite = o.overwrite ? Overwrite::yes : Overwrite::no;
    if (o.adapter_only) {
        if (!to_gguf || !config.adapter.any())
            return fail(Exit::usage,
                        "--adapter-only: expected a MODEL of low-rank adapters and an OUT that ends with "
                        ".gguf, found %s and %s",
                        from.path.c_str(), o.out.c_str());
        const std::vector<AdapterFiles> adapters = {TRY(adapter_open(from.path))};
        return replace_file(
            o.out, [&](const FileSink& sink) { return gguf_save_adapters(config, adapters, sink); }, overwrite);
    }
    // A configuration that no GGUF architecture expresses fails here, before the weights are read.
    const GgufArchitecture* written = to_gguf ? TRY(gguf_architecture_for(config)) : nullptr;
    if (written) note_losses(*written, config, whole);
    const Tokenizer tokenizer = TRY(checkpoint_tokenizer(from));
    const GgufKeys vocabulary = to_gguf ? TRY(gguf_vocabulary(tokenizer, config.V)) : GgufKeys{};
    const GenerationConfig generation = to_gguf ? GenerationConfig{} : TRY(checkpoint_generation(from.path));
    if (const std::string lost = to_gguf ? beyond_gguf(tokenizer) : ""; !lost.empty())
        Progress().note(escape_control("note: GGUF has no place for this: " + lost));
    cpu_set_threads(0);
    WeightsReader weights = TRY(o.average ? average_reader(from, config) : weights_reader(from, config));
    if (!o.adapters.empty()) weights = TRY(merged_reader(weights, TRY(open_adapters(o.adapters))));
    const Result<SentenceConfig> sentences = sentence_config(from.path);
    if (sentences.ok() && !sentences.value.layers.empty())
        Progress().note(
            "note: the Dense layers behind the pooling are not written; the new file's vectors are those before them");
    const ModelCard card = checkpoint_card(from);
    if (!to_gguf) return checkpoint_export(o.out, weights, tokenizer, generation, card_readme(card), overwrite);
    GgufKeys keys = card_keys(card);
    if (written->body && config.head == HeadKind::none) {
        TRY(sentences.status);
        if (const std::optional<Pooling> pooling = sentences.value.pooling)
            keys.push_back({written->name + std::string(".pooling_type"), GgufValue::integer(gguf_pooling(*pooling))});
    }
    keys.insert(keys.end(), vocabulary.begin(), vocabulary.end());
    auto produce = [&](const FileSink& sink) {
        TRY(gguf_save(weights, *type, stem_of(o.out), keys, sink));
        return check_out(o, to_gguf);    // again, because writing takes minutes
    };
    return replace_file(o.out, produce, overwrite);
}
}    // namespace

// convert, or with `adapter` merge, which has one more argument.
static Command command_of(const char* name, const char* summary, const char* example, bool adapter) {
    auto o = std::make_shared<Options>();
    auto added = std::make_shared<std::string>();
    std::vector<std::string> types;
    for (const GgufFileType& t : gguf_file_types()) types.push_back(t.name);
    std::vector<Flag> rows = {
        {.name = "MODEL",
         .to = &o->model,
         .help = "a run, a checkpoint, a Hugging Face directory or a GGUF file",
         .required = true},
        {.name = "OUT", .to = &o->out, .help = "a name that ends with .gguf, or a new directory", .required = true},
        {.name = "--type", .to = &o->type, .help = "how a GGUF file stores matrices", .choices = types},
        {.name = "--overwrite",
         .to = &o->overwrite,
         .help = "write OUT even if it is there; a directory, if it holds nothing but such a model"},
        {.name = "--checkpoint", .to = &o->checkpoint, .help = "of a run: last, best or a step"}};
    if (!adapter)
        rows.push_back({.name = "--average",
                        .to = &o->average,
                        .help = "of a run with --ema or --average-tail: the average of the weights instead of the last "
                                "ones",
                        .excludes = {"--adapter-only"}});
    if (!adapter)
        rows.push_back({.name = "--adapter-only",
                        .to = &o->adapter_only,
                        .help = "of a run with --lora-rank: the adapters alone, as llama.cpp's --lora reads them; else "
                                "they are merged",
                        .excludes = {"--type"}});
    if (adapter)
        rows.insert(rows.begin() + 1, {.name = "ADAPTER",
                                       .to = added.get(),
                                       .help = "a directory of low-rank adapters (PEFT) or a run with --lora-rank; "
                                               "DIR=0.5 adds half of it",
                                       .required = true});
    return {.name = name,
            .summary = summary,
            .example = example,
            .flags = rows,
            .run =
                [o, added] {
                    if (!added->empty()) o->adapters = {*added};
                    TRY(convert(*o));
                    Progress().note(escape_control("wrote " + o->out));
                    return Status{};
                },
            .removes_temporaries = true};
}
Command convert_command() {
    return command_of("convert", "Write a model as a GGUF file or as a Hugging Face directory.",
                      "flatgpt convert runs/a a.gguf --type q8_0", false);
}
Command merge_command() {
    return command_of("merge", "Add low-rank adapters to a model's weights, and write it as convert does.",
                      "flatgpt merge model adapter merged.gguf --type q8_0", true);
}
