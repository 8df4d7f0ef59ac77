// start.cpp - finds the start of `flatgpt train`: own checkpoint, other weights, or random ones.
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <map>
#include <sstream>

#include "checkpoint/adapter_files.h"
#include "checkpoint/gguf.h"
#include "files/gguf.h"
#include "model/adapter.h"
#include "model/families/families.h"
#include "train.h"

// Finds the newest whole checkpoint under a path; a note names damaged ones after it.
Result<ModelSource> Trainer::newest(const std::string& path) {
    std::vector<std::string> damaged;
    Result<ModelSource> found = checkpoint_find(path, &damaged);
    for (const std::string& why : damaged) progress.note("passed over: " + why);
    return found;
}

Status Trainer::find_start() {
    TRY(agreed(ranks.first() ? look_for_start() : Status{}));
    if (!ranks.coordinator) return {};
    start = ranks.coordinator->broadcast(start);
    resuming = ranks.coordinator->broadcast(resuming ? "yes" : "") == "yes";
    decaying = ranks.coordinator->broadcast(decaying ? "yes" : "") == "yes";
    return {};
}

Status Trainer::look_for_start() {
    Status unreadable;
    const std::vector<std::string> mine = checkpoint_list(o.out, &unreadable);
    TRY(unreadable);
    resuming = o.resume == "auto" ? !mine.empty() : o.resume != "no";
    decaying = !resuming && !o.decay_from.empty();
    const std::string& path = decaying ? o.decay_from : !resuming ? o.from : o.resume == "auto" ? o.out : o.resume;
    if (path.empty()) return {};
    start = TRY(newest(without_slashes(path))).path;
    // A decay takes weights, moments and position from the checkpoint, but has its own directory.
    for (const char* file : {"/state.json", "/optimizer.safetensors"})
        if (decaying && access((start + file).c_str(), F_OK) != 0 &&
            access((start + file + ".index.json").c_str(), F_OK) != 0)
            return fail(
                Exit::usage,
                "--decay-from %s: expected a checkpoint of a run, with its optimizer's state, found none of its "
                "%s; --from fine-tunes weights",
                start.c_str(), file + 1);
    if (decaying) return resuming = true, Status{};
    // Checkpoints in --out that are newer than `start` would remain there, and a later --resume
    // auto would take them instead of this run's.
    auto name = [](const std::string& dir) { return std::filesystem::path(dir).filename(); };
    if (resuming && o.resume != "auto" && !mine.empty() && name(mine.back()) > name(start))
        return fail(Exit::usage, "--resume %s: %s is newer; another --out, or remove what is newer", start.c_str(),
                    mine.back().c_str());
    return {};
}

namespace {
std::map<std::string, std::string> toml_rows(const std::string& toml) {
    std::istringstream lines(toml);
    std::map<std::string, std::string> rows;
    for (std::string row; std::getline(lines, row);)
        if (const size_t equals = row.find(" = "); equals != std::string::npos)
            rows[row.substr(0, equals)] = row.substr(equals + 3);
    return rows;
}
// Options that differ from the checkpoint's: "batch 4 -> 8, lr 0.001 -> 0.0005".
std::vector<std::string> changed_options(const std::string& before, const std::string& now) {
    const std::map<std::string, std::string> old = toml_rows(before);
    std::vector<std::string> changed;
    for (const auto& [key, value] : toml_rows(now)) {
        const auto was = old.find(key);
        const bool written_anew = was != old.end() && was->second + ".0" == value;    // by older versions: warmup
        if (key == "out" || key == "resume" || was == old.end() || was->second == value || written_anew) continue;
        changed.push_back(key + " " + was->second + " -> " + value);
    }
    return changed;
}
}    // namespace

// Returns the config that --model names. there: o.model is a directory or GGUF. base: source of the
// tokenizer; if it is empty (no --from), it is set to that directory or GGUF.
Result<Config> Trainer::named_model(bool there, ModelSource& base) {
    if (o.model.empty() || (there && resuming)) return fail(Exit::usage, "--model %s", o.model.c_str());
    if (!there) return config_named(o.model, o.context ? o.context : o.seq_len);
    const bool config_here = access((o.model + "/config.json").c_str(), F_OK) == 0;    // config.json alone is enough
    const ModelSource found = config_here ? ModelSource(o.model) : TRY(newest(o.model));
    if (base.path.empty()) base = found;
    const bool weights = !config_here || access((found.path + "/model.safetensors").c_str(), F_OK) == 0;
    if (weights && o.from.empty() && !o.init)
        progress.note("new weights in the shape of " + o.model +
                      " (--init says that this is meant; --from takes "
                      "its weights)");
    return checkpoint_config(found);
}

Status Trainer::extend_context() {
    if (!o.context) return {};
    if (resuming ? o.context != config.T : o.context < config.T)
        return fail(Exit::usage, "--context %d: %s has %d already%s", o.context, start.c_str(), config.T,
                    resuming ? "; a resumed run keeps it, another --out with --from may have more"
                             : "; --seq-len says how long the sequences are");
    if (resuming) return {};
    ContextExtension to;
    to.context = o.context;
    for (size_t i = 0; i < config_rows().size(); i++) {
        if (config_rows()[i].member == ConfigRow::Member(&Config::rope_scaling)) to.scaling = o.shape.words[i];
        if (config_rows()[i].member == ConfigRow::Member(&Config::rope_factor)) to.factor = o.shape.numbers[i];
    }
    return ::extend_context(&config, to);
}

// A resumed run has model and tokenizer from its checkpoint, since files named by --from, --model
// and --tokenizer may no longer exist.
Status Trainer::choose_model() {
    task = &objective_row(o);
    std::error_code error;
    const bool given = !o.model.empty();
    const bool there = std::filesystem::exists(o.model, error) || o.model.ends_with(".gguf");
    if (!given && o.from.empty() && !resuming) resolve("model", "\"\"", "\"" + (o.model = "gpt2") + "\"");
    if (o.init && !there) return fail(Exit::usage, "--init: expected --model with a directory or a GGUF file");
    ModelSource base = start;
    const Result<Config> named = named_model(there, base);
    if (!resuming && !o.model.empty()) TRY(named.status);
    config = TRY(base.path.empty() ? named : checkpoint_config(base));
    if (!start.empty()) TRY(extend_context());
    Config asked = config;
    // The config that --model names must equal that of the checkpoint at the start. A resumed run
    // checks only names such as gpt2 (named.ok()), because a directory or GGUF may be gone. It
    // checks nothing if the run began with this --model, because other options may have changed the
    // shape. It checks nothing with --from either: older versions then wrote model = "gpt2" to
    // run.toml, although the user had given no --model.
    auto began_with_it = [&] {
        const Result<TrainState> before = checkpoint_state(start);
        return before.ok() && toml_rows(before.value.config)["model"] == toml_rows(o.resolved)["model"];
    };
    const bool compared = given && !start.empty() && named.ok();
    if (compared && !(resuming && (!o.from.empty() || began_with_it()))) {
        asked = named.value;
        asked.V = config.V, asked.norm_eps = config.norm_eps;
        asked.T = resuming && o.seq_len && !o.context ? o.seq_len : config.T;
    }
    asked = config_with(asked, o.shape);
    if (o.objective != "auto") asked.mask_kind = objective_row(o).mask_kind;
    if (!resuming) config.mask_kind = asked.mask_kind;    // weights may continue with another mask
    const bool resize = o.resize_vocab && !start.empty() && !resuming;
    if (resize) asked.V = config.V;
    const int length = o.seq_len ? std::max(o.seq_len, o.source_len) : 0;
    const int own = o.context ? o.context : length, context = start.empty() && own ? own : asked.T;
    // A window as long as the context limits nothing and is removed, except in models in which the
    // window decides which layers have RoPE, another theta, or projections of global tokens.
    const bool decides = asked.rope_local_theta > 0 || (asked.family->layers & Family::rope_if_windowed) ||
                         asked.global_projections;
    if (asked.window >= context && !decides && (start.empty() || asked.window != config.window)) {
        progress.note(formatted("window %d is no limit in a context of %d: none is set", asked.window, context));
        asked.window = asked.stride = asked.global_tokens = asked.dilation = asked.random_blocks = 0;
    }
    if (const auto other = config_listed(config, &asked); !start.empty() && !other.empty())
        return fail(Exit::usage,
                    "%s has %s, the command line asks for %s; leave out --model, --seq-len and the "
                    "options of the shape to take it as it is",
                    start.c_str(), config_text(config, other).c_str(), config_text(asked, other).c_str());
    config = asked;
    config.zero_init = o.zero_init;
    TRY(choose_tokenizer(base));
    if (resize) {
        start_vocabulary = config.V;
        config.V = o.shape.V ? o.shape.V : tokenizer.vocab_size() ? tokenizer.vocab_size() : config.V;
        if (config.V != start_vocabulary)
            progress.note(formatted("the vocabulary of %d is resized to %d", start_vocabulary, config.V));
    }
    if (start.empty()) {
        if (!o.shape.V && tokenizer.vocab_size()) config.V = tokenizer.vocab_size();
        if (own) config.T = own;
    }
    TRY(tokenizer.fits(config.V, Exit::usage, start.empty() || resuming ? "" : "; --resize-vocab adds rows for them"));
    length_given = o.seq_len > 0;
    if (!length_given) o.seq_len = config.default_length();
    if (o.seq_len > config.T)
        return fail(Exit::usage, "--seq-len %d: the model's context has %d positions", o.seq_len, config.T);
    TRY(choose_head());
    TRY(choose_trained());
    TRY(choose_objective());
    TRY((this->*task->choose)());
    return check_overrides(o.shape, config);
}

Status Trainer::choose_trained() {
    const bool has_adapters = config.adapter.any();    // those of the checkpoint at the start
    if (o.lora_rank && start.empty())
        return fail(Exit::usage, "--lora-rank %d: adapters change a model that is there; give it by --from",
                    o.lora_rank);
    if (o.lora_rank) {
        Adapter wanted = TRY(adapter_for(config, o.lora_rank, o.lora_targets));
        const double rank = o.lora_rank, alpha = o.lora_alpha > 0 ? o.lora_alpha : 2 * rank;
        wanted.scale = float(alpha / (o.lora_rank_stabilised ? std::sqrt(rank) : rank));
        wanted.magnitudes = o.lora_dora;
        wanted.dropout = config.adapter.dropout;
        wanted.base = has_adapters ? config.adapter.base : std::filesystem::absolute(start).string();
        if (has_adapters ? wanted != config.adapter : resuming)
            return fail(Exit::usage, "%s has %s; leave out the options --lora-...", start.c_str(),
                        has_adapters ? "adapters of another rank, alpha or other targets, or another --lora-dora"
                                     : "no adapters");
        config.adapter = wanted;
    }
    if (o.lora_dropout < 0 && o.lora_dropout != -1)
        return fail(Exit::usage, "--lora-dropout %g: expected 0 to 0.99, or -1: that of --from's adapters",
                    o.lora_dropout);
    if (o.lora_dropout < 0) {
        o.lora_dropout = double(config.adapter.dropout);
        resolve("lora-dropout", "-1.0", o.lora_dropout > 0 ? formatted("%.9g", o.lora_dropout) : "0.0");
    }
    config.adapter.dropout = float(o.lora_dropout);
    if (config.adapter.magnitudes && o.lora_dropout > 0)
        return fail(Exit::usage,
                    "dropout %g of the adapters: those with magnitudes (DoRA) take none; give --lora-dropout 0",
                    o.lora_dropout);
    if (config.adapter.any() && o.resize_vocab)
        return fail(Exit::usage, "--resize-vocab: %s has adapters, which do not hold the embeddings; merge them first",
                    start.c_str());
    if (!config.adapter.any() && (o.lora_dropout > 0 || o.lora_plus != 1))
        return fail(Exit::usage, "%s needs --lora-rank, or adapters to go on with (--from)",
                    o.lora_dropout > 0 ? "--lora-dropout" : "--lora-plus");
    std::istringstream patterns(o.train_only);
    for (std::string pattern; std::getline(patterns, pattern, ',');) config.trained.push_back(pattern);
    if (!config.trained.empty() && config.adapter.any())
        return fail(Exit::usage, "--train-only: %s has adapters, which alone are trained; merge them first",
                    start.c_str());
    if (resuming && !TRY(as_before("train-only")))
        return fail(Exit::usage,
                    "--train-only: %s was trained with another value; another --out, with --from, may have it",
                    start.c_str());
    return check_trained(config);
}

ModelOptions Trainer::teacher_options() const {
    ModelOptions options;
    options.model = o.teacher;
    return options;
}
Capacity Trainer::teacher_capacity(int B) const {
    return {B, o.seq_len, plan.spans || config.mask_kind != MaskKind::causal};
}
Result<std::vector<MemoryRow>> Trainer::teacher_memory(int B) const {
    return model_memory(teacher_options(), device.model->op, device.gpu, o.device.dtype,
                        [&](const Config&, bool) { return teacher_capacity(B); });
}

// The teacher reads the same tokens, so its vocabulary must be this model's.
Status Trainer::open_teacher() {
    if (o.teacher.empty()) return {};
    DeviceOptions same = o.device;
    if (device.gpu) same.dtype = dtype_name(device.dtype);
    if (device.gpu && ranks.count() > 1)
        return fail(Exit::usage,
                    "--teacher %s: on GPUs a teacher is for one rank, found %d: each would time the teacher's products "
                    "for itself, and a resumed run would round differently; train on one GPU, or on CPUs",
                    o.teacher.c_str(), ranks.count());
    TRY(load_model(teacher, teacher_options(), same, false,
                   [&](const Config&, bool) { return teacher_capacity(plan.B); }));
    // Opening a device for inference turns the timing of algorithms off.
    if (device.gpu) TRY(open_device(o.device, true, ranks.info.local_rank));
    const Model& other = *teacher.model;
    const bool known = teacher.tokenizer.vocab_size() && tokenizer.vocab_size();
    if (other.c.V != config.V || (known && teacher.tokenizer.fingerprint() != tokenizer.fingerprint()))
        return fail(Exit::usage,
                    "--teacher %s: expected a model with this model's tokenizer (%d tokens), found another one (%d "
                    "tokens)",
                    o.teacher.c_str(), config.V, other.c.V);
    if (other.plan.S < plan.S)
        return fail(Exit::usage, "--teacher %s: its context of %d tokens is shorter than --seq-len %d",
                    o.teacher.c_str(), other.c.T, plan.S);
    if (other.c.mask_kind != config.mask_kind)
        return fail(Exit::usage, "--teacher %s: it is trained with another --objective", o.teacher.c_str());
    if (other.op.activation != device.model->op.activation)
        return fail(Exit::usage, "--teacher %s: it computes with another type than this model; give --dtype",
                    o.teacher.c_str());
    device.model->distillation = {float(o.distill_temperature), float(o.distill_mix)};
    return {};
}

// QLoRA (Dettmers et al. 2023): only the adapters are trained, so a CPU may read the base's weights
// as blocks of integers, without a copy in floats.
Status Trainer::keep_packed() {
    const bool asked = o.quantize != "none";
    if (asked && device.gpu)
        return fail(Exit::usage, "--quantize %s: a GPU computes with bf16 or fp32; --device cpu", o.quantize.c_str());
    if (!config.adapter.any() || device.gpu || (!asked && o.device.dtype != "auto")) return {};
    packed_base = TRY(base_of(start));
    plan.stored = asked ? gguf_stored(*find_gguf_file_type(o.quantize), config)
                        : TRY(checkpoint_stored(packed_base, config));
    const std::vector<Tensor> tensors = config_tensors(config);
    const bool blocks = std::ranges::any_of(tensors, [&](const Tensor& t) {
        return !t.adapter && std::ranges::any_of(plan.stored(t), [](const FormatRows& r) {
            return in_blocks(packed_format(r.format));
        });
    });
    if (!blocks && asked)
        return fail(Exit::usage, "--quantize %s: no matrix has rows of whole blocks of this type", o.quantize.c_str());
    if (!blocks) return {};
    if (o.zero)
        return fail(Exit::usage, "--zero %d: beside packed weights every rank has all adapters; leave it out", o.zero);
    Table table(cpu_packed_ops());
    table.linear_gelu_forward = nullptr;    // it keeps nothing for a backward pass
    device.model = std::make_unique<Model>(table);
    device.text = formatted("%s, %s", table.name, counted(cpu_threads(), "thread").c_str());
    return {};
}

Status Trainer::choose_objective() {
    const bool encodes = config.mask_kind == MaskKind::all && o.labels.empty(),
               mlm = encodes && config.head == HeadKind::tokens;
    if (!mlm && o.mask_token >= 0) return fail(Exit::usage, "--mask-token needs --objective mlm");
    if (o.attention_dropout < 0 && o.attention_dropout != -1)
        return fail(Exit::usage, "--attention-dropout %g: expected 0 to 0.99, or -1: as --dropout says",
                    o.attention_dropout);
    for (auto [name, value, usual] : {std::tuple{"--balance-loss", o.balance_loss, TrainOptions{}.balance_loss},
                                      {"--router-z-loss", o.router_z_loss, TrainOptions{}.router_z_loss}})
        if (value != usual && !config.experts) return fail(Exit::usage, "%s %g needs --experts", name, value);
    if (o.attention_dropout > 0 && config.recurrent_layers_below(config.L) == config.L)
        return fail(Exit::usage,
                    "--attention-dropout %g, --linear-attention without --softmax-every: no layer has the "
                    "probabilities that it drops; leave it out",
                    o.attention_dropout);
    if (!mlm) config.mask = -1;    // the starting model may have one
    if (encodes && samples())
        return fail(Exit::usage,
                    "%s, --objective mlm: such a model guesses masked tokens, it does not "
                    "write text",
                    o.sample_every ? "--sample-every" : "--sample-prompts");
    if (mlm && resuming && o.mask_token >= 0 && o.mask_token != config.mask)
        return fail(Exit::usage, "--mask-token %d: %s was trained with %d", o.mask_token, start.c_str(), config.mask);
    if (mlm && o.mask_token >= 0) config.mask = o.mask_token;
    if (mlm && config.mask < 0) config.mask = mask_token(tokenizer);
    if (mlm && config.mask < 0) {
        config.mask = tokenizer.vocab_size() ? tokenizer.vocab_size() : config.V;
        if (config.mask == config.V && !start.empty() && !o.resize_vocab)
            return fail(Exit::usage,
                        "--objective mlm: the vocabulary of %s has no token for masks; --resize-vocab "
                        "adds one, --mask-token names one",
                        start.c_str());
        if (o.shape.V && config.mask == config.V)
            progress.note(formatted("--vocab %d has no token for masks: the vocabulary gets one more, token %d",
                                    config.V, config.mask));
        config.V = std::max(config.V, config.mask + 1);
    }
    objective = TRY(objective_of(config, tokenizer, o.documents, o.mask_fraction, uint64_t(o.seed)));
    objective.labelled = !o.labels.empty();
    task = &objective_row(o, config);
    if (o.pack && config.predicts_next())
        return fail(Exit::usage, "--pack: mlm-nsp learns from one pair of texts in each sequence; leave it out");
    objective.packed = o.pack && task->read;    // documents of shards are apart with --documents
    return {};
}

Result<bool> Trainer::as_before(const std::string& key) const {
    const std::map<std::string, std::string> before = toml_rows(TRY(checkpoint_state(start)).config);
    const auto was = before.find(key);    // a run of an older version has no such option
    return was == before.end() || was->second == toml_rows(o.resolved)[key];
}

// A resumed run uses its checkpoint's tokenizer; --tokenizer must be equal, unless its file is
// gone. A new run uses --tokenizer, else the one beside the weights, else GPT-2's if its size fits.
Status Trainer::choose_tokenizer(const ModelSource& base) {
    if (!base.path.empty()) tokenizer = TRY(checkpoint_tokenizer(base));
    if (!base.path.empty()) generation = TRY(checkpoint_generation(base.path));
    const bool known = tokenizer.vocab_size() > 0;
    bool gone = false;
    if (resuming && o.tokenizer != "gpt2" && access(o.tokenizer.c_str(), F_OK) != 0) {
        gone = TRY(as_before("tokenizer"));
    }
    if (!o.tokenizer.empty() && !gone) {
        const Tokenizer given = TRY(Tokenizer::load(o.tokenizer));
        const bool same = known && given.fingerprint() == tokenizer.fingerprint();
        const std::string differ = "--tokenizer " + o.tokenizer + " (" + std::to_string(given.vocab_size()) +
                                   " tokens) is not the one that " + base.path + " was trained with (" +
                                   (known ? std::to_string(tokenizer.vocab_size()) + " tokens)" : "it has none)");
        if (resuming && !same) return fail(Exit::usage, "%s; leave it out", differ.c_str());
        if (known && !same && !start.empty()) progress.note("warning: " + differ + ": its ids meant other text there");
        if (!same) tokenizer = given;
    } else if (!resuming && !known && !o.shape.V) {
        const Tokenizer gpt2 = Tokenizer::gpt2();
        // A dry run without data keeps the vocabulary size of the model that --model names.
        if (base.path.empty() && !has_data() && config.V != gpt2.vocab_size()) return {};
        vocabulary_assumed = base.path.empty();
        const int padded = int(round_up(gpt2.vocab_size(), 128));    // padded as by llm.c and nanoGPT
        if (base.path.empty() || (config.V >= gpt2.vocab_size() && config.V <= padded)) tokenizer = gpt2;
        if (!base.path.empty() && tokenizer.vocab_size())
            progress.note(base.path + " holds no tokenizer.json; its vocabulary of " + std::to_string(config.V) +
                          " is taken for GPT-2's");
    }
    if (samples() && !tokenizer.vocab_size())
        return fail(Exit::usage, "%s: the run has no tokenizer to write text with; give --tokenizer",
                    o.sample_every ? "--sample-every" : "--sample-prompts");
    return read_sample_prompts();
}

// ---- weights ------------------------------------------------------------------------------------

// Number of documents that begin in the shards; -1: unknown. Shards of older versions do not record
// it. With such a shard, the result is 0 if the shard's first token is not end-of-text, else -1.
static int64_t documents_in(const std::vector<Shard>& shards, int end_of_text) {
    int64_t all = 0;
    for (const Shard& s : shards) {
        int first = -1;
        // Errors are ignored here, because the loader reports them.
        if (!s.tokenizer && s.tokens && end_of_text >= 0) (void)shard_read(s, 0, 1, INT_MAX, &first);
        if (!s.tokenizer) return first >= 0 && first != end_of_text ? 0 : -1;
        all += s.documents;
    }
    return all;
}

Status Trainer::load() {
    state.seed = uint64_t(o.seed);
    state.data = data.fingerprint();
    state.documents = documents_in(data.shards(), tokenizer.end_of_text());
    if (resuming) return resume();
    if (start.empty()) {
        device.model->init(uint64_t(o.seed));
        return {};
    }
    const bool ours = access((start + "/state.json").c_str(), F_OK) == 0;
    const int64_t before = ours ? TRY(checkpoint_state(start)).documents : -1;
    if (before < 0) state.documents = -1;
    else if (state.documents >= 0) state.documents += before;
    if (new_head) return load_below_head();
    TRY(start_vocabulary && start_vocabulary != config.V ? load_resized() : checkpoint_weights(start, *device.model));
    if (config.adapter.any() && !is_adapter(start)) device.model->store.init(config, uint64_t(o.seed), true);
    return {};
}

// Embeddings of tokens that the checkpoint lacks start as the mean of its rows, to be as likely as
// an average token.
Status Trainer::load_resized() {
    Config before = config;
    before.V = start_vocabulary, before.mask = -1;
    Model old(cpu_ops<float>());
    TRY(old.allocate(before, {RunMode::infer, 1, 1}));
    TRY(checkpoint_weights(start, old));
    for (size_t i = 0; i < old.tensors.size(); i++) {
        const Tensor &from = old.tensors[i], &to = device.model->tensors[i];
        std::vector<float> x(size_t(from.size()));
        old.read(StateKind::weights, from.offset, from.size(), x.data());
        if (from.file_rows != to.file_rows) {
            const size_t cols = size_t(to.cols), rows = size_t(from.file_rows);
            std::vector<double> mean(cols);
            for (size_t k = 0; k < rows * cols; k++) mean[k % cols] += double(x[k]) / double(rows);
            x.resize(std::min(rows, size_t(to.file_rows)) * cols);
            for (size_t k = x.size(); k < size_t(to.file_rows) * cols; k++) x.push_back(float(mean[k % cols]));
            x.resize(size_t(to.size()));    // rows that pad the vocabulary are zero
        }
        device.model->write(StateKind::weights, to.offset, to.size(), x.data());
    }
    return {};
}

Status Trainer::resume() {
    const TrainState s = TRY(checkpoint_state(start));
    if (s.data != state.data)
        return fail(Exit::usage, "%s: trained on other %s than %s %s %s", start.c_str(), task->noun, task->flag,
                    (o.*task->files).c_str(), task->settings);
    if (s.seed != state.seed)
        return fail(Exit::usage, "%s: trained with --seed %llu, asked for is %llu", start.c_str(),
                    (unsigned long long)s.seed, (unsigned long long)state.seed);
    if (s.step > o.steps)
        return fail(Exit::usage, "--steps %lld: the run has done %s already; to go on, ask for more than that",
                    (long long)o.steps, counted(s.step, "step").c_str());
    int64_t samples = 0;    // samples that the run has read
    if (!mul_checked(s.epoch, data.samples(), &samples) || __builtin_add_overflow(samples, s.index, &samples) ||
        samples >= int64_t(1) << 62)
        return fail(Exit::input, "%s/state.json: epoch %lld, index %lld: expected less than 2^62 sequences in all",
                    start.c_str(), (long long)s.epoch, (long long)s.index);
    device_choose(s.algorithms);
    TRY(checkpoint_weights(start, *device.model));
    TRY(checkpoint_optimizer(start, *device.model));
    device.model->train.set_updates(s.updates);
    const uint64_t validation = state.validation;
    state = s;
    if (!plan.average) state.averaged = 0;
    state.decay_begin = o.decay_from.empty() ? -1 : schedule.decay_begin;
    state.decay_rate = o.decay_from.empty() ? 0 : schedule.lr;
    if (decaying) {    // best step and metrics belong to the other run
        state.best_step = -1, state.best_loss = INFINITY, state.bad_validations = 0;
        state.metrics_bytes = state.samples_bytes = 0;
        state.unwritten.clear();
    }
    data.seek({state.epoch, state.index});
    if (validation && state.validation != validation)    // losses of other data cannot be compared
        state.best_step = -1, state.best_loss = INFINITY, state.bad_validations = 0;
    if (validation) state.validation = validation;
    previous_best = {state.best_step, state.best_loss};
    // Options of the shape that are not given again keep in run.toml the values of the resumed run.
    std::map<std::string, std::string> before = toml_rows(s.config);
    if (before.contains("model")) resolve("model", "\"\"", before["model"]);
    if (before.contains("context")) resolve("context", "0", before["context"]);
    for (const Flag& flag : config_flags(o.shape))
        if (const std::string key = flag.name.substr(2); before.contains(key))
            resolve(key, !flag.choices.empty() ? "\"model\"" : holds<double>(flag) ? "0.0" : "0", before[key]);
    std::vector<std::string> changed = changed_options(s.config, o.resolved);
    const std::string backend = device.model->op.name;
    if (!s.backend.empty() && s.backend != backend) changed.push_back(s.backend + " -> " + backend);
    if (decaying)    // options that a decay ignores
        std::erase_if(changed, [](const std::string& c) {
            return c.starts_with("lr ") || c.starts_with("lr-schedule ") || c.starts_with("warmup ");
        });
    const std::string decay = formatted(": from %.3g to %.3g in %s", schedule.lr, schedule.lr * schedule.final_fraction,
                                        counted(o.steps - state.step, "step").c_str());
    progress.note((decaying ? "the decay begins from " : "resumed from ") + start + " after step " +
                  std::to_string(state.step) + (decaying ? decay : "") + (changed.empty() ? "" : "; changed: ") +
                  join(changed, ", "));
    if (const std::string rate = new_rate(s); !rate.empty()) progress.note(rate);
    return {};
}

std::optional<Schedule> Trainer::schedule_before(const TrainState& before) const {
    std::map<std::string, std::string> rows = toml_rows(before.config);
    for (const char* key : {"lr", "final-lr-frac", "warmup", "steps", "lr-schedule", "total-batch"})
        if (!rows.contains(key)) return {};
    // Older versions have no row for the other options.
    auto number = [&](const char* key, double unset = 0) {
        return rows.contains(key) ? atof(rows[key].c_str()) : unset;
    };
    const std::string decay = rows["lr-schedule"];
    // state.json may hold any value; those that would overflow are out of the options' ranges.
    const double most_tokens = std::min(1e12, double(batches.tokens) * (1 << 20));
    for (auto [key, least, most] : {std::tuple{"warmup", -1.0, 1e12},
                                    {"steps", 0.0, 99999999.0},
                                    {"epochs", 0.0, 1e6},
                                    {"total-batch", 0.0, most_tokens},
                                    {"batch-warmup", 0.0, 1e6},
                                    {"decay-part", 0.0, 1.0}})
        if (!(number(key) >= least && number(key) <= most)) return {};
    if (decay.size() < 2) return {};
    const BatchSchedule b = {batches.tokens, std::max<int64_t>(1, int64_t(number("total-batch")) / batches.tokens),
                             int64_t(number("batch-warmup"))};
    int64_t steps = int64_t(number("steps"));
    if (steps == 0) steps = steps_of(int64_t(number("epochs")), b);    // passes over the data
    const double final_fraction = number("final-lr-frac");
    if (before.decay_begin >= 0) return decay_from(before.decay_begin, before.decay_rate, final_fraction, steps);
    return schedule_of(
        {decay.substr(1, decay.size() - 2), number("lr"), final_fraction, number("warmup"), number("decay-part", 0.2)},
        steps);
}

// Returns a note if the rate jumps here. A schedule spans all steps of a run, so the rate of a
// resumed run jumps if --lr, --steps or the like changed.
std::string Trainer::new_rate(const TrainState& before) const {
    const std::optional<Schedule> old = schedule_before(before);
    const int64_t next = before.step;
    if (decaying || !old || *old == schedule || next == 0 || next >= o.steps) return "";
    const double was = learning_rate(*old, next - 1), now = learning_rate(schedule, next);
    const std::string without = formatted(", where the old one had %.3g", learning_rate(*old, next));
    return formatted("the schedule of the learning rate changes: %.3g in step %lld, then %.3g in step %lld%s", was,
                     (long long)next, now, (long long)next + 1, next < old->steps ? without.c_str() : "");
}
