// console.h - output for people: a progress line refreshed on a terminal, plain lines elsewhere.
#pragma once
#include <string>
#include <string_view>

#include "common.h"

bool stderr_is_terminal();    // a terminal with cursor movement (TERM not dumb)
struct TerminalSize {
    int columns, rows;
};
TerminalSize terminal_size();                        // size of stderr, else stdout; else COLUMNS, LINES; else 80x24
int text_width(FILE* to);                            // terminal's columns, at most 100; 80 for a file
void note_typed_input();                             // on a terminal, prints how to end input
double now_seconds();                                // monotonic clock
std::string human_count(double n);                   // 124.4M
std::string decimal(double n, const char* unit);     // 1.5 GFLOP
std::string human_bytes(double n);                   // 1.86 GiB
std::string human_time(double seconds);              // 1:02:03, 4:05, 12 s
std::string counted(int64_t n, const char* noun);    // "1 step", "2 steps"

// Breaks text at spaces if it exceeds `width` UTF-8 characters; other spaces stay.
std::string wrap_line(const std::string& text, int width);

// A progress line. On a terminal each line replaces the previous one, unless that had `keep`.
// Elsewhere a line is printed with `keep`, or if `every` seconds have passed since the last one.
class Progress {
  public:
    explicit Progress(double seconds = 10) : every(seconds) {}
    ~Progress();
    void line(const std::string& text, bool keep = false);
    void note(const std::string& text);    // prints a line above the progress line
    void clear();                          // removes the progress line before other output
    bool quiet = false;                    // prints nothing, as another rank prints
  private:
    double every, last = -1e9;
    std::string shown;
};

// ---- UTF-8 (RFC 3629: shortest forms, no surrogates) --------------------------------------------

// Returns the length in bytes of the longest prefix of text (not empty) that is a character or the
// beginning of one. complete: the prefix is a whole character.
size_t utf8_character(std::string_view text, bool& complete);
inline void append_utf8(std::string& text, uint32_t c) {
    const int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;    // bytes after the first
    const unsigned lead[] = {0, 0xC0, 0xE0, 0xF0};
    text += char(lead[more] | c >> 6 * more);
    for (int i = more; i-- > 0;) text += char(0x80 | (c >> 6 * i & 0x3F));
}
// Makes control characters (C0, DEL, C1) and invalid UTF-8 visible as escapes, for a terminal;
// keeps newline and tab.
std::string escape_control(std::string_view text);
