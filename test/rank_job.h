// rank_job.h - ranks as processes of this test binary, and foreign connections to them.
#pragma once
#include <algorithm>
#include <arpa/inet.h>
#include <csignal>
#include <deque>
#include <filesystem>
#include <memory>
#include <netinet/in.h>
#include <sstream>
#include <sys/socket.h>
#include <unistd.h>

#include "base/philox.h"
#include "comm/protocol.h"
#include "test.h"

inline std::string named(int rank) { return "rank " + std::to_string(rank) + " ("; }
// A port below the kernel's own range, each only once: parallel jobs must not share a released one.
inline int free_port() {
    static int next = 21000 + getpid() * 131 % 10000;
    for (;;) {
        next = next < 32000 ? next + 1 : 21000;
        Result<Listener> l = Listener::open("", next);
        if (!l.ok()) continue;
        close(l.value.fd);
        return next;
    }
}

// ---- a rank: this binary again, with the case "watch: one rank" and a Task in FLATGPT_WATCH -----

struct Task {
    std::string act = "loop";
    int rank = 0, ranks = 1;
    std::string host = "127.0.0.1";
    int port = 0, who = -1, delay = 0;    // who: rank that deviates; delay: milliseconds
    double timeout = 20;
    std::string token = "job";
    std::string text() const {
        std::ostringstream s;
        s << act << ' ' << rank << ' ' << ranks << ' ' << host << ' ' << port << ' ' << who << ' ' << delay << ' '
          << timeout << ' ' << token;
        return s.str();
    }
    static Task parse(const char* text) {
        Task t;
        std::istringstream s(text);
        s >> t.act >> t.rank >> t.ranks >> t.host >> t.port >> t.who >> t.delay >> t.timeout >> t.token;
        return t;
    }
};

// ---- a job of several ranks ---------------------------------------------------------------------

class Job {
  public:
    Job(Task task, int count) : task(task) {
        this->task.ranks = count;
        if (!task.port) this->task.port = free_port();
    }
    Task task;
    std::vector<std::unique_ptr<Process>> rank;

    void add(Task t, const std::vector<std::string>& prefix = {}) {
        std::vector<std::string> args = prefix;
        const std::string self = std::filesystem::read_symlink("/proc/self/exe");
        args.insert(args.end(), {self, "--test-case=watch: one rank", "--no-version"});
        ProcessOptions o;
        o.environment = {"FLATGPT_WATCH=" + t.text()};
        rank.push_back(std::make_unique<Process>(args, o));
    }
    void add(int r) {
        Task t = task;
        t.rank = r;
        add(t);
    }
    Job& all() {
        for (int r = 0; r < task.ranks; r++) add(r);
        return *this;
    }
    void wait_met() {
        for (auto& p : rank)
            while (p->running() && !contains(p->out(), "met\n")) usleep(1000);
    }
    // Rank r must exit with `code` and print all of `words` (to stderr unless code is 0).
    void expect(size_t r, int code, const std::vector<std::string>& words) {
        const ProcessResult result = rank[r]->wait();
        CAPTURE(r);
        CAPTURE(result.err);
        CAPTURE(result.out);
        CHECK(result.exit_code == code);
        CHECK(result.signal == 0);
        for (auto& w : words) CHECK(contains(code == 0 ? result.out : result.err, w));
        // Survivors of another rank's failure (7) print exactly one line.
        if (code == 7) CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    }
};
inline Task act(const std::string& name, double timeout = 20, int who = -1) {
    Task t;
    t.act = name, t.timeout = timeout, t.who = who;
    return t;
}

// ---- foreign connections ------------------------------------------------------------------------

// Opens n connections that send nothing, noise, a false hello, half of one, a frame header, HTTP or
// 100 kB. One kind closes at once; the last 400 others stay open.
inline void strangers(int port, int n, uint64_t seed) {
    std::deque<int> held;
    auto reset = [](int fd) {
        const linger at_once{1, 0};    // no TIME_WAIT: ports would run out
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(fd);
    };
    for (int i = 0; i < n; i++) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) continue;
        sockaddr_in a{};
        a.sin_family = AF_INET, a.sin_port = htons(uint16_t(port)), a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a);
        std::string text;
        const uint32_t kind = philox(seed, 1, uint64_t(i)).v[0] % 8;
        const size_t size = kind == 1 ? 64 : kind == 2 ? 112 : kind == 3 ? 56 : kind == 7 ? 100000 : 0;
        for (size_t k = 0; k < size; k++) text += k < 128 ? char(philox(seed, uint64_t(i), k).v[0]) : text[k - 128];
        if (kind == 2 || kind == 3) text.replace(0, 8, "flatgpt1");
        if (kind == 5) text = std::string("\xa7\xf1\x05\x01\0\0\0\0\xff\xff\xff\xff", 12);
        if (kind == 6) text = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        send(fd, text.data(), text.size(), MSG_NOSIGNAL);
        if (kind == 0) reset(fd);
        else held.push_back(fd);
        if (held.size() > 400) reset(held.front()), held.pop_front();
    }
    for (int fd : held) reset(fd);
}
