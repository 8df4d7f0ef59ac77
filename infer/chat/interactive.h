// run_interactive.h - a person at a terminal, or a pipe, talks with a Chat.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "chat.h"

// Lines into messages: """ at the start of a line begins one that ends with """ at the end of a line, and a line that
// ends with \ goes on in the next.
class MessageReader {
  public:
    std::optional<std::string> push(const std::string& line);    // a line without its end; a message that it completes
    std::optional<std::string> finish();                         // what is there at the end of the input
    bool open() const { return state != State::none; }           // a message has begun

  private:
    enum class State { none, quoted, continued } state = State::none;
    std::string message;
};

// Lines of standard input, until it ends. At a terminal they are edited and remembered by libedit (loaded at run time;
// without it the terminal's own editing serves), and Ctrl-C discards a line.
class LineReader {
  public:
    LineReader();
    ~LineReader();
    LineReader(const LineReader&) = delete;
    bool terminal() const { return is_terminal; }
    enum class Kind { line, end, discarded, interrupted };    // Ctrl-C: in a line with text; in an empty one
    Kind read(const char* prompt, std::string* line);
    void remember(const std::string& message);    // the arrow keys bring it back

  private:
    struct Editor;
    std::unique_ptr<Editor> editor;    // null: not a terminal, or no libedit
    bool is_terminal;
};

// A text that comes in pieces, broken as break_line does it: a word is held back until its end. Characters of scripts
// without spaces are words, and take two columns.
class LineBreaker {
  public:
    explicit LineBreaker(int width) : width(width) {}
    std::string push(std::string_view piece);    // what can be written
    std::string finish();                        // the rest
  private:
    int width, column = 0;
    std::string spaces, word;
};

// Until the input ends, /exit, or Ctrl-C twice at an empty prompt. Answers go to stdout, all else to stderr; json: each
// answer as a message on a line of its own. Of a pipe the first error ends it; a person can go on.
Status run_interactive(Chat& chat, bool json);
