// table.cpp - see table.h.
#include "table.h"

#include <algorithm>

#include "draw.h"

std::string table_line(const std::vector<int>& widths, const std::vector<Cell>& cells) {
    std::string line;
    for (size_t i = 0; i < cells.size(); i++) {
        const std::string& text = cells[i].text;
        const std::string spaces(size_t(std::max(0, std::abs(widths[i]) - display_width(text))), ' ');
        line += (i ? " " : "") + (widths[i] < 0 ? text + spaces : spaces + text);
    }
    return line;
}
void print_table_line(const std::vector<int>& widths, const std::vector<Cell>& cells) {
    puts(table_line(widths, cells).c_str());
}

std::string csv_line(const std::vector<Cell>& cells) {
    std::string line;
    for (const Cell& cell : cells) {
        std::string text;
        for (char c : cell.text) text += c == '"' ? "\"\"" : std::string{c};
        if (cell.quoted) text = '"' + text + '"';
        line += (&cell == cells.data() ? "" : ",") + text;
    }
    return line + "\n";
}
