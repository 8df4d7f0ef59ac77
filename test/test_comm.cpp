// test_comm.cpp - ranks in one process: launchers' variables, tokens, ports, frames, stalled ranks.
#include "comm/protocol.h"
#include "base/console.h"
#include "base/philox.h"
#include "test.h"

#include <map>
#include <sstream>
#include <unistd.h>

namespace {
// A lookup like getenv in "NAME=value NAME=value".
std::function<const char*(const char*)> environment(const std::string& text) {
    auto all = std::make_shared<std::map<std::string, std::string>>();
    std::istringstream words(text);
    for (std::string w; words >> w;) (*all)[w.substr(0, w.find('='))] = w.substr(w.find('=') + 1);
    return [all](const char* name) { return all->count(name) ? (*all)[name].c_str() : nullptr; };
}
// Returns "launcher rank/ranks local_rank host:port [job]", or "exit code: message".
std::string place_text(const CommOptions& o, const std::string& variables) {
    Result<RankInfo> r = comm_rank_info(o, environment(variables));
    if (!r.ok()) return std::to_string(int(r.status.code)) + ": " + r.status.message;
    const RankInfo& p = r.value;
    std::ostringstream s;
    s << (p.launcher.empty() ? "alone" : p.launcher) << (p.mpi ? "+mpi " : " ") << p.rank << "/" << p.ranks << " "
      << p.local_rank << " " << p.host << ":" << p.port << " [" << p.job << "]";
    return s.str();
}
struct Case {
    std::string variables, expected;
};
const std::string TORCH =
    "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=n1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=abc "
    "TORCHELASTIC_RESTART_COUNT=2 ";
const std::string OMPI = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 ";
const std::string SLURM =
    "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_JOB_ID=123456 SLURM_STEP_ID=2 "
    "SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=gpu[07-08] SLURM_JOB_NODELIST=gpu[01-08] ";
}    // namespace

TEST_CASE("comm: the place by each launcher's variables") {
    const std::vector<Case> cases = {
        {"", "alone 0/1 0 :0 []"},
        {TORCH, "torchrun 3/8 1 n1:29500 [abc port 29500]"},
        {TORCH + "TORCHELASTIC_USE_AGENT_STORE=True", "torchrun 3/8 1 n1:29501 [abc port 29500]"},
        {TORCH + "TORCHELASTIC_USE_AGENT_STORE=False", "torchrun 3/8 1 n1:29500 [abc port 29500]"},
        {TORCH + "FLATGPT_TOKEN=secret", "torchrun 3/8 1 n1:29500 [abc port 29500 secret]"},
        {TORCH + OMPI + SLURM, "torchrun 3/8 1 n1:29500 [abc port 29500]"},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5", "torchrun 1/2 1 127.0.0.1:5 [ port 5]"},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=5", "torchrun 1/2 0 n1:5 [ port 5]"},
        {"RANK=0 WORLD_SIZE=1", "torchrun 0/1 0 :0 [ port 0]"},
        {"RANK=3", "alone 0/1 0 :0 []"},
        {"WORLD_SIZE=3", "alone 0/1 0 :0 []"},
        {OMPI + "PMIX_NAMESPACE=77", "Open MPI+mpi 1/4 1 :0 [77 ]"},
        {OMPI + "MASTER_ADDR=h MASTER_PORT=9", "Open MPI+mpi 1/4 1 h:9 [ ]"},
        {OMPI + SLURM, "Open MPI+mpi 1/4 1 :0 [ ]"},
        {"PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=1", "PMI+mpi 2/4 1 :0 [port 0]"},
        {"PMI_RANK=2 PMI_SIZE=4 MPI_LOCALNRANKS=4", "PMI+mpi 2/4 2 :0 [port 0]"},
        {"PMI_RANK=5 PMI_SIZE=8 " + SLURM, "PMI+mpi 5/8 1 gpu07:22954 [Slurm 123456.2]"},
        {SLURM, "Slurm 5/8 1 gpu07:22954 [Slurm 123456.2]"},
        {"PMI_RANK=5 PMI_SIZE=8 PMI_JOBID=123456.2 " + SLURM, "Slurm 5/8 1 gpu07:22954 [Slurm 123456.2]"},
        {SLURM + "MASTER_ADDR=x MASTER_PORT=7", "Slurm 5/8 1 x:7 [Slurm 123456.2]"},
        {SLURM + "SLURM_STEP_NUM_NODES=1", "Slurm 5/8 1 127.0.0.1:22954 [Slurm 123456.2]"},
        {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=1 SLURM_LOCALID=0", "alone 0/1 0 :0 []"},    // sbatch's script
        {SLURM + "SLURM_STEP_ID=4294967290", "alone 0/1 0 :0 []"},                                // salloc's shell
    };
    for (const Case& c : cases) {
        CAPTURE(c.variables);
        CHECK(place_text({}, c.variables) == c.expected);
    }
    for (auto [here, count] : {std::pair("", 1), std::pair("SLURM_GTIDS=5", 1), std::pair("SLURM_GTIDS=4,5,6,7", 4)})
        CHECK(comm_rank_info({}, environment(SLURM + here)).value.local_ranks == count);
    CHECK(comm_rank_info({}, environment(TORCH + "LOCAL_WORLD_SIZE=4")).value.local_ranks == 4);
    // A run of a sweep has its rank's device and part of the machine, and no other ranks.
    CHECK(place_text({}, TORCH + "LOCAL_WORLD_SIZE=4 FLATGPT_ALONE=1") == "alone 0/1 1 :0 []");
    CHECK(comm_rank_info({}, environment(SLURM + "SLURM_GTIDS=4,5 FLATGPT_ALONE=1")).value.local_ranks == 2);
    const std::string local = place_text({}, OMPI + "OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=77");
    CAPTURE(local);
    CHECK(contains(local, "Open MPI+mpi 1/4 1 127.0.0.1:"));
    CHECK_FALSE(contains(local, "127.0.0.1:0 "));
}

TEST_CASE("comm: flags go before the launcher, and complete it") {
    CommOptions o;
    o.rank = 2, o.ranks = 4, o.master = "n1:5000";
    CHECK(place_text(o, TORCH) == "--ranks 2/4 0 n1:5000 [port 5000]");
    o.master = "[::1]:5000";
    CHECK(place_text(o, "") == "--ranks 2/4 2 ::1:5000 [port 5000]");
    o.local_rank = 1;
    CHECK(place_text(o, "FLATGPT_TOKEN=s") == "--ranks 2/4 1 ::1:5000 [port 5000 s]");
    o = {};
    o.master = "n9:1", o.local_rank = 7;
    CHECK(place_text(o, TORCH) == "torchrun 3/8 7 n9:1 [abc port 29500]");
    o = {};
    o.rank = 0, o.ranks = 1;
    CHECK(place_text(o, "") == "--ranks 0/1 0 :0 [port 0]");
}

TEST_CASE("comm: half a place, and numbers that cannot be, are exit 2 with the name") {
    const std::vector<Case> cases = {
        {"RANK=1 MASTER_ADDR=h", "2: RANK is 1, and WORLD_SIZE is not set"},
        {"WORLD_SIZE=4 MASTER_PORT=1", "2: WORLD_SIZE is 4, and RANK is not set"},
        {"RANK=1 WORLD_SIZE=2", "2: WORLD_SIZE is 2, and MASTER_ADDR is not set"},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=h", "2: WORLD_SIZE is 2, and MASTER_PORT is not set"},
        {"RANK=2 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", "2: RANK is '2': a whole number from 0 to 1 "},
        {"RANK=-1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", "2: RANK is '-1'"},
        {"RANK=0 WORLD_SIZE=0 MASTER_ADDR=h MASTER_PORT=1", "2: WORLD_SIZE is '0'"},
        {"RANK=0 WORLD_SIZE=99999999999999999999 MASTER_PORT=1", "2: WORLD_SIZE is '99999999999999999999'"},
        {"RANK=0 WORLD_SIZE=2x MASTER_ADDR=h MASTER_PORT=1", "2: WORLD_SIZE is '2x'"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=65536", "2: MASTER_PORT is '65536'"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 LOCAL_RANK=x", "2: LOCAL_RANK is 'x'"},
        {"OMPI_COMM_WORLD_RANK=0", "2: OMPI_COMM_WORLD_RANK is 0, and OMPI_COMM_WORLD_SIZE is not set"},
        {"PMI_SIZE=2", "2: PMI_SIZE is 2, and PMI_RANK is not set"},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", "2: a Slurm step of 2 tasks without SLURM_STEP_NODELIST"},
        {"SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=1", "2: SLURM_PROCID is '2'"},
    };
    for (const Case& c : cases) {
        CAPTURE(c.variables);
        const std::string found = place_text({}, c.variables);
        CAPTURE(found);
        CHECK(found.starts_with(c.expected));
    }
    auto flags = [](int rank, int ranks, const char* master) {
        CommOptions o;
        o.rank = rank, o.ranks = ranks, o.master = master;
        return place_text(o, "");
    };
    for (auto& found : {flags(1, 0, "h:1"), flags(-1, 2, "h:1"), flags(2, 2, "h:1"), flags(0, 2, ""), flags(0, 2, "h"),
                        flags(0, 2, "h:0"), flags(0, 2, "h:65536"), flags(0, 2, "h:1x"), flags(0, 2, ":1"),
                        flags(0, 2, "::1:5"), flags(0, 2, "[::1:5"), flags(0, 2, "[]:5"), flags(-1, 0, "h:1")}) {
        CAPTURE(found);
        CHECK(found.starts_with("2: --"));
    }
}

TEST_CASE("comm: the first host of Slurm's node lists") {
    const std::vector<Case> cases = {{"node[01-04,7],x9", "node01"},
                                     {"node[7,01-04]", "node7"},
                                     {"x9,node[01-04]", "x9"},
                                     {"solo", "solo"},
                                     {"a[1-2]b[3-4]c", "a1b3c"},
                                     {"rack-2-n[10-12]-ib,z", "rack-2-n10-ib"},
                                     {"n[5]", "n5"},
                                     {"", ""},
                                     {"n[1-2", ""},
                                     {"[1-2]", "1"},
                                     {"a.b.c[001-100]", "a.b.c001"}};
    for (const Case& c : cases) CHECK(slurm_first_host(c.variables) == c.expected);
}

TEST_CASE("comm: tokens differ wherever jobs do") {
    std::vector<JobToken> all;
    for (const char* job : {"", "a", "b", "ab", "ba", "12345678", "123456780", "1234567812345678", "port 1 s"})
        all.push_back(job_token(job));
    all.push_back(job_token(std::string("a\0", 2)));
    for (int i = 0; i < 4; i++) all.push_back(random_job_token());
    for (size_t i = 0; i < all.size(); i++) {
        CHECK(all[i].size() == 16);
        for (size_t j = 0; j < i; j++) CHECK(all[i] != all[j]);
    }
    CHECK(job_token("job 7") == job_token("job 7"));
}

TEST_CASE("comm: a port that is taken is exit 7 with the port") {
    Result<Listener> first = Listener::open("", 0);
    REQUIRE(first.ok());
    CHECK(first.value.port > 0);
    for (const char* host : {"", "127.0.0.1", "localhost"}) {
        Result<Listener> second = Listener::open(host, first.value.port);
        REQUIRE(!second.ok());
        CHECK(second.status.code == Exit::peer);
        CHECK(contains(second.status.message, "port " + std::to_string(first.value.port)));
        CHECK(contains(second.status.message, "another process has it"));
    }
    close(first.value.fd);
    CHECK(contains(Listener::open("192.0.2.77", 0).status.message, "192.0.2.77"));
    CHECK(contains(Listener::open("no.such.host.invalid", 0).status.message, "no.such.host.invalid"));
    CHECK(Listener::addresses().ends_with("127.0.0.1"));
}

TEST_CASE("comm: frames come out as they went in, however they are cut") {
    for (uint64_t seed = 0; seed < 300; seed++) {
        auto random = [&, i = uint64_t(0)](uint32_t n) mutable { return philox(seed, 11, i++).v[0] % n; };
        std::vector<Frame> sent;
        std::string bytes;
        for (uint32_t n = 1 + random(20); n > 0; n--) {
            std::string text(random(random(4) ? 40 : 200000), '\0');
            for (char& c : text) c = char(random(256));
            sent.push_back({Message(1 + random(7)), Collective(random(5)), random(1u << 31), text});
            bytes += *encode_frame(sent.back());
        }
        FrameReader reader;
        size_t got = 0;
        for (size_t at = 0; at < bytes.size();) {
            const size_t n = std::min<size_t>(1 + random(random(2) ? 7 : 70000), bytes.size() - at);
            reader.add(bytes.data() + at, n);
            at += n;
            for (Frame f; reader.next(&f) == FrameReader::Next::frame; got++) {
                REQUIRE(got < sent.size());
                REQUIRE(f.type == sent[got].type);
                REQUIRE(f.collective == sent[got].collective);
                REQUIRE(f.sequence_number == sent[got].sequence_number);
                REQUIRE(f.text == sent[got].text);
            }
        }
        CHECK(got == sent.size());
    }
}

TEST_CASE("comm: a link that broke within a frame sends no more") {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    Link link;
    link.fd = ends[0];
    link.send(std::make_shared<const std::string>(size_t(8) << 20, 'x'));
    link.write();
    REQUIRE(link.sent > 0);
    REQUIRE(link.out.size() == 1);
    close(ends[1]);
    link.write();
    link.send(std::make_shared<const std::string>("y"));
    link.write();
    CHECK(link.out.empty());
    CHECK(link.sent == 0);
    link.close();
}

TEST_CASE("comm: bytes that are no frames are broken or wait for more, and take no memory") {
    int broken = 0;
    for (uint64_t seed = 0; seed < 20000; seed++) {
        auto random = [&, i = uint64_t(0)](uint32_t n) mutable { return philox(seed, 12, i++).v[0] % n; };
        std::string bytes = *encode_frame({Message::broadcast, Collective::gather, 5, "0123456789"});
        bytes += bytes;
        for (uint32_t n = 1 + random(4); n > 0; n--) bytes[random(uint32_t(bytes.size()))] = char(random(256));
        FrameReader reader;
        reader.add(bytes.data(), bytes.size());
        Frame f;
        auto next = FrameReader::Next::frame;
        for (int i = 0; i < 50 && next == FrameReader::Next::frame; i++) {
            next = reader.next(&f);
            CHECK(f.text.size() <= bytes.size());
        }
        CHECK(next != FrameReader::Next::frame);
        broken += next == FrameReader::Next::broken;
        RankState s;
        std::string text = heartbeat_text(s);
        text[random(64)] = char(random(256));
        CHECK(heartbeat_parse(text, &s));
        CHECK(s.phase.size() < 200);
        CHECK_FALSE(heartbeat_parse(text.substr(1), &s));
    }
    CHECK(broken > 1000);
}

TEST_CASE("comm: the judge names who keeps the others, and nobody else") {
    const std::vector<std::string> names = {"rank 0 (a, pid 1)", "rank 1 (b, pid 2)", "rank 2 (c, pid 3)"};
    std::vector<RankState> rank_states(3);
    auto all = [&](double last_progress, bool waiting) {
        for (RankState& s : rank_states)
            s.last_progress = s.last_received = last_progress, s.waiting = waiting, s.departed = false, s.step = 12,
            s.phase = "w";
    };
    all(100, false);
    CHECK(find_stalled(rank_states, names, 1000, 60) == "");    // all ranks compute, none waits
    rank_states[0].waiting = true;
    CHECK(find_stalled(rank_states, names, 159, 60) == "");
    CHECK(contains(find_stalled(rank_states, names, 161, 60), "rank 1 (b, pid 2) has been at step 12: w for 61 s"));
    CHECK(contains(find_stalled(rank_states, names, 161, 60), "while 1 rank waits for it"));
    rank_states[0].last_progress = 150;    // only just begun to wait
    CHECK(find_stalled(rank_states, names, 161, 60) == "");
    all(100, true);
    rank_states[2].last_progress = 120;
    CHECK(find_stalled(rank_states, names, 161, 60) == "");
    CHECK(contains(find_stalled(rank_states, names, 181, 60), "all ranks wait for each other"));
    CHECK(contains(find_stalled(rank_states, names, 181, 60), "rank 2 at step 12: w"));
    all(100, true);
    rank_states[1].departed = true;
    CHECK(find_stalled(rank_states, names, 104, 60) == "");
    CHECK(contains(find_stalled(rank_states, names, 106, 60), "rank 1 (b, pid 2) has left in good order, and rank 0"));
    all(100, false);
    rank_states[1].departed = true;
    CHECK(find_stalled(rank_states, names, 1000, 60) == "");
    rank_states[0].departed = rank_states[2].departed = true;
    CHECK(find_stalled(rank_states, names, 1000, 60) == "");
    RankState s = rank_states[0];
    CHECK(find_silent(s, "r", 1000, 60) == "");
    s.departed = false;
    CHECK(find_silent(s, "r", 159, 60) == "");
    CHECK(contains(find_silent(s, "r", 161, 60), "r has sent nothing for 61 s"));
}

TEST_CASE("comm: one rank is a watch without sockets") {
    RankInfo alone;
    Result<std::unique_ptr<Coordinator>> w = Coordinator::rendezvous(alone, {}, "", 0, job_token(""), 1);
    REQUIRE(w.ok());
    Coordinator& coordinator = *w.value;
    CHECK(coordinator.gather("x") == std::vector<std::string>{"x"});
    CHECK(coordinator.broadcast("y") == "y");
    coordinator.barrier();
    CHECK(coordinator.agree({}).ok());
    CHECK(coordinator.agree(fail(Exit::io, "disk")).code == Exit::io);
    CHECK(contains(coordinator.name(0), "rank 0"));
}

TEST_CASE("comm: one rank alone needs no MPI") {
    CommOptions o;
    o.rank = 0, o.ranks = 1;
    Ranks ranks;
    REQUIRE(ranks.open(o).ok());
    CHECK(ranks.start(false).ok());
    CHECK_FALSE(ranks.comm);
}
