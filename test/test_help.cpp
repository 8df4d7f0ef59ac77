// test_help.cpp - help of every command: the text of each row, widths, groups, examples.
#include "base/command.h"

#include <set>

#include "test.h"
#include "tools/commands.h"

using Strings = std::vector<std::string>;

namespace {
bool text_valued(const Flag& f) {
    return std::holds_alternative<std::string*>(f.to) || std::holds_alternative<Strings*>(f.to);
}
size_t common_rows(const Command& c) {
    return size_t(std::count_if(c.flags.begin(), c.flags.end(), [](auto& f) { return f.level == Level::common; }));
}
}    // namespace

TEST_CASE("cli: the defaults of every command are in range, and --help says all but the ranges") {
    for (auto& c : commands()) {
        CAPTURE(c.name);
        std::string help = command_help(c, 80, Level::expert), flat;
        for (size_t i = 0; i < help.size(); i++)    // joins wrapped lines
            if (!isspace(static_cast<unsigned char>(help[i]))) flat += help[i];
            else if (flat.empty() || flat.back() != ' ') flat += ' ';
        CHECK_FALSE(contains(flat, "whole number"));
        for (auto& f : c.flags) {
            CAPTURE(f.name);
            const std::string row = " " + flag_form(f) + " " + flag_meaning(f);
            CHECK(contains(flat, row + " "));
            CHECK(contains(row, f.help));
            CHECK(contains(row, "(required)") == f.required);
            if (!text_valued(f) && !std::holds_alternative<bool*>(f.to)) CHECK(contains(row, "(default "));
            for (auto& choice : f.choices) CHECK(contains(row, choice));
            if (auto p = std::get_if<double*>(&f.to)) CHECK((**p >= f.min && **p <= f.max));
            if (auto p = std::get_if<int*>(&f.to)) CHECK((**p >= f.min && **p <= f.max));
            if (auto p = std::get_if<int64_t*>(&f.to)) CHECK((double(**p) >= f.min && double(**p) <= f.max));
            if (auto p = std::get_if<std::string*>(&f.to); p && !f.choices.empty() && !f.required)
                CHECK(std::count(f.choices.begin(), f.choices.end(), **p) == 1);
        }
    }
}
TEST_CASE("cli: defaults as people write them") {
    int n = 0;
    int64_t big = 0;
    double x = 0;
    auto shown = [&](auto* to, auto value, Strings choices = {}) {
        *to = value;
        const std::string text = flag_meaning({"--x", to, "h", 0, 1e12, choices});
        return text.substr(0, 11) == "h (default " ? text.substr(11, text.size() - 12) : text;
    };
    CHECK(shown(&n, 0) == "0");
    CHECK(shown(&n, 0, {"auto"}) == "auto");
    CHECK(shown(&n, 8, {"auto"}) == "8");
    CHECK(shown(&n, 1000) == "1000");
    CHECK(shown(&n, 65536) == "65536");
    CHECK(shown(&n, 50000) == "50k");
    CHECK(shown(&big, 100000000) == "100M");
    CHECK(shown(&big, 1500000) == "1500k");
    CHECK(shown(&x, 6e-4) == "0.0006");
    CHECK(shown(&x, 1) == "1");
    CHECK(shown(&x, 0.9999999) == "0.9999999");
    CHECK(shown(&x, 1e-8) == "1e-08");
    std::string text = "a";
    CHECK(flag_meaning({"--text", &text, "h", 0, 0, {"a", "b"}}) == "h; one of a, b (default a)");
    text = "";
    CHECK(flag_meaning({"--text", &text, "h"}) == "h");
    Strings list;
    CHECK(flag_meaning({"--text", &list, "h"}) == "h; may be repeated");
    bool on = false;
    CHECK(flag_meaning({"--on", &on, "h"}) == "h");
    on = true;
    CHECK(flag_form({"--on", &on, "h"}) == "--on=false");
}
TEST_CASE("cli: help fits its width, in groups, with an example that can be pasted") {
    for (auto& c : commands())
        for (int i = 0; i < 10; i++) {
            const int width = std::vector{40, 63, 64, 80, 100}[size_t(i / 2)];
            CAPTURE(c.name);
            CAPTURE(width);
            const std::string help = command_help(c, width, Level(i % 2)), begin = "\nexample:\n";
            for (size_t at = 0, end; at < help.size(); at = end + 1) {
                end = help.find('\n', at);
                REQUIRE(end != std::string::npos);
                if (width >= 63) CHECK(end - at <= size_t(width));
                if (end > at) CHECK(help[end - 1] != ' ');
            }
            std::string example;    // the example with joined lines
            for (char letter : help.substr(help.find(begin) + begin.size())) {
                if (letter == '\n' && example.ends_with("\\")) example.pop_back();
                else if (letter != ' ' || !example.ends_with(" ")) example += letter == '\n' ? ' ' : letter;
            }
            std::string once;
            for (char letter : c.example)
                if (letter != ' ' || !once.ends_with(" ")) once += letter;
            CHECK(contains(" " + example, " " + once + " "));
        }
    // Common options come first; the options of a group are adjacent.
    for (auto& c : {train_command(), sample_command(), bench_command()}) {
        Strings groups;
        for (auto& f : c.flags)
            if (groups.empty() || groups.back() != f.group) groups.push_back(f.group);
        CHECK(groups[0] == "Common");
        CHECK(std::set<std::string>(groups.begin(), groups.end()).size() == groups.size());
        const std::string help = command_help(c, 80, Level::expert);
        size_t at = 0;
        for (auto& g : groups) {
            const size_t next = help.find("\n\n" + g + ":\n", at);
            REQUIRE(next != std::string::npos);
            at = next;
        }
        CHECK(help.find("--help, -h") < help.find(groups[1] + ":\n"));
    }
}
TEST_CASE("cli: --help shows the common options, --help all every one") {
    for (auto& c : commands()) {
        CAPTURE(c.name);
        const std::string some = command_help(c), all = command_help(c, 80, Level::expert);
        const size_t hidden = c.flags.size() - common_rows(c);
        for (auto& f : c.flags) {
            const std::string row = "\n  " + flag_form(f);
            CHECK(contains(some, row) == (f.level == Level::common));
            CHECK(contains(all, row));
        }
        CHECK(common_rows(c) <= 30);
        CHECK(contains(some, "--help all") == (hidden > 0));
        CHECK_FALSE(contains(all, "--help all"));
        CHECK(run_flatgpt({c.name, "--help", "all"}).out == all);
        CHECK(run_flatgpt({"help", c.name, "all"}).out == all);
    }
    const Command train = train_command();
    const size_t common = common_rows(train);
    CHECK((common >= 18 && common <= 26));
    const size_t all = train.flags.size();
    CHECK(command_help(train).ends_with("\n`flatgpt train --help all` shows all " + std::to_string(all) + " options, " +
                                        std::to_string(all - common) + " more.\n"));
}
