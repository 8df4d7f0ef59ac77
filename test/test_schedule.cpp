// test_schedule.cpp - learning rates at corners of schedules; the outlier detector despite NaN.
#include "train/schedule.h"

#include "checkpoint/outlier_detector.h"

#include "test.h"

namespace {
const Decay all[] = {Decay::cosine, Decay::linear, Decay::constant, Decay::wsd};
double rate(Decay d, int64_t warmup, int64_t steps, int64_t step, double final_fraction = 0.1) {
    return learning_rate({d, 2.0, final_fraction, warmup, steps}, step);
}
}    // namespace

TEST_CASE("schedule: warm-up is linear, from above zero to lr at its last step") {
    for (Decay d : all) {
        CHECK(rate(d, 10, 100, 0) == doctest::Approx(0.2));
        CHECK(rate(d, 10, 100, 4) == doctest::Approx(1.0));
        CHECK(rate(d, 10, 100, 9) == 2.0);
        CHECK(rate(d, 0, 100, 0) == 2.0);
        CHECK(rate(d, 1, 100, 0) == 2.0);
    }
}
TEST_CASE("schedule: the last step's rate is lr * final_fraction, and nothing goes below it") {
    for (Decay d : {Decay::cosine, Decay::linear, Decay::wsd})
        for (double f : {0.0, 0.1, 1.0})
            for (int64_t steps : {12, 13, 100, 1000000}) {
                CHECK(rate(d, 10, steps, steps - 1, f) == doctest::Approx(2 * f));
                // Beyond the end the rate stays.
                CHECK(rate(d, 10, steps, steps + 5, f) == doctest::Approx(2 * f));
            }
    CHECK(rate(Decay::constant, 10, 100, 99) == 2.0);
}
TEST_CASE("schedule: never up after the warm-up, never out of [lr * final_fraction, lr], never not finite") {
    for (Decay d : all)
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
    CHECK(rate(Decay::cosine, 0, 11, 5, 0) == doctest::Approx(1.0));
    CHECK(rate(Decay::linear, 0, 11, 5, 0) == doctest::Approx(1.0));
    CHECK(rate(Decay::cosine, 0, 13, 3, 0) == doctest::Approx(1 + std::sqrt(0.5)));
    CHECK(rate(Decay::linear, 10, 111, 35, 0.5) == doctest::Approx(1 + 1 * (1 - 0.25)));
    // WSD (warmup-stable-decay): constant for four fifths, then 1 - sqrt.
    CHECK(rate(Decay::wsd, 10, 100, 10, 0) == 2.0);
    CHECK(rate(Decay::wsd, 10, 100, 80, 0) == 2.0);
    CHECK(rate(Decay::wsd, 10, 100, 81, 0) == doctest::Approx(2 * (1 - std::sqrt(1.0 / 19))));
    CHECK(rate(Decay::wsd, 95, 100, 95, 0) == 2.0);    // warm-up reaches into the last fifth
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
