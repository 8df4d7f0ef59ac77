// runs.cpp - `flatgpt runs`: a table of the runs below directories.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <deque>
#include <filesystem>
#include <memory>

#include "base/command.h"
#include "base/console.h"
#include "base/draw.h"
#include "base/file.h"
#include "base/table.h"
#include "checkpoint/checkpoint.h"
#include "files/json.h"
#include "files/json_write.h"
#include "model/adapter.h"
#include "model/tensors.h"
#include "train/metrics.h"
#include "train/report/run_state.h"

namespace fs = std::filesystem;
namespace {
struct Options {
    std::vector<std::string> dirs;
    std::string sort = "val";
    bool json = false;
};
struct Run {
    std::string name;    // path
    RunState state;
    int64_t step = 0, val_step = -1;    // last one; -1: never validated
    double loss = NAN, val = NAN;       // last; lowest of the validations
    double tokens = NAN, speed = NAN;
    int64_t parameters = 0, bytes = 0;    // 0: no checkpoint; files on disk
    double age = NAN;                     // seconds since its last row
    std::string damage;                   // "": none
};

constexpr int MAX_DEPTH = 12;                                  // levels of directories
constexpr size_t LAST_ROWS = 50;                               // rows that give the speed
constexpr int64_t MAX_LINE = 16 << 20, MAX_LAST = 64 << 20;    // bytes: a line, the last rows together

// Reads the rows that matter: with a validation, and the last ones. Others are not parsed, so that
// a run of 100,000 steps takes milliseconds.
void read_rows(const std::string& path, Run* run) {
    if (access(path.c_str(), F_OK) != 0) return;
    std::deque<std::pair<int64_t, std::string>> last;    // line numbers and lines
    int64_t number = 0, bytes = 0;                       // the last line's; `last`'s
    auto parsed = [&](int64_t line_number, std::string_view line, bool may_be_cut) -> nlohmann::json {
        const std::string where = escape_control(path) + ":" + std::to_string(line_number);
        Result<nlohmann::json> row = json_parse(line, where, 4);
        if (row.ok() && !row.value.is_object()) row.status = fail(Exit::input, "%s: expected an object", where.c_str());
        if (!row.ok() && !may_be_cut && run->damage.empty()) run->damage = row.status.message;
        return row.ok() ? std::move(row.value) : nlohmann::json::object();
    };
    const Status read = each_line(path, MAX_LINE, [&](std::string_view line, int64_t at, bool is_last) {
        number = at;
        if (line.find("\"val_loss\"") != line.npos) {
            const nlohmann::json row = parsed(at, line, is_last);
            const double val = number_of(row, "val_loss");
            if (val < run->val || (std::isnan(run->val) && !std::isnan(val))) {
                run->val = val;
                run->val_step = step_of(row);
            }
        }
        last.emplace_back(at, line);
        bytes += int64_t(line.size());
        for (; last.size() > LAST_ROWS || (bytes > MAX_LAST && last.size() > 1); last.pop_front())
            bytes -= int64_t(last.front().second.size());
        return Status{};
    });
    if (!read.ok() && run->damage.empty()) run->damage = read.message;
    std::vector<double> speeds;
    for (const auto& [at, line] : last) {
        const nlohmann::json row = parsed(at, line, at == number);
        if (const int64_t step = step_of(row); step >= 0) run->step = step;
        run->loss = number_of(row, "loss", run->loss);
        run->tokens = number_of(row, "tokens", run->tokens);
        if (const double x = number_of(row, "tokens_per_second"); !std::isnan(x)) speeds.push_back(x);
    }
    std::sort(speeds.begin(), speeds.end());
    if (!speeds.empty()) run->speed = speeds[speeds.size() / 2];
}

int64_t bytes_below(const std::string& dir) {
    int64_t bytes = 0;
    std::error_code error;
    for (fs::recursive_directory_iterator it(dir, fs::directory_options::skip_permission_denied, error), end;
         !error && it != end; it.increment(error)) {
        struct stat s;
        if (lstat(it->path().c_str(), &s) == 0 && S_ISREG(s.st_mode)) bytes += int64_t(s.st_blocks) * 512;
        if (it.depth() >= MAX_DEPTH) it.disable_recursion_pending();
    }
    return bytes;
}

Run run_of(const std::string& dir) {
    Run run;
    run.name = dir;
    read_rows(dir + "/metrics.jsonl", &run);
    run.state = run_state(dir, run.step);
    const std::vector<std::string> checkpoints = checkpoint_list(dir);
    for (auto c = checkpoints.rbegin(); c != checkpoints.rend() && !run.parameters; ++c)
        if (const Result<Config> config = checkpoint_config(ModelSource(*c)); config.ok())
            run.parameters = config_parameters(config.value);
    run.bytes = bytes_below(dir);
    for (const char* file : {"/metrics.jsonl", "/lock"}) {
        struct stat s;
        if (!std::isnan(run.age) || stat((dir + file).c_str(), &s) != 0) continue;
        run.age = std::max(0.0, difftime(time(nullptr), s.st_mtime));
    }
    return run;
}

// Adds the runs of a directory and of those in it. Checkpoints are not searched, nor links
// followed.
void find_runs(const std::string& dir, int depth, std::vector<Run>* runs) {
    std::error_code error;
    if (fs::exists(dir + "/metrics.jsonl", error) || fs::exists(dir + "/run.toml", error)) runs->push_back(run_of(dir));
    if (depth == MAX_DEPTH) return;
    std::vector<std::string> inner;
    for (fs::directory_iterator it(dir, fs::directory_options::skip_permission_denied, error), end; !error && it != end;
         it.increment(error))
        if (!it->is_symlink(error) && it->is_directory(error) && checkpoint_step(it->path()) < 0)
            inner.push_back(it->path());
    std::sort(inner.begin(), inner.end());
    for (const std::string& d : inner) find_runs(d, depth + 1, runs);
}

// Sorts by one field, the best first; runs without it come last, and names decide between equals.
struct Order {
    const char* name;
    double (*key)(const Run& r);
};
const Order ORDERS[] = {{"val", [](const Run& r) { return r.val; }},
                        {"loss", [](const Run& r) { return r.loss; }},
                        {"age", [](const Run& r) { return r.age; }},
                        {"tokens", [](const Run& r) { return -r.tokens; }},
                        {"disk", [](const Run& r) { return -double(r.bytes); }},
                        {"name", [](const Run&) { return 0.0; }}};
void sort_runs(const std::string& by, std::vector<Run>* runs) {
    const auto* order = std::find_if(std::begin(ORDERS), std::end(ORDERS), [&](auto& o) { return by == o.name; });
    std::stable_sort(runs->begin(), runs->end(), [&](const Run& a, const Run& b) {
        const double x = order->key(a), y = order->key(b);
        if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
        return x != y && !std::isnan(x) ? x < y : a.name < b.name;
    });
}

void print_json(const std::vector<Run>& runs) {
    Json list = Json::list();
    for (const Run& r : runs)
        list.add(Json::object("name", r.name, "state", r.state.state, "reason", r.state.reason, "step", r.step, "steps",
                              r.state.steps, "loss", r.loss, "best_val_loss", r.val, "best_val_step", r.val_step,
                              "tokens", r.tokens, "tokens_per_second", r.speed, "parameters", r.parameters, "bytes",
                              r.bytes, "age_seconds", r.age, "damage", r.damage));
    list.print();
}
void print_table(const std::vector<Run>& runs) {
    int longest = 3;
    for (const Run& r : runs) longest = std::max(longest, display_width(escape_control(r.name)));
    const std::vector<int> widths = {-longest, -8, 15, 8, 8, 8, 8, 10, 8, 9, 0};
    print_table_line(widths,
                     {"run", "state", "steps", "val loss", "loss", "tokens", "model", "disk", "tok/s", "age", ""});
    auto loss = [](double x) { return std::isnan(x) ? Cell("-") : Cell(x, "%.4f"); };
    auto many = [](double x) { return Cell(std::isnan(x) || x <= 0 ? std::string("-") : human_count(x)); };
    for (const Run& r : runs) {
        const std::string steps = std::to_string(r.step) + (r.state.steps ? "/" + std::to_string(r.state.steps) : "");
        const std::string note = r.damage.empty() ? r.state.reason : "damaged: " + r.damage;
        print_table_line(widths, {escape_control(r.name), r.state.state, steps, loss(r.val), loss(r.loss),
                                  many(r.tokens), many(double(r.parameters)), human_bytes(double(r.bytes)),
                                  many(r.speed), std::isnan(r.age) ? Cell("-") : Cell(human_time(r.age)),
                                  note.empty() ? "" : " " + escape_control(note)});
    }
}
}    // namespace

Command runs_command() {
    auto o = std::make_shared<Options>();
    std::vector<std::string> orders;
    for (const Order& order : ORDERS) orders.push_back(order.name);
    return {
        .name = "runs",
        .summary = "List the runs below directories: state, losses, size, speed.",
        .example = "flatgpt runs runs        flatgpt runs runs --sort age",
        .flags = {{.name = "DIR", .to = &o->dirs, .help = "directories that hold runs", .required = true},
                  {.name = "--sort",
                   .to = &o->sort,
                   .help = "lowest validation loss first, lowest last loss, newest, most tokens, most disk, or by name",
                   .choices = orders},
                  {"--json", &o->json, "one JSON list"}},
        .run = [o]() -> Status {
            std::vector<Run> runs;
            for (const std::string& dir : o->dirs) {
                std::error_code error;
                if (!fs::is_directory(dir, error))
                    return fail(Exit::input, "%s: no such directory", escape_control(dir).c_str());
                find_runs(without_slashes(dir), 0, &runs);
            }
            sort_runs(o->sort, &runs);
            if (o->json) print_json(runs);
            else if (!runs.empty()) print_table(runs);
            else
                fprintf(stderr, "no runs below %s; a run's directory holds metrics.jsonl or run.toml\n",
                        escape_control(join(o->dirs, ", ")).c_str());
            return {};
        }};
}
