// test_cli.cpp - flags of all commands, bad values, config files, help, completion, plot.
#include "base/command.h"
#include "base/console.h"
#include "base/philox.h"
#include "layers/ops.h"
#include "base/toml.h"

#include <cerrno>
#include <filesystem>

#include "test.h"
#include "tools/commands.h"

using Strings = std::vector<std::string>;

namespace {
bool positional(const Flag& f) { return f.name[0] != '-'; }
bool text_valued(const Flag& f) {
    return std::holds_alternative<std::string*>(f.to) || std::holds_alternative<Strings*>(f.to);
}
// One flag of each type.
struct Toy {
    bool on = false, off = true;
    int n = 5;
    int64_t big = 8192;
    double x = 0.001;
    std::string text = "a", kind = "one";
    Strings list = {"p"}, files;
    std::string toml;
    Command command() {
        Command c{"toy", "A toy.", "flatgpt toy", {}, [] { return Status{}; }, &toml};
        c.flags = {{"--on", &on, "h"},
                   {"--off", &off, "h"},
                   {"--n", &n, "h", 1, 1e12},
                   {"--big-one", &big, "h"},
                   {"--x", &x, "h", 0, 1},
                   {"--text", &text, "h"},
                   {"--kind", &kind, "h", 0, 0, {"one", "two"}},
                   {"--list", &list, "h"},
                   {"FILE", &files, "h"}};
        c.flags[2].letter = 'n';    // --n
        return c;
    }
    // Returns the error, or "".
    std::string parse(const Strings& args) {
        Result<bool> r = command_parse(command(), args);
        CHECK((r.ok() || r.status.code == Exit::usage || r.status.code == Exit::input));
        return r.status.message;
    }
};
}    // namespace

TEST_CASE("cli: numbers as people write them, exactly") {
    for (auto [text, value] : std::vector<std::pair<const char*, int64_t>>{{"1000", 1000},
                                                                           {"1_000", 1000},
                                                                           {"1e6", 1000000},
                                                                           {"0.5M", 500000},
                                                                           {"4k", 4000},
                                                                           {"4K", 4000},
                                                                           {"-3", -3},
                                                                           {"2G", 2000000000},
                                                                           {"1.1M", 1100000},
                                                                           {"0.0001M", 100},
                                                                           {"1.5e3", 1500},
                                                                           {"9007199254740993", 9007199254740993}}) {
        Toy t;
        CHECK(t.parse({"--big-one", text}) == "");
        CHECK(t.big == value);
    }
    for (auto [text, value] :
         std::vector<std::pair<const char*, double>>{{"1e-3", 1e-3}, {".5", .5}, {"0.000_5", 5e-4}, {"1", 1}}) {
        Toy t;
        CHECK(t.parse({"--x", text}) == "");
        CHECK(t.x == value);
    }
    Toy t;
    for (const char* bad : {"",
                            " ",
                            "abc",
                            "nan",
                            "inf",
                            "-inf",
                            "NaN",
                            "infinity",
                            "0x10",
                            "1e",
                            "1k5",
                            "1e3k",
                            "_1",
                            "1_",
                            "1__0",
                            "k",
                            "1 ",
                            " 1",
                            "+1",
                            "--1",
                            "1,5",
                            "1e400",
                            "99999999999999999999999",
                            "1.5",
                            "0.5",
                            "1e30",
                            "0.1k5"})
        CHECK(contains(t.parse({"--big-one", bad}), "--big-one: expected a whole number"));
    CHECK(t.big == 8192);
}
TEST_CASE("cli: messages say what was expected and what was found") {
    Toy t;
    CHECK(t.parse({"--x", "abc"}) == "--x: expected a number from 0 to 1, found 'abc'");
    CHECK(t.parse({"--n", "0"}) == "--n: expected a whole number from 1 to 1e+12, found '0'");
    CHECK(contains(t.parse({"--n", "3000000000"}), "at most 2147483647"));
    CHECK(command_parse(train_command(), {"--data", "x", "--window", "99999999999"}).status.message ==
          "--window: expected a whole number from 0 to 1048576, found '99999999999'");
    CHECK(t.parse({"--kind", "three"}) == "--kind: expected one of one, two, found 'three'");
    CHECK(t.parse({"--on=maybe"}) == "--on: expected true or false, found 'maybe'");
    CHECK(t.parse({"--x", "\x1b[31m"}) == "--x: expected a number from 0 to 1, found '\\x1B[31m'");
    CHECK(t.parse({"--x", std::string(10240, 'a')}).size() < 200);
    CHECK(t.parse({"--x"}) == "--x: a value is missing");
    CHECK(t.parse({"--x", "--n", "3"}) == "--x: a value is missing");
    CHECK(t.parse({"--x", "0.1", "--x", "0.2"}) == "--x: given more than once");
    CHECK(t.parse({"--tex", "b"}) == "unknown option '--tex'; did you mean --text?");
    CHECK(t.parse({"--zzzzzzzz"}) == "unknown option '--zzzzzzzz'");
    CHECK(t.parse({"-x", "1"}) == "unknown option '-x'; did you mean --x?");
    Command one{"one", "", "", {{"FILE", &t.text, "h"}}, nullptr};
    CHECK(command_parse(one, {"a", "b"}).status.message == "unexpected argument 'b'");
    one.flags[0].required = true;
    CHECK(command_parse(one, {}).status.message == "FILE is required: h");
    CHECK(command_parse(one, {""}).status.message == "FILE is required: h");
}
TEST_CASE("cli: a pattern that the shell has expanded is named, with what to type instead") {
    auto said = [](const Strings& args, bool model = false) {
        Toy t;
        Command c{"toy", "", "", {{"--data", &t.text, "h"}, {"--on", &t.on, "h"}, {"--n", &t.n, "h"}}, nullptr};
        if (model) c.flags.push_back({"MODEL", &t.kind, "h"});
        return command_parse(c, args).status.message;
    };
    const std::string hint = "; the shell has expanded a pattern: quote it, --data '";
    CHECK(said({"--data", "tokens/a.bin", "tokens/b.bin", "--on"}) ==
          "unexpected argument 'tokens/b.bin'" + hint + "tokens/*.bin'");
    CHECK(said({"--data=t/train_000.bin", "t/train_001.bin", "t/train_012.bin"}) ==
          "unexpected argument 't/train_001.bin'" + hint + "t/train_0*.bin'");
    CHECK(said({"--data", "a.bin", "a.b.bin", "ab.bin"}) == "unexpected argument 'a.b.bin'" + hint + "a*.bin'");
    CHECK(said({"run", "--data", "a.bin", "b.bin"}, true) == "unexpected argument 'b.bin'" + hint + "*.bin'");
    CHECK(said({"--data", "a.bin", "b.bin", "run"}, true) == "unexpected argument 'run'" + hint + "*.bin'");
    CHECK(said({"--data", "a.bin", "run"}) == "unexpected argument 'run'");
    CHECK(said({"--data", "x/a.bin", "y/b.bin"}) == "unexpected argument 'y/b.bin'");
    CHECK(said({"--on", "a.bin", "b.bin"}) == "unexpected argument 'a.bin'");
    CHECK(said({"--n", "3", "b.bin"}) == "unexpected argument 'b.bin'");
    CHECK(said({"--data", "a.bin", "--on", "b.bin"}) == "unexpected argument 'b.bin'");
    CHECK(said({"--data", std::string(5000, 'a') + ".bin", std::string(5000, 'a') + "b.bin"}).size() < 300);
}
TEST_CASE("cli: flags, lists, positionals and values that look like flags") {
    Toy t;
    CHECK(t.parse({"a", "--on", "b", "--off=false", "--big_one=7", "--text=", "--list", "-1", "--list=--on", "--",
                   "--x", "[c,d]", "-"}) == "");
    CHECK(t.on);
    CHECK_FALSE(t.off);
    CHECK(t.big == 7);
    CHECK(t.text == "");
    CHECK(t.list == Strings{"-1", "--on"});
    CHECK(t.files == Strings{"a", "b", "--x", "[c,d]", "-"});
    CHECK(command_parse(t.command(), {"--x", "0.5", "--help", "--nonsense"}).value == false);
    CHECK(command_parse(t.command(), {"-h"}).value == false);
    for (const Strings& three : {Strings{"-n", "3"}, {"-n3"}, {"-n=3"}, {"--n=3"}}) {
        Toy u;
        CHECK(u.parse(three) == "");
        CHECK(u.n == 3);
    }
    CHECK(t.parse({"-n"}) == "--n: a value is missing");
    CHECK(t.parse({"-n", "x"}) == "--n: expected a whole number from 1 to 1e+12, found 'x'");
    CHECK(t.parse({"-n", "3", "--n", "4"}) == "--n: given more than once");
}
TEST_CASE("cli: --config fills what the command line leaves, and every mistake in it is named with its line") {
    std::string path = temporary_directory() + "/run.toml";
    auto with = [&](Toy& t, std::string_view toml, Strings args = {}) {
        write_file(path, toml);
        args.insert(args.end(), {"--config", path});
        std::string message = t.parse(args);
        return message.rfind(path, 0) == 0 ? message.substr(path.size()) : message;
    };
    Toy t;
    CHECK(with(t,
               "# comment\n\nx = 0.25  # why\nbig_one = 1_000\ntext = \"a#b\\n\\u00e9\\\"\"\n"
               "list = [ 'x\\', # one\n \"y\", ]\non = true\r\n",
               {"--big-one", "9"}) == "");
    CHECK(t.x == 0.25);
    CHECK(t.big == 9);
    CHECK(t.text == "a#b\n\xC3\xA9\"");
    CHECK(t.list == Strings{"x\\", "y"});
    CHECK(t.on);
    CHECK(with(t, "") == "");
    CHECK(with(t, "x = 0.5\nlisst = []") == ":2: unknown key 'lisst'; did you mean list?");
    CHECK(with(t, "x = 2\n") == ":1: --x: expected a number from 0 to 1, found '2'");
    CHECK(with(t, "x = nan\n") == ":1: --x: expected a number from 0 to 1, found 'nan'");
    CHECK(with(t, "x = 0.1\nn = 3\nx = 0.2\n") == ":3: the key x is there twice");
    CHECK(with(t, "text = a\n") == ":1: text: expected a string in quotes");
    CHECK(with(t, "text = [\"a\"]\n") == ":1: text: expected a string in quotes");
    CHECK(with(t, "list = \"a\"\n") == ":1: list: expected a list of strings");
    CHECK(with(t, "x = \"0.5\"\n") == ":1: x: expected a number from 0 to 1 without quotes");
    CHECK(with(t, "text = \"a\n\"") == ":1: expected a closing quote, found the end of the line");
    CHECK(with(t, "[train]\nx = 1") == ":1: expected key = value, found '[train]'");
    CHECK(contains(with(t, "text = \"\\q\""), ":1: expected one of \\b"));
    for (const char* bad : {"\\u12", "\\u0000", "\\ud800", "\\U00110000", "\\U0000004g", "\\ "})
        CHECK(contains(with(t, "text = \"" + std::string(bad) + "\""), ":1: expected one of \\b"));
    CHECK(contains(with(t, "x 1"), ":1: expected key = value"));
    CHECK(contains(with(t, "x ="), ":1: expected a string in quotes, a number"));
    CHECK(contains(with(t, "x = 1 2"), ":1: expected the end of the line, found '2'"));
    CHECK(contains(with(t, "list = [\"a\" \"b\"]"), ":1: expected , or ]"));
    CHECK(contains(with(t, "list = [1]"), ":1: expected a string in quotes or ]"));
    CHECK(contains(with(t, "list = ["), "found the end of the file"));
    CHECK(contains(with(t, std::string_view("x\0= 1", 5)), ":1: expected key = value"));
    CHECK(contains(with(t, std::string_view("text = \"a\0\"", 11)), ":1: expected a closing quote"));
    CHECK(contains(t.parse({"--config", "/nonexistent/run.toml"}), "/nonexistent/run.toml"));
    CHECK(contains(t.parse({"--config", path, "--config", path}), "--config: given more than once"));
}
TEST_CASE("cli: what a command was resolved to reads back to the same bits") {
    Toy a;
    a.x = 0.1 + 0.2 - 0.25;
    a.big = 9007199254740993;
    a.text = "q\"\\\n\t\x01\x7f \xC3\xA9 # [x] = 'y'";
    a.list = {"", "a, b", "]", "\r"};
    a.files = {};
    a.on = true;
    a.off = false;
    a.n = 1;
    std::string toml = command_write_toml(a.command());
    Toy b;
    std::vector<const Flag*> given;
    Status s = command_read_toml(b.command(), toml, "toml", &given);
    CHECK(s.message == "");
    CHECK(command_write_toml(b.command()) == toml);
    CHECK(b.x == a.x);
    CHECK(b.big == a.big);
    CHECK(b.text == a.text);
    CHECK(b.list == a.list);
    Toy c;
    CHECK(c.parse({"--x", "1"}) == "");
    CHECK(contains(c.toml, "x = 1.0\n"));
    CHECK(contains(c.toml, "list = [\"p\"]\nfile = []\n"));
}
TEST_CASE("cli: TOML of any bytes is parsed or refused, never worse") {
    const std::string seed = "x = 0.25 # c\ntext = \"a\\u00e9\"\nlist = ['x', \"y\"]\non = true\n";
    for (uint64_t i = 0; i < 20000; i++) {
        std::string text = seed;
        for (uint64_t k = 0; k <= i % 4; k++) {
            Philox4 r = philox(11, i, k);
            size_t at = r.v[0] % text.size();
            if (r.v[1] % 3 == 0) text.erase(at, r.v[2] % 5);
            else if (r.v[1] % 3 == 1) text.insert(at, 1, "\"'[]=#\\\n\0,u"[r.v[2] % 11]);
            else text[at] = char(r.v[3]);
            if (text.empty()) break;
        }
        Result<std::vector<TomlSetting>> settings = toml_parse(text, "t");
        if (!settings.ok()) REQUIRE(contains(settings.status.message, "expected "));
    }
}
TEST_CASE("cli: every flag of every command refuses what it cannot mean, by name") {
    const std::string long_text(10240, '7');
    for (auto& c : commands()) {
        CAPTURE(c.name);
        CHECK_FALSE(c.summary.empty());
        CHECK(contains(c.example, "flatgpt " + c.name));
        for (auto& f : c.flags) {
            CAPTURE(f.name);
            auto refused = [&](const Strings& args) {
                Result<bool> r = command_parse(c, args);
                return r.status.code == Exit::usage && contains(r.status.message, f.name + ":");
            };
            if (positional(f)) continue;
            bool list = std::holds_alternative<Strings*>(f.to), boolean = std::holds_alternative<bool*>(f.to);
            if (!boolean) CHECK(refused({f.name}));
            if (boolean) CHECK(refused({f.name, f.name}));
            else if (!list) CHECK(refused({f.name, "1", f.name, "1"}));
            if (text_valued(f) && f.choices.empty()) continue;
            for (auto& bad : Strings{"", "NaN", "inf", "1e30", "abc", long_text, "\xff"})
                CHECK(refused({f.name + "=" + bad}));
            if (!text_valued(f) && !boolean && f.min >= 0) CHECK(refused({f.name, "-1"}));
        }
    }
}
// ---- console ------------------------------------------------------------------------------------

TEST_CASE("console: control characters are shown, text is kept") {
    for (const char* text : {"caf\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80\n\tx"})
        CHECK(escape_control(text) == text);
    CHECK(escape_control("\x1b[2J\r\a\x7f") == "\\x1B[2J\\x0D\\x07\\x7F");
    CHECK(escape_control(std::string_view("a\0b", 3)) == "a\\x00b");
    CHECK(escape_control("\xC2\x9B 31m \xC2\xA0") == "\\xC2\\x9B 31m \xC2\xA0");    // C1 control U+009B; U+00A0 is none
    for (const char* bad :
         {"\xff", "\x80", "\xC3", "\xE2\x82", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF8"}) {
        std::string out = escape_control(bad);
        CHECK(out.size() == 4 * strlen(bad));
        CHECK(out.substr(0, 2) == "\\x");
    }
    CHECK(escape_control("\xE2(") == "\\xE2(");
}
TEST_CASE("console: numbers for people") {
    CHECK(human_count(0) == "0");
    CHECK(human_count(999) == "999");
    CHECK(human_count(999.9) == "1.0k");
    CHECK(human_count(124439808) == "124.4M");
    CHECK(human_count(999960000) == "1.0B");
    CHECK(human_bytes(1023) == "1023 B");
    CHECK(human_bytes(1.86 * (1 << 30)) == "1.86 GiB");
    CHECK(human_time(12) == "12 s");
    CHECK(human_time(0.25) == "0.2 s");
    CHECK(human_time(59.7) == "1:00");
    CHECK(human_time(245) == "4:05");
    CHECK(human_time(3723) == "1:02:03");
    CHECK(human_time(NAN) == "?");
}

// ---- the binary ---------------------------------------------------------------------------------

TEST_CASE("cli: top level: no arguments, help, version, unknown commands") {
    ProcessResult r = run_flatgpt({});
    CHECK(r.exit_code == 2);
    CHECK(r.out == "");
    CHECK(contains(r.err, "usage: flatgpt COMMAND"));
    r = run_flatgpt({"--help"});
    CHECK(r.exit_code == 0);
    CHECK(r.err == "");
    CHECK(contains(r.out, "exit codes:"));
    for (auto& c : commands()) CHECK(contains(r.out, "  " + c.name + " "));
    for (const char* asked : {"-h", "help"}) {
        const ProcessResult same = run_flatgpt({asked});
        CHECK(same.exit_code == 0);
        CHECK(same.out == r.out);
        CHECK(same.err == "");
    }
    r = run_flatgpt({"--version"});
    CHECK(r.exit_code == 0);
    CHECK(contains(r.out, "flatgpt "));
    CHECK(contains(r.out, cpu_ops<float>().name));
    for (const char* bad : {"trian", "", "--verson", "\x1b[31m"}) {
        r = run_flatgpt({bad});
        CHECK(r.exit_code == 2);
        CHECK(contains(r.err, "flatgpt: unknown command '"));
        CHECK_FALSE(contains(r.err, "\x1b"));
    }
    CHECK(contains(run_flatgpt({"trian"}).err, "did you mean train?"));
    // Error messages stay short, even for a name of 1 MiB in a file.
    const std::string name(1 << 20, 'k');
    const std::string grammar = temporary_directory() + "/g.gbnf";
    write_file(grammar, "root ::= " + name);
    const ProcessResult long_name = run_flatgpt({"sample", "--grammar", grammar, "--prompt", "a", "."});
    CHECK_MESSAGE(long_name.err.size() < 5000, long_name.err.substr(0, 100));
    CHECK(contains(run_flatgpt({"completion", "fsh"}).err, "did you mean fish?"));
    CHECK(did_you_mean("fsh", {"zsh", "fish"}) == "; did you mean fish?");    // equally near, and begins alike
    CHECK(contains(run_flatgpt({"generate"}).err, "did you mean sample?"));
    CHECK(contains(run_flatgpt({"train", "--batch-size", "4"}).err, "did you mean --batch?"));
    CHECK(contains(run_flatgpt({"train", "--device", "gpu"}).err, "found 'gpu'; did you mean cuda?"));
    const std::string toml = temporary_directory() + "/run.toml";
    write_file(toml, "learning_rate = 1e-3\n");
    CHECK(contains(run_flatgpt({"train", "--config", toml}).err, "unknown key 'learning_rate'; did you mean lr?"));
    CHECK(contains(run_flatgpt({"help", "trian"}).err, "flatgpt: unknown command 'trian'; did you mean train?"));
    CHECK(run_flatgpt({"help", "trian"}).exit_code == 2);
}
TEST_CASE("cli: a command's messages name it and go to stderr, with the right exit code") {
    for (auto& c : commands()) {
        CAPTURE(c.name);
        ProcessResult help = run_flatgpt({c.name, "--help"});
        CHECK(help.exit_code == 0);
        CHECK(help.out == command_help(c));
        CHECK(help.err == "");
        for (const Strings& asked : {Strings{"help", c.name}, {c.name, "-h"}, {"--help", c.name}, {"-h", c.name}}) {
            const ProcessResult same = run_flatgpt(asked);
            CHECK(same.exit_code == 0);
            CHECK(same.out == help.out);
            CHECK(same.err == "");
        }
        ProcessResult r = run_flatgpt({c.name, "--nonsense"});
        CHECK(r.exit_code == 2);
        CHECK(r.out == "");
        CHECK(r.err.rfind("flatgpt " + c.name + ": unknown option '--nonsense'", 0) == 0);
    }
    for (const char* name : {"sample", "chat", "info"}) {
        auto said = [&](const std::string& path) {
            const ProcessResult r = run_flatgpt({name, path});
            CHECK(r.exit_code == 3);
            CHECK(r.out == "");
            return r.err;
        };
        const std::string start = std::string("flatgpt ") + name + ": ";
        for (const char* path : {"nope", "runs/nope", "./no/pe", "/no/pe", "no/such/place"})
            CHECK(said(path) == start + path + ": no such file or directory\n");
        for (auto& [hub, to] : {std::pair{"gpt2", "gpt2"},
                                {"gpt2-medium", "gpt2-medium"},
                                {"openai-community/gpt2", "gpt2"},
                                {"HuggingFaceTB/SmolLM2-135M", "SmolLM2-135M"}})
            CHECK(said(hub) == start + hub + ": no such directory, and flatgpt downloads nothing; to fetch it from " +
                                   "the Hub:\n  hf download " + hub + " --local-dir " + to + "\n");
    }
    CHECK(contains(run_flatgpt({"sample", flatgpt_binary()}).err,
                   "a model is a GGUF file or a directory (a run, a checkpoint, a Hugging Face model)"));
    ProcessResult r = run_flatgpt({"plot", "/nonexistent"});
    CHECK(r.exit_code == 3);
    CHECK(contains(r.err, "flatgpt plot: /nonexistent"));
}
TEST_CASE("cli: completion offers the rows, and its scripts are valid shell") {
    for (const char* shell : {"bash", "zsh", "fish"}) {
        ProcessResult r = run_flatgpt({"completion", shell});
        REQUIRE(r.exit_code == 0);
        std::string path = temporary_directory() + "/completion";
        write_file(path, r.out);
        ProcessResult there = run_process({"sh", "-c", std::string("command -v ") + shell});
        if (there.exit_code == 0) CHECK(run_process({shell, "-n", path}).exit_code == 0);
    }
    auto offered = [](const std::vector<std::string>& words) {
        std::vector<std::string> args = {"completion", "bash", "--"};
        args.insert(args.end(), words.begin(), words.end());
        const ProcessResult r = run_flatgpt(args);
        CHECK(r.exit_code == 0);
        return "\n" + r.out;
    };
    for (auto& c : commands()) {
        const std::string options = offered({c.name, "--"});
        for (auto& f : c.flags) {
            if (!positional(f)) CHECK(contains(options, "\n" + f.name + "\t" + f.help + "\n"));
            if (!f.choices.empty() && !positional(f))
                CHECK(offered({c.name, f.name, ""}) == "\n" + join(f.choices, "\n") + "\n");
        }
        CHECK(contains(offered({""}), "\n" + c.name + "\t" + c.summary + "\n"));
    }
    CHECK(contains(offered({"help", "conv"}), "\nconvert\t"));
    CHECK(offered({"completion", ""}) == "\nbash\nfish\nzsh\n");
    CHECK(offered({"sample", "-n", ""}) == "\n");    // no completion of numbers
    CHECK(offered({"nothing", ""}) == "\n");
    CHECK(run_flatgpt({"completion", "csh"}).exit_code == 2);
}
TEST_CASE("cli: a closed pipe ends it quietly, a full disk loudly") {
    // `trap` ignores SIGPIPE in children; the binary must still die of it (such parents exist)
    const char* script = "trap '' PIPE; { sleep 0.2; \"$0\" --help; echo $? >&2; } | true";
    ProcessResult r = run_process({"bash", "-c", script, flatgpt_binary()});
    CHECK(r.err == "141\n");
    if (!std::filesystem::exists("/dev/full")) return;
    r = run_process({"sh", "-c", "\"$0\" --help >/dev/full", flatgpt_binary()});
    CHECK(r.exit_code == 4);
    CHECK(contains(r.err, "cannot write to standard output: No space left on device"));
}
TEST_CASE("plot: draws within its width, prints CSV, forgives a cut last line only") {
    std::string dir = temporary_directory(), text;
    for (int i = 1; i <= 200; i++) {
        text += "{\"step\":" + std::to_string(i) + ",\"loss\":" + std::to_string(8.0 / i + 3);
        if (i == 7) text += ",\"skipped\":true";
        if (i == 100) text += ",\"val_loss\":3.25,\"sample\":\"a \\\"b\\\",\\nc\"";
        text += "}\n";
    }
    write_file(dir + "/metrics.jsonl", text + "{\"step\":201,\"lo");
    ProcessResult r = run_flatgpt({"plot", dir, "--width", "60", "--height", "16"});
    REQUIRE(r.exit_code == 0);
    CHECK(contains(r.out, "●"));
    CHECK(contains(r.out, "lowest 3.25 at step 100"));
    CHECK(contains(r.out, "at step 200"));
    CHECK_FALSE(contains(r.out, "\x1b"));    // no terminal, no color
    size_t lines = 0;
    for (size_t at = 0, end; (end = r.out.find('\n', at)) != std::string::npos; at = end + 1, lines++) {
        std::string line = r.out.substr(at, end - at);
        auto columns = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
        if (!contains(line, dir)) CHECK(columns <= 60);
    }
    CHECK(lines == 16);
    CHECK(run_flatgpt({"plot", dir, dir + "/metrics.jsonl", "--log-x"}).exit_code == 0);
    const std::string picture = temporary_directory() + "/loss.svg";
    r = run_flatgpt({"plot", dir, "--svg", picture});
    const std::string drawn = read_file(picture);
    CHECK((r.exit_code == 0 && contains(drawn, "<svg")));
    size_t dots = 0;    // validations
    for (size_t at = 0; (at = drawn.find("<circle", at)) != std::string::npos; at++) dots++;
    CHECK(dots == 1);
    CHECK(run_flatgpt({"plot", dir, "--svg", picture, "--csv"}).exit_code == 2);
    CHECK(run_flatgpt({"plot", dir, "--svg", "loss.txt"}).exit_code == 2);
    r = run_flatgpt({"plot", dir, "--csv"});
    CHECK(r.exit_code == 0);
    CHECK(contains(r.out, "run,step,loss,val_loss,lr,"));
    CHECK(contains(r.out, ",100,3.08,3.25,,,,,,,,\"a \"\"b\"\",\nc\",,,,\n"));
    CHECK(contains(r.out, ",7,4.142857,,,,,,,,true,,,,,\n"));
    for (const char* damage :
         {"garbage", "[1]", "{\"loss\":1}", "{\"step\":\"x\",\"loss\":1}", "{\"step\":1,\"loss\":[]}", ""}) {
        write_file(dir + "/metrics.jsonl", "{\"step\":0,\"loss\":1}\n" + std::string(damage) + "\n" + text);
        r = run_flatgpt({"plot", dir});
        CHECK(r.exit_code == 3);
        CHECK(contains(r.err, "metrics.jsonl:2: "));
    }
    write_file(dir + "/metrics.jsonl", "");
    CHECK(run_flatgpt({"plot", dir}).exit_code == 3);
    write_file(dir + "/metrics.jsonl", "{\"step\":0,\"loss\":null}\n{\"step\":1,\"loss\":2}\n");    // null: not finite
    CHECK(run_flatgpt({"plot", dir, "--log-x"}).exit_code == 0);
}
