// test_quantised.cpp - GGUF's blocks: the bits of Python's gguf, and at most ggml's error.
#include "layers/quant/quant.h"

#include <algorithm>
#include <map>

#include "base/element.h"
#include "base/half.h"
#include "files/crc.h"
#include "files/gguf.h"
#include "layers/cpu.h"
#include "layers/quant/encode_search.h"
#include "test.h"

namespace {
const GgufFile& golden() {
    static const Result<GgufFile> file = GgufFile::open("test/golden/gguf/formats.gguf");
    REQUIRE_MESSAGE(file.ok(), file.status.message);
    return file.value;
}
std::vector<uint8_t> blocks_of(const std::string& name) {
    const GgufTensor* t = golden().find(name);
    REQUIRE(t);
    std::vector<uint8_t> bytes(static_cast<size_t>(t->bytes));
    REQUIRE(golden().read_bytes(t->at, bytes.data(), t->bytes).ok());
    return bytes;
}
std::vector<float> floats_of(const BlockFormat& format, const std::vector<uint8_t>& blocks) {
    const int64_t n = int64_t(blocks.size()) / format.bytes * format.numbers;
    Guarded<float> out(n);
    dequantise(format, blocks.data(), n, out);
    CHECK(out.intact());
    return {out.data(), out.data() + n};
}
std::vector<uint8_t> quantised(const BlockFormat& format, const std::vector<float>& x) {
    const int64_t n = int64_t(x.size()) / format.numbers * format.bytes;
    Guarded<uint8_t> out(n, 0);
    quantise(format, x.data(), int64_t(x.size()), out);
    CHECK(out.intact());
    return {out.data(), out.data() + n};
}
double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    return sum;
}
}    // namespace

TEST_CASE("quantised: each format's blocks are the numbers that Python's gguf makes of them") {
    for (const BlockFormat& f : BLOCK_FORMATS) {
        INFO(std::string(f.name));
        CHECK(&block_format(f.type) == &f);
        CHECK(find_block_format(uint32_t(f.ggml_type)) == &f);
        REQUIRE(golden().find(f.name));
        CHECK(golden().find(f.name)->format == &f);
        const std::vector<float> found = floats_of(f, blocks_of(f.name));
        const BlockFormat& plain = block_format(BlockType::f32);
        const std::vector<float> expected = floats_of(plain, blocks_of(std::string(f.name) + ".floats"));
        REQUIRE(found.size() == expected.size());
        CHECK(memcmp(found.data(), expected.data(), found.size() * 4) == 0);
    }
}

TEST_CASE("quantised: numbers that are not finite are found in each format's blocks") {
    for (const BlockFormat& f : BLOCK_FORMATS) {
        INFO(std::string(f.name));
        const std::vector<uint8_t> blocks = blocks_of(f.name);
        const int64_t n = int64_t(blocks.size()) / f.bytes * f.numbers;
        CHECK(all_finite(f, blocks.data(), n));
        for (const uint8_t high : {0x7F, 0xFF}) {    // NaN as fp16, bf16 and fp32
            int places = 0;
            for (size_t at = blocks.size() - size_t(f.bytes); at + 1 < blocks.size(); at += 2) {
                std::vector<uint8_t> broken = blocks;
                broken[at] = 0xFF, broken[at + 1] = high;
                const std::vector<float> x = floats_of(f, broken);
                const bool finite = std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
                CHECK_MESSAGE(all_finite(f, broken.data(), n) == finite, at);
                places += !finite;
            }
            CHECK(places > 0);
        }
    }
}

TEST_CASE("quantised: the error is smaller than ggml's, and Q8_0 has the same bytes") {
    // Limits of our squared error relative to ggml's: the ratio of our search, plus 0.003.
    struct Row {
        BlockType type;
        double normal, heavy;
    };
    using enum BlockType;
    const Row rows[] = {{q8_0, 1, 1},         {q4_0, 0.861, 0.986}, {q4_1, 0.777, 0.316}, {q5_0, 0.849, 0.997},
                        {q5_1, 0.863, 0.788}, {q4_k, 0.950, 0.983}, {q6_k, 0.968, 0.983}};
    for (const Row& row : rows)
        for (auto& [kind, limit] : {std::pair{"normal", row.normal}, {"heavy", row.heavy}}) {
            const BlockFormat& f = block_format(row.type);
            const std::string what = std::string(f.name) + " " + kind;
            INFO(what);
            const std::vector<float> x = floats_of(block_format(BlockType::f32), blocks_of(kind));
            const std::vector<uint8_t> theirs = blocks_of(std::string(kind) + "." + f.name), ours = quantised(f, x);
            const double error = squared_error(floats_of(f, ours), x);
            CHECK(error <= limit * squared_error(floats_of(f, theirs), x));
            if (f.type == BlockType::q8_0) CHECK(ours == theirs);
            // Numbers read from blocks nearly survive when they are quantised again.
            const std::vector<float> held = floats_of(f, ours);
            CHECK(squared_error(floats_of(f, quantised(f, held)), held) <= 0.2 * error);
        }
    for (const BlockFormat& f : BLOCK_FORMATS)    // only formats of the rows above are written
        CHECK(can_quantise(f) == (f.numbers == 1 || std::any_of(std::begin(rows), std::end(rows),
                                                                [&](const Row& row) { return row.type == f.type; })));
}

TEST_CASE("quantised: searches by vectors give the bits of the loops, which stay what they were") {
    // 16 kinds of numbers in turn: normal, heavy tails, steps of a grid, one side of zero, far too
    // small or large, outliers, ties, NaN and infinity, any bits.
    std::vector<float> x(1 << 15);
    uint64_t state = 1;
    for (size_t i = 0; i < x.size(); i++) {
        float& v = x[i];
        for (int part = 0; part < 4; part++) {    // nearly normal, equal on every machine
            state = state * 6364136223846793005u + 1442695040888963407u;
            v += (float(state >> 48) - 32767.5f) * 0x1p-21f;
        }
        const uint64_t k = i >> 8 & 15, n = i % 61;
        const uint32_t any = uint32_t(i) * 2654435761u;
        if (k == 1) v = v * v * v * 1e6f;
        if (k == 2) v = std::round(v * 100);
        if (k == 3) v = std::fabs(v) + 1;
        if (k == 4) v = -std::fabs(v);
        if (k >= 5 && k <= 8) v *= k == 5 ? 1e-17f : k == 6 ? 1e-20f : k == 7 ? 1e-38f : 1e19f;
        if (k == 9 && n == 0) v = i % 2 ? NAN : INFINITY;
        if (k == 10) v = float(i % 3) / 4 - 0.25f;
        if (k == 11) v *= i % 37 ? 1e-3f : 100;
        if (k == 12) memcpy(&v, &any, 4);
        if (k == 13) v = std::round(v * 1000) / 1000;
    }
    // CRC-32C of the loops' blocks: of formats with an offset as on 2026-11-27, before vectors
    // searched; of formats with a scale alone since its search has 9 steps.
    const std::map<BlockType, uint32_t> made = {{BlockType::q4_0, 0xedb8ba9e}, {BlockType::q4_1, 0xbdb5779e},
                                                {BlockType::q5_0, 0x12332156}, {BlockType::q5_1, 0x3fa19e16},
                                                {BlockType::q4_k, 0xd5792fb5}, {BlockType::q6_k, 0x6c221e7a},
                                                {BlockType::q8_0, 0xf4b3ca90}};
    for (const auto& [type, crc] : made) {
        const BlockFormat& f = block_format(type);
        INFO(std::string(f.name));
        std::vector<uint8_t> loops(x.size() / size_t(f.numbers) * size_t(f.bytes)), vectors(loops.size());
        quantise(f, x.data(), int64_t(x.size()), loops.data(), QuantiseSearch{});
        CHECK(crc32c(0, loops.data(), int64_t(loops.size())) == crc);
        for (int isa = 0; isa < ISA_COUNT; isa++) {
            if (!cpu_supports(Isa(isa))) continue;
            CAPTURE(isa);
            quantise(f, x.data(), int64_t(x.size()), vectors.data(), quantise_search(Isa(isa)));
            CHECK(vectors == loops);
        }
    }
}

TEST_CASE("quantised: odd blocks") {
    for (const BlockFormat& f : BLOCK_FORMATS) {
        if (!can_quantise(f)) continue;
        INFO(std::string(f.name));
        const std::vector<float> zeros(256), halves(256, -0.5f);
        CHECK(floats_of(f, quantised(f, zeros)) == zeros);
        CHECK(relative_error(floats_of(f, quantised(f, halves)).data(), halves.data(), 256) < 0.01);
        // An outlier must not cost the zeros around it more than its step.
        std::vector<float> spike(256, 0.0f);
        spike[77] = 3;
        CHECK(relative_error(floats_of(f, quantised(f, spike)).data(), spike.data(), 256) < 0.02);
        // All numbers are positive: critical because an offset of Q4_K cannot be positive.
        std::vector<float> positive(256);
        for (size_t i = 0; i < 256; i++) positive[i] = 1 + float(i * 7 % 64) / 128;
        CHECK(relative_error(floats_of(f, quantised(f, positive)).data(), positive.data(), 256) < 0.075);
        // Scales beyond fp16, infinity and NaN: the bytes may be anything, but nothing crashes.
        for (float x : {1e-38f, 1e-30f, 1e-8f, 1e30f, float(INFINITY), float(NAN)}) {
            std::vector<float> odd(256, x);
            odd[3] = 1;
            quantised(f, odd);
            CHECK(quantised(f, std::vector<float>(256, x)).size() == size_t(256 / f.numbers * f.bytes));
        }
        for (float x : {1e-38f, 1e-20f})
            for (float y : floats_of(f, quantised(f, std::vector<float>(256, x)))) CHECK(std::fabs(y) <= 2e-8f);
    }
}

TEST_CASE("half: every half is a float and back; ties go to even") {
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float x = half_to_float(uint16_t(h));
        const bool nan = (h & 0x7FFF) > 0x7C00;
        if (nan) {
            CHECK((std::isnan(x) && std::isnan(half_to_float(float_to_half(x)))));
            continue;
        }
        if (float_to_half(x) != h) FAIL_CHECK("half " << h);
        if ((h & 0x7FFF) >= 0x7BFF) continue;
        // Between two halves the middle rounds to the even one, other floats to the nearer one.
        const float next = half_to_float(uint16_t(h + 1)), middle = x + (next - x) / 2;
        CHECK(float_to_half(middle) == (h + (h & 1)));
        CHECK(float_to_half(std::nextafter(middle, x)) == h);
        CHECK(float_to_half(std::nextafter(middle, next)) == h + 1);
    }
    CHECK(half_to_float(0x3C00) == 1.0f);
    CHECK(half_to_float(0xC000) == -2.0f);
    CHECK(half_to_float(0x0001) == 0x1p-24f);
    CHECK(half_to_float(0x7C00) == INFINITY);
    CHECK(float_to_half(65519.99f) == 0x7BFF);
    CHECK(float_to_half(65520.0f) == 0x7C00);
    CHECK(float_to_half(-1e10f) == 0xFC00);
}
