// train_gpt.cu - `flatgpt train`: the step loop. No kernels: it also compiles as plain C++.
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <tuple>

#include "base/countdown.h"
#include "data/samples.h"
#include "files/json_write.h"
#include "model/cost_table.h"
#include "train/metrics.h"
#include "train/notes.h"
#include "train/report/run_state.h"
#include "train/train.h"

namespace {
// The first signal requests a checkpoint after the step; SA_RESETHAND makes the second one fatal.
volatile sig_atomic_t stop_signal = 0, print_on_signal = 0;
void catch_signals(bool prints) {
    print_on_signal = prints;
    struct sigaction action = {};
    action.sa_handler = [](int s) {
        static const char notice[] = "\nstopping after this step, with a checkpoint; a second signal stops at once\n";
        stop_signal = s;
        [[maybe_unused]] ssize_t n = print_on_signal ? write(STDERR_FILENO, notice, sizeof notice - 1) : 0;
    };
    action.sa_flags = SA_RESETHAND;
    for (int s : {SIGINT, SIGTERM, SIGHUP}) sigaction(s, &action, nullptr);
    signal(SIGPIPE, SIG_IGN);    // a closed stderr pipe must not end the run
}
}    // namespace

Status Trainer::run() {
    if (o.dry_run || o.preview) {    // predicts one rank's run; only rank 0 prints
        const Result<RankInfo> here = comm_rank_info({}, [](const char* name) -> const char* { return getenv(name); });
        if (here.ok() && here.value.rank > 0) return {};
        ranks.info.local_rank = here.value.local_rank, ranks.info.local_ranks = here.value.local_ranks;
        ranks.info.ranks = o.comm.ranks ? o.comm.ranks : here.ok() ? here.value.ranks : 1;
        return set_up();
    }
    TRY(ranks.open(o.comm));
    progress.quiet = !ranks.first();
    Status s = set_up();
    if (!s.ok()) remove_empty_run();
    if (s.ok()) catch_signals(!progress.quiet);
    if (s.ok()) {
        s = loop();
        note_end(lock, state.step, s);
        live.close(end_state(s));
    }
    if (!ranks.coordinator) return s;
    if (all_ranks_end) ranks.coordinator->barrier();        // keeps an early exit from counting as failure
    else if (!s.ok()) ranks.coordinator->abort_ranks(s);    // ends this process
    if (all_ranks_end && !ranks.first() && s.code != Exit::peer) s.message.clear();    // rank 0 prints it
    if (!s.message.empty()) s.message = "rank " + std::to_string(ranks.rank()) + ": " + s.message;
    return s;
}

// ---- the step loop ------------------------------------------------------------------------------

ReportFlags Trainer::flags() const {
    const bool due = o.save_minutes > 0 && now_seconds() - saved_at >= 60 * o.save_minutes;
    return {int(stop_signal), due && ranks.first(), writer ? int(writer->finished_phase()) : 0};
}

// Whether sequences must keep the positions behind their last target, because the step depends on
// them: experts' load and dropout's random numbers count them, a GPU's algorithms depend on the
// length, ranks that share sequences divide the whole length, and other objectives than plain
// causal attend to them.
bool Trainer::needs_padding() const {
    return device.gpu || o.cp > 1 || !objective.is_plain_causal() || config.experts || o.dropout > 0 ||
           o.attention_dropout > 0 || config.adapter.dropout > 0;
}

// Queues a step: one update, except that rewards may have more, on the same answers. Only the last
// one's outcome is reported.
Status Trainer::issue() {
    // The step's first sequence, counted from the run's beginning.
    const int64_t first = (data.position().epoch * data.samples() + data.position().index) * sequences();
    sizes[issued % 2] = {};
    TRY(loss->draw());
    for (int i = 0; i < loss->updates(); i++) {
        if (i > 0) state.skipped += device.model->train.finish().skipped;
        TRY(issue_update(first, i + 1 == loss->updates()));
    }
    if (trace) trace->stop();
    issued++;
    state.epoch = data.position().epoch;
    state.index = data.position().index;
    return {};
}

// Queues one update of the step's batches. An update that is not finite or exceeds a limit is
// skipped by operation step_verdict, on the device.
Status Trainer::issue_update(int64_t first, bool last) {
    Model& g = *device.model;
    int S = o.seq_len;
    const int64_t count = batches.batches(issued), positions = batches.step_tokens(issued);
    const int64_t all = loss->begin(first, positions / o.seq_len);
    sizes[issued % 2].terms = all;
    g.train.begin(all, uint64_t(o.seed), issued, positions);
    for (int i = 0; i < count; i++, first += int64_t(o.batch) * plan.rings()) {
        if (!loss->fill(i)) TRY(data.next(tokens.data(), targets.data(), &texts));
        if (!config.encoder_layers && !needs_padding())
            S = cut_behind_targets(tokens.data(), targets.data(), o.batch, o.seq_len);
        if (const int64_t own = first + int64_t(plan.ring()) * o.batch; !loss->upload(own, &S)) {
            spans = {};
            for (int b = 0; b < o.batch; b++)
                objective.apply(own + b, &tokens[size_t(b) * size_t(S)], &targets[size_t(b) * size_t(S)], S, S, &spans,
                                texts[size_t(b / sequences())]);
            g.batch.upload(tokens.data(), targets.data(), o.batch, S, objective.is_plain_causal() ? nullptr : &spans);
        }
        sizes[issued % 2].positions += int64_t(o.batch) * S / o.cp;
        g.forward(true);
        loss->batch(i, S, all);
        g.backward(i + 1 == count);
        if (i == 0) sizes[issued % 2].first_targets = g.step.targets;
    }
    Limits limits;
    limits.clip = o.grad_clip;
    if (o.skip_loss_z > 0) limits.loss = state.loss.limit(o.skip_loss_z);
    if (o.skip_norm_z > 0) limits.norm = state.grad_norm.limit(o.skip_norm_z);
    std::vector<TensorSquares> squares;
    if (last && norms_due(issued + 1)) g.train.measured = &squares;
    OptimizerParams params = optimizer_params;
    params.lr = float(learning_rate(schedule, issued));
    params.average_rate = last ? average_rate(issued) : 0;
    g.train.update(params, limits, uint64_t(o.seed), flags().packed());
    if (!squares.empty()) gather_norms(squares);
    return {};
}

Step Trainer::outcome() {
    Step s = device.model->train.finish(&reports, &router_totals);
    loss->end();
    for (const RankReport& rank : reports) {
        const ReportFlags theirs = ReportFlags::of(rank.signal);
        if (!stop) stop = theirs.signal;
        save_due |= theirs.save_due;
    }
    if (ranks.count() == 1) {    // `reports` is empty
        stop = stop_signal;
        save_due = flags().save_due;
    }
    const double loss_z = state.loss.score(s.loss), norm_z = state.grad_norm.score(s.norm);
    state.loss.add(s.loss);
    state.grad_norm.add(s.norm);
    state.bad_in_a_row = std::isfinite(s.loss) && std::isfinite(s.norm) ? 0 : state.bad_in_a_row + 1;
    state.updates = s.updates;
    state.tokens += batches.step_tokens(state.step);
    if (!s.skipped && average_rate(state.step) > 0) state.averaged++;
    state.step++;
    if (const StepSize& size = sizes[(state.step - 1) % 2];
        o.noise_scale && !s.skipped && size.first_targets < size.terms)
        add_noise(size, s);
    if (s.skipped) {
        state.skipped++;
        progress.note(formatted("step %lld: update skipped, loss %.4g (z %.1f), gradient norm %.4g (z %.1f)",
                                (long long)state.step, s.loss, loss_z, s.norm, norm_z));
    }
    s.loss += loss->beside();
    return s;
}

// Adds the squared gradient norms of this rank's first batch and of the whole step. The first
// batch's gradients were divided by the step's targets.
void Trainer::add_noise(const StepSize& size, const Step& s) {
    const double all = double(size.terms), first = double(size.first_targets), factor = all / first;
    state.noise.add(first, factor * factor * device.model->train.first_square, all, s.norm * s.norm);
}
std::string Trainer::critical_text() const {
    const double size = state.noise.critical_batch();
    return size > 0 ? human_count(size) : "unknown";
}

double Trainer::busiest_expert() const {
    double most = 0;
    for (int l = 0; l < config.L && config.experts; l++) {
        const auto from = router_totals.begin() + l * (config.experts + 2), end = from + config.experts;
        const double rows = std::accumulate(from, end, 0.0);
        if (rows > 0) most = std::max(most, *std::max_element(from, end) * config.experts / rows);
    }
    return most;
}

// Adds to `row`, for each layer with experts: each expert's fraction of the rows, and the means
// over positions of the balance loss and of the router's squared log-sum-exp.
void Trainer::add_experts(Json& row) const {
    Json load = Json::list(), balance = Json::list(), z = Json::list();
    const double positions = double(batches.step_tokens(state.step - 1)), rows = positions * config.experts_used;
    for (int l = 0; l < config.L && config.experts; l++) {
        if (!config.has_experts(l)) continue;
        const double* totals = &router_totals[size_t(l * (config.experts + 2))];
        Json shares = Json::list();
        for (int i = 0; i < config.experts; i++) shares.add(rounded_to(4, totals[i] / rows));
        load.add(shares);
        balance.add(totals[config.experts] * o.seq_len / positions);
        z.add(totals[config.experts + 1] / positions);
    }
    if (load.empty()) return;
    row.set("busiest_expert", busiest_expert(), "expert_load", load, "expert_balance", balance, "router_z", z);
}

// Samples that the finished steps have read.
static int64_t samples_read(const Trainer& t) { return t.state.tokens / (int64_t(t.o.seq_len) * t.sequences()); }

// Adds the epochs of each source of a mixture, in the order of --data, and once the share of the
// tokens that --pack crops.
void Trainer::add_data(Json& row) const {
    const double cropped = data.source().cropped();
    if (state.step == 1 && cropped > 0) row.set("cropped", cropped);
    if (data.source().parts().size() == 1) return;
    const std::vector<double> all = epochs_of(samples_read(*this));
    Json epochs = Json::list();
    for (const double e : all) epochs.add(rounded_to(5, e));
    row.set("epochs", epochs);
}

// A loss above this shows a failed run. Random weights may begin 1.6 above a random guess's loss
// (8192 channels, unscaled logits).
double Trainer::guess_limit() const { return loss->of_guess() + 2; }
constexpr int GUESS_STEPS = 20;    // steps above guess_limit before a warning

Status Trainer::report(const Step& s, double seconds, bool whole) {
    if (!ranks.first()) return {};
    const double lr = learning_rate(schedule, state.step - 1);
    const double rate = double(sizes[(state.step - 1) % 2].positions * ranks.count()) / seconds;
    if (state.step == first_step + 1)    // after a step, all its memory is allocated
        device_bytes = device.gpu ? device.total_bytes - device.model->op.free_bytes() : 0;
    const double done = batches.tokens_before(state.step);
    const double left = (now_seconds() - started) / (done - batches.tokens_before(first_step)) *
                        (batches.tokens_before(o.steps) - done);
    const double memory = double(device.gpu ? device_bytes : resident_bytes());
    const double work = rate * flops_per_token / ranks.count();    // FLOP/s of each device
    // MFU is a fraction of the device's nominal peak; the second number is a fraction of a large
    // product's speed, measured at the start.
    const std::string speed =
        work == 0 ? ""
        : device.gpu && device.peak > 0
            ? formatted("MFU %.1f%% (%.1f%% of measured)", 100 * work / device.peak, 100 * work / measured_peak)
            : formatted("%.0f GFLOP/s", work / 1e9);
    // The least important fields come last, because a terminal of 80 columns cuts them off.
    progress.line(formatted("step %lld/%lld  ETA %s  loss %.4f%s  %s tok/s  %.0f ms  lr %.2e  norm %.2f  %s  %s",
                            (long long)state.step, (long long)o.steps, human_time(left).c_str(), s.loss,
                            (loss->text() + val_text).c_str(), human_count(rate).c_str(), 1e3 * seconds, lr, s.norm,
                            human_bytes(memory).c_str(), speed.c_str()) +
                      (router_totals.empty() ? "" : formatted("  busiest expert %.2fx", busiest_expert())) +
                      (o.noise_scale ? "  critical batch " + critical_text() : "") +
                      (state.skipped ? "  skipped " + std::to_string(state.skipped) : std::string()),
                  state.step == o.steps || !extra_metrics.empty());
    const bool above = state.loss.min_of_last(GUESS_STEPS) > guess_limit();
    if (above && !above_guessing)
        progress.note(
            formatted("warning: the loss has been far above %.4g, that of a random guess, for %d steps: the "
                      "run learns nothing; a lower --lr, a longer --warmup or a smaller --grad-clip may help",
                      loss->of_guess(), GUESS_STEPS));
    above_guessing = above;
    Json row = Json::object("step", state.step, "loss", s.loss, "lr", lr, "grad_norm", s.norm, "ms", 1e3 * seconds,
                            "tokens_per_second", rate);
    if (device.peak > 0) row.set("mfu", work / device.peak);
    if (save_seconds > 0) row.set("save_ms", 1e3 * std::exchange(save_seconds, 0));
    row.set("memory", int64_t(memory), "time", unix_seconds());
    loss->add_speeds(row);
    row.set("tokens", state.tokens);
    add_data(row);
    loss->add_metrics(row);
    if (s.skipped) row.set("skipped", true);
    if (o.noise_scale && state.noise.critical_batch() > 0) row.set("critical_batch", state.noise.critical_batch());
    add_experts(row);
    if (norms_due(state.step)) row.set("norms", norms);
    state.unwritten += "{" + row.fields();
    if (whole) end_row();
    return write_rows();
}

// Completes the last row of state.unwritten, which lacks its final '}'.
void Trainer::end_row() {
    if (!extra_metrics.empty()) state.unwritten += "," + extra_metrics.fields();
    state.unwritten += "}\n";
    extra_metrics = Json::object();
}

// Writes state.unwritten, rows of metrics.jsonl, completely or not at all. A row whose validation
// failed lacks its final '}'. The file gets the row with a '}', so that it can be parsed, but the
// row stays in state.unwritten and is not counted in metrics_bytes: a resumed run truncates the
// file to metrics_bytes, validates and writes the row again.
Status Trainer::write_rows() {
    const bool open = !state.unwritten.ends_with('\n');
    const std::string rows = state.unwritten + (open ? "}\n" : "");
    if (metrics && fwrite(rows.data(), 1, rows.size(), metrics) != rows.size()) {
        const Status failed = fail(Exit::io, "%s/metrics.jsonl: cannot be written: %s", o.out.c_str(), strerror(errno));
        clearerr(metrics);
        [[maybe_unused]] const int cut = ftruncate(fileno(metrics), state.metrics_bytes);    // open_metrics repeats it
        return failed;
    }
    if (open) return {};
    if (metrics) state.metrics_bytes += int64_t(rows.size());
    live.add(rows);
    state.unwritten.clear();
    return {};
}

// Repeats what had failed when the resumed checkpoint was written: validation, sample, or writing
// rows of metrics.jsonl.
Status Trainer::catch_up() {
    if (!state.unwritten.ends_with('\n')) {
        const Status done = validate_and_sample();
        if (!done.ok()) (void)write_rows();
        TRY(done);
        end_row();
    }
    return write_rows();
}

// Part of a core's time that is left to the thread that writes a checkpoint, if training uses all
// cores.
constexpr double WRITER_SHARE = 0.04;

bool Trainer::has_room_for_copy() {
    const int64_t bytes = CheckpointWriter::copy_bytes(*device.model);
    if (bytes <= writer->kept_bytes()) return true;
    const double needed = 1.1 * double(bytes) * ranks.info.local_ranks;
    const auto free = double(cpu_ops<float>().free_bytes());
    if (needed + (256 << 20) < free) return true;
    if (!std::exchange(no_room, true))
        progress.note(
            formatted("note: training waits while checkpoints are written: a copy would take %s, of %s that "
                      "are free",
                      human_bytes(needed).c_str(), human_bytes(free).c_str()));
    return false;
}

// Begins a checkpoint after the one before has ended. Unless `wait`, a thread writes it during the
// next steps, if this rank has memory for a copy; ranks without write their tensors here. A failed
// write is only a warning: older checkpoints are whole, and the next write may succeed.
Status Trainer::save(bool wait) {
    CHECK(issued == state.step, "a step is on its way");
    const double began = now_seconds();
    Model& g = *device.model;
    (void)end_save();    // notes a failure
    if (ranks.coordinator) {
        ranks.coordinator->activity.enter("writing a checkpoint");
        TRY(check_same_on_ranks(formatted("parameters after step %lld: %016llx\n", (long long)state.step,
                                          (unsigned long long)g.store.hash())));
    }
    state.algorithms = device_choices();
    saved_at = now_seconds();
    save_due = false;
    save_step = state.step;
    auto flush = [this, file = metrics ? fileno(metrics) : -1] {
        if (file >= 0 && fsync(file) != 0)
            return fail(Exit::io, "%s/metrics.jsonl: fsync: %s", o.out.c_str(), strerror(errno));
        return loss->sync();
    };
    const bool has_idle_core = device.gpu || pool_threads() < pool_cores();
    writer->share = has_idle_core ? 1 : WRITER_SHARE;
    const bool copies = !wait && o.async_save && has_room_for_copy();
    g.store.collect();
    Status s = writer->begin(g, tokenizer, state, generation,
                             copies ? CheckpointWriter::Copy::yes : CheckpointWriter::Copy::no, flush);
    g.store.forget();
    if (!s.ok()) s = save_failed(s);
    else if (wait) s = end_save();
    save_seconds += now_seconds() - began;
    return s;
}

// Notes what failed. Without a checkpoint of the step that was the best by validation, the best
// step before it is the best again. All ranks do alike.
Status Trainer::save_failed(const Status& s) {
    const std::string step = std::to_string(save_step);
    if (writer->published()) {
        progress.note("warning: the checkpoint of step " + step + " is there, but: " + s.message);
        return s;
    }
    progress.note("warning: no checkpoint of step " + step + ": " + s.message);
    if (o.keep_best && state.best_step == save_step) std::tie(state.best_step, state.best_loss) = previous_best;
    return s;
}
// Waits for the checkpoint that is being written, if any.
Status Trainer::end_save() {
    if (!writer->active()) return {};
    if (ranks.coordinator) ranks.coordinator->activity.enter("writing a checkpoint");
    const Status s = writer->finish();
    return s.ok() ? s : save_failed(s);
}
// Goes on with a checkpoint whose phase every rank has finished. All ranks do so after the same
// step, by the reports that they share.
Status Trainer::advance_save() {
    if (!writer->active()) return {};
    const int phase = int(writer->current_phase());
    const bool all = ranks.count() == 1 ? flags().phase == phase
                                        : std::ranges::all_of(reports, [&](const RankReport& r) {
                                              return ReportFlags::of(r.signal).phase == phase;
                                          });
    if (!all) return {};
    const Status s = writer->advance();
    return s.ok() ? s : save_failed(s);
}

bool Trainer::due_after(int64_t steps) const {
    auto due = [&](int64_t every) { return every > 0 && steps % every == 0; };
    return steps == o.steps || due(o.eval_every) || due(o.sample_every) || due(o.save_every) || norms_due(steps);
}

// Validates and samples when due and at the end. If validation fails, a resumed run repeats both
// (catch_up), since they do not change the weights. A sample that fails is only a warning.
Status Trainer::validate_and_sample() {
    const bool last = state.step == o.steps;
    auto due = [&](int64_t every) { return every > 0 ? state.step % every == 0 || last : false; };
    const TrainState before = state;
    Status done;
    const bool validated = validates() && (due(o.eval_every) || last);
    if (validated) done = validate();
    if (done.ok() && (due(o.eval_every) || last)) done = run_evaluations();
    const bool sampled = o.sample_every ? due(o.sample_every) : samples() && (validated || last);
    if (done.ok() && sampled && tokenizer.vocab_size() && ranks.first())
        if (const Status s = sample_text(); !s.ok())    // the row then has no sample
            progress.note(formatted("warning: the sample after step %lld: %s; the run goes on without",
                                    (long long)state.step, s.message.c_str()));
    if (!done.ok()) {
        state = before;
        extra_metrics = Json::object();
    }
    return done;
}

Status Trainer::validate() {
    const double began = now_seconds();
    auto show = [&](int64_t done, int64_t windows) {
        const double seconds = now_seconds() - began;
        if (seconds > 2) progress.line(countdown_text("validation", "windows", done, windows, seconds));
    };
    const double mean = TRY(loss->validate(show));
    // The next best is one that is better than the best with a checkpoint.
    if (o.keep_best && state.best_step == save_step) (void)end_save();
    const bool better = mean < state.best_loss;    // false unless finite
    previous_best = {state.best_step, state.best_loss};
    state.bad_validations = better ? 0 : state.bad_validations + 1;
    if (better) {
        state.best_loss = mean;
        state.best_step = state.step;
    }
    val_text = formatted("  val %.4f", mean);
    if (ranks.first()) {    // the other ranks write no metrics
        extra_metrics.set("val_loss", mean);
        loss->add_validation(extra_metrics);
    }
    if (state.averaged == 0) return {};
    device.model->store.use_average();
    const Result<double> averaged = loss->validate(show);
    device.model->store.restore();
    TRY(averaged.status);
    val_text += formatted(" (average %.4f)", averaged.value);
    if (ranks.first()) extra_metrics.set("val_loss_average", averaged.value);
    return {};
}

// A rank that fails alone ends without a checkpoint, because saving needs all ranks.
Status Trainer::save_before_exit(Status why) {
    if (ranks.count() > 1 && !all_ranks_end) return why;
    for (; state.step < issued; last_step_end = now_seconds()) (void)report(outcome(), now_seconds() - last_step_end);
    if (state.step > first_step) (void)save(true);    // save notes its own failure
    else (void)end_save();
    return why;
}

Status Trainer::diverged() {
    std::string who;    // ranks whose loss is not finite, unless all
    int bad = 0;
    for (int r = 0; r < ranks.count(); r++)
        if (!std::isfinite(reports[size_t(r)].loss)) who += (bad++ ? ", " : "") + ranks.coordinator->name(r);
    if (bad > 0 && bad < ranks.count() && std::isfinite(reports[size_t(ranks.rank())].loss))
        return fail(Exit::peer, "the loss of %s was not finite three times in a row (step %lld), that of this rank was",
                    who.c_str(), (long long)state.step);
    return fail(Exit::diverged,
                "loss or gradient was not finite three times in a row (step %lld); the weights are those of the last "
                "good update; a lower --lr, a longer --warmup or other data may help",
                (long long)state.step);
}

Status Trainer::stopped() {
    note_lines(progress, "read: ", mixture_text(samples_read(*this), ""));
    std::string who;    // first signalled rank; launchers signal all
    for (int r = 0; r < ranks.count() && ranks.count() > 1 && who.empty(); r++)
        if (ReportFlags::of(reports[size_t(r)].signal).signal != 0) who = " of " + ranks.coordinator->name(r);
    return {stop == SIGINT ? Exit::sigint : Exit::sigterm,
            "stopped by a signal" + who + " after step " + std::to_string(state.step) + "; to go on" +
                (ranks.count() > 1 ? " (under its launcher)" : "") + ":\n  " + program_invocation_name +
                " train --config " + shell_quoted(o.out + "/run.toml") + " --resume auto"};
}

// One more step is queued while the previous one's outcome is awaited, so that the device never
// waits for the host. Exceptions: a checkpoint, validation or sample is due between the two, or
// outcomes set the next step's limits. All these conditions are equal on every rank.
Status Trainer::loop() {
    writer = std::make_unique<CheckpointWriter>(o.out, o.keep, ranks.coordinator.get());
    if (resuming) writer->add_whole(start);    // verified when it was loaded
    started = saved_at = now_seconds();
    first_step = issued = state.step;
    // Pairs are cut to their own lengths, so that the FLOPs of a position are not known.
    const bool cut = !o.pairs.empty() && !needs_padding();
    flops_per_token = cut ? 0 : planned_flops() * o.seq_len / target_positions();
    if (state.step < o.steps)
        progress.line("step " + std::to_string(state.step + 1) + "/" + std::to_string(o.steps) + " ...");
    // The average's rate depends on the number of updates, so it needs the last step's outcome.
    const bool ahead = device.gpu && !plan.average && o.skip_loss_z == 0 && o.skip_norm_z == 0 && !loss->on_host();
    Status saved;
    if (!state.unwritten.empty()) {
        TRY(catch_up());
        saved = save(true);
        if (all_ranks_end) return saved;    // save found different parameters on the ranks
    }
    if (trace) trace->start(*device.model);
    auto goes_on = [&] { return state.step < o.steps && !stop && !out_of_patience(); };
    while (goes_on() || issued > state.step) {    // also waits for queued steps
        if (ranks.coordinator)
            ranks.coordinator->activity.enter("a step"), ranks.coordinator->activity.step = state.step + 1;
        // If the next batch cannot be read, a checkpoint of the steps before it is written first.
        if (issued == state.step) {
            last_step_end = now_seconds();
            if (Status s = issue(); !s.ok()) return save_before_exit(s);
        }
        if (ahead && !save_due && !stop && !(ranks.count() == 1 && stop_signal) && !due_after(issued))
            if (Status s = issue(); !s.ok()) return save_before_exit(s);
        const Step step = outcome();
        const double seconds = now_seconds() - last_step_end;
        Status between = issued == state.step ? validate_and_sample() : Status{};
        if (Status s = report(step, seconds, between.ok()); !s.ok()) return save_before_exit(s);
        last_step_end = now_seconds();
        if (!between.ok()) return save_before_exit(between);
        if (const Status s = advance_save(); !s.ok()) saved = s;
        if (state.bad_in_a_row >= 3) {
            all_ranks_end = true;
            return save_before_exit(diverged());
        }
        if (issued > state.step) continue;
        const bool best = o.keep_best && state.best_step == state.step;
        if (!goes_on() || best || save_due || (o.save_every && state.step % o.save_every == 0)) {
            saved = save(!goes_on());
            live.refresh();
        }
        if (all_ranks_end) return saved;    // save found different parameters on the ranks
    }
    if (const Status s = end_save(); !s.ok()) saved = s;
    all_ranks_end = true;
    TRY(saved);
    return state.step < o.steps && !out_of_patience() ? stopped() : finished();
}

Status Trainer::finished() {
    const std::vector<std::string> all = checkpoint_list(o.out);
    const std::string whole = all.empty() ? start : all.back();
    const bool nothing = first_step == state.step;
    if (out_of_patience())
        progress.note(formatted("step %lld: the validation loss has not fallen for %s (--patience %lld)",
                                (long long)state.step, counted(state.bad_validations, "validation").c_str(),
                                (long long)o.patience));
    progress.note(nothing ? "nothing to do, the run has ended with step " + std::to_string(state.step) + ": " + whole
                          : human_time(now_seconds() - started) + "; saved " + whole);
    note_lines(progress, "read: ", mixture_text(samples_read(*this), ""));
    if (const double last = state.loss.min_of_last(1); last > guess_limit())
        progress.note(
            formatted("warning: the last step's loss is %.4g, far above %.4g, that of a random guess: these "
                      "weights have learnt nothing; a lower --lr, a longer --warmup or a smaller --grad-clip "
                      "may help",
                      last, loss->of_guess()));
    if (o.keep_best && state.best_step >= 0 && state.best_step < state.step)
        progress.note(
            formatted("the best by validation is step %lld, %.4f: sample and eval take it with "
                      "--checkpoint best",
                      (long long)state.best_step, state.best_loss));
    return {};
}
