// coordinator.cpp - host messages between ranks, and a thread that keeps ranks from hanging.
//
// The thread owns the sockets. The main thread puts frames into the links' queues and takes frames
// from the inboxes, under one mutex. Rank 0's thread watches every rank; the other threads watch
// rank 0 alone. abort_all sends its reason over all links, and rank 0 passes it on to every rank.
// Then abort_all ends the process on this thread, because the main thread may be inside a
// collective that never returns. A rank that aborts for its own reason does not return to main.cpp
// either: freeing its resources would wait for collectives that other ranks have left.
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

#include "protocol.h"
#include "base/console.h"

namespace {
constexpr double ABORT_FLUSH_SECONDS = 0.3;    // seconds to send abort_all; live ranks read it in milliseconds
constexpr double EXIT_HOOK_SECONDS = 2;        // time limit of exit_hook
constexpr uint32_t WAKE = UINT32_MAX;
}    // namespace

struct Coordinator::State {
    Coordinator* coordinator = nullptr;
    int rank = 0, ranks = 1;
    double timeout = 60, interval = 1;
    std::vector<std::string> names;
    uint32_t sequence_number = 0;    // counts host collectives; main thread only

    std::mutex mutex;    // guards the members below
    std::condition_variable changed;
    std::vector<Link> links;                 // rank 0: [r] is rank r; others: [0] is rank 0
    std::vector<std::deque<Frame>> inbox;    // by link
    std::vector<RankState> rank_states;      // by rank; ranks above 0 track rank 0 and themselves
    std::vector<char> wants_write;           // by link: waits for EPOLLOUT
    std::string failure;                     // the main thread's reason to abort
    std::function<void()> exit_hook;
    std::function<std::string()> health_check;
    double failing_since = INFINITY;    // first time health_check failed
    bool closing = false;               // the main thread waits for this thread
    double close_seconds = 0;

    int epoll = -1, wake_fd = -1;
    std::thread thread;

    // Functions for the main thread.
    Status start(Peers peers);
    void wake();
    Frame receive_frame(int r, Collective collective);
    void send_frame(int r, const SharedFrame& frame, Collective collective);
    [[noreturn]] void request_abort(std::unique_lock<std::mutex>& lock, const std::string& text);
    std::vector<std::string> gather(Collective collective, const std::string& mine);
    std::string broadcast(Collective collective, const std::string& text);
    void end(const Frame& last, double seconds);

    // Functions of the coordinator's thread.
    void run();
    void flush(int r);
    void receive(int r);
    void parse_frames(int r);
    void handle_frame(int r, Frame frame);
    void heartbeat(double now);
    void check_ranks(double now);
    [[noreturn]] void abort_all(const std::string& text);
    [[noreturn]] void exit_with(const std::string& text, Exit code);
};

// ---- the main thread: starting and ending -------------------------------------------------------

Status Coordinator::State::start(Peers peers) {
    links = std::move(peers.links);
    names = std::move(peers.names);
    inbox.resize(links.size());
    wants_write.resize(links.size());
    rank_states.resize(size_t(ranks));
    for (RankState& s : rank_states) s.last_received = s.last_progress = now_seconds();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (epoll < 0 || wake_fd < 0) return fail(Exit::peer, "cannot start the ranks' coordinator: %s", strerror(errno));
    epoll_event e{EPOLLIN, {.u32 = WAKE}};
    CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, wake_fd, &e));
    for (size_t r = 0; r < links.size(); r++) {
        e.data.u32 = uint32_t(r);
        if (links[r].fd >= 0) CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, links[r].fd, &e));
    }
    sigset_t all, before;    // blocked in the new thread: the main thread handles them
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return {};
}

void Coordinator::State::wake() {
    const uint64_t one = 1;
    while (write(wake_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

// Sends the frame `last` to all connected ranks, then ends the thread.
void Coordinator::State::end(const Frame& last, double seconds) {
    if (!thread.joinable()) return;
    {
        std::lock_guard lock(mutex);
        const SharedFrame bytes = encode_frame(last);
        for (Link& l : links) l.send(bytes);
        closing = true;
        close_seconds = seconds;
    }
    wake();
    thread.join();
    close(epoll);
    close(wake_fd);
}

// ---- the main thread: collectives ---------------------------------------------------------------

// Passes the failure to the coordinator's thread, which ends the process.
void Coordinator::State::request_abort(std::unique_lock<std::mutex>& lock, const std::string& text) {
    failure = text;
    wake();
    for (;;) changed.wait(lock);
}

Frame Coordinator::State::receive_frame(int r, Collective collective) {
    std::unique_lock lock(mutex);
    auto& box = inbox[size_t(r)];
    changed.wait(lock, [&] { return !box.empty() || rank_states[size_t(r)].departed; });
    const std::string our_collective = std::string(collective_name(collective)) + " number " +
                                       std::to_string(sequence_number);
    if (box.empty())
        request_abort(lock, names[size_t(r)] + " has left in good order, and " + names[size_t(rank)] + " is at " +
                                our_collective);
    Frame f = std::move(box.front());
    box.pop_front();
    if (f.collective != collective || f.sequence_number != sequence_number)
        request_abort(lock, names[size_t(r)] + " is at " + collective_name(f.collective) + " number " +
                                std::to_string(f.sequence_number) + " and " + names[size_t(rank)] + " at " +
                                our_collective + ": they do not do the same");
    return f;
}

void Coordinator::State::send_frame(int r, const SharedFrame& frame, Collective collective) {
    std::unique_lock lock(mutex);
    if (rank_states[size_t(r)].departed)
        request_abort(lock, names[size_t(r)] + " has left in good order, and " + names[size_t(rank)] + " is at " +
                                collective_name(collective) + " number " + std::to_string(sequence_number));
    links[size_t(r)].send(frame);
}

// Rank 0 receives all ranks' texts; the other ranks send and do not wait.
std::vector<std::string> Coordinator::State::gather(Collective collective, const std::string& mine) {
    Waiting waiting(&coordinator->activity);
    if (rank) {
        send_frame(0, encode_frame({Message::gather, collective, sequence_number, mine}), collective);
        wake();
        return {};
    }
    std::vector<std::string> all{mine};
    for (int r = 1; r < ranks; r++) all.push_back(receive_frame(r, collective).text);
    return all;
}
std::string Coordinator::State::broadcast(Collective collective, const std::string& text) {
    Waiting waiting(&coordinator->activity);
    if (rank) return receive_frame(0, collective).text;
    const SharedFrame frame = encode_frame({Message::broadcast, collective, sequence_number, text});
    for (int r = 1; r < ranks; r++) send_frame(r, frame, collective);
    if (ranks > 1) wake();
    return text;
}

// ---- the thread ---------------------------------------------------------------------------------

void Coordinator::State::run() {
    std::vector<epoll_event> events(256);
    double last = now_seconds(), next_heartbeat = last, next_check = last;
    {
        std::lock_guard lock(mutex);    // rendezvous reads may include the first frames
        for (int r = 0; r < int(links.size()); r++) parse_frames(r);
    }
    for (;;) {
        const double until = std::min(next_heartbeat, next_check);
        const int n =
            epoll_wait(epoll, events.data(), int(events.size()), std::max(0, int((until - now_seconds()) * 1000) + 1));
        std::lock_guard lock(mutex);
        const double now = now_seconds();
        // Time in which this process was stopped does not count, because it could not receive
        // frames. Slurm, for example, stops and continues whole jobs.
        if (const double suspended = now - last - interval; suspended > interval)
            for (RankState& s : rank_states) s.last_received += suspended, s.last_progress += suspended;
        last = now;
        bool woken = false;
        for (int i = 0; i < n; i++) {
            if (events[size_t(i)].data.u32 == WAKE) woken = true;
            else if (events[size_t(i)].events & ~EPOLLOUT) receive(int(events[size_t(i)].data.u32));
            else flush(int(events[size_t(i)].data.u32));
        }
        uint64_t count;
        if (woken && read(wake_fd, &count, sizeof count) < 0) woken = false;
        if (!failure.empty()) abort_all(failure);
        if (closing) break;
        if (woken)
            for (int r = 0; r < int(links.size()); r++) flush(r);
        if (now >= next_heartbeat) heartbeat(now), next_heartbeat = now + interval;
        if (now >= next_check) check_ranks(now), next_check = now + interval / 4;
    }
    std::vector<Link*> all;
    for (Link& l : links) all.push_back(&l);
    close_links(all, close_seconds);
}

void Coordinator::State::flush(int r) {
    Link& l = links[size_t(r)];
    if (l.fd < 0) return;
    l.write();
    if (wants_write[size_t(r)] == !l.out.empty()) return;
    wants_write[size_t(r)] = !l.out.empty();
    epoll_event e{EPOLLIN | (l.out.empty() ? 0u : unsigned(EPOLLOUT)), {.u32 = uint32_t(r)}};
    epoll_ctl(epoll, EPOLL_CTL_MOD, l.fd, &e);
}

void Coordinator::State::receive(int r) {
    Link& l = links[size_t(r)];
    RankState& s = rank_states[size_t(r)];
    if (l.fd < 0) return;
    const bool open = l.read();
    s.last_received = now_seconds();
    parse_frames(r);
    if (open) return flush(r);
    if (!s.departed) {
        const bool closed = !l.error || l.error == ECONNRESET || l.error == EPIPE;
        abort_all(names[size_t(r)] + (closed ? " died" : std::string(" cannot be reached: ") + strerror(l.error)) +
                  "; it was at " + s.info());
    }
    l.close();
}

void Coordinator::State::parse_frames(int r) {
    for (Frame f;;) {
        const auto next = links[size_t(r)].in.next(&f);
        if (next == FrameReader::Next::broken) abort_all(names[size_t(r)] + " sent an invalid message");
        if (next == FrameReader::Next::more) return;
        handle_frame(r, std::move(f));
    }
}

void Coordinator::State::handle_frame(int r, Frame f) {
    const std::string& name = names[size_t(r)];
    RankState& s = rank_states[size_t(r)];
    if (f.type == Message::heartbeat) {
        RankState now;
        if (!heartbeat_parse(f.text, &now))
            abort_all(name + " sent a heartbeat of " + std::to_string(f.text.size()) + " bytes");
        s.update(now, now_seconds());
    } else if (f.type == Message::abort_all) {
        abort_all(f.text);
    } else if (f.type == Message::goodbye) {
        s.departed = true;
        s.last_progress = now_seconds();
        changed.notify_all();
    } else if (f.type == (rank ? Message::broadcast : Message::gather)) {
        inbox[size_t(r)].push_back(std::move(f));
        changed.notify_all();
    } else {
        abort_all(name + " sent a message that only other ranks may send");
    }
}

void Coordinator::State::heartbeat(double now) {
    rank_states[size_t(rank)].update(current_state(coordinator->activity), now);
    const SharedFrame frame =
        encode_frame({Message::heartbeat, Collective::none, 0, heartbeat_text(rank_states[size_t(rank)])});
    for (int r = 0; r < int(links.size()); r++) {
        if (links[size_t(r)].out.empty()) links[size_t(r)].send(frame);    // a queued frame is a heartbeat, too
        flush(r);
    }
}

void Coordinator::State::check_ranks(double now) {
    rank_states[size_t(rank)].update(current_state(coordinator->activity), now);
    if (const std::string text = health_check ? health_check() : ""; text.empty()) failing_since = INFINITY;
    // Often another rank's death is the cause of the failed check, so the abort that names that
    // rank gets time to arrive first.
    else if (failing_since = std::fmin(failing_since, now); now - failing_since >= interval / 2)
        abort_all(names[size_t(rank)] + ": " + text);
    for (int r = 0; r < int(links.size()); r++) {
        if (r == rank) continue;
        const std::string silent = find_silent(rank_states[size_t(r)], names[size_t(r)], now, timeout);
        if (!silent.empty()) abort_all(silent);
    }
    std::string text;
    if (rank == 0) text = find_stalled(rank_states, names, now, timeout);
    else if (rank_states[0].departed)
        text = find_stalled({rank_states[0], rank_states[size_t(rank)]}, {names[0], names[size_t(rank)]}, now, timeout);
    if (!text.empty()) abort_all(text);
}

void Coordinator::State::abort_all(const std::string& text) {
    const SharedFrame frame = encode_frame({Message::abort_all, Collective::none, 0, text});
    std::vector<Link*> all;
    for (Link& l : links) l.send(frame), all.push_back(&l);
    close_links(all, ABORT_FLUSH_SECONDS);
    exit_with(text, Exit::peer);
}

void Coordinator::State::exit_with(const std::string& text, Exit code) {
    const std::string line = (stderr_is_terminal() ? "\nflatgpt: rank " : "flatgpt: rank ") + std::to_string(rank) +
                             ": " + escape_control(text) + "\n";    // one write: ranks share a terminal
    if (write(2, line.data(), line.size()) < 0) {}
    if (exit_hook) {
        static std::atomic<bool> done{false};
        pthread_t other;
        auto body = [](void* f) -> void* {
            (*static_cast<std::function<void()>*>(f))();
            done = true;
            return nullptr;
        };
        const bool started = !pthread_create(&other, nullptr, body, &exit_hook);
        for (double end = now_seconds() + EXIT_HOOK_SECONDS; started && !done && now_seconds() < end;) usleep(1000);
    }
    end_process(code);
}
void end_process(Exit code) { _exit(int(code)); }

// ---- the class ----------------------------------------------------------------------------------

Coordinator::Coordinator(std::unique_ptr<State> state) : s(std::move(state)) { s->coordinator = this; }

Result<std::unique_ptr<Coordinator>> Coordinator::rendezvous(const RankInfo& info, Listener listener,
                                                             const std::string& host, int port, const JobToken& token,
                                                             double timeout) {
    auto state = std::make_unique<State>();
    state->rank = info.rank;
    state->ranks = info.ranks;
    state->timeout = timeout;
    state->interval = std::fmin(1, timeout / 10);
    Peers peers;
    if (info.ranks > 1) {
        peers = TRY(info.rank == 0 ? rendezvous_as_rank_0(info, listener, token, timeout)
                                   : rendezvous_with_rank_0(info, host, port, token, timeout));
    } else {
        if (listener.fd >= 0) close(listener.fd);
        state->names = {"rank 0 (pid " + std::to_string(getpid()) + ")"};
    }
    std::unique_ptr<Coordinator> coordinator(new Coordinator(std::move(state)));
    if (info.ranks > 1) TRY(coordinator->s->start(std::move(peers)));
    return coordinator;
}

Coordinator::~Coordinator() {
    s->end({Message::goodbye, Collective::none, s->sequence_number, ""}, std::fmin(s->timeout, 5));
}
int Coordinator::rank() const { return s->rank; }
int Coordinator::ranks() const { return s->ranks; }
double Coordinator::timeout() const { return s->timeout; }
std::string Coordinator::name(int rank) const { return s->names[size_t(rank)]; }
// The thread holds the mutex while it ends the process, so the captures of `action` stay alive.
void Coordinator::exit_hook(std::function<void()> action) {
    std::lock_guard lock(s->mutex);
    s->exit_hook = std::move(action);
}
void Coordinator::health_check(std::function<std::string()> failure) {
    std::lock_guard lock(s->mutex);
    s->health_check = std::move(failure);
}

std::vector<std::string> Coordinator::gather(const std::string& mine) {
    s->sequence_number++;
    return s->gather(Collective::gather, mine);
}
std::string Coordinator::broadcast(const std::string& of_rank_0) {
    s->sequence_number++;
    return s->broadcast(Collective::broadcast, of_rank_0);
}
void Coordinator::barrier() {
    s->sequence_number++;
    s->gather(Collective::barrier, "");
    s->broadcast(Collective::barrier, "");
}

// Failed ranks send their messages; if all ranks are ok, all frames are empty.
Status Coordinator::agree(const Status& mine) {
    s->sequence_number++;
    const auto all = s->gather(Collective::agree, mine.ok() ? "" : "-" + mine.message);
    std::string failed;
    int n = 0;
    for (size_t r = 0; r < all.size(); r++) {
        if (all[r].empty()) continue;
        if (n++ < 8) failed += (n > 1 ? "; " : "") + s->names[r] + ": " + all[r].substr(1);
    }
    if (n > 8) failed += "; and " + std::to_string(n - 8) + " more";
    failed = s->broadcast(Collective::agree, failed);
    if (!mine.ok() || failed.empty()) return mine;
    return fail(Exit::peer, "%s", failed.c_str());
}

void Coordinator::abort_ranks(const Status& why) {
    const std::string text = s->names[size_t(s->rank)] + ": " + why.message;
    s->end({Message::abort_all, Collective::none, s->sequence_number, text}, 2);
    fflush(nullptr);
    s->exit_with(why.message, why.code);
}
