// plot.cpp - `flatgpt plot`: the loss curves of runs as braille dots in the terminal, or all metrics as CSV.
#include <algorithm>
#include <memory>
#include <unistd.h>

#include "base/command.h"
#include "base/console.h"
#include "train/metrics.h"

using Json = nlohmann::json;

namespace {
using Strings = std::vector<std::string>;

struct Options {
    Strings runs;
    int width = 0, height = 0, smooth = 0;
    bool log_x = false, csv = false;
};
struct Point { double x, y; };
struct Curve {
    std::string name;
    std::vector<Point> train, val;    // (step, loss), finite ones
};

// ---- metrics.jsonl --------------------------------------------------------------------------------------------------

Result<Curve> read_curve(const std::string& run) {
    Curve curve;
    curve.name = run;
    TRY(read_metrics(run, [&](const Json& object, const std::string& where) {
        JsonFields fields{object, where};
        double step, loss = NAN, val = NAN;
        TRY(fields.get("step", &step, 0, 1e15));
        if (fields.has("loss")) TRY(fields.get("loss", &loss, -1e30, 1e30));    // null: it was not finite
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
    const Strings columns = {"step", "loss", "val_loss", "lr", "grad_norm", "ms", "tokens_per_second", "tokens", "mfu",
                             "skipped", "sample"};
    auto quoted = [](const std::string& text) {
        std::string out = "\"";
        for (char c : text) out += c == '"' ? "\"\"" : std::string{c};
        return out + "\"";
    };
    puts(("run," + join(columns, ",")).c_str());
    for (auto& run : runs)
        TRY(read_metrics(run, [&](const Json& object, const std::string&) {
            std::string line = quoted(run);
            for (auto& c : columns) {
                auto value = object.find(c);
                line += ",";
                if (value == object.end() || value->is_null()) continue;
                line += value->is_string() ? quoted(value->get<std::string>())
                                           : value->dump(-1, ' ', false, Json::error_handler_t::replace);
            }
            puts(line.c_str());
            return Status{};
        }));
    return {};
}

// The mean of `reach` points to each side; fewer near the ends, so that both ends stay where they are.
std::vector<Point> smoothed(const std::vector<Point>& points, int64_t reach) {
    std::vector<double> sum(points.size() + 1, 0.0);
    for (size_t i = 0; i < points.size(); i++) sum[i + 1] = sum[i] + points[i].y;
    std::vector<Point> out = points;
    auto n = int64_t(points.size());
    for (int64_t i = 0; i < n; i++) {
        int64_t r = std::min({reach, i, n - 1 - i});
        out[size_t(i)].y = (sum[size_t(i + r + 1)] - sum[size_t(i - r)]) / double(2 * r + 1);
    }
    return out;
}

// ---- the picture ----------------------------------------------------------------------------------------------------

// Characters of 2 x 4 braille dots each, some of them replaced by a mark.
struct Canvas {
    int columns, rows;
    std::vector<unsigned char> dots, color;
    Strings marks;
    Canvas(int columns, int rows)
        : columns(columns), rows(rows), dots(size_t(columns * rows)), color(dots.size()), marks(dots.size()) {}

    void dot(int x, int y, int hue) {
        static const unsigned char bit[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};    // Unicode's
        size_t cell = size_t(y / 4 * columns + x / 2);
        dots[cell] |= bit[y % 4][x % 2];
        color[cell] = static_cast<unsigned char>(hue);
    }
    void line(int x0, int y0, int x1, int y1, int hue) {
        int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
        auto between = [&](int a, int b, int i) { return a + int(std::lround(double(b - a) * i / steps)); };
        for (int i = 0; i <= steps; i++) dot(between(x0, x1, i), between(y0, y1, i), hue);
    }
    void mark(int x, int y, const std::string& text, int hue) {
        size_t cell = size_t(y / 4 * columns + x / 2);
        marks[cell] = text;
        color[cell] = static_cast<unsigned char>(hue);
    }
    std::string row(int r, bool colors) const {
        std::string out;
        for (int c = 0; c < columns; c++) {
            size_t cell = size_t(r * columns + c);
            std::string glyph = marks[cell];
            if (glyph.empty() && dots[cell])    // U+2800 + dots
                glyph = {char(0xE2), char(0xA0 | dots[cell] >> 6), char(0x80 | (dots[cell] & 63))};
            if (glyph.empty()) out += ' ';
            else if (colors) out += "\x1b[" + std::to_string(color[cell]) + "m" + glyph + "\x1b[0m";
            else out += glyph;
        }
        return out;
    }
};
int hue(size_t run) {
    static const int colors[] = {36, 33, 35, 32, 34, 31};
    return colors[run % 6];
}
std::string number(double x) { return formatted("%.6g", x); }
// Where an axis is labelled: multiples of 1, 2 or 5 times a power of ten, about `count` of them.
std::vector<double> ticks(double low, double high, int count) {
    double raw = (high - low) / std::max(count, 1), power = std::pow(10.0, std::floor(std::log10(raw)));
    double step = power * (raw / power > 5 ? 10 : raw / power > 2 ? 5 : raw / power > 1 ? 2 : 1);
    std::vector<double> at;
    for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) at.push_back(i * step);
    return at;
}
struct Axis {
    double low = INFINITY, high = -INFINITY;
    bool log = false;
    double place(double v) const { return log ? std::log10(std::max(v, 1.0)) : v; }
    void cover(double v) {
        low = std::min(low, place(v));
        high = std::max(high, place(v));
    }
    void settle() {    // a single value gets a range around it
        double pad = high > low ? 0 : std::max(0.5, std::fabs(low) * 0.1);
        low -= pad;
        high += pad;
    }
    int pixel(double v, int pixels) const { return int(std::lround((place(v) - low) / (high - low) * (pixels - 1))); }
};
std::vector<double> x_ticks(const Axis& axis, int columns) {
    if (!axis.log) return ticks(axis.low, axis.high, columns / 12);
    std::vector<double> at;
    for (double p = std::pow(10, std::floor(axis.low)); p <= std::pow(10, axis.high); p *= 10)
        for (double m : {1.0, 2.0, 5.0})
            if (axis.place(p * m) >= axis.low && axis.place(p * m) <= axis.high) at.push_back(p * m);
    return at;
}
void draw_curve(Canvas& canvas, const Curve& c, const std::vector<Point>& train, const Axis& ax, const Axis& ay,
                size_t run, bool numbered) {
    int w = canvas.columns * 2, h = canvas.rows * 4, color = hue(run), px = 0, py = 0;
    auto y_of = [&](double v) { return h - 1 - ay.pixel(v, h); };
    for (size_t i = 0; i < train.size(); i++) {
        int x = ax.pixel(train[i].x, w), y = y_of(train[i].y);
        canvas.line(i ? px : x, i ? py : y, x, y, color);
        px = x, py = y;
    }
    for (auto& p : c.val) canvas.mark(ax.pixel(p.x, w), y_of(p.y), "●", color);
    if (numbered && !train.empty()) canvas.mark(px, py, std::to_string((run + 1) % 10), color);
}
// The columns under the x axis: ticks, then their labels, those left out that would touch their neighbour.
void print_x_axis(const Axis& axis, int margin, int columns) {
    std::string labels(size_t(margin + 1 + columns), ' ');
    std::vector<bool> tick(size_t(columns), false);
    size_t free_from = 0;
    for (double v : x_ticks(axis, columns)) {
        std::string text = number(v);
        size_t column = size_t(axis.pixel(v, columns * 2) / 2), middle = size_t(margin + 1) + column;
        size_t from = middle >= text.size() / 2 ? middle - text.size() / 2 : 0;
        if (from + text.size() > labels.size()) from = labels.size() - text.size();
        if (from < free_from) continue;
        labels.replace(from, text.size(), text);
        free_from = from + text.size() + 2;
        tick[column] = true;
    }
    std::string line = std::string(size_t(margin), ' ') + "└";
    for (bool t : tick) line += t ? "┬" : "─";
    printf("%s\n%s\n", line.c_str(), labels.c_str());
}
void print_legend(const Curve& c, const std::vector<Point>& train, size_t run, bool numbered, bool colors) {
    std::string text = numbered ? std::to_string((run + 1) % 10) + " " : "";
    if (colors) text = "\x1b[" + std::to_string(hue(run)) + "m" + text + "⠒⠒\x1b[0m";
    else text += "⠒⠒";
    text += " " + escape_control(c.name) + ":";
    if (!train.empty()) text += formatted(" loss %.4g at step %.0f", train.back().y, train.back().x);
    if (!c.val.empty()) {
        auto best = std::min_element(c.val.begin(), c.val.end(), [](auto& a, auto& b) { return a.y < b.y; });
        text += train.empty() ? " " : "; ";
        text += formatted("● val %.4g, lowest %.4g at step %.0f", c.val.back().y, best->y, best->x);
    }
    puts(text.c_str());
}
void draw(const std::vector<Curve>& curves, const Options& o) {
    Axis ax, ay;
    ax.log = o.log_x;
    std::vector<std::vector<Point>> lines;
    for (auto& c : curves) {
        auto reach = o.smooth ? int64_t(o.smooth) / 2 : int64_t(c.train.size()) / 100;
        lines.push_back(smoothed(c.train, reach));
        for (auto& p : lines.back()) ax.cover(p.x), ay.cover(p.y);
        for (auto& p : c.val) ax.cover(p.x), ay.cover(p.y);
    }
    ax.settle();
    ay.settle();
    TerminalSize size = terminal_size();
    int height = o.height ? o.height : std::clamp(size.rows - 3, 12, 30), width = o.width ? o.width : size.columns - 1;
    int rows = std::max(height - 3 - int(curves.size()), 4), margin = 0;
    std::vector<std::string> label(size_t(rows), "");
    for (double v : ticks(ay.low, ay.high, rows / 3)) {
        label[size_t((rows * 4 - 1 - ay.pixel(v, rows * 4)) / 4)] = number(v);
        margin = std::max(margin, int(number(v).size()));
    }
    Canvas canvas(std::max(width - margin - 1, 10), rows);
    bool numbered = curves.size() > 1, colors = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
    for (size_t i = 0; i < curves.size(); i++) draw_curve(canvas, curves[i], lines[i], ax, ay, i, numbered);
    printf("%*s loss\n", margin, "");
    for (int r = 0; r < rows; r++) {
        const std::string& text = label[size_t(r)];
        printf("%*s%s%s\n", margin, text.c_str(), text.empty() ? "│" : "┤", canvas.row(r, colors).c_str());
    }
    print_x_axis(ax, margin, canvas.columns);
    for (size_t i = 0; i < curves.size(); i++) print_legend(curves[i], lines[i], i, numbered, colors);
}
}   // namespace

Command plot_command() {
    auto o = std::make_shared<Options>();
    return {.name = "plot",
            .summary = "Draw the loss curves of runs in the terminal.",
            .example = "flatgpt plot runs/a runs/b --log-x",
            .flags =
                {{.name = "RUN", .to = &o->runs, .help = "run directories or metrics.jsonl files", .required = true},
                 {.name = "--csv", .to = &o->csv, .help = "print all metrics as CSV instead"},
                 {.name = "--log-x", .to = &o->log_x, .help = "steps on a logarithmic axis"},
                 {.name = "--smooth", .to = &o->smooth, .help = "average over this many steps; 0: 2 % of all", .min = 0,
                  .max = 1e6},
                 {.name = "--width", .to = &o->width, .help = "columns; 0: the terminal's", .min = 0, .max = 1000},
                 {.name = "--height", .to = &o->height, .help = "lines; 0: fits the terminal", .min = 0, .max = 500}},
            .run = [o] {
                if (o->csv) return print_csv(o->runs);
                std::vector<Curve> curves;
                for (auto& run : o->runs) curves.push_back(TRY(read_curve(run)));
                draw(curves, *o);
                return Status{};
            }};
}
