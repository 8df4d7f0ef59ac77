// kv_cache.cpp - the key/value cache: pages, memory, growth.
#include "model/kv_cache.h"

#include <algorithm>

#include "base/console.h"
#include "model/position_tables.h"

// ---- pages --------------------------------------------------------------------------------------

void PageTable::resize(int sequences, int pages) {
    all.assign(size_t(sequences), {});
    ref_counts.assign(size_t(pages), 0);
    free_pages = pages;
}
// Takes the first free page, searching from `preferred` on.
int PageTable::allocate_page(int preferred) {
    CHECK(free_pages > 0, "all of the cache's %zu pages are in use", ref_counts.size());
    size_t page = size_t(preferred) % ref_counts.size();
    while (ref_counts[page]) page = (page + 1) % ref_counts.size();
    ref_counts[page] = 1, free_pages--;
    return int(page);
}
void PageTable::release_page(int page) { free_pages += --ref_counts[size_t(page)] == 0; }
void PageTable::grow(int b, int more, std::vector<Copy>& copies) {
    Sequence& s = all[size_t(b)];
    const size_t last = size_t(s.length() / Pages::SIZE);
    if (more > 0 && last < s.pages.size() && ref_count(s.pages[last]) > 1) {
        int& page = s.pages[last];
        const int own = allocate_page(page + 1);
        changed = true;
        copies.push_back({own, page});
        release_page(page);
        page = own;
    }
    s.pos += more;
    // Each sequence begins its search for free pages at another page, so that its pages are
    // consecutive as far as possible.
    const int begin = int(int64_t(ref_counts.size()) * b / sequences());
    for (; !ref_counts.empty() && int(s.pages.size()) < pages_for(s.length()); changed = true)
        s.pages.push_back(allocate_page(s.pages.empty() ? begin : s.pages.back() + 1));
}
void PageTable::fork(int from, int to) {
    changed = true;
    rewind(to, 0);
    Sequence& s = all[size_t(to)];
    s = all[size_t(from)];
    for (int page : s.pages) ref_counts[size_t(page)]++;
    for (int page : s.first) ref_counts[size_t(page)]++;
    if (states || history) forked.push_back({to, from});
}
void PageTable::rewind(int b, int pos) {
    changed = true;
    Sequence& s = all[size_t(b)];
    if (pos == 0) {
        for (int page : s.first) release_page(page);
        s.first.clear();
        s.evicted = 0;
    }
    const int kept = pos - s.evicted;
    CHECK(pos <= s.pos && kept >= Pages::SIZE * int(s.first.size()), "rewind from %d to %d", s.pos, pos);
    CHECK(pos == 0 || pos == s.pos || !states, "rewind a state from %d to %d", s.pos, pos);
    for (size_t n = size_t(pages_for(kept)); s.pages.size() > n; s.pages.pop_back()) release_page(s.pages.back());
    s.pos = pos;
}
void PageTable::evict(int b, int page) {
    changed = true;
    Sequence& s = all[size_t(b)];
    release_page(s.pages[size_t(page)]);
    s.pages.erase(s.pages.begin() + page);
    s.evicted += Pages::SIZE;
}
void PageTable::copy_sinks(int b, int n, std::vector<Copy>& copies) {
    changed = true;
    Sequence& s = all[size_t(b)];
    const bool before = !s.first.empty();
    if (!before) s.first.assign(s.pages.begin(), s.pages.begin() + n);
    for (int i = 0; i < n; i++) {
        int& page = s.pages[size_t(i)];
        if (!before) {
            page = allocate_page(page);    // the unrotated page stays in `first`
        } else if (ref_count(page) > 1) {
            release_page(page);
            page = allocate_page(page);
        }
        copies.push_back({page, s.first[size_t(i)]});
    }
}

// ---- memory -------------------------------------------------------------------------------------

static bool has_scales(Element type) { return type == Element::fp8 || type == Element::int8; }
// Bytes of one layer of a page: keys, values, and their scales.
static int64_t layer_bytes(const Config& c, Element type) {
    const int64_t rows = int64_t(c.NKV) * Pages::SIZE;
    return 2 * rows * (c.HS * element_bytes(type) + (has_scales(type) ? int64_t(sizeof(float)) : 0));
}
static int paged_layers(const Config& c) { return c.L - c.recurrent_layers_below(c.L); }
int64_t page_bytes(const Config& c, Element type) { return paged_layers(c) * layer_bytes(c, type); }
// Number of elements in one sequence's states, in all layers with linear attention.
static int64_t state_numbers(const Config& c) { return c.recurrent_layers_below(c.L) * c.heads(0).state(); }
int64_t cache_bytes(const Config& c, Element type) {
    const int64_t tokens = c.smear ? cache_positions(c) : 0;
    return pages_for(cache_positions(c)) * page_bytes(c, type) + int64_t(sizeof(float)) * (state_numbers(c) + tokens);
}

// An evicting cache lets sequences grow beyond the context, where a table of positions ends. A
// stride selects keys by position, and eviction changes positions.
const char* why_no_eviction(const Config& c) {
    if (c.position == Position::learned || c.position == Position::sinusoidal)
        return "the model's positions are a table, which ends with its context";
    if (c.mask_kind != MaskKind::causal) return "the model's prompts have bidirectional attention";
    if (c.stride) return "the model's attention has a stride";
    if (c.smear) return "the model's embeddings depend on the token before, which the cache finds by position";
    return nullptr;
}
int cache_positions(const Config& c) {
    int window = 0;
    for (int l = 0; l < c.L; l++) {
        const Heads h = c.heads(l);
        if (c.recurrent(l)) continue;
        if (!h.window || h.global_tokens || why_no_eviction(c)) return c.T;
        window = std::max(window, h.window);
    }
    return std::min(c.T, window + MAX_CHUNK + Pages::SIZE);
}

std::string cache_text(const Config& c) {
    std::string text;
    if (!paged_layers(c))
        return human_bytes(double(cache_bytes(c, Element::f32))) + " of states" +
               (c.smear ? " and tokens" : ", whatever the length") +
               (why_no_eviction(c) ? ", which the context limits" : "");
    for (auto [type, name] :
         {std::pair{Element::f32, "fp32, "}, {Element::bf16, "bf16, "}, {Element::int8, "fp8 or int8"}})
        text += human_bytes(double(cache_bytes(c, type))) + " as " + name;
    return text + formatted(", for %d tokens", cache_positions(c));
}

Status KvCache::allocate(const Table& table_op, const Config& config, int most, int count, int most_positions,
                         const CacheOptions& options) {
    CHECK(!memory && count > 0 && most_positions > 0, "the cache holds %d sequences", table.sequences());
    op = &table_op;
    c = config;
    kind = options;
    positions = most_positions;
    type = kind.type.value_or(op->activation);
    sink_pages = kind.evicts ? pages_for(kind.sinks) : 0;
    CHECK(!kind.evicts || positions >= (sink_pages + 2) * Pages::SIZE, "positions=%d", positions);
    const bool paged = paged_layers(c) > 0;
    width = paged ? pages_for(positions) : 0;
    const int rotated = c.rope_dims ? count * sink_pages : 0;
    pages = !paged ? 0 : kind.pages ? kind.pages : count * width + rotated;
    table.resize(count, pages);
    table.states = c.linear != LinearAttention::none;
    table.history = c.smear;
    const int copied = std::max(count, rotated);    // most pages that one call copies
    const int64_t row_bytes = paged_layers(c) * round_up(pages * layer_bytes(c, type), 64);
    state_bytes = state_numbers(c) * element_bytes(op->gradient);    // float; double in the reference
    const int64_t states_bytes = round_up(count * state_bytes, 64);
    const int64_t cos_sin_size = round_up(cos_sin_bytes(c, kind.evicts ? most : positions), 64);
    const int64_t sink_cos_sin_size = round_up(cos_sin_bytes(c, rotated), 64);
    const int64_t history_ints = c.smear ? int64_t(count) * positions + most : 0;
    const int64_t all_ints = 3 * int64_t(most) + int64_t(count) * (width + 1) + 2 * copied + history_ints;
    bytes = row_bytes + states_bytes + cos_sin_size + sink_cos_sin_size + int64_t(sizeof(int)) * all_ints;
    memory = static_cast<char*>(op->allocate(bytes));
    if (!memory && !paged)
        return fail(Exit::device, "out of memory: the states of %d sequences need %.2f GiB; fewer need less", count,
                    double(bytes) / (1 << 30));
    if (!memory)
        return fail(Exit::device,
                    "out of memory: the key/value cache of %d sequences of %d tokens needs %.2f GiB; fewer or shorter "
                    "ones, or --cache-dtype int8, need less",
                    count, positions, double(bytes) / (1 << 30));
    state = memory + row_bytes;
    float* at = reinterpret_cast<float*>(state + states_bytes);
    if (!kind.evicts) fill_cos_sin(*op, c, cos_sin, at, {0}, positions);
    else split_cos_sin(c, cos_sin, at, most);
    split_cos_sin(c, sink_cos_sin, at + cos_sin_size / 4, rotated);
    ints = reinterpret_cast<int*>(state + states_bytes + cos_sin_size + sink_cos_sin_size);
    page_numbers = ints + 3 * most;
    sequences = page_numbers + int64_t(count) * width;
    copies = sequences + count;
    if (c.smear) previous = copies + 2 * copied, history = previous + most;
    return allocate_sources(most, count);
}
Status KvCache::allocate_sources(int most, int count) {
    if (!c.encoder_layers) return {};
    CHECK(kind.source > 0 && kind.sources > 0, "an encoder-decoder's cache without a source");
    const int own = pages_for(kind.source);
    source.positions = own * Pages::SIZE;
    source.of.assign(size_t(count), -1);
    source.lengths.assign(size_t(kind.sources), 0);
    const int64_t layer_size =
        round_up(2 * int64_t(kind.sources) * source.positions * c.NKV * c.HS * element_bytes(op->activation), 128);
    const int64_t all_ints = int64_t(count) * own + most + source.positions;
    source_bytes = c.L * layer_size + int64_t(sizeof(int)) * all_ints;
    source.memory = static_cast<char*>(op->allocate(source_bytes));
    if (!source.memory)
        return fail(Exit::device, "out of memory: keys and values of %d sources of %d tokens need %.2f GiB",
                    kind.sources, kind.source, double(source_bytes) / (1 << 30));
    source.table = reinterpret_cast<int*>(source.memory + c.L * layer_size);
    source.last = source.table + int64_t(count) * own;
    source.pos = source.last + most;
    for (int l = 0; l < c.L; l++) {
        char* const k = source.memory + l * layer_size;
        source.layers.push_back({op->activation, k, k + layer_size / 2, nullptr, nullptr, c.NKV, source.table, own});
    }
    std::vector<int> positions_up(static_cast<size_t>(source.positions));
    for (size_t i = 0; i < positions_up.size(); i++) positions_up[i] = int(i);
    op->upload(source.pos, positions_up.data(), int64_t(sizeof(int) * positions_up.size()));
    return {};
}
void KvCache::begin_source(int seq, int length) {
    CHECK(length > 0 && length <= source.positions, "a source of %d", length);
    // A place is free if there are as many sources as sequences, or all sequences share one.
    source.of[size_t(seq)] = -1;
    int free = 0;
    while (std::count(source.of.begin(), source.of.end(), free)) free++;
    CHECK(free < kind.sources, "%d sources", kind.sources);
    source.of[size_t(seq)] = free;
    source.lengths[size_t(free)] = length;
    source.uploaded_S = 0;
    const int own = source.positions / Pages::SIZE;
    std::vector<int> rows(static_cast<size_t>(own));
    for (int i = 0; i < own; i++) rows[size_t(i)] = free * own + i;
    op->upload(source.table, rows.data(), int64_t(sizeof(int) * rows.size()));
}
void KvCache::share_source(int seq, int other) {
    if (!c.encoder_layers) return;
    source.of[size_t(seq)] = source.of[size_t(other)];
    source.uploaded_S = 0;
}
void KvCache::upload_sources(int S) {
    const int own = source.positions / Pages::SIZE;
    std::vector<int> rows, last;
    for (int seq : running) {
        const int own_source = source.of[size_t(seq)];
        CHECK(own_source >= 0, "sequence %d has no source", seq);
        for (int i = 0; i < own; i++) rows.push_back(own_source * own + i);
        last.insert(last.end(), size_t(S), source.lengths[size_t(own_source)] - 1);
    }
    op->upload(source.table, rows.data(), int64_t(sizeof(int) * rows.size()));
    op->upload(source.last, last.data(), int64_t(sizeof(int) * last.size()));
    source.uploaded_S = S;
}
void KvCache::release_graphs() {
    for (const auto& [step, graph] : graphs) op->release_graph(graph);
    graphs.clear();
}
KvCache::~KvCache() {
    release_graphs();
    if (memory) op->release(memory, bytes);
    if (source.memory) op->release(source.memory, source_bytes);
}
Pages KvCache::layer(int l) const {
    CHECK(!c.recurrent(l), "layer %d keeps a state", l);
    const int64_t rows = int64_t(pages) * c.NKV * Pages::SIZE, row = c.HS * element_bytes(type);
    char* k = memory + (l - c.recurrent_layers_below(l)) * round_up(pages * layer_bytes(c, type), 64);
    Pages p = {type, k, k + rows * row, nullptr, nullptr, c.NKV, page_numbers, width, sum_order, from_start};
    if (has_scales(type)) {
        p.k_scale = reinterpret_cast<float*>(k + 2 * rows * row);
        p.v_scale = p.k_scale + rows;
    }
    return p;
}

States KvCache::states(int l) const {
    const int64_t all = state_numbers(c), layer = c.heads(l).state();
    return {state + c.recurrent_layers_below(l) * (state_bytes / all) * layer, all, sequences};
}

// ---- growing ------------------------------------------------------------------------------------

// Evicts the oldest pages of running sequences that would outgrow the cache.
void KvCache::evict_pages(const std::vector<int>& lengths) {
    std::vector<PageTable::Copy> rotated;
    std::vector<int> evicted;    // number of evicted positions, by rotated page
    for (size_t i = 0; i < lengths.size(); i++) {
        const int b = running[i], before = table[b].evicted, more = lengths[i];
        while (kind.evicts && table[b].length() + more > positions) {
            CHECK(int(table[b].pages.size()) > sink_pages, "%d positions at once", more);
            table.evict(b, sink_pages);
        }
        const PageTable::Sequence& s = table[b];
        CHECK(s.length() + more <= positions, "pos=%d S=%d max=%d", s.pos, more, positions);
        if (s.evicted > before && c.rope_dims && sink_pages) {
            table.copy_sinks(b, sink_pages, rotated);
            evicted.resize(rotated.size(), s.evicted);
        }
    }
    if (!rotated.empty()) rotate_sinks(rotated, evicted);
}

// Rotates the sinks' keys by the number of evicted positions, so that they directly precede the
// window. Each rotation starts from the original keys, so that rounding errors do not add up.
void KvCache::rotate_sinks(const std::vector<PageTable::Copy>& rotated, const std::vector<int>& evicted) {
    upload_copies(rotated);
    for (int i : {0, 1})
        if (const int l = c.layer_of_rope_table(i); l >= 0)
            upload_cos_sin(*op, c, sink_cos_sin[i], l, evicted, 1, true);
    for (int l = 0; l < c.L; l++) {
        if (c.recurrent(l)) continue;
        QkNormRope rope = c.rope(l);
        rope.norm = QkNormRope::QkNorm::none;
        op->cache_rotate(layer(l), copies, int(rotated.size()), sink_cos_sin[c.rope_table_of(l)], c.heads(l), rope);
    }
}

void KvCache::upload_copies(const std::vector<PageTable::Copy>& pairs) {
    std::vector<int> numbers;
    for (const PageTable::Copy& copy : pairs) numbers.push_back(copy.to), numbers.push_back(copy.from);
    op->upload(copies, numbers.data(), int64_t(sizeof(int) * numbers.size()));
}
void KvCache::copy_pages(const std::vector<PageTable::Copy>& pairs) {
    if (pairs.empty()) return;
    upload_copies(pairs);
    for (int l = 0; l < c.L; l++)
        if (!c.recurrent(l)) op->cache_rotate(layer(l), copies, int(pairs.size()), nullptr, c.heads(l), {});
}
void KvCache::copy_forked() {
    auto copy_row = [&](char* all, int64_t bytes_of_one, const PageTable::Copy& copy) {
        op->copy(all + copy.to * bytes_of_one, all + copy.from * bytes_of_one, bytes_of_one);
    };
    for (const PageTable::Copy& copy : table.forked) {
        if (state_bytes) copy_row(state, state_bytes, copy);
        if (history) copy_row(reinterpret_cast<char*>(history), int64_t(sizeof(int)) * positions, copy);
    }
    table.forked.clear();
}

// ---- a call -------------------------------------------------------------------------------------

std::vector<int> KvCache::grow(const int* from_tok, int S, std::vector<int> which, const std::vector<int>& lengths) {
    const int B = int(which.size()), N = B * S;
    CHECK(from_tok || (S == 1 && B == int(running.size())), "B=%d S=%d: tokens of other sequences", B, S);
    const bool rebuild = table.changed || which != running;
    running = std::move(which);
    evict_pages(lengths);
    std::vector<int> host(size_t(2 * N)), first;
    std::vector<PageTable::Copy> copied;
    for (int i = 0; i < B; i++) {
        const int b = running[size_t(i)], length = lengths[size_t(i)];
        const PageTable::Sequence& s = table[b];
        first.push_back(s.pos);
        for (int n = i * S, k = 0; k < S; n++, k++) {
            host[size_t(n)] = k < length ? s.length() + k : -1;
            host[size_t(N + n)] = kind.evicts ? n : k < length ? s.pos + k : -1;
        }
        table.grow(b, length, copied);
    }
    copy_pages(copied);
    copy_forked();
    const bool there = !from_tok && host == on_device;
    on_device = host;
    if (from_tok) host.insert(host.end(), from_tok, from_tok + N);
    if (!there) op->upload(ints, host.data(), int64_t(sizeof(int) * host.size()));
    cache_pos = ints;
    pos = ints + N;
    tok = ints + 2 * N;
    if (c.encoder_layers && (rebuild || source.uploaded_S != S)) upload_sources(S);
    if (rebuild || table.changed) upload_table();
    for (int i : {0, 1})
        if (const int l = c.layer_of_rope_table(i); l >= 0 && kind.evicts)
            upload_cos_sin(*op, c, cos_sin[i], l, first, S, false);
    return first;
}

void KvCache::upload_table() {
    op->upload(sequences, running.data(), int64_t(sizeof(int) * running.size()));
    std::vector<int> host(running.size() * size_t(width));
    for (size_t i = 0; i < running.size(); i++)
        std::copy_n(table[running[i]].pages.begin(), table[running[i]].pages.size(),
                    host.begin() + ptrdiff_t(i) * width);
    if (!host.empty()) op->upload(page_numbers, host.data(), int64_t(sizeof(int) * host.size()));
    table.changed = false;
}
