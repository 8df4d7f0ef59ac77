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
}

// The newest whole checkpoint under a path, its damaged successors named.
Result<std::string> Trainer::newest(const std::string& path) {
    std::vector<std::string> damaged;
    Result<std::string> found = checkpoint_find(path, &damaged);
    for (const std::string& why : damaged) progress.note("passed over: " + why);
    return found;
}

Status Trainer::find_start() {
    resuming = o.resume == "auto" ? !checkpoint_list(o.out).empty() : o.resume != "no";
    const std::string& path = !resuming ? o.from : o.resume == "auto" ? o.out : o.resume;
    if (path.empty()) return {};
    Result<std::string> found = newest(path);
    TRY(found.status);
    start = found.value;
    // Checkpoints of another future would be pruned against this one's, and resumed in its place.
    const std::vector<std::string> mine = checkpoint_list(o.out);
    auto name = [](const std::string& dir) { return std::filesystem::path(dir).filename(); };
    if (resuming && o.resume != "auto" && !mine.empty() && name(mine.back()) > name(start))
        return fail(Exit::usage, "--resume %s: %s is newer; another --out, or remove what is newer", start.c_str(),
                    mine.back().c_str());
    return {};
}

// A resumed run takes model and tokenizer from its checkpoint: what --from, --model and --tokenizer named may be gone.
Status Trainer::choose_model() {
    std::string base = start;
    std::error_code error;
    const bool directory = std::filesystem::is_directory(o.model, error);
    if (base.empty() && directory) {
        Result<std::string> found = newest(o.model);
        TRY(found.status);
        base = found.value;
    }
    Result<Config> found = base.empty() ? config_named(o.model) : checkpoint_config(base);
    TRY(found.status);
    config = found.value;
    Config asked = config;
    if (resuming && o.from.empty() && !directory) {
        Result<Config> named = config_named(o.model);
        TRY(named.status);
        asked = named.value;
        asked.V = config.V, asked.T = o.seq_len ? o.seq_len : config.T, asked.norm_eps = config.norm_eps;
    }
    if (o.layers) asked.L = o.layers;
    if (o.heads) asked.NH = o.heads;
    if (o.channels) asked.C = o.channels, asked.F = 4 * o.channels;
    if (!start.empty() && !(asked == config))
        return fail(Exit::usage, "%s has L=%d NH=%d C=%d T=%d, the command line asks for L=%d NH=%d C=%d T=%d",
                    start.c_str(), config.L, config.NH, config.C, config.T, asked.L, asked.NH, asked.C, asked.T);
    config = asked;

    Result<Tokenizer> t = !resuming && !o.tokenizer.empty() ? Tokenizer::load(o.tokenizer)
                          : !base.empty()                   ? checkpoint_tokenizer(base)
                                                            : Tokenizer::gpt2();
    TRY(t.status);
    tokenizer = t.value;
    if (start.empty()) {
        if (tokenizer.vocab_size()) config.V = tokenizer.vocab_size();
        if (o.seq_len) config.T = o.seq_len;
    }
    if (tokenizer.vocab_size() > config.V)
        return fail(Exit::usage, "the tokenizer has %d tokens, the model %d", tokenizer.vocab_size(), config.V);
    if (!o.seq_len) o.seq_len = config.T;
    if (o.seq_len > config.T)
        return fail(Exit::usage, "--seq-len %d: the model's context has %d positions", o.seq_len, config.T);
    return config_check(config);
}

Status Trainer::choose_batch() {
    plan.use = Use::train;
    plan.B = o.batch, plan.S = o.seq_len;
    plan.recompute = o.recompute == "blocks"  ? Recompute::blocks
                     : o.recompute == "cheap" ? Recompute::cheap
                                              : Recompute::none;
    plan.master = !o.stochastic_rounding;
    if (o.batch) return {};
    if (o.total_batch % o.seq_len)
        return fail(Exit::usage, "--total-batch %lld is not a multiple of --seq-len %d", (long long)o.total_batch,
                    o.seq_len);
    // What is free now, less a twentieth: the allocator rounds up, and other processes live here, too.
    const int64_t free = device.model->free_bytes() / 20 * 19;
    const int64_t rows = o.total_batch ? o.total_batch / o.seq_len : 256;    // of a step
    auto need = [&](int B) {
        plan.B = B;
        int64_t bytes = 0;
        for (const MemoryRow& r : device.model->memory(config, plan)) bytes += r.bytes;
        return bytes;
    };
    if (need(1) > free)
        return fail(Exit::device, "out of memory: one sequence of %d tokens needs %s, %s are free", o.seq_len,
                    human_bytes(double(need(1))).c_str(), human_bytes(double(free)).c_str());
    int fits = 1;    // more sequences never need less
    for (int over = int(std::min<int64_t>(rows, 4096)) + 1; over - fits > 1;) {
        const int B = (fits + over) / 2;
        (need(B) <= free ? fits : over) = B;
    }
    while (o.total_batch && rows % fits) fits--;
    plan.B = fits;
    o.batch = plan.B;
    const size_t at = o.resolved.find("batch = 0\n");    // a resumed run takes the same
    if (at != std::string::npos) o.resolved.replace(at, 9, "batch = " + std::to_string(o.batch));
    progress.note("--batch auto: " + std::to_string(o.batch) + " sequences of " + std::to_string(o.seq_len));
    return {};
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
    if (o.total_batch / micro > 1 << 20)
        return fail(Exit::usage, "--total-batch %lld is more than %d batches of %lld tokens", (long long)o.total_batch,
                    1 << 20, (long long)micro);
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
    printf("operations    %s\nmemory\n", device.text.c_str());
    std::vector<MemoryRow> rows = device.model->memory(config, plan);
    if (device.gpu) {
        rows.push_back({"the driver", device.context_bytes});
    } else {
        int64_t largest = 0;    // a matrix is turned on its way to a file
        for (const Tensor& t : config_tensors(config))
            if (t.transposed) largest = std::max(largest, t.size() * int64_t(sizeof(float)));
        rows.push_back({"a checkpoint in the making", 2 * largest + (4 << 20)});
        // The libraries take theirs when they first work: a pass of a toy shows how much.
        Result<Device> toy = open_device(o.device, true);
        TRY(toy.status);
        Model& g = *toy.value.model;
        TRY(g.allocate({256, 256, 1, 4, 256, 1024, 1e-5f}, {Use::train, 1, 256}));
        g.init(1);
        const std::vector<int> zeros(256);
        g.batch(zeros.data(), zeros.data(), 1, 256);
        g.forward();
        g.loss(true, 1.0f / 256);
        g.backward();
        toy.value.model.reset();
        rows.push_back({"program, libraries, tokenizer, batches", resident_bytes()});
    }
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
    TRY(checkpoint_prune(o.out, 0));    // what a killed run left behind
    if (o.resume == "no" && !checkpoint_list(o.out).empty())
        return fail(Exit::usage,
                    "%s holds checkpoints already: --resume auto goes on from the newest, another --out starts afresh",
                    o.out.c_str());
    return {};
}

Status Trainer::load() {
    state.seed = uint64_t(o.seed);
    state.data = data.fingerprint();
    if (resuming) return resume();
    if (!start.empty()) return checkpoint_weights(start, *device.model);
    device.model->init(uint64_t(o.seed));
    return {};
}

Status Trainer::resume() {
    Result<TrainState> s = checkpoint_state(start);
    TRY(s.status);
    if (s.value.data != state.data)
        return fail(Exit::usage, "%s: trained on other shards than --data %s names, or with another --seq-len",
                    start.c_str(), o.data.c_str());
    if (s.value.seed != state.seed)
        return fail(Exit::usage, "%s: trained with --seed %llu, asked for is %llu", start.c_str(),
                    (unsigned long long)s.value.seed, (unsigned long long)state.seed);
    device_choose(s.value.algorithms);
    TRY(checkpoint_weights(start, *device.model));
    TRY(checkpoint_optimizer(start, *device.model));
    device.model->set_updates(s.value.updates);
    state = s.value;
    data.seek({state.epoch, state.index});
    progress.note("resumed from " + start + " after step " + std::to_string(state.step));
    return {};
}

Command train_command() {
    auto o = std::make_shared<TrainOptions>();
    Command c{"train",
              "Train a GPT on token shards, from scratch or from a checkpoint.",
              "flatgpt train --data 'tokens/austen_train_*.bin' --val 'tokens/austen_val_*.bin' --tokenizer tok.json "
              "--model d6 "
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
        {"--batch", &o->batch, "sequences per forward pass; auto: as many as the memory holds", 0, 65536, {"auto"}},
        {"--seq-len", &o->seq_len, "tokens per sequence, and a new model's context; 0: the model's context", 0,
         1 << 20},
        {"--total-batch", &o->total_batch,
         "tokens per update, a multiple of batch x seq-len (gradients accumulate); 0: batch x seq-len", 0, 1e12},
        {"--steps", &o->steps, "updates in all; 0: one pass over the data", 0, 99999999},
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
        {"--recompute",
         &o->recompute,
         "what the backward computes again instead of keeping it: nothing; norms and GELU (cheap); whole blocks",
         0,
         0,
         {"none", "cheap", "blocks"}},
        {"--stochastic-rounding", &o->stochastic_rounding,
         "on a GPU in bf16: no fp32 copy of the weights, their updates are rounded stochastically"},
        {"--dry-run", &o->dry_run, "print parameters, memory, tokens and FLOPs per step, then stop"}};
    for (Flag& f : device_flags(o->device, "bf16 on a GPU and where the CPU multiplies it, else fp32"))
        c.flags.push_back(f);
    c.resolved = &o->resolved;
    c.run = [o] {
        Trainer t;
        t.o = *o;
        return t.run();
    };
    return c;
}
