// watch.cpp - the watch: host messages between ranks, and a thread that lets no rank wait for ever.
//
// The thread owns the sockets. The main thread puts frames into the links' queues and takes them from the inboxes under
// one mutex. Rank 0's thread sees every rank and judges; the others see rank 0 alone. A verdict goes to everybody and
// ends the process on this thread: the main thread may be inside a collective that never returns, and cannot go back to
// main.cpp. A rank that leaves for a reason of its own does not go back there either: freeing what it holds would wait
// for collectives that the others have left.
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "wire.h"
#include "base/console.h"

namespace {
constexpr double LAST_WORDS = 0.3;     // seconds for a verdict to arrive; the ranks that live take it in milliseconds
constexpr double ABORT_SECONDS = 2;    // the time that before_exit has
constexpr uint32_t WAKE = UINT32_MAX;
}    // namespace

struct Watch::State {
    Watch* watch = nullptr;
    int rank = 0, ranks = 1;
    double timeout = 60, interval = 1;
    std::vector<std::string> names;
    uint32_t number = 0;    // counts host collectives; only the main thread uses it

    std::mutex mutex;    // guards all that follows
    std::condition_variable news;
    std::vector<Link> links;                 // rank 0: [r] leads to rank r; others: [0] leads to rank 0
    std::vector<std::deque<Frame>> inbox;    // one for each link
    std::vector<Sign> signs;                 // one for each rank; others than rank 0 know rank 0's and their own
    std::vector<char> wants_room;            // one for each link: epoll tells when the kernel takes bytes again
    std::string trouble;                     // what the main thread found: the verdict
    std::function<void()> before_exit;
    std::function<std::string()> look_at;
    double troubled = INFINITY;    // since when look_at has had something to say
    bool parting = false;          // the main thread waits for the thread to end
    double part_seconds = 0;

    int epoll = -1, wake_fd = -1;
    std::thread thread;

    // the main thread
    Status start(Met met);
    void wake();
    Frame take(int r, Round round);
    void put(int r, const Bytes& frame, Round round);
    [[noreturn]] void report(std::unique_lock<std::mutex>& lock, const std::string& text);
    std::vector<std::string> collect(Round round, const std::string& mine);
    std::string spread(Round round, const std::string& text);
    void end(const Frame& last, double seconds);

    // the thread
    void run();
    void flush(int r);
    void receive(int r);
    void understand(int r);
    void hear(int r, Frame frame);
    void beat(double now);
    void look(double now);
    [[noreturn]] void verdict(const std::string& text);
    [[noreturn]] void die(const std::string& text, Exit code);
};

// ---- the main thread: starting and ending ---------------------------------------------------------------------------

Status Watch::State::start(Met met) {
    links = std::move(met.links);
    names = std::move(met.names);
    inbox.resize(links.size());
    wants_room.resize(links.size());
    signs.resize(size_t(ranks));
    for (Sign& s : signs) s.heard = s.moved = now_seconds();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (epoll < 0 || wake_fd < 0) return fail(Exit::peer, "no watch over the ranks: %s", strerror(errno));
    epoll_event e{EPOLLIN, {.u32 = WAKE}};
    CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, wake_fd, &e));
    for (size_t r = 0; r < links.size(); r++) {
        e.data.u32 = uint32_t(r);
        if (links[r].fd >= 0) CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, links[r].fd, &e));
    }
    sigset_t all, before;    // signals go to the main thread
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return {};
}

void Watch::State::wake() {
    const uint64_t one = 1;
    while (write(wake_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

// The last frame to everybody who is left, then the thread ends.
void Watch::State::end(const Frame& last, double seconds) {
    if (!thread.joinable()) return;
    {
        std::lock_guard lock(mutex);
        const Bytes bytes = frame_bytes(last);
        for (Link& l : links) l.send(bytes);
        parting = true;
        part_seconds = seconds;
    }
    wake();
    thread.join();
    close(epoll);
    close(wake_fd);
}

// ---- the main thread: collectives -----------------------------------------------------------------------------------

// Tells the thread, which ends the process.
void Watch::State::report(std::unique_lock<std::mutex>& lock, const std::string& text) {
    trouble = text;
    wake();
    for (;;) news.wait(lock);
}

Frame Watch::State::take(int r, Round round) {
    std::unique_lock lock(mutex);
    auto& box = inbox[size_t(r)];
    news.wait(lock, [&] { return !box.empty() || signs[size_t(r)].left; });
    const std::string our_round = std::string(round_name(round)) + " number " + std::to_string(number);
    if (box.empty())
        report(lock, names[size_t(r)] + " has left in good order, and " + names[size_t(rank)] + " is at " + our_round);
    Frame f = std::move(box.front());
    box.pop_front();
    if (f.round != round || f.number != number)
        report(lock, names[size_t(r)] + " is at " + round_name(f.round) + " number " + std::to_string(f.number) +
                         " and " + names[size_t(rank)] + " at " + our_round + ": they do not do the same");
    return f;
}

void Watch::State::put(int r, const Bytes& frame, Round round) {
    std::unique_lock lock(mutex);
    if (signs[size_t(r)].left)
        report(lock, names[size_t(r)] + " has left in good order, and " + names[size_t(rank)] + " is at " +
                         round_name(round) + " number " + std::to_string(number));
    links[size_t(r)].send(frame);
}

// Rank 0 gets everyone's; the others do not wait.
std::vector<std::string> Watch::State::collect(Round round, const std::string& mine) {
    Waiting waiting(&watch->pulse);
    if (rank) {
        put(0, frame_bytes({Message::collect, round, number, mine}), round);
        wake();
        return {};
    }
    std::vector<std::string> all{mine};
    for (int r = 1; r < ranks; r++) all.push_back(take(r, round).text);
    return all;
}
std::string Watch::State::spread(Round round, const std::string& text) {
    Waiting waiting(&watch->pulse);
    if (rank) return take(0, round).text;
    const Bytes frame = frame_bytes({Message::spread, round, number, text});
    for (int r = 1; r < ranks; r++) put(r, frame, round);
    if (ranks > 1) wake();
    return text;
}

// ---- the thread -----------------------------------------------------------------------------------------------------

void Watch::State::run() {
    std::vector<epoll_event> events(256);
    double last = now_seconds(), next_beat = last, next_look = last;
    {
        std::lock_guard lock(mutex);    // the last of the meeting's bytes may have been the first of these
        for (int r = 0; r < int(links.size()); r++) understand(r);
    }
    for (;;) {
        const double until = std::min(next_beat, next_look);
        const int n =
            epoll_wait(epoll, events.data(), int(events.size()), std::max(0, int((until - now_seconds()) * 1000) + 1));
        std::lock_guard lock(mutex);
        const double now = now_seconds();
        // Stopped and continued, as Slurm does it to whole jobs: nobody could be heard in that time.
        if (const double asleep = now - last - interval; asleep > interval)
            for (Sign& s : signs) s.heard += asleep, s.moved += asleep;
        last = now;
        bool woken = false;
        for (int i = 0; i < n; i++) {
            if (events[size_t(i)].data.u32 == WAKE) woken = true;
            else if (events[size_t(i)].events & ~EPOLLOUT) receive(int(events[size_t(i)].data.u32));
            else flush(int(events[size_t(i)].data.u32));
        }
        uint64_t count;
        if (woken && read(wake_fd, &count, sizeof count) < 0) woken = false;
        if (!trouble.empty()) verdict(trouble);
        if (parting) break;
        if (woken)
            for (int r = 0; r < int(links.size()); r++) flush(r);
        if (now >= next_beat) beat(now), next_beat = now + interval;
        if (now >= next_look) look(now), next_look = now + interval / 4;
    }
    std::vector<Link*> all;
    for (Link& l : links) all.push_back(&l);
    part(all, part_seconds);
}

void Watch::State::flush(int r) {
    Link& l = links[size_t(r)];
    if (l.fd < 0) return;
    l.write();
    if (wants_room[size_t(r)] == !l.out.empty()) return;
    wants_room[size_t(r)] = !l.out.empty();
    epoll_event e{EPOLLIN | (l.out.empty() ? 0u : unsigned(EPOLLOUT)), {.u32 = uint32_t(r)}};
    epoll_ctl(epoll, EPOLL_CTL_MOD, l.fd, &e);
}

void Watch::State::receive(int r) {
    Link& l = links[size_t(r)];
    Sign& s = signs[size_t(r)];
    if (l.fd < 0) return;
    const bool open = l.read();
    s.heard = now_seconds();
    understand(r);
    if (open) return flush(r);
    if (!s.left) {
        const bool closed = !l.error || l.error == ECONNRESET || l.error == EPIPE;
        verdict(names[size_t(r)] + (closed ? " died" : std::string(" cannot be reached: ") + strerror(l.error)) +
                "; it was at " + s.place());
    }
    l.close();
}

void Watch::State::understand(int r) {
    for (Frame f;;) {
        const auto next = links[size_t(r)].in.next(&f);
        if (next == FrameReader::Next::broken) verdict(names[size_t(r)] + " sent what is no message");
        if (next == FrameReader::Next::more) return;
        hear(r, std::move(f));
    }
}

void Watch::State::hear(int r, Frame f) {
    const std::string& name = names[size_t(r)];
    Sign& s = signs[size_t(r)];
    if (f.type == Message::beat) {
        Sign now;
        if (!sign_parse(f.text, &now)) verdict(name + " sent a beat of " + std::to_string(f.text.size()) + " bytes");
        s.see(now, now_seconds());
    } else if (f.type == Message::verdict) {
        verdict(f.text);
    } else if (f.type == Message::leave) {
        verdict(name + ": " + f.text);
    } else if (f.type == Message::goodbye) {
        s.left = true;
        s.moved = now_seconds();
        news.notify_all();
    } else if (f.type == (rank ? Message::spread : Message::collect)) {
        inbox[size_t(r)].push_back(std::move(f));
        news.notify_all();
    } else {
        verdict(name + " sent a message that is not its to send");
    }
}

void Watch::State::beat(double now) {
    signs[size_t(rank)].see(sign_of(watch->pulse), now);
    const Bytes frame = frame_bytes({Message::beat, Round::none, 0, sign_text(signs[size_t(rank)])});
    for (int r = 0; r < int(links.size()); r++) {
        if (links[size_t(r)].out.empty()) links[size_t(r)].send(frame);    // what waits there is a sign of life, too
        flush(r);
    }
}

void Watch::State::look(double now) {
    signs[size_t(rank)].see(sign_of(watch->pulse), now);
    if (const std::string text = look_at ? look_at() : ""; text.empty()) troubled = INFINITY;
    // A rank that has died is often this trouble's reason: the verdict that names it has time to come first.
    else if (troubled = std::fmin(troubled, now); now - troubled >= interval / 2)
        verdict(names[size_t(rank)] + ": " + text);
    for (int r = 0; r < int(links.size()); r++) {
        if (r == rank) continue;
        const std::string silent = judge_silence(signs[size_t(r)], names[size_t(r)], now, timeout);
        if (!silent.empty()) verdict(silent);
    }
    std::string text;
    if (rank == 0) text = judge(signs, names, now, timeout);
    else if (signs[0].left)
        text = judge({signs[0], signs[size_t(rank)]}, {names[0], names[size_t(rank)]}, now, timeout);
    if (!text.empty()) verdict(text);
}

void Watch::State::verdict(const std::string& text) {
    const Bytes frame = frame_bytes({Message::verdict, Round::none, 0, text});
    std::vector<Link*> all;
    for (Link& l : links) l.send(frame), all.push_back(&l);
    part(all, LAST_WORDS);
    die(text, Exit::peer);
}

void Watch::State::die(const std::string& text, Exit code) {
    const std::string line = (stderr_is_terminal() ? "\nflatgpt: rank " : "flatgpt: rank ") + std::to_string(rank) +
                             ": " + escape_control(text) + "\n";    // one write: ranks share a terminal
    if (write(2, line.data(), line.size()) < 0) {}
    if (before_exit) {
        static std::atomic<bool> done{false};
        pthread_t other;
        auto body = [](void* f) -> void* {
            (*static_cast<std::function<void()>*>(f))();
            done = true;
            return nullptr;
        };
        const bool started = !pthread_create(&other, nullptr, body, &before_exit);
        for (double end = now_seconds() + ABORT_SECONDS; started && !done && now_seconds() < end;) usleep(1000);
    }
    end_process(code);
}
void end_process(Exit code) { _exit(int(code)); }

// ---- the class ------------------------------------------------------------------------------------------------------

Watch::Watch(std::unique_ptr<State> state) : s(std::move(state)) { s->watch = this; }

Result<std::unique_ptr<Watch>> Watch::meet(const Place& place, Listener listener, const std::string& host, int port,
                                           const Token& token, double timeout) {
    auto state = std::make_unique<State>();
    state->rank = place.rank, state->ranks = place.ranks;
    state->timeout = timeout, state->interval = std::fmin(1, timeout / 10);
    Met met;
    if (place.ranks > 1) {
        met = TRY(place.rank == 0 ? meet_as_first(place, listener, token, timeout)
                                  : meet_as_other(place, host, port, token, timeout));
    } else {
        if (listener.fd >= 0) close(listener.fd);
        state->names = {"rank 0 (pid " + std::to_string(getpid()) + ")"};
    }
    std::unique_ptr<Watch> watch(new Watch(std::move(state)));
    if (place.ranks > 1) TRY(watch->s->start(std::move(met)));
    return watch;
}

Watch::~Watch() { s->end({Message::goodbye, Round::none, s->number, ""}, std::fmin(s->timeout, 5)); }
int Watch::rank() const { return s->rank; }
int Watch::ranks() const { return s->ranks; }
double Watch::timeout() const { return s->timeout; }
std::string Watch::name(int rank) const { return s->names[size_t(rank)]; }
// The thread holds the mutex while it ends the process: what the action used cannot go away under it.
void Watch::before_exit(std::function<void()> action) {
    std::lock_guard lock(s->mutex);
    s->before_exit = std::move(action);
}
void Watch::look_at(std::function<std::string()> trouble) {
    std::lock_guard lock(s->mutex);
    s->look_at = std::move(trouble);
}

std::vector<std::string> Watch::gather(const std::string& mine) {
    s->number++;
    return s->collect(Round::gather, mine);
}
std::string Watch::broadcast(const std::string& of_rank_0) {
    s->number++;
    return s->spread(Round::broadcast, of_rank_0);
}
void Watch::barrier() {
    s->number++;
    s->collect(Round::barrier, "");
    s->spread(Round::barrier, "");
}

// Where all is well nothing travels but empty frames.
Status Watch::agree(const Status& mine) {
    s->number++;
    const auto all = s->collect(Round::agree, mine.ok() ? "" : "-" + mine.message);
    std::string failed;
    int n = 0;
    for (size_t r = 0; r < all.size(); r++) {
        if (all[r].empty()) continue;
        if (n++ < 8) failed += (n > 1 ? "; " : "") + s->names[r] + ": " + all[r].substr(1);
    }
    if (n > 8) failed += "; and " + std::to_string(n - 8) + " more";
    failed = s->spread(Round::agree, failed);
    if (!mine.ok() || failed.empty()) return mine;
    return fail(Exit::peer, "%s", failed.c_str());
}

void Watch::leave(const Status& why) {
    const Message type = s->rank ? Message::leave : Message::verdict;
    const std::string name = s->rank ? "" : s->names[0] + ": ";
    s->end({type, Round::none, s->number, name + why.message}, 2);
    fflush(nullptr);
    s->die(why.message, why.code);
}
