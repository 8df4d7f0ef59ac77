// load.cpp - see load.h.
#include "load.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/console.h"
#include "base/file.h"
#include "checkpoint/gguf.h"
#include "data/tokenizer_files/vocab_merges.h"
#include "model/cost_table.h"

extern "C" [[gnu::weak]] int malloc_trim(size_t) noexcept;    // glibc: returns freed memory to the system; else null

namespace {
// Uses the checkpoint's tokenizer, else --tokenizer's. If both exist, they must be equal, because
// different ids would mean different text.
Status choose_tokenizer(LoadedModel& m, const ModelSource& source, int V, const std::string& name,
                        const Tokenizer& named) {
    m.tokenizer = TRY(checkpoint_tokenizer(source)).of_model(V);
    m.own_tokenizer = m.tokenizer.vocab_size() > 0;
    if (name.empty()) return {};
    if (m.own_tokenizer && named.fingerprint() != m.tokenizer.fingerprint())
        return fail(Exit::usage, "--tokenizer %s (%d tokens) is not the one of %s (%d tokens); leave it out",
                    name.c_str(), named.vocab_size(), m.path.c_str(), m.tokenizer.vocab_size());
    if (!m.own_tokenizer) m.tokenizer = named.of_model(V);
    return {};
}

// Describes the loaded checkpoint: "runs/a/step_00000300 (the last; the best by validation is step
// 200, 4.19: --checkpoint best)".
std::string taken_text(const std::string& run, const std::string& dir, TrainState state, const std::string& which) {
    const std::vector<std::string> dirs = checkpoint_list(run);
    // The best step is read from the newest checkpoint, because an older one records the best step
    // only up to the step at which it was written.
    if (Result<TrainState> newest = checkpoint_state(dirs.back()); newest.ok()) state = newest.value;
    const int64_t step = checkpoint_step(dir), last = checkpoint_step(dirs.back());
    std::string text = which == "best" ? "the best by validation" : which == "last" ? "the last" : "as asked";
    const std::string best = state.best_step >= 0 ? formatted(", %.4g", state.best_loss) : "";
    const bool kept =
        std::any_of(dirs.begin(), dirs.end(), [&](auto& d) { return checkpoint_step(d) == state.best_step; });
    if (which == "best") text += best;
    else if (!best.empty() && state.best_step == step) text += ", and the best by validation" + best;
    else if (!best.empty() && kept)
        text += "; the best by validation is step " + std::to_string(state.best_step) + best + ": --checkpoint best";
    if (which != "last" && last != step) text += "; the last is step " + std::to_string(last);
    return dir + " (" + text + ")";
}
// Refuses a tokenizer with ids that the model has no embeddings for.
Status tokenizer_fits(const LoadedModel& m) {
    return m.tokenizer.fits(m.model->c.V, Exit::input,
                            m.own_tokenizer ? "; train --from it with --resize-vocab adds rows for them"
                                            : "; give --tokenizer the one that the model was trained with");
}
// Formats in which the model's matrices are kept: --quantize's, else those of an explicit --dtype,
// else the file's.
Result<WeightFormats> wanted_formats(const ModelSource& found, const ModelOptions& model_options, const Config& c,
                                     const std::string& dtype) {
    if (model_options.quantize != "none") return gguf_stored(*find_gguf_file_type(model_options.quantize), c);
    if (dtype == "auto") return checkpoint_stored(found, c);
    const BlockType format = dtype == "bf16" ? BlockType::bf16 : BlockType::f32;
    return WeightFormats([format](const Tensor& t) { return std::vector<FormatRows>{{t.rows, format}}; });
}
// The model's configuration with adapters: its own, if it is a run that has them, and --adapter's.
Result<Config> adapted_config(const ModelSource& found, const ModelOptions& model_options,
                              std::vector<AdapterFiles>& adapters) {
    Config config = TRY(checkpoint_config(found));
    config.adapter = {};
    const bool classifies = config.head == HeadKind::texts || config.head == HeadKind::positions;
    if (model_options.head == HeadUse::none) config = config.body();
    else if ((model_options.head == HeadUse::tokens ||
              (model_options.head == HeadUse::shards && config.head != HeadKind::replaced)) &&
             config.head != HeadKind::tokens)
        return fail(Exit::usage, "%s predicts no tokens: expected a language model%s", found.path.c_str(),
                    classifies ? ", or eval --labels" : "; flatgpt embed takes its states");
    else if (model_options.head == HeadUse::classes && !classifies)
        return fail(Exit::usage, "%s is no classifier; train --labels makes one", found.path.c_str());
    adapters = TRY(open_adapters(model_options.adapters));
    if (is_adapter(found.path)) adapters.insert(adapters.begin(), TRY(adapter_open(found.path)));
    TRY(add_adapters(&config, adapters));
    TRY(extend_context(&config, model_options.context_extension));
    return config;
}
Plan plan_for(const Config& c, const Capacity& size) {
    return {.mode = size.mode,
            .B = size.B,
            .S = std::min(size.S, c.T),
            .optimizer = nullptr,
            .spans = size.spans,
            .source = std::min(size.source, c.T),
            .sources = size.sources};
}
// Allocates the model and reads its weights. pack: uses the CPU's packed layout
// (layers/quant/packed.h), in the formats of the file, of --quantize or of --dtype.
Status load_weights(LoadedModel& m, const ModelSource& found, const std::vector<AdapterFiles>& adapters,
                    const ModelOptions& model_options, const Config& config, Plan plan, bool pack, bool as_trained,
                    const std::string& dtype) {
    if (pack) {
        plan.stored = TRY(wanted_formats(found, model_options, config, dtype));
        // Packed weights change the order of sums. With `as_trained`, fp32 models stay unpacked, so
        // that results equal those of training.
        pack = !as_trained || !all_fp32(config_tensors(config), plan.stored);
    }
    if (pack) m.model = std::make_unique<Model>(Table(cpu_packed_ops()));
    TRY(open_trace(model_options.trace, m.model, m.trace));
    TRY(m.model->allocate(config, plan));
    TRY(checkpoint_weights(found, *m.model, true));
    TRY(load_adapters(*m.model, adapters));
    if (pack)
        m.device = formatted("%s, weights %s, %s", m.model->op.name, m.model->store.packed.formats().c_str(),
                             counted(cpu_threads(), "thread").c_str());
    return {};
}
}    // namespace

std::vector<Flag> inference_flags(DeviceOptions& o, ModelOptions& model_options, const char* auto_dtype) {
    std::vector<Flag> rows = device_flags(o, auto_dtype);
    rows.push_back({.name = "--quantize",
                    .to = &model_options.quantize,
                    .help = "on a CPU: weights in fewer bits, the types "
                            "of convert; none: as --dtype says",
                    .choices = quantize_types(),
                    .excludes = {"--dtype"}});
    return rows;
}
Flag adapter_flag(ModelOptions& model_options) {
    return {.name = "--adapter",
            .to = &model_options.adapters,
            .help =
                "directories of low-rank adapters (PEFT), such as a run's with --lora-rank; DIR=0.5 adds half "
                "of it"};
}
int longest_context(const ModelOptions& model_options, const Config& c) {
    return model_options.context_extension.context ? std::min(model_options.context_extension.context, c.T) : c.T;
}
int sequence_length(const ModelOptions& model_options, const Config& c, int seq_len) {
    const int longest = longest_context(model_options, c);
    return std::min(longest, seq_len                                   ? seq_len
                             : model_options.context_extension.context ? longest
                                                                       : c.default_length());
}
Status check_length(const ModelOptions& model_options, const Config& c, int seq_len, bool may_extend) {
    if (const int context = model_options.context_extension.context; context && seq_len > context)
        return fail(Exit::usage, "--seq-len %d, --context %d: a sequence is no longer than the context", seq_len,
                    context);
    if (seq_len > c.T)
        return fail(Exit::usage, "--seq-len %d: the model's context has %d positions%s", seq_len, c.T,
                    c.position == Position::learned || !may_extend ? "" : "; --context asks for more");
    return {};
}

static Status check_source_use(const LoadedModel& m, const ModelOptions& model_options) {
    if (bool(m.model->encoder) == model_options.gives_source) return {};
    if (m.model->encoder)
        return fail(Exit::usage,
                    "%s is an encoder-decoder: it reads a source and writes a text; expected flatgpt sample %s "
                    "--source TEXT, or eval --pairs",
                    m.path.c_str(), model_options.model.c_str());
    return fail(Exit::usage, "%s has no encoder, which would read a source; expected --prompt, or eval --data",
                m.path.c_str());
}

Status load_model(LoadedModel& m, const ModelOptions& model_options, DeviceOptions device, bool as_trained,
                  const std::function<Capacity(const Config& c, bool gpu)>& capacity) {
    Device opened = TRY(open_device(device, false));
    if (model_options.quantize != "none" && opened.gpu)
        return fail(Exit::usage, "--quantize %s: a GPU computes with bf16 or fp32; --device cpu",
                    model_options.quantize.c_str());
    // The path of --trace is checked here, because a failure within `load` would count as a damaged
    // checkpoint.
    if (!model_options.trace.empty()) TRY(check_writable(model_options.trace, "--trace"));
    const Tokenizer named =
        TRY(model_options.tokenizer.empty() ? Tokenizer() : Tokenizer::load(model_options.tokenizer));
    TrainState state;
    auto load = [&](const ModelSource& found) -> Status {
        TRY(checkpoint_verify_headers(found));
        const std::string& dir = m.path = found.path;
        // The other weights are the base model's if a run's adapters were found.
        const ModelSource base = TRY(base_of(found));
        std::vector<AdapterFiles> adapters;
        const Config config = TRY(adapted_config(found, model_options, adapters));
        if (access((dir + "/state.json").c_str(), F_OK) == 0) {
            state = TRY(checkpoint_state(dir));
            m.documents = state.documents;
        }
        if (!opened.model) {    // a failed attempt has used up the device
            m.model.reset();
            opened = TRY(open_device(device, false));
        }
        DeviceOptions wanted = device;
        if (as_trained && device.dtype == "auto" && !state.dtype.empty()) wanted.dtype = state.dtype;
        if (wanted.dtype != "auto" && wanted.dtype != dtype_name(opened.dtype))
            if (Result<Device> other = open_device(wanted, false); other.ok()) opened = other.take();
        m.device = opened.text;
        m.model = std::move(opened.model);
        Status chosen;
        auto choose = [&] {
            chosen = choose_tokenizer(m, found, config.V, model_options.tokenizer, named);
            if (malloc_trim) malloc_trim(0);
        };
        // Parsing needs memory of about 10 times the size of tokenizer.json. The tokenizer is
        // parsed while the weights are read only if that is at most 5 % of the weights' memory.
        std::error_code none;
        const int64_t element = opened.dtype == Dtype::bf16 ? 2 : 4;
        const int64_t parsed = 10 * int64_t(std::filesystem::file_size(dir + "/tokenizer.json", none));
        std::thread beside;
        if (none || parsed > config_parameters(config) * element / 20) choose();
        else beside = std::thread(choose);
        const Capacity size = capacity(config, opened.gpu);
        const bool pack = !opened.gpu && size.mode == RunMode::infer && !size.flat;
        const Status s = load_weights(m, base, adapters, model_options, config, plan_for(config, size), pack,
                                      as_trained, device.dtype);
        if (beside.joinable()) beside.join();
        return s.ok() ? chosen : s;
    };
    const std::string path = without_slashes(model_options.model);
    std::vector<std::string> damaged;
    const Status found = checkpoint_find(path, &damaged, model_options.checkpoint, load).status;
    for (const std::string& why : damaged) Progress().note("passed over: " + why);
    TRY(found);
    TRY(check_source_use(m, model_options));
    if (m.trace) m.trace->start(*m.model);
    if (m.path != path) Progress().note(escape_control(taken_text(path, m.path, state, model_options.checkpoint)));
    return m.own_tokenizer ? Status{} : tokenizer_fits(m);    // own tokenizer may have more tokens: shards need none
}

Result<std::vector<MemoryRow>> model_memory(const ModelOptions& model_options, const Table& like, bool gpu,
                                            const std::string& dtype,
                                            const std::function<Capacity(const Config& c, bool gpu)>& capacity) {
    const ModelSource found =
        TRY(checkpoint_find(without_slashes(model_options.model), nullptr, model_options.checkpoint));
    std::vector<AdapterFiles> adapters;
    const Config config = TRY(adapted_config(found, model_options, adapters));
    Plan plan = plan_for(config, capacity(config, gpu));
    if (!gpu) plan.stored = TRY(wanted_formats(TRY(base_of(found)), model_options, config, dtype));
    return memory_cost(gpu ? like : Table(cpu_packed_ops()), config, plan);
}

Status load_draft_model(LoadedModel& draft, const LoadedModel& m, ModelOptions model_options,
                        const DeviceOptions& device, const std::string& path, int count, int64_t longest) {
    model_options.model = path;
    model_options.checkpoint = "last";
    model_options.trace.clear();
    TRY(load_model(draft, model_options, device, false, [&](const Config& c, bool gpu) {
        return Capacity{count, int(std::min<int64_t>({longest, c.T, std::max(1, saturating_rows(gpu) / count)}))};
    }));
    TRY(check_tokenizer(draft));
    // Tokenizers with equal fingerprints may differ in length, because Tokenizer::of_model removes
    // added tokens for which a model has no embeddings.
    const int own = draft.tokenizer.vocab_size(), other = m.tokenizer.vocab_size();
    if (draft.tokenizer.fingerprint() == m.tokenizer.fingerprint() && own >= other) {
        if (const int T = draft.model->c.T; T < m.model->c.T)
            Progress().note(formatted("note: the draft model's context has %d tokens: beyond them it drafts none", T));
        return {};
    }
    if (draft.tokenizer.fingerprint() == m.tokenizer.fingerprint())
        return fail(Exit::input,
                    "--draft %s: it has no embeddings for the last %d tokens of %s; give a larger model "
                    "of the same kind",
                    draft.path.c_str(), other - own, m.path.c_str());
    return fail(Exit::input,
                "--draft %s: its tokenizer (%d tokens) is not the one of %s (%d tokens): its tokens mean "
                "other text; give a model with the same one",
                draft.path.c_str(), own, m.path.c_str(), other);
}

Result<Loader> open_shards(const LoadedModel& m, const ModelOptions& model_options, LoaderConfig what) {
    what.vocab = m.model->c.V;
    what.shuffle = false;
    what.allow_partial_set = true;
    Loader loader = TRY(Loader::open(what));
    const std::string own = checkpoint_tokenizer_file(m.path);
    TRY(check_shard_tokenizer(loader.shards(), m.tokenizer, m.model->c.V,
                              m.own_tokenizer ? TokenizerSource{own, "tokenize the text again with that one"}
                                              : TokenizerSource{"--tokenizer " + model_options.tokenizer,
                                                                "give the one that it was made with"}));
    return loader;
}

Status check_tokenizer(const LoadedModel& m) {
    if (m.tokenizer.vocab_size()) return tokenizer_fits(m);
    return fail(Exit::input, "%s holds no tokenizer; give --tokenizer%s a tokenizer.json of %d tokens%s",
                m.path.c_str(), m.model->c.V >= Tokenizer::gpt2().vocab_size() ? " gpt2 or" : "", m.model->c.V,
                foreign_tokenizer(m.path).c_str());
}
std::vector<int> beginning_of_text(const LoadedModel& m) {
    return check_tokenizer(m).ok() ? beginning_of_text(m.tokenizer, m.documents) : std::vector<int>{};
}
Status check_generative(const LoadedModel& m) {
    if (m.model->c.mask_kind != MaskKind::all) return {};
    return fail(Exit::usage,
                "%s guesses masked tokens from both sides (--objective mlm): it cannot write a text from "
                "its beginning to its end; eval measures it",
                m.path.c_str());
}
Status load_generation_defaults(LoadedModel& m, const std::vector<std::string>& given, Sampling* sampling,
                                int* tokens) {
    m.generation = TRY(checkpoint_generation(m.path));
    const std::string taken = apply_generation_defaults(m.generation, given, sampling, tokens);
    if (!taken.empty()) Progress().note("note: the model's generation_config.json sets" + taken);
    return {};
}
