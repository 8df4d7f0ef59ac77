// test_seeds.cpp - worked examples and figures that texts on attention give, one case each.
#include "layers/cpu.h"
#include "model/cost_table.h"
#include "model/kv_cache.h"

#include "test/ops/ops.h"
#include "toy_run.h"

namespace {
constexpr double MIB = 1 << 20, GIB = 1 << 30;

// One layer of d channels and h heads, which sees all positions.
Config layer(int d, int h, int T) {
    Config c = {.V = 64, .T = T, .L = 1, .NH = h, .C = d, .F = 4 * d};
    c.NKV = h, c.HS = d / h;
    c.mask_kind = MaskKind::all;
    return c;
}
const PartCost& part(const PartCosts& parts, CostPart p) { return parts[size_t(p)]; }
Plan plan_of(int B, int S) { return {.mode = RunMode::train, .B = B, .S = S}; }
PartCosts parts_of(const Config& c, int B, int S) { return part_costs(cpu_ops<float>(), c, plan_of(B, S)); }
double forward_flops(const PartCosts& parts, std::initializer_list<CostPart> some) {
    double sum = 0;
    for (CostPart p : some) sum += part(parts, p).forward.flops();
    return sum;
}
}    // namespace

TEST_CASE("seeds: three tokens with d_k = 4 and two values each, causal: 22.44, 32.44 and 28.4") {
    // Scores over sqrt(4): (.5), (0 .5), (.25 .25 0). Probabilities: (1), (.378 .622),
    // (.360 .360 .280). The last two columns of v are zeros, since v is as wide as k here.
    const Numbers q[] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0.5, 0.5, 0, 0}};
    const Numbers k[] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}};
    const Numbers v[] = {{10, 20, 0, 0}, {30, 40, 0, 0}, {50, 60, 0, 0}};
    const double expected[] = {10, 20, 0, 0, 22.449, 32.449, 0, 0, 28.408, 38.408, 0, 0};
    Numbers qkv;
    for (int t = 0; t < 3; t++)
        for (const Numbers* row : {&q[t], &k[t], &v[t]}) qkv.insert(qkv.end(), row->begin(), row->end());
    auto check = [&]<class T, class P>(const Ops<T, P>& op) {
        Array<T> in(op, qkv);
        Array<InputType<T, P>> y(op, 12);
        Array<float> lse(op, 3);
        op.attention_forward(y, lse, in, 1, 3, {.NH = 1, .NKV = 1, .HS = 4});
        const Numbers got = y.read();
        const double tolerance = sizeof(InputType<T, P>) == 2 ? 0.25 : 1e-3;    // bf16 has 8 bits
        for (size_t i = 0; i < 12; i++) CHECK(std::fabs(got[i] - expected[i]) < tolerance);
    };
    check(reference_ops());
    each_table(TablePart::attention, [&](auto& op) { check(op); });
}

TEST_CASE("seeds: attention of 1024 positions and 1024 channels has 12.9 GFLOP") {
    // Three products of d x d and one for the output: 8 n d^2. Scores and their product with v:
    // 4 n^2 d.
    const PartCosts parts = parts_of(layer(1024, 16, 1024), 1, 1024);
    const double n = 1024, d = 1024;
    CHECK(forward_flops(parts, {CostPart::qkv}) == 6 * n * d * d);
    CHECK(forward_flops(parts, {CostPart::projection}) == 2 * n * d * d);
    CHECK(forward_flops(parts, {CostPart::scores}) == 2 * n * n * d);
    CHECK(forward_flops(parts, {CostPart::mixing}) == 2 * n * n * d);
    const double all = forward_flops(parts, {CostPart::qkv, CostPart::scores, CostPart::mixing, CostPart::projection});
    CHECK(all == doctest::Approx(12.9e9).epsilon(0.002));
}

TEST_CASE("seeds: 4 T d^2 + 2 T^2 d multiplications a layer, and where they are equal") {
    for (double T : {64, 128, 256}) {
        const double d = 128;
        const PartCosts parts = parts_of(layer(128, 4, 256), 1, int(T));
        const double products = forward_flops(parts, {CostPart::qkv, CostPart::projection}) / 2;
        const double pairs = forward_flops(parts, {CostPart::scores, CostPart::mixing}) / 2;
        CHECK(products == 4 * T * d * d);
        CHECK(pairs == 2 * T * T * d);
        CHECK((pairs < products) == (T < 2 * d));
        // A product of d x d and scores are equal at T = d.
        CHECK((forward_flops(parts, {CostPart::scores}) < forward_flops(parts, {CostPart::projection})) == (T < d));
    }
}

TEST_CASE("seeds: twice the length is four times the scores, for 128 to 4096 positions") {
    // n^2 512 multiplications, and n^2 4 bytes: 8,388,608 and 65,536 at 128, 8.6e9 and 67.1e6 at
    // 4096.
    for (const auto& [n, multiplications, bytes] : {std::tuple{128, 8388608.0, 65536.0},
                                                    {256, 33554432.0, 262144.0},
                                                    {512, 134217728.0, 1048576.0},
                                                    {1024, 536870912.0, 4194304.0},
                                                    {2048, 2147483648.0, 16777216.0},
                                                    {4096, 8589934592.0, 67108864.0}}) {
        const Config c = layer(512, 1, 4096);
        CHECK(forward_flops(parts_of(c, 1, n), {CostPart::scores}) / 2 == multiplications);
        CHECK(4 * score_elements(c, 1, n) == bytes);
    }
}

TEST_CASE("seeds: BERT-base's scores take 384 MB at 512 positions, 6, 24 and 96 GB at 2048 to 8192") {
    const Config c = layer(768, 12, 8192);
    CHECK(4 * score_elements(c, 32, 512) == 384 * MIB);
    CHECK(4 * score_elements(c, 32, 2048) == 6 * GIB);
    CHECK(4 * score_elements(c, 32, 4096) == 24 * GIB);
    CHECK(4 * score_elements(c, 32, 8192) == 96 * GIB);
}

TEST_CASE("seeds: scores of 4 sequences, 32 heads and 8192 positions take 17,179,869,184 bytes in 16 bits") {
    CHECK(2 * score_elements(layer(4096, 32, 8192), 4, 8192) == 17179869184.0);
}

TEST_CASE("seeds: a causal mask of 2048 positions would take 16 MB, scores of 4096 positions 67 MB") {
    const Config c = layer(64, 1, 4096);
    CHECK(4 * score_elements(c, 1, 2048) == 16 * MIB);
    CHECK(4 * score_elements(c, 1, 4096) == 67108864);
    const std::string text =
        must({"train", "--dry-run", "--table", "--model", "gpt2", "--batch", "1", "--seq-len", "1k"}).out;
    CHECK(contains(text, "nor is a mask of 1000 x 1000: 3.81 MiB as fp32"));
}

TEST_CASE("seeds: a head's scores are more elements than its q, k and v beyond 3 d_k positions") {
    const Config c = layer(128, 4, 256);
    auto vectors = [&](int T) { return 3.0 * c.HS * c.NH * T; };
    for (int T : {95, 96, 97}) CHECK((score_elements(c, 1, T) > vectors(T)) == (T > 3 * c.HS));
}

TEST_CASE("seeds: what is stored instead grows with the length alone") {
    // GPT-2, one sequence. A kept log-sum-exp takes 4 bytes for each head and position.
    const Config gpt2 = config_named("gpt2", 8192).value;
    double before = 0;
    for (int T : {512, 1024, 2048, 4096, 8192}) {
        const std::vector<MemoryRow> rows = memory_cost(cpu_ops<float>(), gpt2, {RunMode::train, 1, T}).value;
        double bytes = 0;
        for (const MemoryRow& r : rows)
            if (std::string(r.purpose) == "activations") bytes = double(r.bytes);
        REQUIRE(bytes > 0);
        if (before > 0) CHECK(bytes / before == doctest::Approx(2).epsilon(0.01));
        before = bytes;
    }
}

TEST_CASE("seeds: Llama-70B's cache takes 1.34 GB for 4096 tokens and 42.9 GB for 128k") {
    Config c = config_named("llama-2-7b").value;
    c.L = 80, c.NH = 64, c.NKV = 8, c.HS = 128, c.C = 8192;
    c.T = 4096;
    CHECK(double(cache_bytes(c, Element::bf16)) == doctest::Approx(1.342e9).epsilon(0.001));
    c.T = 128 * 1024;
    CHECK(double(cache_bytes(c, Element::bf16)) == 40 * GIB);    // 42.9 GB
}

TEST_CASE("seeds: Llama 3.2 1B takes 4.9 GB as fp32, its cache 500 MB with as many key heads as heads") {
    Config c = config_named("llama-3.2-1b").value;
    CHECK(double(4 * config_parameters(c)) == doctest::Approx(4.94e9).epsilon(0.01));
    c.T = 2048;
    CHECK(double(cache_bytes(c, Element::f32)) == 128 * MIB);
    c.NKV = c.NH;
    CHECK(double(cache_bytes(c, Element::f32)) == 512 * MIB);
}

TEST_CASE("seeds: four matrices of d x d: 2,359,296 parameters at 768, 4,194,304 at 1024, 66,048 with biases at 128") {
    auto attention = [](Config c, bool biases) {
        c.qkv_bias = c.proj_bias = biases;
        const PartCosts parts = parts_of(c, 1, 8);
        return part(parts, CostPart::qkv).parameters + part(parts, CostPart::projection).parameters;
    };
    CHECK(attention(layer(768, 12, 8), false) == 2359296);
    CHECK(attention(layer(1024, 16, 8), false) == 4194304);
    CHECK(attention(layer(128, 8, 8), true) == 66048);
}

TEST_CASE("seeds: LLaMA-7B has 6.7B parameters") {
    Config c = config_named("llama-2-7b").value;
    CHECK(c.V == 32000);
    CHECK(double(config_parameters(c)) == doctest::Approx(6.7e9).epsilon(0.01));
}

TEST_CASE("seeds: GPT-2's parts have 124,439,808 parameters and all of a step's work") {
    std::vector<Config> models;
    for (const char* name : {"gpt2", "llama-3.2-1b", "mixtral-8x7b", "nanochat-d20", "bloom-560m", "gemma-2-2b"})
        models.push_back(config_named(name).value);
    models.push_back(models[0]);
    models.back().linear = LinearAttention::gated;
    models.push_back(models[0]);
    models.back().position = Position::t5;
    for (const Config& c : models) {
        CAPTURE(config_text(c, config_listed(c)));
        for (const Table& op : {Table(cpu_ops<float>()), Table(cpu_ops<bf16>())}) {
            const PartCosts parts = part_costs(op, c, plan_of(2, 64));
            int64_t parameters = 0;
            Cost all;
            for (const PartCost& p : parts) parameters += p.parameters, all += p.all();
            CHECK(parameters == config_parameters(c));
            const Cost step = training_cost(op, c, 2, 64);
            CHECK(all.flops() == doctest::Approx(step.flops()).epsilon(1e-12));
            CHECK(all.bytes == doctest::Approx(step.bytes).epsilon(1e-12));
            CHECK(part(parts, CostPart::other).parameters == 0);
            for (CostPart p : {CostPart::embeddings, CostPart::other}) CHECK(part(parts, p).all().products == 0);
            CHECK(part(parts, CostPart::optimizer).update.bytes > 0);
            // A product's backward pass has twice its FLOPs.
            for (CostPart p : {CostPart::qkv, CostPart::projection, CostPart::ffn})
                CHECK(part(parts, p).backward.flops() == doctest::Approx(2 * part(parts, p).forward.flops()));
        }
    }
    CHECK(config_parameters(config_named("gpt2").value) == 124439808);
}

TEST_CASE("seeds: train --dry-run --table prints parts, scores that are not stored, a mask, crossovers") {
    const std::string text = must({"train", "--dry-run", "--table", "--model", "gpt2", "--batch", "32", "--seq-len",
                                   "512", "--dtype", "fp32"})
                                 .out;
    CHECK(contains(text, "of a batch of 32 x 512 tokens and one update"));
    // 2 x 16384 tokens x 12 layers x 3 x 768 x 768: 695.8 GFLOP forward, twice as many backward.
    for (const char* line : {"  queries, keys, values      21261312  695.8 GFLOP    1.4 TFLOP ",
                             "  scores q k^T                          77.5 GFLOP  154.9 GFLOP ",
                             "  feed-forward               56669184    1.9 TFLOP    3.7 TFLOP ",
                             "  total                     124046592    4.2 TFLOP    8.4 TFLOP "})
        CHECK_MESSAGE(contains(text, line), text);
    CHECK(contains(text, "32 x 12 x 512 x 512 in each of 12 layers are not stored:\n"));
    CHECK(contains(text,
                   "384.00 MiB a layer as fp32, 192.00 MiB as bf16 (402653184 and 201326592 bytes), 4.50 GiB as "
                   "fp32 in all\n"));
    CHECK(contains(text, "nor is a mask of 512 x 512: 1.00 MiB as fp32\n"));
    CHECK(contains(text, "T = 3 d_k = 192"));
    CHECK(contains(text, "T = d = 768"));
    must({"train", "--table", "--model", "gpt2"}, 2, "--table needs --dry-run");
    // Muon's iterations are the update's, and linear attention has states instead of scores.
    const std::string muon = must({"train", "--dry-run", "--table", "--model", "d2", "--seq-len", "64", "--optimizer",
                                   "muon", "--linear-attention", "gated"})
                                 .out;
    const std::string row = muon.substr(muon.find("  optimizer  "));
    CHECK(contains(row.substr(0, row.find('\n')), "FLOP"));
    CHECK(contains(muon, "  q times states "));
    CHECK(!contains(muon, "not stored"));
}

TEST_CASE("seeds: bench --lengths prints growth beside T^2") {
    const std::vector<std::string> small = {"bench",   "--device",  "cpu",        "--layers", "1",
                                            "--heads", "2",         "--channels", "32",       "--vocab",
                                            "97",      "--lengths", "16,64"};
    const std::string table = must(small).out;
    // Two of the second line's growths are measured; T^2 grows 16 times from 16 to 64.
    std::istringstream words(table.substr(table.rfind("     64 ")));
    std::vector<std::string> cells;
    for (std::string word; words >> word;) cells.push_back(word);
    REQUIRE(cells.size() > 10);
    for (size_t times : {3, 5, 8, 10}) CHECK(cells[times] == "x");
    CHECK((std::stod(cells[2]) > 0 && cells[4] == "16.00" && std::stod(cells[7]) > 0 && cells[9] == "4.00"));
    CHECK(contains(table, "2 heads of T x T"));
    const std::string rows = must(with(small, {"--json"})).out;
    // 12 FLOPs for each of 32 channels and visible pair: 136 and 2080 pairs.
    CHECK(contains(rows, "\"attention_FLOPs\":52224"));
    CHECK(contains(rows, "\"attention_FLOPs\":798720"));
    CHECK(contains(rows, "\"score_bytes_not_stored\":32768"));
    CHECK(contains(rows, "\"batch\":1"));
    must({"bench", "--lengths", "0"}, 2, "--lengths");
    must({"bench", "--lengths", ""}, 2, "expected numbers of tokens");
    must({"bench", "--lengths", "16", "--filter", "linear"}, 2, "--lengths");
}
