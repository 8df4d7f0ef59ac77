// test_packed_products.cpp - packed weights: blocks into panels and back; products against sums in
// double; a row's bits do not depend on the other rows.
#include "layers/cpu.h"
#include "layers/quant/quant.h"
#include "model/packed_weights.h"

#include <algorithm>

#include "base/file.h"
#include "base/half.h"
#include "base/philox.h"
#include "test/ops/ops.h"

namespace {
const BlockType FORMATS[] = {BlockType::f32,  BlockType::f16,  BlockType::bf16, BlockType::q8_0,
                             BlockType::q4_0, BlockType::q4_1, BlockType::q5_0, BlockType::q5_1,
                             BlockType::q4_k, BlockType::q5_k, BlockType::q6_k};

std::vector<float> normal(int64_t n, uint64_t stream) {
    std::vector<float> x(static_cast<size_t>(n));
    fill_normal(x.data(), n, stream);
    return x;
}

// Blocks of random bits, with scales and offsets of a realistic size.
std::vector<uint8_t> random_blocks(const BlockFormat& f, int64_t n, uint64_t seed) {
    std::vector<uint8_t> blocks(size_t(n / f.numbers * f.bytes));
    const std::vector<float> x = normal(n, seed);
    for (size_t i = 0; i < blocks.size(); i++) blocks[i] = uint8_t(philox(seed, 7, i).v[0]);
    auto put = [&](size_t at, float value) {
        const uint16_t half = float_to_half(value);
        memcpy(&blocks[at], &half, 2);
    };
    for (int64_t i = 0; i < n; i += f.numbers) {
        const size_t at = size_t(i / f.numbers * f.bytes);
        const float value = x[size_t(i)];
        if (f.numbers == 1) {
            if (f.type == BlockType::f32) memcpy(&blocks[at], &value, 4);
            else if (f.type == BlockType::f16) put(at, value);
            else {
                const bf16 b = to_bf16(value);
                memcpy(&blocks[at], &b, 2);
            }
            continue;
        }
        const float d = 0.01f * (1 + std::fabs(value));
        put(at + (f.type == BlockType::q6_k ? 208 : 0), f.numbers == 256 ? d / 16 : d);
        if (block_layout(f.type).offsets) put(at + 2, f.numbers == 256 ? d / 8 : -7 * d);
    }
    return blocks;
}

// A matrix (rows,cols) whose consecutive ranges of rows have different formats.
struct Matrix {
    int64_t rows = 0, cols;
    std::vector<PackedPart> parts;
    std::vector<std::vector<char>> memory;
    std::vector<std::vector<uint8_t>> blocks;    // each part's blocks in file order
    PackedWeight weight = {};
    std::vector<float> numbers;    // (rows,cols)

    Matrix(int64_t cols, const std::vector<FormatRows>& all, uint64_t seed) : cols(cols) {
        for (const FormatRows& s : all) {
            const BlockFormat& f = block_format(s.format);
            memory.emplace_back(size_t(part_bytes(s.format, s.rows, cols)) + 64);
            auto at = reinterpret_cast<uintptr_t>(memory.back().data());
            parts.push_back({rows, s.rows, s.format, memory.back().data() + (64 - at % 64) % 64});
            blocks.push_back(random_blocks(f, s.rows * cols, seed + uint64_t(rows)));
            for (int64_t r = 0; r < s.rows; r++)
                pack(parts.back(), cols, r, 0, cols, &blocks.back()[size_t(r * cols / f.numbers * f.bytes)]);
            numbers.resize(size_t((rows + s.rows) * cols));
            dequantise(f, blocks.back().data(), s.rows * cols, &numbers[size_t(rows * cols)]);
            rows += s.rows;
        }
        weight = {nullptr, parts.data(), int(parts.size())};
    }
};

// Matrix m with its rows in a file and its panels not packed yet.
struct InFile {
    static constexpr int GUARD = 4096;    // bytes after each part's panels
    std::shared_ptr<const char> file;
    std::vector<std::vector<char>> memory;
    std::vector<std::vector<const char*>> rows;
    std::vector<PackedPart> parts;
    PackedWeight weight = {};

    InFile(const Matrix& m, int wait) {
        std::string text;
        for (auto& blocks : m.blocks) text.append(blocks.begin(), blocks.end());
        const std::string path = temporary_directory() + "/rows";
        write_file(path, text);
        file = File::open(path).value.map();
        const char* at = file.get();
        for (const PackedPart& part : m.parts) {
            rows.emplace_back();
            for (int64_t r = 0; r < part.rows; r++, at += m.cols * block_format(part.format).bytes)
                rows.back().push_back(at);
            memory.emplace_back(size_t(part_bytes(part.format, part.rows, m.cols)) + GUARD, '\x55');
            parts.push_back({part.first, part.rows, part.format, memory.back().data(), rows.back().data(), wait});
        }
        weight = {nullptr, parts.data(), int(parts.size())};
    }
    bool untouched(size_t part, size_t from = 0) const {
        return std::all_of(memory[part].begin() + int64_t(from), memory[part].end(),
                           [](char c) { return c == '\x55'; });
    }
    void check_packed(const Matrix& m) const {
        for (size_t i = 0; i < parts.size(); i++) {
            const size_t bytes = memory[i].size() - GUARD;
            CHECK(!parts[i].mapped);
            CHECK(memcmp(memory[i].data(), m.parts[i].data, bytes) == 0);
            CHECK(untouched(i, bytes));
        }
    }
};

// x as a product with `format` rounds it: to bf16 for pairs, to int8 in blocks of 32, or not.
std::vector<double> taken(const std::vector<float>& x, BlockType format, bool pairs) {
    std::vector<double> out(x.begin(), x.end());
    if (format == BlockType::bf16 && pairs)
        for (size_t i = 0; i < x.size(); i++) out[i] = double(to_float(to_bf16(x[i])));
    for (size_t b = 0; in_blocks(format) && b < x.size(); b += 32) {
        float most = 0;
        for (size_t k = b; k < b + 32; k++) most = std::max(most, std::fabs(x[k]));
        const float d = most / 127, inverse = d > 0 ? 1 / d : 0;
        for (size_t k = b; k < b + 32; k++) out[k] = double(d) * double(to_int8(x[k] * inverse).value);
    }
    return out;
}

// A combination of kernels, instructions and tiles that computes products.
struct Way {
    CpuKernels<float> kernels;
    bool vnni;
    Isa isa;
    Tiles tiles;
    bool pairs;     // x is rounded to bf16 for bf16 weights
    bool prompt;    // precision of a prefill
    PackedProduct product(float* y, const std::vector<float>& x, const PackedWeight& w, int N, int C, int OC) const {
        PackedProduct p = {y, x.data(), &w, nullptr, nullptr, N, C, OC, vnni, tiles, tiles};
        p.precision = prompt ? Precision::prefill : Precision::normal;
        return p;
    }
};
// Calls f(way) for each combination that this machine has.
template <class F> void each_way(int C, F f) {
    for (int i = 0; i < ISA_COUNT; i++)
        for (bool vnni : {false, true})
            for (Tiles tiles : {Tiles::none, Tiles::emulated, Tiles::amx}) {
                const bool has_tiles = tiles != Tiles::amx || (Isa(i) == Isa::avx512bf16 && cpu_has_amx_int8());
                if (!cpu_supports(Isa(i)) || (vnni && !cpu_has_vnni(Isa(i))) || !has_tiles) continue;
                CAPTURE(i);
                CAPTURE(vnni);
                CAPTURE(int(tiles));
                const bool by_tiles = tiles != Tiles::none && C % 32 == 0;
                for (bool prompt : {false, true}) {
                    if (prompt && tiles == Tiles::none) continue;    // no difference without tiles
                    CAPTURE(prompt);
                    const bool pairs = by_tiles || Isa(i) == Isa::avx512bf16;
                    f(Way{cpu_kernels<float>(Isa(i)), vnni, Isa(i), tiles, pairs, prompt});
                }
            }
}

void check_product(const Matrix& m, int N, bool adds) {
    CAPTURE(m.cols);
    CAPTURE(m.rows);
    CAPTURE(N);
    const int C = int(m.cols), OC = int(m.rows);
    const std::vector<float> x = normal(int64_t(N) * C, 3), b = normal(OC, 4), r = normal(int64_t(N) * OC, 5);
    each_way(C, [&](const Way& way) {
        Guarded<float> y(int64_t(N) * OC), again(int64_t(N) * OC), gelu(int64_t(N) * OC), gelu_again(int64_t(N) * OC);
        PackedProduct p = way.product(y, x, m.weight, N, C, OC);
        if (adds) p.b = b.data(), p.residual = r.data();
        way.kernels.packed_linear(p);
        p.y = gelu, p.gelu = true;
        way.kernels.packed_linear(p);
        CHECK((y.intact() && gelu.intact()));
        double worst = 0;
        for (const PackedPart& part : m.parts) {
            const std::vector<double> in = taken(x, part.format, way.pairs);
            for (int n = 0; n < N; n++)
                for (int64_t o = part.first; o < part.first + part.rows; o++) {
                    double sum = adds ? double(b[size_t(o)]) + double(r[size_t(n * OC + o)]) : 0, size = std::fabs(sum);
                    for (int k = 0; k < C; k++) {
                        const double a = in[size_t(n * C + k)] * double(m.numbers[size_t(o * C + k)]);
                        sum += a, size += std::fabs(a);
                    }
                    const double error = std::fabs(sum - double(y[n * OC + o])) / (size + 1e-3);
                    if (!(error <= worst)) worst = error;    // NaN, too: an unwritten output
                }
        }
        CHECK(worst < 2e-6);
        worst = 0;
        for (int i = 0; i < N * OC; i++) {
            const double v = double(y[i]), u = 0.7978845608028654 * (v + 0.044715 * v * v * v);
            const double error = std::fabs(v / 2 * (1 + std::tanh(u)) - double(gelu[i])) / (std::fabs(v) + 1e-3);
            if (!(error <= worst)) worst = error;
        }
        CHECK(worst < 1e-6);
        // Each row alone has the bits that it has among others, for any number of threads.
        const int threads = cpu_threads();
        for (int n = 0; n < N; n++) {
            cpu_set_threads(1 + n % 3);
            p.x = x.data() + n * C, p.N = 1;
            if (adds) p.residual = r.data() + n * OC;
            p.y = again.data() + n * OC, p.gelu = false;
            way.kernels.packed_linear(p);
            p.y = gelu_again.data() + n * OC, p.gelu = true;
            way.kernels.packed_linear(p);
        }
        CHECK(memcmp(y.data(), again.data(), sizeof(float) * size_t(N) * size_t(OC)) == 0);
        CHECK(memcmp(gelu.data(), gelu_again.data(), sizeof(float) * size_t(N) * size_t(OC)) == 0);
        cpu_set_threads(3);    // all rows at once, three threads
        p.x = x.data(), p.N = N, p.y = again, p.gelu = false;
        if (adds) p.residual = r.data();
        way.kernels.packed_linear(p);
        p.y = gelu_again, p.gelu = true;
        way.kernels.packed_linear(p);
        cpu_set_threads(threads);
        CHECK(memcmp(y.data(), again.data(), sizeof(float) * size_t(N) * size_t(OC)) == 0);
        CHECK(memcmp(gelu.data(), gelu_again.data(), sizeof(float) * size_t(N) * size_t(OC)) == 0);
    });
}
}    // namespace

TEST_CASE("packed weights: blocks come out of panels as they went in") {
    for (BlockType format : FORMATS) {
        const BlockFormat& f = block_format(format);
        INFO(std::string(f.name));
        const int64_t cols = 512, rows = 53;
        std::vector<char> memory(size_t(part_bytes(format, rows, cols)));
        PackedPart part = {0, rows, format, memory.data()};
        const std::vector<uint8_t> blocks = random_blocks(f, rows * cols, 1);
        const int64_t row_bytes = cols / f.numbers * f.bytes;
        for (int64_t r = rows; r-- > 0;)
            for (int64_t half : {1, 0})    // in reverse order
                pack(part, cols, r, half * 256, 256, &blocks[size_t(r * row_bytes + half * row_bytes / 2)]);
        std::vector<uint8_t> out(static_cast<size_t>(row_bytes));
        const PackedWeight weight = {nullptr, &part, 1};
        std::vector<float> floats(static_cast<size_t>(cols)), want(floats);
        for (int64_t r = 0; r < rows; r++) {
            unpack(part, cols, r, 0, cols, out.data());
            CHECK(memcmp(out.data(), &blocks[size_t(r * row_bytes)], out.size()) == 0);
            dequantise(f, &blocks[size_t(r * row_bytes)], cols, want.data());
            unpack_row(weight, cols, r, floats.data());
            CHECK(floats == want);
        }
        CHECK(part_bytes(format, 4800, cols) <= int64_t(1.03 * 4800 * double(row_bytes)));
    }
}

TEST_CASE("packed weights: products are those of double sums, each row's whatever comes along") {
    for (BlockType format : FORMATS) {
        INFO(std::string(block_format(format).name));
        const int unit = block_format(format).numbers;
        for (int OC : {1, 16, 49, 100}) check_product({unit == 1 ? 37 : unit, {{OC, format}}, 1}, 3, OC == 16);
        for (int N : {1, 7, 8, 15, 67}) check_product({512, {{50, format}}, 2}, N, N == 15);
        for (int more : {unit, 2 * unit}) check_product({512 + more, {{20, format}}, 2}, 26 - 2 * more / unit, false);
    }
    // A result over 2 MiB is stored past the caches.
    check_product({64, {{32768, BlockType::q8_0}, {16, BlockType::bf16}}, 1}, 17, true);
}
TEST_CASE("packed weights: a prompt's products by tiles have the bits of unpacked ones, however many rows") {
    for (auto [C, OC] : {std::pair{64, 96}, {37, 50}, {200, 33}, {769, 100}, {64, 4096}}) {
        CAPTURE(C);
        CAPTURE(OC);
        const Matrix m(C, {{OC, BlockType::f32}}, 1);
        const int N = 150;
        const std::vector<float> x = normal(int64_t(N) * C, 3), b = normal(OC, 4), r = normal(int64_t(N) * OC, 5);
        each_way(C, [&](const Way& way) {
            if (way.vnni || !way.prompt) return;
            const Ops<float>& plain = cpu_ops_isa<float>(way.isa, way.tiles);
            std::vector<float> want(size_t(N) * size_t(OC)), pre(want), gelu(want);
            plain.linear_forward(want.data(), x.data(), m.numbers.data(), b.data(), r.data(), N, C, OC, {});
            plain.linear_gelu_forward(gelu.data(), pre.data(), x.data(), m.numbers.data(), b.data(), N, C, OC, {});
            for (int n : {1, 2, 17, 48, 128, 129, N}) {
                if (OC > 4000 && n != 129) continue;    // over 2 MiB: stores bypass caches
                CAPTURE(n);
                Guarded<float> y(int64_t(n) * OC);
                PackedProduct p = way.product(y, x, m.weight, n, C, OC);
                p.b = b.data(), p.residual = r.data();
                way.kernels.packed_linear(p);
                CHECK(y.intact());
                CHECK(memcmp(y.data(), want.data(), sizeof(float) * size_t(n) * size_t(OC)) == 0);
                p.residual = nullptr, p.gelu = true;
                way.kernels.packed_linear(p);
                CHECK(y.intact());
                CHECK(memcmp(y.data(), gelu.data(), sizeof(float) * size_t(n) * size_t(OC)) == 0);
            }
        });
    }
}
TEST_CASE("packed weights: rows of a file give the bits of panels, before and after they are packed") {
    typedef BlockType B;
    for (auto [C, OC, format] : {std::tuple{37, 50, B::f32},
                                 {37, 50, B::f16},
                                 {37, 50, B::bf16},
                                 {64, 97, B::f32},
                                 {64, 97, B::f16},
                                 {64, 97, B::bf16},
                                 {1, 48, B::f16},
                                 {530, 3, B::bf16}}) {
        CAPTURE(C);
        CAPTURE(OC);
        INFO(std::string(block_format(format).name));
        const Matrix m(C,
                       C == 64 ? std::vector<FormatRows>{{OC, format}}
                               : std::vector<FormatRows>{{OC - OC / 2, format}, {OC / 2, format}},
                       1);
        const int64_t N = FEW_ROWS + 66, row = OC - 1;
        const std::vector<float> x = normal(N * C, 3), number(m.numbers.end() - C, m.numbers.end());
        each_way(C, [&](const Way& way) {
            for (int64_t n : {int64_t(1), int64_t(5), FEW_ROWS, FEW_ROWS + 1, N}) {
                CAPTURE(n);
                InFile in(m, 2);
                std::vector<float> want(size_t(n * OC)), last(static_cast<size_t>(C));
                way.kernels.packed_linear(way.product(want.data(), x, m.weight, int(n), C, OC));
                for (int call = 0; call < 4; call++) {
                    CAPTURE(call);
                    unpack_row(in.weight, C, row, last.data());
                    CHECK(last == number);
                    Guarded<float> y(n * OC);
                    way.kernels.packed_linear(way.product(y, x, in.weight, int(n), C, OC));
                    CHECK(y.intact());
                    CHECK(memcmp(y.data(), want.data(), sizeof(float) * want.size()) == 0);
                    CHECK(!in.parts[0].mapped == (n > FEW_ROWS || call >= 2));
                    CHECK(in.untouched(0) == (n <= FEW_ROWS && call < 2));
                }
                in.check_packed(m);
            }
        });
    }
}
TEST_CASE("packed weights: a matrix of several formats is the matrices one below the other") {
    check_product({256, {{64, BlockType::q4_k}, {17, BlockType::q6_k}, {50, BlockType::bf16}, {3, BlockType::f32}}, 1},
                  5, true);
    check_product({512, {{48, BlockType::f16}, {33, BlockType::q8_0}}, 1}, 9, false);
    for (int N : {9, 130}) check_product({64, {{50, BlockType::f32}, {33, BlockType::q8_0}}, 1}, N, false);
}
TEST_CASE("packed weights: a row of zeros gives zeros, one of huge numbers no infinity") {
    const Matrix m(64, {{20, BlockType::q8_0}}, 1);
    each_way(64, [&](const Way& way) {
        std::vector<float> x(10 * 64), y(10 * 20, 7);
        std::fill(x.begin() + 64, x.end(), 1e30f);
        way.kernels.packed_linear(way.product(y.data(), x, m.weight, 10, 64, 20));
        for (int o = 0; o < 20; o++) CHECK(y[size_t(o)] == 0);
        for (int o = 20; o < 200; o++) CHECK(std::isfinite(y[size_t(o)]));
    });
}

TEST_CASE("packed weights: the product with GELU is the product, then GELU") {
    const Matrix m(64, {{30, BlockType::q4_0}, {21, BlockType::f32}}, 1);
    constexpr int N = 3, C = 64, OC = 51;
    const std::vector<float> x = normal(N * C, 1), b = normal(OC, 2);
    PackedWeight bias = {const_cast<float*>(b.data()), nullptr, 0};
    for (int i = 0; i < ISA_COUNT; i++) {
        if (!cpu_supports(Isa(i))) continue;
        CAPTURE(i);
        const Ops<float, PackedWeight>& op = cpu_packed_ops_isa(Isa(i));
        for (PackedWeight* with : {&bias, static_cast<PackedWeight*>(nullptr)}) {
            Guarded<float> y(N * OC), want(N * OC), product(N * OC);
            op.linear_gelu_forward(y, nullptr, x.data(), &m.weight, with, N, C, OC, {});
            op.linear_forward(product, x.data(), &m.weight, with, nullptr, N, C, OC, {});
            op.activation_forward(want, product, Act::gelu_tanh, false, N, OC);
            CHECK(y.intact());
            for (int k = 0; k < N * OC; k++) CHECK(std::fabs(y[k] - want[k]) <= 1e-6f * std::fabs(want[k]));
        }
    }
}

TEST_CASE("packed weights: what is not finite in a row of x is not finite in its products") {
    for (BlockType format : FORMATS) {
        INFO(std::string(block_format(format).name));
        // Element 11 of row 1 is k = 48 of row 0: a read beyond row 0's 37 elements would meet it.
        const int C = block_format(format).numbers == 1 ? 37 : 256, at = C == 37 ? 11 : 77;
        const Matrix m(C, {{20, format}}, 1);
        for (float bad : {float(NAN), INFINITY})
            each_way(C, [&](const Way& way) {
                std::vector<float> x = normal(10 * C, 1), y(10 * 20);
                x[size_t(C + at)] = bad;
                way.kernels.packed_linear(way.product(y.data(), x, m.weight, 10, C, 20));
                for (int o = 0; o < 200; o++) CHECK(std::isfinite(y[size_t(o)]) == (o / 20 != 1));
            });
    }
}

TEST_CASE("packed weights: a weight that is infinite reaches its own output alone") {
    // Output 48 is the first of its panel: a read past the panel before would meet it.
    constexpr int C = 37, OC = 50, AT = 48;
    const uint32_t single = 0x7f800000;
    const uint16_t half = 0x7c00, brain = 0x7f80;
    for (auto [format, number] : {std::pair<BlockType, const void*>{BlockType::f32, &single},
                                  {BlockType::f16, &half},
                                  {BlockType::bf16, &brain}}) {
        INFO(std::string(block_format(format).name));
        const Matrix m(C, {{OC, format}}, 1);
        for (int k = 0; k < 32; k++) pack(m.parts[0], C, AT, k, 1, number);
        for (int N : {9, 130})
            each_way(C, [&](const Way& way) {
                const std::vector<float> x = normal(N * C, 1);
                std::vector<float> y(size_t(N * OC));
                way.kernels.packed_linear(way.product(y.data(), x, m.weight, N, C, OC));
                for (int i = 0; i < N * OC; i++) CHECK(std::isfinite(y[size_t(i)]) == (i % OC != AT));
            });
    }
}

TEST_CASE("packed weights: each expert's rows are its own product") {
    constexpr int E = 5, OC = 50, C = 64, N = 17, K = 2;
    std::vector<FormatRows> rows;
    for (int e = 0; e < E; e++) rows.push_back({30, BlockType::q4_0}), rows.push_back({20, BlockType::bf16});
    const Matrix m(C, rows, 3);
    const std::vector<float> x = normal(N * K * C, 5);
    std::vector<int> offsets = {0, 3, 3, 21, 22, 34};    // expert 1 has no row
    Routes routes = {};
    routes.offsets = offsets.data();
    each_way(C, [&](const Way& way) {
        Guarded<float> y(N * K * OC), want(N * K * OC);
        PackedProduct p = way.product(y, x, m.weight, N, C, OC);
        way.kernels.packed_experts(p, routes, {E, K, false, true});
        for (int e = 0; e < E; e++) {
            std::vector<PackedPart> parts(m.parts.begin() + 2 * e, m.parts.begin() + 2 * e + 2);
            for (PackedPart& p : parts) p.first -= e * OC;
            const PackedWeight w = {nullptr, parts.data(), 2};
            const int from = offsets[size_t(e)];
            p.y = want.data() + from * OC, p.x = x.data() + from * C, p.w = &w, p.N = offsets[size_t(e) + 1] - from;
            if (p.N) way.kernels.packed_linear(p);
        }
        CHECK(y.intact());
        CHECK(memcmp(y.data(), want.data(), sizeof(float) * N * K * OC) == 0);
    });
}
TEST_CASE("packed weights: experts whose rows a file has are packed by their own products alone") {
    constexpr int E = 4, OC = 50, C = 40, K = 2, N = int(FEW_ROWS);
    const Matrix m(C, {{OC, BlockType::bf16}, {OC, BlockType::bf16}, {OC, BlockType::bf16}, {OC, BlockType::bf16}}, 3);
    const std::vector<float> x = normal(N * K * C, 5);
    std::vector<int> offsets = {0, 3, 3, N - 1, N * K};    // expert 3: over FEW_ROWS
    Routes routes = {};
    routes.offsets = offsets.data();
    each_way(C, [&](const Way& way) {
        InFile in(m, 1);
        std::vector<float> want(size_t(N * K * OC));
        way.kernels.packed_experts(way.product(want.data(), x, m.weight, N, C, OC), routes, {E, K, false, true});
        for (int call = 0; call < 3; call++) {
            CAPTURE(call);
            Guarded<float> y(N * K * OC);
            way.kernels.packed_experts(way.product(y, x, in.weight, N, C, OC), routes, {E, K, false, true});
            CHECK(y.intact());
            CHECK(memcmp(y.data(), want.data(), sizeof(float) * want.size()) == 0);
            for (int e : {0, 2}) CHECK(!in.parts[size_t(e)].mapped == (call >= 1));
            CHECK(in.parts[1].mapped);
            CHECK(!in.parts[3].mapped);
        }
    });
}

namespace {
// dx = dy times rows [from, from + OC) of m, against sums in double.
void check_gradient(const Matrix& m, int N, int64_t from, int OC, const PackedWeight& weight) {
    CAPTURE(m.cols);
    CAPTURE(OC);
    CAPTURE(N);
    const int C = int(m.cols);
    const std::vector<float> dy = normal(int64_t(N) * OC, 6);
    each_way(C, [&](const Way& way) {
        if (way.vnni || way.prompt) return;
        std::vector<float> first;
        const int threads = cpu_threads();
        for (int n : {threads, 1, 3}) {
            cpu_set_threads(n);
            Guarded<float> dx(int64_t(N) * C);
            way.kernels.packed_gradient(way.product(dx, dy, weight, N, C, OC), from);
            CHECK(dx.intact());
            const std::vector<float> now(dx.data(), dx.data() + int64_t(N) * C);
            if (first.empty()) first = now;
            CHECK((now == first));
        }
        cpu_set_threads(threads);
        double worst = 0;
        for (int i = 0; i < N * C; i++) {
            double sum = 0, size = 0;
            for (int o = 0; o < OC; o++) {
                const double a = double(dy[size_t(i / C * OC + o)]) * double(m.numbers[size_t((from + o) * C + i % C)]);
                sum += a, size += std::fabs(a);
            }
            worst = worse(worst, std::fabs(sum - double(first[size_t(i)])) / (size + 1e-3));
        }
        CHECK(worst < 2e-6);
    });
}
}    // namespace

TEST_CASE("packed weights: the gradient of a product's input is that of double sums") {
    for (BlockType format : FORMATS) {
        INFO(std::string(block_format(format).name));
        const int unit = block_format(format).numbers;
        for (int OC : {1, 16, 49, 400, 800}) {
            const Matrix m(unit == 1 ? 37 : unit, {{OC, format}}, 1);
            check_gradient(m, OC < 100 ? 3 : 17, 0, OC, m.weight);
        }
        const Matrix m(512, {{50, format}}, 2), parts(512, {{30, format}, {20, BlockType::f32}, {33, format}}, 3);
        for (int N : {1, 8, 67}) check_gradient(m, N, 0, 50, m.weight);
        check_gradient(parts, 9, 0, 83, parts.weight);
        check_gradient(parts, 9, 30, 20, parts.weight);    // one expert's rows
        check_gradient(parts, 5, 50, 33, parts.weight);
        if (in_blocks(format)) continue;
        InFile in(m, 100);
        check_gradient(m, 4, 0, 50, in.weight);
        in.check_packed(m);
    }
}
