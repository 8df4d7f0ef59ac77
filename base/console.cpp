// console.cpp - the progress line, and numbers for people. All use stderr, as stdout is for
// results.
#include "console.h"

#include <algorithm>
#include <ctime>
#include <sys/ioctl.h>
#include <unistd.h>

bool stderr_is_terminal() {
    const char* term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && *term && std::string_view(term) != "dumb";
}
TerminalSize terminal_size() {
    for (int fd : {STDERR_FILENO, STDOUT_FILENO}) {
        winsize size{};
        if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) return {size.ws_col, size.ws_row};
    }
    auto from = [](const char* name, int otherwise) {
        const char* text = getenv(name);
        int n = text ? atoi(text) : 0;
        return n > 0 ? n : otherwise;
    };
    return {from("COLUMNS", 80), from("LINES", 24)};
}
int text_width(FILE* to) { return isatty(fileno(to)) ? std::min(terminal_size().columns, 100) : 80; }
void note_typed_input() {
    if (isatty(STDIN_FILENO)) fputs("reading from the terminal; end with Ctrl-D on a line of its own\n", stderr);
}
double now_seconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// ---- numbers ------------------------------------------------------------------------------------

namespace {
std::string print(const char* format, double x, const char* unit) {
    char text[64];
    snprintf(text, sizeof text, format, x, unit);
    return text;
}
// Prints x in the largest unit in which the rounded number is at least 1. Each unit is `base` times
// the previous one.
std::string scaled(double x, double base, const char* const* units, int count, const char* format) {
    int unit = 0;
    while (unit + 1 < count && std::fabs(x) >= base - (unit ? 0.05 : 0.5)) {
        x /= base;
        unit++;
    }
    return print(unit ? format : "%.0f%s", x, units[unit]);
}
}    // namespace

std::string human_count(double n) {
    static const char* const units[] = {"", "k", "M", "B", "T"};
    return scaled(n, 1000, units, 5, "%.1f%s");
}
std::string decimal(double n, const char* unit) {
    int prefix = 0;
    for (n /= 1e3; n >= 999.95 && prefix < 6; n /= 1e3) prefix++;
    return formatted("%.1f %c%s", n, "kMGTPEZ"[prefix], unit);
}
std::string human_bytes(double n) {
    static const char* const units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
    return scaled(n, 1024, units, 5, "%.2f%s");
}
std::string human_time(double seconds) {
    if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
    if (seconds < 59.5) return print(seconds < 9.95 ? "%.1f%s" : "%.0f%s", seconds, " s");
    long long s = std::llround(seconds);
    char text[64];
    if (s < 3600) snprintf(text, sizeof text, "%lld:%02lld", s / 60, s % 60);
    else snprintf(text, sizeof text, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    return text;
}

std::string counted(int64_t n, const char* noun) { return std::to_string(n) + " " + noun + (n == 1 ? "" : "s"); }

// ---- lines --------------------------------------------------------------------------------------

std::string wrap_line(const std::string& text, int width) {
    std::string out;
    int column = 0;
    for (size_t at = 0; at < text.size();) {
        const size_t word = std::min(text.find_first_not_of(' ', at), text.size());
        const size_t end = std::min(text.find(' ', word), text.size());
        int columns = 0;    // width of the word
        for (size_t i = word; i < end; i++) columns += (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
        const int spaces = int(word - at);
        if (out.find_first_not_of(' ') != out.npos && column + spaces + columns > width) {
            out += "\n";
            column = columns;
        } else {
            out.append(text, at, word - at);
            column += spaces + columns;
        }
        out.append(text, word, end - word);
        at = end;
    }
    return out;
}

// ---- the progress line --------------------------------------------------------------------------

namespace {
bool continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
// Cuts a line to `width` columns: between fields, which two spaces separate, or for a single field
// between words, so that no number is cut.
std::string cut(const std::string& text, int width) {
    size_t end = 0;
    for (int columns = 0; end < text.size(); end++)
        if (!continuation(text[end]) && columns++ == width) break;
    if (end == text.size()) return text;
    for (const char* gap : {"  ", " "})
        if (const size_t at = text.rfind(gap, end); at != text.npos && at > text.find_first_not_of(' '))
            return text.substr(0, text.find_last_not_of(' ', at) + 1);
    return text.find_first_of("0123456789") < end ? "" : text.substr(0, end);
}
// Wraps a line; a text of several lines stays unchanged.
std::string broken(const std::string& text, int width) {
    return text.find('\n') == std::string::npos ? wrap_line(text, width) : text;
}
// Draws with one write, so that lines of several threads or processes do not mix. The last column
// stays free, because some terminals wrap a line that uses it.
void draw(const std::string& text, bool end) {
    const int columns = terminal_size().columns;
    std::string line = "\r\x1b[K" + (end ? broken(text, columns) + "\n" : cut(text, columns - 1));
    fwrite(line.data(), 1, line.size(), stderr);
    fflush(stderr);
}
}    // namespace

void Progress::line(const std::string& text, bool keep) {
    if (quiet) return;
    if (stderr_is_terminal()) {
        draw(text, keep);
        shown = keep ? "" : text;
        return;
    }
    double now = now_seconds();
    if (!keep && now - last < every) return;
    last = now;
    fprintf(stderr, "%s\n", text.c_str());
    fflush(stderr);
}
void Progress::note(const std::string& text) {
    if (quiet) return;
    if (!stderr_is_terminal()) {
        fprintf(stderr, "%s\n", text.c_str());
        fflush(stderr);
        return;
    }
    draw(text, true);
    if (!shown.empty()) draw(shown, false);
}
void Progress::clear() {
    if (!shown.empty()) draw("", false);
    shown.clear();
}
Progress::~Progress() {
    if (!shown.empty()) draw(shown, true);
}

// ---- text of unknown origin ---------------------------------------------------------------------

size_t utf8_character(std::string_view text, bool& complete) {
    auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char b = byte(0);
    complete = b < 0x80;
    if (b < 0xC2 || b > 0xF4) return 1;
    const size_t length = b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
    unsigned low = b == 0xE0 ? 0xA0 : b == 0xF0 ? 0x90 : 0x80, high = b == 0xED ? 0x9F : b == 0xF4 ? 0x8F : 0xBF;
    size_t n = 1;
    for (; n < length && n < text.size() && byte(n) >= low && byte(n) <= high; n++) low = 0x80, high = 0xBF;
    complete = n == length;
    return n;
}

std::string escape_control(std::string_view text) {
    std::string out;
    for (bool complete; !text.empty();) {
        const std::string_view c = text.substr(0, utf8_character(text, complete));
        const auto first = static_cast<unsigned char>(c[0]), last = static_cast<unsigned char>(c.back());
        const bool control = c.size() == 1 ? (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F
                                           : first == 0xC2 && last < 0xA0;
        if (complete && !control) out += c;
        else
            for (char byte : c) {
                char hex[8];
                snprintf(hex, sizeof hex, "\\x%02X", static_cast<unsigned char>(byte));
                out += hex;
            }
        text.remove_prefix(c.size());
    }
    return out;
}
