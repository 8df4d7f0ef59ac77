// attention.cpp - the benchmark's rows of attention, with and without softmax.
#include "rows.h"

// Returns the model's heads and variants of them, each with a suffix for row names: other masks,
// which have fewer or more visible pairs, and dropout.
std::vector<std::pair<std::string, Heads>> Rows::masks() {
    std::vector<std::pair<std::string, Heads>> all = {{"", h}};
    auto spans = [&](const char* name, MaskKind mask_kind, const std::vector<Text>& texts) {
        Spans all_spans;
        for (int b = 0; b < B; b++) all_spans.add(texts, S, mask_kind);
        const int64_t bytes = N * int64_t(sizeof(Span));
        Span* p = allocate<Span>(2 * bytes);
        if (!p) return;
        op.upload(p, all_spans.keys.data(), bytes);
        op.upload(p + N, all_spans.queries.data(), bytes);
        Heads masked = h;
        masked.window = 0, masked.keys = p, masked.queries = p + N;
        all.push_back({name, masked});
    };
    std::vector<Text> documents;
    for (int i = 0; i < std::min(8, S); i++) documents.push_back({int(int64_t(i) * S / std::min(8, S))});
    spans(", 8 documents", MaskKind::causal, documents);
    spans(", bidirectional", MaskKind::all, {Text{}});
    spans(", half a prefix", MaskKind::prefix, {{0, S / 2}});
    all.push_back({", dropout", h});
    all.back().second.dropout = {0.1f, 1};
    Heads window = h;
    window.window = std::max(1, S / 16);
    all.push_back({formatted(", window %d", window.window), window});
    window.stride = 64, window.global_tokens = 4;
    all.push_back({formatted(", window %d, stride 64, 4 global", window.window), window});
    return all;
}

void Rows::attention() {
    const int64_t qkv_elements = int64_t(N) * h.qkv_width(), y_elements = int64_t(N) * h.width();
    auto qkv = arrays<Activation>(qkv_elements), dqkv = arrays<Activation>(qkv_elements);
    auto y = arrays<Input>(y_elements);
    auto dy = arrays<Activation>(y_elements);
    auto lse = arrays<float>(int64_t(N) * h.NH, 4);
    if (!dqkv[0] || !lse[0]) return bench.short_of_memory("attention");
    for (const auto& [name, heads] : masks()) {
        ROW(attention_forward, name, y[i], lse[i], qkv[i], B, S, heads);
        if (!bench.wanted("attention_backward" + name)) continue;
        for (int i = 0; i < SETS; i++) op.attention_forward(y[i], lse[i], qkv[i], B, S, heads);
        ROW(attention_backward, name, dqkv[i], dy[i], y[i], qkv[i], lse[i], B, S, heads);
    }
    free_all();
    for (int rows : {1, 8, 64}) cached(rows, op.activation, "");
    if (op.activation == Element::f32) cached(8, Element::bf16, " in bf16");
    cached(8, Element::fp8, " in fp8");
    cached(8, Element::int8, " in int8");
}

// Times attention of a decode step of `rows` sequences with full caches and, for 8 sequences,
// cache_rotate of all their pages.
void Rows::cached(int rows, Element type, const std::string& name) {
    const int width = pages_for(c.T), pages = rows * width, keys = h.window ? std::min(h.window, c.T) : c.T;
    const std::string size = ", " + std::to_string(rows) + " x " + std::to_string(keys) + " keys" + name;
    const bool turns_too = rows == 8;
    const bool attends = bench.wanted("attention_cached" + size);
    if (!(turns_too && bench.wanted("cache_rotate" + size)) && !attends) return;
    const int all = turns_too ? 2 * pages : pages;
    const int64_t all_rows = int64_t(h.NKV) * all * Pages::SIZE, bytes = all_rows * h.HS * element_bytes(type);
    const QkNormRope rope = {.dims = h.HS / 2 * 2};
    // The cache holds zeros, because their bits are valid numbers of every cache type.
    auto k = arrays<float>(bytes / 4 + 1, 0), v = arrays<float>(bytes / 4 + 1, 0);
    auto k_scale = arrays<float>(all_rows), v_scale = arrays<float>(all_rows);
    auto q = arrays<Activation>(int64_t(rows) * h.qkv_width());
    auto o = arrays<Input>(int64_t(rows) * h.width());
    auto pos = ids(rows, 1), table = ids(pages, 1), copies = ids(2 * pages, 1);
    auto cos_sin = arrays<float>(int64_t(pages) * rope.dims);
    if (!k[0] || !v[0] || !v_scale[0] || !o[0] || !copies[0] || !cos_sin[0])
        return bench.short_of_memory("attention_cached");
    const std::vector<int> last(size_t(rows), c.T - 1);
    std::vector<int> numbers, from_to;
    for (int i = 0; i < pages; i++) numbers.push_back(i), from_to.push_back(pages + i), from_to.push_back(i);
    for (int* p : pos) op.upload(p, last.data(), 4 * rows);
    for (int* t : table) op.upload(t, numbers.data(), 4 * pages);
    for (int* t : copies) op.upload(t, from_to.data(), 8 * pages);
    const bool factors = type == Element::fp8 || type == Element::int8;
    auto cache = [&](int i) {
        return Pages{type,
                     k[size_t(i)],
                     v[size_t(i)],
                     factors ? k_scale[size_t(i)] : nullptr,
                     factors ? v_scale[size_t(i)] : nullptr,
                     h.NKV,
                     table[size_t(i)],
                     width};
    };
    ROW(attention_cached, size, o[i], q[i], cache(i), rows, 1, pos[i], h);
    if (turns_too) ROW(cache_rotate, size, cache(i), copies[i], pages, cos_sin[i], h, rope);
    free_all();
}

// Times attention with T5's position biases, whose gradient is a separate operation.
void Rows::biases() {
    const int64_t qkv_elements = int64_t(N) * h.qkv_width(), y_elements = int64_t(N) * h.width();
    Heads with = h;
    with.alibi = false, with.softcap = 0, with.max_distance = RELATIVE_MAX_DISTANCE, with.bias_step = 0;
    const int64_t numbers = int64_t(h.NH) * with.distances();
    auto qkv = arrays<Activation>(qkv_elements), dqkv = arrays<Activation>(qkv_elements);
    auto y = arrays<Input>(y_elements);
    auto dy = arrays<Activation>(y_elements);
    auto lse = arrays<float>(int64_t(N) * h.NH, 4), bias = arrays<float>(numbers);
    auto dbias = arrays<Gradient>(numbers);
    if (!dqkv[0] || !dbias[0]) return bench.short_of_memory("attention_bias_backward");
    with.bias = bias[0];
    for (int i = 0; i < SETS; i++) op.attention_forward(y[i], lse[i], qkv[i], B, S, with);
    ROW(attention_forward, ", biases", y[i], lse[i], qkv[i], B, S, with);
    ROW(attention_backward, ", biases", dqkv[i], dy[i], y[i], qkv[i], lse[i], B, S, with);
    ROW(attention_bias_backward, "", dbias[i], dy[i], y[i], qkv[i], lse[i], B, S, with);
    free_all();
}

// Times attention with relative keys (Shaw et al. 2018), whose biases each query has for itself.
void Rows::relative_keys() {
    Heads with = h;
    with.alibi = false, with.softcap = 0, with.max_distance = 16, with.bias_step = h.NH * with.distances();
    const int64_t qkv_elements = int64_t(N) * h.qkv_width(), keys_elements = int64_t(with.distances()) * h.HS;
    auto qkv = arrays<Activation>(qkv_elements), dqkv = arrays<Activation>(qkv_elements);
    auto y = arrays<Input>(int64_t(N) * h.width());
    auto dy = arrays<Activation>(int64_t(N) * h.width());
    auto keys = arrays<Parameter>(keys_elements);
    auto dkeys = arrays<Gradient>(keys_elements);
    auto bias = arrays<Gradient>(int64_t(N) * with.bias_step), dbias = arrays<Gradient>(int64_t(N) * with.bias_step);
    auto lse = arrays<float>(int64_t(N) * h.NH, 4);
    if (!dbias[0] || !lse[0]) return bench.short_of_memory("relative_keys");
    auto of = [&](int i) {
        Heads own = with;
        own.bias = reinterpret_cast<const float*>(bias[i]);
        return own;
    };
    for (int i = 0; i < SETS; i++) {
        op.relative_keys_forward(bias[i], qkv[i], keys[i], N, with);
        op.attention_forward(y[i], lse[i], qkv[i], B, S, of(i));
    }
    ROW(relative_keys_forward, "", bias[i], qkv[i], keys[i], N, with);
    ROW(attention_forward, ", biases of each query", y[i], lse[i], qkv[i], B, S, of(i));
    ROW(attention_backward, ", biases of each query", dqkv[i], dy[i], y[i], qkv[i], lse[i], B, S, of(i));
    ROW(attention_bias_backward, ", of each query", dbias[i], dy[i], y[i], qkv[i], lse[i], B, S, of(i));
    ROW(relative_keys_backward, "", dqkv[i], dkeys[i], dbias[i], qkv[i], keys[i], N, with);
    free_all();
}

// Times attention to another sequence of S positions. It has as many visible pairs as bidirectional
// attention, a row of attention().
void Rows::cross_attention() {
    Heads with = h;
    with.window = 0;
    with.alibi = false;
    with.source = S;
    const int64_t q_elements = int64_t(N) * with.q_row(), kv_elements = int64_t(N) * with.kv_row();
    auto q = arrays<Activation>(q_elements), dq = arrays<Activation>(q_elements);
    auto kv = arrays<Activation>(kv_elements), dkv = arrays<Activation>(kv_elements);
    auto y = arrays<Input>(int64_t(N) * with.width());
    auto dy = arrays<Activation>(int64_t(N) * with.width());
    auto lse = arrays<float>(int64_t(N) * h.NH, 4);
    if (!dkv[0] || !lse[0]) return bench.short_of_memory("cross_attention");
    for (int i = 0; i < SETS; i++) op.cross_attention_forward(y[i], lse[i], q[i], kv[i], B, S, with);
    ROW(cross_attention_forward, "", y[i], lse[i], q[i], kv[i], B, S, with);
    ROW(cross_attention_backward, "", dq[i], dkv[i], dy[i], y[i], q[i], kv[i], lse[i], B, S, with);
    free_all();
}

// Times every kind of linear attention with the model's heads, whatever attention the model has.
void Rows::recurrences() {
    if (h.HS > 256) return;
    const int64_t qkv_elements = int64_t(N) * h.qkv_width(), y_elements = int64_t(N) * h.width();
    auto qkv = arrays<Activation>(qkv_elements), dqkv = arrays<Activation>(qkv_elements);
    auto y = arrays<Input>(y_elements);
    auto dy = arrays<Activation>(y_elements);
    auto gates = arrays<Activation>(y_elements), dgates = arrays<Activation>(y_elements);
    auto norms = arrays<float>(int64_t(N) * h.NH), features = arrays<float>(2 * int64_t(h.HS) * h.HS);
    const int rows = std::min(8, N);
    for (auto [name, kind] : {std::pair{"elu", LinearAttention::elu},
                              {"retention", LinearAttention::retention},
                              {"gated", LinearAttention::gated},
                              {"performer", LinearAttention::performer}}) {
        const Heads with = {.NH = h.NH, .NKV = h.NKV, .HS = h.HS, .linear = kind, .features = features[0]};
        auto states = arrays<float>(rows * with.state());
        auto pos = ids(rows, 1), of = ids(rows, 1);
        if (!norms[0] || !states[0] || !of[0]) return bench.short_of_memory("linear_attention");
        std::vector<int> numbers, last(size_t(rows), c.T - 1);
        for (int i = 0; i < rows; i++) numbers.push_back(i);
        for (int* p : of) op.upload(p, numbers.data(), 4 * rows);
        for (int* p : pos) op.upload(p, last.data(), 4 * rows);
        const std::string text = std::string(", ") + name, some = formatted("%s, %d x 1 token", text.c_str(), rows);
        ROW(linear_attention_forward, text, y[i], norms[i], qkv[i], gates[i], B, S, with);
        ROW(linear_attention_backward, text, dqkv[i], dgates[i], dy[i], y[i], qkv[i], gates[i], norms[i], B, S, with);
        auto at = [&](int i) { return States{states[size_t(i)], with.state(), of[size_t(i)]}; };
        ROW(linear_attention_cached, some, y[i], at(i), qkv[i], gates[i], rows, 1, pos[i], with);
    }
    free_all();
}
