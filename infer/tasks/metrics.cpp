// metrics.cpp - sums of run.h, and GSM8K's match rule.
#include <algorithm>
#include <map>

#include "infer/jinja/value.h"
#include "run.h"

size_t best_of(const std::vector<double>& scores) {
    size_t best = 0;
    for (size_t i = 1; i < scores.size(); i++)
        if (scores[i] > scores[best]) best = i;
    return best;
}
MetricResult mean_metric(const std::string& name, const std::vector<double>& values,
                         const std::vector<std::string>& pools) {
    const double n = double(values.size());
    struct Sum {
        double sum = 0, n = 0;
    };
    std::map<std::string, Sum> by_pool;
    Sum all;
    for (size_t i = 0; i < values.size(); i++)
        for (Sum* s : {&by_pool[pools.empty() ? "" : pools[i]], &all}) {
            s->sum += values[i];
            s->n++;
        }
    double squares = 0;
    for (size_t i = 0; i < values.size(); i++) {
        const Sum& s = by_pool[pools.empty() ? "" : pools[i]];
        squares += (values[i] - s.sum / s.n) * (values[i] - s.sum / s.n);
    }
    return {name, all.sum / n, std::sqrt(squares / (n - double(by_pool.size()))) / std::sqrt(n)};
}
std::vector<MetricResult> task_metrics(const EvalTask& task, const std::vector<std::vector<double>>& by_item,
                                       const std::vector<std::string>& pools) {
    auto column = [&](size_t k) {
        std::vector<double> values;
        for (const std::vector<double>& item : by_item) values.push_back(item[k]);
        return values;
    };
    auto sum = [&](size_t k) {
        double all = 0;
        for (double x : column(k)) all += x;
        return all;
    };
    std::vector<MetricResult> results;
    for (size_t m = 0; m < task.metrics.size(); m++) {
        MetricResult r = {metric_name(task.metrics[m]), 0, NAN};
        switch (task.metrics[m]) {
            case Metric::word_perplexity: r.value = std::exp(-sum(0) / sum(1)); break;
            case Metric::byte_perplexity: r.value = std::exp(-sum(0) / sum(2)); break;
            case Metric::bits_per_byte: r.value = -sum(0) / sum(2) / std::log(2.0); break;
            case Metric::perplexity:    // the delta method gives the error of exp
                r = mean_metric(r.name, column(m));
                r.value = std::exp(-r.value);
                r.stderr_of_mean *= r.value;
                break;
            default: r = mean_metric(r.name, column(m), pools);
        }
        results.push_back(r);
    }
    return results;
}
Json TaskResult::json() const {
    Json all = Json::object();
    for (const MetricResult& m : metrics) {
        all.set(m.name, m.value);
        if (!std::isnan(m.stderr_of_mean)) all.set(m.name + "_stderr", m.stderr_of_mean);
    }
    all.set("items", items, "shots", shots);
    Json by_pool = Json::object();
    for (const TaskResult& part : parts) by_pool.set(part.task, part.json());
    if (!parts.empty()) all.set("subjects", by_pool);
    return all;
}

// ---- GSM8K --------------------------------------------------------------------------------------

namespace {
constexpr const char *DIGITS = "0123456789", *INVALID = "[invalid]";

// lm-evaluation-harness removes from both texts commas, dollar signs, everything up to the last
// "#### ", and a full stop at the end.
std::string normalized(std::string text) {
    std::erase_if(text, [](char c) { return c == ',' || c == '$'; });
    if (const size_t mark = text.rfind("#### "); mark != text.npos) text.erase(0, mark + 5);
    const bool line = text.ends_with(".\n");
    if (line || text.ends_with('.')) text.erase(text.size() - (line ? 2 : 1), 1);
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return char(tolower(c)); });
    return text;
}
}    // namespace

// The regular expression #### (\-?[0-9\.\,]+), its first match.
std::string strict_number(const std::string& text) {
    for (size_t at = 0; (at = text.find("#### ", at)) != text.npos; at++) {
        const size_t from = at + 5, digits = from + (from < text.size() && text[from] == '-');
        const size_t end = std::min(text.find_first_not_of("0123456789.,", digits), text.size());
        if (end > digits) return jinja::strip(text.substr(from, end - from));
    }
    return INVALID;
}
// The regular expression (-?[$0-9.,]{2,})|(-?[0-9]+), its last match.
std::string flexible_number(const std::string& text) {
    std::string last = INVALID;
    for (size_t at = 0; at < text.size();) {
        const size_t from = at + (text[at] == '-');
        size_t end = std::min(text.find_first_not_of("$0123456789.,", from), text.size());
        if (end < from + 2) end = std::min(text.find_first_not_of(DIGITS, from), text.size());
        if (end > from) last = jinja::strip(text.substr(at, end - at));
        at = std::max(at + 1, end > from ? end : 0);
    }
    return last;
}
bool numbers_match(const std::string& found, const std::string& solution) {
    return normalized(found) == normalized(solution);
}
