// draw.h - pictures made of characters, on standard output: curves of braille dots, maps of shades.
#pragma once
#include <string>
#include <vector>

#include "common.h"

bool stdout_has_colors();    // a terminal, and no NO_COLOR

struct Point {
    double x, y;
};
struct Curve {
    std::string legend;                // its line below the curves
    std::vector<Point> line, marks;    // dots that are joined; single ones, as ●
};
struct CurveStyle {
    int width = 0, height = 0;    // columns and lines in all; 0: the terminal's
    bool log_x = false;
    const char* y_name = "loss";
};
void print_curves(const std::vector<Curve>& curves, const CurveStyle& style);

// Where an axis is labelled: multiples of 1, 2 or 5 times a power of ten, about `count` of them; of a logarithmic axis,
// whose ends are powers of ten, 1, 2 and 5 times each.
std::vector<double> axis_ticks(double low, double high, int count);
std::vector<double> log_ticks(double low, double high);

// Values from 0 to 1 as shades, a cell of `cell` characters each: 24 greys, dark to light, or " .:-=+*#%@".
struct TextHeatmap {
    int rows, columns, cell = 2;
    std::vector<double> values;                                      // (rows,columns)
    std::vector<std::string> row_names, column_names, texts = {};    // texts stand in the cells; empty: shades alone
};
void print_heatmap(const TextHeatmap& map);
void print_heatmap_legend(
    const std::vector<std::pair<double, std::string>>& values);    // a value's shade, and its name
int display_width(std::string_view text);                          // columns that UTF-8 takes on a terminal
