// plan.cpp - `flatgpt train` before the first step: ranks, device, batch, data, run directory.
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "base/file.h"
#include "checkpoint/model_card.h"
#include "model/adapter.h"
#include "model/families/families.h"
#include "model/cost_table.h"
#include "train/gpu_plan.h"
#include "train/reference.h"
#include "train.h"

int64_t resident_bytes() {
    int64_t pages = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> pages >> resident;
    return resident * sysconf(_SC_PAGESIZE);
}

Trainer::~Trainer() {
    writer.reset();    // its thread flushes the files below
    if (metrics) fclose(metrics);
    if (lock >= 0) close(lock);
}

// Returns a TOML text without the rows of the given keys.
static std::string without(const std::string& toml, const std::vector<std::string>& keys) {
    std::istringstream rows(toml);
    std::string rest;
    for (std::string row; std::getline(rows, row);)
        if (std::none_of(keys.begin(), keys.end(), [&](const std::string& k) { return row.starts_with(k + " = "); }))
            rest += row + "\n";
    return rest;
}

// Process that holds a run's directory, according to the lock file.
static std::string lock_holder(const std::string& path) {
    const Result<std::string> text = read_file(path, 4096);
    return text.ok() ? text.value.substr(0, text.value.find('\n')) : "";
}

// ---- the ranks ----------------------------------------------------------------------------------

Status Trainer::check_same_on_ranks(const std::string& text) {
    if (!ranks.coordinator) return {};
    auto lines = [](const std::string& all) {
        std::istringstream in(all);
        std::vector<std::string> out;
        for (std::string line; std::getline(in, line);) out.push_back(line);
        return out;
    };
    const std::vector<std::string> all = ranks.coordinator->gather(text), mine = lines(text);
    std::string differs;
    for (size_t r = 1; r < all.size() && differs.empty(); r++) {
        if (all[r] == text) continue;
        const std::vector<std::string> theirs = lines(all[r]);
        const auto [a, b] = std::mismatch(theirs.begin(), theirs.end(), mine.begin(), mine.end());
        differs = "the ranks differ: " + ranks.coordinator->name(int(r)) + " has " + (a == theirs.end() ? "less" : *a) +
                  ", rank 0 has " + (b == mine.end() ? "less" : *b);
    }
    differs = ranks.coordinator->broadcast(differs);
    if (differs.empty()) return {};
    all_ranks_end = true;
    return {Exit::peer, differs};
}

// Compares, over the ranks, the binary and every flag that must be equal.
Status Trainer::check_same_config() {
    if (!ranks.coordinator) return {};
    uint64_t binary = FNV_OFFSET_BASIS;
    Result<std::string> exe = read_file("/proc/self/exe", int64_t(1) << 32);
    if (exe.ok()) binary = fnv1a_words(binary, exe.value.data(), int64_t(exe.value.size()));
    return check_same_on_ranks(formatted("binary = %016llx\n", (unsigned long long)binary) +
                               without(o.resolved, {"threads"}));
}

Status Trainer::check_same_start() {
    if (!ranks.coordinator) return {};
    return check_same_on_ranks(formatted("step = %lld\ndata = %016llx\nvalidation = %016llx\nweights = %016llx\n",
                                         (long long)state.step, (unsigned long long)data.fingerprint(),
                                         (unsigned long long)(validates() ? val.fingerprint() : 0),
                                         (unsigned long long)device.model->store.hash(true)));
}

// Rank 0 alone runs a trial step, which times algorithms for each shape of a GPU's products; then
// all ranks use its choices. With a batch warm-up a single rank needs the trial, too: its first
// checkpoint would otherwise lack the choices of a step with several batches.
void Trainer::broadcast_algorithms() {
    if (!device.gpu || (ranks.count() == 1 && !o.batch_warmup)) return;
    Model& g = *device.model;
    if (ranks.first()) {
        g.store.comm = nullptr;
        g.train.begin();
        for (int i = 0; i < std::min<int64_t>(batches.full, 2); i++) {    // first batch assigns gradients, second adds
            g.upload(tokens.data(), targets.data(), o.batch, o.seq_len);
            g.forward(true);
            g.loss(true, 1);
            g.backward();
        }
        (void)g.mean_loss();
        g.store.comm = ranks.comm.get();
    }
    if (ranks.coordinator) device_choose(ranks.coordinator->broadcast(device_choices()));
}

// Divides the machine's cores among its ranks, unless the launcher has bound each rank.
void Trainer::share_cores() {
    cpu_set_t mine;
    if (o.device.threads || ranks.info.local_ranks == 1 || sched_getaffinity(0, sizeof mine, &mine) != 0) return;
    if (CPU_COUNT(&mine) < sysconf(_SC_NPROCESSORS_ONLN)) return;
    cpu_set_threads(0);
    o.device.threads = std::max(1, cpu_threads() / ranks.info.local_ranks);
}

// ---- set-up -------------------------------------------------------------------------------------

// Combines the statuses of all ranks. A rank with an error, such as a wrong flag, ends with its own
// exit code. The ranks without an error then end with exit 7.
Status Trainer::agreed(const Status& mine) {
    Status all = ranks.agree(mine);
    all_ranks_end = !all.ok();
    return all;
}

// Refuses fp8 if no product would use it.
static Status check_fp8(const Device& device, const Config& c, int B, int S) {
    if (!is_fp8(device.dtype)) return {};
    const char* type = dtype_name(device.dtype);
    if (c.L < 3)
        return fail(Exit::usage,
                    "--dtype %s: the model has %d blocks; it takes at least 3 blocks, as the first and "
                    "the last one stay in bf16",
                    type, c.L);
    if (c.C % 16 || int64_t(B) * S % 16)
        return fail(Exit::usage,
                    "--dtype %s: %d channels, %lld positions in a batch; expected are multiples of 16, "
                    "as all other products stay in bf16: change --channels, --batch or --seq-len",
                    type, c.C, (long long)(int64_t(B) * S));
    return {};
}

Status Trainer::set_up() {
    // Flags that identify ranks are no part of the run, which may resume under a launcher, or
    // alone. A trace is no part of it either, because a resumed run would write it again.
    o.resolved = without(o.resolved, {"rank", "ranks", "local-rank", "master", "trace"});
    TRY(check_same_config());
    TRY(find_start());
    TRY(agreed(choose_model()));
    share_cores();
    const bool plans = o.dry_run || (o.preview && !samples_answers());
    Result<Device> opened = plans ? plan_device(o.device, o.gpu, ranks.info.local_rank)
                                  : open_device(o.device, true, ranks.info.local_rank);
    TRY(agreed(opened.status));
    device = std::move(opened.value);
    TRY(agreed(keep_packed()));
    TRY(check_same_on_ranks(std::string("operations = ") + device.model->op.name));    // e.g. one rank has no GPU
    // If NCCL does not start on a rank, that rank ends at once, without agreeing with the others.
    if (!o.dry_run && !o.preview) TRY(device.gpu ? ranks.start(true) : agreed(ranks.start(false)));
    TRY(agreed(ranks.first() ? open_trace(o.trace, device.model, trace) : Status{}));
    device.model->store.comm = ranks.comm.get();
    TRY(agreed(read_lines()));
    if (!o.chat.empty() && !o.pack && !o.preview && needs_padding()) note_padding();
    TRY(agreed(apply_recipe()));
    TRY(agreed(choose_optimizer()));
    TRY(agreed(choose_batch()));
    agree_on_batch();
    TRY(check_fp8(device, config, plan.B, o.seq_len));
    TRY(agreed(open_data()));
    TRY(agreed(open_evaluations()));
    TRY(agreed(plan_steps()));
    if (o.preview) return (this->*task->preview)();
    if (has_data() && !samples_answers()) warn_of_repetition();
    if (plan.ranks == 1 && o.zero) progress.note("note: --zero changes nothing on one rank");
    if (plan.ranks == 1 && plan.comm_dtype != Element::f32)
        progress.note("note: --reduce-dtype changes nothing on one rank");
    if (o.dry_run) return dry_run();
    if (!ranks.nccl_error.empty())
        progress.note("note: " + ranks.info.launcher + " started one rank on a GPU, and NCCL does not start: " +
                      ranks.nccl_error + ". The run goes on without it; with more ranks it would end here");
    TRY(open_run());
    measured_peak = measure_peak(device);
    TRY(agreed(device.model->allocate(config, plan)));
    TRY(agreed(load()));
    TRY(agreed(open_teacher()));
    TRY(check_same_start());
    broadcast_algorithms();
    TRY(loss->prepare());
    state.config = o.resolved;
    state.dtype = dtype_name(device.dtype), state.backend = device.model->op.name;
    TRY(agreed(open_metrics()));
    open_reports();
    if (const std::string warning = beyond_class_warning(config); !warning.empty() && !resuming) progress.note(warning);
    const int64_t all = config_parameters(config), trained = trained_parameters(config);
    const std::string part = trained < all ? human_count(double(trained)) + " of them trained, " : "";
    progress.note(human_count(double(all)) + " parameters, " + part + "vocabulary " + std::to_string(config.V) + ", " +
                  human_count(double(data.tokens())) + " tokens, " + counted(o.steps, "step") + " of " +
                  counted(o.total_batch, "token") +
                  (o.batch_warmup ? formatted(" (fewer in the first %lld)", (long long)o.batch_warmup) : "") + ", " +
                  launcher_text() + device.text);
    return {};
}

// Text such as "2 ranks by torchrun and NCCL 2.28.9, each "; empty without a launcher.
std::string Trainer::launcher_text() const {
    if (ranks.info.launcher.empty()) return "";
    return counted(ranks.count(), "rank") + " by " + ranks.info.launcher +
           (ranks.comm ? " and " + ranks.comm->name() : "") + (ranks.count() > 1 ? ", each " : ", ");
}

Status Trainer::choose_batch() {
    plan.mode = RunMode::train;
    if (o.seq_len % o.cp)
        return fail(Exit::usage, "--cp %d, --seq-len %d: expected a multiple of 2 x cp = %d", o.cp, o.seq_len,
                    2 * o.cp);
    plan.B = o.batch;
    plan.S = o.seq_len / o.cp;
    plan.cp = o.cp;
    if (config.encoder_layers) {
        seq2seq = TRY(seq2seq_of(uint64_t(o.seed)));
        plan.S = target_positions();
        plan.source = source_length();
    }
    plan.recompute = o.recompute == "blocks"  ? Recompute::blocks
                     : o.recompute == "cheap" ? Recompute::cheap
                                              : Recompute::none;
    plan.master = !o.stochastic_rounding;
    plan.rank = ranks.rank(), plan.ranks = ranks.count();
    plan.zero = o.zero;
    plan.spans = o.documents || objective.packed;
    plan.weighted = task->weighted;
    plan.first_squares = o.noise_scale;
    plan.dropout = float(o.dropout);
    plan.attention_dropout = float(o.attention_dropout < 0 ? o.dropout : o.attention_dropout);
    plan.balance = float(o.balance_loss), plan.router_z_loss = float(o.router_z_loss);
    if (!task->weighted) plan.penalties = {float(o.z_loss), float(o.label_smoothing)};
    plan.comm_dtype = o.reduce_dtype == "bf16" ? Element::bf16 : Element::f32;
    loss = task->loss(*this);
    TRY(Ring::check(config, plan));
    const int step = batch_unit();
    if (o.batch % step)
        return fail(Exit::usage, "--batch %d: expected a multiple of %d, the number of sequences of each of %s's %s",
                    o.batch, step, task->flag, task->noun);
    if (o.batch) return {};
    if (o.total_batch % o.seq_len)
        return fail(Exit::usage, "--total-batch %lld is not a multiple of --seq-len %d", (long long)o.total_batch,
                    o.seq_len);
    // Uses 95 % of free memory, because the allocator rounds up and other processes need some. On a
    // CPU, the ranks of a machine share that memory.
    const int64_t free = device.model->op.free_bytes() / 20 * 19 / (device.gpu ? 1 : ranks.info.local_ranks);
    const int64_t pass = source ? sequences() * ceil_div(source->samples(), plan.rings()) : 256;
    const int64_t rows = o.total_batch ? std::max<int64_t>(1, o.total_batch / o.seq_len / plan.rings())
                                       : std::min<int64_t>(256, pass);
    auto need = [&](int B) -> Result<int64_t> {
        plan.B = B;
        std::vector<MemoryRow> memory = TRY(memory_cost(device.model->op, config, plan));
        TRY(loss->add_memory(memory, B));
        add_report_memory(memory);
        return total_bytes(memory) + collective_scratch(device.model->op, config, plan, device.gpu);
    };
    auto fits_in = [&](int B) {
        const Result<int64_t> bytes = need(B);
        return bytes.ok() && bytes.value <= free;
    };
    const int64_t least = TRY(need(step));
    if (least > free)
        return fail(Exit::device, "out of memory: %s of %d tokens needs %s, %s are free",
                    step == 1 ? "one sequence" : counted(step, "sequence").c_str(), o.seq_len,
                    human_bytes(double(least)).c_str(), human_bytes(double(free)).c_str());
    int fits = step;    // need(B) never decreases
    for (int over = int(std::min<int64_t>(rows, 4096)) + 1; over - fits > 1;) {
        const int B = (fits + over) / 2;
        (fits_in(B) ? fits : over) = B;
    }
    plan.B = fits - fits % step;
    return {};
}

// Replaces, in run.toml, a value that the command line left open (`unset`) by the chosen one, so
// that a resumed run uses it with any number of ranks.
void Trainer::resolve(const std::string& key, const std::string& unset, const std::string& value) {
    const size_t at = ("\n" + o.resolved).find("\n" + key + " = " + unset + "\n");
    if (at != std::string::npos) o.resolved.replace(at, key.size() + 3 + unset.size(), key + " = " + value);
}

// For --batch auto: the largest batch that fits on every rank and divides the step's tokens. If
// these follow from the batch, it has whole groups of answers, or divides a group.
void Trainer::agree_on_batch() {
    if (o.batch) return;
    if (ranks.coordinator) {
        for (const std::string& theirs : ranks.coordinator->gather(std::to_string(plan.B)))
            plan.B = std::min(plan.B, stoi(theirs));
        plan.B = stoi(ranks.coordinator->broadcast(std::to_string(plan.B)));
    }
    const int64_t rows = o.total_batch / o.seq_len / plan.rings();
    auto divides = [&] { return rows ? rows % plan.B == 0 : plan.B % sequences() == 0 || sequences() % plan.B == 0; };
    while (plan.B > batch_unit() && !divides()) plan.B -= batch_unit();
    o.batch = plan.B;
    resolve("batch", "0", std::to_string(o.batch));
    progress.note("--batch auto: " + counted(o.batch, "sequence") + " of " + counted(o.seq_len, "token"));
}

Status Trainer::open_data() {
    TRY((this->*task->open)());
    if (!validates()) return {};
    const uint64_t measured_on[] = {val.fingerprint(), uint64_t(val.samples())};
    state.validation = fnv1a_words(FNV_OFFSET_BASIS, measured_on, sizeof measured_on);
    return {};
}

int Trainer::row_tokens() const { return config.encoder_layers ? seq2seq.width() : o.seq_len; }
LoaderConfig Trainer::loader_config() const {
    const int step = batch_unit();    // the loader has prompts without answers
    return {.B = samples_answers() ? 1 : o.batch / step,
            .S = row_tokens() * step,
            .vocab = config.V,
            .rank = plan.ring(),
            .ranks = plan.rings(),
            .seed = uint64_t(o.seed),
            .group = o.pairs.empty() ? 0 : Seq2Seq::GROUP};
}

Status Trainer::read_lines() {
    if (!task->read) return {};
    const std::string flags[] = {task->flag, task->flag + std::string("-val")};
    std::shared_ptr<LineSource>* to[] = {&source, &val_source};
    for (int i = 0; i < 1 + validates(); i++) {
        *to[i] = TRY((this->*task->read)(o.*(i ? task->val_files : task->files), flags[i]));
        const LineSource& all = **to[i];
        if (!all.note().empty() && !o.preview) progress.note("note: " + flags[i] + ": " + all.items() + all.note());
    }
    // A total batch that is given is a multiple of the usual length.
    if (length_given || o.source_len || o.pack || o.total_batch) return {};
    const int longest = std::max(source->longest(), val_source ? val_source->longest() : 0);
    resolve("seq-len", "0", std::to_string(o.seq_len = std::min(o.seq_len, int(round_up(longest, 16)))));
    source->shorten(o.seq_len);
    if (val_source) val_source->shorten(o.seq_len);
    return {};
}

Status Trainer::open_lines() {
    LoaderConfig l = loader_config();
    data = TRY(Loader::open(source, l));
    if (!val_source) return {};
    l.shuffle = false;
    l.max_tokens = o.eval_tokens;
    val = TRY(Loader::open(val_source, l));
    if (val.fingerprint() == data.fingerprint())
        progress.note(formatted("note: %s-val has the %s of %s: its loss says nothing about new ones", task->flag,
                                task->noun, task->flag));
    return {};
}

// The steps of --epochs N are rounded up, so each sample is read at least N times (of a
// mixture: as many samples as N such passes have). Without
// --epochs, a run makes one pass: rounded down on shards, rounded up on lines, which may be few.
int64_t Trainer::steps_of(int64_t epochs, const BatchSchedule& b) const {
    const int64_t pass = pass_tokens();
    if (!epochs && !source) return std::max<int64_t>(1, b.steps_for(pass + 1) - 1);
    return b.steps_for(std::max<int64_t>(1, epochs) * pass);
}

// A decay has wsd's form and begins at the checkpoint's rate; --lr-schedule and --lr have no
// effect. A resumed decay takes both from its own checkpoint, because the first one may be gone.
Status Trainer::plan_decay() {
    const TrainState before = TRY(checkpoint_state(start));
    int64_t begin = before.decay_begin;
    double rate = before.decay_rate;
    if (!decaying && begin < 0)
        return fail(Exit::usage,
                    "--decay-from %s: it begins a new run, and %s goes on with one that is none; give another --out",
                    o.decay_from.c_str(), start.c_str());
    if (decaying) {
        const std::optional<Schedule> old = schedule_before(before);
        if (!old || before.step == 0)
            return fail(Exit::usage,
                        "--decay-from %s: expected a checkpoint after a step, with the options of its run; found %s",
                        start.c_str(), old ? "step 0" : "none in state.json");
        begin = before.step;
        rate = learning_rate(*old, begin - 1);
        if (!(rate >= 0 && rate <= 10))    // hostile options in state.json
            return fail(Exit::input,
                        "%s/state.json: config: expected a learning rate from 0 to 10 in step %lld, found %g",
                        start.c_str(), (long long)begin, rate);
        const int64_t end = begin + o.decay_steps;
        // The run's own total, as its run.toml has it, is not meant for the decay.
        if (o.decay_steps && o.steps && o.steps != end && o.steps != old->steps)
            return fail(Exit::usage,
                        "--steps %lld --decay-steps %lld: the decay would end with step %lld; give one of them",
                        (long long)o.steps, (long long)o.decay_steps, (long long)end);
    }
    const int64_t asked = o.steps, more = o.decay_steps;
    if (more) {
        o.steps = begin + more;
        resolve("epochs", std::to_string(o.epochs), "0");
    }
    if (o.steps <= begin && decaying)
        return fail(Exit::usage,
                    "--decay-from %s: it has done %s, --steps %lld leaves none for the decay; ask for more, or give "
                    "--decay-steps",
                    start.c_str(), counted(begin, "step").c_str(), (long long)o.steps);
    resolve("steps", std::to_string(asked), std::to_string(o.steps));
    resolve("decay-steps", std::to_string(more), "0");
    schedule = decay_from(begin, rate, o.final_lr_frac, o.steps);
    return {};
}

Status Trainer::plan_steps() {
    const int64_t micro = int64_t(o.batch) * o.seq_len,
                  all = micro * plan.rings();    // tokens per batch: on a ring of ranks, on all
    const int64_t whole = samples_answers() ? int64_t(o.seq_len) * o.group * plan.ranks
                                            : 1;    // tokens of whole groups
    if (o.total_batch == 0) resolve("total-batch", "0", std::to_string(o.total_batch = std::lcm(all, whole)));
    if (o.total_batch % all)
        return fail(Exit::usage, "--total-batch %lld is not a multiple of batch x seq-len%s = %lld",
                    (long long)o.total_batch,
                    plan.rings() < plan.ranks ? " x ranks / cp"
                    : plan.ranks > 1          ? " x ranks"
                                              : "",
                    (long long)all);
    if (o.total_batch % whole)
        return fail(Exit::usage, "--total-batch %lld is not a multiple of seq-len x group%s = %lld",
                    (long long)o.total_batch, plan.ranks > 1 ? " x ranks" : "", (long long)whole);
    if (o.total_batch / all > 1 << 20)
        return fail(Exit::usage, "--total-batch %lld is more than %d batches of %lld tokens", (long long)o.total_batch,
                    1 << 20, (long long)all);
    batches = {all, o.total_batch / all, o.batch_warmup};
    if (o.batch_warmup && batches.full == 1)
        progress.note("note: --batch-warmup changes nothing: a step has one batch; a larger --total-batch has several");
    if (o.noise_scale && batches.full * plan.ranks < 2)
        return fail(
            Exit::usage,
            "--noise-scale: it compares gradients of a batch and of the whole step; expected at least two batches "
            "in a step (--total-batch %lld) or two ranks, found one",
            2 * (long long)all);
    if (o.warmup != -1 && (o.warmup < 0 || (o.warmup > 1 && o.warmup != std::floor(o.warmup))))
        return fail(Exit::usage, "--warmup %g: expected a whole number of steps, below 1 a part of the steps, or -1",
                    o.warmup);
    const bool known = o.steps || has_data();    // a dry run may have neither
    if (o.steps == 0 && known && !o.decay_steps) o.steps = steps_of(o.epochs, batches);
    schedule = schedule_of({o.lr_schedule, o.lr, o.final_lr_frac, o.warmup, o.decay_part}, o.steps);
    if (!o.decay_from.empty()) TRY(plan_decay());
    for (auto [flag, steps] : {std::pair{"--warmup", schedule.warmup}, std::pair{"--batch-warmup", o.batch_warmup}})
        if (steps > o.steps && known)
            return fail(Exit::usage, "%s %lld is longer than --steps %lld", flag, (long long)steps, (long long)o.steps);
    tokens.resize(size_t(o.batch) * size_t(row_tokens()));
    targets.resize(tokens.size());
    return {};
}

// Only rank 0 writes to the run's directory, except that each rank writes tensors of checkpoints:
// so all ranks must share its file system. A network file system may show the lock late.
Status Trainer::open_run() {
    TRY(agreed(ranks.first() ? lock_run() : Status{}));
    if (ranks.count() == 1) return {};
    const std::string path = o.out + "/lock", holder = ranks.coordinator->broadcast(lock_holder(path));
    for (int i = 0; i < 50 && lock_holder(path) != holder; i++) usleep(100000), count_progress();
    return agreed(lock_holder(path) == holder
                      ? Status{}
                      : fail(Exit::io,
                             "--out %s is another directory here than on rank 0: it must be on a file system "
                             "that all ranks share",
                             o.out.c_str()));
}
static std::string out_directory;    // kept for remove_empty_run, which runs when there is no memory
static bool made_directory;          // by this process
Status Trainer::lock_run() {
    std::error_code error;
    out_directory = o.out;
    // main.cpp's out-of-memory handler calls quick_exit, which runs remove_empty_run.
    std::at_quick_exit(remove_empty_run);
    made_directory = std::filesystem::create_directories(o.out, error);
    if (error) return fail(Exit::io, "--out %s: cannot be created: %s", o.out.c_str(), error.message().c_str());
    const std::string path = o.out + "/lock";
    constexpr int FLAGS = O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW;
    lock = open(path.c_str(), FLAGS | O_EXCL, 0644);
    const bool made_lock = lock >= 0;
    if (!made_lock) lock = open(path.c_str(), FLAGS, 0644);
    if (lock < 0) return fail(Exit::io, "%s: cannot be written: %s", path.c_str(), strerror(errno));
    bool locked = flock(lock, LOCK_EX | LOCK_NB) == 0;
    for (int i = 0; i < 50 && !locked; i++) {    // `flatgpt runs` may hold it for a moment, repeatedly
        usleep(20000);
        locked = flock(lock, LOCK_EX | LOCK_NB) == 0;
    }
    made_directory = made_directory && locked;    // another process may have it by now
    if (!locked)
        return fail(Exit::usage, "%s: another flatgpt train is using this directory: %s", o.out.c_str(),
                    lock_holder(path).c_str());
    // A run's lock file names the process that held it last. If the lock file names none and there
    // is no checkpoint, nonempty files of these names were written by another program.
    const std::string last = lock_holder(path);
    for (const char* name : {"lock", "metrics.jsonl", "samples.jsonl", "run.toml", REFERENCE_FILE})
        if (last.find(", pid ") == last.npos && checkpoint_list(o.out).empty() &&
            std::filesystem::file_size(o.out + "/" + name, error) > 0 && !error) {
            if (made_lock) unlink(path.c_str());
            return fail(Exit::usage,
                        "--out %s: its %s was not written by flatgpt train, and would be overwritten; "
                        "give a directory of its own",
                        o.out.c_str(), name);
        }
    char holder[128], host[64] = "", now[32];
    gethostname(host, sizeof host - 1);
    const time_t seconds = time(nullptr);
    strftime(now, sizeof now, "%F %T", localtime(&seconds));
    snprintf(holder, sizeof holder, "%s, pid %d, since %s\n", host, int(getpid()), now);
    const Result<std::string> before = read_file(path, 1 << 16);    // how the run ended (train/report/run_state.h)
    const std::string text = holder + (before.ok() ? before.value.substr(before.value.find('\n') + 1) : "");
    // The file is cut last, so that a full disk does not lose how the run ended.
    if (pwrite(lock, text.data(), text.size(), 0) != ssize_t(text.size()) || ftruncate(lock, off_t(text.size())) != 0 ||
        fsync(lock) != 0)
        return fail(Exit::io, "%s: cannot be written: %s", path.c_str(), strerror(errno));
    TRY(checkpoint_prune(o.out, 0));    // leftovers of a killed run
    if (o.resume == "no" && !checkpoint_list(o.out).empty())
        return fail(Exit::usage,
                    "%s holds checkpoints already: --resume auto goes on from the newest, another --out starts afresh",
                    o.out.c_str());
    return {};
}

// Called when out of memory: allocates no more than the list of the directory's entries.
void Trainer::remove_empty_run() {
    const int dir = made_directory ? open(out_directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    struct stat rows;
    if (dir < 0 || (fstatat(dir, "metrics.jsonl", &rows, 0) == 0 && rows.st_size > 0)) return;
    constexpr const char* OURS[] = {"lock", "run.toml", "metrics.jsonl", "samples.jsonl", "README.md", REFERENCE_FILE};
    DIR* entries = fdopendir(dir);
    while (const dirent* entry = entries ? readdir(entries) : nullptr)
        for (const char* name : OURS)    // or a temporary file of that name (base/file.h), which is longer
            if (std::string_view(entry->d_name).starts_with(name)) unlinkat(dir, entry->d_name, 0);
    entries ? closedir(entries) : close(dir);
    rmdir(out_directory.c_str());
}

Status Trainer::open_metrics() {
    if (!ranks.first()) return {};
    const std::string jsonl = o.out + "/metrics.jsonl";
    TRY(replace_file(o.out + "/run.toml", o.resolved));
    const std::string readme = o.out + "/README.md", card = start.empty() ? "" : card_readme(checkpoint_card(start));
    if (!card.empty() && access(readme.c_str(), F_OK) != 0) TRY(replace_file(readme, card));
    metrics = fopen(jsonl.c_str(), "a");
    if (metrics) setvbuf(metrics, nullptr, _IONBF, 0);    // else exit would write a failed row again
    // Truncates rows after the last checkpoint, because a resumed run writes them again.
    std::error_code error;
    state.metrics_bytes = std::min(state.metrics_bytes, int64_t(std::filesystem::file_size(jsonl, error)));
    if (!metrics || error || ftruncate(fileno(metrics), state.metrics_bytes) != 0)
        return fail(Exit::io, "%s: cannot be written: %s", jsonl.c_str(), strerror(errno));
    return {};
}
