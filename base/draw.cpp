// draw.cpp - see draw.h.
#include "draw.h"

#include <algorithm>
#include <cstring>
#include <unistd.h>

#include <utf8proc.h>

#include "console.h"

bool stdout_has_colors() { return isatty(STDOUT_FILENO) && !getenv("NO_COLOR"); }

// ---- curves -------------------------------------------------------------------------------------

void Axis::cover(double v) {
    low = std::min(low, axis_value(v));
    high = std::max(high, axis_value(v));
}
void Axis::widen_if_single() {
    const double pad = high > low ? 0 : std::max(0.5, std::fabs(low) * 0.1);
    low -= pad;
    high += pad;
}
std::vector<double> Axis::ticks(int count) const {
    std::vector<double> at;
    for (double p = std::pow(10, std::floor(low)); log && p <= std::pow(10, high); p *= 10)
        for (double m : {1.0, 2.0, 5.0})
            if (std::log10(p * m) >= low && std::log10(p * m) <= high) at.push_back(p * m);
    if (log) return at;
    const double raw = (high - low) / std::max(count, 1), power = std::pow(10.0, std::floor(std::log10(raw)));
    const double step = power * (raw / power > 5 ? 10 : raw / power > 2 ? 5 : raw / power > 1 ? 2 : 1);
    for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) at.push_back(i * step);
    return at;
}

namespace {
// Cells of 2 x 4 braille dots. A cell may show a mark in place of its dots.
struct Canvas {
    int columns, rows;
    std::vector<unsigned char> dots, color;
    std::vector<std::string> marks;
    Canvas(int width, int height)
        : columns(width), rows(height), dots(size_t(columns * rows)), color(dots.size()), marks(dots.size()) {}

    void dot(int x, int y, int hue) {
        static const unsigned char bit[4][2] = {
            {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};    // Unicode's order of braille dots
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
            if (glyph.empty() && dots[cell])    // code point U+2800 + dots
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
int pixel(const Axis& axis, double v, int pixels) { return int(std::lround(axis.fraction(v) * (pixels - 1))); }
void draw_curve(Canvas& canvas, const Curve& c, const Axis& ax, const Axis& ay, size_t number, bool numbered) {
    int w = canvas.columns * 2, h = canvas.rows * 4, color = hue(number), px = 0, py = 0;
    auto y_of = [&](double v) { return h - 1 - pixel(ay, v, h); };
    for (size_t i = 0; i < c.line.size(); i++) {
        int x = pixel(ax, c.line[i].x, w), y = y_of(c.line[i].y);
        canvas.line(i ? px : x, i ? py : y, x, y, color);
        px = x, py = y;
    }
    for (auto& p : c.marks) canvas.mark(pixel(ax, p.x, w), y_of(p.y), "●", color);
    if (numbered && !c.line.empty()) canvas.mark(px, py, std::to_string((number + 1) % 10), color);
}
// Prints ticks and labels under the x axis; a label that would touch its neighbour is left out.
void print_x_axis(const Axis& axis, int margin, int columns) {
    std::string labels(size_t(margin + 1 + columns), ' ');
    std::vector<bool> tick(size_t(columns), false);
    size_t free_from = 0;
    for (double v : axis.ticks(columns / 12)) {
        std::string text = number(v);
        size_t column = size_t(pixel(axis, v, columns * 2) / 2), middle = size_t(margin + 1) + column;
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
}    // namespace

void print_curves(const std::vector<Curve>& curves, const CurveStyle& style) {
    Axis ax{style.log_x}, ay;
    for (auto& c : curves)
        for (auto* points : {&c.line, &c.marks})
            for (auto& p : *points) ax.cover(p.x), ay.cover(p.y);
    ax.widen_if_single();
    ay.widen_if_single();
    TerminalSize size = terminal_size();
    int height = style.height ? style.height : std::clamp(size.rows - 3, 12, 30);
    int width = style.width ? style.width : size.columns - 1;
    int rows = std::max(height - 3 - int(curves.size()), 4), margin = 0;
    std::vector<std::string> label(size_t(rows), "");
    for (double v : ay.ticks(rows / 3)) {
        label[size_t((rows * 4 - 1 - pixel(ay, v, rows * 4)) / 4)] = number(v);
        margin = std::max(margin, int(number(v).size()));
    }
    Canvas canvas(std::max(width - margin - 1, 10), rows);
    bool numbered = curves.size() > 1, colors = stdout_has_colors();
    for (size_t i = 0; i < curves.size(); i++) draw_curve(canvas, curves[i], ax, ay, i, numbered);
    printf("%*s %s\n", margin, "", style.y_name);
    for (int r = 0; r < rows; r++) {
        const std::string& text = label[size_t(r)];
        printf("%*s%s%s\n", margin, text.c_str(), text.empty() ? "│" : "┤", canvas.row(r, colors).c_str());
    }
    print_x_axis(ax, margin, canvas.columns);
    for (size_t i = 0; i < curves.size(); i++) {
        const std::string sample = (numbered ? std::to_string((i + 1) % 10) + " " : "") + "⠒⠒";
        puts(((colors ? "\x1b[" + std::to_string(hue(i)) + "m" + sample + "\x1b[0m" : sample) + " " + curves[i].legend)
                 .c_str());
    }
}

// ---- shades -------------------------------------------------------------------------------------

int display_width(std::string_view text) {
    int width = 0;
    for (utf8proc_int32_t c = 0; !text.empty();) {
        const auto bytes =
            utf8proc_iterate(reinterpret_cast<const unsigned char*>(text.data()), utf8proc_ssize_t(text.size()), &c);
        if (bytes > 0) width += utf8proc_charwidth(c);
        text.remove_prefix(size_t(std::max<utf8proc_ssize_t>(bytes, 1)));
    }
    return width;
}

namespace {
// Draws x as a shade `columns` characters wide, with a text in its middle.
std::string shaded(double x, int columns, const std::string& text, bool colors) {
    static const char ramp[] = " .:-=+*#%@";
    const double value = std::clamp(std::isfinite(x) ? x : 0.0, 0.0, 1.0);
    const int width = display_width(text), left = std::max(0, columns - width) / 2;
    const int right = std::max(0, columns - width - left);
    if (colors)    // 232 to 255 are greys; the text contrasts
        return formatted("\x1b[48;5;%d;38;5;%dm", 232 + int(std::lround(value * 23)), value < 0.5 ? 255 : 232) +
               std::string(size_t(left), ' ') + text + std::string(size_t(right), ' ') + "\x1b[0m";
    const char fill = text.empty() ? ramp[std::min(9, int(value * 10))] : ' ';
    return std::string(size_t(left), fill) + text + std::string(size_t(right), fill);
}
}    // namespace

void print_heatmap(const Heatmap& map, int cell) {
    const bool colors = stdout_has_colors();
    int margin = 0;
    for (auto& name : map.row_names) margin = std::max(margin, display_width(name));
    std::string header(size_t(margin + 1), ' ');
    const size_t width = header.size() + size_t(map.columns * cell);
    for (size_t j = 0; j < map.column_names.size(); j++) {    // skips names that would touch their neighbour
        const std::string& name = map.column_names[j];
        const size_t from = size_t(margin + 1 + int(j) * cell);
        if ((j && from < header.size() + (map.texts.empty() ? 1 : 0)) || from + name.size() > width) continue;
        header.resize(from, ' ');
        header += name;
    }
    puts(header.c_str());
    for (int i = 0; i < map.rows; i++) {
        const std::string& name = map.row_names[size_t(i)];
        std::string line = name + std::string(size_t(margin + 1 - display_width(name)), ' ');
        for (int j = 0; j < map.columns; j++) {
            const size_t at = size_t(i * map.columns + j);
            line += shaded(map.values[at], cell, map.texts.empty() ? "" : map.texts[at], colors);
        }
        line.resize(line.find_last_not_of(' ') + 1);
        puts(line.c_str());
    }
}
void print_heatmap_legend(const HeatmapLegend& values) {
    std::string line = "shades:";
    for (auto& [value, name] : values) line += " " + shaded(value, 2, "", stdout_has_colors()) + " " + name;
    puts(line.c_str());
}
