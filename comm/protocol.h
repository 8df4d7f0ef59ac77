// protocol.h - what the watches of a run's ranks say to each other, and how: frames, the links that carry them, signs
// of life and their judge. For the files of comm/ and their tests alone; everybody else reads comm/comm.h.
#pragma once
#include <sys/socket.h>

#include <deque>

#include "comm.h"

// ---- frames: 12 bytes of header, then text --------------------------------------------------------------------------

enum class Message : uint8_t {
    join = 1,     // to rank 0: the welcome has been understood
    start,        // from rank 0: all are here; every rank's name
    heartbeat,    // a Pulse
    gather,       // to rank 0: a part of a gathering
    broadcast,    // from rank 0: the same for everybody
    abort_all,    // why all end
    abort,        // to rank 0: why this rank ends
    goodbye       // in good order
};
enum class Collective : uint8_t { none, gather, broadcast, barrier, agree };
const char* collective_name(Collective r);

struct Frame {
    Message type = Message::heartbeat;
    Collective collective = Collective::none;
    uint32_t sequence_number = 0;    // counts rounds, alike on every rank
    std::string text;
};
constexpr int64_t FRAME_LIMIT = int64_t(256) << 20;
typedef std::shared_ptr<const std::string> SharedFrame;    // a frame for many links stands in memory once
SharedFrame encode_frame(const Frame& f);

// Frames out of bytes as they come. Memory grows with what has arrived, never with what a header promises.
class FrameReader {
  public:
    enum class Next { frame, more, broken };
    void add(const char* bytes, size_t n) { buffer.append(bytes, n); }
    Next next(Frame* frame);                // broken: these are no frames
    bool read_exact(void* to, size_t n);    // n bytes as they are, once they are all here
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
    std::deque<SharedFrame> out;
    size_t sent = 0;      // bytes of the first of `out`
    int error = 0;        // errno that ended it; 0: the other end closed it
    bool shut = false;    // we have said all

    void send(SharedFrame frame) {
        if (fd >= 0 && !shut) out.push_back(std::move(frame));
    }
    bool read();     // what there is, up to a bound; false: it has ended
    void write();    // what the kernel takes
    void close();
};
// Writes what is left, says that this is all, and waits for the others to close; what they still say is dropped.
void close_links(const std::vector<Link*>& links, double seconds);
bool poll_link(Link& link, double deadline);    // until something came, then reads it; false: it ended, or time is up

// ---- signs of life --------------------------------------------------------------------------------------------------

struct RankState {
    int64_t count = 0, step = 0;
    bool waiting = false, departed = false;
    std::string phase = "starting";
    double last_progress = 0, last_received = 0;    // times: when the above last changed; when anything last came
    void update(const RankState& now, double time);
    std::string info() const;    // "step 12: writing a checkpoint"
};
RankState current_state(const Activity& p);
std::string heartbeat_text(const RankState& s);
bool heartbeat_parse(const std::string& text, RankState* s);

// Which rank keeps the others from going on: a verdict that names it, or "". names[r]: rank r's name.
// A rank that waits while another has left will wait for ever; it has 5 seconds, though, to end what the other took
// part in.
std::string find_stalled(const std::vector<RankState>& rank_states, const std::vector<std::string>& names, double now,
                         double timeout);
std::string find_silent(const RankState& s, const std::string& name, double now, double timeout);

// ---- addresses: comm/listen.cpp -------------------------------------------------------------------------------------

struct Address {
    sockaddr_storage s{};
    socklen_t size = 0;
};
std::vector<Address> resolve(const std::string& host, int port, std::string* why);
bool is_loopback(const std::string& host);    // comm/rank_info.cpp

// ---- the meeting: comm/rendezvous.cpp
// -------------------------------------------------------------------------------------

struct Peers {
    std::vector<Link> links;           // rank 0: [r] leads to rank r, [0] nowhere; others: [0] leads to rank 0
    std::vector<std::string> names;    // "rank 3 (host, pid 4711)"
};
Result<Peers> rendezvous_as_rank_0(const RankInfo& info, Listener listener, const JobToken& token, double timeout);
Result<Peers> rendezvous_with_rank_0(const RankInfo& info, const std::string& host, int port, const JobToken& token,
                                     double timeout);
