// completion.cpp - shell completion (bash, zsh, fish) and the manual page, made from the flag rows.
#include <map>
#include <memory>

#include "command.h"

namespace {
// ---- shells -------------------------------------------------------------------------------------

// Each script calls the program named on the command line with the words of the line; the last word
// is unfinished. The script offers the words that the program prints or, if it prints none, file
// names.
const std::map<std::string, const char*> SCRIPTS = {{"bash", R"sh(# source <(flatgpt completion bash)
_flatgpt() {
    local IFS=$'\n'
    COMPREPLY=($("$1" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _flatgpt flatgpt
)sh"},
                                                    {"zsh", R"sh(#compdef flatgpt
# source <(flatgpt completion zsh), or as the file _flatgpt in a folder of $fpath
_flatgpt() {
    local -a found=("${(@f)$($words[1] completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n $found[1] ]] || { _files; return; }
    found=("${(@)found//:/\\:}")
    found=("${(@)found/$'\t'/:}")
    _describe flatgpt found
}
if [[ $funcstack[1] == _flatgpt ]]; then _flatgpt "$@"; else compdef _flatgpt flatgpt; fi
)sh"},
                                                    {"fish", R"sh(# flatgpt completion fish | source
function __flatgpt
    set -l words (commandline -opc)
    command $words[1] completion fish -- $words[2..] "$(commandline -ct)" 2>/dev/null
end
complete -c flatgpt -f -n 'count (__flatgpt) >/dev/null' -a '(__flatgpt)'
)sh"}};

// Returns the words that may replace the last one, one per line, each with a tab and its meaning.
std::string candidates(const std::vector<Command>& commands, const std::vector<std::string>& words) {
    std::string out;
    auto offer = [&](const std::string& word, const std::string& meaning) {
        if (word.starts_with(words.back())) out += word + (meaning.empty() ? "" : "\t" + meaning) + "\n";
    };
    const std::string before = words.size() > 1 ? words[words.size() - 2] : "";
    for (auto& c : commands) {
        if (words.size() == 1 || before == "help") offer(c.name, c.summary);
        if (words.size() == 1 || words[0] != c.name) continue;
        for (auto& f : c.flags) {
            const bool follows = before == (is_positional(f) ? c.name : f.name);
            for (auto& choice : f.choices)
                if (follows) offer(choice, "");
            if (words.back().starts_with("-") && !is_positional(f)) offer(f.name, f.help);
        }
        if (words.back().starts_with("-") && has_options(c)) offer("--config", CONFIG_HELP);
    }
    if (words.size() == 1 || words.back().starts_with("-")) offer("--help", "the options");
    if (words.size() == 1) offer("--version", "version, compiler and devices");
    return out;
}

// ---- the manual page ----------------------------------------------------------------------------

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

// Returns the manual's sections on options of all commands, exit codes and environment variables.
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
    struct Options {
        std::string shell;
        std::vector<std::string> words;
    };
    auto o = std::make_shared<Options>();
    std::vector<std::string> shells;
    for (auto& [name, script] : SCRIPTS) shells.push_back(name);
    return {.name = "completion",
            .summary = "Print completion rules for a shell.",
            .example = "source <(flatgpt completion bash)",
            .flags = {{.name = "SHELL", .to = &o->shell, .help = "which shell", .choices = shells, .required = true},
                      {.name = "WORD", .to = &o->words, .help = "for the rules: a command line to complete"}},
            .run = [commands, o] {
                fputs(o->words.empty() ? SCRIPTS.at(o->shell) : candidates(*commands, o->words).c_str(), stdout);
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
