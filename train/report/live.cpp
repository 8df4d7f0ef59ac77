// live.cpp - see live.h.
#include "train/report/live.h"

#include "base/console.h"
#include "base/file.h"
#include "train/metrics.h"
#include "train/report/page.h"

constexpr int PAGE_SECONDS = 30;    // between two pages, and two reloads in the browser

void LiveReports::check(const Status& s, bool* output, const char* flag) {
    if (s.ok() || !*output) return;
    warn(std::string("warning: ") + flag + ": " + s.message +
         "; the run goes on without; once that is mended, --resume writes it whole");
    *output = false;
}

void LiveReports::begin(const Choice& choice, const std::function<void(const std::string& text)>& note) {
    on = choice;
    warn = note;
}

void LiveReports::open() {
    if (on.page) {
        data = std::make_unique<RunData>(on.run, page_buckets(1));
        data->state = "running";
        data->steps = on.steps;
        Status s = add_settings(on.settings, "run.toml", data.get());
        if (s.ok()) s = read_metrics(on.run, [&](auto& row, auto& where) { return data->add(row, where); });
        if (s.ok()) s = write_page(PAGE_SECONDS);
        check(s, &on.page, "--report");
    }
    if (on.tensorboard) {
        events = std::make_unique<TensorBoard>();
        check(events->open(on.run), &on.tensorboard, "--tensorboard");
    }
}

void LiveReports::add(const std::string& rows) {
    if (!on.page && !on.tensorboard) return;
    if (!data && !events) return open();
    bool validated = false;
    for (size_t at = 0, end; at < rows.size(); at = end + 1) {
        end = std::min(rows.find('\n', at), rows.size());
        const Result<nlohmann::json> row = json_parse(std::string_view(rows).substr(at, end - at), "metrics.jsonl", 4);
        if (!row.ok() || !row.value.is_object()) continue;
        if (on.page) check(data->add(row.value, "metrics.jsonl"), &on.page, "--report");
        if (on.tensorboard) check(events->add(row.value), &on.tensorboard, "--tensorboard");
        validated = validated || row.value.contains("val_loss");
    }
    if (validated || now_seconds() - written > PAGE_SECONDS) refresh();
}

void LiveReports::refresh() {
    if (on.page && data && now_seconds() - written > 100 * cost) check(write_page(PAGE_SECONDS), &on.page, "--report");
}
void LiveReports::close(const std::string& state) {
    if (on.page && data) {
        data->state = state;
        check(write_page(0), &on.page, "--report");
    }
    if (on.tensorboard && events) check(events->flush(), &on.tensorboard, "--tensorboard");
}

Status LiveReports::write_page(int seconds) {
    const double began = now_seconds();
    const Status s = replace_file(on.run + "/report.html", page_html({on.run, {data->json()}, {}, seconds}));
    written = now_seconds();
    cost = written - began;
    return s;
}
