// meter.h - a progress line for sequential reading of files.
#pragma once
#include <algorithm>
#include <string>

#include "common.h"
#include "console.h"

// Progress text: "tokenize: 12.3 MB of 100.0 MB, 61.2 MB/s, 0:01 left"; for compressed files
// "tokenize: 12.3 kB of 100.0 kB, 4.5 MB of text, 61.2 MB/s, 0:01 left". done, total: bytes of the
// files; total 0: unknown. text: bytes after decompression.
inline std::string meter_line(const std::string& what, int64_t done, int64_t total, int64_t text, double seconds) {
    auto size = [](double n) { return n < 1e6 ? formatted("%.1f kB", n / 1e3) : formatted("%.1f MB", n / 1e6); };
    std::string line = what + ": " + size(double(done));
    if (total) line += " of " + size(double(total));
    if (text > done) line += ", " + size(double(text)) + " of text";
    line += ", " + size(double(std::max(done, text)) / seconds) + "/s";
    if (total > done && done > 0) line += ", " + human_time(double(total - done) / double(done) * seconds) + " left";
    return line;
}

class Meter {
  public:
    explicit Meter(const char* verb) : what(verb), start(now_seconds()) {}
    void show(int64_t done, int64_t total, int64_t text, Progress& progress) {
        const double seconds = now_seconds() - start;
        if (seconds < shown + 0.1) return;
        shown = seconds;
        progress.line(meter_line(what, done, total, text, seconds));
    }

  private:
    const char* what;
    double start, shown = 0;
};
