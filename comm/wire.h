// wire.h - what the watches of a run's ranks say to each other, and how: frames, the links that carry them, signs
// of life and their judge. For the files of comm/ and their tests alone; everybody else reads comm/comm.h.
#pragma once
#include <sys/socket.h>

#include <deque>

#include "comm.h"

// ---- frames: 12 bytes of header, then text --------------------------------------------------------------------------

enum class Message : uint8_t {
    join = 1,    // to rank 0: the welcome has been understood
    start,       // from rank 0: all are here; every rank's name
    beat,        // a Pulse
    collect,     // to rank 0: a part of a gathering
    spread,      // from rank 0: the same for everybody
    verdict,     // why all end
    leave,       // to rank 0: why this rank ends
    goodbye      // in good order
};
enum class Round : uint8_t { none, gather, broadcast, barrier, agree };
const char* round_name(Round r);

struct Frame {
    Message type = Message::beat;
    Round round = Round::none;
    uint32_t number = 0;    // counts rounds, alike on every rank
    std::string text;
};
constexpr int64_t FRAME_LIMIT = int64_t(256) << 20;
typedef std::shared_ptr<const std::string> Bytes;    // a frame for many links stands in memory once
Bytes frame_bytes(const Frame& f);

// Frames out of bytes as they come. Memory grows with what has arrived, never with what a header promises.
class FrameReader {
  public:
    enum class Next { frame, more, broken };
    void add(const char* bytes, size_t n) { buffer.append(bytes, n); }
    Next next(Frame* frame);          // broken: these are no frames
    bool take(void* to, size_t n);    // n bytes as they are, once they are all here
    void clear() { buffer.clear(), begin = 0; }

  private:
    std::string buffer;
    size_t begin = 0;
    void consume(size_t n);
};

// ---- links ----------------------------------------------------------------------------------------------------------

// One end of a TCP connection; never blocks.
struct Link {
    int fd = -1;
    FrameReader in;
    std::deque<Bytes> out;
    size_t sent = 0;      // bytes of the first of `out`
    int error = 0;        // errno that ended it; 0: the other end closed it
    bool shut = false;    // we have said all

    void send(Bytes frame) {
        if (fd >= 0 && !shut) out.push_back(std::move(frame));
    }
    bool read();     // what there is, up to a bound; false: it has ended
    void write();    // what the kernel takes
    void close();
};
// Writes what is left, says that this is all, and waits for the others to close; what they still say is dropped.
void part(const std::vector<Link*>& links, double seconds);
bool poll_link(Link& link, double deadline);    // until something came, then reads it; false: it ended, or time is up

// ---- signs of life --------------------------------------------------------------------------------------------------

struct Sign {
    int64_t count = 0, step = 0;
    bool waiting = false, left = false;
    std::string what = "starting";
    double moved = 0, heard = 0;    // times: when the above last changed; when anything last came
    void see(const Sign& now, double time);
    std::string place() const;    // "step 12: writing a checkpoint"
};
Sign sign_of(const Pulse& p);
std::string sign_text(const Sign& s);
bool sign_parse(const std::string& text, Sign* s);

// Which rank keeps the others from going on: a verdict that names it, or "". names[r]: rank r's name.
// A rank that waits while another has left will wait for ever; it has 5 seconds, though, to end what the other took
// part in.
std::string judge(const std::vector<Sign>& signs, const std::vector<std::string>& names, double now, double timeout);
std::string judge_silence(const Sign& s, const std::string& name, double now, double timeout);

// ---- addresses: comm/listen.cpp -------------------------------------------------------------------------------------

struct Address {
    sockaddr_storage s{};
    socklen_t size = 0;
};
std::vector<Address> resolve(const std::string& host, int port, std::string* why);
bool is_loopback(const std::string& host);    // comm/launcher.cpp

// ---- the meeting: comm/meet.cpp -------------------------------------------------------------------------------------

struct Met {
    std::vector<Link> links;           // rank 0: [r] leads to rank r, [0] nowhere; others: [0] leads to rank 0
    std::vector<std::string> names;    // "rank 3 (host, pid 4711)"
};
Result<Met> meet_as_first(const Place& place, Listener listener, const Token& token, double timeout);
Result<Met> meet_as_other(const Place& place, const std::string& host, int port, const Token& token, double timeout);
