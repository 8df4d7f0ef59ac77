// run_state.h - tells whether a run is running, and how it ended. RUN/lock says both: the run's
// process holds a lock (flock) on this file while it runs, and writes these lines into it:
//   (line 1)                             the process (train/plan.cpp)
//   steps 5000                           the steps that the run is to do, once they are known
//   finished after step 5000             how it ended; or stopped, failed, with ": " and the reason
// A killed process writes no last line, but the system frees its lock: the run counts as stopped,
// or as finished if metrics.jsonl has its last step.
#pragma once
#include <cstdint>
#include <string>

#include "base/common.h"

struct RunState {
    std::string state;     // running, finished, stopped or failed
    std::string reason;    // why it ended early; "": unknown (kill -9)
    int64_t steps = 0;     // the whole run's; 0: unknown
};
// last: last step of metrics.jsonl. Files that are missing or damaged give unknown fields.
RunState run_state(const std::string& run, int64_t last);
std::string end_state(const Status& end);    // finished, stopped (by a signal) or failed
// Write to the lock file, given by its descriptor; errors are ignored, as the run goes on without.
// note_steps, before the first step, also removes how the run ended before it was resumed.
void note_steps(int lock, int64_t steps);
void note_end(int lock, int64_t step, const Status& end);
