// interactive.h - an interactive session: reads messages from a terminal or pipe, prints answers.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "chat.h"

// Joins lines into messages. A line that begins with """ opens a message that ends with """ at a
// line's end; a line that ends with \ continues on the next.
class MessageReader {
  public:
    std::optional<std::string> push(const std::string& line);    // line without newline; returns a completed message
    std::optional<std::string> finish();                         // the unfinished message at the input's end
    bool open() const { return state != State::none; }           // a message is incomplete

  private:
    enum class State { none, quoted, continued } state = State::none;
    std::string message;
};

// Reads lines of standard input. At a terminal libedit (loaded at run time) edits and remembers
// them; without libedit the terminal's own line editing works. Ctrl-C discards a line.
class LineReader {
  public:
    LineReader();
    ~LineReader();
    LineReader(const LineReader&) = delete;
    bool terminal() const { return is_terminal; }
    enum class Kind {
        line,
        end,
        discarded,
        interrupted
    };    // discarded, interrupted: Ctrl-C in a nonempty, an empty line
    Kind read(const char* prompt, std::string* line);
    void remember(const std::string& message);    // adds to the arrow keys' history

  private:
    struct Editor;
    std::unique_ptr<Editor> editor;    // null: no terminal or no libedit
    bool is_terminal;
};

// Breaks streamed text into lines like wrap_line (base/console.h), and holds a word back until it
// is complete. A character of a script without spaces is a word and takes two columns.
class LineBreaker {
  public:
    explicit LineBreaker(int columns) : width(columns) {}
    std::string push(std::string_view piece);    // returns text that can be written
    std::string finish();                        // returns the rest
  private:
    int width, column = 0;
    std::string spaces, word;
};

// Runs until the input ends, /exit, or Ctrl-C twice at an empty prompt. Answers go to stdout,
// everything else to stderr. json: each answer is a JSON message on its own line. Input from a pipe
// ends at the first error; at a terminal the session goes on.
Status run_interactive(Chat& chat, bool json);
