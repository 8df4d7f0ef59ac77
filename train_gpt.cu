// train_gpt.cu - `flatgpt train`: the step loop. No kernels: without nvcc it compiles as plain C++.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "data/file.h"
#include "data/json.h"
#include "train.h"

namespace {
// The first signal asks for a checkpoint at the end of the step; SA_RESETHAND makes the second one final.
volatile sig_atomic_t stop_signal = 0;
void catch_signals() {
    struct sigaction action = {};
    action.sa_handler = [](int s) {
        static const char said[] = "\nstopping after this step, with a checkpoint; a second signal stops at once\n";
        stop_signal = s;
        [[maybe_unused]] ssize_t n = write(STDERR_FILENO, said, sizeof said - 1);
    };
    action.sa_flags = SA_RESETHAND;
    for (int s : {SIGINT, SIGTERM, SIGHUP}) sigaction(s, &action, nullptr);
    signal(SIGPIPE, SIG_IGN);    // a reader of stderr that goes away must not cost the run
}

std::string shell_quoted(const std::string& text) {
    if (text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/=+,:@%") ==
        std::string::npos)
        return text;
    std::string out = "'";
    for (char ch : text) out += ch == '\'' ? "'\\''" : std::string(1, ch);
    return out + "'";
}
}    // namespace

Status Trainer::run() {
    TRY(find_start());
    TRY(choose_model());
    Result<const Ops<float>*> chosen = choose_ops(o.device, true);
    TRY(chosen.status);
    ops = chosen.value;
    TRY(open_data());
    if (o.dry_run) return dry_run();
    if (o.out.empty()) return fail(Exit::usage, "--out is required: the directory for checkpoints and metrics.jsonl");
    TRY(open_run());
    TRY(gpt_allocate(g, config, *ops, Use::train, o.batch, o.seq_len));
    TRY(load());
    state.config = o.resolved;

    const std::string jsonl = o.out + "/metrics.jsonl";
    TRY(replace_file(o.out + "/run.toml", o.resolved));
    metrics = fopen(jsonl.c_str(), "a");
    // What a killed run wrote after its last checkpoint will be written again.
    std::error_code error;
    state.metrics_bytes = std::min(state.metrics_bytes, int64_t(std::filesystem::file_size(jsonl, error)));
    if (!metrics || error || ftruncate(fileno(metrics), state.metrics_bytes) != 0)
        return fail(Exit::io, "%s: cannot be written: %s", jsonl.c_str(), strerror(errno));
    catch_signals();
    progress.note(human_count(double(config_parameters(config))) + " parameters, vocabulary " +
                  std::to_string(config.V) + ", " + human_count(double(data.tokens())) + " tokens, " +
                  std::to_string(o.steps) + " steps of " + std::to_string(o.total_batch) + " tokens, " + ops->name +
                  ", " + std::to_string(cpu_threads()) + " threads");
    return loop();
}

// ---- the step loop -------------------------------------------------------------------------------------------------

// One update from `accumulate` batches. A gradient that is not finite never reaches the weights.
Status Trainer::one_step(double& loss, double& norm, bool& skipped) {
    gpt_zero_grad(g);
    loss = 0;
    for (int i = 0; i < accumulate; i++) {
        TRY(data.next(tokens.data(), targets.data()));
        gpt_forward(g, tokens.data(), o.batch, o.seq_len);
        loss += gpt_loss(g, targets.data(), o.batch, o.seq_len, true, float(1.0 / double(o.total_batch))) / accumulate;
        gpt_backward(g, o.batch, o.seq_len);
    }
    norm = gpt_grad_norm(g);
    const bool finite = std::isfinite(loss) && std::isfinite(norm);
    const double loss_z = state.loss.score(loss), norm_z = state.grad_norm.score(norm);
    skipped = !finite || (o.skip_loss_z > 0 && loss_z > o.skip_loss_z) || (o.skip_norm_z > 0 && norm_z > o.skip_norm_z);
    state.loss.add(loss);
    state.grad_norm.add(norm);
    state.bad_in_a_row = finite ? 0 : state.bad_in_a_row + 1;
    if (skipped) {
        state.skipped++;
        char why[160];
        snprintf(why, sizeof why, "step %lld: update skipped, loss %.4g (z %.1f), gradient norm %.4g (z %.1f)",
                 (long long)state.step + 1, loss, loss_z, norm, norm_z);
        progress.note(why);
    } else {
        const double clip = o.grad_clip > 0 && norm > o.grad_clip ? o.grad_clip / norm : 1;
        gpt_update(g, {float(learning_rate(schedule, state.step)), float(o.beta1), float(o.beta2), 1e-8f,
                       float(o.weight_decay), float(clip), ++state.updates});
    }
    state.step++;
    state.tokens += o.total_batch;
    state.epoch = data.position().epoch, state.index = data.position().index;
    return {};
}

Status Trainer::report(double loss, double norm, bool skipped, double seconds) {
    const double lr = learning_rate(schedule, state.step - 1), rate = double(o.total_batch) / seconds;
    const double left = (now_seconds() - started) / double(state.step - first_step) * double(o.steps - state.step);
    char line[256];
    snprintf(line, sizeof line,
             "step %lld/%lld  ETA %s  loss %.4f%s  lr %.2e  norm %.2f  %.0f ms  %s tok/s  %s  %.0f GFLOP/s",
             (long long)state.step, (long long)o.steps, human_time(left).c_str(), loss, val_text.c_str(), lr, norm,
             1e3 * seconds, human_count(rate).c_str(), human_bytes(double(resident_bytes())).c_str(),
             rate * flops / 1e9);
    progress.line(line + (state.skipped ? "  skipped " + std::to_string(state.skipped) : std::string()),
                  state.step == o.steps || !extra.empty());
    std::string row = "{\"step\":" + std::to_string(state.step) + ",\"loss\":" + json_number(loss) +
                      ",\"lr\":" + json_number(lr) + ",\"grad_norm\":" + json_number(norm) +
                      ",\"ms\":" + json_number(1e3 * seconds) + ",\"tokens_per_second\":" + json_number(rate) +
                      ",\"tokens\":" + std::to_string(state.tokens) + (skipped ? ",\"skipped\":true" : "") + extra +
                      "}\n";
    extra.clear();
    if (fwrite(row.data(), 1, row.size(), metrics) != row.size() || fflush(metrics) != 0)
        return fail(Exit::io, "%s/metrics.jsonl: cannot be written: %s", o.out.c_str(), strerror(errno));
    state.metrics_bytes += int64_t(row.size());
    return {};
}

// A failed write is a warning, not the end: the older checkpoints are whole, and the next write may succeed.
Status Trainer::save() {
    Status written = fsync(fileno(metrics)) == 0    // the checkpoint will count on these bytes
                         ? checkpoint_write(o.out, g, tokenizer, state)
                         : fail(Exit::io, "%s/metrics.jsonl: fsync: %s", o.out.c_str(), strerror(errno));
    if (!written.ok()) {
        progress.note("warning: no checkpoint of step " + std::to_string(state.step) + ": " + written.message);
        return written;
    }
    return checkpoint_prune(o.out, o.keep);
}

Status Trainer::sample_text() {
    Generation what;
    what.prompt = tokenizer.encode(o.sample_prompt, true);
    if (what.prompt.empty() && tokenizer.end_of_text() >= 0) what.prompt = {tokenizer.end_of_text()};
    if (what.prompt.empty()) what.prompt = {0};
    what.tokens = o.sample_tokens;
    what.sampling.seed = uint64_t(o.seed);
    Result<Generated> text = generate(g, tokenizer, what);
    TRY(text.status);
    progress.note("--- sample after step " + std::to_string(state.step) + " ---\n" +
                  escape_control(o.sample_prompt + text.value.texts[0]) + "\n---");
    extra += ",\"sample\":" + json_string(text.value.texts[0]);
    return {};
}

// Validation, sample: at their steps and at the end. They only read the weights.
Status Trainer::between_steps() {
    const bool last = state.step == o.steps;
    auto due = [&](int64_t every) { return every > 0 ? state.step % every == 0 || last : false; };
    if (!o.val.empty() && (due(o.eval_every) || last)) {
        Result<Evaluation> e = evaluate(g, val, tokenizer, o.batch, o.seq_len, o.eval_batches);
        TRY(e.status);
        char text[48];
        snprintf(text, sizeof text, "  val %.4f", e.value.loss);
        val_text = text;
        extra += ",\"val_loss\":" + json_number(e.value.loss);
    }
    if (due(o.sample_every) && tokenizer.vocab_size()) TRY(sample_text());
    return {};
}

Status Trainer::after_saving(Status why) {
    if (state.step > first_step) (void)save();    // whose own failure has been noted
    return why;
}

Status Trainer::loop() {
    started = now_seconds();
    first_step = state.step;
    flops = config_flops_per_token(config, o.seq_len);
    progress.line("step " + std::to_string(state.step + 1) + "/" + std::to_string(o.steps) + " ...");
    Status saved;
    int stop = 0;
    while (state.step < o.steps && !stop) {
        const double start = now_seconds();
        double loss, norm;
        bool skipped;
        // A shard that turns out bad must not cost the steps before it: those are saved first.
        if (Status s = one_step(loss, norm, skipped); !s.ok()) return after_saving(s);
        const double seconds = now_seconds() - start;
        Status between = between_steps();
        TRY(report(loss, norm, skipped, seconds));
        if (!between.ok()) return after_saving(between);
        if (state.bad_in_a_row >= 3) {
            return after_saving(fail(
                Exit::diverged,
                "loss or gradient was not finite three times in a row (step %lld); the weights are those of the last "
                "good update; a lower --lr, a longer --warmup or other data may help",
                (long long)state.step));
        }
        stop = stop_signal;    // read once: a later signal is the next turn's
        if (state.step == o.steps || stop || (o.save_every && state.step % o.save_every == 0)) saved = save();
    }
    TRY(saved);
    if (state.step < o.steps)
        return {stop == SIGINT ? Exit::sigint : Exit::sigterm,
                "stopped by a signal after step " + std::to_string(state.step) + "; to go on:\n  " +
                    program_invocation_name + " train --config " + shell_quoted(o.out + "/run.toml") +
                    " --resume auto"};
    const std::string whole = checkpoint_list(o.out).empty() ? start : checkpoint_list(o.out).back();
    progress.note((first_step == o.steps ? "nothing to do, step " + std::to_string(o.steps) + " is the last one: "
                                         : human_time(now_seconds() - started) + "; saved ") +
                  whole);
    return {};
}
