// ranks.cpp - combines the parts of comm.h: rank, connections, collectives.
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

#include "base/philox.h"
#include "protocol.h"

// ---- tokens -------------------------------------------------------------------------------------

JobToken job_token(const std::string& job) {
    uint64_t a = 0x666c6174677074, b = job.size();
    for (size_t at = 0; at < job.size(); at += 8) {
        uint64_t word = 0;
        memcpy(&word, job.data() + at, std::min<size_t>(8, job.size() - at));
        const Philox4 r = philox(a ^ word, b, at);
        a = uint64_t(r.v[0]) << 32 | r.v[1], b ^= uint64_t(r.v[2]) << 32 | r.v[3];
    }
    const Philox4 r = philox(a, b, ~uint64_t(0));
    return JobToken(reinterpret_cast<const char*>(r.v), 16);
}
JobToken random_job_token() {
    JobToken t(16, '\0');
    CHECK(getrandom(t.data(), t.size(), 0) == 16, "no random numbers: %s", strerror(errno));
    return t;
}

// ---- all parts together, for the commands -------------------------------------------------------

namespace {
std::string text_of(const std::string& path) {    // file of /proc; "": its process has ended
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}
// Ranks of this job on this machine that a signal has stopped: "rank 1 (pid 4711)". Ranks are read
// from the launcher's variables in each process's environment.
std::string stopped_here(const RankInfo& mine) {
    std::string list;
    std::error_code error;
    for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
        const std::string pid = at->path().filename();
        if (pid.find_first_not_of("0123456789") != pid.npos) continue;
        const std::string stat = text_of(at->path().string() + "/stat");
        const size_t state = stat.rfind(") ") + 2;    // "4711 (flatgpt) T ..."
        if (stat.size() <= state || stat[state] != 'T') continue;
        const std::string all = '\0' + text_of(at->path().string() + "/environ");
        const Result<RankInfo> theirs = comm_rank_info({}, [&](const char* name) -> const char* {
            const std::string key = '\0' + std::string(name) + "=";
            const size_t found = all.find(key);
            return found == all.npos ? nullptr : all.c_str() + found + key.size();
        });
        if (!theirs.ok() || theirs.value.job != mine.job || theirs.value.ranks != mine.ranks) continue;
        list += (list.empty() ? "" : ", ") + ("rank " + std::to_string(theirs.value.rank)) + " (pid " + pid + ")";
    }
    return list;
}

// Ends the process with exit 7 unless the thread is destroyed in time. Guards calls that wait for
// other ranks before a coordinator exists.
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

// MPI broadcasts rank 0's endpoint, "addresses port ", and a secret token; or "! error".
Result<std::unique_ptr<Coordinator>> rendezvous_by_mpi(const RankInfo& info, std::unique_ptr<Comm>* comm,
                                                       double timeout) {
    Listener listener;
    std::string endpoint;
    if (info.rank == 0) {
        Result<Listener> l = Listener::open("", 0);
        if (l.ok()) {
            listener = l.value;
            endpoint = Listener::addresses() + " " + std::to_string(listener.port) + " " + random_job_token();
        } else endpoint = "! " + l.status.message;
    }
    {
        const std::jthread guard = deadline(timeout, [&] {
            const std::string stopped = stopped_here(info);
            return formatted("rank %d: MPI has not brought all %d ranks together within %.3g s (--timeout): ",
                             info.rank, info.ranks, timeout) +
                   (stopped.empty() ? "one has not started, or has stopped" : "stopped by a signal: " + stopped);
        });
        *comm = TRY(mpi_open(info));
        endpoint = mpi_broadcast(**comm, endpoint);
    }
    if (endpoint.starts_with("! ")) return fail(Exit::peer, "%s", endpoint.c_str() + 2);
    const size_t space = endpoint.find(' ');
    CHECK(space != std::string::npos && endpoint.size() > 16, "%zu bytes", endpoint.size());
    return Coordinator::rendezvous(info, listener, endpoint.substr(0, space), atoi(endpoint.c_str() + space + 1),
                                   endpoint.substr(endpoint.size() - 16), timeout);
}

Result<std::unique_ptr<Coordinator>> rendezvous_by_port(const RankInfo& info, double timeout) {
    Listener listener;
    // The host name may resolve to 127.0.1.1 here and to another address elsewhere, so rank 0
    // listens on every address unless host is loopback.
    if (info.rank == 0 && info.ranks > 1)
        listener = TRY(Listener::open(is_loopback(info.host) ? info.host : "", info.port));
    return Coordinator::rendezvous(info, listener, info.host, info.port, job_token(info.job), timeout);
}
}    // namespace

Status Ranks::open(const CommOptions& o) {
    info = TRY(comm_rank_info(o, [](const char* name) -> const char* { return getenv(name); }));
    if (info.launcher.empty()) return {};
    const Status here = info.mpi && info.ranks > 1 ? mpi_available() : Status{};
    const bool mpi = info.mpi && info.ranks > 1 && here.ok();
    if (!mpi && info.ranks > 1 && (info.host.empty() || info.port == 0))
        return fail(Exit::usage,
                    "%s started %d ranks, and this flatgpt cannot ask MPI where rank 0 is (%s): set "
                    "MASTER_ADDR to its machine and MASTER_PORT to a free port there, on every rank",
                    info.launcher.c_str(), info.ranks, here.message.c_str());
    coordinator = TRY(mpi ? rendezvous_by_mpi(info, &comm, o.timeout) : rendezvous_by_port(info, o.timeout));
    if (comm) comm->activity = &coordinator->activity;
    return {};
}

Status Ranks::start(bool gpu) {
    if (!coordinator) return {};
    if (gpu) {
        Result<std::unique_ptr<Comm>> c = nccl_open(*coordinator);
        if (!c.ok() && info.ranks > 1) return c.status;
        if (!c.ok()) return nccl_error = c.status.message, Status{};    // a single rank needs no NCCL
        comm = std::move(c.value);
        coordinator->exit_hook([nccl = comm.get()] { nccl_abort(*nccl); });
    } else if (!comm && info.ranks == 1) {
        return {};
    } else if (!comm) {
        if (Status s = mpi_available(); !s.ok())
            return fail(Exit::peer, "ranks on CPUs need MPI: %s", s.message.c_str());
        if (!info.mpi && info.launcher != "Slurm")
            return fail(Exit::usage, "ranks on CPUs need MPI, and %s is no launcher of it: mpirun -np %d flatgpt ...",
                        info.launcher.c_str(), info.ranks);
        const Waiting waiting(&coordinator->activity);
        comm = TRY(mpi_open(info));
    }
    comm->activity = &coordinator->activity;
    return {};
}
