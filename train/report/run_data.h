// run_data.h - a run as its page shows it. Rows of metrics.jsonl are down-sampled while they are
// added, so that a run of any length takes bounded memory.
#pragma once
#include <array>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/common.h"

// Where a value lies on each of the page's x axes. NaN: unknown.
struct AxisPoint {
    double step, tokens, seconds;
};

// One metric over time. Neighbouring values share a bucket, which has their mean, minimum and
// maximum. Once there are twice `limit` buckets, pairs are merged, and each bucket holds twice as
// many values from then on. With fewer values each keeps a bucket of its own.
class Series {
  public:
    struct Bucket {
        int64_t count = 0;
        AxisPoint sum = {};
        double value_sum = 0, min = INFINITY, max = -INFINITY;
    };
    explicit Series(size_t most) : limit(most) {}
    void add(const AxisPoint& at, double value);
    const std::vector<Bucket>& buckets() const { return all; }
    bool exact() const { return width == 1; }    // no bucket holds more than one value

  private:
    size_t limit;
    int64_t width = 1;    // values in a full bucket
    std::vector<Bucket> all;
};

class RunData {
  public:
    // buckets: limit for each metric. Validation losses get a larger one, so that they stay exact.
    RunData(std::string run_name, size_t buckets) : name(std::move(run_name)), limit(buckets) {}
    // Adds a row of metrics.jsonl. where: "file:line", for messages. Exit 3: the row has no step,
    // or more metrics than a run writes.
    Status add(const nlohmann::json& row, const std::string& where);
    nlohmann::ordered_json json() const;    // one of the page's runs (page.js)

    std::string name;
    std::string state = "-";                                      // running, finished, ...
    int64_t steps = 0;                                            // the whole run's; 0: unknown
    std::vector<std::pair<std::string, std::string>> settings;    // run.toml
    int64_t rows() const { return count; }
    int64_t last_step() const { return int64_t(last.step); }

  private:
    struct Sample {
        double step;
        std::string prompt, text;
    };
    struct TensorNorms {
        std::string tensor;
        std::array<Series, 3> norms;    // weights, gradient, update
    };
    Status add_metrics(const nlohmann::json& row, const std::string& prefix, const std::string& where);
    Status add_norms(const nlohmann::json& norms, const AxisPoint& at, const std::string& where);
    void add_sample(double step, const std::string& prompt, const std::string& text);
    Series& series(const std::string& metric);
    nlohmann::ordered_json summary() const;

    static constexpr size_t LAST_ROWS = 50;    // rows that give the speed, as in `flatgpt runs`
    double median_speed() const;

    size_t limit;
    std::deque<double> speeds;    // tokens/s of the last rows
    int64_t count = 0, skipped = 0;
    double seconds = 0, loss = NAN, best = INFINITY, best_step = NAN;
    AxisPoint last = {0, NAN, 0};
    std::vector<std::pair<std::string, Series>> metrics;    // in the order of their first rows
    std::vector<TensorNorms> norms;
    std::vector<Sample> samples;
    size_t sample_bytes = 0;
    nlohmann::json load;    // last expert_load
    double load_step = 0;
};
