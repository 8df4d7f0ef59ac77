// ranks.cpp - all parts of comm.h put together: finds the place, meets the others, opens the collectives.
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "wire.h"

// ---- tokens ---------------------------------------------------------------------------------------------------------

Token comm_token(const std::string& job) {
    uint64_t a = 0x666c6174677074, b = job.size();
    for (size_t at = 0; at < job.size(); at += 8) {
        uint64_t word = 0;
        memcpy(&word, job.data() + at, std::min<size_t>(8, job.size() - at));
        const Philox4 r = philox(a ^ word, b, at);
        a = uint64_t(r.v[0]) << 32 | r.v[1], b ^= uint64_t(r.v[2]) << 32 | r.v[3];
    }
    const Philox4 r = philox(a, b, ~uint64_t(0));
    return Token(reinterpret_cast<const char*>(r.v), 16);
}
Token comm_random_token() {
    Token t(16, '\0');
    CHECK(getrandom(t.data(), t.size(), 0) == 16, "no random numbers: %s", strerror(errno));
    return t;
}

// ---- all of it, for the commands ------------------------------------------------------------------------------------

namespace {
std::string hex(const Token& t) {
    std::string s;
    for (unsigned char c : t) s += "0123456789abcdef"[c >> 4], s += "0123456789abcdef"[c & 15];
    return s;
}

std::string text_of(const std::string& path) {    // a file of /proc; "" where its process ends meanwhile
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}
// The ranks of this job whose processes on this machine a signal has stopped: "rank 1 (pid 4711)". The launcher's
// variables in a process's environment give its rank.
std::string stopped_here(const Place& mine) {
    std::string list;
    std::error_code error;
    for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
        const std::string pid = at->path().filename();
        if (pid.find_first_not_of("0123456789") != pid.npos) continue;
        const std::string stat = text_of(at->path().string() + "/stat");
        const size_t state = stat.rfind(") ") + 2;    // "4711 (flatgpt) T ..."
        if (stat.size() <= state || stat[state] != 'T') continue;
        const std::string all = '\0' + text_of(at->path().string() + "/environ");
        const Result<Place> theirs = comm_place({}, [&](const char* name) -> const char* {
            const std::string key = '\0' + std::string(name) + "=";
            const size_t found = all.find(key);
            return found == all.npos ? nullptr : all.c_str() + found + key.size();
        });
        if (!theirs.ok() || theirs.value.job != mine.job || theirs.value.ranks != mine.ranks) continue;
        list += (list.empty() ? "" : ", ") + ("rank " + std::to_string(theirs.value.rank)) + " (pid " + pid + ")";
    }
    return list;
}

// Ends the process with exit 7 unless the thread is gone in time. It guards a call that waits for other ranks before
// there is a watch.
std::jthread deadline(double seconds, std::function<std::string()> text) {
    return std::jthread([seconds, text](std::stop_token stop) {
        std::mutex mutex;
        std::unique_lock lock(mutex);
        std::condition_variable_any never;
        never.wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
        if (stop.stop_requested()) return;
        fprintf(stderr, "flatgpt: %s\n", text().c_str());
        end_process(Exit::peer);
    });
}

// MPI carries where rank 0 listens and a token that nobody can guess: "addresses port token", or why there is none.
Result<std::unique_ptr<Watch>> meet_by_mpi(const Place& place, std::unique_ptr<Comm>* comm, double timeout) {
    Listener listener;
    std::string told;
    if (place.rank == 0) {
        Result<Listener> l = Listener::open("", 0);
        if (l.ok()) {
            listener = l.value;
            told = Listener::addresses() + " " + std::to_string(listener.port) + " " + hex(comm_random_token());
        } else told = "! " + l.status.message;
    }
    {
        const std::jthread guard = deadline(timeout, [&] {
            const std::string stopped = stopped_here(place);
            return formatted("rank %d: MPI has not brought all %d ranks together within %.3g s (--timeout): ",
                             place.rank, place.ranks, timeout) +
                   (stopped.empty() ? "one has not started, or has stopped" : "stopped by a signal: " + stopped);
        });
        *comm = TRY(mpi_open(place));
        told = mpi_broadcast(**comm, told);
    }
    if (told.starts_with("! ")) return fail(Exit::peer, "%s", told.c_str() + 2);
    const size_t a = told.find(' '), b = told.rfind(' ');
    CHECK(a != std::string::npos && a < b, "'%s'", told.c_str());
    return Watch::meet(place, listener, told.substr(0, a), atoi(told.c_str() + a + 1), comm_token(told.substr(b + 1)),
                       timeout);
}

Result<std::unique_ptr<Watch>> meet_by_port(const Place& place, double timeout) {
    Listener listener;
    // A name may mean 127.0.1.1 here and this machine's address elsewhere: every address, but for loopback's own.
    if (place.rank == 0 && place.ranks > 1)
        listener = TRY(Listener::open(is_loopback(place.host) ? place.host : "", place.port));
    return Watch::meet(place, listener, place.host, place.port, comm_token(place.job), timeout);
}
}    // namespace

Status Ranks::open(const CommOptions& o) {
    place = TRY(comm_place(o, [](const char* name) -> const char* { return getenv(name); }));
    if (place.launcher.empty()) return {};
    const Status here = place.mpi && place.ranks > 1 ? mpi_available() : Status{};
    const bool mpi = place.mpi && place.ranks > 1 && here.ok();
    if (!mpi && place.ranks > 1 && (place.host.empty() || place.port == 0))
        return fail(Exit::usage,
                    "%s started %d ranks, and this flatgpt cannot ask MPI where rank 0 is (%s): set "
                    "MASTER_ADDR to its machine and MASTER_PORT to a free port there, on every rank",
                    place.launcher.c_str(), place.ranks, here.message.c_str());
    watch = TRY(mpi ? meet_by_mpi(place, &comm, o.timeout) : meet_by_port(place, o.timeout));
    if (comm) comm->pulse = &watch->pulse;
    return {};
}

Status Ranks::start(bool gpu) {
    if (!watch) return {};
    if (gpu) {
        Result<std::unique_ptr<Comm>> c = nccl_open(*watch);
        if (!c.ok() && place.ranks > 1) return c.status;
        if (!c.ok()) return no_nccl = c.status.message, Status{};    // alone it does without
        comm = std::move(c.value);
        watch->before_exit([nccl = comm.get()] { nccl_abort(*nccl); });
    } else if (!comm && place.ranks == 1) {
        return {};
    } else if (!comm) {
        if (Status s = mpi_available(); !s.ok())
            return fail(Exit::peer, "ranks on CPUs need MPI: %s", s.message.c_str());
        if (!place.mpi && place.launcher != "Slurm")
            return fail(Exit::usage, "ranks on CPUs need MPI, and %s is no launcher of it: mpirun -np %d flatgpt ...",
                        place.launcher.c_str(), place.ranks);
        const Waiting waiting(&watch->pulse);
        comm = TRY(mpi_open(place));
    }
    comm->pulse = &watch->pulse;
    return {};
}
