// test_positions.cpp - position encodings: sinusoids, T5's buckets, dynamic and NTK-aware RoPE.
#include "model/families/families.h"
#include "model/position_tables.h"
#include "test.h"

TEST_CASE("positions: sinusoids turn each pair of channels together, by the scale of the embeddings less") {
    Config c = {.V = 13, .T = 8, .L = 1, .NH = 1, .C = 6};
    c.position = Position::sinusoidal, c.embed_scale = 4;
    const std::vector<float> table = sinusoids(c, 5);
    REQUIRE(table.size() == 30);
    for (int p = 0; p < 5; p++)
        for (int i = 0; i < 3; i++) {
            const double angle = p / std::pow(10000, 2 * i / 6.0);
            CHECK(4 * table[size_t(6 * p + 2 * i)] == doctest::Approx(std::sin(angle)).epsilon(1e-6));
            CHECK(4 * table[size_t(6 * p + 2 * i + 1)] == doctest::Approx(std::cos(angle)).epsilon(1e-6));
        }
}

TEST_CASE("positions: T5's buckets are those of transformers 5.23") {
    const int distances[] = {-128, -113, -112, -100, -64, -50, -32, -20, -16, -15, -1, 0, 1, 5, 7, 8, 12, 16, 100, 128};
    const int behind[] = {31, 31, 30, 30, 26, 24, 21, 17, 16, 15, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    const int both[] = {15, 15, 15, 15, 14, 13, 12, 10, 10, 9, 1, 0, 17, 21, 23, 24, 25, 26, 31, 31};
    const std::vector<int> one_side = relative_buckets(false), two_sides = relative_buckets(true);
    REQUIRE((one_side.size() == 257 && two_sides.size() == 257));
    for (size_t i = 0; i < std::size(distances); i++) {
        CAPTURE(distances[i]);
        CHECK(one_side[size_t(RELATIVE_MAX_DISTANCE + distances[i])] == behind[i]);
        CHECK(two_sides[size_t(RELATIVE_MAX_DISTANCE + distances[i])] == both[i]);
    }
}

TEST_CASE("positions: dynamic scaling of a longer context is that of transformers 5.23, and NTK-aware") {
    Config c = config_named("llama:d2").value;
    c.HS = c.rope_dims = 16, c.rope_theta = 1e4f, c.T = 256, c.rope_original = 64, c.rope_factor = 2;
    c.rope_scaling = RopeScaling::dynamic;
    const double expected[] = {
        1, 0.239481375, 0.057351321, 0.0137345716, 0.00328917382, 0.00078769587, 0.000188638471, 4.51753949e-05};
    auto check = [&] {
        const std::vector<float> cos_sin = rope_cos_sin(c, 0, 256);
        for (size_t i = 0; i < 8; i++)
            CHECK(cos_sin[255 * 16 + i] == doctest::Approx(std::cos(255 * expected[i])).epsilon(3e-5));
    };
    check();
    c.rope_scaling = RopeScaling::ntk;
    c.rope_factor = 2 * 256 / 64 - 1;    // dynamic's factor
    check();
    c.rope_scaling = RopeScaling::dynamic, c.rope_factor = 2, c.T = 64;    // no scaling
    const std::vector<float> same = rope_cos_sin(c, 0, 64);
    c.rope_scaling = RopeScaling::none, c.rope_factor = 1;
    CHECK(rope_cos_sin(c, 0, 64) == same);
}
