// draw.h - pictures of characters on standard output: curves of braille dots, and heatmaps.
#pragma once
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

// Ticks of an axis: about `count` multiples of 1, 2 or 5 times a power of ten. log_ticks: 1, 2 and
// 5 times each power of ten.
std::vector<double> axis_ticks(double low, double high, int count);
std::vector<double> log_ticks(double low, double high);

// Values from 0 to 1, shown as shades in cells of `cell` characters: 24 greys, dark to light;
// without colors, the characters " .:-=+*#%@".
struct TextHeatmap {
    int rows, columns, cell = 2;
    std::vector<double> values;                                      // (rows,columns)
    std::vector<std::string> row_names, column_names, texts = {};    // texts in the cells; may be empty
};
void print_heatmap(const TextHeatmap& map);
void print_heatmap_legend(
    const std::vector<std::pair<double, std::string>>& values);    // value shown as a shade, and its label
int display_width(std::string_view text);                          // terminal columns of UTF-8 text
