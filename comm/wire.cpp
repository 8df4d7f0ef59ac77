// wire.cpp - frames, links and the judge of who stands still.
#include "wire.h"

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/console.h"

// ---- frames ---------------------------------------------------------------------------------------------------------

namespace {
struct Header {
    uint16_t magic;
    uint8_t type, round;
    uint32_t number, length;
};
static_assert(sizeof(Header) == 12);
constexpr uint16_t MAGIC = 0xf1a7;
}    // namespace

const char* round_name(Round r) {
    static const char* const names[] = {"nothing", "gather", "broadcast", "barrier", "agree"};
    return names[int(r)];
}

Bytes frame_bytes(const Frame& f) {
    CHECK(int64_t(f.text.size()) <= FRAME_LIMIT, "%zu bytes between ranks", f.text.size());
    const Header h{MAGIC, uint8_t(f.type), uint8_t(f.round), f.number, uint32_t(f.text.size())};
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

bool FrameReader::take(void* to, size_t n) {
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
        h.round > uint8_t(Round::agree) || h.length > FRAME_LIMIT)
        return Next::broken;
    if (buffer.size() - begin - sizeof h < h.length) return Next::more;
    *frame = {Message(h.type), Round(h.round), h.number, buffer.substr(begin + sizeof h, h.length)};
    consume(sizeof h + h.length);
    return Next::frame;
}

// ---- links ----------------------------------------------------------------------------------------------------------

bool Link::read() {
    char some[65536];
    for (int i = 0; i < 16 && fd >= 0; i++) {    // bounded: the other links have their turn, too
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
        if (n < 0) {    // read() says so after what the other end had said before
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

// Closing with bytes unread would send a reset, which may overtake our last words.
void part(const std::vector<Link*>& links, double seconds) {
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

// ---- signs of life --------------------------------------------------------------------------------------------------

namespace {
struct Beat {    // on the wire
    int64_t count, step;
    uint8_t waiting;
    char what[47];
};
static_assert(sizeof(Beat) == 64);
constexpr double FAREWELL = 5;    // seconds
}    // namespace

Sign sign_of(const Pulse& p) {
    Sign s;
    s.count = heartbeats, s.step = p.step, s.waiting = p.waiting, s.what = p.what.load();
    return s;
}
std::string sign_text(const Sign& s) {
    Beat b{s.count, s.step, s.waiting, {}};
    s.what.copy(b.what, sizeof b.what - 1);
    return std::string(reinterpret_cast<const char*>(&b), sizeof b);
}
bool sign_parse(const std::string& text, Sign* s) {
    Beat b;
    if (text.size() != sizeof b) return false;
    memcpy(&b, text.data(), sizeof b);
    b.what[sizeof b.what - 1] = 0;
    s->count = b.count, s->step = b.step, s->waiting = b.waiting, s->what = escape_control(b.what);
    return true;
}
void Sign::see(const Sign& now, double time) {
    if (now.count != count || now.step != step || now.waiting != waiting || now.what != what) moved = time;
    count = now.count, step = now.step, waiting = now.waiting, what = now.what;
    heard = time;
}
std::string Sign::place() const { return "step " + std::to_string(step) + ": " + what; }

std::string judge_silence(const Sign& s, const std::string& name, double now, double timeout) {
    if (s.left || now - s.heard < timeout) return "";
    return fail(Exit::peer, "%s has not been heard of for %.0f s (stopped, or its network is cut); it was at %s",
                name.c_str(), now - s.heard, s.place().c_str())
        .message;
}

std::string judge(const std::vector<Sign>& signs, const std::vector<std::string>& names, double now, double timeout) {
    int left = -1, still = -1, waiting = 0, present = 0;
    for (int r = 0; r < int(signs.size()); r++) {
        const Sign& s = signs[size_t(r)];
        present += !s.left;
        if (s.left) left = r;
        else if (now - s.moved < timeout) continue;
        else if (s.waiting) waiting++;
        else if (still < 0 || s.moved < signs[size_t(still)].moved) still = r;
    }
    for (size_t r = 0; left >= 0 && r < signs.size(); r++) {
        const Sign &s = signs[r], &gone = signs[size_t(left)];
        if (!s.left && s.waiting && now - std::fmax(s.moved, gone.moved) > std::fmin(timeout, FAREWELL))
            return names[size_t(left)] + " has left in good order, and " + names[r] + " waits for it at " + s.place();
    }
    if (still >= 0 && waiting > 0) {
        const Sign& s = signs[size_t(still)];
        return fail(Exit::peer, "%s has been at %s for %.0f s without getting on while %d rank%s wait%s for it",
                    names[size_t(still)].c_str(), s.place().c_str(), now - s.moved, waiting, waiting > 1 ? "s" : "",
                    waiting > 1 ? "" : "s")
            .message;
    }
    if (waiting == 0 || waiting < present) return "";
    std::string text = "all ranks wait for each other, and nothing has moved for " + std::to_string(int(timeout)) +
                       " s:";
    for (size_t r = 0; r < signs.size() && r < 4; r++)
        text += (r ? "; rank " : " rank ") + std::to_string(r) + " at " + signs[r].place();
    return text + (signs.size() > 4 ? "; ..." : "");
}
