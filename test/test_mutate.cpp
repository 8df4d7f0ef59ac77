// test_mutate.cpp - dev/mutate.py: each kind of change, refusals, every row of dev/mutants.txt.
#include "test.h"

#include <filesystem>
#include <sstream>

namespace fs = std::filesystem;

namespace {
const std::string SOURCE = R"(#include <vector>
#define TWICE(x) ((x) + \
                  (x))
namespace made::up {
constexpr int MOST = 7;    // of MOST names
const Row ROWS[] = {{"a b", 1}, {"c", 2}};
struct Sum : Base<int> {
    int n = 3;
    Sum(int n) : n(n), all{1} { add(n); }
    bool operator()(int a) const { return a < n; }
    int sum(int a, int b = 2) const;
};
int Sum::sum(int a, int b) const {
    if (const int c = a; c > 0 && b > 0 && a != b) return a;    // if (a) b
    for (int i = 0; i < n; i++) a += b * 2 - 1;
    if constexpr (MOST > 1) add(a, least<int>(a, b), {a, b});
    else a = 0;
    /* a */ return a ? b - 1 : -b;
}
int sum(int a) { return a; }
int sum(long a) {
#pragma unroll
    for (int i = 0; i < 2; i++) x[i] = o.fn(y[i], 1).z, kernel<<<a, 1>>>(i);
    each([&](int i) -> int { if (i) return 0; return i * (2 + i); });
    while (!done(x)) { x[0] = 1; }
    return 1;
}
}    // namespace made::up
)";

struct Row {
    std::string function, change, before, after;
};
const Row ROWS[] = {
    {"Sum::sum", "replace token < 1 by <=", "i < n", "i <= n"},
    {"Sum::sum", "replace token += 1 by =", "a += b", "a = b"},
    {"sum", "replace token a 2 by @ + 1", "(int a) { return a;", "(int a) { return a + 1;"},
    {"Sum::sum", "drop token - 3", ": -b", ": b"},
    {"Sum::operator()", "replace token n 1 by 0", "a < n", "a < 0"},
    {"MOST", "replace token 7 1 by 6", "MOST = 7", "MOST = 6"},
    {"ROWS", "replace token \"a b\" 1 by \"b\"", "\"a b\"", "\"b\""},
    {"TWICE", "replace token + 1 by -", "(x) + ", "(x) - "},
    {"Sum", "replace token 3 1 by 4", "int n = 3", "int n = 4"},
    {"Sum::Sum", "drop arg add 1 1", "add(n)", "add()"},
    {"Sum::sum", "drop statement add 1", "add(a, least<int>(a, b), {a, b});\n    else", ";\n    else"},
    {"Sum::sum", "drop statement c 1", "if (const int c = a; c > 0 && b > 0 && a != b) return a;", ""},
    {"Sum::sum", "drop statement else 1", "else a = 0;", ""},
    {"Sum::sum", "replace statement 0 4 by a = 1;", "else a = 0;", "else a = 1;"},
    {"sum#2", "drop statement done 1", "while (!done(x)) { x[0] = 1; }", ""},
    {"sum#2", "drop statement 0 2", "if (i) return 0;", "if (i) ;"},
    {"Sum::sum", "replace cond if 1 by false", "c > 0 && b > 0 && a != b)", "false)"},
    {"Sum::sum", "replace cond b 2 by !(@)", "c > 0 && b > 0 && a != b)", "!(c > 0 && b > 0 && a != b))"},
    {"Sum::sum", "replace cond for 1 by i <= n", "i < n", "i <= n"},
    {"Sum::sum", "replace cond ? 1 by !a", "a ? b", "!a ? b"},
    {"Sum::sum", "drop cond MOST 1", "if constexpr (MOST > 1) add", " add"},
    {"Sum::sum", "drop left && 2", "c > 0 && b > 0 && a != b", " a != b"},
    {"Sum::sum", "drop right && 1", "c > 0 && b > 0 && a != b", "c > 0  && a != b"},
    {"Sum::sum", "replace right && 2 by true", "b > 0 && a != b", "b > 0 && true"},
    {"Sum::sum", "drop right - 1", "b * 2 - 1", "b * 2 "},
    {"Sum::sum", "drop left * 1", "b * 2 - 1", " 2 - 1"},
    {"Sum::sum", "drop left ? 1", "return a ? b - 1 : -b", "return  -b"},
    {"Sum::sum", "drop right ? 1", "return a ? b - 1 : -b", "return  b - 1 "},
    {"Sum::sum", "replace right return 1 by b", "return a;    //", "return b;    //"},
    {"sum#2", "drop right return 2", "return i * (2 + i)", "return "},
    {"Sum::sum", "replace arg least 1 2 by a", "least<int>(a, b)", "least<int>(a, a)"},
    {"Sum::sum", "swap arg add 1 1 2", "add(a, least<int>(a, b), {a, b})", "add(least<int>(a, b), a, {a, b})"},
    {"Sum::sum", "drop arg { 2 1", "{a, b}", "{ b}"},
    {"Sum::sum", "drop arg add 1 3", "least<int>(a, b), {a, b})", "least<int>(a, b))"},
    {"sum#2", "replace arg y 1 1 by 0", "y[i]", "y[0]"},
    {"sum#2", "replace expr fn 1 by 2", "o.fn(y[i], 1).z", "2.z"},
    {"sum#2", "replace expr z 1 by 2", "o.fn(y[i], 1).z", "2"},
    {"sum#2", "replace expr * 1 by i", "i * (2 + i)", "i"},
    {"sum#2", "replace expr ( 8 by 2", "(2 + i)", "2"},
    {"sum#2", "replace expr ! 1 by false", "!done(x)", "false"},
    {"sum#2", "replace expr kernel 1 by f()", "kernel<<<a, 1>>>(i)", "f()"},
    {"sum#2", "replace name fn 1 by g", "o.fn(y[i]", "g(y[i]"},
    {"sed", "s/while/if/", "while", "if"},
};

// A checkout of only dev/mutate.py and SOURCE as a.cpp.
struct Tree {
    const std::string dir = temporary_directory();
    Tree() {
        fs::create_directories(dir + "/dev");
        fs::copy_file("dev/mutate.py", dir + "/dev/mutate.py");
        write_file(dir + "/a.cpp", SOURCE);
    }
    ProcessResult run(const std::vector<std::string>& words) const {
        std::vector<std::string> command = {"python3", dir + "/dev/mutate.py"};
        command.insert(command.end(), words.begin(), words.end());
        return run_process(command);
    }
};
}    // namespace

TEST_CASE("mutants: each kind of change breaks its site alone") {
    const Tree t;
    std::vector<std::string> command = {"python3", "-c", R"(
import sys
sys.path.insert(0, sys.argv[1] + "/dev")
import mutate
for row in sys.argv[2:]:
    try:
        print(mutate.broken(*row.split(" ;; ")), end="\x1f")
    except mutate.Gone as error:
        print(error, end="\x1f")
)",
                                        t.dir};
    for (auto& row : ROWS) command.push_back("a.cpp ;; " + row.function + " ;; " + row.change);
    const ProcessResult all = run_process(command);
    REQUIRE_MESSAGE(all.exit_code == 0, all.err);
    std::istringstream results(all.out);
    for (auto& row : ROWS) {
        CAPTURE(row.function);
        CAPTURE(row.change);
        std::string expected = SOURCE, result;
        REQUIRE(expected.find(row.before) != std::string::npos);
        expected.replace(expected.find(row.before), row.before.size(), row.after);
        std::getline(results, result, '\x1f');
        CHECK(result == expected);
    }
    const ProcessResult one = t.run({"apply", command.back() + " ;; a test*"});
    CHECK(one.exit_code == 0);
    CHECK(all.out.ends_with(one.out + '\x1f'));
}

TEST_CASE("mutants: a row that changes nothing is named") {
    const std::vector<std::pair<std::string, std::string>> rows = {
        {"a.cpp ;; product ;; drop token a 1", "the file has no function product"},
        {"a.cpp ;; sum ;; drop token a 3", "sum has 2 of `a`, not 3"},
        {"a.cpp ;; sum ;; drop left a 2", "`a` has no two operands"},
        {"a.cpp ;; sum ;; drop cond a 2", "`a` is in no condition"},
        {"a.cpp ;; TWICE ;; drop statement x 2", "`x` is in no statement"},
        {"a.cpp ;; sum ;; drop arg a 2 1", "no brackets follow `a`"},
        {"a.cpp ;; Sum::sum ;; drop arg least 1 3", "`least` has no argument 3"},
        {"a.cpp ;; sum ;; replace token a 2 by a", "nothing changes"},
        {"a.cpp ;; sum ;; replace token a 2", "no such change"},
        {"a.cpp ;; sum ;; drop edits a 2", "no such change"},
        {"a.cpp ;; sed ;; s/not here//", "the text is gone"},
        {"b.cpp ;; sum ;; drop token a 1", "No such file"},
    };
    const Tree t;
    std::string all = "a.cpp ;; sum ;; drop right return 1 ;; a test*\n";
    for (auto& [row, message] : rows) all += row + " ;; a test*\n";
    write_file(t.dir + "/dev/mutants.txt", all);
    const ProcessResult r = t.run({"check"});
    CHECK(r.exit_code == 1);
    std::istringstream lines(r.out);
    std::string line;
    for (auto& [row, message] : rows) {
        CAPTURE(row);
        std::getline(lines, line);
        CHECK_MESSAGE(line.find(message) != std::string::npos, line);
    }
    CHECK(!std::getline(lines, line));
    CHECK(t.run({"apply", rows[0].first}).exit_code == 1);
    CHECK(t.run({"apply"}).exit_code == 2);
}

TEST_CASE("mutants: every row of dev/mutants.txt changes its file") {
    ProcessOptions o;
    o.timeout = 240;
    const ProcessResult r = run_process({"dev/mutate.py", "check"}, o);
    CHECK_MESSAGE(r.exit_code == 0, r.out);
}
