// test_flag_rules.cpp - flags that need or exclude others, on the command line and in a file alike.
#include <algorithm>

#include "base/command.h"
#include "model/config.h"
#include "test.h"
#include "tools/commands.h"

using Strings = std::vector<std::string>;

namespace {
struct RuleToy {
    int n = 0, m = 0, k = 0;
    bool on = false, off = true;
    double x = 0.5;
    std::string text, kind = "one", file = "f";
    Strings list;
    std::string toml;
    Command command() {
        Command c{"toy", "A toy.", "flatgpt toy", {}, [] { return Status{}; }, &toml};
        c.flags = {{"--on", &on, "h"},
                   {"--off", &off, "h"},
                   {"--kind", &kind, "h", 0, 0, {"one", "two"}},
                   {.name = "--text", .to = &text, .help = "h", .excludes = {"--on, --x 0: why not"}},
                   {.name = "--x", .to = &x, .help = "h", .min = 0, .max = 1},
                   {.name = "--n", .to = &n, .help = "h", .min = 0, .max = 9, .needs = {"--on or --list: a reason"}},
                   {.name = "--m", .to = &m, .help = "h", .min = 0, .max = 9, .needs = {"--n", "--kind two"}},
                   {.name = "--k",
                    .to = &k,
                    .help = "h",
                    .min = 0,
                    .max = 9,
                    .needs = {"--absent"},
                    .excludes = {"--absent: no such row"}},
                   {.name = "--list", .to = &list, .help = "h", .excludes = {"--kind two", "--off"}},
                   {.name = "--file", .to = &file, .help = "the file", .required_unless = {"--off", "--kind two"}}};
        return c;
    }
};
// The error for these arguments; checks that `settings` in a file give the same one.
std::string said(const Strings& args, const std::string& settings) {
    RuleToy toy, of_file;
    const std::string path = temporary_directory() + "/a.toml";
    write_file(path, settings);
    const std::string message = command_parse(toy.command(), args).status.message;
    CHECK(command_parse(of_file.command(), {"--config", path}).status.message == message);
    return message;
}
}    // namespace

TEST_CASE("flag rules: a flag that lacks one that it needs is refused with the reason") {
    const std::string file = "file = \"g\"\n";
    CHECK(said({"--file", "g", "--n", "1"}, file + "n = 1") == "--n needs --on or --list: a reason");
    CHECK(said({"--file", "g", "--n", "1", "--on"}, file + "n = 1\non = true") == "");
    CHECK(said({"--file", "g", "--n", "1", "--on=false"}, file + "n = 1\non = false") ==
          "--n needs --on or --list: a reason");
    CHECK(said({"--file", "g", "--n", "1", "--list", ""}, file + "n = 1\nlist = [\"\"]") == "");
    CHECK(said({"--file", "g", "--m", "1", "--kind", "two"}, file + "m = 1\nkind = \"two\"") == "--m needs --n");
    CHECK(said({"--file", "g", "--on", "--n", "1", "--m", "1"}, file + "on = true\nn = 1\nm = 1") ==
          "--m needs --kind two");
    CHECK(said({"--file", "g", "--on", "--n", "1", "--m", "1", "--kind", "two"},
               file + "on = true\nn = 1\nm = 1\nkind = \"two\"") == "");
    CHECK(said({"--file", "g", "--n", "0", "--m", "0"}, file + "n = 0\nm = 0") == "");    // defaults need nothing
    CHECK(said({"--file", "g", "--k", "1"}, file + "k = 1") == "");
}
TEST_CASE("flag rules: two flags that exclude each other are both named") {
    const std::string file = "file = \"g\"\n";
    CHECK(said({"--file", "g", "--text", "a", "--on"}, file + "text = \"a\"\non = true") ==
          "--text and --on exclude each other: why not");
    CHECK(said({"--file", "g", "--text", "a", "--x", "0"}, file + "text = \"a\"\nx = 0") ==
          "--text and --x 0 exclude each other: why not");
    CHECK(said({"--file", "g", "--text", "a", "--x", "0.1"}, file + "text = \"a\"\nx = 0.1") == "");
    CHECK(said({"--file", "g", "--text", "", "--on"}, file + "text = \"\"\non = true") == "");
    CHECK(said({"--file", "g", "--list", "a", "--kind", "two"}, file + "list = [\"a\"]\nkind = \"two\"") ==
          "--list and --kind two exclude each other");
    CHECK(said({"--list", "a", "--off=false"}, "list = [\"a\"]\noff = false") == "--list and --off exclude each other");
}
TEST_CASE("flag rules: one of several flags is required") {
    CHECK(said({}, "") == "--file, --off or --kind two is required: the file");
    CHECK(said({"--file", "f"}, "file = \"f\"") == "--file, --off or --kind two is required: the file");
    CHECK(said({"--off=false"}, "off = false") == "");
    CHECK(said({"--kind", "two"}, "kind = \"two\"") == "");
    RuleToy toy;
    CHECK(flag_meaning(toy.command().flags.back()) == "the file (required, or --off or --kind two)");
    CHECK(flag_meaning(toy.command().flags[5]) == "with --on or --list: h (default 0)");
}
TEST_CASE("flag rules: one changed row is checked by its own rules and by what excludes it") {
    RuleToy toy;
    const std::vector<Flag> rows = toy.command().flags;
    const Strings defaults = flag_values(rows);
    auto changed = [&](size_t row) { return check_rules(rows, defaults, &rows[row]).message; };
    toy.text = "a", toy.on = true, toy.n = 1, toy.m = 1, toy.off = false;
    CHECK(changed(0) == "--text and --on exclude each other: why not");    // --on
    CHECK(changed(3) == "--text and --on exclude each other: why not");    // --text
    CHECK(changed(4) == "");                                               // --x
    CHECK(changed(5) == "");                                               // --n
    CHECK(changed(6) == "--m needs --kind two");
}
TEST_CASE("flag rules: run.toml, which lists every flag, reads back") {
    RuleToy toy, again;
    REQUIRE(command_parse(toy.command(), {"--file", "g", "--on", "--n", "2"}).ok());
    const std::string path = temporary_directory() + "/run.toml";
    write_file(path, toy.toml);
    CHECK(command_parse(again.command(), {"--config", path}).status.message == "");
    CHECK(again.toml == toy.toml);
    Command train = train_command();
    std::string toml;
    train.resolved = &toml;
    REQUIRE(command_parse(train, {"--data", "a", "--out", "b"}).ok());
    write_file(path, toml);
    CHECK(command_parse(train_command(), {"--config", path}).status.message == "");
}
TEST_CASE("flag rules: each names flags of its own command, and values that they can have") {
    CHECK(flag_rule("--a, --b or --c 1: x, y or z: w").flags == Strings{"--a", "--b", "--c 1"});
    CHECK(flag_rule("--a, --b or --c 1: x, y or z: w").why == "x, y or z: w");
    CHECK(flag_rule("--a").flags == Strings{"--a"});
    CHECK(flag_rule("--a").why == "");
    CHECK(flag_rule("").flags.empty());
    int rules = 0;
    for (auto& c : commands())
        for (auto& f : c.flags) {
            Strings all = f.required_unless;
            for (auto* texts : {&f.needs, &f.excludes})
                for (auto& text : *texts) {
                    const FlagRule rule = flag_rule(text);
                    CHECK_FALSE(rule.flags.empty());
                    CHECK(contains(text, ": ") == !rule.why.empty());
                    all.insert(all.end(), rule.flags.begin(), rule.flags.end());
                }
            CHECK((f.required_unless.empty() || !f.required));
            for (auto& words : all) {
                CAPTURE(c.name);
                CAPTURE(f.name);
                CAPTURE(words);
                const size_t space = std::min(words.find(' '), words.size());
                auto row = std::find_if(c.flags.begin(), c.flags.end(),
                                        [&](auto& other) { return other.name == words.substr(0, space); });
                REQUIRE(row != c.flags.end());
                CHECK(row->name != f.name);
                if (space < words.size()) CHECK(flag_set(*row, {words.substr(space + 1)}).ok());
                rules++;
            }
        }
    CHECK(rules > 100);
    for (const ConfigRow& row : config_rows())
        for (auto& words : flag_rule(row.needs).flags) {
            auto is_named = [&](const ConfigRow& other) {
                return other.flag && &other != &row && (words + " ").starts_with(std::string(other.flag) + " ");
            };
            CHECK_MESSAGE(std::any_of(config_rows().begin(), config_rows().end(), is_named), words);
        }
}
