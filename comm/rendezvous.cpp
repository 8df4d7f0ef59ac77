// rendezvous.cpp - connects the ranks: rank 0 listens, the others connect, unauthenticated peers
// are dropped.
//
//   other  -> rank 0   Hello: a nonce, and a proof of the token
//   rank 0 -> other    Welcome: rank 0's proof of the token for the same nonce
//   other  -> rank 0   join; the rank has arrived: if its connection ends now, it has died
//   rank 0 -> other    start with all ranks' names, or abort_all
//
// A connection that is silent, garbled, without the proof or beyond the limit is dropped; a dropped
// rank connects again. The token is no cryptography: it separates jobs and prevents accidents. Only
// a private network protects against attackers.
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>

#include "protocol.h"
#include "base/console.h"

// ---- addresses, rank 0's listening socket -------------------------------------------------------

std::vector<Address> resolve(const std::string& host, int port, std::string* why) {
    addrinfo hints{}, *all = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
    std::vector<Address> result;
    const char* name = host.empty() ? nullptr : host.c_str();    // null and passive: every address
    if (int e = getaddrinfo(name, std::to_string(port).c_str(), &hints, &all)) {
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
int listen_at(const Address& a) {    // -1: an error, in errno
    const int fd = socket(a.s.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, off = 0;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a.s.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!bind(fd, reinterpret_cast<const sockaddr*>(&a.s), a.size) && !listen(fd, 4096)) return fd;
    const int e = errno;
    close(fd);
    return errno = e, -1;
}
}    // namespace

Result<Listener> Listener::open(const std::string& host, int port) {
    std::string why;
    Listener l;
    int error = EADDRNOTAVAIL;
    std::vector<Address> all = resolve(host, port, &why);
    // IPv6 comes first, because an IPv6 socket that listens on every address takes IPv4
    // connections, too.
    auto is_six = [](const Address& a) { return a.s.ss_family == AF_INET6; };
    if (host.empty()) std::stable_partition(all.begin(), all.end(), is_six);
    for (const Address& a : all) {
        if ((l.fd = listen_at(a)) >= 0) break;
        error = errno;
        if (error == EADDRINUSE || error == EACCES) break;    // reported for IPv6; IPv4 alone would hide it
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
        const int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
        if ((family != AF_INET && family != AF_INET6) || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
            continue;
        char text[NI_MAXHOST];
        const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
        if (getnameinfo(i->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST)) continue;
        if (!strchr(text, '%')) (family == AF_INET ? four : six) += text + std::string(",");    // %: link-local
    }
    freeifaddrs(all);
    return four + six + "127.0.0.1";
}

// ---- the handshake ------------------------------------------------------------------------------

namespace {
constexpr double HANDSHAKE_SECONDS = 3;    // from accept to join, and per attempt
constexpr size_t MAX_PENDING = 256;        // peers; one more drops the oldest
constexpr char HANDSHAKE_MAGIC[9] = "flatgpt1";

struct Hello {
    char magic[8];
    uint64_t nonce;
    unsigned char proof[16];
    uint32_t rank, ranks, pid;
    char host[68];
};
static_assert(sizeof(Hello) == 112);
struct Welcome {
    char magic[8];
    unsigned char proof[16];
    uint32_t milliseconds, zero;    // time left until rank 0 gives up
};
static_assert(sizeof(Welcome) == 32);

void prove(unsigned char* proof, const JobToken& token, const char* word, uint64_t nonce) {
    const std::string text = token + word + std::string(reinterpret_cast<const char*>(&nonce), sizeof nonce);
    memcpy(proof, job_token(text).data(), 16);
}
bool proven(const unsigned char* proof, const JobToken& token, const char* word, uint64_t nonce) {
    unsigned char right[16];
    prove(right, token, word, nonce);
    return !memcmp(proof, right, 16);
}

std::string this_host() {
    char name[64] = "";
    gethostname(name, sizeof name - 1);
    return name;
}
std::string name_of(int rank, const std::string& host, unsigned pid) {
    return "rank " + std::to_string(rank) + " (" + escape_control(host) + ", pid " + std::to_string(pid) + ")";
}
void set_no_delay(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}
}    // namespace

// ---- rank 0 -------------------------------------------------------------------------------------

namespace {
struct PendingPeer {
    Link link;
    double end = 0;
    int rank = -1;    // known after its hello
    std::string name;
    bool refused = false;
};

class Rendezvous {
  public:
    Rendezvous(const RankInfo& rank, int listening, const JobToken& secret, double seconds)
        : info(rank), token(secret), listener(listening), timeout(seconds), end(now_seconds() + seconds) {
        peers.links.resize(size_t(info.ranks));
        peers.names.resize(size_t(info.ranks));
        peers.names[0] = name_of(0, this_host(), unsigned(getpid()));
    }
    Result<Peers> run();

  private:
    const RankInfo& info;
    const JobToken& token;
    const int listener;
    const double timeout, end;
    Peers peers;
    std::list<PendingPeer> pending;    // oldest first
    // Numbers of ranks, of connections without a hello, and of those with a wrong token.
    int arrived = 1, unauthenticated = 0, wrong_token = 0;
    std::string failure;

    void wait();
    void accept_connections();
    void poll_connections();
    bool serve(PendingPeer& g);    // false: drop it
    bool handle_hello(PendingPeer& g, const Hello& h);
    void refuse(PendingPeer& g, const std::string& why) {
        g.refused = true;
        g.link.send(encode_frame({Message::abort_all, Collective::none, 0, why}));
    }
    void drop(PendingPeer& g) {
        unauthenticated += g.rank < 0;
        g.link.close();
    }
    std::string missing() const;
};

// Raises the limit on open files to n: one for each rank and pending peer, and some spare.
void raise_open_file_limit(int n) {
    rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur >= rlim_t(n)) return;
    l.rlim_cur = std::min(l.rlim_max, rlim_t(n));
    setrlimit(RLIMIT_NOFILE, &l);
}

void Rendezvous::wait() {
    std::vector<pollfd> fds{{listener, POLLIN, 0}};
    double until = end;
    for (PendingPeer& g : pending) {
        fds.push_back({g.link.fd, short(POLLIN | (g.link.out.empty() ? 0 : POLLOUT)), 0});
        until = std::min(until, g.end);
    }
    for (Link& l : peers.links)
        if (l.fd >= 0) fds.push_back({l.fd, POLLIN, 0});
    poll(fds.data(), fds.size(), std::max(0, int((until - now_seconds()) * 1000) + 1));
}

void Rendezvous::accept_connections() {
    for (int i = 0; i < 64; i++) {
        const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && !pending.empty()) {
            drop(pending.front());
            pending.pop_front();
            continue;
        }
        if (fd < 0 && (errno == EMFILE || errno == ENFILE))
            failure = "rank 0 may not open enough files for " + std::to_string(info.ranks) + " ranks (ulimit -n)";
        if (fd < 0) return;
        set_no_delay(fd);
        pending.emplace_back();
        pending.back().link.fd = fd;
        pending.back().end = now_seconds() + HANDSHAKE_SECONDS;
        if (!serve(pending.back())) drop(pending.back()), pending.pop_back();
        if (pending.size() > MAX_PENDING) drop(pending.front()), pending.pop_front();
    }
}

bool Rendezvous::handle_hello(PendingPeer& g, const Hello& h) {
    if (memcmp(h.magic, HANDSHAKE_MAGIC, sizeof h.magic)) return false;
    g.rank = int(std::min<uint32_t>(h.rank, INT32_MAX));
    if (!proven(h.proof, token, "hello", h.nonce)) return wrong_token++, false;
    g.name = name_of(g.rank, std::string(h.host, strnlen(h.host, sizeof h.host)), h.pid);
    Welcome w{};
    memcpy(w.magic, HANDSHAKE_MAGIC, sizeof w.magic);
    prove(w.proof, token, "welcome", h.nonce);
    w.milliseconds = uint32_t(std::max(0.0, end - now_seconds()) * 1000);
    g.link.send(std::make_shared<const std::string>(reinterpret_cast<const char*>(&w), sizeof w));
    if (h.ranks != uint32_t(info.ranks) || h.rank >= h.ranks) {
        failure = g.name + " was started as one of " + std::to_string(h.ranks) + " ranks, " + peers.names[0] +
                  " as one of " + std::to_string(info.ranks);
        refuse(g, failure);
    }
    return true;
}

bool Rendezvous::serve(PendingPeer& g) {
    const bool open = g.link.read();
    if (g.rank < 0) {
        Hello h;
        if (!g.link.in.read_exact(&h, sizeof h)) return open;
        if (!handle_hello(g, h)) return false;
    }
    if (!g.refused) {
        Frame f;
        const auto next = g.link.in.next(&f);
        if (next == FrameReader::Next::broken) return false;
        if (next == FrameReader::Next::frame) {
            if (f.type != Message::join) return false;
            const size_t r = size_t(g.rank);
            if (peers.names[r].empty()) {
                peers.names[r] = g.name;
                peers.links[r] = std::move(g.link);
                g.link.fd = -1;
                arrived++;
                return false;
            }
            refuse(g, g.name + " has come, but " + peers.names[r] + " is here already: two ranks have the same number");
        }
    }
    g.link.write();
    return open;
}

void Rendezvous::poll_connections() {
    for (size_t r = 1; r < peers.links.size() && failure.empty(); r++)
        if (peers.links[r].fd >= 0 && !peers.links[r].read())
            failure = peers.names[r] + " died before all ranks were here";
    accept_connections();
    for (auto g = pending.begin(); g != pending.end();) {
        if (serve(*g) && now_seconds() < g->end) {
            ++g;
            continue;
        }
        drop(*g);
        g = pending.erase(g);
    }
}

std::string Rendezvous::missing() const {
    std::string list, notes;
    int n = 0;
    for (size_t r = 1; r < peers.names.size(); r++) {
        if (!peers.names[r].empty()) continue;
        if (n++ < 16) list += (list.empty() ? "" : ", ") + std::to_string(r);
    }
    if (n > 16) list += ", ...";
    if (wrong_token) notes += "; " + counted(wrong_token, "connection") + " brought another job's token";
    if (unauthenticated) notes += "; " + counted(unauthenticated, "connection") + " came from no rank at all";
    return formatted("%s %s of %d did not come to %s within %.3g s%s", n > 1 ? "ranks" : "rank", list.c_str(),
                     info.ranks, peers.names[0].c_str(), timeout, notes.c_str());
}

Result<Peers> Rendezvous::run() {
    raise_open_file_limit(info.ranks + int(MAX_PENDING) + 64);
    while (arrived < info.ranks && failure.empty()) {
        if (now_seconds() >= end) failure = missing();
        else wait(), poll_connections();
    }
    std::string names;
    for (auto& n : peers.names) names += n + '\n';
    const SharedFrame last = encode_frame(failure.empty() ? Frame{Message::start, Collective::none, 0, names}
                                                          : Frame{Message::abort_all, Collective::none, 0, failure});
    std::vector<Link*> all;
    for (Link& l : peers.links) l.send(last), all.push_back(&l);
    for (PendingPeer& g : pending) {
        if (g.rank >= 0 && !g.refused) g.link.send(last);
        if (g.rank >= 0) all.push_back(&g.link);
        else g.link.close();
    }
    if (failure.empty()) {
        for (PendingPeer& g : pending) g.link.close();
        return std::move(peers);
    }
    close_links(all, 1);
    return fail(Exit::peer, "%s", failure.c_str());
}
}    // namespace

Result<Peers> rendezvous_as_rank_0(const RankInfo& info, Listener listener, const JobToken& token, double timeout) {
    Rendezvous rendezvous(info, listener.fd, token, timeout);
    Result<Peers> peers = rendezvous.run();
    close(listener.fd);    // from here on the kernel refuses connections
    return peers;
}

// ---- the other ranks ----------------------------------------------------------------------------

namespace {
int connect_to(const Address& a, double deadline) {    // -1: an error, in errno
    const int fd = socket(a.s.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    set_no_delay(fd);
    int error = connect(fd, reinterpret_cast<const sockaddr*>(&a.s), a.size) ? errno : 0;
    if (error == EINPROGRESS) {
        pollfd p{fd, POLLOUT, 0};
        socklen_t size = sizeof error;
        if (poll(&p, 1, std::max(1, int((deadline - now_seconds()) * 1000))) <= 0) error = ETIMEDOUT;
        else getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    // A local connect to an unused port may connect to itself.
    Address mine, other;
    mine.size = other.size = sizeof mine.s;
    if (!error && !getsockname(fd, reinterpret_cast<sockaddr*>(&mine.s), &mine.size) &&
        !getpeername(fd, reinterpret_cast<sockaddr*>(&other.s), &other.size) && mine.size == other.size &&
        !memcmp(&mine.s, &other.s, mine.size))
        error = ECONNREFUSED;
    if (!error) return fd;
    close(fd);
    return errno = error, -1;
}

struct Attempt {
    bool decided = false;    // success, or an error that a retry cannot fix
    Status status;
    std::string note;    // why this attempt failed
};

// Checks that rank 0 of this job is at the other end, and receives start or abort_all.
Attempt handshake(const RankInfo& info, Link& link, const JobToken& token, double end, Peers* peers) {
    uint64_t nonce;
    memcpy(&nonce, random_job_token().data(), sizeof nonce);
    Hello h{};
    memcpy(h.magic, HANDSHAKE_MAGIC, sizeof h.magic);
    h.nonce = nonce, h.rank = uint32_t(info.rank), h.ranks = uint32_t(info.ranks), h.pid = uint32_t(getpid());
    this_host().copy(h.host, sizeof h.host - 1);
    prove(h.proof, token, "hello", nonce);
    link.send(std::make_shared<const std::string>(reinterpret_cast<const char*>(&h), sizeof h));
    double until = std::min(end, now_seconds() + HANDSHAKE_SECONDS);
    Welcome w;
    while (!link.in.read_exact(&w, sizeof w)) {
        if (poll_link(link, until)) continue;
        if (link.error == ETIMEDOUT) return {false, {}, "it takes connections and does not answer"};
        return {false, {}, "it hangs up: another job's rank 0, or another program"};
    }
    if (memcmp(w.magic, HANDSHAKE_MAGIC, sizeof w.magic) || !proven(w.proof, token, "welcome", nonce))
        return {false, {}, "the listener is not this job's rank 0"};
    link.send(encode_frame({Message::join, Collective::none, 0, ""}));
    until = now_seconds() + w.milliseconds * 1e-3 +
            HANDSHAKE_SECONDS;    // rank 0 may have started later than this rank
    for (Frame f;;) {
        const auto next = link.in.next(&f);
        if (next == FrameReader::Next::broken) return {false, {}, "it sends an invalid message"};
        if (next == FrameReader::Next::frame) {
            if (f.type == Message::abort_all) return {true, fail(Exit::peer, "%s", f.text.c_str()), ""};
            if (f.type != Message::start) return {false, {}, "it sends an unexpected message"};
            for (size_t at = 0, to; (to = f.text.find('\n', at)) != std::string::npos; at = to + 1)
                peers->names.push_back(f.text.substr(at, to - at));
            if (int(peers->names.size()) == info.ranks) return {true, {}, ""};
            return {true, fail(Exit::peer, "rank 0 named %zu ranks of %d", peers->names.size(), info.ranks), ""};
        }
        if (!poll_link(link, until))
            return {false, {}, link.error == ETIMEDOUT ? "it has stopped" : "it went away before all ranks were here"};
    }
}
}    // namespace

Result<Peers> rendezvous_with_rank_0(const RankInfo& info, const std::string& host, int port, const JobToken& token,
                                     double timeout) {
    const double begin = now_seconds(), end = begin + timeout;
    std::string note = "no attempt was made";
    for (double pause = 0.02; now_seconds() < end; pause = std::min(pause * 1.5, 0.5)) {
        for (size_t at = 0, to; at <= host.size(); at = to + 1) {
            to = std::min(host.find(',', at), host.size());
            if (at == to && !host.empty()) continue;    // an empty name would be every address of this machine
            for (const Address& a : resolve(host.substr(at, to - at), port, &note)) {
                Peers peers;
                peers.links.resize(1);
                Link& link = peers.links[0];
                link.fd = connect_to(a, std::min(end, now_seconds() + HANDSHAKE_SECONDS));
                if (link.fd < 0) {
                    note = strerror(errno);
                    continue;
                }
                Attempt attempt = handshake(info, link, token, end, &peers);
                if (attempt.decided && attempt.status.ok()) return peers;
                link.close();
                if (attempt.decided) return attempt.status;
                note = attempt.note;
                if (now_seconds() >= end) break;
            }
        }
        usleep(useconds_t(1e6 * std::max(0.0, std::min(pause, end - now_seconds()))));
    }
    return fail(Exit::peer, "rank %d did not find rank 0 at %s port %d within %.3g s: %s", info.rank, host.c_str(),
                port, now_seconds() - begin, note.c_str());
}
