// sweep.cpp - see sweep.h.
#include "train/sweep.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "base/console.h"
#include "base/file.h"
#include "base/table.h"
#include "checkpoint/checkpoint.h"
#include "files/json.h"
#include "files/json_write.h"
#include "train/metrics.h"

// ---- the runs -----------------------------------------------------------------------------------

namespace {
struct List {
    std::string key;    // "lr"
    std::vector<std::string> values;
};
// Options that belong to the sweep as a whole.
const char* const FIXED[] = {"set",  "out",   "resume",     "dry-run", "preview", "trace",
                             "rank", "ranks", "local-rank", "master",  "config"};

Result<List> list_parse(const std::string& text) {
    const size_t equals = text.find('='), from = std::min(text.find_first_not_of('-'), text.size());
    if (equals == std::string::npos || equals <= from)
        return fail(Exit::usage, "--set %s: expected OPTION=VALUE,VALUE,..., such as lr=1e-4,3e-4", text.c_str());
    List list = {text.substr(from, equals - from), {}};
    std::replace(list.key.begin(), list.key.end(), '_', '-');
    for (size_t at = equals + 1, end; at <= text.size(); at = end + 1) {
        end = std::min(text.find(',', at), text.size());
        const std::string value = text.substr(at, end - at);
        if (value.empty() || std::ranges::count(list.values, value))
            return fail(Exit::usage, "--set %s: expected values that differ, separated by commas, found %s",
                        text.c_str(), value.empty() ? "an empty one" : ("'" + value + "' twice").c_str());
        list.values.push_back(value);
    }
    for (const char* fixed : FIXED)
        if (list.key == fixed)
            return fail(Exit::usage, "--set %s: --%s is the same for all runs of a sweep", text.c_str(), fixed);
    return list;
}
// Returns a part of a run's directory name. Characters that paths or shells treat specially become
// '-'.
std::string name_part(const List& list, const std::string& value) {
    std::string text = list.key + "=" + value;
    for (char& c : text)
        if (!isalnum(static_cast<unsigned char>(c)) && !strchr("=.+-_", c)) c = '-';
    return text;
}

// Sets the options of one run as the run itself will, and checks them.
Status check_run(const SweepRun& run, const std::string& base) {
    const Command train = train_command();
    const std::vector<std::string> defaults = flag_values(train.flags);
    std::vector<const Flag*> given;
    for (const std::string& argument : run.arguments) {
        const size_t equals = argument.find('=');
        const std::string name = argument.substr(0, equals);
        const auto row = std::ranges::find(train.flags, name, &Flag::name);
        if (row == train.flags.end()) {
            std::vector<std::string> known;
            for (const Flag& f : train.flags) known.push_back(f.name);
            return fail(Exit::usage, "--set %s: unknown option %s%s", argument.substr(2).c_str(), name.c_str(),
                        did_you_mean(name, known).c_str());
        }
        if (Status s = flag_set(*row, {argument.substr(equals + 1)}); !s.ok())
            return fail(s.code, "--set %s", s.message.c_str() + 2);
        given.push_back(&*row);
    }
    TRY(command_read_toml(train, base, "the sweep's options", &given));
    const Status rules = check_rules(train.flags, defaults);
    return rules.ok() ? rules : fail(rules.code, "--set, %s: %s", run.name.c_str(), rules.message.c_str());
}
}    // namespace

Result<std::vector<SweepRun>> sweep_runs(const std::vector<std::string>& lists, const std::string& base) {
    constexpr size_t MOST = 1000;
    std::vector<SweepRun> runs = {{}};
    std::set<std::string> keys, names;
    for (const std::string& text : lists) {
        const List list = TRY(list_parse(text));
        if (!keys.insert(list.key).second)
            return fail(Exit::usage, "--set %s: there is a list for %s already", text.c_str(), list.key.c_str());
        std::vector<SweepRun> more;
        for (const SweepRun& run : runs)
            for (const std::string& value : list.values) {
                more.push_back(run);
                more.back().name += (run.name.empty() ? "" : "_") + name_part(list, value);
                more.back().arguments.push_back("--" + list.key + "=" + value);
            }
        runs = std::move(more);
        if (runs.size() > MOST)
            return fail(Exit::usage, "--set: %zu runs or more; expected at most %zu", runs.size(), MOST);
    }
    for (const SweepRun& run : runs) {
        if (!names.insert(run.name).second || run.name.size() > 200)
            return fail(Exit::usage, "--set: %s would be the directory of %s; give other values", run.name.c_str(),
                        run.name.size() > 200 ? "a run, and is too long a name" : "two runs");
        TRY(check_run(run, base));
    }
    return runs;
}

// ---- processes ----------------------------------------------------------------------------------

namespace {
volatile sig_atomic_t sweep_signal = 0;
volatile pid_t child = 0;
// Beside other ranks, a run has a process group of its own, because launchers kill a rank's group
// soon after its first signal. No signal but the sweep's then reaches the run.
bool own_group = false;

// A run writes a checkpoint on a first signal, but ends at once on a second one of the same number.
// It may already have one from the terminal (si_code > 0) or a launcher, so the sweep sends SIGHUP.
// A run in a group of its own gets SIGTERM or SIGINT, whichever the sweep did not get: SIGHUP is
// what it gets if the launcher then kills this rank.
void pass_on(int s, siginfo_t* info, void*) {
    if (!sweep_signal && child > 0 && (own_group || info->si_code <= 0))
        kill(child, !own_group ? SIGHUP : s == SIGTERM ? SIGINT : SIGTERM);
    sweep_signal = s;
}
constexpr int STOPPING[] = {SIGINT, SIGTERM, SIGHUP};
sigset_t stopping_signals() {
    sigset_t all;
    sigemptyset(&all);
    for (int s : STOPPING) sigaddset(&all, s);
    return all;
}

// Runs this program with the arguments; output: a file for both of its outputs, or -1. Calls
// `meanwhile` many times a second until the program has ended. Returns the exit code, as a shell
// counts it; -1: no process could be started, or its exit code is lost.
int run_program(
    std::vector<std::string> arguments, int output, const std::function<void()>& meanwhile = [] {}) {
    arguments.insert(arguments.begin(), program_invocation_name);
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    const pid_t parent = getpid();
    // No signal comes between the test for one and the assignment of the process's number.
    const sigset_t held = stopping_signals();
    sigset_t before;
    sigprocmask(SIG_BLOCK, &held, &before);
    const int stopped = sweep_signal;
    const pid_t pid = stopped ? -1 : fork();
    if (pid == 0) {
        for (int s : STOPPING) signal(s, SIG_DFL);    // the sweep's handler would swallow one before execv
        prctl(PR_SET_PDEATHSIG, SIGHUP);              // a killed sweep leaves no run behind
        if (getppid() != parent) end_process(Exit::run);
        if (own_group) setpgid(0, 0);
        if (output >= 0) dup2(output, STDOUT_FILENO), dup2(output, STDERR_FILENO);
        sigprocmask(SIG_SETMASK, &before, nullptr);
        execv("/proc/self/exe", words.data());
        end_process(Exit::run);
    }
    child = pid;
    sigprocmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) return stopped ? 128 + stopped : -1;
    int status = 0;
    pid_t ended = 0;
    for (; (ended = waitpid(pid, &status, WNOHANG)) == 0; usleep(10000)) meanwhile(), count_progress();
    child = 0;
    if (ended < 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// ---- the table ----------------------------------------------------------------------------------

constexpr int NOT_ENDED = -1;
struct Row {
    SweepRun run;
    int code = NOT_ENDED;
    int64_t steps = 0, tokens = 0;
    double loss = NAN, val_loss = NAN, lowest = NAN, seconds = 0;    // loss: mean of the last LOSSES steps
    bool diverged() const { return code == int(Exit::diverged); }
    bool ended() const { return code == 0 || diverged(); }
};
constexpr size_t LOSSES = 10;

Status read_row(const std::string& dir, Row& row) {
    std::vector<double> losses;
    if (access((dir + "/metrics.jsonl").c_str(), F_OK) != 0) return {};
    TRY(read_metrics(dir, [&](const nlohmann::json& line, const std::string&) {
        losses.push_back(number_of(line, "loss"));
        row.steps = std::max<int64_t>(0, step_of(line));
        row.tokens = int64_t(std::clamp(number_of(line, "tokens", 0), 0.0, 1e18));
        row.seconds += number_of(line, "ms", 0) / 1000;
        row.val_loss = number_of(line, "val_loss", row.val_loss);
        row.lowest = std::fmin(row.lowest, row.val_loss);
        return Status{};
    }));
    const size_t last = std::min(losses.size(), LOSSES);
    if (last) row.loss = 0;
    for (size_t i = losses.size() - last; i < losses.size(); i++) row.loss += losses[i] / double(last);
    return {};
}

// Runs that ended well come first, by their loss on the validation data if they have any.
std::vector<const Row*> sorted(const std::vector<Row>& rows) {
    const bool validated = std::ranges::any_of(rows, [](const Row& r) { return std::isfinite(r.val_loss); });
    auto key = [&](const Row* r) {
        const double loss = validated ? r->val_loss : r->loss;
        return std::pair{r->code != 0, std::isfinite(loss) ? loss : double(INFINITY)};
    };
    std::vector<const Row*> all;
    for (const Row& r : rows) all.push_back(&r);
    std::ranges::stable_sort(all, {}, key);
    return all;
}
std::string state_text(const Row& row, bool best) {
    if (row.code == NOT_ENDED) return "not ended";
    return row.diverged() ? "diverged" : row.code ? formatted("failed: exit %d", row.code) : best ? "best" : "";
}

// config: the options that all runs share, as TOML.
Status write_table(const std::string& path, const std::string& config, const std::vector<Row>& rows) {
    Json list = Json::list();
    for (const Row* r : sorted(rows)) {
        Json options = Json::object();
        for (const std::string& argument : r->run.arguments) {
            const size_t equals = argument.find('=');
            options.set(argument.substr(2, equals - 2), argument.substr(equals + 1));
        }
        list.add(Json::object("name", r->run.name, "options", options, "exit", r->code, "steps", r->steps, "tokens",
                              r->tokens, "seconds", r->seconds, "loss", r->loss, "val_loss", r->val_loss,
                              "lowest_val_loss", r->lowest));
    }
    return replace_file(path, Json::object("config", config, "runs", list).text(1) + "\n");
}
void print_rows(const std::vector<Row>& rows) {
    int longest = 3;
    for (const Row& r : rows) longest = std::max(longest, int(r.run.name.size()));
    const std::vector<int> widths = {-longest, 8, 9, 9, 9, 9, 0};
    auto number = [](double x) { return std::isnan(x) ? Cell("-") : Cell(x, "%.4f"); };
    print_table_line(widths, {"run", "steps", "loss", "val loss", "lowest", "minutes", ""});
    const std::vector<const Row*> all = sorted(rows);
    for (const Row* r : all)
        print_table_line(widths, {r->run.name, r->steps, number(r->loss), number(r->val_loss), number(r->lowest),
                                  Cell(r->seconds / 60, "%.1f"), " " + state_text(*r, r == all[0])});
}

// Exit codes of the runs in a sweep.json, by name; none if the sweep had other options, with which
// runs that have ended may have more to do. Exit 2: no sweep has written the file.
Result<std::map<std::string, int>> codes_before(const std::string& path, const std::string& config) {
    std::map<std::string, int> codes;
    if (access(path.c_str(), F_OK) != 0) return codes;
    const nlohmann::json json = json_parse(TRY(read_file(path, 64 << 20)), path, 5).value;
    auto is_run = [](const nlohmann::json& r) {
        return r.is_object() && r.contains("name") && r["name"].is_string() && r.contains("exit") &&
               r["exit"].is_number_integer();
    };
    if (!json.is_object() || !json.contains("config") || !json["config"].is_string() || !json.contains("runs") ||
        !std::ranges::all_of(json["runs"], is_run))
        return fail(Exit::usage, "%s was not written by a sweep, and would be overwritten; give another --out",
                    path.c_str());
    if (json["config"].get<std::string>() != config) return codes;
    for (const nlohmann::json& run : json["runs"]) codes[run["name"].get<std::string>()] = run["exit"].get<int>();
    return codes;
}
}    // namespace

// ---- the sweep ----------------------------------------------------------------------------------
//
// Each run has a file in OUT/locks, empty until its exit code is written there. A rank locks the
// file of an unfinished run and starts the run, which inherits the lock. If the rank is killed, the
// lock lasts until the run has written a checkpoint and ended; another rank may then take the run.

namespace {
struct Sweep {
    std::string out, config;    // config: the options that all runs share, as TOML
    std::string config_file;    // in memory, so that a sweep that is refused writes nothing
    std::vector<Row> rows;
    int rank = 0, ranks = 1;
    Progress progress{60};
    double collected = 0;    // seconds: time of the last collect()

    std::string directory(const SweepRun& run) const { return out + "/" + run.name; }
    std::string lock_path(const SweepRun& run) const { return out + "/locks/" + run.name; }
    std::vector<std::string> command(const SweepRun& run) const {
        std::vector<std::string> words = {"train",        "--config", config_file, "--out",
                                          directory(run), "--resume", "auto"};
        words.insert(words.end(), run.arguments.begin(), run.arguments.end());
        return words;
    }
    int64_t left() const { return std::ranges::count(rows, NOT_ENDED, &Row::code); }
    int written_code(const SweepRun& run) const {
        const std::string text = read_file(lock_path(run), 16).value;
        const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
        return digits > 0 && text.substr(digits) == "\n" ? atoi(text.c_str()) : NOT_ENDED;
    }
    Status read_options(const std::vector<std::string>& lists, const std::string& resolved,
                        const std::vector<std::string>& given);
    Status write_config();
    Status write_locks() const;
    Status write_rows() const { return rank ? Status{} : write_table(out + "/sweep.json", config, rows); }
    Status try_out(const SweepRun& run) const;
    Status check_runs();
    Status prepare(const std::string& name);
    Status join(const std::string& rank_0) const;
    Status add_row(Row& row, int code);
    Status collect();
    Status run(Row& row, int lock);
    Status run_if_free(Row& row);
    Status run_all();
    Status outcome() const;
};

Status Sweep::read_options(const std::vector<std::string>& lists, const std::string& resolved,
                           const std::vector<std::string>& given) {
    std::istringstream lines(resolved);
    for (std::string line; std::getline(lines, line);) {
        const std::string key = line.substr(0, line.find(" = "));
        if (key == "resume" && line != "resume = \"no\"" && line != "resume = \"auto\"")
            return fail(Exit::usage, "--set, --resume: each run of a sweep goes on with its own checkpoint; found %s",
                        line.substr(9).c_str());
        if (key != "set" && key != "resume" && was_given(given, "--" + key)) config += line + "\n";
    }
    for (SweepRun& run : TRY(sweep_runs(lists, config))) rows.push_back({.run = run});
    return write_config();
}
Status Sweep::write_config() {
    const int file = memfd_create("config", 0);    // the runs inherit it
    if (file < 0 || write(file, config.data(), config.size()) != ssize_t(config.size()))
        return fail(Exit::io, "--set: no memory file: %s", strerror(errno));
    config_file = "/proc/self/fd/" + std::to_string(file);
    return {};
}
// Empties the files in OUT/locks of runs that have not ended.
Status Sweep::write_locks() const {
    for (const Row& row : rows) {
        const std::string path = lock_path(row.run), code = row.ended() ? std::to_string(row.code) + "\n" : "";
        const int file = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
        const bool written = file >= 0 && write(file, code.data(), code.size()) == ssize_t(code.size());
        if (file >= 0) close(file);
        if (!written) return fail(Exit::io, "%s: cannot be written: %s", path.c_str(), strerror(errno));
    }
    return {};
}
// A dry run also checks sizes and files, which the options' rows do not cover.
Status Sweep::try_out(const SweepRun& run) const {
    const int output = memfd_create("output", MFD_CLOEXEC);
    if (output < 0) return fail(Exit::io, "--set: no memory file: %s", strerror(errno));
    std::vector<std::string> words = command(run);
    words.push_back("--dry-run");
    const int code = run_program(words, output);
    std::string text = read_file("/proc/self/fd/" + std::to_string(output), 1 << 20).value;
    close(output);
    if (code == 0 || sweep_signal) return {};
    // The message alone, without the notes before it and the hint behind it.
    text = text.substr(std::min(text.find("flatgpt train: "), text.size()));
    text = text.substr(0, std::min(text.find("\ntry flatgpt"), text.find_last_not_of('\n') + 1));
    return fail(code > 0 && code <= int(Exit::peer) ? Exit(code) : Exit::run, "--set, %s is refused:\n  %s",
                run.name.c_str(), text.c_str());
}
// Reads the rows of the runs that have ended, and tries out the others. A run whose directory was
// removed has not ended. Ranks may have written a code that rank 0, killed, did not see.
Status Sweep::check_runs() {
    const std::map<std::string, int> codes = TRY(codes_before(out + "/sweep.json", config));
    for (Row& row : rows) {
        const std::string dir = directory(row.run);
        const auto known = codes.find(row.run.name);
        const bool there = access((dir + "/metrics.jsonl").c_str(), F_OK) == 0 || !checkpoint_list(dir).empty();
        if (there && known != codes.end())
            row.code = known->second == NOT_ENDED ? written_code(row.run) : known->second;
        if (!row.ended()) row.code = NOT_ENDED;
        TRY(row.ended() ? read_row(dir, row) : try_out(row.run));
        if (sweep_signal) return outcome();
    }
    return {};
}
// On rank 0: checks all options and runs, then writes locks/ and sweep.json. name: this
// rank's. The sweep's lock is held until the process ends; other ranks share it.
Status Sweep::prepare(const std::string& name) {
    if (!checkpoint_list(out).empty())
        return fail(Exit::usage, "--out %s holds a run; a sweep needs a directory of its own", out.c_str());
    std::error_code error;
    const std::string locks = out + "/locks", path = locks + "/sweep";
    const bool made = std::filesystem::create_directories(out, error);
    const bool made_locks = !error && std::filesystem::create_directory(locks, error);
    const int lock = error ? -1 : open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (lock < 0)
        return fail(Exit::io, "--out %s: cannot be created: %s", out.c_str(),
                    error ? error.message().c_str() : strerror(errno));
    if (flock(lock, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? fail(Exit::usage, "--out %s: another sweep is using this directory", out.c_str())
                                    : fail(Exit::io, "%s: cannot be locked: %s", path.c_str(), strerror(errno));
    const Status checked = check_runs();
    if (!checked.ok() && made_locks) unlink(path.c_str()), rmdir(locks.c_str());
    if (!checked.ok() && made) rmdir(out.c_str());
    TRY(checked);
    // A code in a lock's file counts with the options in sweep.json, so codes of others go first.
    TRY(write_locks());
    TRY(write_rows());    // before a run goes on with other options
    if (ftruncate(lock, 0) != 0 || pwrite(lock, name.data(), name.size(), 0) != ssize_t(name.size()) ||
        fsync(lock) != 0)
        return fail(Exit::io, "%s: cannot be written: %s", path.c_str(), strerror(errno));
    if (flock(lock, LOCK_SH | LOCK_NB) != 0)
        return fail(Exit::usage, "--out %s: another sweep is using this directory", out.c_str());
    return {};
}
// On another rank: checks that its directory is rank 0's, and that there is a device for its runs.
Status Sweep::join(const std::string& rank_0) const {
    const std::string path = out + "/locks/sweep";
    auto is_shared = [&] { return read_file(path, 4096).value == rank_0; };
    for (int i = 0; i < 50 && !is_shared(); i++) usleep(100000), count_progress();    // NFS shows files late
    const int lock = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (!is_shared() || flock(lock, LOCK_SH | LOCK_NB) != 0)
        return fail(Exit::io,
                    "--out %s is another directory here than on rank 0, or has no locks: it must be on a file "
                    "system that all ranks share",
                    out.c_str());
    for (const Row& row : rows)
        if (written_code(row.run) == NOT_ENDED) return try_out(row.run);
    return {};
}

// Adds a run's results; code: NOT_ENDED after a signal.
Status Sweep::add_row(Row& row, int code) {
    Row now = {.run = row.run, .code = code};
    if (rank == 0) TRY(read_row(directory(row.run), now));
    row = now;
    return write_rows();
}
// Adds the runs that have ended since the last call, on any rank.
Status Sweep::collect() {
    collected = now_seconds();
    for (Row& row : rows) {
        const int code = row.code == NOT_ENDED ? written_code(row.run) : NOT_ENDED;
        if (code == NOT_ENDED) continue;
        TRY(add_row(row, code));
        if (ranks == 1) continue;
        const std::string state = code == 0 ? formatted("loss %.4f", row.loss) : state_text(row, false);
        progress.note(
            formatted("%s: %s; %s left", row.run.name.c_str(), state.c_str(), counted(left(), "run").c_str()));
    }
    if (left() && ranks > 1)
        progress.line(formatted("%zu of %zu runs have ended", rows.size() - size_t(left()), rows.size()));
    return {};
}

Status Sweep::run(Row& row, int lock) {
    const std::string dir = directory(row.run), log = dir + ".log";
    int output = -1;
    if (ranks == 1)
        progress.note(formatted("run %zu of %zu: %s", size_t(&row - &rows[0]) + 1, rows.size(), dir.c_str()));
    else if ((output = open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644)) < 0)
        return fail(Exit::io, "%s: cannot be written: %s", log.c_str(), strerror(errno));
    // An error in `collect` comes back from the next call.
    const int code = run_program(command(row.run), output, [&] {
        if (ranks > 1 && rank == 0 && now_seconds() - collected > 1) (void)collect();
    });
    if (output >= 0) close(output);
    if (code < 0) return fail(Exit::run, "--set: no process can be started and watched: %s", strerror(errno));
    const bool stopped = sweep_signal || code == int(Exit::sigint) || code == int(Exit::sigterm);
    if (stopped && !sweep_signal) sweep_signal = code - 128;
    if (stopped) return add_row(row, NOT_ENDED);
    const std::string text = std::to_string(code) + "\n";
    if (pwrite(lock, text.data(), text.size(), 0) != ssize_t(text.size()))
        return fail(Exit::io, "%s: cannot be written: %s", lock_path(row.run).c_str(), strerror(errno));
    return collect();
}
Status Sweep::run_if_free(Row& row) {
    if (row.code != NOT_ENDED) return {};
    const int lock = open(lock_path(row.run).c_str(), O_RDWR);    // the run inherits it
    if (lock < 0) return fail(Exit::io, "%s: cannot be opened: %s", lock_path(row.run).c_str(), strerror(errno));
    const bool free = flock(lock, LOCK_EX | LOCK_NB) == 0 && written_code(row.run) == NOT_ENDED;
    const Status ran = free ? run(row, lock) : Status{};
    close(lock);
    return ran;
}
// A rank for which no run is free waits until all have ended, as a run is free again if its rank
// was killed.
Status Sweep::run_all() {
    if (ranks > 1)
        progress.note(formatted("%d ranks share %zu runs; the output of each is in %s/NAME.log", ranks, rows.size(),
                                out.c_str()));
    for (size_t i = 0; i < rows.size(); i++)
        if (rows[i].ended())
            progress.note(
                formatted("run %zu of %zu, %s, has ended already", i + 1, rows.size(), rows[i].run.name.c_str()));
    while (!sweep_signal && left()) {
        for (size_t i = 0; i < rows.size() && !sweep_signal; i++) TRY(run_if_free(rows[i]));
        TRY(collect());
        if (left() && ranks == 1) progress.line("waiting for the end of a run whose sweep was killed");
        if (left()) usleep(200000);
    }
    progress.clear();
    return {};
}
Status Sweep::outcome() const {
    if (sweep_signal)
        return fail(sweep_signal == SIGINT ? Exit::sigint : Exit::sigterm,
                    "the sweep was stopped by a signal; the same command goes on with it");
    if (rank > 0) return {};
    print_rows(rows);
    for (const Row& r : rows)
        if (!r.ended())
            return fail(r.code <= int(Exit::peer) ? Exit(r.code) : Exit::run,
                        "%s failed with exit code %d; the same command starts it again", r.run.name.c_str(), r.code);
    const bool all = std::ranges::all_of(rows, &Row::diverged);
    return all ? fail(Exit::diverged, "every run diverged; lower rates may help") : Status{};
}
}    // namespace

Status sweep(const std::vector<std::string>& lists, const std::string& out, const std::string& resolved,
             const std::vector<std::string>& given, const CommOptions& comm) {
    Sweep s;
    s.out = without_slashes(out);
    {
        Ranks ranks;    // ranks exchange messages until all have begun
        TRY(ranks.open(comm));
        s.rank = ranks.rank(), s.ranks = ranks.count();
        s.progress.quiet = s.rank > 0;
        own_group = s.ranks > 1;
        setenv("FLATGPT_ALONE", "1", 1);    // for the runs: comm.h
        signal(SIGCHLD, SIG_DFL);           // if it is ignored, a process's exit code is lost
        struct sigaction action = {};
        action.sa_sigaction = pass_on;
        action.sa_flags = SA_SIGINFO | SA_RESTART;
        for (int number : STOPPING) sigaction(number, &action, nullptr);
        const std::string name = ranks.coordinator ? ranks.coordinator->name(0) : "";
        Status ready = s.read_options(lists, resolved, given);
        std::string options = s.config;
        if (const size_t at = options.find("local-rank = "); at != options.npos)    // each rank's own
            options.erase(at, options.find('\n', at) - at);
        for (const Row& row : s.rows) options += row.run.name + "\n";
        if (ranks.coordinator && ranks.coordinator->broadcast(options) != options)
            ready = fail(Exit::usage, "--set: other options than on rank 0");
        ready = ranks.agree(ready);
        if (ready.ok()) ready = ranks.agree(s.rank == 0 ? s.prepare(name) : Status{});
        if (ready.ok()) ready = ranks.agree(s.rank > 0 ? s.join(name) : Status{});
        if (s.rank > 0 && !ready.ok()) return {ready.code == Exit::peer ? Exit::ok : ready.code, ""};
        TRY(ready);    // rank 0 prints every rank's error
    }
    TRY(s.run_all());
    Status all = s.outcome();
    if (s.rank > 0) all.message.clear();
    return all;
}
