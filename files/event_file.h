// event_file.h - TensorBoard's event files: TFRecords of Event messages (tensorflow's event.proto
// and summary.proto), encoded here by hand. Functions return a record's bytes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

struct EventScalar {
    std::string tag;
    float value;
};
struct EventText {
    std::string tag, text;
};
// time: seconds since 1970. The first record of a file.
std::string event_file_version(double time);
// From here on, a reader drops the values of `step` and later that it has read from older files.
std::string event_restart(double time, int64_t step);
std::string event_summary(double time, int64_t step, const std::vector<EventScalar>& scalars,
                          const std::vector<EventText>& texts);
