// protocol.cpp - frames, links and stall detection.
#include "protocol.h"

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/console.h"

// ---- frames -------------------------------------------------------------------------------------

namespace {
struct Header {
    uint16_t magic;
    uint8_t type, collective;
    uint32_t sequence_number, length;
};
static_assert(sizeof(Header) == 12);
constexpr uint16_t MAGIC = 0xf1a7;
}    // namespace

const char* collective_name(Collective r) {
    static const char* const names[] = {"nothing", "gather", "broadcast", "barrier", "agree"};
    return names[int(r)];
}

SharedFrame encode_frame(const Frame& f) {
    CHECK(int64_t(f.text.size()) <= FRAME_LIMIT, "%zu bytes between ranks", f.text.size());
    const Header h{MAGIC, uint8_t(f.type), uint8_t(f.collective), f.sequence_number, uint32_t(f.text.size())};
    std::string bytes(reinterpret_cast<const char*>(&h), sizeof h);
    return std::make_shared<const std::string>(bytes + f.text);
}

void FrameReader::consume(size_t n) {
    begin += n;
    if (begin == buffer.size()) {
        clear();
        if (buffer.capacity() > (1 << 20)) std::string().swap(buffer);
    } else if (begin > (1 << 16) && begin > buffer.size() / 2) {
        buffer.erase(0, begin), begin = 0;
    }
}

bool FrameReader::read_exact(void* to, size_t n) {
    if (buffer.size() - begin < n) return false;
    memcpy(to, buffer.data() + begin, n);
    consume(n);
    return true;
}

FrameReader::Next FrameReader::next(Frame* frame) {
    Header h;
    if (buffer.size() - begin < sizeof h) return Next::more;
    memcpy(&h, buffer.data() + begin, sizeof h);
    if (h.magic != MAGIC || h.type < uint8_t(Message::join) || h.type > uint8_t(Message::goodbye) ||
        h.collective > uint8_t(Collective::agree) || h.length > FRAME_LIMIT)
        return Next::broken;
    if (buffer.size() - begin - sizeof h < h.length) return Next::more;
    *frame = {Message(h.type), Collective(h.collective), h.sequence_number, buffer.substr(begin + sizeof h, h.length)};
    consume(sizeof h + h.length);
    return Next::frame;
}

// ---- links --------------------------------------------------------------------------------------

bool Link::read() {
    char some[65536];
    for (int i = 0; i < 16 && fd >= 0; i++) {    // bounded: other links must not starve
        ssize_t n = recv(fd, some, sizeof some, 0);
        if (n > 0) in.add(some, size_t(n));
        else if (n < 0 && errno == EINTR) continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        else return error = n < 0 ? errno : 0, false;
        if (size_t(n) < sizeof some) return true;
    }
    return fd >= 0;
}

void Link::write() {
    while (fd >= 0 && !out.empty()) {
        const std::string& first = *out.front();
        ssize_t n = ::send(fd, first.data() + sent, first.size() - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n < 0) {    // read() reports the error after the peer's last bytes
            out.clear(), sent = 0, shut = true;
            return;
        }
        sent += size_t(n);
        if (sent == first.size()) out.pop_front(), sent = 0;
    }
}

void Link::close() {
    if (fd >= 0) ::close(fd);
    fd = -1;
    out.clear();
}

// Closing with unread bytes would send a reset, which may overtake the last frames.
void close_links(const std::vector<Link*>& links, double seconds) {
    for (const double end = now_seconds() + seconds;;) {
        std::vector<pollfd> fds;
        std::vector<Link*> open;
        for (Link* l : links) {
            if (l->fd < 0) continue;
            l->write();
            if (l->out.empty() && !l->shut) shutdown(l->fd, SHUT_WR), l->shut = true;
            open.push_back(l);
            fds.push_back({l->fd, short(POLLIN | (l->out.empty() ? 0 : POLLOUT)), 0});
        }
        const double left = end - now_seconds();
        if (open.empty() || left <= 0) break;
        poll(fds.data(), fds.size(), int(left * 1000) + 1);
        for (size_t i = 0; i < open.size(); i++) {
            if (!(fds[i].revents & ~POLLOUT)) continue;
            if (!open[i]->read()) open[i]->close();
            open[i]->in.clear();
        }
    }
    for (Link* l : links) l->close();
}

bool poll_link(Link& link, double deadline) {
    for (;;) {
        link.write();
        const double left = deadline - now_seconds();
        if (left <= 0) return link.error = ETIMEDOUT, false;
        pollfd p{link.fd, short(POLLIN | (link.out.empty() ? 0 : POLLOUT)), 0};
        if (poll(&p, 1, int(left * 1000) + 1) > 0 && (p.revents & ~POLLOUT)) return link.read();
    }
}

// ---- heartbeats ---------------------------------------------------------------------------------

namespace {
struct HeartbeatBody {    // transmitted bytes
    int64_t count, step;
    uint8_t waiting;
    char phase[47];
};
static_assert(sizeof(HeartbeatBody) == 64);
constexpr double DEPARTURE_GRACE = 5;    // seconds to finish a departed rank's last collective
}    // namespace

RankState current_state(const Activity& p) {
    RankState s;
    s.count = progress_count;
    s.step = p.step;
    s.waiting = p.waiting;
    s.phase = p.phase.load();
    return s;
}
std::string heartbeat_text(const RankState& s) {
    HeartbeatBody b{s.count, s.step, s.waiting, {}};
    s.phase.copy(b.phase, sizeof b.phase - 1);
    return std::string(reinterpret_cast<const char*>(&b), sizeof b);
}
bool heartbeat_parse(const std::string& text, RankState* s) {
    HeartbeatBody b;
    if (text.size() != sizeof b) return false;
    memcpy(&b, text.data(), sizeof b);
    b.phase[sizeof b.phase - 1] = 0;
    s->count = b.count;
    s->step = b.step;
    s->waiting = b.waiting;
    s->phase = escape_control(b.phase);
    return true;
}
void RankState::update(const RankState& now, double time) {
    if (now.count != count || now.step != step || now.waiting != waiting || now.phase != phase) last_progress = time;
    count = now.count, step = now.step, waiting = now.waiting, phase = now.phase;
    last_received = time;
}
std::string RankState::info() const { return "step " + std::to_string(step) + ": " + phase; }

std::string find_silent(const RankState& s, const std::string& name, double now, double timeout) {
    if (s.departed || now - s.last_received < timeout) return "";
    return formatted("%s has sent nothing for %.0f s (stopped, or its network is cut); it was at %s", name.c_str(),
                     now - s.last_received, s.info().c_str());
}

std::string find_stalled(const std::vector<RankState>& rank_states, const std::vector<std::string>& names, double now,
                         double timeout) {
    int departed = -1, still = -1, waiting = 0, present = 0;
    for (int r = 0; r < int(rank_states.size()); r++) {
        const RankState& s = rank_states[size_t(r)];
        present += !s.departed;
        if (s.departed) departed = r;
        else if (now - s.last_progress < timeout) continue;
        else if (s.waiting) waiting++;
        else if (still < 0 || s.last_progress < rank_states[size_t(still)].last_progress) still = r;
    }
    for (size_t r = 0; departed >= 0 && r < rank_states.size(); r++) {
        const RankState &s = rank_states[r], &gone = rank_states[size_t(departed)];
        if (!s.departed && s.waiting &&
            now - std::fmax(s.last_progress, gone.last_progress) > std::fmin(timeout, DEPARTURE_GRACE))
            return names[size_t(departed)] + " has left in good order, and " + names[r] + " waits for it at " +
                   s.info();
    }
    if (still >= 0 && waiting > 0) {
        const RankState& s = rank_states[size_t(still)];
        return formatted("%s has been at %s for %.0f s without getting on while %d rank%s wait%s for it",
                         names[size_t(still)].c_str(), s.info().c_str(), now - s.last_progress, waiting,
                         waiting > 1 ? "s" : "", waiting > 1 ? "" : "s");
    }
    if (waiting == 0 || waiting < present) return "";
    std::string text = "all ranks wait for each other, and nothing has moved for " + std::to_string(int(timeout)) +
                       " s:";
    for (size_t r = 0; r < rank_states.size() && r < 4; r++)
        text += (r ? "; rank " : " rank ") + std::to_string(r) + " at " + rank_states[r].info();
    return text + (rank_states.size() > 4 ? "; ..." : "");
}
