// attention_maps.cpp - see attention_maps.h.
#include "attention_maps.h"

#include <algorithm>

#include "base/pool.h"
#include "data/loader.h"
#include "layers/reference/reference.h"

const char* why_no_map(const Config& c, int l) {
    if (c.recurrent(l)) return "it has no softmax (--linear-attention)";
    if (c.projects_globals(l)) return "its global tokens have projections of their own (--global-projections)";
    return c.has_key_parts(l) ? "its window has gaps or random blocks (--dilation, --random-blocks)" : nullptr;
}
int layers_with_map(const Config& c) {
    int n = 0;
    for (int l = 0; l < c.L; l++) n += !why_no_map(c, l);
    return n;
}

namespace {
// Copies n elements of any type from device memory, as doubles.
template <class X> std::vector<double> downloaded(const Model& model, const X* from, int64_t n) {
    std::vector<char> raw(size_t(model.op.bytes(from, n)));
    model.op.download(raw.data(), from, int64_t(raw.size()));
    std::vector<double> out(static_cast<size_t>(n));
    if (model.op.element(from) == Element::f64) {
        memcpy(out.data(), raw.data(), raw.size());
    } else {
        std::vector<float> floats(out.size());
        to_floats(floats.data(), raw.data(), model.op.element(from), n);
        std::copy(floats.begin(), floats.end(), out.begin());
    }
    return out;
}
}    // namespace

int maps_that_fit(int S, int most, int64_t bytes) {
    return int(std::clamp<int64_t>(bytes / (int64_t(sizeof(double)) * S * S), 0, most));
}

void attention_maps(Model& model, const std::vector<int>& tokens, int prefix, const std::vector<HeadIndex>& heads,
                    const EachMap& each, const std::function<void()>& after, int64_t bytes) {
    const int S = int(tokens.size()), threads = maps_that_fit(S, pool_threads(), bytes);
    CHECK(threads > 0, "a map of %d positions takes more than %lld bytes", S, (long long)bytes);
    Spans spans;
    if (model.c.mask_kind != MaskKind::causal) spans.add({Text{0, prefix}}, S, model.c.mask_kind);
    std::vector<double> bias;
    model.after_attention = [&](int l) {
        std::vector<size_t> mine;
        for (size_t i = 0; i < heads.size(); i++)
            if (heads[i].layer == l) mine.push_back(i);
        Heads h = model.c.heads(l);
        std::vector<double> qkv;
        if (!mine.empty()) qkv = downloaded(model, model.a[size_t(l)].qkv_rot, int64_t(S) * h.qkv_width());
        if (model.bias && (bias.empty() || h.bias_step))
            bias = downloaded(model, model.bias, int64_t(h.NH) * h.distances() * (h.bias_step ? S : 1));
        if (model.bias) h.bias = reinterpret_cast<const float*>(bias.data());
        if (!spans.keys.empty()) h.keys = spans.keys.data(), h.queries = spans.queries.data();
        const size_t at_once = std::min(size_t(threads), mine.size());
        each_chunk(int64_t(at_once), [&](int64_t chunk, int) {    // each with one map at a time
            std::vector<double> p(size_t(S) * size_t(S));
            std::vector<int> visible(static_cast<size_t>(S));
            for (size_t k = size_t(chunk); k < mine.size(); k += at_once) {
                reference::probabilities(p.data(), visible.data(), qkv.data(), S, h, heads[mine[k]].head);
                each(mine[k], p.data(), visible.data());
            }
        });
        if (after) after();
    };
    model.batch.upload(tokens.data(), nullptr, 1, S, spans.keys.empty() ? nullptr : &spans);
    model.forward();
    model.after_attention = nullptr;
}

void HeadSums::add(const double* p, const int* visible, int S) {
    for (int i = 0; i < S; i++) {
        const double* row = p + int64_t(i) * S;
        for (int j = 0; j < S; j++) {
            if (row[j] != 0) entropy -= row[j] * std::log(row[j]);
            distance += row[j] * std::abs(i - j);
        }
        most += std::log(double(visible[i])), queries++;
        if (i > 0) previous += row[i - 1], first += row[0], later++;
    }
}
void HeadSums::add_induction(const double* p, int S, int before, int length) {
    for (int k = 0; k < length; k++) induction += p[int64_t(before + length + k) * S + before + k + 1];
    repeats += length;
}
HeadScores HeadSums::scores() const {
    auto mean = [](double sum, int64_t n) { return n ? HeadScores::Score(sum / double(n)) : std::nullopt; };
    HeadScores s = {mean(entropy, queries),  {}, mean(distance, queries), mean(previous, later), mean(first, later),
                    mean(induction, repeats)};
    if (queries) s.relative = most > 0 ? entropy / most : 0;
    return s;
}

Repeated repeated_tokens(const std::vector<int>& choices, const std::vector<int>& begin, int most, uint64_t seed,
                         uint64_t number) {
    const int before = int(begin.size()), kinds = int(choices.size());
    Repeated r{begin, before, std::min({REPEATED_HALF, (most - before) / 2, kinds})};
    for (int k = 0; k < 2 * r.length; k++)
        r.tokens.push_back(choices[size_t(shuffled(seed, int64_t(number), kinds, k % r.length))]);
    return r;
}

SmallMap small_map(const double* p, int S, int most) {
    const int bin = std::max(1, int(ceil_div(S, most))), n = int(ceil_div(S, bin));
    SmallMap map{n, bin, std::vector<double>(size_t(n) * size_t(n))};
    for (int i = 0; i < S; i++)
        for (int j = 0; j < S; j++)
            map.values[size_t(i / bin) * size_t(n) + size_t(j / bin)] += p[int64_t(i) * S + j] /
                                                                         std::min(bin, S - i / bin * bin);
    return map;
}
