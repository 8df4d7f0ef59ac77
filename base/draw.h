// draw.h - pictures of characters on standard output: curves of braille dots, and heatmaps.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "common.h"

bool stdout_has_colors();    // a terminal, and NO_COLOR is not set

struct Point {
    double x, y;
};
struct Curve {
    std::string legend;                // text of its legend line
    std::vector<Point> line, marks;    // line: joined points; marks: single points, as ●
};
struct CurveStyle {
    int width = 0, height = 0;    // total columns and lines; 0: the terminal's
    bool log_x = false;
    const char* y_name = "loss";
};
void print_curves(const std::vector<Curve>& curves, const CurveStyle& style);

struct Axis {
    bool log = false;                           // values below 1 count as 1
    double low = INFINITY, high = -INFINITY;    // range of its values, or of their decimal logarithms
    double axis_value(double v) const { return log ? std::log10(std::max(v, 1.0)) : v; }
    void cover(double v);
    void widen_if_single();    // a single value gets a range around it
    double fraction(double v) const { return (axis_value(v) - low) / (high - low); }
    // Multiples of 1, 2 or 5 times a power of ten, about `count` of them. A logarithmic axis has
    // ticks at 1, 2 and 5 times each power of ten.
    std::vector<double> ticks(int count) const;
};

struct Heatmap {
    int rows = 0, columns = 0;
    std::vector<double> values = {};                                           // (rows,columns), from 0 to 1
    std::vector<std::string> row_names = {}, column_names = {}, texts = {};    // UTF-8; texts: in cells; may be empty
};
typedef std::vector<std::pair<double, std::string>> HeatmapLegend;    // value shown as a shade, and its label
// Shades in cells of `cell` characters: 24 greys, dark to light, or " .:-=+*#%@".
void print_heatmap(const Heatmap& map, int cell);
void print_heatmap_legend(const HeatmapLegend& values);
int display_width(std::string_view text);    // terminal columns of UTF-8 text
