// test_terminal.cpp - output at a terminal: width of help, texts that stay whole, hints.
#include "base/command.h"
#include "base/console.h"
#include "infer/chat/interactive.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>

#include "toy_run.h"
#include "tools/commands.h"

using Strings = std::vector<std::string>;

namespace {
struct Terminal {
    int exit_code = -1;
    std::string raw;    // all output, stdout and stderr

    // The final screen: carriage returns and erasures are applied, lines are not wrapped.
    std::string screen() const {
        std::string all, line;
        size_t column = 0;
        for (size_t i = 0; i < raw.size(); i++) {
            if (raw[i] == '\n') all += line + "\n", line.clear(), column = 0;
            else if (raw[i] == '\r') column = 0;
            else if (raw.compare(i, 3, "\x1b[K") == 0) line.resize(column), i += 2;
            else line.resize(std::max(line.size(), column + 1)), line[column++] = raw[i];
        }
        return all + line;
    }
};
// Runs flatgpt at a pseudo-terminal of `columns` columns, where `typed` is typed.
Terminal at_terminal(Strings args, int columns, const std::string& typed = "") {
    args.insert(args.begin(), {"env", "TERM=xterm", flatgpt_binary()});
    std::vector<char*> argv;
    for (auto& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    winsize size{24, static_cast<unsigned short>(columns), 0, 0};
    int master = -1;
    const pid_t child = forkpty(&master, nullptr, nullptr, &size);
    if (child == 0) {
        execvp(argv[0], argv.data());
        _exit(127);
    }
    REQUIRE(child > 0);
    Terminal t;
    CHECK(write(master, typed.data(), typed.size()) == ssize_t(typed.size()));
    pollfd ready = {master, POLLIN, 0};
    char piece[4096];
    for (ssize_t n; poll(&ready, 1, 60000) > 0 && (n = read(master, piece, sizeof piece)) > 0;)
        t.raw.append(piece, size_t(n));
    int status = 0;
    bool ended = false;    // after closed output or a silent minute
    for (int i = 0; i < 5000 && !(ended = waitpid(child, &status, WNOHANG) == child); i++) usleep(2000);
    if (!ended) kill(child, SIGKILL), waitpid(child, &status, 0);
    close(master);
    t.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return t;
}
size_t longest_line(const std::string& text) {
    size_t longest = 0;
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
        end = std::min(text.find('\n', at), text.size());
        longest = std::max(longest, end - at);
    }
    return longest;
}
// A run of two steps; its context has 32 tokens.
struct SmallRun : Toy {
    std::string run = dir + "/run";
    SmallRun() { REQUIRE(run_flatgpt(args("run", {"--steps", "2"})).exit_code == 0); }
};
}    // namespace

TEST_CASE("terminal: help is as wide as the terminal, 100 columns at most, 80 in a pipe") {
    const Command train = train_command();
    for (int columns : {40, 60, 72, 80, 100, 200}) {
        const Terminal t = at_terminal({"train", "--help"}, columns);
        CHECK(t.exit_code == 0);
        CHECK(t.screen() == command_help(train, std::min(columns, 100)));
        if (columns >= 60) CHECK(longest_line(t.screen()) <= size_t(std::min(columns, 100)));
        CHECK(longest_line(at_terminal({"help"}, columns).screen()) <= size_t(std::min(columns, 100)));
    }
    CHECK(run_flatgpt({"train", "--help"}).out == command_help(train, 80));
}

TEST_CASE("terminal: a message breaks between words, the command in it stays whole") {
    const Terminal t = at_terminal({"info", "HuggingFaceTB/SmolLM2-135M"}, 60);
    CHECK(t.exit_code == 3);
    CHECK(t.screen() ==
          "flatgpt info: HuggingFaceTB/SmolLM2-135M: no such directory,\n"
          "and flatgpt downloads nothing; to fetch it from the Hub:\n"
          "  hf download HuggingFaceTB/SmolLM2-135M --local-dir SmolLM2-135M\n");
}

TEST_CASE("terminal: lines break by characters, and two spaces stay two") {
    CHECK(wrap_line("one two  three", 14) == "one two  three");
    CHECK(wrap_line("one two  three", 13) == "one two\nthree");
    CHECK(wrap_line("  one two", 7) == "  one\ntwo");
    CHECK(wrap_line("a toolongforit b", 5) == "a\ntoolongforit\nb");
    CHECK(wrap_line("\u00e4\u00f6\u00fc \u4e2d\u6587", 6) == "\u00e4\u00f6\u00fc \u4e2d\u6587");
    CHECK(wrap_line("\u00e4\u00f6\u00fc \u4e2d\u6587", 5) == "\u00e4\u00f6\u00fc\n\u4e2d\u6587");
    CHECK(wrap_line("", 5).empty());
    // The message has 54 characters in 57 bytes: characters count.
    const Terminal t = at_terminal({"plot", "no  \u00e4\u00f6\u00fc"}, 54);
    CHECK(t.exit_code == 3);
    CHECK(t.screen() == "flatgpt plot: no  \u00e4\u00f6\u00fc: no such file or directory\n");
}

TEST_CASE("terminal: a text in pieces breaks between words, whatever the pieces are") {
    auto broken = [](const std::string& text, int width, size_t piece) {
        LineBreaker lines(width);
        std::string out;
        for (size_t at = 0; at < text.size(); at += piece) out += lines.push(text.substr(at, piece));
        return out + lines.finish();
    };
    for (size_t piece : {1, 2, 5, 100}) {
        CHECK(broken("one two  three", 14, piece) == "one two  three");
        CHECK(broken("one two  three", 13, piece) == "one two\nthree");
        CHECK(broken("  one two\n  three\nfour ", 8, piece) == "  one\ntwo\n  three\nfour ");
        CHECK(broken("a toolongforit b", 5, piece) == "a\ntoolongforit\nb");
        CHECK(broken("ab\tcd ef", 11, piece) == "ab\tcd\nef");
        CHECK(broken(std::string(90, 'x'), 10, piece) ==
              std::string(40, 'x') + "\n" + std::string(40, 'x') + "\n" + std::string(10, 'x'));
    }
    CHECK(broken("\u00e4\u00f6\u00fc \u4e2d\u6587\u4e2d", 9, 100) == "\u00e4\u00f6\u00fc \u4e2d\u6587\n\u4e2d");
    LineBreaker lines(20);    // holds back only an unfinished word
    CHECK(lines.push("one tw") == "one");
    CHECK(lines.push("o ") == " two");
    CHECK(lines.push("\u4e2d") == " \u4e2d");
}

TEST_CASE("terminal: the progress line is cut between its fields, never inside a number") {
    SmallRun small;
    const std::string val = small.dir + "/val.bin", whole = "eval: 62 of 62 windows  ETA 0.0 s";
    for (int columns : {34, 33, 24, 23, 22, 10}) {
        const Terminal t = at_terminal({"eval", small.run, "--data", val}, columns);
        CAPTURE(columns);
        const size_t at = t.raw.rfind("\x1b[Keval:");
        REQUIRE_MESSAGE(at != std::string::npos, t.raw);
        const std::string line = t.raw.substr(at + 3, t.raw.find_first_of("\r\n", at + 3) - at - 3);
        CHECK(line == (columns > int(whole.size()) ? whole
                       : columns > 22              ? whole.substr(0, 22)
                       : columns > 21              ? "eval: 62 of 62"
                                                   : "eval: 62"));
    }
}

TEST_CASE("terminal: notes of sample do not break into its text") {
    SmallRun small;
    const Strings args = {"sample", small.run, "--prompt", "abc", "--tokens", "60", "--ignore-end", "--top-k", "1"};
    const ProcessResult piped = run_flatgpt(args);
    REQUIRE(piped.exit_code == 0);
    CHECK(piped.out.rfind("abc", 0) == 0);
    CHECK(piped.out.back() == '\n');
    CHECK(contains(piped.err, "context of 32 tokens is full"));
    const Terminal t = at_terminal(args, 80);
    CHECK(t.exit_code == 0);
    const std::string text = escape_control(piped.out), seen = "\n" + t.screen();
    const size_t note = seen.find("note: the context of 32 tokens is full");
    REQUIRE(note != std::string::npos);
    CHECK(contains(seen.substr(0, note), "\n" + text));    // perhaps after the checkpoint's name
    CHECK(seen.substr(note - text.size(), text.size()) == text);
    CHECK(contains(seen.substr(note), "tokens/s"));

    // Notes that are known before generation are printed before the text.
    Strings lengthy = args;
    lengthy[3] = std::string(40, 'x');
    const std::string both = at_terminal(lengthy, 80).screen();
    CHECK(contains("\n" + both, "\nnote: the prompt has 40 tokens, the context 32"));
    CHECK(contains(both, "are read\n" + lengthy[3]));
}

TEST_CASE("terminal: the lines of train break between words and keep theirs") {
    Toy toy;
    const Terminal t = at_terminal(toy.args("run", {"--steps", "3", "--sample-every", "3"}), 60);
    CHECK(t.exit_code == 0);
    const std::string seen = t.screen(), before = seen.substr(0, seen.find("--- sample"));
    CHECK(longest_line(before) <= 60);
    CHECK(contains(before, " parameters, "));
    CHECK_FALSE(contains(seen, " \n"));
    const size_t last = seen.rfind("\nstep 3/3  ");
    REQUIRE(last != std::string::npos);
    CHECK(longest_line(seen.substr(last)) <= 60);
    CHECK(contains(seen.substr(last), " tok/s"));
}

TEST_CASE("terminal: eval's result begins a line of its own") {
    SmallRun small;
    const Terminal t = at_terminal({"eval", small.run, "--data", small.dir + "/val.bin"}, 80);
    CHECK(t.exit_code == 0);
    CHECK(contains("\n" + t.screen(), "\nloss "));
}

TEST_CASE("terminal: a progress line with an ETA gets to its end and leaves nothing behind") {
    Toy toy;
    // A model of three layers, one of which has softmax.
    const std::string mixed = toy.dir + "/mixed", val = toy.dir + "/val.bin";
    must(toy.args("mixed", {"--steps", "1", "--layers", "3", "--linear-attention", "gated", "--softmax-every", "2"}));
    const std::pair<Strings, const char*> rows[] = {
        {{"inspect", mixed, "--text", "abc"}, "inspect: 100 %  ETA 0.0 s"},
        {{"inspect", mixed, "--data", val, "--sequences", "2"}, "inspect: 100 %  ETA 0.0 s"},
        {{"eval", mixed, "--data", val}, "eval: 62 of 62 windows  ETA 0.0 s"},
        {{"eval", mixed, "--needle", "--trials", "1"}, "needle: 100 %  ETA 0.0 s"}};
    for (auto& [args, end] : rows) {
        const Terminal t = at_terminal(args, 80);
        CHECK(t.exit_code == 0);
        CHECK_MESSAGE(contains(t.raw, end), t.raw);
        CHECK_FALSE(contains(t.screen(), "ETA"));
    }
}

TEST_CASE("terminal: who is to type is told how to end") {
    SmallRun small;
    const std::string hint = "reading from the terminal; end with Ctrl-D";
    const Strings sample = {"sample", small.run, "--prompt-file", "-", "--tokens", "3", "--no-echo"};
    const Terminal t = at_terminal(sample, 80, "typed\n\x04");
    CHECK(t.exit_code == 0);
    CHECK(contains(t.screen(), hint));
    ProcessOptions from_file;
    from_file.stdin_text = "typed\n";
    const ProcessResult piped = run_flatgpt(sample, from_file);
    CHECK(piped.exit_code == 0);
    CHECK_FALSE(contains(piped.err, hint));
    CHECK_FALSE(contains(piped.out, "typed"));
    const std::string tok = small.dir + "/tok.json";
    CHECK(contains(at_terminal({"tokenize", "-", "--tokenizer", tok, "-o", small.dir + "/typed"}, 80, "a b\n\x04").raw,
                   hint));
    CHECK(fs::exists(small.dir + "/typed_train_000.bin"));
    CHECK(contains(at_terminal({"train-tokenizer", "-", "-o", small.dir + "/t2.json"}, 80, "a b\n\x04").raw, hint));
    CHECK(fs::exists(small.dir + "/t2.json"));
}

TEST_CASE("sample: --no-echo prints what is new alone, -n and -p are --tokens and --prompt") {
    SmallRun small;
    Strings args = {"sample", small.run, "-p", "abc", "-n", "5", "--ignore-end"};
    const std::string echoed = run_flatgpt(args).out;
    args.push_back("--no-echo");
    CHECK(echoed == "abc" + run_flatgpt(args).out);
    args.insert(args.end(), {"--num", "2"});
    const ProcessResult two = run_flatgpt(args);
    CHECK_FALSE(contains(two.out, "abc"));
    CHECK(contains(two.out, "--- 2 ---"));
    CHECK(contains(two.err, "10 tokens in "));
}
