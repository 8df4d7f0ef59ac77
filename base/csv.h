// csv.h - fields of CSV files (RFC 4180).
#pragma once
#include <cmath>
#include <string_view>

#include "common.h"

inline std::string csv_quoted(std::string_view text) {
    std::string out = "\"";
    for (char c : text) out += c == '"' ? "\"\"" : std::string{c};
    return out + "\"";
}
// Prints x by a printf format; NaN is printed without a sign.
[[gnu::format(printf, 1, 0)]] inline std::string number_text(const char* format, double x) {
    return std::isnan(x) ? "nan" : formatted(format, x);
}
