// test_trace.cpp - --trace: lines hold the operations' outputs, and the first difference between
// two backends names an operation.
#include <fstream>
#include <set>
#include <sstream>

#include "infer/trace.h"

#include "toy_run.h"
#include "toy_model.h"

namespace {
struct TraceLine {
    std::string layer, operation, output, shape;
    std::vector<double> numbers;    // mean, standard deviation, first elements
    std::string key() const { return layer + " " + operation + " " + output + " " + shape; }
};
std::vector<TraceLine> read_lines(const std::string& path) {
    std::ifstream file(path);
    std::vector<TraceLine> lines;
    std::string text;
    for (std::getline(file, text); std::getline(file, text);) {    // skips the header line
        std::istringstream words(text);
        TraceLine line;
        words >> line.layer >> line.operation >> line.output >> line.shape;
        for (std::string x; words >> x;) line.numbers.push_back(std::stod(x));    // stod reads nan
        REQUIRE(line.numbers.size() > 2);
        lines.push_back(line);
    }
    return lines;
}

const int B = 2, S = 9;
Config toy() {
    Config c = {.V = 61, .T = 32, .L = 2, .NH = 4, .C = 24, .F = 40};
    c.HS = 6;
    return c;
}
// Trace of run(model), where the model uses the operations of `op`.
template <class Run> std::vector<TraceLine> traced(const Table& op, const Config& c, RunMode mode, Run run) {
    const std::string path = temporary_directory() + "/trace";
    {
        const auto trace = Trace::open(path, op).take();
        Model g(trace->table);
        toy_model(g, c, {mode, B, S});
        trace->start(g);
        run(g);
        trace->stop();
        (void)flat_part(g, StateKind::weights);
    }
    return read_lines(path);
}
std::vector<TraceLine> traced_step(const Table& op, const Config& c) {
    const std::vector<int> in = toy_tokens(B * S, c.V, 1), out = toy_tokens(B * S, c.V, 2);
    return traced(op, c, RunMode::train, [&](Model& g) {
        train_pass(g, in, out, B, S);
        update(g, 1e-5f, 0.95f, 0);
    });
}
// Trace of a prompt and two tokens after it.
std::vector<TraceLine> traced_generation(const Table& op, const Config& c) {
    const std::vector<int> tok = toy_tokens(B * S, c.V, 1);
    return traced(op, c, RunMode::infer, [&](Model& g) {
        KvCache cache;
        REQUIRE(allocate_cache(g, cache, B, c.T).ok());
        std::vector<float> logits(size_t(B * c.V));
        for (int n : {S, 1, 1}) compute_logits(g, extend(g, cache, tok.data(), n), logits.data());
    });
}
// First line at which two traces differ by more than rounding, or in the operation. Empty: none.
std::string first_difference(const std::vector<TraceLine>& a, const std::vector<TraceLine>& b) {
    for (size_t i = 0; i < std::max(a.size(), b.size()); i++) {
        if (i >= a.size() || i >= b.size()) return "one has more lines";
        if (a[i].key() != b[i].key()) return a[i].key() + " or " + b[i].key();
        for (size_t k = 0; k < a[i].numbers.size(); k++) {
            const double size = std::fabs(b[i].numbers[0]) + b[i].numbers[1];
            if (!(std::fabs(a[i].numbers[k] - b[i].numbers[k]) <= 1e-3 * size + 1e-6)) return a[i].key();
        }
    }
    return "";
}
// The cpu table without the fused operations that the reference lacks.
Table plain_cpu() {
    Table op = cpu_ops<float>();
    op.linear_gelu_forward = nullptr, op.linear_gelu_backward = nullptr;
    return op;
}
}    // namespace

TEST_CASE("trace: the lines of a step, of a prompt and of tokens are the reference's, for every kind of model") {
    std::set<std::string> seen;
    for (const Kind& k : kind_configs(toy())) {
        CAPTURE(k.name);
        for (auto lines : {traced_step, traced_generation}) {
            const std::vector<TraceLine> ours = lines(plain_cpu(), k.c);
            CHECK(first_difference(ours, lines(reference_ops(), k.c)) == "");
            for (const TraceLine& line : ours) seen.insert(line.operation);
        }
    }
    // All operations are seen but these, which write no numbers or which float on a CPU never
    // calls.
    const std::set<std::string> others = {"zero",
                                          "copy",
                                          "upload",
                                          "download",
                                          "upload_async",
                                          "use_uploaded",
                                          "download_async",
                                          "cache_rotate",
                                          "attention_merge",    // by several ranks alone, as the next one
                                          "copy_columns",
                                          "step_verdict",
                                          "from_floats",
                                          "to_floats",
                                          "sample",
                                          "linear_gelu_forward",
                                          "linear_gelu_backward",
                                          "norm_linear_forward",
                                          "norm_ffn_forward",
                                          "rope_attention_cached",
                                          "keep_blocks",    // adapters have these five, a teacher the last
                                          "drop_inputs",
                                          "inverse_row_norms",
                                          "scale_columns_forward",
                                          "scale_columns_backward",
                                          "previous_tokens",
                                          "distill_loss",
                                          "nesterov_momentum",    // Muon has these three, an average the last
                                          "orthogonalize",
                                          "normalize_rows",
                                          "average_weights",
                                          "cross_attention_forward",    // encoder-decoders have these four
                                          "cross_attention_backward",
                                          "cross_attention_cached",
                                          "cache_append",
                                          "value_loss"};    // heads of numbers
#define OPERATION(name, ...) CHECK_MESSAGE((seen.count(#name) + others.count(#name)) == 1, #name);
#include "layers/operations.inc"
#undef OPERATION
}

TEST_CASE("trace: a line has the array's layer, name, shape, mean, deviation and first numbers") {
    std::vector<float> qkv;
    double loss = 0;
    const Config c = toy();
    const std::vector<int> in = toy_tokens(B * S, c.V, 1), out = toy_tokens(B * S, c.V, 2);
    const std::vector<TraceLine> lines = traced(plain_cpu(), c, RunMode::train, [&](Model& g) {
        loss = train_pass(g, in, out, B, S);
        const float* x = typed<float>(g, g.a[1].qkv);
        qkv.assign(x, x + B * S * 72);
    });
    auto find = [&](const std::string& place) {
        for (const TraceLine& line : lines)
            if (line.key() == place) return line.numbers;
        FAIL("no line " << place);
        return std::vector<double>();
    };
    double sum = 0, squares = 0;
    for (float x : qkv) sum += double(x);
    for (float x : qkv) squares += std::pow(double(x) - sum / double(qkv.size()), 2);
    const std::vector<double> numbers = find("1 linear_forward qkv 18x72");
    REQUIRE(numbers.size() == 6);
    CHECK(numbers[0] == doctest::Approx(sum / double(qkv.size())).epsilon(1e-5));
    CHECK(numbers[1] == doctest::Approx(std::sqrt(squares / double(qkv.size()))).epsilon(1e-5));
    for (size_t i = 0; i < 4; i++) CHECK(numbers[2 + i] == doctest::Approx(double(qkv[i])).epsilon(1e-5));
    const std::vector<double> losses = find("- add_losses total 1");
    REQUIRE(losses.size() == 3);
    CHECK(losses[0] == doctest::Approx(loss * B * S).epsilon(1e-5));
    CHECK(losses[1] == 0);
    for (const char* place : {"- embedding_forward x 18x24", "0 norm_forward ln1 18x24", "0 norm_forward rstd 18",
                              "0 attention_forward lse 8x9", "0 linear_forward out 18x24", "1 linear_forward out 18x24",
                              "- norm_forward lnf 18x24", "1 linear_backward dqkvw 72x24", "0 norm_backward dln1b 24",
                              "- embedding_backward dwte 61x24"})
        find(place);
}

TEST_CASE("trace: the first line that differs is the changed operation's") {
    const Config c = kind_configs(toy())[0].c;
    const std::vector<TraceLine> right = traced_step(plain_cpu(), c), tokens = traced_generation(plain_cpu(), c);
    Table broken = plain_cpu();
    CHECK(first_difference(traced_step(broken, c), right) == "");
    broken.rope_backward = [](auto* d, auto... rest) {
        Table(cpu_ops<float>()).rope_backward(d, rest...);
        reinterpret_cast<float*>(d)[1] += 0.1f;
    };
    CHECK(first_difference(traced_step(broken, c), right) == "1 rope_backward d 18x72");
    CHECK(first_difference(traced_generation(broken, c), tokens) == "");
    broken.activation_forward = [](auto* y, auto... rest) {
        Table(cpu_ops<float>()).activation_forward(y, rest...);
        reinterpret_cast<float*>(y)[0] += 0.1f;
    };
    CHECK(first_difference(traced_step(broken, c), right) == "0 activation_forward fcg 18x40");
    CHECK(first_difference(traced_generation(broken, c), tokens) == "0 activation_forward fcg 18x40");
    broken = plain_cpu();
    broken.attention_cached = [](auto* y, auto... rest) {
        Table(cpu_ops<float>()).attention_cached(y, rest...);
        reinterpret_cast<float*>(y)[0] = NAN;
    };
    CHECK(first_difference(traced_generation(broken, c), tokens) == "0 attention_cached atty 18x24");
}

TEST_CASE("trace: train writes its first step, sample and eval every pass; the results have the same bits") {
    Toy toy;
    const std::string file = toy.dir + "/trace";
    must(toy.args("plain", {"--steps", "2"}));
    must(toy.args("run", {"--steps", "2", "--total-batch", "256", "--trace", file}));
    auto passes = [&] {
        std::vector<TraceLine> lines = read_lines(file);
        return std::count_if(lines.begin(), lines.end(),
                             [](const TraceLine& line) { return line.operation == "embedding_forward"; });
    };
    CHECK(passes() == 2);    // 256 tokens: two batches of 4 x 32
    CHECK(read_lines(file).back().operation == "update_weights");
    CHECK_FALSE(contains(read_file(toy.dir + "/run/run.toml"), "trace"));
    must(toy.args("traced", {"--steps", "2", "--trace", file}));
    CHECK(toy.metrics("traced") == toy.metrics("plain"));

    const std::vector<std::string> sample = {"sample", toy.dir + "/plain", "--tokens", "3", "--prompt", "abc"};
    CHECK(must(with(sample, {"--trace", file})).out == must(sample).out);
    CHECK(passes() == 3);
    const std::vector<std::string> eval = {"eval", toy.dir + "/plain", "--data", toy.dir + "/val.bin", "--eval-tokens",
                                           "512"};
    CHECK(must(with(eval, {"--trace", file})).out == must(eval).out);
    CHECK(passes() == 2);    // batches of 8 x 32
    must(with(eval, {"--trace", toy.dir + "/none/trace.txt"}), 4, "--trace: ");
    must(with(eval, {"--trace", toy.dir}), 2, "--trace: expected the name of a file, found the directory");
}
