// interactive.cpp - line input with libedit, Ctrl-C handling, and the loop of a session.
#include "interactive.h"

#include <atomic>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <dlfcn.h>
#include <langinfo.h>
#include <termios.h>
#include <unistd.h>

#include "base/console.h"
#include "files/json_write.h"

// ---- multi-line messages ------------------------------------------------------------------------

std::optional<std::string> MessageReader::push(const std::string& line) {
    const std::string_view quotes = "\"\"\"";
    std::string text = line;
    if (state == State::none) {
        message.clear();
        if (text.starts_with(quotes)) state = State::quoted, text.erase(0, 3);
    } else {
        message += "\n";
    }
    if (state == State::quoted) {
        if (!text.ends_with(quotes)) return message += text, std::nullopt;
        text.erase(text.size() - 3);
    } else if (text.ends_with('\\')) {
        state = State::continued;
        text.pop_back();
        return message += text, std::nullopt;
    }
    state = State::none;
    return message + text;
}
std::optional<std::string> MessageReader::finish() {
    if (!open()) return {};
    state = State::none;
    return message;
}

// ---- lines --------------------------------------------------------------------------------------

namespace {
std::atomic<int> interrupts = 0;    // Ctrl-C presses since the last reset
const char* shown_prompt = "";
}    // namespace

// Interface of libedit. Its constants are copied from histedit.h, so that the build needs neither
// the header nor the library.
struct LineReader::Editor {
    struct Event {
        int number;
        const char* text;
    };
    struct Line {
        const char *buffer, *cursor, *end;
    };
    enum { EL_PROMPT = 0, EL_EDITOR = 2, EL_SIGNAL = 3, EL_HIST = 10, H_SETSIZE = 1, H_ENTER = 10 };
    void* (*init)(const char*, FILE*, FILE*, FILE*), (*end)(void*);
    int (*set)(void*, int, ...);
    const char* (*gets)(void*, int* bytes);
    const Line* (*line)(void*);
    void* (*past_init)(), (*past_end)(void*);
    int (*past_do)(void*, Event*, int, ...);
    void *el = nullptr, *past = nullptr;    // null: no libedit

    Editor() {
        void* library = dlopen("libedit.so.2", RTLD_NOW);
        auto find = [&](const char* name, auto& to) {
            to = reinterpret_cast<std::decay_t<decltype(to)>>(library ? dlsym(library, name) : nullptr);
            return to != nullptr;
        };
        if (!find("el_init", init) || !find("el_end", end) || !find("el_set", set) || !find("el_gets", gets) ||
            !find("el_line", line) || !find("history_init", past_init) || !find("history_end", past_end) ||
            !find("history", past_do))
            return;
        setlocale(LC_CTYPE, "");    // libedit reads characters, not bytes
        if (nl_langinfo(CODESET) != std::string("UTF-8")) setlocale(LC_CTYPE, "C.UTF-8");
        el = init("flatgpt", stdin, stderr, stderr);
        if (!el) return;
        Event event;
        past = past_init();
        past_do(past, &event, H_SETSIZE, 1000);
        set(el, EL_HIST, past_do, past);
        set(el, EL_EDITOR, "emacs");
        set(el, EL_SIGNAL, 1);    // restores the terminal before flatgpt's handler runs
        set(
            el, EL_PROMPT, +[](void*) { return const_cast<char*>(shown_prompt); });
    }
    ~Editor() {
        if (el) end(el), past_end(past);
    }
};

LineReader::LineReader() : is_terminal(isatty(STDIN_FILENO)) {
    if (!is_terminal || !stderr_is_terminal()) return;
    editor = std::make_unique<Editor>();
    if (!editor->el) editor.reset();
}
LineReader::~LineReader() = default;

LineReader::Kind LineReader::read(const char* prompt, std::string* text) {
    interrupts = 0;
    errno = 0;
    text->clear();
    if (editor) {
        const char* got;
        bool signalled;
        int bytes;
        shown_prompt = prompt;
        do {    // reads again after Ctrl-Z and fg
            bytes = 0;
            errno = 0;
            got = editor->gets(editor->el, &bytes);
            signalled = !got && bytes < 0 && errno == EINTR;
            // libedit sends the signal again to the whole process. Another thread may run the
            // handler, so that `interrupts` rises slightly later.
            for (int ms = 0; signalled && ms < 1000 && interrupts == 0; ms++) usleep(1000);
        } while (signalled && interrupts == 0);
        if (got) text->assign(got, size_t(bytes));
        else if (interrupts == 0) return Kind::end;
        const Editor::Line* line = editor->line(editor->el);
        if (interrupts) return line->end > line->buffer ? Kind::discarded : Kind::interrupted;
    } else {
        if (is_terminal) fputs(prompt, stderr), fflush(stderr);
        char* got = nullptr;
        size_t capacity = 0;
        const ssize_t bytes = getline(&got, &capacity, stdin);
        if (bytes > 0) text->assign(got, size_t(bytes));
        free(got);
        if (bytes <= 0) clearerr(stdin);
        if (interrupts) return Kind::interrupted;
        if (bytes <= 0) return Kind::end;
    }
    if (text->ends_with('\n')) text->pop_back();
    return Kind::line;
}
void LineReader::remember(const std::string& message) {
    Editor::Event event;
    if (editor) editor->past_do(editor->past, &event, Editor::H_ENTER, message.c_str());
}

// ---- answers ------------------------------------------------------------------------------------

namespace {
bool continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
bool is_wide(std::string_view c) { return c.size() > 2 && c >= "\u2E80"; }    // East Asian scripts, symbols above
}    // namespace

std::string LineBreaker::finish() {
    int columns = 0;
    for (size_t i = 0; i < word.size(); i++)
        if (!continuation(word[i])) columns += 1 + is_wide(std::string_view(word).substr(i, 3));
    const bool fits = column == 0 || word.empty() || column + int(spaces.size()) + columns <= width;
    const std::string out = fits ? spaces + word : "\n" + word;
    column = fits ? column + int(spaces.size()) + columns : columns;
    spaces.clear();
    word.clear();
    return out;
}
std::string LineBreaker::push(std::string_view piece) {
    std::string out;
    for (size_t at = 0, end; at < piece.size(); at = end) {
        end = at + 1;
        while (end < piece.size() && continuation(piece[end])) end++;
        const std::string_view c = piece.substr(at, end - at);
        const bool alone = is_wide(c), space = c == " ";
        if (alone || ((space || c == "\n" || c == "\t") && !word.empty())) out += finish();
        if (c == "\n" || c == "\t") out += finish(), out += c, column = c == "\n" ? 0 : (column / 8 + 1) * 8;
        else (space ? spaces : word) += c;
        if (alone || int(word.size()) >= 4 * width) out += finish();    // bounds the text held back
    }
    return out;
}

// ---- the conversation ---------------------------------------------------------------------------

namespace {
// While this object exists, Ctrl-C is counted and does not end the process. If `counts` is false
// (input from a pipe), Ctrl-C ends the process as usual.
class InterruptCounter {
  public:
    explicit InterruptCounter(bool counts) : on(counts) {
        struct sigaction action = {};
        action.sa_handler = [](int) { interrupts++; };    // no SA_RESTART: reading is interrupted
        if (on) sigaction(SIGINT, &action, &before);
    }
    ~InterruptCounter() {
        if (on) sigaction(SIGINT, &before, nullptr);
    }

  private:
    bool on;
    struct sigaction before = {};
};
// While this object exists, the terminal does not echo; keys typed meanwhile stay in the input and
// belong to the next line read. A fatal signal, or running out of memory, restores the terminal
// first.
class EchoOff {
  public:
    explicit EchoOff(bool terminal) {
        if (!terminal || tcgetattr(STDIN_FILENO, &before) != 0) return;
        struct sigaction action = {};
        action.sa_handler = [](int s) {
            signal(SIGTTOU, SIG_IGN);    // else tcsetattr stops a background process
            restore();
            raise(s);
        };
        action.sa_flags = int(SA_RESETHAND);
        for (size_t i = 0; i < std::size(ENDING); i++) {
            sigaction(ENDING[i], &action, &handlers[i]);
            if (handlers[i].sa_handler == SIG_IGN) sigaction(ENDING[i], &handlers[i], nullptr);
        }
        static const int registered = std::at_quick_exit(restore);
        (void)registered;
        quiet = true;
        termios without = before;
        without.c_lflag &= ~tcflag_t(ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &without);
    }
    ~EchoOff() {
        if (!quiet) return;
        restore();
        for (size_t i = 0; i < std::size(ENDING); i++) sigaction(ENDING[i], &handlers[i], nullptr);
    }

  private:
    static constexpr int ENDING[] = {SIGTERM, SIGHUP, SIGQUIT, SIGABRT};    // SIGINT is counted
    static inline termios before = {};
    static inline std::atomic<bool> quiet = false;
    struct sigaction handlers[std::size(ENDING)] = {};

    static void restore() {
        if (quiet.exchange(false)) tcsetattr(STDIN_FILENO, TCSANOW, &before);
    }
};
void notify(const std::string& text) { Progress().note(escape_control(text)); }
bool put(const std::string& text) {
    return fwrite(text.data(), 1, text.size(), stdout) == text.size() && fflush(stdout) == 0;
}

// Handles a message or command. Value false: /exit.
Result<bool> handle_message(Chat& chat, const std::string& message, bool json) {
    const bool terminal = isatty(STDOUT_FILENO);
    const int64_t before = chat.answers;
    bool begun = false;
    std::vector<std::string> notes;    // shown after the answer
    LineBreaker lines(terminal_size().columns);
    chat.options.note = [&](const std::string& text) { begun ? notes.push_back(text) : notify(text); };
    chat.options.text = [&](std::string_view text) {
        begun |= !json;
        return json || put(terminal ? lines.push(escape_control(text)) : std::string(text));
    };
    interrupts = 0;
    chat.options.interrupted = [] { return interrupts > 0; };
    const Result<bool> on = chat.line(message);
    bool written = true;
    if (begun || (chat.answers > before && !json)) written = put(lines.finish() + "\n");
    else if (chat.answers > before)
        written = put(Json::object("role", "assistant", "content", chat.answer()).text() + "\n");
    const Status closed = written || !on.ok() ? Status{} : output_failed();
    for (const std::string& text : notes) notify(text);
    TRY(closed);
    return on;
}
}    // namespace

Status run_interactive(Chat& chat, bool json) {
    LineReader reader;
    MessageReader messages;
    const InterruptCounter counting(reader.terminal());
    std::string line;
    for (bool warned = false;;) {
        const LineReader::Kind kind = reader.read(messages.open() ? "... " : "> ", &line);
        std::optional<std::string> message;
        const bool ends = kind == LineReader::Kind::end || (kind == LineReader::Kind::interrupted && warned);
        warned = kind == LineReader::Kind::interrupted;
        if (ends) {
            if (reader.terminal()) fputs("\n", stderr);
            message = messages.finish();
            if (!message || reader.terminal()) return {};
        } else if (kind != LineReader::Kind::line) {
            messages.finish();
            if (warned) notify("Ctrl-C again, or Ctrl-D, ends");
            continue;
        } else {
            message = messages.push(line);
        }
        if (!message) continue;
        if (message->find_first_not_of(" \t\n") != std::string::npos) reader.remember(*message);
        const Result<bool> on = [&] {
            const EchoOff waiting(reader.terminal());
            return handle_message(chat, *message, json);
        }();
        if (!on.ok() && !reader.terminal()) return on.status;
        if (!on.ok()) notify(on.status.message);
        if (ends || (on.ok() && !on.value)) return {};
    }
}
