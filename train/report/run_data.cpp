// run_data.cpp - see run_data.h.
#include "train/report/run_data.h"

#include <algorithm>
#include <cmath>

#include "files/json.h"
#include "train/metrics.h"

namespace {
typedef nlohmann::json Value;
using nlohmann::ordered_json;

constexpr size_t EXACT = 25;                 // times as many buckets for a metric that stays exact
constexpr size_t MAX_METRICS = 200;          // in a file, so that a hostile one stays small
constexpr size_t MANY_METRICS = 20;          // further ones get fewer buckets
constexpr size_t MAX_TENSORS = 20000;        // with norms
constexpr size_t NORM_VALUES = 24000;        // in a page, of all tensors together
constexpr size_t MAX_SAMPLES = 300 << 10;    // bytes of prompts and texts
constexpr size_t MAX_TEXT = 8 << 10;         // bytes of one
constexpr double NORM_BUCKETS_MAX = 200, NORM_BUCKETS_MIN = 16;

// The part of the page's whole that a run with this limit of buckets (page_buckets) may take.
size_t part_of(size_t whole, size_t limit) { return whole * std::min<size_t>(limit, 800) / 800; }

// The decimal of five digits that is nearest to x, of seven above 1e5; null: not finite.
ordered_json rounded(double x) {
    if (!std::isfinite(x)) return nullptr;
    if (x == std::floor(x) && std::fabs(x) < 1e15) return int64_t(x);
    return rounded_to(std::fabs(x) < 1e5 ? 5 : 7, x);
}

// The x axes of the page's metrics. Metrics that occur in the same rows share one.
class Axes {
  public:
    size_t add(const std::vector<Series::Bucket>& buckets) {
        ordered_json step = ordered_json::array(), tokens = step, time = step;
        for (const Series::Bucket& b : buckets) {
            const double n = double(b.count);
            step.push_back(rounded(std::round(b.sum.step / n)));
            tokens.push_back(rounded(std::round(b.sum.tokens / n)));
            time.push_back(rounded(b.sum.seconds / n));
        }
        const bool known = std::none_of(tokens.begin(), tokens.end(), [](auto& x) { return x.is_null(); });
        ordered_json axis = {{"step", step}, {"tokens", known ? tokens : ordered_json()}, {"time", time}};
        const auto found = std::find(all.begin(), all.end(), axis);
        if (found != all.end()) return size_t(found - all.begin());
        all.push_back(std::move(axis));
        return all.size() - 1;
    }
    ordered_json json() const { return all; }

  private:
    std::vector<ordered_json> all;
};
ordered_json means(const Series& s) {
    ordered_json list = ordered_json::array();
    for (const Series::Bucket& b : s.buckets()) list.push_back(rounded(b.value_sum / double(b.count)));
    return list;
}
ordered_json bounds(const Series& s, double Series::Bucket::*bound) {
    if (s.exact()) return nullptr;
    ordered_json list = ordered_json::array();
    for (const Series::Bucket& b : s.buckets()) list.push_back(rounded(b.*bound));
    return list;
}
std::string text_of(const Value& row, const char* key) {
    const auto text = row.find(key);
    return text != row.end() && text->is_string() ? text->get<std::string>() : "";
}
}    // namespace

void Series::add(const AxisPoint& at, double value) {
    if (!std::isfinite(value)) return;
    if (all.empty() || all.back().count >= width) {
        if (all.size() >= 2 * limit) {
            for (size_t i = 0; i < all.size() / 2; i++) {
                const Bucket &a = all[2 * i], &b = all[2 * i + 1];
                all[i] = {a.count + b.count,
                          {a.sum.step + b.sum.step, a.sum.tokens + b.sum.tokens, a.sum.seconds + b.sum.seconds},
                          a.value_sum + b.value_sum,
                          std::min(a.min, b.min),
                          std::max(a.max, b.max)};
            }
            all.resize(all.size() / 2);
            width *= 2;
        }
        all.emplace_back();
    }
    Bucket& b = all.back();
    b.count++;
    b.sum.step += at.step;
    b.sum.tokens += at.tokens;
    b.sum.seconds += at.seconds;
    b.value_sum += value;
    b.min = std::min(b.min, value);
    b.max = std::max(b.max, value);
}

Series& RunData::series(const std::string& metric) {
    for (auto& [key, of] : metrics)
        if (key == metric) return of;
    size_t buckets = limit;    // halved again and again, so that few lengths, and so few axes, occur
    for (size_t n = MANY_METRICS; metrics.size() >= n && buckets > 100; n *= 2) buckets /= 2;
    metrics.emplace_back(metric, Series(metric.starts_with("val_") ? EXACT * buckets : buckets));
    return metrics.back().second;
}

Status RunData::add(const Value& row, const std::string& where) {
    const JsonFields fields{row, where};
    TRY(fields.get("step", &last.step, 0, 1e15));
    const double ms = number_of(row, "ms");
    if (ms > 0) seconds += ms / 1e3;
    last.tokens = number_of(row, "tokens");
    last.seconds = seconds;
    count++;
    if (const double x = number_of(row, "loss"); std::isfinite(x)) loss = x;
    if (const double x = number_of(row, "tokens_per_second"); std::isfinite(x)) {
        speeds.push_back(x);
        if (speeds.size() > LAST_ROWS) speeds.pop_front();
    }
    if (const double x = number_of(row, "val_loss"); x < best) {
        best = x;
        best_step = last.step;
    }
    if (const auto x = row.find("skipped"); x != row.end()) skipped += *x == true;
    TRY(add_metrics(row, "", where));
    if (const auto x = row.find("expert_load"); x != row.end()) {
        load = *x;
        load_step = last.step;
    }
    if (const auto x = row.find("norms"); x != row.end()) TRY(add_norms(*x, last, where));
    if (const std::string text = text_of(row, "sample"); !text.empty()) add_sample(last.step, "", text);
    if (const auto x = row.find("samples"); x != row.end() && x->is_array())
        for (const Value& s : *x)
            if (s.is_object()) add_sample(last.step, text_of(s, "prompt"), text_of(s, "text"));
    return {};
}

// Adds the numbers of a row, and by `prefix` those of --eval-tasks: "eval/piqa/acc".
Status RunData::add_metrics(const Value& row, const std::string& prefix, const std::string& where) {
    for (const auto& [key, value] : row.items()) {
        const bool evaluates = prefix.empty() ? key == "eval" : prefix == "eval/";
        if (evaluates && value.is_object()) TRY(add_metrics(value, prefix + key + "/", where));
        if (!value.is_number() || key == "step" || key == "tokens" || key == "time") continue;    // axes
        if (!prefix.empty() && (key.ends_with("_stderr") || key == "items" || key == "shots")) continue;
        series(prefix + key).add(last, value.get<double>());
        if (metrics.size() > MAX_METRICS)
            return fail(Exit::input, "%s: expected at most %zu metrics in a file", where.c_str(), MAX_METRICS);
    }
    return {};
}

Status RunData::add_norms(const Value& row, const AxisPoint& at, const std::string& where) {
    if (!row.is_object()) return fail(Exit::input, "%s: norms: expected an object", where.c_str());
    if (norms.empty()) norms.reserve(row.size());
    size_t next = 0;    // rows have the same tensors in the same order
    for (const auto& [tensor, values] : row.items()) {
        if (!values.is_array() || values.size() != 3)
            return fail(Exit::input, "%s: norms: expected three numbers for each tensor", where.c_str());
        if (next >= norms.size() || norms[next].tensor != tensor) {
            next = size_t(std::ranges::find(norms, tensor, &TensorNorms::tensor) - norms.begin());
            if (next == norms.size()) {
                if (next >= MAX_TENSORS)
                    return fail(Exit::input, "%s: norms: expected at most %zu tensors", where.c_str(), MAX_TENSORS);
                const double share = double(part_of(NORM_VALUES, limit)) / (3.0 * double(row.size()));
                const Series empty(size_t(std::clamp(share, NORM_BUCKETS_MIN, NORM_BUCKETS_MAX)) / 2);
                norms.push_back({tensor, {empty, empty, empty}});
            }
        }
        for (size_t i = 0; i < 3; i++)
            if (values[i].is_number()) norms[next].norms[i].add(at, values[i].get<double>());
        next++;
    }
    return {};
}

// Keeps texts within MAX_SAMPLES: the samples of every second step go, and the last one's stay.
void RunData::add_sample(double step, const std::string& prompt, const std::string& text) {
    auto cut = [](const std::string& s) { return s.size() <= MAX_TEXT ? s : s.substr(0, MAX_TEXT) + "..."; };
    samples.push_back({step, cut(prompt), cut(text)});
    sample_bytes += samples.back().prompt.size() + samples.back().text.size() + 32;
    if (sample_bytes <= part_of(MAX_SAMPLES, limit)) return;
    bool keep = true;
    double before = samples[0].step;
    std::vector<Sample> kept;
    sample_bytes = 0;
    for (const Sample& s : samples) {
        if (s.step != before) keep = !keep;
        before = s.step;
        if (!keep && s.step != step) continue;
        sample_bytes += s.prompt.size() + s.text.size() + 32;
        kept.push_back(s);
    }
    samples = std::move(kept);
}

double RunData::median_speed() const {
    std::vector<double> sorted(speeds.begin(), speeds.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? NAN : sorted[sorted.size() / 2];
}

ordered_json RunData::summary() const {
    return {{"step", int64_t(last.step)},
            {"steps", steps},
            {"loss", rounded(loss)},
            {"best_val_loss", rounded(best)},
            {"best_val_step", rounded(best_step)},
            {"tokens", rounded(last.tokens)},
            {"tokens_per_second", rounded(median_speed())},
            {"seconds", rounded(seconds)},
            {"skipped", skipped}};
}

ordered_json RunData::json() const {
    Axes axes;
    ordered_json curves = ordered_json::object(), tensors = ordered_json::array(), texts = tensors;
    for (const auto& [key, s] : metrics)
        if (!s.buckets().empty())
            curves[key] = {{"axis", axes.add(s.buckets())},
                           {"mean", means(s)},
                           {"min", bounds(s, &Series::Bucket::min)},
                           {"max", bounds(s, &Series::Bucket::max)}};
    for (const TensorNorms& t : norms)
        if (!t.norms[0].buckets().empty())
            tensors.push_back({{"name", t.tensor},
                               {"axis", axes.add(t.norms[0].buckets())},
                               {"norms", {means(t.norms[0]), means(t.norms[1]), means(t.norms[2])}}});
    for (const Sample& s : samples)
        texts.push_back({{"step", int64_t(s.step)}, {"prompt", s.prompt}, {"text", s.text}});
    ordered_json rows = ordered_json::object(), experts;
    for (const auto& [key, value] : settings) rows[key] = value;
    bool regular = load.is_array();    // lists of numbers
    for (const Value& layer : regular ? load : Value::array())
        regular = regular && layer.is_array() &&
                  std::all_of(layer.begin(), layer.end(), [](const Value& x) { return x.is_number(); });
    if (regular) experts = {{"step", int64_t(load_step)}, {"load", load}};
    return {{"name", name},      {"state", state},   {"summary", summary()}, {"settings", rows}, {"axes", axes.json()},
            {"metrics", curves}, {"norms", tensors}, {"experts", experts},   {"samples", texts}};
}
