// toy_ranks.h - toy runs under mpirun: shells that note pids and exit codes; ways to break a rank.
#pragma once
#include <fcntl.h>
#include <signal.h>

#include <cstring>
#include <map>
#include <sstream>

#include "mpirun.h"
#include "toy_run.h"

inline const std::vector<std::string> GLOBAL = {"--total-batch", "512", "--steps",       "8",   "--save-every", "4",
                                                "--threads",     "1",   "--eval-tokens", "1100"};

// A toy whose step is 16 sequences, however many ranks share them.
struct RanksToy : Toy {
    std::vector<std::string> program(const std::string& out, std::vector<std::string> more = {}) const {
        std::vector<std::string> all = GLOBAL;
        all.insert(all.end(), more.begin(), more.end());
        return started(out, all);
    }
    ProcessResult run(int ranks, const std::string& out, std::vector<std::string> more = {}) const {
        std::vector<std::string> p = program(out, more);
        return run_process(ranks == 1 ? p : mpirun(ranks, p), mpirun_options(120));
    }
    ProcessResult run_apart(const std::string& out, const std::vector<std::string>& more) const;
    std::vector<double> losses(const std::string& out, const char* key = "\"loss\":") const {
        std::vector<double> all;
        std::istringstream lines(metrics(out));
        for (std::string line; std::getline(lines, line);)
            if (contains(line, key)) all.push_back(number(line, key));
        return all;
    }
    void same_losses(const std::string& a, const std::string& b, double tolerance) const {
        for (const char* key : {"\"loss\":", "\"grad_norm\":", "\"val_loss\":"}) {
            const std::vector<double> x = losses(a, key), y = losses(b, key);
            REQUIRE(x.size() == y.size());
            REQUIRE(!x.empty());
            for (size_t i = 0; i < x.size(); i++) CHECK(x[i] == doctest::Approx(y[i]).epsilon(tolerance));
        }
    }
};
// Checks that the newest checkpoints of two runs have equal files.
inline void same_checkpoint(const Toy& toy, const std::string& a, const std::string& b) {
    REQUIRE(fs::path(toy.newest(a)).filename() == fs::path(toy.newest(b)).filename());
    int files = 0;
    for (auto& file : fs::directory_iterator(toy.newest(a))) {
        const std::string name = file.path().filename();
        if (name == "MANIFEST" || name == "state.json") continue;    // files that hold --out
        INFO(name);
        CHECK(same_file(file.path(), toy.newest(b) + "/" + name));
        files++;
    }
    CHECK(files >= 4);
}
// Runs the command of the run "whole", in directories of its own, until metrics.jsonl has as many
// rows as each of `rows` says; kills it there and resumes it. Its metrics must be those of "whole";
// check(name of the run) does the case's own checks.
template <class Check> void killed_and_resumed(const Toy& toy, std::vector<std::string> command,
                                               std::initializer_list<int> rows, const Check& check) {
    int killed = 0;
    for (const int end : rows) {
        const std::string out = "killed" + std::to_string(end), dir = toy.dir + "/" + out;
        Toy::set(command, "--out", dir);
        std::vector<std::string> program = command;
        program.insert(program.begin(), flatgpt_binary());
        Process p(program);
        auto written = [&] {
            const std::string text = read_file(dir + "/metrics.jsonl");
            return std::count(text.begin(), text.end(), '\n');
        };
        for (int i = 0; i < 20000 && p.running() && written() < end; i++) usleep(500);
        p.send(SIGKILL);
        killed += p.wait().signal == SIGKILL;
        const std::string toml = dir + "/run.toml";
        must(fs::exists(toml) ? std::vector<std::string>{"train", "--config", toml, "--resume", "auto"} : command);
        CHECK(toy.metrics(out) == toy.metrics("whole"));
        check(out);
    }
    CHECK(killed > 0);
}

// Reads lines "rank number" that the ranks' shells have written.
inline std::map<int, int> numbers(const std::string& file) {
    std::istringstream lines(read_file(file));
    std::map<int, int> all;
    for (int rank, n; lines >> rank >> n;) all[rank] = n;
    return all;
}
// Wraps a program in a shell that notes pid and exit status in `dir` and survives mpirun's SIGTERM.
inline std::vector<std::string> noted(const std::string& dir, std::vector<std::string> program) {
    const std::string script = "trap '' TERM; \"$@\" & echo $OMPI_COMM_WORLD_RANK $! >>" + dir +
                               "/pids; wait $!; echo $OMPI_COMM_WORLD_RANK $? >>" + dir + "/codes";
    program.insert(program.begin(), {"sh", "-c", script, "sh"});
    return program;
}
inline void forget_notes(const std::string& dir) {
    for (const char* name : {"/pids", "/codes"}) fs::remove(dir + name);
}
// Writes `other` over each `text` in a process's writable memory, as a fault would. Returns the
// count.
inline int poke(int pid, const std::string& text, const std::string& other) {
    const std::string proc = "/proc/" + std::to_string(pid);
    const int memory = open((proc + "/mem").c_str(), O_RDWR | O_CLOEXEC);
    int found = 0;
    std::istringstream maps(read_file(proc + "/maps"));
    for (std::string line; std::getline(maps, line);) {
        unsigned long from = 0, to = 0;
        char mode[8] = "";
        if (sscanf(line.c_str(), "%lx-%lx %7s", &from, &to, mode) != 3 || strncmp(mode, "rw-p", 4) != 0) continue;
        if (to - from > 1ul << 30) continue;    // a sanitizer's shadow memory
        std::string held(to - from, 0);
        const ssize_t got = pread(memory, held.data(), held.size(), off_t(from));
        held.resize(size_t(std::max<ssize_t>(0, got)));
        for (size_t at = 0; (at = held.find(text, at)) != std::string::npos; at += text.size())
            found += pwrite(memory, other.data(), other.size(), off_t(from + at)) == ssize_t(other.size());
    }
    close(memory);
    return found;
}
inline bool gone(int pid) {    // ended, perhaps a zombie
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    return stat.empty() || contains(stat, ") Z ");
}
// Kills ranks that mpirun may have lost.
struct Killer {
    std::string dir;
    ~Killer() {
        for (auto [rank, pid] : numbers(dir + "/pids")) kill(pid, SIGKILL);
    }
};
// Runs two ranks in the directories 0 and 1; pids and exit codes are noted in the directory notes.
inline ProcessResult RanksToy::run_apart(const std::string& out, const std::vector<std::string>& more) const {
    std::vector<std::string> all;
    for (const char* rank : {"0", "1"}) {
        std::vector<std::string> p = program(out, more);
        p[0] = fs::absolute(flatgpt_binary());
        p.insert(p.begin(), {"env", "-C", dir + "/" + rank});
        p = noted(dir + "/notes", p);
        all.insert(all.end(), {all.empty() ? "mpirun" : ":", "-n", "1"});
        all.insert(all.end(), p.begin(), p.end());
    }
    return run_process(all, mpirun_options(30));
}
