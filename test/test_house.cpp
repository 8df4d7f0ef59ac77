// test_house.cpp - rules for the sources (shared/DESIGN.md): includes, lengths, widths, counts,
// where the process may end. Each rule must also find its breach in a small made-up tree.
#include "test.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

namespace fs = std::filesystem;

namespace {
typedef std::map<std::string, std::string> House;    // path from the top level -> text
typedef std::vector<std::string> Breaches;           // "file:line: what is wrong"

constexpr int TOP_ENTRIES = 20, FILE_LINES = 600, FUNCTION_LINES = 70, COLUMNS = 120, COMMENT_COLUMNS = 100,
              CONDITIONALS = 30;
constexpr int ROOM_FILES = 35, INNER_FILES = 20, INNER_LINES = 3500, PAGE_CONDITIONS = 25;

// A directory, or a file at the top, and the directories and single files that it may include
// besides itself. No row lists commands (top files without declarations): nothing includes them.
const std::map<std::string, std::set<std::string>> MAY_INCLUDE = {
    {"base", {}},
    {"files", {"base"}},
    {"layers", {"base"}},
    {"data", {"base", "files", "model/spans.h"}},    // objectives choose the model's attention mask
    {"comm", {"base", "layers/convert.cuh"}},        // gradients are sent in bf16
    {"model", {"base", "layers", "gpt.h", "comm/comm.h"}},
    {"gpt.h",
     {"base", "layers", "model/activations.h", "model/batch.h", "model/plan.h", "model/sparse/global_attention.h",
      "model/sparse/sparse_attention.h", "model/tensors.h"}},
    {"gpt.cpp", {"base", "layers", "model", "gpt.h"}},
    {"checkpoint", {"base", "layers", "files", "data", "model", "gpt.h"}},
    {"infer", {"base", "layers", "files", "data", "comm", "model", "gpt.h", "checkpoint"}},
    {"train", {"base", "layers", "files", "data", "comm", "model", "gpt.h", "checkpoint", "infer"}},
    {"tools", {"base", "layers", "files", "data", "comm", "model", "gpt.h", "checkpoint", "infer", "train"}},
    {"infer.cpp", {"base", "layers", "files", "data", "comm", "model", "gpt.h", "checkpoint", "infer"}},
    {"train_gpt.cu", {"base", "layers", "files", "data", "comm", "model", "gpt.h", "checkpoint", "infer", "train"}},
    {"main.cpp", {"base", "layers", "model", "tools/commands.h"}},
};
// Files that may end the process, because no caller is left to return to.
const std::map<std::string, const char*> MAY_EXIT = {
    {"main.cpp", "its purpose"},
    {"base/common.h", "a CHECK has failed"},
    {"layers/cuda.cu", "the device has failed, and with it what it holds"},
    {"comm/coordinator.cpp", "another rank has died, and a collective waits for it for ever"},
};

// Directories with a file for each operation may have more files.
const std::set<std::string> FILE_PER_OPERATION = {"layers/attention", "tools/selftest"};
// Words that were names here with several meanings, or with another one than in the field.
const std::set<std::string> WORDS_THAT_LEFT = {
    "place", "turn",    "turns",    "Turn",  "wire",  "narrow", "said",   "heard", "hear",   "speak",    "Sees",
    "Room",  "Stretch", "newcomer", "Ahead", "Pulse", "Watch",  "Opened", "look",  "Asked",  "Stored",   "Turned",
    "Share", "Loops",   "meet",     "Met",   "bend",  "Tilt",   "rolls",  "claim", "guests", "strangers"};

std::string room(const std::string& path) { return path.substr(0, path.find('/')); }
bool has_ending(const std::string& path, const std::set<std::string>& endings) {
    return endings.count(fs::path(path).extension().string()) > 0;
}
bool is_source(const std::string& path) { return has_ending(path, {".h", ".cpp", ".cu", ".cuh", ".inc"}); }
bool is_product(const std::string& path) { return is_source(path) && room(path) != "test" && room(path) != "dev"; }
bool is_written_by_hand(const std::string& path) {
    return is_source(path) || path == "Makefile" || path == ".ci/run" ||
           has_ending(path, {".sh", ".py", ".js", ".css"});
}
std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}
std::string breach(const std::string& path, size_t line, const std::string& what) {
    return path + ":" + std::to_string(line) + ": " + what;
}

// The tracked files of a checkout; without git (an unpacked archive, the copy for mutants) all
// files but those of builds and tests.
House this_house() {
    std::vector<std::string> paths;
    const ProcessResult git = fs::exists(".git") ? run_process({"git", "ls-files"}) : ProcessResult{};
    if (git.exit_code == 0) paths = lines_of(git.out);
    else
        for (auto it = fs::recursive_directory_iterator("."); it != fs::recursive_directory_iterator(); ++it) {
            const std::string path = it->path().lexically_relative(".").string();
            if (path == "build" || path == ".git") it.disable_recursion_pending();
            else if (it->is_regular_file() && !it->is_symlink() && path != "VERSION") paths.push_back(path);
        }
    House house;
    for (auto& path : paths)
        if (fs::exists(path)) house[path] = read_file(path);
    return house;
}

// A source as two texts of its length: one without comments and quoted text, one of comments alone.
struct Parts {
    std::string code, comments;
};
Parts parts_of(const std::string& text) {
    Parts p = {std::string(text.size(), ' '), std::string(text.size(), ' ')};
    const size_t size = text.size();
    auto until = [&](const std::string& end, size_t from) { return std::min(text.find(end, from), size); };
    for (size_t at = 0, end; at < size; at = end) {
        end = at + 1;
        const char c = text[at], before = at ? text[at - 1] : ' ';
        if (text.compare(at, 2, "//") == 0 || text.compare(at, 2, "/*") == 0) {
            end = text[at + 1] == '/' ? until("\n", at) : std::min(until("*/", at + 2) + 2, size);
            std::copy(text.begin() + long(at), text.begin() + long(end), p.comments.begin() + long(at));
        } else if (c == '"' && before == 'R') {
            const std::string tag = text.substr(at + 1, until("(", at) - at - 1);
            end = std::min(until(")" + tag + "\"", at) + tag.size() + 2, size);
        } else if (c == '"' || (c == '\'' && !isalnum(static_cast<unsigned char>(before)))) {    // not the ' of 1'000
            while (end < size && text[end] != c && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
            end = std::min(end + 1, size);
            p.code[at] = '"';
        } else {
            p.code[at] = c;
        }
        for (size_t i = at; i < end; i++)
            if (text[i] == '\n') p.code[i] = p.comments[i] = '\n';
    }
    return p;
}

// ---- the rules ----------------------------------------------------------------------------------

Breaches top_level(const House& house) {
    std::set<std::string> top;
    for (auto& [path, text] : house)
        if (path[0] != '.') top.insert(room(path));
    if (int(top.size()) <= TOP_ENTRIES) return {};
    std::string names;
    for (auto& name : top) names += " " + name;
    return {breach(".", 0,
                   std::to_string(top.size()) + " entries at the top level, the limit is " +
                       std::to_string(TOP_ENTRIES) + ":" + names)};
}

Breaches includes(const House& house) {
    Breaches found;
    for (auto& [path, text] : house) {
        if (!is_product(path)) continue;
        const auto row = MAY_INCLUDE.find(room(path));
        if (row == MAY_INCLUDE.end()) {
            found.push_back(breach(path, 1, "no rule says what " + room(path) + " may include"));
            continue;
        }
        size_t number = 0;
        for (auto& line : lines_of(text)) {
            number++;
            const size_t hash = line.find_first_not_of(" \t"), open = line.find_first_of("\"<");
            if (hash == std::string::npos || line[hash] != '#' || open == std::string::npos) continue;
            if (line.find_first_not_of(" \t", hash + 1) != line.find("include")) continue;
            const std::string name = line.substr(open + 1, line.find_first_of("\">", open + 1) - open - 1);
            std::string target = (fs::path(path).parent_path() / name).lexically_normal().string();
            if (!house.count(target)) target = name;
            if (line[open] == '<' && !house.count(target)) continue;    // a library's header
            if (!house.count(target)) found.push_back(breach(path, number, "no file " + name));
            else if (room(target) != row->first && !row->second.count(room(target)) && !row->second.count(target))
                found.push_back(breach(path, number, row->first + " may not include " + target));
        }
    }
    return found;
}

Breaches file_lengths(const House& house) {
    Breaches found;
    for (auto& [path, text] : house)
        if (const size_t n = lines_of(text).size(); is_written_by_hand(path) && n >= FILE_LINES)
            found.push_back(breach(path, n, "the file has " + std::to_string(FILE_LINES) + " lines or more"));
    return found;
}

// Whether nothing but a comment stands on the line.
bool is_comment(const std::string& path, const std::string& line) {
    const size_t first = line.find_first_not_of(" \t");
    const std::string mark = is_source(path) || has_ending(path, {".js"}) ? "//" : "#";
    if (has_ending(path, {".css"})) return false;
    return first != std::string::npos && line.compare(first, mark.size(), mark) == 0;
}
Breaches columns(const House& house) {
    Breaches found;
    for (auto& [path, text] : house) {
        if (!is_written_by_hand(path)) continue;
        const bool code_is_limited = is_source(path) || path == "Makefile";    // not the long strings of scripts
        size_t number = 0;
        for (auto& line : lines_of(text)) {
            number++;
            auto begins = [](char c) { return (c & 0xC0) != 0x80; };    // first byte of a UTF-8 character
            const auto n = std::count_if(line.begin(), line.end(), begins);
            if (is_comment(path, line) ? n > COMMENT_COLUMNS : n > COLUMNS && code_is_limited)
                found.push_back(breach(path, number, std::to_string(n) + " columns"));
        }
    }
    return found;
}

// Whether `head`, the code before a {, is that of a function (or of a lambda at namespace scope):
// it has parameters and is no initializer.
bool is_function_head(const std::string& head) {
    std::istringstream words(head);
    std::string first;
    words >> first;
    for (const char* other : {"namespace", "class", "struct", "union", "enum", "extern"})
        if (first == other && head.find('(') == std::string::npos) return false;
    const size_t open = head.find('('), equals = head.find(" = ");
    return open != std::string::npos && (equals == std::string::npos || equals > open || head.find('[') < open);
}
size_t logic_lines(const std::string& text, size_t first, size_t last) {
    const std::vector<std::string> lines = lines_of(text);
    size_t n = 0;
    for (size_t i = std::max<size_t>(1, first); i <= std::min(last, lines.size()); i++) {
        const size_t begin = lines[i - 1].find_first_not_of(' ');
        n += begin == std::string::npos || !strchr("{\".", lines[i - 1][begin]);
    }
    return n;
}
// A function's lines are those from its head to its closing brace, without rows of tables (lines
// that begin with a brace, a quote or a field's name): they are data.
Breaches function_lengths(const House& house) {
    Breaches found;
    for (auto& [path, text] : house) {
        if (!is_source(path)) continue;
        std::string code = parts_of(text).code;
        for (size_t at = 0; at < code.size(); at = code.find('\n', at) + 1) {    // blanks preprocessor lines
            const size_t first = code.find_first_not_of(" \t", at);
            for (bool more = first != std::string::npos && code[first] == '#'; more;) {
                const size_t end = std::min(code.find('\n', at), code.size());
                more = code[end - 1] == '\\' && end + 1 < code.size();
                std::fill(code.begin() + long(at), code.begin() + long(end), ' ');
                if (more) at = end + 1;
            }
            if (code.find('\n', at) == std::string::npos) break;
        }
        size_t head = 0, line = 1, begin = 0;    // start of the head; lines: current, function's first
        int depth = 0, outside = -1;             // open braces: now, around the function (-1: none)
        for (size_t at = 0; at < code.size(); at++) {
            const char c = code[at];
            if (c == '\n') line++;
            if (c == '{' && depth++ >= 0 && outside < 0) {
                while (head < at && isspace(static_cast<unsigned char>(code[head]))) head++;
                const bool function = is_function_head(code.substr(head, at - head));
                if (function) outside = depth - 1, begin = line - size_t(std::count(&code[head], &code[at], '\n'));
            }
            if (c == '}' && --depth == outside) {
                if (const size_t n = logic_lines(text, begin, line); n > FUNCTION_LINES)
                    found.push_back(breach(path, begin, "a function of " + std::to_string(n) + " lines"));
                outside = -1;
            }
            // After `: member{value}` a constructor's head goes on.
            const size_t next = code.find_first_not_of(" \n", at + 1);
            const bool goes_on = c == '}' && next != std::string::npos && (code[next] == ',' || code[next] == '{');
            if (outside < 0 && (c == ';' || c == '{' || c == '}') && !goes_on) head = at + 1;
        }
        if (depth != 0) found.push_back(breach(path, line, "braces do not match: functions cannot be measured"));
    }
    return found;
}

Breaches conditionals(const House& house) {
    Breaches all;
    for (auto& [path, text] : house) {
        if (!is_source(path)) continue;
        size_t number = 0;
        for (auto& line : lines_of(parts_of(text).code)) {
            number++;
            const size_t hash = line.find_first_not_of(" \t");
            if (hash == std::string::npos || line[hash] != '#') continue;
            const size_t word = line.find_first_not_of(" \t", hash + 1);
            if (word == std::string::npos || line.compare(word, 2, "if") != 0) continue;
            all.push_back(breach(path, number, line.substr(0, line.find_last_not_of(' ') + 1)));
        }
    }
    return int(all.size()) > CONDITIONALS ? all : Breaches{};
}

// A directory has one purpose, and so few files that a reader finds the right one.
Breaches rooms(const House& house) {
    struct Size {
        int files = 0;
        size_t lines = 0;
    };
    std::map<std::string, Size> sizes;
    for (auto& [path, text] : house) {
        if (!is_product(path) || path.find('/') == std::string::npos) continue;
        Size& size = sizes[fs::path(path).parent_path().string()];
        size.files++;
        size.lines += lines_of(text).size();
    }
    Breaches found;
    for (auto& [path, size] : sizes) {
        const bool inner = path.find('/') != std::string::npos;
        const int limit = inner ? INNER_FILES : ROOM_FILES;
        if (FILE_PER_OPERATION.count(path)) continue;
        if (size.files > limit)
            found.push_back(
                breach(path, 0, std::to_string(size.files) + " files, the limit is " + std::to_string(limit)));
        if (inner && int(size.lines) > INNER_LINES)
            found.push_back(
                breach(path, 0, std::to_string(size.lines) + " lines, the limit is " + std::to_string(INNER_LINES)));
    }
    return found;
}

// Calls f(word, line) for each identifier of `code`, which has no comments and no quoted text.
template <class F> void each_word(const std::string& code, F f) {
    size_t line = 1;
    for (size_t at = 0; at < code.size(); at++) {
        if (code[at] == '\n') line++;
        if (!isalpha(static_cast<unsigned char>(code[at])) && code[at] != '_') continue;
        size_t end = at;
        while (end < code.size() && (isalnum(static_cast<unsigned char>(code[end])) || code[end] == '_')) end++;
        if (at == 0 || !isalnum(static_cast<unsigned char>(code[at - 1]))) f(code.substr(at, end - at), line);
        at = end - 1;
    }
}
Breaches words(const House& house) {
    Breaches found;
    for (auto& [path, text] : house)
        if (is_product(path))
            each_word(parts_of(text).code, [&](const std::string& word, size_t line) {
                if (WORDS_THAT_LEFT.count(word)) found.push_back(breach(path, line, "the word " + word + " has left"));
            });
    return found;
}

// gpt.cpp reads like the paper: absent steps are null, and compose.h decides what is fused.
Breaches page(const House& house) {
    const auto gpt = house.find("gpt.cpp");
    if (gpt == house.end()) return {};
    int conditions = 0;
    each_word(parts_of(gpt->second).code, [&](const std::string& word, size_t) { conditions += word == "if"; });
    if (conditions <= PAGE_CONDITIONS) return {};
    return {breach("gpt.cpp", 0,
                   std::to_string(conditions) + " times `if`, the limit is " + std::to_string(PAGE_CONDITIONS))};
}

// A comment must not begin with "of": a reader cannot tell of which thing.
Breaches comments(const House& house) {
    Breaches found;
    for (auto& [path, text] : house) {
        if (!is_source(path)) continue;
        const Parts p = parts_of(text);
        const std::vector<std::string> code = lines_of(p.code), notes = lines_of(p.comments);
        for (size_t i = 0; i < notes.size(); i++) {
            const size_t at = notes[i].find("//");
            if (at == std::string::npos) continue;
            const std::string note = notes[i].substr(std::min(notes[i].find_first_not_of("/ ", at), notes[i].size()));
            const bool trailing = code[i].find_first_not_of(' ') < at;
            if (note.starts_with("Of ") || (trailing && note.starts_with("of ")))
                found.push_back(breach(path, i + 1, "a comment begins with 'of': //" + notes[i].substr(at + 2)));
        }
    }
    return found;
}

Breaches exits(const House& house) {
    Breaches found;
    for (auto& [path, text] : house) {
        if (!is_product(path) || MAY_EXIT.count(path)) continue;
        size_t number = 0;
        for (auto& line : lines_of(parts_of(text).code)) {
            number++;
            for (const char* name : {"exit", "_exit", "_Exit", "quick_exit", "abort", "terminate", "assert"}) {
                auto is_name = [](char c) { return c == '_' || isalnum(static_cast<unsigned char>(c)); };
                for (size_t at = 0; (at = line.find(name, at)) != std::string::npos; at++) {
                    const size_t end = at + strlen(name);
                    const size_t next = line.find_first_not_of(' ', end);
                    if ((at && is_name(line[at - 1])) || next == std::string::npos || line[next] != '(') continue;
                    found.push_back(breach(path, number, std::string(name) + ": only main.cpp ends the process"));
                }
            }
        }
    }
    return found;
}

// Types outside of namespaces whose names are equal break the one-definition rule: the linker keeps
// one of two destructors. test/ranks is a binary of its own.
Breaches types(const House& house) {
    std::map<std::string, std::string> first;    // name -> file
    Breaches found;
    for (auto& [path, text] : house) {
        if (!is_source(path) || path.starts_with("test/ranks/")) continue;
        const std::vector<std::string> code = lines_of(parts_of(text).code), all = lines_of(text);
        bool inside = false;    // a namespace, which clang-format names in a comment at its end
        for (size_t i = 0; i < code.size(); i++) {
            if (code[i].starts_with("namespace ") && code[i].find('{') != std::string::npos) inside = true;
            if (code[i].starts_with("}") && all[i].find("// namespace") != std::string::npos) inside = false;
            std::istringstream words(code[i]);
            std::string kind, name;
            words >> kind >> name;
            if (inside || (kind != "struct" && kind != "class" && kind != "union") ||
                code[i].find('{') == std::string::npos)
                continue;
            if (name.find_first_of(":<") != name.npos || isspace(static_cast<unsigned char>(code[i][0]))) continue;
            const auto [at, is_new] = first.insert({name, path});
            if (!is_new) found.push_back(breach(path, i + 1, "the type " + name + " is in " + at->second + ", too"));
        }
    }
    return found;
}

struct Rule {
    const char* name;
    Breaches (*find)(const House&);
};
const Rule RULES[] = {{"top level", top_level},
                      {"includes", includes},
                      {"file lengths", file_lengths},
                      {"columns", columns},
                      {"function lengths", function_lengths},
                      {"conditionals", conditionals},
                      {"rooms", rooms},
                      {"words", words},
                      {"page", page},
                      {"comments", comments},
                      {"exits", exits},
                      {"types", types}};

// Every rule's breaches, "rule: file:line: what".
Breaches breaches(const House& house) {
    Breaches all;
    for (const Rule& rule : RULES)
        for (auto& found : rule.find(house)) all.push_back(std::string(rule.name) + ": " + found);
    return all;
}
std::string repeated(const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; i++) all += text;
    return all;
}
}    // namespace

TEST_CASE("house: includes, sizes, conditionals, comments, exits") {
    const House house = this_house();
    REQUIRE(house.count("base/common.h"));
    for (auto& found : breaches(house)) FAIL_CHECK(found);
}

TEST_CASE("house: each rule finds what breaks it, and nothing else") {
    const House house = {
        {"README.md", repeated("x", 200)},
        {".ci/run", "make\n"},
        {"main.cpp", "#include \"base/a.h\"\nint main() { _exit(0); }\n"},
        {"gpt.h", "#include \"layers/ops.h\"\n"},
        {"base/a.h", "#include <vector>\nvoid exits();    // offers \"exit(1)\"\n"},
        {"base/b.cpp", "#include \"a.h\"\nstd::string s = \"exit(1) // of\";\nint big = 1'000;    // The { of big.\n"},
        {"comm/comm.h", "#include \"base/a.h\"\n#if X\n#endif\n"},
        {"comm/x.cu", "#include \"layers/convert.cuh\"\n"},
        {"layers/convert.cuh", ""},
        {"layers/ops.h", "struct Long {\n" + repeated("    int x() { return 1; }\n", 100) + "};\n"},
        {"test/test_a.cpp", "#include \"comm/comm.h\"\nvoid f() { abort(); }\n"},
    };
    CHECK(breaches(house) == Breaches{});

    struct Case {
        const char* path;
        std::string text;
        Breaches found;
    };
    const std::string at_70 = "Foo::Foo(int a)\n    : a{a}, b(1) {\n" + repeated("    f();\n", 67) + "}\n";
    const std::string at_71 = "\nFoo::Foo(int a)\n    : a{a}, b(1) {\n" + repeated("    f();\n", 68) + "}\n";
    const std::string if_29 = repeated("#ifdef X\n#elif Y\n#else\n#endif\n// #if\n", 29);
    const Case cases[] = {
        {"base/a.h", "\n#include \"layers/ops.h\"\n", {"includes: base/a.h:2: base may not include layers/ops.h"}},
        {"comm/x.cu", " # include \"layers/ops.h\"\n", {"includes: comm/x.cu:1: comm may not include layers/ops.h"}},
        {"layers/ops.h", "#include \"gpt.h\"\n", {"includes: layers/ops.h:1: layers may not include gpt.h"}},
        {"layers/ops.h", "#include <gpt.h>\n", {"includes: layers/ops.h:1: layers may not include gpt.h"}},
        {"base/a.h", "#include \"gone.h\"\n", {"includes: base/a.h:1: no file gone.h"}},
        {"attic/x.h", "", {"includes: attic/x.h:1: no rule says what attic may include"}},
        {"base/a.h", repeated("\n", 449), {}},
        {"base/a.h", repeated("\n", 600), {"file lengths: base/a.h:600: the file has 600 lines or more"}},
        {"dev/x.h", "\n" + repeated("\xC3\xA9", 120), {}},
        {"dev/x.h", "\n" + repeated("\xC3\xA9", 121), {"columns: dev/x.h:2: 121 columns"}},
        {"dev/x.h", "    //" + repeated("\xC3\xA9", 94) + "\n", {}},
        {"dev/x.h", "    //" + repeated("\xC3\xA9", 95) + "\n", {"columns: dev/x.h:1: 101 columns"}},
        {"dev/x.py", "\n#" + repeated("x", 100) + "\n", {"columns: dev/x.py:2: 101 columns"}},
        {"base/b.cpp", at_70, {}},
        {"base/b.cpp", at_71, {"function lengths: base/b.cpp:2: a function of 71 lines"}},
        {"base/b.cpp",
         "TEST_CASE(\"x\") {" + repeated("\n", 70) + "}\n",
         {"function lengths: base/b.cpp:1: a function of 71 lines"}},
        {"base/b.cpp",
         "auto f = [](int x) {" + repeated("\n", 70) + "};\n",
         {"function lengths: base/b.cpp:1: a function of 71 lines"}},
        {"base/b.cpp",
         "struct S { int f() {" + repeated("\n", 70) + "} };\n",
         {"function lengths: base/b.cpp:1: a function of 71 lines"}},
        {"base/b.cpp", "int x[] = {f(1)," + repeated("\n", 100) + "};\n", {}},
        {"base/b.cpp", "\n}", {"function lengths: base/b.cpp:2: braces do not match: functions cannot be measured"}},
        {"base/b.cpp", if_29, {}},
        {"base/b.cpp", "int x;    // of y\n", {"comments: base/b.cpp:1: a comment begins with 'of': // of y"}},
        {"base/b.cpp", "\n// Of y.\n", {"comments: base/b.cpp:2: a comment begins with 'of': // Of y."}},
        {"base/b.cpp", "// a part\n// of y.\n", {}},
        {"base/b.cpp",
         "\nvoid f() { std::exit (1); }\n",
         {"exits: base/b.cpp:2: exit: only main.cpp ends the process"}},
        {"comm/x.cu", "\nstruct Long {\n};\n", {"types: layers/ops.h:1: the type Long is in comm/x.cu, too"}},
        {"comm/x.cu", "namespace {\nstruct Long {\n};\n}    // namespace\n", {}},
        {"comm/x.cu", "struct Long;\nstruct Long::Inner {\n};\n", {}},
        {"base/b.cpp", "void f() { assert(x); }\n", {"exits: base/b.cpp:1: assert: only main.cpp ends the process"}},
    };
    for (const Case& c : cases) {
        House broken = house;
        broken[c.path] = c.text;
        INFO(c.path << ":\n" << c.text);
        CHECK(breaches(broken) == c.found);
    }
    House crowded = house;
    for (int i = 0; i < 14; i++) crowded["entry" + std::to_string(i)] = "";
    CHECK(breaches(crowded).size() == 1);    // 21 entries
    crowded.erase("entry0");
    CHECK(breaches(crowded) == Breaches{});
    House forked = house;
    forked["base/b.cpp"] = if_29 + "#if X\n#endif\n";
    CHECK(breaches(forked).size() == 31);    // one for each conditional
}

// .clang-format is Debian 12's clang-format's; other versions break lines elsewhere.
TEST_CASE("house: every source is as clang-format 14 lays it out") {
    if (run_process({"sh", "-c", "clang-format --version | grep -q 'version 14\\.'"}).exit_code != 0)
        SKIP("clang-format 14 is not installed");
    std::vector<std::string> command = {"clang-format", "--dry-run", "-Werror"};
    for (auto& [path, text] : this_house())
        if (is_source(path) && !has_ending(path, {".inc"})) command.push_back(path);
    const ProcessResult result = run_process(command);
    CHECK_MESSAGE(result.exit_code == 0, "clang-format -i FILE mends these:\n", result.err.substr(0, 4000));
}
