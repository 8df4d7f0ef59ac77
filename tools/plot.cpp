// plot.cpp - `flatgpt plot`: loss curves of runs as braille dots in the terminal or as a picture,
// all metrics as an HTML page or as CSV.
#include <algorithm>
#include <memory>

#include "base/command.h"
#include "base/console.h"
#include "base/draw.h"
#include "base/table.h"
#include "files/picture.h"
#include "base/file.h"
#include "train/metrics.h"
#include "train/report/page.h"

namespace {
using Strings = std::vector<std::string>;

struct Options {
    Strings runs;
    int width = 0, height = 0, smooth = 0;
    bool log_x = false, csv = false;
    std::string svg, png, html;
    Strings sections;
};
struct Losses {
    std::string name;
    std::vector<Point> train, val;    // (step, loss); finite losses only
};

// ---- metrics.jsonl ------------------------------------------------------------------------------

Result<Losses> read_losses(const std::string& run) {
    Losses curve;
    curve.name = run;
    TRY(read_metrics(run, [&](const nlohmann::json& object, const std::string& where) {
        JsonFields fields{object, where};
        double step, loss = NAN, val = NAN;
        TRY(fields.get("step", &step, 0, 1e15));
        if (fields.has("loss")) TRY(fields.get("loss", &loss, -1e30, 1e30));    // null: not finite
        if (fields.has("val_loss")) TRY(fields.get("val_loss", &val, -1e30, 1e30));
        if (std::isfinite(loss)) curve.train.push_back({step, loss});
        if (std::isfinite(val)) curve.val.push_back({step, val});
        return Status{};
    }));
    if (curve.train.empty() && curve.val.empty())
        return fail(Exit::input, "%s: no losses in it yet", escape_control(run).c_str());
    return curve;
}
Status print_csv(const Strings& runs) {
    const Strings columns = {"step",
                             "loss",
                             "val_loss",
                             "lr",
                             "grad_norm",
                             "ms",
                             "tokens_per_second",
                             "tokens",
                             "mfu",
                             "skipped",
                             "sample",
                             "busiest_expert",
                             "memory",
                             "time",
                             "val_loss_average"};
    puts(("run," + join(columns, ",")).c_str());
    for (auto& run : runs)
        TRY(read_metrics(run, [&](const nlohmann::json& object, const std::string&) {
            std::vector<Cell> cells = {run};
            for (auto& c : columns) {
                auto value = object.find(c);
                cells.emplace_back();
                if (value == object.end() || value->is_null()) continue;
                if (value->is_string()) cells.back() = value->get<std::string>();
                else cells.back().text = value->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
            }
            fputs(csv_line(cells).c_str(), stdout);
            return Status{};
        }));
    return {};
}

// Replaces each loss by the mean over the point and `reach` points on each side. At the beginning,
// where losses fall fast, the sides are shorter, so that the first point stays; at the end one side
// is, so that the curve does not end in the noise of one step.
std::vector<Point> smoothed(const std::vector<Point>& points, int64_t reach) {
    std::vector<double> sum(points.size() + 1, 0.0);
    for (size_t i = 0; i < points.size(); i++) sum[i + 1] = sum[i] + points[i].y;
    std::vector<Point> out = points;
    auto n = int64_t(points.size());
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = i - std::min(reach, i), to = std::min(i + std::min(reach, i), n - 1) + 1;
        out[size_t(i)].y = (sum[size_t(to)] - sum[size_t(from)]) / double(to - from);
    }
    return out;
}

// ---- the picture --------------------------------------------------------------------------------

std::string legend(const Losses& c, const std::vector<Point>& train) {
    std::string text = escape_control(c.name) + ":";
    if (!train.empty()) text += formatted(" loss %.4g at step %.0f", train.back().y, train.back().x);
    if (!c.val.empty()) {
        auto best = std::min_element(c.val.begin(), c.val.end(), [](auto& a, auto& b) { return a.y < b.y; });
        text += train.empty() ? " " : "; ";
        text += formatted("● val %.4g, lowest %.4g at step %.0f", c.val.back().y, best->y, best->x);
    }
    return text;
}
Status draw(const std::vector<Losses>& runs, const Options& o) {
    std::vector<Curve> curves;
    bool smooth = false;
    for (auto& c : runs) {
        auto reach = o.smooth ? int64_t(o.smooth) / 2 : int64_t(c.train.size()) / 100;
        const std::vector<Point> line = smoothed(c.train, reach);
        smooth |= reach > 0;
        curves.push_back({legend(c, line), line, c.val});
    }
    for (const std::string& picture : {o.svg, o.png})
        if (!picture.empty())
            TRY(write_curves(picture, {smooth ? "loss of each step, smoothed" : "loss of each step", "step", "loss",
                                       o.log_x, curves}));
    if (!o.svg.empty() || !o.png.empty()) return {};
    print_curves(curves, {.width = o.width, .height = o.height, .log_x = o.log_x});
    return {};
}
Status check_outputs(const Options& o) {
    for (const auto& [flag, path, ending] : {std::tuple{"--svg", o.svg, ".svg"}, {"--png", o.png, ".png"}}) {
        if (path.empty()) continue;
        if (!path.ends_with(ending))
            return fail(Exit::usage, "%s %s: expected a file's name that ends in %s", flag, path.c_str(), ending);
        TRY(picture_check(path, flag));
    }
    return o.html.empty() ? Status{} : check_writable(o.html, "--html");
}

// ---- the page -----------------------------------------------------------------------------------

// The part of the runs' names that differs: they often are in one directory.
Strings short_names(const Strings& runs) {
    size_t common = runs[0].rfind('/') + 1;
    for (const std::string& run : runs)
        while (run.compare(0, common, runs[0], 0, common) != 0)
            common = common < 2 ? 0 : runs[0].rfind('/', common - 2) + 1;
    Strings names;
    for (const std::string& run : runs) names.push_back(runs.size() > 1 ? run.substr(common) : run);
    return names;
}
Status write_page(const Options& o) {
    PageContent page;
    Strings runs;
    for (const std::string& run : o.runs) runs.push_back(without_slashes(run));
    const Strings names = short_names(runs);
    page.title = runs.size() == 1 ? runs[0] : counted(int64_t(runs.size()), "run") + ": " + join(names, ", ");
    for (size_t i = 0; i < runs.size(); i++) {
        RunData run(names[i], page_buckets(runs.size()));
        TRY(read_run(runs[i], &run));
        page.runs.push_back(run.json());
    }
    for (const std::string& section : o.sections) page.sections.push_back(TRY(page_section(section)));
    return replace_file(o.html, page_html(page));
}
}    // namespace

Command plot_command() {
    auto o = std::make_shared<Options>();
    return {
        .name = "plot",
        .summary = "Show the metrics of runs: in the terminal, as a picture, or as a page for a browser.",
        .example = "flatgpt plot runs/a runs/b --log-x        flatgpt plot runs/a runs/b --html runs.html",
        .flags = {{.name = "RUN", .to = &o->runs, .help = "run directories or metrics.jsonl files", .required = true},
                  {.name = "--csv", .to = &o->csv, .help = "print the metrics that every objective has as CSV instead"},
                  {.name = "--html",
                   .to = &o->html,
                   .help = "one page of all metrics, settings and samples instead, for any browser; it loads nothing",
                   .excludes = {"--csv, --svg, --png, --width, --height, --log-x, --smooth"}},
                  {.name = "--section",
                   .to = &o->sections,
                   .help = "a picture (.svg, .png) or tables (.json) for the page, as inspect --picture and bench "
                           "--json make them",
                   .needs = {"--html"}},
                  {.name = "--svg",
                   .to = &o->svg,
                   .help = "a picture of the curves instead",
                   .excludes = {"--csv, --width, --height"}},
                  {.name = "--png",
                   .to = &o->png,
                   .help = "a PNG of the curves, by librsvg",
                   .excludes = {"--csv, --width, --height"}},
                  {.name = "--log-x", .to = &o->log_x, .help = "steps on a logarithmic axis"},
                  {.name = "--smooth",
                   .to = &o->smooth,
                   .help = "average over this many steps; 0: 2 % of all",
                   .min = 0,
                   .max = 1e6},
                  {.name = "--width", .to = &o->width, .help = "columns; 0: the terminal's", .min = 0, .max = 1000},
                  {.name = "--height", .to = &o->height, .help = "lines; 0: fits the terminal", .min = 0, .max = 500}},
        .run = [o]() -> Status {
            TRY(check_outputs(*o));
            if (o->csv) return print_csv(o->runs);
            if (!o->html.empty()) return write_page(*o);
            std::vector<Losses> runs;
            for (auto& run : o->runs) runs.push_back(TRY(read_losses(run)));
            return draw(runs, *o);
        }};
}
