// test_schedule.cpp - learning rates and batches at corners of schedules; the outlier detector
// despite NaN.
#include "train/schedule.h"

#include "checkpoint/outlier_detector.h"

#include "test.h"

namespace {
const char* const all[] = {"cosine", "linear", "constant", "wsd"};
double rate(const char* decay, double warmup, int64_t steps, int64_t step, double final_fraction = 0.1,
            double decay_part = 0.2) {
    return learning_rate(schedule_of({decay, 2.0, final_fraction, warmup, decay_part}, steps), step);
}
}    // namespace

TEST_CASE("schedule: warm-up is linear, from above zero to lr at its last step") {
    for (const char* d : all) {
        CHECK(rate(d, 10, 100, 0) == doctest::Approx(0.2));
        CHECK(rate(d, 10, 100, 4) == doctest::Approx(1.0));
        CHECK(rate(d, 10, 100, 9) == 2.0);
        CHECK(rate(d, 0, 100, 0) == 2.0);
        CHECK(rate(d, 1, 100, 0) == 2.0);
    }
}
TEST_CASE("schedule: the last step's rate is lr * final_fraction, and nothing goes below it") {
    for (const char* d : {"cosine", "linear", "wsd"})
        for (double f : {0.0, 0.1, 1.0})
            for (int64_t steps : {12, 13, 100, 1000000}) {
                CHECK(rate(d, 10, steps, steps - 1, f) == doctest::Approx(2 * f));
                // Beyond the end the rate stays.
                CHECK(rate(d, 10, steps, steps + 5, f) == doctest::Approx(2 * f));
            }
    CHECK(rate("constant", 10, 100, 99) == 2.0);
}
TEST_CASE("schedule: never up after the warm-up, never out of [lr * final_fraction, lr], never not finite") {
    for (const char* d : all)
        for (int64_t steps : {1, 2, 3, 7, 50})
            for (int64_t warmup : {0, 1, 2, 3, 7, 50}) {
                if (warmup > steps) continue;
                double last = 2;
                for (int64_t i = 0; i < steps; i++) {
                    double lr = rate(d, warmup, steps, i);
                    CHECK(std::isfinite(lr));
                    CHECK(lr > 0);
                    CHECK(lr <= 2.0);
                    if (i < warmup) continue;
                    CHECK(lr <= last);
                    CHECK(lr >= 0.2 * (1 - 1e-12));
                    last = lr;
                }
            }
}
TEST_CASE("schedule: half-way and quarter-way points") {
    // Without warm-up step 5 of 11 is half-way.
    CHECK(rate("cosine", 0, 11, 5, 0) == doctest::Approx(1.0));
    CHECK(rate("linear", 0, 11, 5, 0) == doctest::Approx(1.0));
    CHECK(rate("cosine", 0, 13, 3, 0) == doctest::Approx(1 + std::sqrt(0.5)));
    CHECK(rate("linear", 10, 111, 35, 0.5) == doctest::Approx(1 + 1 * (1 - 0.25)));
    // WSD (warmup-stable-decay): constant for four fifths, then 1 - sqrt.
    CHECK(rate("wsd", 10, 100, 10, 0) == 2.0);
    CHECK(rate("wsd", 10, 100, 80, 0) == 2.0);
    CHECK(rate("wsd", 10, 100, 81, 0) == doctest::Approx(2 * (1 - std::sqrt(1.0 / 19))));
    CHECK(rate("wsd", 95, 100, 95, 0) == 2.0);    // warm-up reaches into the last fifth
}
TEST_CASE("schedule: parts of the steps, in warm-up and decay") {
    CHECK(schedule_of({.warmup = 0.29}, 100).warmup == 29);    // 0.29 * 100 is less than 29 in doubles
    CHECK(schedule_of({.warmup = 0.299}, 100).warmup == 29);
    CHECK(schedule_of({.warmup = 0.05}, 15).warmup == 0);
    CHECK(schedule_of({.warmup = 1}, 100).warmup == 1);
    CHECK(schedule_of({.warmup = -1}, 100).warmup == 10);
    CHECK(schedule_of({.warmup = -1}, 10000).warmup == 700);
    for (int64_t steps : {1, 4, 12, 35, 99, 12345678})    // a fifth, as integers divide
        CHECK(schedule_of({.decay = "wsd", .warmup = 0}, steps).decay_begin ==
              std::max<int64_t>(0, steps - std::max<int64_t>(2, steps / 5)));
    CHECK(schedule_of({.decay = "wsd", .warmup = 0, .decay_part = 0.5}, 100).decay_begin == 50);
    CHECK(schedule_of({.decay = "wsd", .warmup = 10, .decay_part = 1}, 100).decay_begin == 10);
    CHECK(schedule_of({.decay = "wsd", .warmup = 10, .decay_part = 0}, 100).decay_begin == 98);
    CHECK(rate("wsd", 10, 100, 54, 0.1, 0.5) == doctest::Approx(0.2 + 1.8 * (1 - std::sqrt(4.0 / 49))));
}
TEST_CASE("schedule: a decay to 0 ends with the rate 0 and no earlier, in every form") {
    for (const char* decay : {"cosine", "linear", "wsd"})
        for (int64_t steps : {12, 100, 12345}) {
            CHECK(rate(decay, 10, steps, steps - 1, 0) == 0);
            if (steps > 12) CHECK(rate(decay, 10, steps, steps - 2, 0) > 0);
        }
}
TEST_CASE("schedule: a decay from a step of a wsd run is that run's own decay, to the bit") {
    for (double lr : {2e-3, 3e-4, 0.1}) {
        const Schedule whole = schedule_of({"wsd", lr, 0.1, 10, 0.3}, 200);
        const Schedule rest = decay_from(140, learning_rate(whole, 139), 0.1, 200);
        for (int64_t step = 140; step < 200; step++) CHECK(learning_rate(rest, step) == learning_rate(whole, step));
        CHECK(learning_rate(whole, 140) == lr);
        CHECK(learning_rate(whole, 141) < lr);
    }
}

TEST_CASE("schedule: a batch warm-up grows from one batch to all, never shrinks, and counts its tokens") {
    for (int64_t full : {1, 2, 5, 64})
        for (int64_t warmup : {0, 1, 3, 7, 50}) {
            const BatchSchedule b = {100, full, warmup};
            double tokens = 0;
            for (int64_t step = 0; step < 60; step++) {
                INFO(full << " batches, " << warmup << " steps, step " << step);
                CHECK(b.tokens_before(step) == tokens);
                CHECK(b.steps_for(int64_t(tokens)) == step);
                CHECK(b.steps_for(int64_t(tokens) + 1) == step + 1);
                tokens += double(b.step_tokens(step));
                CHECK(b.batches(step) == b.step_tokens(step) / 100);
                CHECK(b.batches(step) <= b.batches(step + 1));
                CHECK(b.batches(step) >= 1);
                if (step >= warmup) CHECK(b.batches(step) == full);
            }
            if (warmup) CHECK(b.batches(0) == 1);
            if (warmup > full) CHECK(b.batches(warmup - 1) < std::max<int64_t>(2, full));
        }
    const BatchSchedule longest = {1, 1 << 20, 1000000};
    double tokens = 0;
    for (int64_t step = 0; step < longest.warmup; step++) tokens += double(longest.step_tokens(step));
    CHECK(longest.tokens_before(longest.warmup) == tokens);
}

TEST_CASE("detector: silent until it has 32 values") {
    OutlierDetector d;
    for (int i = 0; i < OutlierDetector::MIN_VALUES; i++) {
        CHECK(d.score(1e9) == 0);
        d.add(i % 2 ? 1 : 3);
    }
    CHECK(d.score(1e9) > 1e8);
}
TEST_CASE("detector: standard deviations from the mean, with a sign") {
    OutlierDetector d;
    for (int i = 0; i < 100; i++) d.add(i % 2 ? 1 : 3);    // mean 2, deviation 1
    CHECK(d.score(2) == doctest::Approx(0));
    CHECK(d.score(12) == doctest::Approx(10));
    CHECK(d.score(-3) == doctest::Approx(-5));
}
TEST_CASE("detector: NaN and infinity score infinity and never enter the window") {
    OutlierDetector d;
    // No values yet.
    for (double x : {double(NAN), double(INFINITY), -double(INFINITY)}) CHECK(d.score(x) == INFINITY);
    for (int i = 0; i < 64; i++) d.add(i % 2 ? 1 : 3);
    OutlierDetector before = d;
    for (int i = 0; i < 500; i++) {
        d.add(NAN);
        d.add(i % 2 ? INFINITY : -INFINITY);
    }
    CHECK(d == before);
    CHECK(d.score(NAN) == INFINITY);
    CHECK(d.score(12) == doctest::Approx(10));
}
TEST_CASE("detector: only the last 128 values count") {
    OutlierDetector d;
    for (int i = 0; i < 1000; i++) d.add(1e6 * (i % 3));
    for (int i = 0; i < OutlierDetector::WINDOW; i++) d.add(i % 2 ? 1 : 3);
    CHECK(d.score(12) == doctest::Approx(10));
}
TEST_CASE("detector: a window of equal values calls nothing an outlier; huge values do not overflow it into NaN") {
    OutlierDetector d;
    for (int i = 0; i < 200; i++) d.add(5);
    CHECK(d.score(5) == 0);
    CHECK(std::isfinite(d.score(6)));
    OutlierDetector huge;
    for (int i = 0; i < 200; i++) huge.add(i % 2 ? 1e300 : -1e300);
    CHECK_FALSE(std::isnan(huge.score(1)));
}
