// live.h - what a run writes besides metrics.jsonl while it trains: its page (--report) and its
// event file (--tensorboard). Both are made of the rows of metrics.jsonl. Neither may end a run: a
// failure is a warning, once, and the output is given up until the run is resumed.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "train/report/run_data.h"
#include "train/report/tensorboard.h"

class LiveReports {
  public:
    struct Choice {
        bool page = false, tensorboard = false;
        std::string run, settings;    // directory; text of run.toml
        int64_t steps = 0;            // the whole run's
    };
    // note: prints a line for people.
    void begin(const Choice& choice, const std::function<void(const std::string& text)>& note);
    // rows: whole lines that metrics.jsonl has got. The first call reads all rows of metrics.jsonl
    // and creates the files, so that a run without a step leaves none.
    void add(const std::string& rows);
    // Writes the page, unless pages would then take more than 1 % of the time. Called after
    // checkpoints; `add` calls it after validations, and every 30 seconds.
    void refresh();
    void close(const std::string& state);    // the last page; state: finished, stopped or failed

  private:
    void open();
    void check(const Status& s, bool* output, const char* flag);
    Status write_page(int seconds);
    Choice on;
    std::function<void(const std::string& text)> warn;
    std::unique_ptr<RunData> data;          // for the page; null before the first row
    std::unique_ptr<TensorBoard> events;    // null before the first row
    double written = 0, cost = 0;           // seconds: time of the last page; time that writing took
};
