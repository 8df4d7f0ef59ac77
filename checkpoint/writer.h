// writer.h - writes checkpoints, by a thread if training is to go on meanwhile.
//
// After `begin`, a checkpoint has three phases. All ranks meet at the end of each, in `advance`:
//
//   begin     rank 0 makes the temporary directory; with Copy::yes each rank copies its tensors
//   tensors   each rank writes its tensors' files            checksums are gathered on rank 0
//   rest      rank 0 writes the other files and MANIFEST,
//             renames the directory and flushes RUN
//   prune     rank 0 removes older checkpoints
//
// With Copy::yes a thread does the phases. It reads copies alone, so the model may change. A single
// process has no other rank to meet, so its thread does all three phases without a stop. While the
// thread writes tensors, it takes at most `share` of a core's time, so that training keeps the
// rest; once `finish` waits for the thread, it takes all. The order of writes on the disk does not
// depend on the thread, so a crash leaves no state that it could not leave without one.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"

class CheckpointWriter {
  public:
    enum class Copy { no, yes };
    enum class Phase { none, tensors, rest, prune, all };

    // most: checkpoint_prune's `keep`, -1: nothing is pruned. of_ranks: null for one rank.
    explicit CheckpointWriter(const std::string& of_run, int most = -1, Coordinator* of_ranks = nullptr,
                              const Disk& calls = real_disk())
        : run(of_run), keep(most), coordinator(of_ranks), disk(calls) {}
    CheckpointWriter(const CheckpointWriter&) = delete;
    ~CheckpointWriter();    // waits for the thread; without the other ranks, an open checkpoint ends
    // Bytes of host memory for Copy::yes on this rank: this rank's tensors as in files. The writer
    // keeps the memory for the next checkpoint, since new memory takes longer than the copy.
    static int64_t copy_bytes(const Model& g);
    int64_t kept_bytes() const { return kept; }
    // A checkpoint whose files were verified, so that pruning does not read them again.
    void add_whole(const std::string& dir) { whole.insert(dir); }
    // Begins a checkpoint of state.step; no other one may be active. ParamStore::collect comes
    // first. With Copy::yes, the model may change as soon as this has returned; with Copy::no, this
    // rank has then written its tensors. `flush` runs on rank 0 before MANIFEST is written: it
    // flushes files on which the checkpoint relies. Exit 4, on other ranks exit 7: the temporary
    // directory cannot be made, and no checkpoint is active.
    Status begin(const Model& g, const Tokenizer& tokenizer, const TrainState& state,
                 const GenerationConfig& generation, Copy copy, std::function<Status()> flush = {});
    bool active() const { return phase != Phase::none; }
    Phase current_phase() const { return phase; }
    Phase finished_phase() const { return finished; }    // this rank's work of the phase is done
    // Ends the current phase, and begins the next one, if there is one. All ranks call this; a call
    // before every rank has finished its work waits. Returns the ended phase's status: exit 4 on a
    // rank that failed, exit 7 on the others. After an error the checkpoint has ended.
    Status advance();
    Status finish();    // all ranks: advances to the end, and waits with the thread at full speed
    // Whether the last checkpoint has its name, on all ranks alike. If it has, and a phase failed
    // all the same, flushing RUN or removing an older checkpoint failed.
    bool published() const { return named; }
    double share = 1;    // fraction of a core's time

  private:
    struct TensorFile {
        std::string name;
        std::vector<TensorSource> sources;    // unless copied
        const char* copy = nullptr;
        int64_t bytes = 0;    // the copy's
    };
    const std::string run;
    const int keep;
    Coordinator* const coordinator;
    const Disk& disk;
    std::set<std::string> whole;    // written by this writer, or verified

    bool first = true, background = false;
    std::atomic<bool> named = false;
    Config config;
    Tokenizer tokenizer;
    GenerationConfig generation;
    TrainState state;
    std::vector<std::pair<std::string, std::string>> indices;    // several ranks: names and texts
    std::function<Status()> flush;
    std::string directory, temporary;
    std::unique_ptr<TemporaryLock> lock;
    std::deque<HostBuffer> copies;    // by file
    int64_t kept = 0;
    std::vector<TensorFile> files;
    std::vector<FileChecksum> sums;

    Phase phase = Phase::none;
    std::atomic<Phase> finished = Phase::none;
    Status result;    // the thread's, of the current phase
    std::thread thread;
    std::mutex mutex;    // guards hurry
    std::condition_variable hurried;
    bool hurry = false;

    static std::vector<TensorFile> tensor_files(const Model& g);
    void copy_tensors(const Model& g);
    void start(Phase next);
    Status work(Phase which);
    Status work_all();
    Status write_tensors();
    Status write_rest();
    bool rest_until(double time);
    void full_speed();
    Status agree(const Status& s) { return coordinator ? coordinator->agree(s) : s; }
    Status end(const Status& s);
};
