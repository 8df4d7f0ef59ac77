// main.cpp - the table of commands, --help, --version, shell completion; the only place that ends the process.
#include <algorithm>
#include <csignal>
#include <memory>
#include <new>
#include <unistd.h>

#include "command.h"
#include "console.h"
#include "device.h"
#include "layers/cpu.h"

namespace {
void replace_all(std::string& text, const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
        text.replace(at, from.size(), to);
}
std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (auto& w : words) text += (text.empty() ? "" : " ") + w;
    return text;
}

// ---- completion ----------------------------------------------------------------------------------------------------

// $commands, and per command its cases, filled in for each shell from the rows.
std::string bash_completion(const std::vector<Command>& commands) {
    std::string values, flags, names;
    for (auto& c : commands) {
        std::vector<std::string> all = {"--config", "--help"};
        names += c.name + " ";
        for (auto& f : c.flags) {
            if (f.name[0] == '-') all.push_back(f.name);
            std::string after = c.name + ":" + (f.name[0] == '-' ? f.name : c.name);
            if (!f.choices.empty()) values += "    " + after + ") words='" + joined(f.choices) + "' ;;\n";
        }
        flags += "    " + c.name + ":*) [[ $cur == -* ]] && words='" + joined(all) + "' ;;\n";
    }
    return "# source <(flatgpt completion bash)\n"
           "_flatgpt() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
           "    case $([ $COMP_CWORD = 1 ] || echo \"${COMP_WORDS[1]}\"):$prev in\n"
           "    :*) words='" + names + "--help --version' ;;\n" + values + flags +
           "    esac\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "}\n"
           "complete -o default -F _flatgpt flatgpt\n";    // no word: file names
}
std::string zsh_completion(const std::vector<Command>& commands) {
    std::string names, cases;
    auto plain = [](std::string text) {    // inside '...[...]'
        for (auto& [from, to] : {std::pair{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}})
            replace_all(text, from, to);
        return text;
    };
    for (auto& c : commands) {
        names += " '" + c.name + ":" + plain(c.summary) + "'";
        cases += "    " + c.name + ") _arguments '--config[run.toml]:file:_files' '--help'";
        for (auto& f : c.flags) {
            std::string values = f.choices.empty() ? "_files" : "(" + joined(f.choices) + ")";
            if (f.name[0] != '-') cases += " '*:" + f.name + ":" + values + "'";
            else cases += " \\\n        '" + f.name + "[" + plain(f.help) + "]" +
                          (std::holds_alternative<bool*>(f.to) ? "'" : ":value:" + values + "'");
        }
        cases += " ;;\n";
    }
    return "#compdef flatgpt\n"
           "# source <(flatgpt completion zsh)\n"
           "_flatgpt() {\n"
           "    local -a commands=(" + names + ")\n"
           "    (( CURRENT == 2 )) && { _describe command commands; return; }\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $words[1] in\n" + cases +
           "    esac\n"
           "}\n"
           "compdef _flatgpt flatgpt\n";
}
std::string fish_completion(const std::vector<Command>& commands) {
    std::string out = "# flatgpt completion fish | source\n";
    auto plain = [](std::string text) {    // inside '...'
        replace_all(text, "\\", "\\\\");
        replace_all(text, "'", "\\'");
        return text;
    };
    for (auto& c : commands) {
        out += "complete -c flatgpt -n __fish_use_subcommand -f -a " + c.name + " -d '" + plain(c.summary) + "'\n";
        std::string when = "complete -c flatgpt -n '__fish_seen_subcommand_from " + c.name + "'";
        out += when + " -l config -r -d 'run.toml'\n";
        for (auto& f : c.flags) {
            std::string values = f.choices.empty() ? "" : " -f -a '" + joined(f.choices) + "'";
            std::string flag = f.name[0] == '-' ? " -l " + f.name.substr(2) : "";
            if (!flag.empty() && !std::holds_alternative<bool*>(f.to)) flag += " -r";
            if (!(flag + values).empty()) out += when + flag + values + " -d '" + plain(f.help) + "'\n";
        }
    }
    return out;
}
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
                                        : fish_completion(*commands)).c_str(), stdout);
                return Status{};
            }};
}

// ---- the top level -------------------------------------------------------------------------------------------------

std::string help(const std::vector<Command>& commands) {
    std::string text = "flatgpt trains GPT-2-style language models on token shards and samples from them.\n\n"
                       "usage: flatgpt COMMAND [options]        flatgpt COMMAND --help\n\n";
    for (auto& c : commands) text += "  " + c.name + std::string(18 - c.name.size(), ' ') + c.summary + "\n";
    return text + "\n  --version         version, compiler, devices\n\n"
                  "exit codes: 0 done, 1 run error, 2 usage or configuration, 3 bad input file, 4 I/O, 5 device,\n"
                  "            6 diverged, 7 a peer died, 130 and 143 stopped by a signal after a checkpoint\n";
}
std::string version() {
    return "flatgpt " VERSION "\ncompiler: " __VERSION__ "\n" + describe_devices();
}
Status run_command(const std::vector<Command>& commands, const std::string& name, std::vector<std::string> args) {
    auto command = std::find_if(commands.begin(), commands.end(), [&](auto& c) { return c.name == name; });
    if (command == commands.end()) {
        std::vector<std::string> names;
        for (auto& c : commands) names.push_back(c.name);
        return fail(Exit::usage, "unknown command '%s'%s", escape_control(name.substr(0, 60)).c_str(),
                    did_you_mean(name, names).c_str());
    }
    Result<bool> run = command_parse(*command, args);
    if (!run.ok()) return run.status;
    if (run.value) return command->run();
    fputs(command_help(*command).c_str(), stdout);
    return {};
}
}   // namespace

int main(int argc, char** argv) {
    cpu_spin_less(argv);
    signal(SIGPIPE, SIG_DFL);    // `flatgpt ... | head` ends quietly, whatever the parent process ignores
    std::set_new_handler([] {
        fputs("flatgpt: out of memory\n", stderr);
        _exit(int(Exit::run));
    });
    std::vector<Command> commands = {train_command(),           sample_command(), eval_command(), tokenize_command(),
                                     train_tokenizer_command(), info_command(),   plot_command(), bench_command(),
                                     selftest_command()};
    commands.push_back(completion_command(&commands));

    std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
    if (args.empty()) {
        fputs(help(commands).c_str(), stderr);
        return int(Exit::usage);
    }
    std::string name = args[0], prefix = "flatgpt";
    args.erase(args.begin());
    Status status = cpu_check();    // FLATGPT_ISA
    if (!status.ok()) {
    } else if (name == "--help" || name == "-h") {
        fputs(help(commands).c_str(), stdout);
    } else if (name == "--version") {
        fputs(version().c_str(), stdout);
    } else {
        status = run_command(commands, name, args);
    }

    if (status.ok() && (fflush(stdout) != 0 || ferror(stdout)))
        status = fail(Exit::io, "cannot write to standard output");
    for (auto& c : commands)
        if (c.name == name) prefix += " " + name;
    if (!status.message.empty()) fprintf(stderr, "%s: %s\n", prefix.c_str(), escape_control(status.message).c_str());
    if (status.code == Exit::usage && !status.message.empty()) fprintf(stderr, "try %s --help\n", prefix.c_str());
    return int(status.code);
}
