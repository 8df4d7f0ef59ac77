// completion.cpp - shell completion (bash, zsh, fish) and the manual page, made from the flag rows.
#include <memory>

#include "command.h"

namespace {
void replace_all(std::string& text, const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
        text.replace(at, from.size(), to);
}
// Words that may follow a flag; after `help`, the commands' names.
std::vector<std::string> values(const std::vector<Command>& commands, const Command& c, const Flag& f) {
    if (c.name != "help") return f.choices;
    std::vector<std::string> names;
    for (auto& other : commands) names.push_back(other.name);
    return names;
}

// ---- shells ---------------------------------------------------------------------------------------------------------

std::string bash_completion(const std::vector<Command>& commands) {
    std::string after, flags, names;
    for (auto& c : commands) {
        std::vector<std::string> all = {"--help"};
        if (has_options(c)) all.push_back("--config");
        names += c.name + " ";
        for (auto& f : c.flags) {
            const std::string words = join(values(commands, c, f), " ");
            if (!is_positional(f)) all.push_back(f.name);
            if (words.empty()) continue;
            std::string before = c.name + ":" + (is_positional(f) ? c.name : f.name);
            if (f.letter) before += "|" + c.name + ":-" + f.letter;
            after += "    " + before + ") words='" + words + "' ;;\n";
        }
        flags += "    " + c.name + ":*) [[ $cur == -* ]] && words='" + join(all, " ") + "' ;;\n";
    }
    return "# source <(flatgpt completion bash)\n"
           "_flatgpt() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
           "    case $([ $COMP_CWORD = 1 ] || echo \"${COMP_WORDS[1]}\"):$prev in\n"
           "    :*) words='" +
           names + "--help --version' ;;\n" + after + flags +
           "    esac\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "}\n"
           "complete -o default -F _flatgpt flatgpt\n";    // -o default: file names where no word matches
}
std::string zsh_completion(const std::vector<Command>& commands) {
    std::string names, cases;
    auto plain = [](std::string text) {    // escapes for '...[...]'
        for (auto& [from, to] : {std::pair{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}})
            replace_all(text, from, to);
        return text;
    };
    for (auto& c : commands) {
        names += " '" + c.name + ":" + plain(c.summary) + "'";
        cases += "    " + c.name + ") _arguments '(-h --help)'{-h,--help}'[the options]'";
        if (has_options(c)) cases += " '--config[run.toml]:file:_files'";
        for (auto& f : c.flags) {
            const std::string words = join(values(commands, c, f), " ");
            const std::string value = words.empty() ? "_files" : "(" + words + ")";
            const std::string about = "[" + plain(f.help) + "]" + (holds<bool>(f) ? "'" : ":value:" + value + "'");
            const std::string letter = std::string("-") + f.letter;
            if (is_positional(f)) cases += " '*:" + f.name + ":" + value + "'";
            else if (!f.letter) cases += " \\\n        '" + f.name + about;
            else cases += " \\\n        '(" + letter + " " + f.name + ")'{" + letter + "," + f.name + "}'" + about;
        }
        cases += " ;;\n";
    }
    return "#compdef flatgpt\n"
           "# source <(flatgpt completion zsh), or as the file _flatgpt in a folder of $fpath\n"
           "_flatgpt() {\n"
           "    local -a commands=(" +
           names +
           ")\n"
           "    (( CURRENT == 2 )) && { _describe command commands; return; }\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $words[1] in\n" +
           cases +
           "    esac\n"
           "}\n"
           "if [[ $funcstack[1] == _flatgpt ]]; then _flatgpt \"$@\"; else compdef _flatgpt flatgpt; fi\n";
}
std::string fish_completion(const std::vector<Command>& commands) {
    std::string out = "# flatgpt completion fish | source\n";
    auto plain = [](std::string text) {    // escapes for '...'
        replace_all(text, "\\", "\\\\");
        replace_all(text, "'", "\\'");
        return text;
    };
    for (auto& c : commands) {
        out += "complete -c flatgpt -n __fish_use_subcommand -f -a " + c.name + " -d '" + plain(c.summary) + "'\n";
        std::string when = "complete -c flatgpt -n '__fish_seen_subcommand_from " + c.name + "'";
        out += when + " -l help -s h -d 'the options'\n";
        if (has_options(c)) out += when + " -l config -r -d 'run.toml'\n";
        for (auto& f : c.flags) {
            std::string words = join(values(commands, c, f), " ");
            if (!words.empty()) words = " -f -a '" + words + "'";
            std::string flag = is_positional(f) ? "" : " -l " + f.name.substr(2);
            if (f.letter) flag += std::string(" -s ") + f.letter;
            if (!flag.empty() && !holds<bool>(f)) flag += " -r";
            if (!(flag + words).empty()) out += when + flag + words + " -d '" + plain(f.help) + "'\n";
        }
    }
    return out;
}

// ---- the manual page ------------------------------------------------------------------------------------------------

// Escapes text for roff: hyphens stay hyphens, and no line begins with a request.
std::string roff(const std::string& text) {
    std::string out;
    for (char c : text) switch (c) {
            case '\\': out += "\\e"; break;
            case '-': out += "\\-"; break;
            case '\'': out += "\\(aq"; break;
            case '`': out += "\\(ga"; break;
            case '^': out += "\\(ha"; break;
            case '~': out += "\\(ti"; break;
            default: out += c;
        }
    return out.starts_with(".") ? "\\&" + out : out;
}
// Formats "--tokens, -n N": literal parts in bold, placeholders in italics.
std::string roff_form(const std::string& form) {
    std::string out;
    for (size_t at = 0, end; at < form.size(); at = end + 1) {
        end = std::min(form.find(' ', at), form.size());
        const std::string word = form.substr(at, end - at);
        const bool stands = word.find_first_of("abcdefghijklmnopqrstuvwxyz-") == std::string::npos;
        out += (out.empty() ? "" : " ") + std::string(stands ? "\\fI" : "\\fB") + roff(word) + "\\fR";
    }
    return out;
}
std::string tagged(const std::string& tag, const std::string& text) { return ".TP\n" + tag + "\n" + roff(text) + "\n"; }

std::string man_of(const Command& c) {
    std::string out = ".SH \"" + roff("flatgpt " + c.name) + "\"\n" + roff(c.summary) + "\n.PP\n" +
                      roff_form(command_usage(c)) + "\n";
    std::string group;
    for (auto& f : c.flags) {
        if (f.group != group) out += ".SS \"" + roff(f.group) + "\"\n";
        group = f.group;
        out += tagged(roff_form(flag_form(f)), flag_meaning(f));
    }
    std::string example = roff(wrap_shell(c.example, 70, ""));
    if (example.ends_with("\n")) example.pop_back();
    return out + ".PP\nExample:\n.PP\n.RS 4\n.nf\n" + example + "\n.fi\n.RE\n";
}

// Environment variables and exit codes, which no row describes.
std::string man_rest() {
    std::string out = ".SH \"OPTIONS OF ALL COMMANDS\"\n" +
                      tagged(roff_form("--help, -h"), "the options of a command") +
                      tagged(roff_form("--config TEXT"), CONFIG_HELP) + ".PP\n" +
                      roff("Numbers may be written as 1000, 1_000, 1e6, 0.5M or 4k.") + "\n";
    out += ".SH \"EXIT STATUS\"\n";
    for (auto& [codes, meaning] : EXIT_MEANINGS) out += tagged(std::string("\\fB") + codes + "\\fR", meaning);
    out += ".SH ENVIRONMENT\n";
    for (auto& [name, text] :
         {std::pair{"FLATGPT_ISA", "instruction set of a CPU's loops: base, avx2, avx512 or avx512bf16"},
          {"FLATGPT_AMX", "refuse: a CPU's products do without AMX; pretend: they take its path on any CPU, for tests"},
          {"FLATGPT_ATTENTION", "a GPU's attention: sm80, sm90 or plain"},
          {"FLATGPT_ATTENTION_ORDER", "any: the backward of sm90 adds in any order, so that results depend on timing"},
          {"FLATGPT_SAMPLER", "host: it chooses all tokens, where a GPU would draw them"},
          {"FLATGPT_TOKEN", "a secret that the ranks of a job share"},
          {"NO_COLOR", "set: no colors"}})
        out += tagged(std::string("\\fB") + name + "\\fR", text);
    return out;
}
std::string man_page(const std::vector<Command>& commands, const std::string& version, const std::string& date) {
    std::string out = ".TH FLATGPT 1 \"" + date + "\" \"flatgpt " + roff(version) +
                      "\" \"User Commands\"\n"
                      ".SH NAME\n"
                      "flatgpt \\- train GPT-style language models, talk with them and generate text\n"
                      ".SH SYNOPSIS\n"
                      "\\fBflatgpt\\fR \\fICOMMAND\\fR [\\fIoptions\\fR]\n"
                      ".SH DESCRIPTION\n"
                      "flatgpt trains language models on token shards, from scratch or from a checkpoint, on CPUs and\n"
                      "GPUs, and samples from them. Results go to standard output, everything for people to standard\n"
                      "error. A checkpoint is a Hugging Face model directory.\n"
                      ".SH COMMANDS\n";
    for (auto& c : commands) out += tagged(roff_form(c.name), c.summary);
    for (auto& c : commands) out += man_of(c);
    return out + man_rest();
}
}    // namespace

Command completion_command(const std::vector<Command>* commands) {
    auto shell = std::make_shared<std::string>();
    const std::vector<std::string> shells = {"bash", "zsh", "fish"};
    Flag row = {.name = "SHELL", .to = shell.get(), .help = "which shell", .choices = shells, .required = true};
    return {.name = "completion",
            .summary = "Print completion rules for a shell.",
            .example = "source <(flatgpt completion bash)",
            .flags = {row},
            .run = [commands, shell] {
                fputs((*shell == "bash"  ? bash_completion(*commands)
                       : *shell == "zsh" ? zsh_completion(*commands)
                                         : fish_completion(*commands))
                          .c_str(),
                      stdout);
                return Status{};
            }};
}
Command man_command(const std::vector<Command>* commands, const char* version, const char* date) {
    return {.name = "man",
            .summary = "Print the manual page, for man and roff.",
            .example = "flatgpt man >flatgpt.1 && man ./flatgpt.1",
            .flags = {},
            .run = [=] {
                fputs(man_page(*commands, version, date).c_str(), stdout);
                return Status{};
            }};
}
