// command.h - a command is a list of flag rows and a function. Parsing, ranges, --config and
// run.toml (command.cpp), --help (help.cpp), shell completion and the manual page (completion.cpp)
// come from the rows.
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common.h"

enum class Level { common, expert };    // expert: shown by `--help all` only

struct Flag {
    std::string name;    // "--lr"; without dashes if positional: "RUN"
    std::variant<bool*, int*, int64_t*, double*, std::string*, std::vector<std::string>*>
        to;    // variable to set, which holds the default
    std::string help;
    double min = -1e18, max = 1e18;           // numbers only
    std::vector<std::string> choices = {};    // allowed strings; for a whole number: a word for min
    bool required = false;
    char letter = 0;           // short form: 'n' for -n; 0: none
    std::string group = {};    // heading above it in help
    // Rules (flag_rule) on flags of the same command. At least one flag of each rule in `needs`
    // must be set, and no flag of any rule in `excludes`.
    std::vector<std::string> needs = {}, excludes = {};
    std::vector<std::string> required_unless = {};    // alternatives: this flag or one of them is required
    Level level = Level::common;
};
inline bool is_positional(const Flag& f) { return f.name[0] != '-'; }
template <class V> bool holds(const Flag& f) { return std::holds_alternative<V*>(f.to); }
inline bool is_integer(const Flag& f) { return holds<int>(f) || holds<int64_t>(f); }
struct FlagGroup {
    const char* heading;
    std::vector<Flag> rows;
    std::vector<Flag> expert = {};    // these rows get Level::expert
};
std::vector<Flag> flag_groups(const std::vector<FlagGroup>& groups);    // all rows, with their heading as group

struct Command {
    std::string name, summary, example;
    std::vector<Flag> flags = {};
    std::function<Status()> run = {};
    // Filled in before `run`, if not null: every flag's value, as TOML.
    std::string* resolved = nullptr;
    std::vector<std::string>* given = nullptr;    // filled in before `run`: names of the flags set
    bool removes_temporaries = false;             // on a signal (base/interrupt.h)
    std::vector<std::string> retired = {};        // keys of older run.toml files, ignored with a note
};

// Whether `given` (Command::given) holds this flag.
inline bool was_given(const std::vector<std::string>& given, std::string_view flag) {
    return std::find(given.begin(), given.end(), flag) != given.end();
}
inline bool has_options(const Command& c) { return !std::all_of(c.flags.begin(), c.flags.end(), is_positional); }

// completion_command and man_command are in base/completion.cpp. `commands`, the table of all
// commands, must outlive the returned ones.
Command completion_command(const std::vector<Command>* commands);
Command man_command(const std::vector<Command>* commands, const char* version, const char* date);
Command help_command(const std::vector<Command>* commands);    // base/help.cpp

// ---- base/command.cpp ---------------------------------------------------------------------------

// Sets one flag from text. A list accepts any number of values, every other flag one. Numbers:
// 1000, 1_000, 1e6, 0.5M, 4k; not nan, not inf. Exit 2: the message has the expected and found
// value.
Status flag_set(const Flag& flag, const std::vector<std::string>& values);
// Sets flags from the arguments after the command's name, and the other flags from the file of
// --config. The result is false if --help was given. The flags' rules are checked over both
// sources together. Exit 2: names the flag, or the file, line and key; 3: the file is unreadable.
Result<bool> command_parse(const Command& command, const std::vector<std::string>& args);
// Sets rows, except those in `given`, from a flat TOML file (key = value), and adds them to
// `given`.
Status command_read_toml(const Command& command, std::string_view toml, const std::string& name,
                         std::vector<const Flag*>* given);
std::string command_write_toml(const Command& command);    // parses back to the same bits
// A parsed rule: "--csv, --seq-len or --format text: why" names three flags, the third with a
// value.
struct FlagRule {
    std::vector<std::string> flags;
    std::string why;
};
FlagRule flag_rule(const std::string& text);
// The rows' current values as TOML text; before the arguments are read, the defaults.
std::vector<std::string> flag_values(const std::vector<Flag>& rows);
// Checks the rows' rules. A flag counts as set if its value differs from its default, so that
// run.toml, which has all flags, can be read again. Where a rule names a flag with a value
// ("--format text"), only this value counts as set. In `excludes`, flags outside of the rows are
// ignored. In `needs`, a rule that names such a flag is skipped. If `changed` is not null, other
// flags' `needs` are skipped, and all `excludes` between two other flags. Exit 2: the message names
// the rule's flags.
Status check_rules(const std::vector<Flag>& rows, const std::vector<std::string>& defaults,
                   const Flag* changed = nullptr);
// flag_form is how help shows a row: "--lr X", "--tokens, -n N", "FILE...". flag_meaning is the
// text that help shows behind it: needs, help, choices, default, but no range.
std::string flag_form(const Flag& flag);
std::string flag_meaning(const Flag& flag);
std::string did_you_mean(const std::string& word,
                         const std::vector<std::string>& known);    // "" if no known word is similar
std::string join(const std::vector<std::string>& words, const char* between);

// ---- base/help.cpp ------------------------------------------------------------------------------

extern const char* const CONFIG_HELP;    // help of --config, for every command with options
struct ExitMeaning {
    const char *codes, *meaning;
};
extern const ExitMeaning EXIT_MEANINGS[9];    // meanings of enum Exit's values
// Breaks a text into lines of at most `width` columns (a longer word stays whole). Each line but
// the first begins with `indent` spaces.
std::string wrap(const std::string& text, int width, int indent);
// A word of a shell command, in single quotes if the shell would change it.
std::string shell_quoted(const std::string& word);
// Breaks a shell command into lines that end with a backslash. Two spaces separate two commands.
std::string wrap_shell(const std::string& example, int width, const std::string& indent);
std::string command_usage(const Command& command);    // "flatgpt train --data TEXT [options]"
// Text of `flatgpt COMMAND --help`; with Level::expert, of `--help all`.
std::string command_help(const Command& command, int width = 80, Level level = Level::common);
std::string commands_help(const std::vector<Command>& commands, int width = 80);    // text of `flatgpt --help`
