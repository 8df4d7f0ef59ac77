// test_noise.cpp - the noise scale of gradients whose noise is known, and of runs.
#include "checkpoint/noise_scale.h"

#include "base/philox.h"
#include "toy_ranks.h"

namespace {
// Normal numbers by Box and Muller, a stream for each step.
struct Normal {
    uint64_t stream, n = 0;
    double operator()() {
        const Philox4 r = philox(7, stream, n++);
        const double u = (double(r.v[0]) + 1) / 0x1p32, v = double(r.v[1]) / 0x1p32;
        return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
    }
};
}    // namespace

TEST_CASE("noise: mean squares give the scale exactly, for any two sizes") {
    const double trace = 350, square = 0.07;
    for (auto [few, many] : {std::pair{1.0, 2.0}, {128.0, 1024.0}, {1000.0, 1001.0}}) {
        NoiseScale n;
        CHECK(n.critical_batch() == 0);
        for (int i = 0; i < 3; i++) {
            n.add(few, square + trace / few, many, square + trace / many);
            CHECK(n.critical_batch() == doctest::Approx(5000).epsilon(1e-6));
        }
    }
}
TEST_CASE("noise: gradients of known noise, in double") {
    // 40 components; sigma_i = 1 + i / 40; |G|^2 = 40 * 0.25. The small batch is part of the large.
    constexpr int DIM = 40, FEW = 8, MANY = 64, STEPS = 3000;
    double trace = 0;
    for (int i = 0; i < DIM; i++) trace += std::pow(1 + i / 40.0, 2);
    const double square = DIM * 0.25;
    NoiseScale n;
    double mean = 0;    // over steps, as a single value is an average of only some 50
    for (int step = 0; step < STEPS; step++) {
        Normal normal = {uint64_t(step)};
        double few = 0, many = 0;
        for (int i = 0; i < DIM; i++) {
            double sum = 0;
            for (int k = 0; k < MANY; k++) {
                sum += 0.5 + (1 + i / 40.0) * normal();
                if (k + 1 == FEW) few += std::pow(sum / FEW, 2);
            }
            many += std::pow(sum / MANY, 2);
        }
        n.add(FEW, few, MANY, many);
        if (step >= 500) mean += n.critical_batch() / (STEPS - 500);
    }
    CHECK(mean == doctest::Approx(trace / square).epsilon(0.02));
}
TEST_CASE("noise: an average below zero is no scale, and what is not finite is left out") {
    NoiseScale n;
    n.add(1, 1, 2, 3);    // more noise in the larger batch
    CHECK(n.critical_batch() == 0);
    const NoiseScale before = n;
    n.add(1, NAN, 2, 3);
    n.add(1, 1, 2, INFINITY);
    n.add(0, 1, 2, 3);    // a batch without targets
    n.add(2, 1, 2, 3);    // a step of one batch
    CHECK(n == before);
}

TEST_CASE("noise: a run prints and keeps its critical batch, and a resumed one has the same") {
    Toy toy;
    const std::vector<std::string> two = {"--total-batch", "256", "--steps", "12"};
    std::vector<std::string> command = with(toy.args("whole", two), {"--noise-scale"});
    CHECK(contains(must(command).err, "critical batch "));
    const std::string metrics = toy.metrics("whole");
    CHECK(number(metrics.substr(metrics.rfind('{')), "\"critical_batch\":") > 0);
    // The first step's, from the gradient norms of its first batch and of both batches.
    must(toy.args("small", {"--steps", "1"}));
    const double few = number(toy.metrics("small"), "\"grad_norm\":"), many = number(metrics, "\"grad_norm\":");
    NoiseScale first;
    first.add(128, few * few, 256, many * many);
    CHECK(number(metrics, "\"critical_batch\":") == doctest::Approx(first.critical_batch()).epsilon(1e-3));
    Toy::set(command, "--save-every", "5");
    killed_and_resumed(toy, command, {3, 7}, [](const std::string&) {});
    // Without it, nothing else changes.
    must(toy.args("plain", two));
    CHECK(!contains(toy.metrics("plain"), "critical_batch"));
    CHECK(same_file(toy.newest("whole") + "/model.safetensors", toy.newest("plain") + "/model.safetensors"));
    must(with(toy.args("one"), {"--noise-scale"}), 2,
         "expected at least two batches in a step (--total-batch 256) or two ranks, found one");
    // Steps of one batch tell nothing.
    must(with(toy.args("grows", with(two, {"--batch-warmup", "6"})), {"--noise-scale"}));
    const std::string grows = toy.metrics("grows");
    CHECK(contains(grows, "critical_batch"));
    CHECK(!contains(grows.substr(0, grows.find("{\"step\":7,")), "critical_batch"));
}

TEST_CASE("noise: a skipped update tells nothing") {
    Toy toy;
    // After 32 steps, each norm above the mean of those before is an outlier here.
    must(with(toy.args("a", {"--total-batch", "256", "--steps", "60", "--skip-norm-z", "0.01"}), {"--noise-scale"}));
    std::istringstream lines(toy.metrics("a"));
    auto scale = [](const std::string& line) {
        const size_t at = line.find("\"critical_batch\"");
        return at == line.npos ? "" : line.substr(at);
    };
    int skipped = 0, changed = 0;
    std::string before;
    for (std::string line; std::getline(lines, line); before = scale(line)) {
        const bool same = scale(line) == before;
        skipped += contains(line, "\"skipped\":true") && same;
        CHECK((same || !contains(line, "\"skipped\":true")));
        changed += !same;
    }
    CHECK(skipped > 0);
    CHECK(changed > 0);
}

TEST_CASE("noise: two ranks of one batch each know theirs, with and without ZeRO") {
    NEED_MPIRUN();
    RanksToy toy;
    for (const char* zero : {"0", "1", "2"}) {
        std::vector<std::string> program =
            toy.program(std::string("zero") + zero, {"--total-batch", "256", "--batch", "4", "--zero", zero});
        program.push_back("--noise-scale");
        const ProcessResult r = run_process(mpirun(2, program), mpirun_options(120));
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        CHECK(contains(toy.metrics(std::string("zero") + zero), "critical_batch"));
    }
    CHECK(toy.metrics("zero0") == toy.metrics("zero1"));
    CHECK(toy.metrics("zero0") == toy.metrics("zero2"));
}
