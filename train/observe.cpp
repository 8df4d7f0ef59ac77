// observe.cpp - outputs of a run while it trains, besides its losses: samples, norms of tensors,
// its page and its event file.
#include "infer/eval/text_loss.h"
#include "model/kv_cache.h"
#include "train/metrics.h"
#include "train/report/run_state.h"
#include "train/train.h"

FlagGroup report_flags(TrainOptions& o) {
    return {"Reports",
            {},
            {{"--report", &o.report,
              "keep a page for a browser, --out/report.html, with all metrics and samples; it loads itself anew"},
             {"--tensorboard", &o.tensorboard, "write the metrics for TensorBoard, too: --logdir is --out/tensorboard"},
             {"--norms-every", &o.norms_every,
              "steps between measurements of each tensor: the norms of its weights, gradient and update, in "
              "metrics.jsonl; 0: none",
              0, 1e12}}};
}

// ---- samples ------------------------------------------------------------------------------------

Status Trainer::read_sample_prompts() {
    if (o.sample_prompts.empty() || !ranks.first()) return {};    // rank 0 alone samples

    constexpr size_t MOST = 1000;    // so that sampling does not take longer than training
    for (Line& line : TRY(::read_lines({.files = {o.sample_prompts}}))) sample_prompts.push_back(std::move(line.text));
    if (sample_prompts.size() > MOST)
        return fail(Exit::usage, "--sample-prompts %s: expected at most %zu prompts, found %zu",
                    o.sample_prompts.c_str(), MOST, sample_prompts.size());
    return {};
}

// The texts that samples continue.
static std::vector<std::string> prompts_of(const Trainer& t) {
    return t.sample_prompts.empty() ? std::vector{t.o.sample_prompt} : t.sample_prompts;
}

Status Trainer::sample_text() {
    const std::vector<std::string> prompts = prompts_of(*this);
    GenerationOptions what;
    for (const std::string& prompt : prompts) {
        if (chat_encoder && !prompt.empty())    // a user's message, to which the sample is the answer
            what.prompts.push_back(TRY(chat_encoder->prompt({{"user", prompt}})));
        else what.prompts.push_back(tokenizer.encode_prompt(prompt));
        if (what.prompts.back().empty()) what.prompts.back() = beginning_of_text(tokenizer, state.documents);
    }
    what.tokens = o.sample_tokens;
    what.sampling.seed = uint64_t(o.seed);
    const std::vector<std::string> continued = TRY(generate(*device.model, tokenizer, what)).texts;
    std::string shown = "--- sample after step " + std::to_string(state.step) + " ---\n";
    Json list = Json::list();
    for (size_t i = 0; i < prompts.size(); i++) {
        shown += escape_control(prompts[i] + continued[i]) + "\n---" + (i + 1 < prompts.size() ? "\n" : "");
        list.add(Json::object("prompt", prompts[i], "text", continued[i]));
    }
    progress.note(shown);
    if (sample_prompts.empty()) extra_metrics.set("sample", continued[0]);
    else extra_metrics.set("samples", list);
    return {};
}

// ---- norms --------------------------------------------------------------------------------------

// The ranks' sums of squares travel as hexadecimal floats, which lose no bits, and are added in the
// order of the ranks.
void Trainer::gather_norms(const std::vector<TensorSquares>& mine) {
    std::vector<double> sums;
    for (const TensorSquares& s : mine) sums.insert(sums.end(), {s.weights, s.gradient, s.update});
    if (ranks.coordinator) {
        std::string text;
        for (const double sum : sums) text += formatted("%a ", sum);
        const std::vector<std::string> all = ranks.coordinator->gather(text);
        std::fill(sums.begin(), sums.end(), 0.0);
        for (const std::string& of_rank : all) {
            const char* at = of_rank.c_str();
            char* end = nullptr;
            for (double& sum : sums) {
                sum += strtod(at, &end);
                at = end;
            }
        }
    }
    norms = Json::object();
    size_t i = 0;
    for (const Tensor& t : device.model->tensors) {
        if (t.frozen || i + 3 > sums.size()) continue;
        Json three = Json::list();
        for (const size_t end = i + 3; i < end; i++) three.add(rounded_to(4, std::sqrt(sums[i])));
        norms.set(t.name, three);
    }
}

namespace {
// Keys and values, in bytes, of the samples that run together, for the longest prompt. A prompt has
// at most as many tokens as bytes, and a chat's template adds some.
int64_t samples_bytes(const Config& c, Element type, const std::vector<std::string>& prompts, int tokens) {
    size_t longest = 0;
    for (const std::string& prompt : prompts) longest = std::max(longest, prompt.size());
    const int all = cache_positions(c), some = int(std::min<int64_t>(all, int64_t(longest) + 256 + tokens));
    const int64_t saved = int64_t(pages_for(all) - pages_for(some)) * page_bytes(c, type);
    return std::min<int64_t>(int64_t(prompts.size()), GenerationOptions{}.batch) * (cache_bytes(c, type) - saved);
}
}    // namespace

void Trainer::add_report_memory(std::vector<MemoryRow>& rows) const {
    if (samples() && ranks.first())
        rows.push_back({"keys and values of samples",
                        samples_bytes(config, device.model->op.activation, prompts_of(*this), o.sample_tokens)});
    if (!o.norms_every || device.gpu) return;    // on a GPU the copy is in the host's memory
    rows.push_back(
        {"weights before an update (--norms-every)", trained_parameters(config) * int64_t(sizeof(float)) / plan.ranks});
}

// ---- the page, the events and the state ---------------------------------------------------------

void Trainer::open_reports() {
    if (!ranks.first()) return;
    if (o.norms_every && device.gpu) {
        const int64_t copies = trained_parameters(config) * int64_t(sizeof(float)) * ranks.info.local_ranks /
                               plan.ranks;
        if (const int64_t free = cpu_ops<float>().free_bytes(); copies > free)
            progress.note(
                formatted("warning: --norms-every copies the weights to this machine's memory, %s, of which "
                          "%s are free: the run may end there; leave the option out",
                          human_bytes(double(copies)).c_str(), human_bytes(double(free)).c_str()));
    }
    for (const auto& [kept, file, flag] :
         {std::tuple{o.report, "report.html", "--report"}, {o.tensorboard, "tensorboard", "--tensorboard"}})
        if (!kept && access((o.out + "/" + file).c_str(), F_OK) == 0)
            progress.note(formatted("note: %s/%s is from an earlier start and stays as it is; %s goes on with it",
                                    o.out.c_str(), file, flag));
    note_steps(lock, o.steps);
    live.begin({o.report, o.tensorboard, o.out, o.resolved, o.steps},
               [this](const std::string& text) { progress.note(text); });
}
