// test_rendezvous.cpp - the rendezvous of ranks message by message, against a peer played by the
// test: what each side checks, counts and reports.
#include <future>
#include <unistd.h>

#include "base/console.h"
#include "comm/protocol.h"
#include "test.h"

namespace {
const JobToken TOKEN = job_token("meeting");
// Layouts of the first messages, as in comm/rendezvous.cpp.
struct Hello {
    char magic[8];
    uint64_t number;
    char proof[16];
    uint32_t rank, ranks, pid;
    char host[68];
};
struct Welcome {
    char magic[8];
    char proof[16];
    uint32_t milliseconds, zero;
};
void prove(char* proof, const JobToken& token, const std::string& word, uint64_t number) {
    const std::string of = token + word + std::string(reinterpret_cast<const char*>(&number), sizeof number);
    memcpy(proof, job_token(of).data(), 16);
}
Hello hello(uint32_t rank, uint32_t ranks, const JobToken& token = TOKEN) {
    Hello h{{'f', 'l', 'a', 't', 'g', 'p', 't', '1'}, 77, {}, rank, ranks, 4711, "host"};
    prove(h.proof, token, "hello", h.number);
    return h;
}
template <class T> void say(Link& link, const T& what) {
    link.send(std::make_shared<const std::string>(reinterpret_cast<const char*>(&what), sizeof what));
    link.write();
}
void say(Link& link, const Frame& frame) {
    link.send(encode_frame(frame));
    link.write();
}
double soon() { return now_seconds() + 10; }
bool ends(Link& link) {    // reads until the other side closes
    while (poll_link(link, soon())) {}
    const bool closed = link.error != ETIMEDOUT;
    link.close();
    return closed;
}
// Returns the next frame's type and stores its text. 0: the link has ended.
int next(Link& link, std::string* text = nullptr) {
    for (Frame f;;) {
        const auto got = link.in.next(&f);
        REQUIRE(got != FrameReader::Next::broken);
        if (got == FrameReader::Next::frame) return text ? *text = f.text : "", int(f.type);
        if (!poll_link(link, soon())) return 0;
    }
}
// Rank 0 of `ranks`, in a thread; the test plays the other ranks.
struct First {
    RankInfo info;
    Listener listener;
    std::future<Result<Peers>> peers;
    First(int ranks, double timeout) {
        info.ranks = ranks;
        Result<Listener> l = Listener::open("127.0.0.1", 0);
        REQUIRE(l.ok());
        listener = l.value;
        peers =
            std::async(std::launch::async, [=, this] { return rendezvous_as_rank_0(info, listener, TOKEN, timeout); });
    }
    Link guest() {
        Link link;
        std::string note;
        const Address a = resolve("127.0.0.1", listener.port, &note).at(0);
        link.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        REQUIRE(connect(link.fd, reinterpret_cast<const sockaddr*>(&a.s), a.size) == 0);
        return link;
    }
    Link welcomed(int rank) {
        Link link = guest();
        say(link, hello(uint32_t(rank), uint32_t(info.ranks)));
        Welcome w;
        while (!link.in.read_exact(&w, sizeof w)) REQUIRE(poll_link(link, soon()));
        return link;
    }
    Link joined(int rank) {
        Link link = welcomed(rank);
        say(link, Frame{Message::join, Collective::none, 0, ""});
        return link;
    }
    std::string message() {
        Result<Peers> result = peers.get();
        CHECK(result.status.code == Exit::peer);
        return result.status.message;
    }
};
// Runs rank 1 of 2 against a false rank 0 that calls `act` for each connection. Returns rank 1's
// outcome as text.
std::string as_other(std::function<void(Link&)> act) {
    Result<Listener> l = Listener::open("127.0.0.1", 0);
    REQUIRE(l.ok());
    std::atomic<bool> over{false};
    std::thread first([&] {
        std::vector<Link> links;
        while (!over) {
            const int fd = accept4(l.value.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd < 0) {
                usleep(1000);
                continue;
            }
            Link& link = links.emplace_back();
            link.fd = fd;
            act(link);
            link.write();
        }
        for (Link& link : links) link.close();
    });
    RankInfo info;
    info.rank = 1;
    info.ranks = 2;
    const Result<Peers> peers = rendezvous_with_rank_0(info, "127.0.0.1", l.value.port, TOKEN, 2);
    over = true;
    first.join();
    close(l.value.fd);
    CHECK(peers.status.code == (peers.ok() ? Exit::ok : Exit::peer));
    return peers.ok() ? "met " + peers.value.names.at(1) : peers.status.message;
}
// A false rank 0 that reads the hello, proves itself by `word`, then sends a frame or raw bytes.
template <class T> auto welcomes(const char* word, const T& then, char version = '1') {
    return [=](Link& link) {
        Hello h;
        while (!link.in.read_exact(&h, sizeof h))
            if (!poll_link(link, soon())) return;
        CHECK(h.rank == 1);
        CHECK(h.ranks == 2);
        CHECK(h.pid == uint32_t(getpid()));
        Hello right = hello(1, 2);
        prove(right.proof, TOKEN, "hello", h.number);
        CHECK(!memcmp(h.proof, right.proof, 16));
        Welcome w{{'f', 'l', 'a', 't', 'g', 'p', 't', version}, {}, 300, 0};
        prove(w.proof, TOKEN, word, h.number);
        say(link, w);
        say(link, then);
    };
}
const Frame START{Message::start, Collective::none, 0, "rank 0 (x, pid 1)\nrank 1 (y, pid 2)\n"};
}    // namespace

TEST_CASE("meeting: rank 0 welcomes who knows the token, and starts when all have joined") {
    First first(3, 20);
    Link silent = first.guest(), one = first.guest();
    say(one, hello(1, 3));
    Welcome w;
    while (!one.in.read_exact(&w, sizeof w)) REQUIRE(poll_link(one, soon()));
    char proof[16];
    prove(proof, TOKEN, "welcome", 77);
    CHECK(!memcmp(w.proof, proof, 16));
    CHECK(std::string(w.magic, 8) == "flatgpt1");
    CHECK(w.milliseconds > 5000);
    CHECK(w.milliseconds <= 20000);
    // Only join may follow a welcome.
    for (const Message wrong : {Message::abort_all, Message::heartbeat, Message::start}) {
        Link link = first.welcomed(2);
        say(link, Frame{wrong, Collective::none, 0, ""});
        CHECK(ends(link));
    }
    Link broken = first.welcomed(2);
    say(broken, std::array<char, 12>{});
    CHECK(ends(broken));
    say(one, Frame{Message::join, Collective::none, 0, ""});
    Link again = first.joined(1);    // a second rank 1
    std::string text;
    CHECK(next(again, &text) == int(Message::abort_all));
    CHECK(contains(text, "rank 1 (host, pid 4711) has come, but rank 1 (host, pid 4711) is here already"));
    Link two = first.joined(2);
    Result<Peers> peers = first.peers.get();
    REQUIRE(peers.ok());
    CHECK(peers.value.names.size() == 3);
    CHECK(peers.value.links[0].fd < 0);
    for (Link& link : peers.value.links) link.write();
    for (Link* link : {&one, &two}) {
        CHECK(next(*link, &text) == int(Message::start));
        CHECK(text.ends_with("\nrank 1 (host, pid 4711)\nrank 2 (host, pid 4711)\n"));
    }
    CHECK(ends(silent));
    CHECK(ends(again));
    for (Link& link : peers.value.links) link.close();
    for (Link* link : {&one, &two}) link->close();
}

TEST_CASE("meeting: what rank 0 says of those that did not come, or came otherwise") {
    First few(40, 0.2);
    const std::string missing = few.message();
    CHECK_MESSAGE(contains(missing, "ranks 1, 2, 3,"), missing);
    CHECK(contains(missing, "15, 16, ... of 40 did not come to rank 0 ("));
    CHECK(contains(missing, " within 0.2 s"));

    First strange(2, 0.6);
    Link foreign = strange.guest(), stranger = strange.guest(), quiet = strange.guest();
    say(foreign, hello(1, 2, job_token("another")));
    Hello h = hello(1, 2);
    h.magic[7] = '2';
    say(stranger, h);
    CHECK(ends(foreign));
    CHECK(ends(stranger));
    const std::string notes = strange.message();
    CHECK(contains(notes, "rank 1 of 2 did not come"));
    CHECK(contains(notes, "; 1 connection brought another job's token"));
    CHECK(contains(notes, "; 1 connection came from no rank at all"));
    quiet.close();

    for (auto [rank, ranks, text] : {std::tuple(1u, 3u, "rank 1 (host, pid 4711) was started as one of 3 ranks"),
                                     std::tuple(2u, 2u, "rank 2 (host, pid 4711) was started as one of 2 ranks"),
                                     std::tuple(~0u, 2u, "rank 2147483647 (host, pid 4711) was started as one of 2"),
                                     std::tuple(1u, 0u, "rank 1 (host, pid 4711) was started as one of 0 ranks")}) {
        First unequal(2, 20);
        Link link = unequal.guest();
        say(link, hello(rank, ranks));
        CHECK(ends(link));
        CHECK_MESSAGE(contains(unequal.message(), text), text);
    }
    First dies(3, 20);
    dies.joined(1).close();
    CHECK(contains(dies.message(), "rank 1 (host, pid 4711) died before all ranks were here"));
    First odd(2, 20);
    Link link = odd.guest();
    h = hello(1, 3);
    memset(h.host, '\x1b', sizeof h.host);    // neither terminated nor printable
    say(link, h);
    CHECK(ends(link));
    const std::string shown = odd.message();
    const std::string name = "rank 1 (" + escape_control(std::string(sizeof h.host, '\x1b')) + ", pid 4711)";
    CHECK(contains(shown, name + " was started as one of 3 ranks"));
    CHECK_FALSE(contains(shown, "\x1b"));
}

TEST_CASE("meeting: what another rank makes of what listens where rank 0 should") {
    auto says = [](std::function<void(Link&)> act, const std::string& what) {
        const std::string found = as_other(std::move(act));
        CHECK_MESSAGE(contains(found, what), found);
    };
    says(welcomes("welcome", START), "met rank 1 (y, pid 2)");
    says(welcomes("hello", START), "the listener is not this job's rank 0");
    says(welcomes("welcome", START, '2'), "the listener is not this job's rank 0");
    says(welcomes("welcome", Frame{Message::start, Collective::none, 0, "rank 0\n"}), "rank 0 named 1 ranks of 2");
    says(welcomes("welcome", Frame{Message::abort_all, Collective::none, 0, "no room"}), "no room");
    says(welcomes("welcome", Frame{Message::heartbeat, Collective::none, 0, ""}), "it sends an unexpected message");
    says(welcomes("welcome", std::array<char, 12>{}), "it sends an invalid message");
    says([](Link& link) { link.close(); }, "hangs up: another job's rank 0, or another program");
    says([](Link&) {}, "it takes connections and does not answer");
}

TEST_CASE("meeting: frames beyond their limits are broken before their bytes have come") {
    auto first = [](Message type, Collective collective, uint32_t length, uint16_t magic = 0xf1a7) {
        const struct {
            uint16_t magic;
            uint8_t type, collective;
            uint32_t number, length;
        } header{magic, uint8_t(type), uint8_t(collective), 0, length};
        FrameReader reader;
        reader.add(reinterpret_cast<const char*>(&header), sizeof header);
        Frame f;
        return reader.next(&f);
    };
    using Next = FrameReader::Next;
    CHECK(first(Message::join, Collective::none, 0) == Next::frame);
    CHECK(first(Message::goodbye, Collective::agree, 0) == Next::frame);
    CHECK(first(Message::join, Collective::none, uint32_t(FRAME_LIMIT)) == Next::more);
    CHECK(first(Message::join, Collective::none, uint32_t(FRAME_LIMIT) + 1) == Next::broken);
    CHECK(first(Message::join, Collective::none, ~0u) == Next::broken);
    CHECK(first(Message(0), Collective::none, 0) == Next::broken);
    CHECK(first(Message(8), Collective::none, 0) == Next::broken);
    CHECK(first(Message::join, Collective(5), 0) == Next::broken);
    CHECK(first(Message::join, Collective::none, 0, 0xa7f1) == Next::broken);
    FrameReader reader;
    reader.add("abc", 3);
    char two[2], more[2];
    CHECK(reader.read_exact(two, 2));
    CHECK(std::string(two, 2) == "ab");
    CHECK_FALSE(reader.read_exact(more, 2));
    reader.add("d", 1);
    CHECK(reader.read_exact(more, 2));
    CHECK(std::string(more, 2) == "cd");
}
