// countdown.h - a progress line with completed work and remaining time.
#pragma once
#include "console.h"

// "eval: 3 of 10 windows  ETA 12 s", or without a unit "inspect: 30 %  ETA 12 s". done >= 1.
inline std::string countdown_text(const char* what, const char* unit, int64_t done, int64_t all, double seconds) {
    const std::string share = *unit ? formatted("%lld of %lld %s", (long long)done, (long long)all, unit)
                                    : formatted("%.0f %%", 100.0 * double(done) / double(all));
    return formatted("%s: %s  ETA %s", what, share.c_str(),
                     human_time(seconds / double(done) * double(all - done)).c_str());
}
// Prints countdown_text. Time is measured from construction; destruction removes the line.
struct Countdown {
    const char* what;
    const char* unit = "";
    const double start = now_seconds();
    Progress progress = Progress();
    ~Countdown() { progress.clear(); }
    void operator()(int64_t done, int64_t all) {
        progress.line(countdown_text(what, unit, done, all, now_seconds() - start));
    }
};
