// test_bench.cpp - bench: the profile of a training step (results unchanged), filters, peaks.
#include "tools/bench/bench.h"

#include "base/console.h"
#include "layers/cpu.h"
#include "test.h"
#include "toy_model.h"

namespace {
const Config TOY = {61, 32, 3, 2, 16, 64, 1e-5f};
const Peaks PEAK = {2e12, 1e12, 1e11};

int64_t calls(const std::vector<ProfileRow>& rows, const std::string& entry) {
    int64_t n = 0;
    for (const ProfileRow& r : rows)
        if (r.name.substr(0, r.name.find(' ')) == entry) n += r.calls;
    return n;
}
void check_profile(const Table& op, bool fused) {
    const int B = 2, S = 16, L = TOY.L;
    Profile profile(op, PEAK);
    Model plain(op), noted(profile.table);
    std::vector<ProfileRow> rows;
    double whole = 0;
    uint64_t hashes[2];
    for (Model* g : {&plain, &noted}) {
        REQUIRE(g->allocate(TOY, {RunMode::train, B, S}).ok());
        g->init(1);
        TrainingStep step(TOY, B, S);
        for (int i = 0; i < 3; i++) {
            const double start = now_seconds();
            profile.start();
            step.run(*g);
            (void)g->train.finish();
            rows = profile.rows();
            whole = now_seconds() - start;
        }
        hashes[g == &noted] = g->store.hash();
        if (g == &plain) CHECK(rows.size() == 1);
    }
    CHECK(hashes[0] == hashes[1]);
    CHECK(flat_grads(plain) == flat_grads(noted));

    CHECK(calls(rows, "linear_forward") == (fused ? 3 : 4) * L + 1);
    CHECK(calls(rows, "linear_backward") == (fused ? 3 : 4) * L);
    CHECK(calls(rows, "lm_head_backward") == 1);
    CHECK(calls(rows, "linear_gelu_forward") == (fused ? L : 0));
    CHECK(calls(rows, "linear_gelu_backward") == (fused ? L : 0));
    CHECK(calls(rows, "activation_backward") == (fused ? 0 : L));
    CHECK(calls(rows, "attention_forward") == L);
    CHECK(calls(rows, "norm_backward") == 2 * L + 1);
    CHECK(calls(rows, "update_weights") == 1);
    double seconds = 0, products = 0;
    for (size_t i = 0; i + 1 < rows.size(); i++) {
        CAPTURE(rows[i].name);
        CHECK(rows[i].calls > 0);
        CHECK(rows[i].seconds >= rows[i + 1].seconds * (i + 2 < rows.size()));    // longest first
        CHECK((rows[i].floor > 0 && std::isfinite(rows[i].floor)));
        CHECK(rows[i].floor <= PEAK.floor(rows[i].work) * (1 + 1e-9) + rows[i].work.bytes / PEAK.bytes);
        seconds += rows[i].seconds;
        if (rows[i].name.starts_with("linear") || rows[i].name.starts_with("lm_head"))
            products += rows[i].work.products;
    }
    CHECK((rows.back().calls == 0 && rows.back().seconds >= 0));
    seconds += rows.back().seconds;
    CHECK((seconds <= whole && seconds > 0.2 * whole));    // the rest: the profile's own bookkeeping
    const double C = TOY.C, weights = 12 * L * C * C + TOY.Vp() * C;
    CHECK(products == doctest::Approx(6 * B * S * weights));
}
}    // namespace

TEST_CASE("bench: a profile counts every call, adds up to the step and changes no bit of it") {
    SUBCASE("fp32") { check_profile(cpu_ops<float>(), cpu_ops<float>().linear_gelu_forward != nullptr); }
    SUBCASE("bf16") { check_profile(cpu_ops<bf16>(), cpu_ops<bf16>().linear_gelu_forward != nullptr); }
    SUBCASE("composed") {
        Ops<float> composed = cpu_ops<float>();
        composed.linear_gelu_forward = nullptr, composed.linear_gelu_backward = nullptr;
        check_profile(composed, false);
    }
}

TEST_CASE("bench: a filter that leaves no row is an error that says which rows there are") {
    const std::vector<std::string> small = {"bench", "--device",   "cpu", "--layers", "1",   "--heads",
                                            "2",     "--channels", "64",  "--vocab",  "500", "--batch",
                                            "1",     "--seq-len",  "16",  "--json"};
    auto run = [&](std::vector<std::string> more) {
        more.insert(more.begin(), small.begin(), small.end());
        ProcessOptions options;
        options.timeout = 250;
        return run_flatgpt(more, options);
    };
    ProcessResult r = run({"--filter", "nothing"});
    CHECK(r.exit_code == 2);
    CHECK(r.out.empty());
    for (const char* part :
         {"--filter nothing: no row has this in its name", "linear_forward", "update_weights", "generation"})
        CHECK(r.err.find(part) != std::string::npos);
    // The message lists names in the order of the rows: steps, then operations.
    for (const char* operation : {"linear_forward", "update_weights"})
        for (const char* step : {"there are training", "generation", "prompt"})
            CHECK(r.err.find(step) < r.err.find(operation));
    r = run({"--filter", "linear", "--steps-only"});
    CHECK(r.exit_code == 2);
    CHECK(r.err.find("there are training\n") != std::string::npos);
    r = run({"--filter", "linear_forward proj|update_weights"});
    CHECK(r.exit_code == 0);
    CHECK(r.out.find("\"linear_forward proj") != std::string::npos);
    CHECK(r.out.find("\"update_weights") != std::string::npos);
    CHECK(r.out.find("\"linear_forward fc") == std::string::npos);
}

TEST_CASE("bench: the ceiling of products is the tiles' where the table multiplies by them, else the vectors'") {
    const Ops<float, bf16>& own = cpu_ops_isa<bf16>(cpu_isa());
    CHECK(!cpu_peaks(own).tiles);
    CHECK(cpu_peaks(own).products >= cpu_peaks(own).flops);
    CHECK(!cpu_peaks(cpu_ops_isa<float>(cpu_isa())).tiles);
    CHECK(cpu_peaks(false).tiles == (cpu_chosen().tiles == Tiles::amx));
    CHECK(cpu_peaks(false).products >= cpu_peaks(false).flops);
    CHECK(cpu_peaks(true).tiles == (cpu_chosen().tiles == Tiles::amx));
    CHECK(cpu_peaks(true).products >= cpu_peaks(own).products);
    if (cpu_peaks(false).tiles) CHECK(cpu_peaks(false).products < 0.5 * cpu_peaks(true).products);
    CHECK(cpu_peaks(true).bytes == cpu_peaks(own).bytes);
    CHECK(&cpu_peaks(true) == &cpu_peaks(cpu_ops<bf16>()));
}
