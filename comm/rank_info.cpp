// rank_info.cpp - finds this process's rank: from flags, or from its launcher's variables.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "protocol.h"

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

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
    // Reads the rank and the number of ranks; both variables must be set.
    Status pair(const char* rank, const char* ranks, RankInfo* p) const {
        for (auto [set, missing] : {std::pair(rank, ranks), std::pair(ranks, rank)})
            if (has(set) && !has(missing))
                return fail(Exit::usage, "%s is %s, and %s is not set: a launcher sets both, or neither", set,
                            text(set).c_str(), missing);
        TRY(number(ranks, 1, MOST_RANKS, &p->ranks));
        return number(rank, 0, p->ranks - 1, &p->rank);
    }
    // Sets the local rank. Without a launcher's value, it is the rank if all ranks are on this
    // machine, else 0, because ranks started by hand are usually one on each machine.
    Status local(const char* name, bool one_machine, RankInfo* p) const {
        if (has(name)) return number(name, 0, MOST_RANKS, &p->local_rank);
        p->local_rank = one_machine ? p->rank : 0;
        return {};
    }
    Status master(RankInfo* p) const {    // host and port, where the variables are set
        if (has("MASTER_PORT")) TRY(number("MASTER_PORT", 1, 65535, &p->port));
        if (has("MASTER_ADDR")) p->host = text("MASTER_ADDR");
        return {};
    }
};

// Linux assigns ports from 32768 on to outgoing connections, for example NCCL's and MPI's.
int port_from_job(uint64_t n) { return 20000 + int(n % 12768); }

// Parses HOST:PORT or [IPv6]:PORT.
Status read_master(const std::string& text, RankInfo* p) {
    const size_t colon = text.rfind(':');
    const bool brackets = !text.empty() && text[0] == '[';
    const std::string host = colon == std::string::npos ? "" : text.substr(0, colon);
    char* end = nullptr;
    const long port = host.empty() ? 0 : strtol(text.c_str() + colon + 1, &end, 10);
    if (port < 1 || port > 65535 || *end ||
        (brackets ? host.back() != ']' || host.size() < 3 : host.find(':') != std::string::npos))
        return fail(Exit::usage, "--master is '%s': HOST:PORT or [IPv6]:PORT is expected", text.c_str());
    p->host = brackets ? host.substr(1, host.size() - 2) : host;
    p->port = int(port);
    return {};
}

Status from_flags(const CommOptions& o, const Environment&, RankInfo* p) {
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
    p->job = "port " + std::to_string(p->port);    // the port only: the host has many names
    return {};
}

Status from_torchrun(const CommOptions&, const Environment& env, RankInfo* p) {
    // Other programs use RANK and WORLD_SIZE, too, so one without the other is an error only beside
    // another torchrun variable.
    const bool sure = env.has("MASTER_ADDR") || env.has("MASTER_PORT") || env.has("TORCHELASTIC_RUN_ID");
    const bool rank = env.has("RANK"), ranks = env.has("WORLD_SIZE");
    if (!rank && !ranks) return {};
    if (rank != ranks && !sure) return {};
    TRY(env.pair("RANK", "WORLD_SIZE", p));
    TRY(env.master(p));
    if (p->ranks > 1 && (p->host.empty() || p->port == 0))
        return fail(Exit::usage, "WORLD_SIZE is %d, and %s is not set: it must name rank 0's machine or port", p->ranks,
                    p->host.empty() ? "MASTER_ADDR" : "MASTER_PORT");
    // The restart count is left out, because torchrun counts restarts per machine.
    p->job = env.text("TORCHELASTIC_RUN_ID") + " port " + std::to_string(p->port);
    // torchrun's own store listens on MASTER_PORT.
    if (env.text("TORCHELASTIC_USE_AGENT_STORE") == "True") p->port += p->port < 65535 ? 1 : -1;
    p->launcher = "torchrun";
    if (env.has("LOCAL_WORLD_SIZE")) TRY(env.number("LOCAL_WORLD_SIZE", 1, MOST_RANKS, &p->local_ranks));
    return env.local("LOCAL_RANK", is_loopback(p->host), p);
}

Status from_open_mpi(const CommOptions&, const Environment& env, RankInfo* p) {
    if (!env.has("OMPI_COMM_WORLD_RANK") && !env.has("OMPI_COMM_WORLD_SIZE")) return {};
    TRY(env.pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", p));
    const bool one_machine = env.text("OMPI_COMM_WORLD_LOCAL_SIZE") == env.text("OMPI_COMM_WORLD_SIZE");
    const std::string id = env.text(env.has("PMIX_NAMESPACE") ? "PMIX_NAMESPACE" : "OMPI_MCA_ess_base_jobid");
    p->launcher = "Open MPI", p->mpi = true;
    p->job = id + " " + env.text("OMPI_MCA_orte_precondition_transports");    // a random number of the job
    if (one_machine && !id.empty()) {
        uint16_t bits;
        memcpy(&bits, job_token(p->job).data(), sizeof bits);
        p->host = "127.0.0.1", p->port = port_from_job(bits);
    }
    if (env.has("OMPI_COMM_WORLD_LOCAL_SIZE"))
        TRY(env.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, MOST_RANKS, &p->local_ranks));
    TRY(env.master(p));
    return env.local("OMPI_COMM_WORLD_LOCAL_RANK", one_machine, p);
}

void slurm_rendezvous(const Environment& env, RankInfo* p) {
    const int64_t job = env.id("SLURM_JOB_ID", "SLURM_JOBID"), step = env.id("SLURM_STEP_ID", "SLURM_STEPID");
    if (job <= 0) return;
    const char* list = env.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    p->host = env.text("SLURM_STEP_NUM_NODES") == "1" ? "127.0.0.1" : slurm_first_host(env.text(list));
    p->port = port_from_job(uint64_t(job) + 9973 * uint64_t(step));
    p->job = "Slurm " + std::to_string(job) + "." + std::to_string(step);
}

Status from_pmi(const CommOptions&, const Environment& env, RankInfo* p) {
    if (!env.has("PMI_RANK") && !env.has("PMI_SIZE")) return {};
    // These variables are from Slurm's own PMI, which many installations of Slurm use by default.
    // Slurm's other variables are used instead, because they contain more, and because an MPI
    // library that does not support this PMI would end the process.
    if (env.has("PMI_JOBID") && env.text("PMI_JOBID") == env.text("SLURM_JOB_ID") + "." + env.text("SLURM_STEP_ID"))
        return {};
    TRY(env.pair("PMI_RANK", "PMI_SIZE", p));
    p->launcher = "PMI", p->mpi = true;
    slurm_rendezvous(env, p);
    TRY(env.master(p));
    if (p->job.empty()) p->job = "port " + std::to_string(p->port);
    const bool one_machine = env.text("MPI_LOCALNRANKS") == env.text("PMI_SIZE");
    if (env.has("MPI_LOCALNRANKS")) TRY(env.number("MPI_LOCALNRANKS", 1, MOST_RANKS, &p->local_ranks));
    return env.local(env.has("MPI_LOCALRANKID") ? "MPI_LOCALRANKID" : "SLURM_LOCALID", one_machine, p);
}

// In Slurm, only a step has ranks. A batch script also has SLURM_PROCID, but is one process. The
// same is true of an interactive shell, which newer versions run as a step with one of the
// reserved, highest step numbers.
Status from_slurm(const CommOptions&, const Environment& env, RankInfo* p) {
    if (!env.has("SLURM_PROCID") || !env.has("SLURM_STEP_NUM_TASKS")) return {};
    if (env.id("SLURM_STEP_ID", "SLURM_STEPID") >= 0xfffffff0) return {};
    TRY(env.pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", p));
    p->launcher = "Slurm";
    const std::string ranks = env.text("SLURM_GTIDS");    // ranks on this machine: 4,5,6,7
    p->local_ranks = 1 + int(std::count(ranks.begin(), ranks.end(), ','));
    slurm_rendezvous(env, p);
    TRY(env.master(p));
    if (p->ranks > 1 && (p->host.empty() || p->port == 0))
        return fail(Exit::usage, "a Slurm step of %d tasks without %s: MASTER_ADDR and MASTER_PORT would tell, too",
                    p->ranks, p->host.empty() ? "SLURM_STEP_NODELIST" : "SLURM_JOB_ID");
    return env.local("SLURM_LOCALID", env.text("SLURM_STEP_NUM_NODES") == "1", p);
}
}    // namespace

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

Result<RankInfo> comm_rank_info(const CommOptions& o, const std::function<const char*(const char*)>& variable) {
    const Environment env{variable};
    RankInfo p;
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
    if (!env.has("FLATGPT_ALONE")) return p;
    RankInfo alone;
    alone.local_rank = p.local_rank;
    alone.local_ranks = p.local_ranks;
    return alone;
}
