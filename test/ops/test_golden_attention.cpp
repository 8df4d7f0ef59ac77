// test_golden_attention.cpp - outputs and gradients of each mask and shape of attention's scores
// against those of PyTorch and transformers (test/golden/attention.safetensors, made by
// dev/golden_attention.py).
#include <map>

#include "ops.h"

#include "model/position_tables.h"
#include "test/tensors.h"
#include "tools/selftest/attention.h"

namespace {
// The cases of golden_attention.py, written as Heads and spans.
struct Case {
    const char* name;
    int B, S;
    Heads h;
    std::vector<std::vector<int>> documents = {};    // begins of documents per sequence; {}: no spans
    TrueSpans::Kind kind = TrueSpans::causal;
};
const Case CASES[] = {
    {"causal", 1, 20, {3, 1, 8}},
    {"grouped", 2, 10, {6, 2, 4}},
    {"documents", 2, 10, {3, 1, 8}, {{3, 4}, {6}}},
    {"prefix", 2, 10, {6, 2, 4}, {{4}, {}}, TrueSpans::prefix},
    {"bidirectional", 2, 10, {3, 1, 8}, {{}, {7}}, TrueSpans::all},    // a sequence's padding is its own document
    {"window", 1, 20, {6, 2, 4, 4}},
    {"pattern", 1, 20, {.NH = 3, .NKV = 1, .HS = 8, .window = 3, .stride = 5, .global_tokens = 2}},
    {"alibi of 3 heads", 1, 20, {.NH = 3, .NKV = 1, .HS = 8, .alibi = true}},
    {"alibi of 6 heads", 2, 10, {.NH = 6, .NKV = 2, .HS = 4, .alibi = true}},
    {"capped", 1, 20, {.NH = 3, .NKV = 1, .HS = 8, .scale = 0.4f, .softcap = 1.5f}},
    {"t5", 1, 20, {.NH = 3, .NKV = 1, .HS = 8, .scale = 1, .max_distance = RELATIVE_MAX_DISTANCE}},
    {"t5, both sides",
     2,
     10,
     {.NH = 3, .NKV = 1, .HS = 8, .max_distance = RELATIVE_MAX_DISTANCE},
     {{}, {7}},
     TrueSpans::all},
};

const Numbers& golden(const std::string& name) {
    static const std::map<std::string, Numbers> all = [] {
        std::map<std::string, Numbers> read;
        const Result<SafetensorsFile> file = SafetensorsFile::open("test/golden/attention.safetensors");
        REQUIRE_MESSAGE(file.ok(), file.status.message);
        for (const TensorEntry& e : file.value.entries()) {
            std::vector<float> x(size_t(e.end - e.begin) / size_t(SafetensorsFile::element_bytes(e.type)));
            REQUIRE(read_tensor(file.value, e, 0, int64_t(x.size()), x.data()).ok());
            read[e.name] = Numbers(x.begin(), x.end());
        }
        return read;
    }();
    REQUIRE_MESSAGE(all.count(name), name);
    return all.at(name);
}

// Forward and backward pass as a model calls them; with biases, from T5's table to its gradient.
template <class T, class P> void expect_golden(const Ops<T, P>& op, const Case& c, double limit) {
    const int max_distance = c.h.max_distance, n = 2 * max_distance + 1;
    const TrueSpans spans = c.documents.empty() ? TrueSpans(1, {{}}) : TrueSpans(c.S, c.documents, c.kind);
    TableSpans there(op, spans);
    Heads h = c.documents.empty() ? c.h : there.in(c.h);
    Array<T> qkv(op, golden("qkv")), dy(op, golden("dy")), dqkv(op, qkv.size());
    Array<InputType<T, P>> y(op, dy.size());
    Array<float> lse(op, int64_t(c.B) * h.NH * c.S);
    Array<P> table(op, golden("table"));
    const std::vector<int> one_bucket = max_distance ? relative_buckets(c.kind == TrueSpans::all) : std::vector<int>(1);
    Array<int> bucket(op, one_bucket);
    Array<Grad<P>> bias(op, h.NH * n), dbias(op, Numbers(size_t(h.NH * n))), dtable(op, Numbers(size_t(table.size())));
    if (max_distance) {
        op.bias_rows_forward(bias, table, bucket, RELATIVE_BUCKETS, h.NH, n);
        h.bias = reinterpret_cast<const float*>(static_cast<Grad<P>*>(bias));
    }
    op.attention_forward(y, lse, qkv, c.B, c.S, h);
    op.attention_backward(dqkv, dy, y, qkv, lse, c.B, c.S, h);
    Check check(c.name);
    check.expect("y", y, golden(c.name + std::string(".y")), limit);
    check.expect("dqkv", dqkv, golden(c.name + std::string(".dqkv")), limit);
    if (max_distance) {
        op.attention_bias_backward(dbias, dy, y, qkv, lse, c.B, c.S, h);
        op.bias_rows_backward(dtable, dbias, bucket, RELATIVE_BUCKETS, h.NH, n);
        check.expect("dtable", dtable, golden(c.name + std::string(".dtable")), limit);
    }
    CAPTURE(c.name);
    for (const Check::Output& o : check.outputs) CHECK_MESSAGE(o.error <= 1, o.name << " " << o.error);
}
}    // namespace

TEST_CASE("attention golden: every mask and shape of the scores, forward and backward, is PyTorch's") {
    for (const Case& c : CASES) {
        expect_golden(reference_ops(), c, 1e-6);
        // In bf16, the inputs, y, probabilities or their gradients are rounded: hence 8e-3.
        each_table(TablePart::attention, [&]<class T, class P>(const Ops<T, P>& op) {
            expect_golden(op, c, sizeof(InputType<T, P>) == 2 ? 8e-3 : 1e-5);
        });
    }
}

TEST_CASE("attention golden: T5's buckets are those of transformers at every distance") {
    for (bool both : {false, true}) {
        const std::vector<int> ours = relative_buckets(both);
        CHECK(Numbers(ours.begin(), ours.end()) == golden(both ? "buckets.both" : "buckets.one"));
    }
}
