// comm.cpp - the ranks of a run: what their launcher says, where rank 0 listens, and all parts of comm.h put together.
#include "comm.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "comm_wire.h"

// ---- who we are ----------------------------------------------------------------------------------------------------

namespace {
constexpr int MOST_RANKS = 65536;

struct Environment {
    const std::function<const char*(const char*)>& variable;

    std::string text(const char* name) const {    // "": not set, or empty
        const char* value = variable(name);
        return value ? value : "";
    }
    bool has(const char* name) const { return !text(name).empty(); }
    Status number(const char* name, int low, int high, int* to) const {
        const std::string s = text(name);
        char* end = nullptr;
        errno = 0;
        const long n = strtol(s.c_str(), &end, 10);
        if (s.empty() || *end || errno || n < low || n > high)
            return fail(Exit::usage, "%s is '%s': a whole number from %d to %d is expected", name, s.c_str(), low,
                        high);
        *to = int(n);
        return {};
    }
    int64_t id(const char* name, const char* other) const { return atoll(text(has(name) ? name : other).c_str()); }
    // Rank and ranks; both must be there.
    Status pair(const char* rank, const char* ranks, Place* p) const {
        for (auto [here, missing] : {std::pair(rank, ranks), std::pair(ranks, rank)})
            if (has(here) && !has(missing))
                return fail(Exit::usage, "%s is %s, and %s is not set: a launcher sets both, or neither", here,
                            text(here).c_str(), missing);
        TRY(number(ranks, 1, MOST_RANKS, &p->ranks));
        return number(rank, 0, p->ranks - 1, &p->rank);
    }
    // Where no launcher tells the place on this machine: the rank itself if all are here, else the first, as one rank
    // for each machine is what people start by hand.
    Status local(const char* name, bool all_here, Place* p) const {
        if (has(name)) return number(name, 0, MOST_RANKS, &p->local_rank);
        p->local_rank = all_here ? p->rank : 0;
        return {};
    }
    Status master(Place* p) const {    // MASTER_ADDR, MASTER_PORT where they are set
        if (has("MASTER_PORT")) TRY(number("MASTER_PORT", 1, 65535, &p->port));
        if (has("MASTER_ADDR")) p->host = text("MASTER_ADDR");
        return {};
    }
};

// From 32768 on Linux gives ports to whoever connects anywhere, NCCL's and MPI's connections among them.
int likely_port(uint64_t n) { return 20000 + int(n % 12768); }

bool is_loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// HOST:PORT, [IPv6]:PORT
Status read_master(const std::string& text, Place* p) {
    const size_t colon = text.rfind(':');
    const bool brackets = !text.empty() && text[0] == '[';
    const std::string host = colon == std::string::npos ? "" : text.substr(0, colon);
    char* end = nullptr;
    const long port = host.empty() ? 0 : strtol(text.c_str() + colon + 1, &end, 10);
    if (port < 1 || port > 65535 || *end || (brackets ? host.back() != ']' || host.size() < 3
                                                      : host.find(':') != std::string::npos))
        return fail(Exit::usage, "--master is '%s': HOST:PORT or [IPv6]:PORT is expected", text.c_str());
    p->host = brackets ? host.substr(1, host.size() - 2) : host;
    p->port = int(port);
    return {};
}

Status from_flags(const CommOptions& o, const Environment&, Place* p) {
    if (o.ranks == 0 && o.rank < 0) return {};
    if (o.ranks < 1 || o.rank < 0) return fail(Exit::usage, "--rank and --ranks go together: one of them is missing");
    if (o.rank >= o.ranks || o.ranks > MOST_RANKS)
        return fail(Exit::usage, "--rank %d of --ranks %d: ranks are 0 to %d", o.rank, o.ranks,
                    std::min(o.ranks, MOST_RANKS) - 1);
    if (o.ranks > 1 && o.master.empty())
        return fail(Exit::usage, "--ranks %d needs --master HOST:PORT, where rank 0 is to be found", o.ranks);
    p->rank = o.rank, p->ranks = o.ranks, p->launcher = "--ranks";
    if (!o.master.empty()) TRY(read_master(o.master, p));
    p->local_rank = is_loopback(p->host) ? p->rank : 0;
    p->job = "port " + std::to_string(p->port);    // the host has many names
    return {};
}

Status from_torchrun(const CommOptions&, const Environment& env, Place* p) {
    // RANK and WORLD_SIZE are words that others use, too: half of the pair counts when more speaks for torchrun.
    const bool sure = env.has("MASTER_ADDR") || env.has("MASTER_PORT") || env.has("TORCHELASTIC_RUN_ID");
    const bool rank = env.has("RANK"), ranks = env.has("WORLD_SIZE");
    if (!rank && !ranks) return {};
    if (rank != ranks && !sure) return {};
    TRY(env.pair("RANK", "WORLD_SIZE", p));
    TRY(env.master(p));
    if (p->ranks > 1 && (p->host.empty() || p->port == 0))
        return fail(Exit::usage, "WORLD_SIZE is %d, and %s is not set: rank 0 is to be found there", p->ranks,
                    p->host.empty() ? "MASTER_ADDR" : "MASTER_PORT");
    // Not the restart count: torchrun counts it for each machine by itself.
    p->job = env.text("TORCHELASTIC_RUN_ID") + " port " + std::to_string(p->port);
    // torchrun's own store listens on MASTER_PORT.
    if (env.text("TORCHELASTIC_USE_AGENT_STORE") == "True") p->port += p->port < 65535 ? 1 : -1;
    p->launcher = "torchrun";
    return env.local("LOCAL_RANK", is_loopback(p->host), p);
}

Status from_open_mpi(const CommOptions&, const Environment& env, Place* p) {
    if (!env.has("OMPI_COMM_WORLD_RANK") && !env.has("OMPI_COMM_WORLD_SIZE")) return {};
    TRY(env.pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", p));
    const bool all_here = env.text("OMPI_COMM_WORLD_LOCAL_SIZE") == env.text("OMPI_COMM_WORLD_SIZE");
    const std::string id = env.text(env.has("PMIX_NAMESPACE") ? "PMIX_NAMESPACE" : "OMPI_MCA_ess_base_jobid");
    p->launcher = "Open MPI", p->mpi = true;
    p->job = id + " " + env.text("OMPI_MCA_orte_precondition_transports");    // which is random
    if (all_here && !id.empty()) {
        uint16_t bits;
        memcpy(&bits, comm_token(p->job).data(), sizeof bits);
        p->host = "127.0.0.1", p->port = likely_port(bits);
    }
    if (env.has("OMPI_COMM_WORLD_LOCAL_SIZE"))
        TRY(env.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, MOST_RANKS, &p->local_ranks));
    TRY(env.master(p));
    return env.local("OMPI_COMM_WORLD_LOCAL_RANK", all_here, p);
}

void slurm_meeting(const Environment& env, Place* p) {
    const int64_t job = env.id("SLURM_JOB_ID", "SLURM_JOBID"), step = env.id("SLURM_STEP_ID", "SLURM_STEPID");
    if (job <= 0) return;
    const char* list = env.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    p->host = env.text("SLURM_STEP_NUM_NODES") == "1" ? "127.0.0.1" : slurm_first_host(env.text(list));
    p->port = likely_port(uint64_t(job) + 9973 * uint64_t(step));
    p->job = "Slurm " + std::to_string(job) + "." + std::to_string(step);
}

Status from_pmi(const CommOptions&, const Environment& env, Place* p) {
    if (!env.has("PMI_RANK") && !env.has("PMI_SIZE")) return {};
    // Slurm's own PMI, often its default: the step tells more, and an MPI that does not speak it would end the process.
    if (env.has("PMI_JOBID") && env.text("PMI_JOBID") == env.text("SLURM_JOB_ID") + "." + env.text("SLURM_STEP_ID"))
        return {};
    TRY(env.pair("PMI_RANK", "PMI_SIZE", p));
    p->launcher = "PMI", p->mpi = true;
    slurm_meeting(env, p);
    TRY(env.master(p));
    if (p->job.empty()) p->job = "port " + std::to_string(p->port);
    const bool all_here = env.text("MPI_LOCALNRANKS") == env.text("PMI_SIZE");
    if (env.has("MPI_LOCALNRANKS")) TRY(env.number("MPI_LOCALNRANKS", 1, MOST_RANKS, &p->local_ranks));
    return env.local(env.has("MPI_LOCALRANKID") ? "MPI_LOCALRANKID" : "SLURM_LOCALID", all_here, p);
}

// Only inside a step: a batch script has SLURM_PROCID, too, and is one process. So is an interactive shell, which
// newer versions run as a step with one of the numbers reserved at the top.
Status from_slurm(const CommOptions&, const Environment& env, Place* p) {
    if (!env.has("SLURM_PROCID") || !env.has("SLURM_STEP_NUM_TASKS")) return {};
    if (env.id("SLURM_STEP_ID", "SLURM_STEPID") >= 0xfffffff0) return {};
    TRY(env.pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", p));
    p->launcher = "Slurm";
    const std::string here = env.text("SLURM_GTIDS");    // the ranks of this machine: 4,5,6,7
    p->local_ranks = 1 + int(std::count(here.begin(), here.end(), ','));
    slurm_meeting(env, p);
    TRY(env.master(p));
    if (p->ranks > 1 && (p->host.empty() || p->port == 0))
        return fail(Exit::usage, "a Slurm step of %d tasks without %s: MASTER_ADDR and MASTER_PORT would tell, too",
                    p->ranks, p->host.empty() ? "SLURM_STEP_NODELIST" : "SLURM_JOB_ID");
    return env.local("SLURM_LOCALID", env.text("SLURM_STEP_NUM_NODES") == "1", p);
}
}   // namespace

std::string slurm_first_host(const std::string& list) {
    std::string host;
    for (size_t i = 0; i < list.size() && list[i] != ','; i++) {
        if (list[i] != '[') {
            host += list[i];
            continue;
        }
        const size_t end = list.find_first_of(",-]", i), close = list.find(']', i);
        if (close == std::string::npos) return "";
        host += list.substr(i + 1, end - i - 1);
        i = close;
    }
    return host;
}

Result<Place> comm_place(const CommOptions& o, const std::function<const char*(const char*)>& variable) {
    const Environment env{variable};
    Place p;
    for (auto from : {from_flags, from_torchrun, from_open_mpi, from_pmi, from_slurm}) {
        TRY(from(o, env, &p));
        if (!p.launcher.empty()) break;
        p = {};
    }
    if (p.launcher.empty() && (!o.master.empty() || o.local_rank >= 0))
        return fail(Exit::usage, "%s without --rank and --ranks, and without a launcher that sets them",
                    o.master.empty() ? "--local-rank" : "--master");
    if (!o.master.empty()) TRY(read_master(o.master, &p));
    if (o.local_rank >= 0) p.local_rank = o.local_rank;
    if (env.has("FLATGPT_TOKEN")) p.job += " " + env.text("FLATGPT_TOKEN");
    return p;
}

// ---- tokens --------------------------------------------------------------------------------------------------------

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

// ---- listening -----------------------------------------------------------------------------------------------------

std::vector<Address> resolve(const std::string& host, int port, std::string* why) {
    addrinfo hints{}, *all = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    std::vector<Address> result;
    if (int e = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &all)) {
        *why = "the name " + host + ": " + gai_strerror(e);
        return result;
    }
    for (addrinfo* a = all; a; a = a->ai_next) {
        result.emplace_back();
        memcpy(&result.back().s, a->ai_addr, a->ai_addrlen);
        result.back().size = a->ai_addrlen;
    }
    freeaddrinfo(all);
    return result;
}
namespace {
std::vector<Address> every_address(int port) {
    Address six, four;
    auto* a = reinterpret_cast<sockaddr_in6*>(&six.s);
    auto* b = reinterpret_cast<sockaddr_in*>(&four.s);
    a->sin6_family = AF_INET6, a->sin6_port = htons(uint16_t(port)), six.size = sizeof *a;
    b->sin_family = AF_INET, b->sin_port = htons(uint16_t(port)), four.size = sizeof *b;
    return {six, four};
}
int listen_at(const Address& a) {    // -1: errno
    const int fd = socket(a.s.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, off = 0;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a.s.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!bind(fd, reinterpret_cast<const sockaddr*>(&a.s), a.size) && !listen(fd, 4096)) return fd;
    const int e = errno;
    close(fd);
    return errno = e, -1;
}
}   // namespace

Result<Listener> Listener::open(const std::string& host, int port) {
    std::string why;
    Listener l;
    int error = EADDRNOTAVAIL;
    for (const Address& a : host.empty() ? every_address(port) : resolve(host, port, &why)) {
        if ((l.fd = listen_at(a)) >= 0) break;
        error = errno;
        if (error == EADDRINUSE || error == EACCES) break;    // IPv6 tells; IPv4 alone would hide it
    }
    if (l.fd < 0) {
        const std::string text = why.empty() ? strerror(error) : why;
        const char* advice = error == EADDRINUSE ? "another process has it: choose another one, or end that"
                             : error == EACCES   ? "choose one from 1024 on"
                                                 : "rank 0 runs on the machine that has this address";
        return fail(Exit::peer, "rank 0 cannot listen on port %d%s%s: %s (%s)", port, host.empty() ? "" : " of ",
                    host.c_str(), text.c_str(), advice);
    }
    Address own;
    own.size = sizeof own.s;
    CHECK(!getsockname(l.fd, reinterpret_cast<sockaddr*>(&own.s), &own.size));
    l.port = ntohs(own.s.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own.s)->sin6_port
                                               : reinterpret_cast<sockaddr_in*>(&own.s)->sin_port);
    return l;
}

std::string Listener::addresses() {
    std::string four, six;
    ifaddrs* all = nullptr;
    if (getifaddrs(&all)) return "127.0.0.1";
    for (ifaddrs* i = all; i; i = i->ifa_next) {
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) continue;
        char text[INET6_ADDRSTRLEN];
        if (i->ifa_addr->sa_family == AF_INET) {
            auto* a = reinterpret_cast<sockaddr_in*>(i->ifa_addr);
            four += std::string(inet_ntop(AF_INET, &a->sin_addr, text, sizeof text)) + ",";
        } else if (i->ifa_addr->sa_family == AF_INET6) {
            auto* a = reinterpret_cast<sockaddr_in6*>(i->ifa_addr);
            if (IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr)) continue;    // they hold on one link alone
            six += std::string(inet_ntop(AF_INET6, &a->sin6_addr, text, sizeof text)) + ",";
        }
    }
    freeifaddrs(all);
    return four + six + "127.0.0.1";
}

// ---- all of it, for the commands -----------------------------------------------------------------------------------

namespace {
std::string hex(const Token& t) {
    std::string s;
    for (unsigned char c : t) s += "0123456789abcdef"[c >> 4], s += "0123456789abcdef"[c & 15];
    return s;
}

// Ends the process with exit 7 unless it is gone in time: of a call that waits for other ranks before there is a watch.
class Deadline {
    std::mutex mutex;
    std::condition_variable changed;
    bool gone = false;
    std::thread thread;

  public:
    Deadline(double seconds, const std::string& text)
        : thread([this, seconds, text] {
              std::unique_lock lock(mutex);
              if (changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return gone; })) return;
              fprintf(stderr, "flatgpt: %s\n", text.c_str());
              _exit(int(Exit::peer));
          }) {}
    ~Deadline() {
        {
            std::lock_guard lock(mutex);
            gone = true;
        }
        changed.notify_all();
        thread.join();
    }
};

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
        const Deadline deadline(timeout, fail(Exit::peer, "rank %d: MPI has not brought all %d ranks together within "
                                              "%.3g s (--timeout): one has not started, or has stopped",
                                              place.rank, place.ranks, timeout).message);
        Result<std::unique_ptr<Comm>> mpi = mpi_open(place);
        if (!mpi.ok()) return mpi.status;
        *comm = std::move(mpi.value);
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
    if (place.rank == 0 && place.ranks > 1) {
        // A name may mean 127.0.1.1 here and this machine's address elsewhere: every address, but for loopback's own.
        Result<Listener> l = Listener::open(is_loopback(place.host) ? place.host : "", place.port);
        if (!l.ok()) return l.status;
        listener = l.value;
    }
    return Watch::meet(place, listener, place.host, place.port, comm_token(place.job), timeout);
}
}   // namespace

Status Ranks::open(const CommOptions& o) {
    Result<Place> p = comm_place(o, [](const char* name) -> const char* { return getenv(name); });
    if (!p.ok()) return p.status;
    place = p.value;
    if (place.launcher.empty()) return {};
    std::string why;
    const bool mpi = place.mpi && place.ranks > 1 && mpi_available(&why);
    if (!mpi && place.ranks > 1 && (place.host.empty() || place.port == 0))
        return fail(Exit::usage, "%s started %d ranks, and this flatgpt cannot ask MPI where rank 0 is (%s): set "
                    "MASTER_ADDR to its machine and MASTER_PORT to a free port there, on every rank",
                    place.launcher.c_str(), place.ranks, why.c_str());
    Result<std::unique_ptr<Watch>> w = mpi ? meet_by_mpi(place, &comm, o.timeout) : meet_by_port(place, o.timeout);
    if (!w.ok()) return w.status;
    watch = std::move(w.value);
    if (comm) comm->pulse = &watch->pulse;
    return {};
}

Status Ranks::start(bool gpu) {
    if (!watch) return {};
    if (gpu) {
        Result<std::unique_ptr<Comm>> c = nccl_open(*watch);
        if (!c.ok()) return place.ranks == 1 ? Status{} : c.status;    // alone it does without
        comm = std::move(c.value);
        watch->before_exit([nccl = comm.get()] { nccl_abort(*nccl); });
    } else if (!comm && place.ranks == 1) {
        return {};
    } else if (!comm) {
        std::string why;
        if (!mpi_available(&why)) return fail(Exit::peer, "ranks on CPUs need MPI: %s", why.c_str());
        if (!place.mpi && place.launcher != "Slurm")
            return fail(Exit::usage, "ranks on CPUs need MPI, and %s is no launcher of it: mpirun -np %d flatgpt ...",
                        place.launcher.c_str(), place.ranks);
        const Waiting waiting(&watch->pulse);
        Result<std::unique_ptr<Comm>> c = mpi_open(place);
        if (!c.ok()) return c.status;
        comm = std::move(c.value);
    }
    comm->pulse = &watch->pulse;
    return {};
}
