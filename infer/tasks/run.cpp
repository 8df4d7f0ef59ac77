// run.cpp - see run.h.
#include "run.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/console.h"
#include "infer/decode/generate.h"
#include "infer/jinja/value.h"

namespace {
constexpr double MOST_IN_WINDOWS = 1 << 29;    // tokens, 2 GiB

Status at(const Item& item, const EvalTask& task, const Status& s) {
    return {s.code, item.record.where + ": " + task.name + ": " + s.message};
}

// Appends item i's requests, one for each answer or context.
Status add_requests(PreparedTask& t, size_t i, const Tokenizer& tokenizer, int T) {
    const Item& item = t.items[i];
    // A completion begins with its own space.
    const std::string delimiter = t.task->kind == TaskKind::completion ? "" : " ";
    std::vector<std::string> continuations;
    for (const std::string& answer : item.answers) continuations.push_back(delimiter + answer);
    for (const std::string& prompt : item.prompts) {
        Result<std::vector<LikelihoodRequest>> found =
            encode_requests(tokenizer, t.prefixes[i] + prompt, continuations, T);
        if (!found.ok()) return at(item, *t.task, found.status);
        for (LikelihoodRequest& r : found.value) {
            r.group = int64_t(i);
            t.requests.push_back(std::move(r));
        }
    }
    return {};
}

// An item's scores and what follows from them.
struct Scores {
    std::vector<double> logprobs, by_character;
    std::vector<bool> greedy;
    double mass = 0;
};
Scores scores_of(const Item& item, const Likelihood* found, size_t n) {
    Scores s;
    double all = 0, right = 0;
    for (size_t i = 0; i < n; i++) {
        const std::string& answer = item.answers[item.answers.size() > 1 ? i : 0];
        s.logprobs.push_back(found[i].logprob);
        s.by_character.push_back(found[i].logprob / double(jinja::length(answer)));
        s.greedy.push_back(found[i].greedy);
    }
    const double most = *std::max_element(s.logprobs.begin(), s.logprobs.end());
    for (size_t i = 0; i < n; i++) {
        const double p = std::exp(s.logprobs[i] - most);
        all += p;
        if (i < item.truths.size() && item.truths[i]) right += p;
    }
    s.mass = right / all;
    return s;
}
double value_of(Metric metric, const Item& item, const Scores& s) {
    switch (metric) {
        case Metric::acc_norm: return best_of(s.by_character) == size_t(item.gold);
        case Metric::mass: return s.mass;
        case Metric::perplexity: return s.logprobs[0];
        default: return item.gold < 0 ? s.greedy[0] : best_of(s.logprobs) == size_t(item.gold);
    }
}
Json sample_json(const PreparedTask& t, size_t i) {
    const Item& item = t.items[i];
    std::vector<std::string> prompts;
    for (const std::string& prompt : item.prompts) prompts.push_back(t.prefixes[i] + prompt);
    Json json = Json::object("task", t.task->name, "item", int64_t(i), "where", item.record.where);
    if (prompts.size() == 1) json.set("prompt", prompts[0]);
    else json.set("prompts", Json::list(prompts));
    if (item.answers.size() == 1) json.set("answer", item.answers[0]);
    else json.set("choices", Json::list(item.answers));
    return json;
}

typedef std::vector<std::vector<double>> ItemValues;    // task_metrics' numbers, by item

std::vector<double> values_of(const PreparedTask& t, size_t i, const Likelihood* found, std::vector<Json>* samples) {
    const Item& item = t.items[i];
    const size_t n = t.firsts[i + 1] - t.firsts[i];
    if (t.task->kind == TaskKind::rolling) {
        double all = 0;
        for (size_t k = 0; k < n; k++) all += found[k].logprob;
        if (samples)
            samples->push_back(sample_json(t, i).set("logprob", all, "words", item.words, "bytes", item.bytes));
        return {all, double(item.words), double(item.bytes)};
    }
    const Scores s = scores_of(item, found, n);
    std::vector<double> values;
    for (Metric metric : t.task->metrics) values.push_back(value_of(metric, item, s));
    if (!samples) return values;
    Json greedy = Json::list();
    for (bool g : s.greedy) greedy.add(g);
    Json json = sample_json(t, i).set("logprobs", Json::list(s.logprobs), "greedy", greedy);
    if (item.gold >= 0)
        json.set("gold", item.gold, "best", best_of(s.logprobs), "best_by_character", best_of(s.by_character));
    for (size_t m = 0; m < values.size(); m++)
        if (t.task->metrics[m] != Metric::perplexity) json.set(metric_name(t.task->metrics[m]), values[m]);
    samples->push_back(json);
    return values;
}

// `items`: indices of those to run.
Result<ItemValues> run_likelihoods(Model& model, const PreparedTask& t, const std::vector<size_t>& items,
                                   const RunOptions& options, std::vector<Json>* samples) {
    std::vector<LikelihoodRequest> own;
    const bool part = items.size() < t.items.size();
    for (size_t k = 0; part && k < items.size(); k++)
        own.insert(own.end(), t.requests.begin() + ptrdiff_t(t.firsts[items[k]]),
                   t.requests.begin() + ptrdiff_t(t.firsts[items[k] + 1]));
    const std::vector<LikelihoodRequest>& requests = part ? own : t.requests;
    const bool ranked = t.task->kind == TaskKind::completion || samples;
    const std::vector<Likelihood> found = TRY(likelihoods(model, requests, {options.groups, ranked, options.progress}));
    ItemValues values;
    const Likelihood* first = found.data();
    for (size_t i : items) {
        const size_t n = t.firsts[i + 1] - t.firsts[i];
        const Likelihood* const wrong =
            std::find_if(first, first + n, [](const Likelihood& l) { return !std::isfinite(l.logprob); });
        if (wrong != first + n && !options.not_finite_is_nan)
            return not_finite(t.items[i].record.where, wrong->logprob);
        values.push_back(values_of(t, i, first, samples));
        if (wrong != first + n) std::fill(values.back().begin(), values.back().end(), NAN);
        first += n;
    }
    return values;
}

Result<ItemValues> run_generation(Model& model, const Tokenizer& tokenizer, const PreparedTask& t,
                                  const std::vector<size_t>& items, const RunOptions& options,
                                  std::vector<Json>* samples) {
    if (items.empty()) return ItemValues{};
    GenerationOptions g;
    for (size_t i : items) g.prompts.push_back(t.prompts[i]);
    g.tokens = t.task->most_tokens;
    g.batch = options.groups ? options.groups : 8;
    g.sampling.temperature = 0;
    g.stop.assign(t.task->stops.begin(), t.task->stops.end());
    if (const int id = tokenizer.end_of_text(); id >= 0) g.stop.push_back(std::string(tokenizer.token(id)));
    g.progress = options.progress;
    Result<GenerationResult> generated = generate(model, tokenizer, g);
    for (; generated.status.code == Exit::device && g.batch > 1; generated = generate(model, tokenizer, g))
        g.batch /= 2;    // the cache did not fit beside what a training run holds
    if (generated.status.code == Exit::diverged && options.not_finite_is_nan)
        return ItemValues(items.size(), std::vector<double>(2, NAN));
    const GenerationResult found = TRY(std::move(generated));
    ItemValues values;
    for (size_t k = 0; k < items.size(); k++) {
        const std::string &text = found.texts[k], &solution = t.items[items[k]].answers[0];
        const std::string strict = strict_number(text), flexible = flexible_number(text);
        values.push_back({double(numbers_match(strict, solution)), double(numbers_match(flexible, solution))});
        if (samples)
            samples->push_back(sample_json(t, items[k])
                                   .set("text", text, "strict", strict, "flexible", flexible, "exact_match_strict",
                                        values[k][0], "exact_match_flexible", values[k][1]));
    }
    return values;
}

// All ranks' values in the items' order, on rank 0; rank r ran items r, r + ranks, ...
Result<ItemValues> gathered(const Result<ItemValues>& mine, size_t items, Coordinator& coordinator) {
    TRY(coordinator.agree(mine.status));
    std::string bytes;
    const size_t width = mine.value.empty() ? 0 : mine.value[0].size();
    for (const std::vector<double>& v : mine.value)
        bytes.append(reinterpret_cast<const char*>(v.data()), width * sizeof(double));
    const std::vector<std::string> parts = coordinator.gather(bytes);
    ItemValues all(parts.empty() ? 0 : items, std::vector<double>(width));    // rank 0 has an item if any rank does
    for (size_t i = 0; i < all.size(); i++)
        memcpy(all[i].data(), parts[i % parts.size()].data() + i / parts.size() * width * sizeof(double),
               width * sizeof(double));
    return all;
}

// The first items of each pool: lm-evaluation-harness limits each subject of MMLU by itself.
std::vector<Item> first_items(const std::vector<Item>& all, int64_t limit) {
    std::map<std::string, int64_t> taken;
    std::vector<Item> first;
    for (const Item& item : all)
        if (limit == 0 || taken[item.pool]++ < limit) first.push_back(item);
    return first;
}
void sum_up(const PreparedTask& t, const ItemValues& values, TaskResult& result) {
    std::vector<std::string> pools;
    std::map<std::string, ItemValues> by_pool;
    for (size_t i = 0; i < values.size(); i++) {
        pools.push_back(t.items[i].pool);
        by_pool[pools[i]].push_back(values[i]);
    }
    result.metrics = task_metrics(*t.task, values, pools);
    if (by_pool.size() == 1) return;
    for (const auto& [pool, own] : by_pool)
        result.parts.push_back({pool, int64_t(own.size()), t.shots, task_metrics(*t.task, own), {}});
}
}    // namespace

Status not_finite(const std::string& where, double logprob) {
    return fail(Exit::diverged,
                "%s: the log-likelihood is %g: the model's numbers have grown beyond what its activations hold; its "
                "training has diverged, or it was made for another type: try --dtype fp32",
                where.c_str(), logprob);
}

Result<PreparedTask> prepare_task(const EvalTask& task, const Tokenizer& tokenizer, const TaskOptions& o) {
    PreparedTask t{.task = &task, .shots = task.own_examples || o.shots < 0 ? task.shots : o.shots};
    std::vector<Item> all = TRY(read_items(task, o.file)), pool;
    if (!o.shots_file.empty()) pool = TRY(read_items(task, o.shots_file));
    t.items = first_items(all, o.limit);
    t.prefixes = TRY(task_prefixes(task, t.items, o.shots_file.empty() ? all : pool, o.shots_file.empty(), t.shots));
    double in_windows = 0;    // tokens of all windows
    for (size_t i = 0; i < t.items.size(); i++) {
        if (task.kind == TaskKind::generation) {
            std::vector<int> ids = encode_context(tokenizer, t.prefixes[i] + t.items[i].prompts[0]);
            const int most = o.context - task.most_tokens;
            if (most < 1)
                return fail(Exit::usage, "%s: an answer has up to %d tokens, the model's context %d", task.name,
                            task.most_tokens, o.context);
            if (int(ids.size()) > most) ids.erase(ids.begin(), ids.end() - most);
            t.prompts.push_back(std::move(ids));
            continue;
        }
        if (task.kind == TaskKind::rolling) {
            const int stride = o.stride > 0 ? o.stride : o.context;
            if (stride > o.context)
                return fail(Exit::usage, "--stride %d: expected at most the %d tokens of a window (--seq-len)", stride,
                            o.context);
            const std::vector<int> text = encode_context(tokenizer, t.items[i].answers[0]);
            in_windows += double(text.size()) / stride * o.context;
            if (stride < o.context && in_windows > MOST_IN_WINDOWS)
                return fail(
                    Exit::usage,
                    "--stride %d: %s: windows of %d tokens each hold %s tokens up to here, expected at most %s; "
                    "a larger --stride, a smaller --seq-len, or a part of the texts",
                    stride, t.items[i].record.where.c_str(), o.context, human_count(in_windows).c_str(),
                    human_count(MOST_IN_WINDOWS).c_str());
            for (LikelihoodRequest& r :
                 rolling_windows(text, prefix_token(tokenizer), o.context, stride, int64_t(t.requests.size())))
                t.requests.push_back(std::move(r));
            t.firsts.push_back(t.requests.size());
            continue;
        }
        TRY(add_requests(t, i, tokenizer, o.context));
        t.firsts.push_back(t.requests.size());
    }
    return t;
}

Result<RunResult> run_task(Model& model, const Tokenizer& tokenizer, const PreparedTask& t, const RunOptions& options) {
    RunResult out = {{t.task->name, int64_t(t.items.size()), t.shots, {}, {}}, {}};
    Coordinator* const coordinator = options.coordinator;
    const size_t ranks = coordinator ? size_t(coordinator->ranks()) : 1;
    std::vector<size_t> items;
    for (size_t i = coordinator ? size_t(coordinator->rank()) : 0; i < t.items.size(); i += ranks) items.push_back(i);
    std::vector<Json>* const samples = options.each ? &out.samples : nullptr;
    Result<ItemValues> values = t.task->kind == TaskKind::generation
                                    ? run_generation(model, tokenizer, t, items, options, samples)
                                    : run_likelihoods(model, t, items, options, samples);
    if (coordinator) values = gathered(values, t.items.size(), *coordinator);
    TRY(values.status);
    if (!values.value.empty()) sum_up(t, values.value, out.result);
    return out;
}
