#include "model/batch.h"

#include <algorithm>

static int64_t int_bytes(int64_t n) { return int64_t(sizeof(int)) * n; }

void Batch::configure(const Plan& plan, const Config& c) {
    mask = c.mask_kind;
    segments = c.segments;
    has_values = c.predicts_values();
    has_labels = c.predicts_next();
    most = plan.max_tokens();
    may_span = plan.spans || plan.cp > 1 || mask != MaskKind::causal;
    part = {plan.rank % plan.cp, plan.cp, plan.S};
    parts = KeyParts::of(c);
    globals = c.global_projections ? c.global_tokens : 0;
    window = 0;
    for (int l = 0; l < c.L; l++) window = std::max(window, c.heads(l).window);
    ring.any.assign(plan.cp > 1 ? size_t(window ? 2 * plan.cp : plan.cp) : 0, false);
    next_ring = ring;
    most_sources = c.encoder_layers ? int64_t(plan.sources) * plan.source : 0;
}

// Fills global_keys and global_queries: the first G queries attend as without a window.
void Batch::fill_globals(int* to, const Spans& spans, int B, int S) const {
    Span* const spans_of_keys = reinterpret_cast<Span*>(to);
    Span* const spans_of_queries = spans_of_keys + most;
    const int G = std::min(globals, S);
    for (int b = 0; b < B; b++) {
        for (int i = 0; i < G; i++) spans_of_keys[b * G + i] = spans.keys[size_t(b * S + i)];
        for (int n = b * S; n < (b + 1) * S; n++) {
            const Span queries = spans.queries[size_t(n)];
            spans_of_queries[n] = {std::min(queries.from, G), std::min(queries.to, G)};
        }
    }
}

// Fills source_keys and source_queries: each query attends to its whole source, and no query
// attends to the padding after a source.
void Batch::fill_source(int* to, const int* lengths, int B, int S, int source_S) const {
    Span* const spans_of_keys = reinterpret_cast<Span*>(to);
    Span* const spans_of_queries = spans_of_keys + most;
    for (int b = 0; b < B; b++) {
        const int length = lengths ? lengths[b] : source_S;
        for (int s = 0; s < S; s++) spans_of_keys[b * S + s] = {0, length};
        for (int j = 0; j < source_S; j++) spans_of_queries[b * source_S + j] = {j < length ? 0 : S, S};
    }
}

Batch::RingMask Batch::ring_mask(int source, bool windowed) const {
    const int i = (windowed ? part.ranks : 0) + source;
    const Span* keys = reinterpret_cast<const Span*>(tok() + masks_at()) + int64_t(i) * 2 * most;
    return {keys, keys + most, ring.any[size_t(i)]};
}

void Batch::fill_ring(int* to, const int* from_tok, const int* from_target, int B, const Spans* whole) {
    if (from_tok) part.cut(to, from_tok, B);
    if (from_target) part.cut(to + most, from_target, B);
    for (int n = 0; n < B * part.S; n++) {
        const int position = part.position(n % part.S), row = n / part.S * part.whole_S();
        to[6 * most + n] = position - (whole ? whole->keys[size_t(row + position)].from : 0);
    }
    Span* keys = reinterpret_cast<Span*>(to + masks_at());
    for (size_t i = 0; i < next_ring.any.size(); i++, keys += 2 * most)
        next_ring.any[i] =
            part.mask(keys, keys + most, int(i) % part.ranks, whole, int(i) < part.ranks ? 0 : window, B);
    next_ring.documents = whole != nullptr;
}

void Batch::upload(const int* from_tok, const int* from_target, int B, int S, const Spans* spans,
                   const int* source_lengths, int source_S) {
    const bool in_ring = part.ranks > 1;
    CHECK(!in_ring || S == part.whole_S(), "S=%d of %d ranks with %d positions each", S, part.ranks, part.S);
    const int64_t all = int64_t(B) * S, N = all / part.ranks;
    CHECK(N > 0 && N <= most && S <= part.whole_S(), "B=%d S=%d", B, S);
    Spans whole;
    for (int b = 0; b < B && !spans && mask == MaskKind::all; b++) whole.add({Text{}}, S, mask);
    if (!spans && !whole.keys.empty()) spans = &whole;
    CHECK(!spans || (may_span && int64_t(spans->keys.size()) == all), "spans of %zu", spans->keys.size());
    next = {B, S / part.ranks, N, spans && !in_ring, spans || in_ring};
    CHECK(!most_sources || (source_S > 0 && int64_t(B) * source_S <= most_sources), "sources of %d", source_S);
    whole_upload = spans || in_ring || segments || most_sources;
    const int64_t count = whole_upload ? ints() : from_target || !from_tok ? most + N : N;
    if (from_tok || whole_upload) {
        host.resize(size_t(ints()));
        const auto to = host.begin();
        if (in_ring) fill_ring(host.data(), from_tok, from_target, B, spans);
        if (from_tok && !in_ring) std::copy_n(from_tok, N, to);
        if (from_target && !in_ring) std::copy_n(from_target, N, to + most);
        if (from_target)
            next.targets =
                std::count_if(to + most, to + most + N, [&](int t) { return has_values ? t != NO_VALUE : t >= 0; });
        if (next.spans) {
            std::copy_n(spans->keys.begin(), N, reinterpret_cast<Span*>(&to[2 * most]));
            std::copy_n(spans->queries.begin(), N, reinterpret_cast<Span*>(&to[4 * most]));
            for (int n = 0; n < int(N); n++) to[6 * most + n] = n % S - spans->keys[size_t(n)].from;
            parts.fill(&host[size_t(parts_at())], most, *spans, B, S);
            if (globals) fill_globals(&host[size_t(globals_at())], *spans, B, S);
        }
        for (int64_t n = 0; n < N && segments; n++)
            to[(may_span ? 7 : 2) * most + n] = spans ? std::min(spans->segments[size_t(n)], segments - 1) : 0;
        for (int64_t n = 0; n < N && has_labels; n++) to[label() - tok() + n] = spans->labels[size_t(n)];
        if (most_sources) fill_source(&host[size_t(source_at())], source_lengths, B, S, source_S);
    }
    op.upload_async(staged, host.data(), int_bytes(count));
}

Batch::Sizes Batch::use_uploaded() {
    CHECK(next.B > 0, "no batch was uploaded");
    op.use_uploaded(input, staged, int_bytes(whole_upload ? ints() : 2 * most));
    std::swap(ring, next_ring);
    return std::exchange(next, {});
}

// ---- masks --------------------------------------------------------------------------------------

void Spans::add(const std::vector<Text>& texts, int S, MaskKind mask_kind) {
    CHECK(!texts.empty() && texts[0].from == 0, "%zu texts", texts.size());
    for (size_t i = 0; i < texts.size(); i++) {
        const int from = texts[i].from, to = i + 1 < texts.size() ? texts[i + 1].from : S;
        CHECK(from < to && to <= S, "a text at %d..%d of %d", from, to, S);
        // In this text, a position before `whole` attends to all positions before `whole`, and a
        // later one to those up to its own.
        const int whole = mask_kind == MaskKind::all      ? to
                          : mask_kind == MaskKind::prefix ? std::min(texts[i].prefix, to)
                                                          : from;
        for (int s = from; s < to; s++) {
            keys.push_back({from, std::max(s + 1, whole)});
            queries.push_back({s < whole ? from : s, to});
            labels.push_back(s == from ? texts[i].label : -1);
            segments.push_back(texts[i].second > 0 && s >= texts[i].second);
        }
    }
}
