// train_setup.cpp - `flatgpt train` up to the first step: flags, model, data, run directory, resume.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "train.h"

int64_t resident_bytes() {
    long pages = 0, resident = 0;
    FILE* f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    int got = fscanf(f, "%ld %ld", &pages, &resident);
    fclose(f);
    return got == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

Trainer::~Trainer() {
    if (metrics) fclose(metrics);
    if (lock >= 0) close(lock);
    gpt_free(g);
}

Status Trainer::choose_model() {
    const std::string& base = o.from.empty() ? o.model : o.from;
    const bool directory = std::filesystem::is_directory(base);
    std::string dir;
    if (directory) {
        std::vector<std::string> damaged;
        Result<std::string> found = checkpoint_find(base, &damaged);
        for (const std::string& why : damaged) progress.note("passed over: " + why);
        TRY(found.status);
        dir = found.value;
    } else if (!o.from.empty()) {
        return fail(Exit::input, "--from %s: no such directory; expected a run, a checkpoint or a Hugging Face GPT-2",
                    base.c_str());
    }
    Result<Config> named = directory ? checkpoint_config(dir) : config_named(base);
    TRY(named.status);
    config = named.value;
    if (o.layers) config.L = o.layers;
    if (o.heads) config.NH = o.heads;
    if (o.channels) config.C = o.channels, config.F = 4 * o.channels;
    if (!o.from.empty() && (o.layers || o.heads || o.channels))
        return fail(Exit::usage, "--from gives the model's sizes: --layers, --heads and --channels cannot change them");

    if (!o.tokenizer.empty()) {
        Result<Tokenizer> t = Tokenizer::load(o.tokenizer);
        TRY(t.status);
        tokenizer = t.value;
    } else if (directory) {
        Result<Tokenizer> t = checkpoint_tokenizer(dir);
        TRY(t.status);
        tokenizer = t.value;
    } else {
        tokenizer = Tokenizer::gpt2();
    }
    if (o.from.empty()) {
        if (tokenizer.vocab_size()) config.V = tokenizer.vocab_size();
        if (o.seq_len) config.T = o.seq_len;
    }
    if (tokenizer.vocab_size() > config.V)
        return fail(Exit::usage, "the tokenizer has %d tokens, the model %d", tokenizer.vocab_size(), config.V);
    if (!o.seq_len) o.seq_len = config.T;
    if (o.seq_len > config.T)
        return fail(Exit::usage, "--seq-len %d: the model's context has %d positions", o.seq_len, config.T);
    if (!o.from.empty()) o.from = dir;
    return config_check(config);
}

Status Trainer::open_data() {
    LoaderConfig l;
    l.pattern = o.data, l.raw_u16 = o.raw_u16, l.B = o.batch, l.S = o.seq_len, l.vocab = config.V,
    l.seed = uint64_t(o.seed);
    Result<Loader> opened = Loader::open(l);
    TRY(opened.status);
    data = std::move(opened.value);
    if (!o.val.empty()) {
        l.pattern = o.val, l.shuffle = false;
        Result<Loader> v = Loader::open(l);
        TRY(v.status);
        val = std::move(v.value);
    }
    const int64_t micro = int64_t(o.batch) * o.seq_len;
    if (o.total_batch == 0) o.total_batch = micro;
    if (o.total_batch % micro)
        return fail(Exit::usage, "--total-batch %lld is not a multiple of batch x seq-len = %lld",
                    (long long)o.total_batch, (long long)micro);
    accumulate = int(o.total_batch / micro);
    if (o.steps == 0) o.steps = std::max<int64_t>(1, data.samples() * o.seq_len / o.total_batch);
    if (o.warmup < 0) o.warmup = std::min<int64_t>(700, o.steps / 10);
    if (o.warmup > o.steps)
        return fail(Exit::usage, "--warmup %lld is longer than --steps %lld", (long long)o.warmup, (long long)o.steps);
    schedule = {o.lr_schedule == "cosine"   ? Decay::cosine
                : o.lr_schedule == "linear" ? Decay::linear
                : o.lr_schedule == "wsd"    ? Decay::wsd
                                            : Decay::constant,
                o.lr, o.final_lr_frac, o.warmup, o.steps};
    tokens.resize(size_t(micro)), targets.resize(size_t(micro));
    return {};
}

Status Trainer::dry_run() {
    printf("model         %s parameters: %d layers, %d heads, %d channels, context %d, vocabulary %d\n",
           human_count(double(config_parameters(config))).c_str(), config.L, config.NH, config.C, config.T, config.V);
    printf("data          %s tokens in %zu shards, %lld windows of %d\n", human_count(double(data.tokens())).c_str(),
           data.shards().size(), (long long)data.samples(), o.seq_len);
    printf("step          %lld tokens = %d x %d x %d (accumulated); %lld steps = %s tokens, %.2f epochs\n",
           (long long)o.total_batch, accumulate, o.batch, o.seq_len, (long long)o.steps,
           human_count(double(o.total_batch) * double(o.steps)).c_str(),
           double(o.total_batch) * double(o.steps) / double(std::max<int64_t>(1, data.samples() * o.seq_len)));
    const double flops = config_flops_per_token(config, o.seq_len);
    printf("work          %.3g GFLOP per token, %.3g GFLOP per step, %.3g TFLOP in all\n", flops / 1e9,
           flops * double(o.total_batch) / 1e9, flops * double(o.total_batch) * double(o.steps) / 1e12);
    printf("operations    %s, %d threads\nmemory\n", ops->name, cpu_threads());
    std::vector<MemoryRow> rows = gpt_memory(config, *ops, Use::train, o.batch, o.seq_len);
    int64_t largest = 0;    // a matrix is turned on its way to a file
    for (const Tensor& t : config_tensors(config))
        if (t.transposed) largest = std::max(largest, t.size() * int64_t(sizeof(float)));
    rows.push_back({"a checkpoint in the making", 2 * largest + (4 << 20)});
    rows.push_back({"program, libraries, tokenizer, batches", resident_bytes()});
    int64_t total = 0;
    for (const MemoryRow& r : rows) {
        printf("  %-40s %12s\n", r.purpose, human_bytes(double(r.bytes)).c_str());
        total += r.bytes;
    }
    printf("  %-40s %12s  (%lld bytes)\n", "total", human_bytes(double(total)).c_str(), (long long)total);
    return {};
}

Status Trainer::open_run() {
    std::error_code error;
    std::filesystem::create_directories(o.out, error);
    if (error) return fail(Exit::io, "--out %s: cannot be created: %s", o.out.c_str(), error.message().c_str());
    const std::string path = o.out + "/lock";
    lock = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (lock < 0) return fail(Exit::io, "%s: cannot be written: %s", path.c_str(), strerror(errno));
    if (flock(lock, LOCK_EX | LOCK_NB) != 0)
        return fail(Exit::usage, "%s: another flatgpt train is using this directory", o.out.c_str());
    if (o.resume == "no" && !checkpoint_list(o.out).empty())
        return fail(Exit::usage,
                    "%s holds checkpoints already: --resume auto goes on from the newest, another --out starts afresh",
                    o.out.c_str());
    return {};
}

// Weights: from the checkpoint to resume, from --from, or new ones.
Status Trainer::load() {
    state.seed = uint64_t(o.seed);
    state.data = data.fingerprint();
    std::string dir;
    if (o.resume == "auto") {
        if (!checkpoint_list(o.out).empty()) {
            std::vector<std::string> damaged;
            Result<std::string> found = checkpoint_find(o.out, &damaged);
            for (const std::string& why : damaged) progress.note("passed over: " + why);
            TRY(found.status);
            dir = found.value;
        }
    } else if (o.resume != "no") {
        dir = o.resume;
        TRY(checkpoint_verify(dir));
    }
    if (!dir.empty()) return resume_from(dir);
    if (!o.from.empty()) return checkpoint_weights(o.from, g);
    gpt_init(g, uint64_t(o.seed));
    return {};
}

Status Trainer::resume_from(const std::string& dir) {
    Result<Config> saved = checkpoint_config(dir);
    TRY(saved.status);
    if (!(saved.value == config))
        return fail(Exit::usage,
                    "%s: the checkpoint's model has L=%d NH=%d C=%d T=%d V=%d, the command line asks for L=%d NH=%d "
                    "C=%d T=%d V=%d",
                    dir.c_str(), saved.value.L, saved.value.NH, saved.value.C, saved.value.T, saved.value.V, config.L,
                    config.NH, config.C, config.T, config.V);
    Result<TrainState> s = checkpoint_state(dir);
    TRY(s.status);
    if (s.value.data != state.data)
        return fail(Exit::usage, "%s: trained on other shards than --data %s names, or with another --seq-len",
                    dir.c_str(), o.data.c_str());
    if (s.value.seed != state.seed)
        return fail(Exit::usage, "%s: trained with --seed %llu, the command line says %llu", dir.c_str(),
                    (unsigned long long)s.value.seed, (unsigned long long)state.seed);
    TRY(checkpoint_weights(dir, g));
    TRY(checkpoint_optimizer(dir, g));
    state = s.value;
    data.seek({state.epoch, state.index});
    progress.note("resumed from " + dir + " after step " + std::to_string(state.step));
    return {};
}

Command train_command() {
    auto o = std::make_shared<TrainOptions>();
    Command c{
        "train",
        "Train a GPT on token shards, from scratch or from a checkpoint.",
        "flatgpt train --data 'data/austen_train_*.bin' --val 'data/austen_val_*.bin' --tokenizer tok.json --model d6 "
        "--out runs/a --batch 8 --seq-len 256 --steps 500 --lr 1e-3",
        {},
        {},
        nullptr};
    c.flags = {
        {"--data", &o->data, "training shards: a path, a glob pattern, or several with commas", 0, 0, {}, true},
        {"--val", &o->val, "validation shards, likewise"},
        {"--raw-u16", &o->raw_u16, "the shards are headerless uint16 tokens (nanoGPT's)"},
        {"--tokenizer", &o->tokenizer, "gpt2 or a tokenizer.json; none: the checkpoint's, else gpt2"},
        {"--out", &o->out, "the run's directory: checkpoints, metrics.jsonl, run.toml"},
        {"--model", &o->model,
         "gpt2, gpt2-medium, gpt2-large, gpt2-xl, dN (N layers, 64 N channels), or a directory whose config.json to "
         "take"},
        {"--layers", &o->layers, "layers; 0: the model's", 0, 1024},
        {"--heads", &o->heads, "attention heads; 0: the model's", 0, 1024},
        {"--channels", &o->channels, "channels, a multiple of the heads; 0: the model's", 0, 65536},
        {"--from", &o->from, "start from these weights (fine-tune): a run, a checkpoint or a Hugging Face GPT-2"},
        {"--resume", &o->resume,
         "auto: go on from the newest whole checkpoint in --out, if there is one; or a checkpoint's directory; no: "
         "start afresh"},
        {"--batch", &o->batch, "sequences per forward pass", 1, 65536},
        {"--seq-len", &o->seq_len, "tokens per sequence, and a new model's context; 0: the model's context", 0,
         1 << 20},
        {"--total-batch", &o->total_batch,
         "tokens per update, a multiple of batch x seq-len (gradients accumulate); 0: batch x seq-len", 0, 1e12},
        {"--steps", &o->steps, "updates in all; 0: one pass over the data", 0, 1e12},
        {"--lr", &o->lr, "peak learning rate", 0, 10},
        {"--warmup", &o->warmup, "steps of linear warm-up; -1: a tenth of the steps, 700 at most", -1, 1e12},
        {"--lr-schedule", &o->lr_schedule, "after the warm-up", 0, 0, {"cosine", "linear", "constant", "wsd"}},
        {"--final-lr-frac", &o->final_lr_frac, "the last step's learning rate as a part of --lr", 0, 1},
        {"--weight-decay", &o->weight_decay, "AdamW's decay, of matrices only", 0, 10},
        {"--beta1", &o->beta1, "AdamW", 0, 0.9999999},
        {"--beta2", &o->beta2, "AdamW", 0, 0.9999999},
        {"--grad-clip", &o->grad_clip, "largest global gradient norm; 0: no clipping", 0, 1e9},
        {"--skip-loss-z", &o->skip_loss_z,
         "skip an update whose loss is this many standard deviations above the last 128; 0: never", 0, 1e9},
        {"--skip-norm-z", &o->skip_norm_z, "likewise for the gradient norm", 0, 1e9},
        {"--eval-every", &o->eval_every, "steps between validations; 0: only at the end", 0, 1e12},
        {"--eval-batches", &o->eval_batches, "batches per validation; 0: all", 0, 1e12},
        {"--sample-every", &o->sample_every, "steps between samples; 0: none", 0, 1e12},
        {"--sample-prompt", &o->sample_prompt, "what a sample continues; none: begin a new document"},
        {"--sample-tokens", &o->sample_tokens, "tokens of a sample", 1, 1e6},
        {"--save-every", &o->save_every, "steps between checkpoints; 0: only at the end", 0, 1e12},
        {"--keep", &o->keep, "checkpoints to keep; 0: all", 0, 1e6},
        {"--seed", &o->seed, "of initial weights, data order and samples", 0, 9e18},
        {"--dry-run", &o->dry_run, "print parameters, memory, tokens and FLOPs per step, then stop"}};
    for (Flag& f : device_flags(o->device, "bf16 where the CPU multiplies it, else fp32")) c.flags.push_back(f);
    c.resolved = &o->resolved;
    c.run = [o] {
        Trainer t;
        t.o = *o;
        return t.run();
    };
    return c;
}
