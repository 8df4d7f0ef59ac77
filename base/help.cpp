// help.cpp - `flatgpt --help` and `flatgpt COMMAND --help`, from the flag rows.
#include <memory>
#include <sstream>

#include "command.h"
#include "console.h"

const char* const CONFIG_HELP = "a file of `key = value` lines, as in run.toml; flags win over it";
const ExitMeaning EXIT_MEANINGS[] = {{"0", "done"},
                                     {"1", "run error"},
                                     {"2", "usage or configuration"},
                                     {"3", "bad input file"},
                                     {"4", "I/O error"},
                                     {"5", "no such device, or it failed"},
                                     {"6", "the loss diverged"},
                                     {"7", "another rank died or differs"},
                                     {"130, 143", "stopped by SIGINT or SIGTERM, after a checkpoint"}};

std::string wrap(const std::string& text, int width, int indent) {
    std::string out;
    int column = indent;
    std::istringstream words(text);
    for (std::string word; words >> word; column += int(word.size())) {
        if (std::string next; word == "(default" && words >> next) word += " " + next;
        if (column > indent && column + 1 + int(word.size()) > width) {
            out += "\n" + std::string(size_t(indent), ' ');
            column = indent;
        } else if (column > indent) {
            out += " ";
            column++;
        }
        out += word;
    }
    return out;
}
std::string shell_quoted(const std::string& word) {
    const bool plain =
        !word.empty() &&
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/=+,:@%") == word.npos;
    std::string text = "'";
    for (char letter : word) text += letter == '\'' ? "'\\''" : std::string(1, letter);
    return plain ? word : text + "'";
}
std::string wrap_shell(const std::string& example, int width, const std::string& indent) {
    // Pieces of the line: words, each option together with its value; "" separates two commands.
    std::vector<std::string> pieces;
    char quote = 0;
    for (size_t i = 0, begin = 0; i <= example.size(); i++) {
        const char c = i < example.size() ? example[i] : ' ';
        if (quote ? c == quote : c == '\'' || c == '"') quote = quote ? 0 : c;
        if (quote || c != ' ') continue;
        std::string word = example.substr(begin, i - begin);
        begin = i + 1;
        if (word.empty()) {
            if (!pieces.empty() && !pieces.back().empty() && i < example.size()) pieces.push_back("");
        } else if (!pieces.empty() && pieces.back()[0] == '-' && word[0] != '-' &&
                   pieces.back().find(' ') == std::string::npos) {
            pieces.back() += " " + word;
        } else {
            pieces.push_back(word);
        }
    }
    std::string out, line = indent;
    for (auto& piece : pieces) {
        if (piece.empty()) {
            out += line + "\n";
            line = indent;
        } else if (line.find_first_not_of(' ') != std::string::npos && int(line.size() + piece.size()) + 3 > width) {
            out += line + " \\\n";
            line = indent + "    " + piece;
        } else {
            line += (line.find_first_not_of(' ') == std::string::npos ? "" : " ") + piece;
        }
    }
    return out + line + "\n";
}

// ---- one command --------------------------------------------------------------------------------

std::string command_usage(const Command& command) {
    std::string usage = "flatgpt " + command.name;
    for (auto& f : command.flags)
        if (is_positional(f)) usage += f.required ? " " + flag_form(f) : " [" + flag_form(f) + "]";
        else if (f.required) usage += " " + f.name + flag_form(f).substr(flag_form(f).rfind(' '));
    return usage + (has_options(command) ? " [options]" : "");
}

std::string command_help(const Command& command, int width, Level level) {
    width = std::max(width, 40);
    const int column = width < 64 ? 8 : 26;    // column where meanings begin
    std::string out = "usage: " + wrap(command_usage(command), width, 7) + "\n";
    out += wrap(command.summary, width, 0) + "\n";
    auto row = [&](const std::string& form, const std::string& meaning) {
        std::string line = "  " + form;
        if (int(line.size()) + 2 > column) out += line + "\n", line = "";
        line.resize(size_t(column), ' ');
        out += line + wrap(meaning, width, column) + "\n";
    };
    size_t hidden = 0;
    for (auto& f : command.flags) hidden += f.level > level;
    auto of_all_commands = [&] {
        if (has_options(command)) row("--config TEXT", CONFIG_HELP);
        row("--help, -h", hidden ? "this text; --help all: every option" : "this text");
    };
    auto is_number = [](const Flag& f) { return is_integer(f) || holds<double>(f); };
    const bool numbers = std::any_of(command.flags.begin(), command.flags.end(), is_number);
    const std::string* group = nullptr;
    bool shown = false;    // --config and --help end the first group of options
    for (auto& f : command.flags) {
        if (f.level > level) continue;
        if (!group || f.group != *group) {
            if (group && !shown) of_all_commands(), shown = true;
            out += "\n" + (f.group.empty() ? "" : f.group + ":\n");
            group = &f.group;
        }
        row(flag_form(f), flag_meaning(f));
    }
    if (!group) out += "\n";
    if (!shown) of_all_commands();
    if (numbers) out += "\nnumbers: 1000, 1_000, 1e6, 0.5M, 4k\n";
    out += (numbers ? "" : "\n") + std::string("example:\n") + wrap_shell(command.example, width, "  ");
    if (hidden)
        out += "\n" +
               wrap(formatted("`flatgpt %s --help all` shows all %zu options, %zu more.", command.name.c_str(),
                              command.flags.size(), hidden),
                    width, 0) +
               "\n";
    return out;
}

// ---- all commands -------------------------------------------------------------------------------

std::string commands_help(const std::vector<Command>& commands, int width) {
    width = std::max(width, 40);
    std::string out =
        wrap(
            "flatgpt trains GPT-style language models on token shards, fine-tunes them, talks with them and generates "
            "text.",
            width, 0) +
        "\n\nusage: flatgpt COMMAND [options]\n\ncommands:\n";
    auto row = [&](const std::string& name, const std::string& summary) {
        out += "  " + name + std::string(18 - name.size(), ' ') + wrap(summary, width, 20) + "\n";
    };
    for (auto& c : commands) row(c.name, c.summary);
    out += "\n";
    row("--help, -h", "this text; `flatgpt COMMAND --help`: the command's options");
    row("--version", "version, compiler, devices");
    std::string exits;
    for (auto& [codes, meaning] : EXIT_MEANINGS)
        exits += (exits.empty() ? "" : "; ") + std::string(codes) + " " + meaning;
    return out + "\nexit codes: " + wrap(exits, width, 12) + "\n";
}

// The command `help`, without arguments. main.cpp treats `help COMMAND` as `COMMAND --help`.
Command help_command(const std::vector<Command>* commands) {
    auto name = std::make_shared<std::string>();
    Flag row = {.name = "COMMAND", .to = name.get(), .help = "the command to explain; none: lists all commands"};
    return {.name = "help",
            .summary = "Show the commands, or the options of one.",
            .example = "flatgpt help train",
            .flags = {row},
            .run = [commands, name] {
                fputs(commands_help(*commands, text_width(stdout)).c_str(), stdout);
                return Status{};
            }};
}
