// test_coordinator.cpp - ranks as processes: they meet despite foreign connections, and all others
// name a rank that dies, stalls or leaves, and exit with 7 in time.
#include "rank_job.h"

#include <fcntl.h>

#include <thread>

#include "base/console.h"
#include "base/philox.h"

namespace {
void say(const std::string& text) { printf("%s\n", text.c_str()), fflush(stdout); }

void exchange(const Task& t, Coordinator& w) {
    for (int i = 0; i < 20; i++) {
        const auto all = w.gather("from " + std::to_string(t.rank * i));
        for (int r = 0; t.rank == 0 && r < t.ranks; r++)
            if (all.at(size_t(r)) != "from " + std::to_string(r * i)) say("wrong gather");
        if (t.rank && !all.empty()) say("a gather for others");
        const std::string large(size_t(1000000 * (i % 3)), char('a' + i));
        if (w.broadcast(t.rank ? "" : large + "!") != large + "!") say("wrong broadcast");
        w.barrier();
    }
    if (!w.agree({}).ok()) say("no agreement");
    const Status s = w.agree(t.rank % 3 == 1 ? fail(Exit::io, "disk %d", t.rank) : Status{});
    if (t.rank % 3 == 1 ? s.code != Exit::io : s.code != Exit::peer) say("wrong code");
    for (int r = 1; r < t.ranks && r < 8 * 3; r += 3)
        if (t.rank % 3 != 1 && !contains(s.message, named(r))) say("not named: " + s.message);
    if (!contains(s.message, "disk ")) say("no message");
    say("exchanged");
}

void loop(const Task& t, Coordinator& w) {
    for (int step = 1;; step++) {
        w.activity.step = step;
        w.activity.enter("computing");
        const bool mine = t.rank == t.who && step == 5;
        if (mine && t.act == "stand") w.activity.enter("reading data"), pause();
        if (mine && t.act.starts_with("leave")) w.abort_ranks(fail(Exit::io, "the disk is full"));
        if (mine && t.act == "depart") return;
        if (mine && t.act == "trouble") w.health_check([] { return "the wire is cut"; });
        if (mine && t.act == "hiccup") w.health_check([n = 0]() mutable { return n++ % 4 == 0 ? "a hiccup" : ""; });
        if (mine && t.act == "other") w.gather("x");
        if (step == 5 && (t.act == "device" || t.act == "deadlock")) {
            if (mine && t.act == "device") return;
            const Waiting waiting(&w.activity);
            for (;;) pause();
        }
        w.barrier();
        if (step == 1) say("met");
        usleep(1000);
    }
}

int by_flags(const Task& t) {
    CommOptions o;
    o.rank = t.rank, o.ranks = t.ranks, o.master = t.host + ":" + std::to_string(t.port), o.timeout = t.timeout;
    if (t.act == "launched") o.rank = -1, o.ranks = 0, o.master = "";
    Ranks ranks;
    Status s = ranks.open(o);
    if (s.ok()) s = ranks.agree({});
    if (!s.ok()) return fprintf(stderr, "flatgpt: %s\n", s.message.c_str()), int(s.code);
    say("place " + std::to_string(ranks.rank()) + " of " + std::to_string(ranks.count()));
    if (t.act == "launched" && ranks.coordinator) {
        Task named = t;
        named.act = "loop", named.rank = ranks.rank();
        if (t.who == named.rank) raise(SIGKILL);
        loop(named, *ranks.coordinator);
    }
    return 0;
}

int one_rank(const Task& t) {
    usleep(useconds_t(t.delay) * 1000);
    if (t.act == "flags" || t.act == "launched") return by_flags(t);
    RankInfo info;
    info.rank = t.rank, info.ranks = t.ranks;
    Listener listener;
    if (t.rank == 0) {
        Result<Listener> l = Listener::open(t.host == "10.213.7.1" ? "" : t.host, t.port);
        if (!l.ok()) return fprintf(stderr, "flatgpt: %s\n", l.status.message.c_str()), int(l.status.code);
        listener = l.value;
    }
    auto met = Coordinator::rendezvous(info, listener, t.host, t.port, job_token(t.token), t.timeout);
    if (!met.ok()) return fprintf(stderr, "flatgpt: %s\n", met.status.message.c_str()), int(met.status.code);
    std::unique_ptr<Coordinator> w = std::move(met.value);
    if (t.act == "exchange") {
        exchange(t, *w);
    } else if (t.act == "goodbye") {    // ranks leave in the order that `who` chooses
        w->barrier();
        usleep(useconds_t((t.rank * 7 + t.who) % 4) * 60000);
        w.reset();
        usleep(20000);
    } else {
        if (t.act == "abort" || t.act == "leave-abort")
            w->exit_hook([] {
                for (say("aborting");;) pause();
            });
        loop(t, *w);
    }
    w.reset();
    say("bye");
    return 0;
}
}    // namespace

TEST_CASE("watch: one rank") {    // entry point of the processes of a Job
    if (const char* text = getenv("FLATGPT_WATCH")) _exit(one_rank(Task::parse(text)));
}

TEST_CASE("watch: ranks meet, gather, broadcast, agree and part") {
    for (auto [host, ranks] : {std::pair("127.0.0.1", 2),
                               {"127.0.0.1", 4},
                               {"::1", 4},
                               {"localhost", 2},
                               {"no.such.host.invalid,127.0.0.1", 2},
                               {"127.0.0.1", 16}}) {
        Task t = act("exchange");
        t.host = host;
        CAPTURE(host);
        Job job(t, ranks);
        for (int r = 0; r < ranks; r++) {
            t = job.task;
            t.rank = r;
            if (r == 0 && contains(host, ",")) t.host = "127.0.0.1";
            job.add(t);
        }
        for (int r = 0; r < ranks; r++) {
            job.expect(size_t(r), 0, {"exchanged\nbye"});
            const std::string out = job.rank[size_t(r)]->out();
            for (const char* bad : {"wrong", "no ", "not ", "a gather"}) CHECK_FALSE(contains(out, bad));
        }
    }
}

TEST_CASE("watch: ranks by flags; a port that is taken") {
    Job job(act("flags"), 3);
    job.all();
    for (size_t r = 0; r < 3; r++) job.expect(r, 0, {"place " + std::to_string(r) + " of 3"});
    Job alone(act("flags"), 1);
    alone.all().expect(0, 0, {"place 0 of 1"});
    Result<Listener> taken = Listener::open("", 0);
    REQUIRE(taken.ok());
    Task t = act("flags", 0.5);
    t.port = taken.value.port;
    Job outside(t, 2);
    outside.all();
    outside.expect(0, 7, {"cannot listen on port " + std::to_string(t.port), "another process has it"});
    outside.expect(1, 7, {"rank 1 did not find rank 0", "it takes connections and does not answer"});
    close(taken.value.fd);
}

TEST_CASE("watch: a rank that comes late, rank 0 too, is waited for") {
    for (int late : {0, 2}) {
        Job job(act("exchange"), 3);
        for (int r = 0; r < 3; r++) {
            Task t = job.task;
            t.rank = r, t.delay = r == late ? 700 : 0;
            job.add(t);
        }
        for (size_t r = 0; r < 3; r++) job.expect(r, 0, {"exchanged"});
    }
}

// A relay holds back all of rank 0's messages after its welcome and delivers them in one piece.
TEST_CASE("watch: what comes with the start is heard") {
    Result<Listener> first = Listener::open("127.0.0.1", 0), between = Listener::open("127.0.0.1", 0);
    REQUIRE(first.ok());
    REQUIRE(between.ok());
    const int port = first.value.port;
    std::atomic<bool> heard{false}, over{false};
    std::thread relay([&] {
        Link to_first, to_other;
        for (; to_other.fd < 0; usleep(1000)) to_other.fd = accept4(between.value.fd, nullptr, nullptr, SOCK_NONBLOCK);
        std::string note;
        const Address a = resolve("127.0.0.1", port, &note).at(0);
        to_first.fd = socket(AF_INET, SOCK_STREAM, 0);
        connect(to_first.fd, reinterpret_cast<const sockaddr*>(&a.s), a.size);
        fcntl(to_first.fd, F_SETFL, O_NONBLOCK);
        char bytes[65536];
        auto move = [&](int from, Link& to, size_t most) {
            const ssize_t n = recv(from, bytes, most, 0);
            if (n > 0) to.send(std::make_shared<const std::string>(bytes, size_t(n)));
            to.write();
            if (n == 0) shutdown(to.fd, SHUT_WR);
            return n;
        };
        for (ssize_t n = 0; n < 32; usleep(1000))    // rank 0's welcome, 32 bytes
            move(to_other.fd, to_first, sizeof bytes), n += std::max<ssize_t>(0, move(to_first.fd, to_other, 32));
        usleep(50000);
        move(to_other.fd, to_first, sizeof bytes);    // rank 1's join
        usleep(300000);
        move(to_first.fd, to_other, sizeof bytes);    // start, broadcast and heartbeat in one piece
        for (int i = 0; i < 5000 && !heard; i++) usleep(1000);
        CHECK(heard);
        for (; !over; usleep(1000))
            move(to_other.fd, to_first, sizeof bytes), move(to_first.fd, to_other, sizeof bytes);
        to_first.close(), to_other.close(), close(between.value.fd);
    });
    std::vector<std::thread> ranks;
    for (int r = 0; r < 2; r++)
        ranks.emplace_back([&, r] {
            RankInfo info;
            info.rank = r, info.ranks = 2;
            auto coordinator = Coordinator::rendezvous(info, r == 0 ? first.value : Listener(), "127.0.0.1",
                                                       r == 0 ? port : between.value.port, job_token("start"), 30);
            REQUIRE(coordinator.ok());
            CHECK(coordinator.value->broadcast(r == 0 ? "news" : "") == "news");
            if (r == 1) heard = true;
            coordinator.value->barrier();
        });
    for (std::thread& t : ranks) t.join();
    over = true;
    relay.join();
}

TEST_CASE("watch: a rank that never comes is named by all the others") {
    const double begin = now_seconds();
    Job job(act("exchange", 1.5), 6);
    for (int r : {0, 1, 3, 5}) job.add(r);
    for (size_t i = 0; i < 4; i++) job.expect(i, 7, {"ranks 2, 4 of 6 did not come to rank 0 (", "within 1.5 s"});
    CHECK(now_seconds() - begin < 10);
    Job nobody(act("exchange", 0.7), 2);    // rank 0 is missing, too
    nobody.add(1);
    nobody.expect(
        0, 7,
        {"rank 1 did not find rank 0 at 127.0.0.1 port " + std::to_string(nobody.task.port), "Connection refused"});
}

TEST_CASE("watch: another job's rank stays outside, and is counted") {
    Job job(act("exchange", 1.5), 2);
    Task other = job.task;
    other.rank = 1, other.token = "another";
    job.add(0);
    job.add(other);
    job.expect(0, 7, {"rank 1 of 2 did not come", "brought another job's token"});
    job.expect(1, 7, {"rank 1 did not find rank 0"});
    Job both(act("exchange"), 2);    // the right rank 1 still gets in
    other = both.task;
    other.rank = 1, other.token = "another", other.timeout = 1;
    both.add(other);
    both.add(0);
    usleep(300000);
    both.add(1);
    both.expect(0, 7, {"rank 1 did not find rank 0"});
    both.expect(1, 0, {"exchanged"});
    both.expect(2, 0, {"exchanged"});
}

TEST_CASE("watch: a rank twice, and other numbers of ranks, are told") {
    Job job(act("exchange"), 3);
    job.add(0);
    job.add(1);
    usleep(300000);    // rank 2 starts after the duplicate was refused
    job.add(1);
    for (int i = 0; i < 5000 && job.rank[1]->running() && job.rank[2]->running(); i++) usleep(2000);
    const size_t turned = job.rank[1]->running() ? 2 : 1;
    job.expect(turned, 7, {"rank 1 (", "is here already"});
    job.add(2);
    for (size_t i = 0; i < 4; i++)
        if (i != turned) job.expect(i, 0, {"exchanged"});

    Job unequal(act("exchange"), 3);
    unequal.add(0);
    unequal.add(1);
    Task t = unequal.task;
    t.rank = 2;
    t.ranks = 8;
    t.delay = 1500;    // last: later ranks would get no message
    unequal.add(t);
    for (size_t i = 0; i < 3; i++) unequal.expect(i, 7, {named(2), "one of 8 ranks, rank 0 (", "as one of 3"});
}

TEST_CASE("watch: ten thousand strangers while four ranks meet, and after") {
    Job job(act("loop", 60), 4);
    const double begin = now_seconds();
    job.add(0);
    for (bool open = false; !open && now_seconds() < begin + 20; usleep(1000)) {
        std::string note;
        const Address a = resolve("127.0.0.1", job.task.port, &note).at(0);
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        open = !connect(fd, reinterpret_cast<const sockaddr*>(&a.s), a.size);
        close(fd);
    }
    strangers(job.task.port, 4000, 1);
    job.add(1);
    strangers(job.task.port, 2000, 2);
    job.add(2);
    strangers(job.task.port, 4000, 3);
    const size_t files = size_t(
        std::distance(std::filesystem::directory_iterator("/proc/" + std::to_string(job.rank[0]->id()) + "/fd"), {}));
    CHECK(files < 400);
    CHECK(job.rank[0]->running());
    job.add(3);
    job.wait_met();
    strangers(job.task.port, 1000, 4);
    usleep(100000);
    for (auto& p : job.rank) CHECK(p->running());
    job.rank[3]->send(SIGKILL);
    for (size_t r = 0; r < 3; r++) job.expect(r, 7, {named(3), " died; it was at step "});
    MESSAGE("meeting among strangers: " << now_seconds() - begin << " s");
}

TEST_CASE("watch: a rank killed at any moment is named by all others within 2 s") {
    double worst = 0;
    for (uint64_t round = 0; round < 10; round++) {
        std::vector<std::unique_ptr<Job>> jobs;
        for (int r = 0; r < 4; r++) jobs.push_back(std::make_unique<Job>(act("loop"), 4)), jobs.back()->all();
        for (int victim = 0; victim < 4; victim++) {
            Job& job = *jobs[size_t(victim)];
            job.wait_met();
            usleep(philox(5, round, uint64_t(victim)).v[0] % 60000);
            const double begin = now_seconds();
            job.rank[size_t(victim)]->send(SIGKILL);
            for (int r = 0; r < 4; r++)
                if (r != victim)
                    job.expect(size_t(r), 7, {"rank " + std::to_string(r) + ": " + named(victim), " died; it was at "});
            worst = std::max(worst, now_seconds() - begin);
        }
    }
    CHECK(worst < 2);
    MESSAGE("the last of them ended after " << worst << " s");
}

TEST_CASE("watch: a rank that is stopped is named after the timeout") {
    std::vector<std::unique_ptr<Job>> jobs;
    for (int r = 0; r < 4; r++) jobs.push_back(std::make_unique<Job>(act("loop", 2), 4)), jobs.back()->all();
    for (auto& job : jobs) job->wait_met();
    const double begin = now_seconds();
    for (size_t v = 0; v < 4; v++) jobs[v]->rank[v]->send(SIGSTOP);
    for (size_t v = 0; v < 4; v++)
        for (size_t r = 0; r < 4; r++)
            if (r != v) jobs[v]->expect(r, 7, {named(int(v)), "has sent nothing for 2 s"});
    CHECK(now_seconds() - begin > 1.5);
    CHECK(now_seconds() - begin < 5);
    jobs[1]->rank[1]->send(SIGCONT);    // reports it, too, once continued
    jobs[1]->expect(1, 7, {named(1), "has sent nothing"});
}

TEST_CASE("watch: a whole job that is stopped and continued goes on") {
    Job job(act("loop", 1), 3);
    job.all().wait_met();
    for (auto& p : job.rank) p->send(SIGSTOP);
    usleep(2500000);
    for (auto& p : job.rank) p->send(SIGCONT);
    usleep(1500000);
    for (auto& p : job.rank) CHECK(p->running());
}

TEST_CASE("watch: a rank that stands still is named with what it was at; so is a standstill of all") {
    Job zero(act("stand", 1.5, 0), 3), two(act("stand", 1.5, 2), 3), all(act("deadlock", 1.5), 3);
    for (Job* j : {&zero, &two, &all}) j->all();
    for (size_t r = 0; r < 3; r++) {
        zero.expect(r, 7, {named(0), "has been at step 5: reading data for ", "while 2 ranks wait for it"});
        two.expect(r, 7, {named(2), "has been at step 5: reading data for ", "while 2 ranks wait for it"});
        all.expect(r, 7, {"all ranks wait for each other", "rank 2 at step 5: computing"});
    }
}

TEST_CASE("watch: a rank that leaves with a reason is the others' reason") {
    for (int who : {0, 2}) {
        Job job(act("leave", 20, who), 3);
        job.all();
        for (int r = 0; r < 3; r++)
            if (r == who) job.expect(size_t(r), 4, {"rank " + std::to_string(r) + ": the disk is full\n"});
            else job.expect(size_t(r), 7, {"rank " + std::to_string(r) + ": " + named(who), "): the disk is full"});
    }
}

TEST_CASE("watch: a trouble that stays ends all ranks within about a second, one that passes none") {
    Job zero(act("trouble", 20, 0), 3), two(act("trouble", 20, 2), 3), hiccup(act("hiccup", 20, 1), 3);
    const double begin = now_seconds();
    for (Job* j : {&zero, &two, &hiccup}) j->all().wait_met();
    for (size_t r = 0; r < 3; r++)
        for (auto& [job, who] : {std::pair(&zero, 0), {&two, 2}})
            job->expect(r, 7, {"rank " + std::to_string(r) + ": " + named(who), "): the wire is cut"});
    CHECK(now_seconds() - begin < 4);
    usleep(1500000);    // a hiccup every second
    for (auto& p : hiccup.rank) CHECK(p->running());
}

TEST_CASE("watch: a rank that leaves aborts what it waits for, and waits for nothing") {
    Job job(act("leave-abort", 20, 1), 2);
    job.all();
    for (size_t r = 0; r < 2; r++) {
        job.expect(r, r == 1 ? 4 : 7, {"the disk is full"});
        CHECK(contains(job.rank[r]->out(), "aborting"));
        CHECK_FALSE(contains(job.rank[r]->out(), "bye"));
    }
}

TEST_CASE("watch: goodbyes in any order are no deaths") {
    std::vector<std::unique_ptr<Job>> jobs;
    for (int order = 0; order < 4; order++) jobs.push_back(std::make_unique<Job>(act("goodbye", 20, order), 4));
    for (auto& job : jobs) job->all();
    for (auto& job : jobs)
        for (size_t r = 0; r < 4; r++) job->expect(r, 0, {"bye"});
}

TEST_CASE("watch: who waits for a rank that has said goodbye is told") {
    for (const char* what : {"depart", "device"}) {
        Job zero(act(what, 2, 0), 3), one(act(what, 2, 1), 3);
        zero.all(), one.all();
        for (size_t r = 0; r < 3; r++) {
            if (r == 0) zero.expect(r, 0, {"bye"});
            else zero.expect(r, 7, {named(0), "has left in good order"});
            if (r == 1) one.expect(r, 0, {"bye"});
            else one.expect(r, 7, {named(1), "has left in good order"});
        }
    }
}

TEST_CASE("watch: ranks that do not do the same are told so") {
    for (int who : {0, 1}) {
        Job job(act("other", 20, who), 3);
        job.all();
        for (size_t r = 0; r < 3; r++) job.expect(r, 7, {"gather number 5", "barrier number 5", "do not do the same"});
    }
}

TEST_CASE("watch: an abort that hangs does not hang us") {
    Job job(act("abort"), 2);
    job.all().wait_met();
    const double begin = now_seconds();
    job.rank[0]->send(SIGKILL);
    job.expect(1, 7, {named(0), " died"});
    CHECK(now_seconds() - begin < 5);
}

TEST_CASE("watch: a cut network ends both sides") {
    const std::string id = std::to_string(getpid() % 100000), a = "fga" + id, b = "fgb" + id;
    struct Namespaces {
        std::string a, b, why = {};
        bool ip(const std::string& args) {
            const ProcessResult r = run_process({"/bin/sh", "-c", "PATH=$PATH:/sbin:/usr/sbin; " + args});
            return why = r.err, r.exit_code == 0;
        }
        ~Namespaces() { ip("for n in " + a + " " + b + "; do ip netns del $n; rm -f /run/netns/$n; done"); }
    } made{a, b};
    auto ip = [&](const std::string& args) { return made.ip(args); };    // fails where a container forbids namespaces
    if (!ip("ip netns add " + a + " && ip netns add " + b + " && ip link add v" + a + " netns " + a +
            " type veth peer name v" + b + " netns " + b + " && ip netns exec " + a + " true"))
        SKIP(("network namespaces cannot be made and entered here: " + made.why).c_str());
    for (auto& [n, address] : {std::pair(a, "10.213.7.1"), {b, "10.213.7.2"}})
        REQUIRE(ip("ip -n " + n + " addr add " + address + "/24 dev v" + n + " && ip -n " + n + " link set v" + n +
                   " up && ip -n " + n + " link set lo up"));
    Task t = act("loop", 2);
    t.host = "10.213.7.1", t.port = 29500;
    Job job(t, 4);
    for (int r = 0; r < 4; r++) {
        (t = job.task).rank = r;
        const std::string within = "PATH=$PATH:/sbin:/usr/sbin; exec ip netns exec " + (r < 2 ? a : b) + " \"$@\"";
        job.add(t, {"/bin/sh", "-c", within, "-"});
    }
    job.wait_met();
    const double begin = now_seconds();
    CHECK(ip("ip -n " + b + " link set v" + b + " down"));
    for (size_t r = 0; r < 2; r++) job.expect(r, 7, {"has sent nothing for 2 s (stopped, or its network is cut)"});
    for (size_t r = 2; r < 4; r++) job.expect(r, 7, {named(0), "has sent nothing for 2 s"});
    CHECK(now_seconds() - begin < 5);
}
