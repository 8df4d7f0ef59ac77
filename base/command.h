// command.h - a command is a list of flag rows and a function. Parsing, ranges, --config, run.toml (command.cpp),
// --help (help.cpp), shell completion and the manual page (completion.cpp) all come from the rows.
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common.h"

enum class Level { common, expert };    // expert: `--help all` shows it, `--help` does not

struct Flag {
    std::string name;    // "--lr"; a positional has no dashes: "RUN"
    std::variant<bool*, int*, int64_t*, double*, std::string*, std::vector<std::string>*> to;    // holds the default
    std::string help;
    double min = -1e18, max = 1e18;    // numbers only
    std::vector<std::string> choices =
        {};    // a string is one of them; for a whole number: one word that stands for min
    bool required = false;
    char letter = 0;           // 'n': -n means the same
    std::string group = {};    // the heading above it in help; rows of a group stand together
    // Rules (flag_rule) on flags of the same command. needs: one flag of each rule. excludes: all flags of all rules.
    std::vector<std::string> needs = {}, excludes = {};
    std::vector<std::string> required_unless = {};    // one of these flags, or the row itself, is required
    Level level = Level::common;
};
inline bool is_positional(const Flag& f) { return f.name[0] != '-'; }
template <class V> bool holds(const Flag& f) { return std::holds_alternative<V*>(f.to); }
inline bool is_integer(const Flag& f) { return holds<int>(f) || holds<int64_t>(f); }
struct FlagGroup {
    const char* heading;
    std::vector<Flag> rows;
    std::vector<Flag> expert = {};    // rows that get Level::expert
};
std::vector<Flag> flag_groups(const std::vector<FlagGroup>& groups);    // all rows, each with its heading

struct Command {
    std::string name, summary, example;
    std::vector<Flag> flags = {};
    std::function<Status()> run = {};
    // How the flags were set, filled in before run: TOML of every flag's resolved value.
    std::string* resolved = nullptr;
    std::vector<std::string>* given = nullptr;    // likewise: the names of the flags that were set
    bool removes_temporaries = false;             // where a signal stops it (base/interrupt.h)
    std::vector<std::string> retired = {};        // keys of older versions' run.toml: passed over, with a note
};

// Whether Command::given holds this flag.
inline bool was_given(const std::vector<std::string>& given, std::string_view flag) {
    return std::find(given.begin(), given.end(), flag) != given.end();
}
inline bool has_options(const Command& c) { return !std::all_of(c.flags.begin(), c.flags.end(), is_positional); }

// base/completion.cpp; they read the table of all commands, which must stay where it is.
Command completion_command(const std::vector<Command>* commands);
Command man_command(const std::vector<Command>* commands, const char* version, const char* date);
Command help_command(const std::vector<Command>* commands);    // base/help.cpp

// ---- base/command.cpp -----------------------------------------------------------------------------------------------

// One flag from text; a list takes any number of values, everything else one. Numbers: 1000, 1_000, 1e6, 0.5M, 4k; not
// nan, not inf. Exit 2: what was expected, what was found.
Status flag_set(const Flag& flag, const std::vector<std::string>& values);
// All flags from the arguments after the command's name and, for those not given there, from the file of --config. The
// value is false where --help was asked for. Exit 2 naming the flag, or the file, its line and the key; 3: unreadable.
// The flags' rules hold for both sources alike.
Result<bool> command_parse(const Command& command, const std::vector<std::string>& args);
// The lines of a flat TOML file (key = value) into the rows, except those that `given` names, to which it adds its own.
Status command_read_toml(const Command& command, std::string_view toml, const std::string& name,
                         std::vector<const Flag*>* given);
std::string command_write_toml(const Command& command);    // reads back to the same bits
// A rule in words: "--csv, --seq-len or --format text: why" names three flags, the third one with a value.
struct FlagRule {
    std::vector<std::string> flags;
    std::string why;
};
FlagRule flag_rule(const std::string& text);
// The rows' values as in TOML. Before the arguments are read, they are the defaults.
std::vector<std::string> flag_values(const std::vector<Flag>& rows);
// Checks the rules of rows. A flag is set if its value is not its default, so that run.toml, which has all flags, reads
// back. In a rule, a flag with a value counts if it has this value; a rule on a flag that is not among the rows does
// not apply. changed, if not null: only its own rules, and rules that exclude it, are checked. Exit 2, naming both.
Status check_rules(const std::vector<Flag>& rows, const std::vector<std::string>& defaults,
                   const Flag* changed = nullptr);
// "--lr X", "--tokens, -n N", "FILE...": how a row is written; and what it means: needs, help, choices, default. Ranges
// are for messages.
std::string flag_form(const Flag& flag);
std::string flag_meaning(const Flag& flag);
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);    // "" where nothing is near
std::string join(const std::vector<std::string>& words, const char* between);

// ---- base/help.cpp --------------------------------------------------------------------------------------------------

extern const char* const CONFIG_HELP;    // what --config is, which every command with options has
struct ExitMeaning {
    const char *codes, *meaning;
};
extern const ExitMeaning EXIT_MEANINGS[9];    // enum Exit in words
// Words of a text in lines of at most `width` columns (a longer word stays whole); each line but the first begins with
// `indent` spaces.
std::string wrap(const std::string& text, int width, int indent);
// A shell command in lines that end with a backslash; two spaces or more part two commands.
std::string wrap_shell(const std::string& example, int width, const std::string& indent);
std::string command_usage(const Command& command);    // "flatgpt train --data TEXT [options]"
// The text of --help; expert: of --help all.
std::string command_help(const Command& command, int width = 80, Level level = Level::common);
std::string commands_help(const std::vector<Command>& commands, int width = 80);    // the text of `flatgpt --help`
