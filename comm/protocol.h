// protocol.h - the coordinators' protocol: frames, the links that carry them, heartbeats and stall
// detection. For the files of comm/ and their tests alone; other folders include comm/comm.h.
#pragma once
#include <sys/socket.h>

#include <deque>

#include "comm.h"

// ---- frames: 12 bytes of header, then text ------------------------------------------------------

enum class Message : uint8_t {
    join = 1,     // to rank 0: welcome received
    start,        // from rank 0: all ranks' names
    heartbeat,    // from each rank: its Activity
    gather,       // to rank 0: one rank's part of a gather
    broadcast,    // from rank 0: equal text for every rank
    abort_all,    // the reason why all ranks end
    goodbye       // orderly departure
};
enum class Collective : uint8_t { none, gather, broadcast, barrier, agree };
const char* collective_name(Collective r);

struct Frame {
    Message type = Message::heartbeat;
    Collective collective = Collective::none;
    uint32_t sequence_number = 0;    // counts collectives, equal on every rank
    std::string text;
};
constexpr int64_t FRAME_LIMIT = int64_t(256) << 20;
typedef std::shared_ptr<const std::string> SharedFrame;    // shared by many links
SharedFrame encode_frame(const Frame& f);

// Parses frames from a byte stream. Memory grows with received bytes, not with announced lengths.
class FrameReader {
  public:
    enum class Next { frame, more, broken };
    void add(const char* bytes, size_t n) { buffer.append(bytes, n); }
    Next next(Frame* frame);                // broken: invalid bytes
    bool read_exact(void* to, size_t n);    // n raw bytes; false until all have arrived
    void clear() { buffer.clear(), begin = 0; }

  private:
    std::string buffer;
    size_t begin = 0;
    void consume(size_t n);
};

// ---- links --------------------------------------------------------------------------------------

// One end of a TCP connection; non-blocking.
struct Link {
    int fd = -1;
    FrameReader in;
    std::deque<SharedFrame> out;
    size_t sent = 0;      // bytes of out.front() already sent
    int error = 0;        // errno that ended the link; 0: closed by the peer
    bool shut = false;    // no more sends

    void send(SharedFrame frame) {
        if (fd >= 0 && !shut) out.push_back(std::move(frame));
    }
    bool read();     // reads available bytes, up to a bound; false: ended
    void write();    // writes until the kernel's buffer is full
    void close();
};
// Flushes and shuts down all links, then waits for the peers to close. Frames received meanwhile
// are dropped.
void close_links(const std::vector<Link*>& links, double seconds);
bool poll_link(Link& link, double deadline);    // waits for bytes and reads; false: ended or timed out

// ---- heartbeats ---------------------------------------------------------------------------------

struct RankState {
    int64_t count = 0, step = 0;
    bool waiting = false, departed = false;
    std::string phase = "starting";
    double last_progress = 0;    // time of the last change
    double last_received = 0;    // time of the last received bytes
    void update(const RankState& now, double time);
    std::string info() const;    // "step 12: writing a checkpoint"
};
RankState current_state(const Activity& p);
std::string heartbeat_text(const RankState& s);
bool heartbeat_parse(const std::string& text, RankState* s);

// Finds the rank that keeps the others from continuing. Returns a message for abort_all that names
// this rank, or all ranks if they wait for each other; "": none. names[r]: rank r's name. A rank
// that waits for a departed rank counts as stalled after 5 s, in which their last collective may
// end.
std::string find_stalled(const std::vector<RankState>& rank_states, const std::vector<std::string>& names, double now,
                         double timeout);
std::string find_silent(const RankState& s, const std::string& name, double now, double timeout);

// ---- addresses, the rendezvous: comm/rendezvous.cpp ---------------------------------------------

struct Address {
    sockaddr_storage s{};
    socklen_t size = 0;
};
std::vector<Address> resolve(const std::string& host, int port, std::string* why);
bool is_loopback(const std::string& host);    // comm/rank_info.cpp

struct Peers {
    std::vector<Link> links;           // rank 0: [r] is rank r, [0] unused; others: [0] is rank 0
    std::vector<std::string> names;    // "rank 3 (host, pid 4711)"
};
Result<Peers> rendezvous_as_rank_0(const RankInfo& info, Listener listener, const JobToken& token, double timeout);
Result<Peers> rendezvous_with_rank_0(const RankInfo& info, const std::string& host, int port, const JobToken& token,
                                     double timeout);
