// command.cpp - reads arguments and the TOML of --config into the variables of a command's flags
// (command.h), and writes their values as text.
#include "command.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <climits>
#include <cstring>
#include <optional>

#include "console.h"
#include "file.h"
#include "toml.h"

using Strings = std::vector<std::string>;

std::string join(const Strings& words, const char* between) {
    std::string text;
    for (auto& w : words) text += (text.empty() ? "" : between) + w;
    return text;
}

namespace {
// Quotes text of unknown length and content for a message.
std::string in_quotes(const std::string& text) {
    return "'" + escape_control(text.size() > 60 ? text.substr(0, 60) + "..." : text) + "'";
}
bool is_list(const Flag& f) { return holds<Strings>(f); }
bool is_text(const Flag& f) { return holds<std::string>(f) || is_list(f); }

// The name in a TOML file: "--val-fraction" is val-fraction, "RUN" is run.
std::string key(const Flag& f) {
    std::string k = f.name.substr(f.name.find_first_not_of('-'));
    for (char& c : k) c = char(tolower(static_cast<unsigned char>(c)));
    return k;
}
std::string dashed(std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    return name;
}
}    // namespace

// ---- values -------------------------------------------------------------------------------------

namespace {
// Shortest text that parses back to the same bits.
std::string number_text(double x) {
    char text[64];
    return {text, std::to_chars(text, text + sizeof text, x).ptr};
}
std::string value_text(const Flag& f) {
    if (auto p = std::get_if<bool*>(&f.to)) return **p ? "true" : "false";
    if (auto p = std::get_if<int*>(&f.to)) return std::to_string(**p);
    if (auto p = std::get_if<int64_t*>(&f.to)) return std::to_string(**p);
    if (auto p = std::get_if<double*>(&f.to)) return number_text(**p);
    if (auto p = std::get_if<std::string*>(&f.to)) return **p;
    return join(*std::get<Strings*>(f.to), " ");
}
std::string toml_value(const Flag& f) {
    std::string value = value_text(f);
    if (is_list(f)) {
        value.clear();
        for (auto& s : *std::get<Strings*>(f.to)) value += (value.empty() ? "" : ", ") + toml_string(s);
        return "[" + value + "]";
    }
    if (is_text(f)) return toml_string(value);
    return holds<double>(f) && value.find_first_of(".e") == std::string::npos ? value + ".0" : value;
}
// Describes a flag's values: "a whole number of at least 1", "one of a, b"; "" for free text.
std::string wanted(const Flag& f) {
    if (holds<bool>(f)) return "true or false";
    if (is_text(f)) return f.choices.empty() ? "" : "one of " + join(f.choices, ", ");
    bool low = f.min > -1e18, high = f.max < 1e18;
    std::string kind = is_integer(f) ? "a whole number" : "a number";
    std::string from = number_text(f.min), to = number_text(f.max);
    if (low && high) return kind + " from " + from + " to " + to;
    return kind + (low ? " of at least " + from : high ? " of at most " + to : "");
}
// Rewrites 1_000, 4k and 0.5M as 1000, 4e3, 0.5e6. Empty if the text is no finite number.
std::optional<std::string> plain_number(std::string text) {
    auto digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
    for (size_t i = text.size(); i-- > 0;) {
        if (text[i] != '_') continue;
        if (i == 0 || !digit(i - 1) || !digit(i + 1)) return {};
        text.erase(i, 1);
    }
    if (text.empty() || text.size() > 400) return {};
    if (const char* unit = strchr("kKMG", text.back())) {
        text.pop_back();
        if (text.find_first_of("eE") != std::string::npos) return {};
        text += *unit == 'G' ? "e9" : *unit == 'M' ? "e6" : "e3";
    }
    if (text.find_first_not_of("0123456789.eE+-") != std::string::npos) return {};    // inf, nan, hexadecimal
    return text;
}
template <class X> std::optional<X> all_of_it(const std::optional<std::string>& text) {
    X x;
    if (!text) return {};
    auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), x);
    if (error != std::errc() || end != text->data() + text->size()) return {};
    return x;
}
std::optional<double> read_number(const std::string& text) { return all_of_it<double>(plain_number(text)); }
std::optional<int64_t> read_integer(const std::string& text) {
    if (auto n = all_of_it<int64_t>(plain_number(text))) return n;
    auto x = read_number(text);    // 1e6, 0.5M: exact up to 2^53
    if (!x || *x != std::floor(*x) || std::fabs(*x) > 0x1p53) return {};
    return int64_t(*x);
}
// Returns false if the text is no value of the flag's kind and range.
bool set_value(const Flag& f, const std::string& text) {
    auto inside = [&](double x) { return x >= f.min && x <= f.max; };
    if (auto p = std::get_if<bool*>(&f.to)) {
        **p = text == "true";
        return text == "true" || text == "false";
    }
    if (auto p = std::get_if<double*>(&f.to)) {
        auto x = read_number(text);
        if (!x || !inside(*x)) return false;
        **p = *x;
        return true;
    }
    if (is_integer(f)) {
        auto n = read_integer(text);
        if (!f.choices.empty() && text == f.choices[0]) n = int64_t(f.min);
        if (!n || !inside(double(*n)) || (holds<int>(f) && (*n > INT_MAX || *n < INT_MIN))) return false;
        if (auto p = std::get_if<int*>(&f.to)) **p = int(*n);
        else *std::get<int64_t*>(f.to) = *n;
        return true;
    }
    if (text.find('\0') != std::string::npos) return false;
    if (!f.choices.empty() && std::find(f.choices.begin(), f.choices.end(), text) == f.choices.end()) return false;
    if (auto p = std::get_if<std::string*>(&f.to)) **p = text;
    else std::get<Strings*>(f.to)->push_back(text);
    return true;
}
}    // namespace

Status flag_set(const Flag& f, const Strings& values) {
    if (is_list(f)) std::get<Strings*>(f.to)->clear();
    else if (values.size() > 1) return fail(Exit::usage, "%s: given more than once", f.name.c_str());
    for (auto& v : values) {
        if (set_value(f, v)) continue;
        std::string expected = wanted(f);
        if (holds<int>(f) && f.max > INT_MAX && read_integer(v) && std::fabs(double(*read_integer(v))) > INT_MAX)
            expected += " and at most " + std::to_string(INT_MAX);
        return fail(Exit::usage, "%s: expected %s, found %s%s", f.name.c_str(),
                    expected.empty() ? "text without NUL" : expected.c_str(), in_quotes(v).c_str(),
                    did_you_mean(v, f.choices).c_str());
    }
    return {};
}

// ---- arguments ----------------------------------------------------------------------------------

namespace {
// Levenshtein distance: the least number of letters to insert, delete or replace.
size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); j++) row[j] = j;
    for (size_t i = 1; i <= a.size(); i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); j++) {
            size_t up = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
            diagonal = up;
        }
    }
    return row[b.size()];
}
}    // namespace

std::string did_you_mean(const std::string& word, const Strings& known) {
    // Pairs of another program's word and ours. The words have no dashes, because keys of a TOML
    // file have none. The pairs are not in the flag rows, because commands and choices have no row,
    // and because several commands share a row.
    static const std::pair<const char*, const char*> ELSEWHERE[] = {
        {"generate", "sample"},     {"run", "sample"},
        {"complete", "sample"},     {"evaluate", "eval"},
        {"perplexity", "eval"},     {"finetune", "train"},
        {"pretrain", "train"},      {"quantize", "convert"},
        {"export", "convert"},      {"picture", "svg"},
        {"list", "runs"},           {"learning-rate", "lr"},
        {"batch-size", "batch"},    {"micro-batch-size", "batch"},
        {"max-tokens", "tokens"},   {"max-new-tokens", "tokens"},
        {"n-predict", "tokens"},    {"max-steps", "steps"},
        {"block-size", "seq-len"},  {"sequence-length", "seq-len"},
        {"dataset", "data"},        {"output", "out"},
        {"warmup-steps", "warmup"}, {"gpu", "cuda"},
        {"nvidia", "cuda"}};
    auto bare = [](const std::string& name) { return name.starts_with("--") ? name.substr(2) : name; };
    for (auto& [theirs, ours] : ELSEWHERE)
        for (auto& k : known)
            if (bare(word) == theirs && bare(k) == ours) return "; did you mean " + k + "?";
    std::string best;
    size_t distance = std::max<size_t>(2, word.size() / 3) + 1;
    auto alike = [&](const std::string& k) {    // number of equal first letters, which breaks ties
        return std::mismatch(word.begin(), word.end(), k.begin(), k.end()).first - word.begin();
    };
    for (auto& k : known) {
        bool prefix = word.size() >= 3 && k.compare(0, word.size(), word) == 0;
        size_t d = word.size() > 100 ? distance : prefix ? 1 : edit_distance(word, k);
        const bool nearer = d < distance || (d == distance && !best.empty() && alike(k) > alike(best));
        if (nearer) distance = d, best = k;
    }
    return best.empty() ? "" : "; did you mean " + best + "?";
}

namespace {
// Corrects three habits of CLI11, which accepts an option's name as the value of the previous
// option, treats `--text=` as `--text`, and does not know that `--a_b` means `--a-b`.
Status mend(const CLI::App& app, Strings& args) {
    auto option = [&](const std::string& word) {
        return word[0] == '-' ? app.get_option_no_throw(dashed(word)) : nullptr;
    };
    for (size_t i = 0; i < args.size() && args[i] != "--"; i++) {
        size_t equals = args[i].find('=');
        const CLI::Option* o = option(args[i].substr(0, equals));
        if (!o) continue;
        bool empty = equals + 1 == args[i].size(), alone = equals == std::string::npos, takes = o->get_expected() > 0;
        if (takes ? alone && (i + 1 == args.size() || option(args[i + 1])) : empty)
            return fail(Exit::usage, "%s: a value is missing", o->get_name().c_str());
        args[i].replace(0, equals, o->get_name());
        if (takes && empty) args[i].pop_back(), args.insert(args.begin() + ptrdiff_t(i) + 1, "");
        if (takes && (empty || alone)) i++;
    }
    return {};
}
// Finds out whether the shell has expanded a pattern, as in --data a.bin b.bin. Returns the
// arguments to type instead, or "" if `extra` is not one of these expanded words.
std::string glob_hint(const std::vector<const Flag*>& rows, const Strings& args, const std::string& extra) {
    auto folder = [](const std::string& path) { return path.substr(0, path.rfind('/') + 1); };
    auto ending = [](const std::string& path) {
        size_t dot = path.rfind('.');
        return dot == std::string::npos ? "" : path.substr(dot);
    };
    for (size_t i = 0; i < args.size(); i++) {
        const size_t equals = args[i].find('=');
        const std::string name = args[i].substr(0, equals);
        auto row = std::find_if(rows.begin(), rows.end(), [&](const Flag* f) { return f->name == name; });
        if (row == rows.end() || is_positional(**row) || !holds<std::string>(**row)) continue;
        const std::string first = equals != std::string::npos ? args[i].substr(equals + 1)
                                  : i + 1 < args.size()       ? args[i + 1]
                                                              : "";
        std::string pattern = first, tail = ending(first);
        bool reached = false, alike = false;
        for (size_t k = i + (equals == std::string::npos ? 2 : 1); k < args.size() && args[k][0] != '-'; k++) {
            reached |= args[k] == extra;
            if (tail.empty() || folder(args[k]) != folder(first) || ending(args[k]) != tail) continue;
            alike = true;
            size_t same = 0, most = std::min(pattern.size(), args[k].size()) - tail.size();
            while (same < most && pattern[same] == args[k][same]) same++;
            pattern = pattern.substr(0, same) + tail;
        }
        if (!reached || !alike) continue;
        pattern.insert(pattern.size() - tail.size(), "*");
        return "; the shell has expanded a pattern: quote it, " + name + " '" +
               escape_control(pattern.size() > 80 ? "*" + tail : pattern) + "'";
    }
    return "";
}
// Reads the arguments into the rows; `given` gets the rows that were set. False: --help was asked.
Result<bool> read_arguments(const Command& command, const Flag& config, Strings args, std::vector<const Flag*>* given) {
    std::vector<const Flag*> rows = {&config};
    for (auto& f : command.flags) rows.push_back(&f);
    CLI::App app;    // with --help
    app.allow_extras();
    app.option_defaults()->take_all();    // flag_set reports too many values
    Strings known = {"--help"};
    for (auto f : rows) {
        const std::string names = f->letter ? std::string("-") + f->letter + "," + f->name : f->name;
        CLI::Option* o = holds<bool>(*f) ? app.add_flag(names) : app.add_option(names);
        if (!is_positional(*f)) known.push_back(f->name);
        else if (is_list(*f)) o->expected(int(args.size()) + 1);    // not "unlimited", which would split [a,b]
    }
    TRY(mend(app, args));
    try {
        app.parse(Strings(args.rbegin(), args.rend()));
    } catch (const CLI::CallForHelp&) { return false; } catch (const CLI::ParseError& e) {
        return fail(Exit::usage, "%s", e.what());
    }
    for (auto& extra : app.remaining()) {
        if (extra == "--") continue;
        if (extra[0] != '-')
            return fail(Exit::usage, "unexpected argument %s%s", in_quotes(extra).c_str(),
                        glob_hint(rows, args, extra).c_str());
        std::string name = dashed(extra.substr(0, extra.find('=')));
        return fail(Exit::usage, "unknown option %s%s", in_quotes(name).c_str(), did_you_mean(name, known).c_str());
    }
    for (auto f : rows) {
        const Strings& values = app.get_option(f->name)->results();
        if (values.empty()) continue;
        TRY(flag_set(*f, values));
        given->push_back(f);
    }
    return true;
}
}    // namespace

Result<bool> command_parse(const Command& command, const Strings& args) {
    std::string config;
    const Strings defaults = flag_values(command.flags);
    const Flag config_row = {.name = "--config", .to = &config, .help = ""};
    std::vector<const Flag*> given;
    if (!TRY(read_arguments(command, config_row, args, &given))) return false;
    if (std::count(given.begin(), given.end(), &config_row)) {
        const std::string toml = TRY(read_file(config, 1 << 20));
        TRY(command_read_toml(command, toml, config, &given));
    }
    for (auto& f : command.flags)
        if (f.required && (!std::count(given.begin(), given.end(), &f) || value_text(f).empty()))
            return fail(Exit::usage, "%s is required: %s", f.name.c_str(), f.help.c_str());
    TRY(check_rules(command.flags, defaults));
    if (command.given)
        for (auto f : given) command.given->push_back(f->name);
    if (command.resolved) *command.resolved = command_write_toml(command);
    return true;
}

// ---- TOML ---------------------------------------------------------------------------------------

Status command_read_toml(const Command& command, std::string_view toml, const std::string& name,
                         std::vector<const Flag*>* given) {
    const std::vector<TomlSetting> settings = TRY(toml_parse(toml, name));
    auto wrong = [&](int line, const std::string& what) {
        return fail(Exit::usage, "%s:%d: %s", escape_control(name).c_str(), line, what.c_str());
    };
    Strings seen, known;
    for (auto& f : command.flags) known.push_back(key(f));
    std::vector<const Flag*> from_arguments = *given;
    for (auto& s : settings) {
        std::string k = dashed(s.key);
        auto row = std::find(known.begin(), known.end(), k);
        if (std::count(command.retired.begin(), command.retired.end(), k)) {
            fprintf(stderr, "%s:%d: %s is an option no more; it is passed over\n", escape_control(name).c_str(), s.line,
                    k.c_str());
            continue;
        }
        if (row == known.end()) return wrong(s.line, "unknown key " + in_quotes(s.key) + did_you_mean(k, known));
        if (std::count(seen.begin(), seen.end(), k)) return wrong(s.line, "the key " + k + " is there twice");
        seen.push_back(k);
        const Flag& f = command.flags[size_t(row - known.begin())];
        if (s.text != is_text(f) || s.list != is_list(f))
            return wrong(s.line, k + ": expected " +
                                     (is_list(f)   ? "a list of strings"
                                      : is_text(f) ? "a string in quotes"
                                                   : wanted(f) + " without quotes"));
        if (std::count(from_arguments.begin(), from_arguments.end(), &f)) continue;
        if (Status status = flag_set(f, s.values); !status.ok()) return wrong(s.line, status.message);
        given->push_back(&f);
    }
    return {};
}

std::string command_write_toml(const Command& command) {
    std::string out;
    for (auto& f : command.flags) out += key(f) + " = " + toml_value(f) + "\n";
    return out;
}

// ---- rules --------------------------------------------------------------------------------------

namespace {
std::string alternatives(const Strings& words) {    // "a", "a or b", "a, b or c"
    if (words.size() < 2) return join(words, "");
    return join(Strings(words.begin(), words.end() - 1), ", ") + " or " + words.back();
}
// A flag of the command, named by a rule. row: null if the command has no such flag. value: the
// value that the rule requires; "": any value but the default.
struct RuleFlag {
    const Flag* row;
    std::string value;
};
RuleFlag rule_flag(const std::vector<Flag>& rows, const std::string& words) {
    const size_t space = std::min(words.find(' '), words.size());
    const std::string name = words.substr(0, space);
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Flag& f) { return f.name == name; });
    return {row == rows.end() ? nullptr : &*row, words.substr(std::min(space + 1, words.size()))};
}
}    // namespace

FlagRule flag_rule(const std::string& text) {
    const size_t colon = std::min(text.find(": "), text.size());
    std::string flags = text.substr(0, colon);
    if (const size_t last = flags.rfind(" or "); last != std::string::npos) flags.replace(last, 4, ", ");
    FlagRule rule = {{}, text.substr(std::min(colon + 2, text.size()))};
    for (size_t at = 0, end; at < flags.size(); at = end + 2) {
        end = std::min(flags.find(", ", at), flags.size());
        rule.flags.push_back(flags.substr(at, end - at));
    }
    return rule;
}
Strings flag_values(const std::vector<Flag>& rows) {
    Strings values;
    for (auto& f : rows) values.push_back(toml_value(f));
    return values;
}
Status check_rules(const std::vector<Flag>& rows, const Strings& defaults, const Flag* changed) {
    auto is_set = [&](const Flag& f) { return toml_value(f) != defaults[size_t(&f - rows.data())]; };
    auto holds_for = [&](const std::string& words) {
        const auto [row, value] = rule_flag(rows, words);
        return value.empty() ? is_set(*row) : value_text(*row) == value;
    };
    auto is_here = [&](const std::string& words) { return rule_flag(rows, words).row != nullptr; };
    for (auto& f : rows) {
        if (!is_set(f)) continue;
        for (auto& text : f.needs) {
            const Strings flags = flag_rule(text).flags;
            if ((changed && changed != &f) || !std::all_of(flags.begin(), flags.end(), is_here)) continue;
            if (std::none_of(flags.begin(), flags.end(), holds_for))
                return fail(Exit::usage, "%s needs %s", f.name.c_str(), text.c_str());
        }
        for (auto& text : f.excludes)
            for (auto& other : flag_rule(text).flags) {
                if (!is_here(other) || !holds_for(other)) continue;
                if (changed && changed != &f && changed != rule_flag(rows, other).row) continue;
                const std::string why = flag_rule(text).why;
                return fail(Exit::usage, "%s and %s exclude each other%s%s", f.name.c_str(), other.c_str(),
                            why.empty() ? "" : ": ", why.c_str());
            }
    }
    for (auto& f : rows) {
        Strings names = f.required_unless;
        names.insert(names.begin(), f.name);
        if (names.size() > 1 && std::none_of(names.begin(), names.end(), holds_for))
            return fail(Exit::usage, "%s is required: %s", alternatives(names).c_str(), f.help.c_str());
    }
    return {};
}

// ---- rows in words ------------------------------------------------------------------------------

std::vector<Flag> flag_groups(const std::vector<FlagGroup>& groups) {
    std::vector<Flag> all;
    for (auto& g : groups) {
        for (auto& row : g.rows) {
            all.push_back(row);
            all.back().group = g.heading;
        }
        for (auto& row : g.expert) {
            all.push_back(row);
            all.back().group = g.heading;
            all.back().level = Level::expert;
        }
    }
    return all;
}

std::string flag_form(const Flag& f) {
    if (is_positional(f)) return f.name + (is_list(f) ? "..." : "");
    const bool off = holds<bool>(f) && value_text(f) == "true";
    const char* kind = off ? "=false" : holds<bool>(f) ? "" : is_text(f) ? " TEXT" : is_integer(f) ? " N" : " X";
    return f.name + (f.letter ? std::string(", -") + f.letter : "") + kind;
}
std::string flag_meaning(const Flag& f) {
    std::string about, value = value_text(f);
    for (auto& text : f.needs) about += "with " + alternatives(flag_rule(text).flags) + ": ";
    about += f.help;
    if (is_text(f) && !f.choices.empty()) about += "; " + wanted(f);
    if (is_list(f) && !is_positional(f)) about += "; may be repeated";
    if (f.required) return about + " (required)";
    if (!f.required_unless.empty()) return about + " (required, or " + alternatives(f.required_unless) + ")";
    if (value.empty() || (holds<bool>(f) && value == "false")) return about;
    if (auto p = std::get_if<double*>(&f.to)) {    // 0.0006, not 6e-04
        char text[64];
        if (**p == 0 || (std::fabs(**p) >= 1e-6 && std::fabs(**p) < 1e9))
            value = {text, std::to_chars(text, text + sizeof text, **p, std::chars_format::fixed).ptr};
    } else if (is_integer(f)) {
        if (!f.choices.empty() && read_number(value) == f.min) value = f.choices[0];
        else if (value.size() > 6 && value.ends_with("000000")) value.replace(value.size() - 6, 6, "M");
        else if (value.size() > 4 && value.ends_with("000")) value.replace(value.size() - 3, 3, "k");
    }
    return about + " (default " + escape_control(value) + ")";
}
