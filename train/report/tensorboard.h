// tensorboard.h - a run's metrics as a TensorBoard event file,
// RUN/tensorboard/events.out.tfevents.*
//
// Protocol. The event file is a function of metrics.jsonl: at the first row of a run that starts or
// resumes, all rows that metrics.jsonl keeps are written to a new file beside the old one (.new),
// which is then renamed to a later name, and the old file is removed. From then on each row is
// appended. So every step is there once, whatever ended the run before, and also the rows of a run
// that had begun without --tensorboard. A crash between the rename and the removal leaves both
// files until the next start; the newer one begins with a restart at step 0, upon which readers
// drop the older one's values. The restart also serves a TensorBoard that has the old file open.
#pragma once
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/common.h"

class TensorBoard {
  public:
    TensorBoard() = default;
    TensorBoard(const TensorBoard&) = delete;
    ~TensorBoard();
    // Writes the rows so far, and leaves the file open for more. Exit 4: it cannot be written; or
    // an error of read_metrics.
    Status open(const std::string& run);
    // Appends a row of metrics.jsonl: numbers, also those in lists and objects, as scalars, samples
    // as texts. The bytes reach the file every few seconds, and with validations and samples. Exit
    // 4: they cannot be written.
    Status add(const nlohmann::json& row);
    Status flush();

  private:
    Status write(const std::string& bytes);
    FILE* file = nullptr;
    std::string name;
    double flushed = 0;    // seconds
};
