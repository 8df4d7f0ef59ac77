// table.h - lines of tables: in columns for people, as CSV (RFC 4180) for programs.
#pragma once
#include <concepts>
#include <string>
#include <vector>

#include "common.h"

struct Cell {
    std::string text;
    bool quoted = false;    // in CSV
    Cell() = default;       // empty
    Cell(std::string s) : text(std::move(s)), quoted(true) {}
    Cell(const char* s) : Cell(std::string(s)) {}
    template <std::integral N> Cell(N n) : text(std::to_string(n)) {}
    // format: printf's, for x. A NaN is printed without a sign.
    [[gnu::format(printf, 3, 0)]] Cell(double x, const char* format)
        : text(std::isnan(x) ? "nan" : formatted(format, x)) {}
};
// Formats a line; a space separates the cells. widths: the least number of terminal columns of each
// cell; negative: the cell is aligned to the left.
std::string table_line(const std::vector<int>& widths, const std::vector<Cell>& cells);
void print_table_line(const std::vector<int>& widths, const std::vector<Cell>& cells);
std::string csv_line(const std::vector<Cell>& cells);    // with a newline
