// main.cpp - the table of commands, --help, --version; the only file that ends the process.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <new>
#include <system_error>

#include "base/command.h"
#include "base/console.h"
#include "base/interrupt.h"
#include "base/shorten.h"
#include "model/device.h"
#include "tools/commands.h"
#include "layers/cpu.h"

namespace {
// Opens /dev/null for each standard file that is closed. Otherwise a command's first file would get
// that number, and messages would be written into it. A closed standard output is opened read-only,
// so that writing results to it still fails.
void open_standard_files() {
    for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}
[[noreturn]] void end_without(const char* what) {    // must not allocate: memory may be used up
    for (const char* part : {"flatgpt: out of ", what,
                             ": the machine or a limit of this process (ulimit) has no more; "
                             "checkpoints stay as they are\n"})
        fputs(part, stderr);
    quick_exit(int(Exit::device));
}
// SIGBUS: a page of a mapped file (File::map) cannot be read. Only async-signal-safe calls.
[[noreturn]] void end_without_file(int) {
    constexpr std::string_view text =
        "flatgpt: the model's file became shorter while it was read, or its disk failed; "
        "start again when the file is whole\n";
    (void)!write(STDERR_FILENO, text.data(), text.size());
    _exit(int(Exit::io));
}
// Standard libraries throw if threads or memory run out. Other exceptions are our mistakes.
void end_by_exception() {
    try {
        if (std::current_exception()) throw;
    } catch (const std::system_error& e) {
        if (e.code() == std::errc::resource_unavailable_try_again) end_without("threads");
        if (e.code() == std::errc::not_enough_memory) end_without("memory");
    } catch (const std::bad_alloc&) { end_without("memory"); } catch (...) {
    }
    abort();
}
// Runs before the first static object allocates.
[[gnu::constructor(101)]] void set_handlers() {
    std::set_new_handler([] { end_without("memory"); });
    std::set_terminate(end_by_exception);
}

std::string version() { return "flatgpt " VERSION "\ncompiler: " __VERSION__ "\n" + describe_devices(); }
// Prints a message, wrapped at a terminal. Indented lines are commands to copy and stay whole.
void say(const std::string& message) {
    for (size_t at = 0, end; at <= message.size(); at = end + 1) {
        end = std::min(message.find('\n', at), message.size());
        const std::string line = message.substr(at, end - at);
        const bool whole = !isatty(STDERR_FILENO) || line.starts_with(" ");
        fprintf(stderr, "%s\n", (whole ? line : wrap_line(line, terminal_size().columns)).c_str());
    }
}
Status run_command(const std::vector<Command>& commands, const std::string& name, std::vector<std::string> args) {
    auto command = std::find_if(commands.begin(), commands.end(), [&](auto& c) { return c.name == name; });
    if (command == commands.end()) {
        std::vector<std::string> names = {"--help", "--version"};
        for (auto& c : commands) names.push_back(c.name);
        return fail(Exit::usage, "unknown command '%s'%s", escape_control(name.substr(0, 60)).c_str(),
                    did_you_mean(name, names).c_str());
    }
    Result<bool> run = command_parse(*command, args);
    if (!run.ok()) return run.status;
    if (command->removes_temporaries) remove_files_on_signals([](int s) { _exit(128 + s); });
    if (run.value) return command->run();
    const Level level = args.back() == "all" ? Level::expert : Level::common;
    fputs(command_help(*command, text_width(stdout), level).c_str(), stdout);
    return {};
}
}    // namespace

int main(int argc, char** argv) {
    open_standard_files();
    signal(SIGPIPE, SIG_DFL);    // `flatgpt ... | head` ends without a message
    signal(SIGXFSZ, SIG_IGN);    // a write beyond `ulimit -f` then returns an error
    signal(SIGBUS, end_without_file);
    std::vector<Command> commands = ::commands();
    commands.push_back(help_command(&commands));
    commands.push_back(completion_command(&commands));
    commands.push_back(man_command(&commands, VERSION, DATE));

    std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
    if (args.empty()) {
        fputs(commands_help(commands, text_width(stderr)).c_str(), stderr);
        return int(Exit::usage);
    }
    std::string name = args[0], prefix = "flatgpt";
    args.erase(args.begin());
    const bool help = name == "help" || name == "--help" || name == "-h";
    if (help && !args.empty() && args[0][0] != '-') {    // help train
        name = args[0];
        args[0] = "--help";
    }
    Status status = cpu_check();    // FLATGPT_ISA
    if (!status.ok()) {
    } else if (name == "--help" || name == "-h") {
        fputs(commands_help(commands, text_width(stdout)).c_str(), stdout);
    } else if (name == "--version") {
        fputs(version().c_str(), stdout);
    } else {
        status = run_command(commands, name, args);
    }

    if (const bool failed = fflush(stdout) != 0; status.ok() && (failed || ferror(stdout)))
        status =
            fail(Exit::io, "cannot write to standard output%s%s", failed ? ": " : "", failed ? strerror(errno) : "");
    for (auto& c : commands)
        if (c.name == name) prefix += " " + name;
    if (!status.message.empty()) say(prefix + ": " + escape_control(shorten(status.message, 4000)));
    if (status.code == Exit::usage && !status.message.empty()) fprintf(stderr, "try %s --help\n", prefix.c_str());
    return int(status.code);
}
