// cache.cpp - generation: the cache's pages, the model's steps over them, logits.
#include "cache.h"

#include <algorithm>

#include "base/console.h"
#include "gpt.h"
#include "rope.h"

// ---- pages ----------------------------------------------------------------------------------------------------------

void PageTable::resize(int sequences, int pages) {
    all.assign(size_t(sequences), {});
    holders.assign(size_t(pages), 0);
    unused = pages;
}
// The first that is free from `wish` on.
int PageTable::take(int wish) {
    CHECK(unused > 0, "all of the cache's %zu pages are in use", holders.size());
    size_t page = size_t(wish) % holders.size();
    while (holders[page]) page = (page + 1) % holders.size();
    holders[page] = 1, unused--;
    return int(page);
}
void PageTable::leave(int page) { unused += --holders[size_t(page)] == 0; }
void PageTable::grow(int b, int more, std::vector<Copy>& copies) {
    Sequence& s = all[size_t(b)];
    const size_t last = size_t(s.length() / Pages::SIZE);
    if (more > 0 && last < s.pages.size() && users(s.pages[last]) > 1) {
        int& page = s.pages[last];
        const int own = take(page + 1);
        changed = true;
        copies.push_back({own, page});
        leave(page);
        page = own;
    }
    s.pos += more;
    // Each sequence has a range of its own to begin with.
    const int begin = int(int64_t(holders.size()) * b / sequences());
    for (; !holders.empty() && int(s.pages.size()) < pages_for(s.length()); changed = true)
        s.pages.push_back(take(s.pages.empty() ? begin : s.pages.back() + 1));
}
void PageTable::fork(int from, int to) {
    changed = true;
    rewind(to, 0);
    Sequence& s = all[size_t(to)];
    s = all[size_t(from)];
    for (int page : s.pages) holders[size_t(page)]++;
    for (int page : s.first) holders[size_t(page)]++;
    if (states) forked.push_back({to, from});
}
void PageTable::rewind(int b, int pos) {
    changed = true;
    Sequence& s = all[size_t(b)];
    if (pos == 0) {
        for (int page : s.first) leave(page);
        s.first.clear(), s.dropped = 0;
    }
    const int kept = pos - s.dropped;
    CHECK(pos <= s.pos && kept >= Pages::SIZE * int(s.first.size()), "rewind from %d to %d", s.pos, pos);
    CHECK(pos == 0 || pos == s.pos || !states, "rewind a state from %d to %d", s.pos, pos);
    for (size_t n = size_t(pages_for(kept)); s.pages.size() > n; s.pages.pop_back()) leave(s.pages.back());
    s.pos = pos;
}
void PageTable::drop(int b, int page) {
    changed = true;
    Sequence& s = all[size_t(b)];
    leave(s.pages[size_t(page)]);
    s.pages.erase(s.pages.begin() + page);
    s.dropped += Pages::SIZE;
}
void PageTable::turn_first(int b, int n, std::vector<Copy>& copies) {
    changed = true;
    Sequence& s = all[size_t(b)];
    const bool before = !s.first.empty();
    if (!before) s.first.assign(s.pages.begin(), s.pages.begin() + n);
    for (int i = 0; i < n; i++) {
        int& page = s.pages[size_t(i)];
        if (!before) {
            page = take(page);    // what it was is held as `first`
        } else if (users(page) > 1) {
            leave(page);
            page = take(page);
        }
        copies.push_back({page, s.first[size_t(i)]});
    }
}

// ---- memory ---------------------------------------------------------------------------------------------------------

static bool has_factors(Element type) { return type == Element::fp8 || type == Element::int8; }
// A layer's part of a page: keys, values, and their factors.
static int64_t layer_bytes(const Config& c, Element type) {
    const int64_t rows = int64_t(c.NKV) * Pages::SIZE;
    return 2 * rows * (c.HS * element_bytes(type) + (has_factors(type) ? int64_t(sizeof(float)) : 0));
}
static int paged_layers(const Config& c) { return c.L - c.recurrent_before(c.L); }
int64_t page_bytes(const Config& c, Element type) { return paged_layers(c) * layer_bytes(c, type); }
// Numbers of a sequence's states.
static int64_t state_numbers(const Config& c) { return c.recurrent_before(c.L) * c.heads(0).state(); }
int64_t cache_bytes(const Config& c, Element type) {
    return pages_for(cache_positions(c)) * page_bytes(c, type) + int64_t(sizeof(float)) * state_numbers(c);
}

// A table of positions ends with the context; a stride counts positions from the first.
const char* cache_cannot_roll(const Config& c) {
    if (c.position == Position::learned || c.position == Position::sinusoidal)
        return "the model's positions are a table, which ends with its context";
    if (c.sees != Sees::causal) return "the model's prompts see all of themselves at once";
    if (c.stride) return "the model's attention has a stride";
    return nullptr;
}
int cache_positions(const Config& c) {
    int window = 0;
    for (int l = 0; l < c.L; l++) {
        const Heads h = c.heads(l);
        if (c.recurrent(l)) continue;
        if (!h.window || h.globals || cache_cannot_roll(c)) return c.T;
        window = std::max(window, h.window);
    }
    return std::min(c.T, window + LONGEST_PIECE + Pages::SIZE);
}

std::string cache_text(const Config& c) {
    std::string text;
    if (!paged_layers(c))
        return human_bytes(double(cache_bytes(c, Element::f32))) + " of states, whatever the length" +
               (cache_cannot_roll(c) ? ", which the context limits" : "");
    for (auto [type, name] :
         {std::pair{Element::f32, "fp32, "}, {Element::bf16, "bf16, "}, {Element::int8, "fp8 or int8"}})
        text += human_bytes(double(cache_bytes(c, type))) + " as " + name;
    return text + formatted(", for %d tokens", cache_positions(c));
}

Status Model::cache_allocate(Cache& cache, int sequences, int positions, const CacheKind& kind) {
    CHECK(!cache.memory && sequences > 0 && positions > 0, "the cache holds %d sequences", cache.table.sequences());
    cache.op = &op, cache.kind = kind, cache.positions = positions;
    cache.type = kind.type.value_or(op.activation);
    cache.sink_pages = kind.rolls ? pages_for(kind.sinks) : 0;
    CHECK(!kind.rolls || positions >= (cache.sink_pages + 2) * Pages::SIZE, "positions=%d", positions);
    const bool paged = paged_layers(c) > 0;
    const int width = cache.width = paged ? pages_for(positions) : 0;
    const int turned = c.rope_dims ? sequences * cache.sink_pages : 0;
    cache.pages = !paged ? 0 : kind.pages ? kind.pages : sequences * width + turned;
    cache.table.resize(sequences, cache.pages);
    cache.table.states = c.linear != Linear::none;
    const int most = plan.B * plan.S, copied = std::max(sequences, turned);    // pages at once
    const int64_t rows = paged_layers(c) * round_up(cache.pages * layer_bytes(c, cache.type), 64);
    cache.state_bytes = state_numbers(c) * element_bytes(op.gradient);    // floats, but for the reference
    const int64_t states = round_up(sequences * cache.state_bytes, 64);
    const int64_t angles = round_up(angle_bytes(c, kind.rolls ? most : positions), 64);
    const int64_t turns = round_up(angle_bytes(c, turned), 64);
    const int64_t ints = 3 * int64_t(most) + int64_t(sequences) * (width + 1) + 2 * copied;
    cache.bytes = rows + states + angles + turns + int64_t(sizeof(int)) * ints;
    cache.memory = static_cast<char*>(op.allocate(cache.bytes));
    if (!cache.memory && !paged)
        return fail(Exit::device, "out of memory: the states of %d sequences need %.2f GiB; fewer need less", sequences,
                    double(cache.bytes) / (1 << 30));
    if (!cache.memory)
        return fail(Exit::device,
                    "out of memory: the key/value cache of %d sequences of %d tokens needs %.2f GiB; fewer or shorter "
                    "ones, or --cache-dtype int8, need less",
                    sequences, positions, double(cache.bytes) / (1 << 30));
    cache.state = cache.memory + rows;
    char* at = cache.state + states;
    if (!kind.rolls) place_angles(cache.angles, reinterpret_cast<float*>(at), positions);
    else divide_angles(cache.angles, reinterpret_cast<float*>(at), most);
    divide_angles(cache.turns, reinterpret_cast<float*>(at + angles), turned);
    cache.ints = reinterpret_cast<int*>(at + angles + turns);
    cache.page_numbers = cache.ints + 3 * most;
    cache.sequences = cache.page_numbers + int64_t(sequences) * width;
    cache.copies = cache.sequences + sequences;
    return {};
}
void Cache::release_graphs() {
    for (const auto& [step, graph] : graphs) op->release_graph(graph);
    graphs.clear();
}
Cache::~Cache() {
    release_graphs();
    if (memory) op->release(memory, bytes);
}
Pages Cache::layer(const Config& c, int l) const {
    CHECK(!c.recurrent(l), "layer %d keeps a state", l);
    const int64_t rows = int64_t(pages) * c.NKV * Pages::SIZE, row = c.HS * element_bytes(type);
    char* k = memory + (l - c.recurrent_before(l)) * round_up(pages * layer_bytes(c, type), 64);
    Pages p = {type, k, k + rows * row, nullptr, nullptr, c.NKV, page_numbers, width, sums, from_start};
    if (has_factors(type)) p.k_factor = reinterpret_cast<float*>(k + 2 * rows * row), p.v_factor = p.k_factor + rows;
    return p;
}

States Cache::states(const Config& c, int l) const {
    const int64_t all = state_numbers(c), layer = c.heads(l).state();
    return {state + c.recurrent_before(l) * (state_bytes / all) * layer, all, sequences};
}

// ---- growing --------------------------------------------------------------------------------------------------------

// Gives up what finds no room beside the running sequences' next positions.
void Model::cache_roll(Cache& cache, const std::vector<int>& lengths) {
    std::vector<PageTable::Copy> turned;
    std::vector<int> dropped;    // by each turned page's sequence
    for (size_t i = 0; i < lengths.size(); i++) {
        const int b = cache.running[i], before = cache.table[b].dropped, more = lengths[i];
        while (cache.kind.rolls && cache.table[b].length() + more > cache.positions) {
            CHECK(int(cache.table[b].pages.size()) > cache.sink_pages, "%d positions at once", more);
            cache.table.drop(b, cache.sink_pages);
        }
        const PageTable::Sequence& s = cache.table[b];
        CHECK(s.length() + more <= cache.positions, "pos=%d S=%d max=%d", s.pos, more, cache.positions);
        if (s.dropped > before && c.rope_dims && cache.sink_pages) {
            cache.table.turn_first(b, cache.sink_pages, turned);
            dropped.resize(turned.size(), s.dropped);
        }
    }
    if (!turned.empty()) turn_sinks(cache, turned, dropped);
}

// The sinks' keys turn on with the positions that have been dropped, so that they count as the window's neighbours.
// They are turned from what they were at first: errors do not add up.
void Model::turn_sinks(Cache& cache, const std::vector<PageTable::Copy>& copies, const std::vector<int>& dropped) {
    upload_copies(cache, copies);
    for (int table : {0, 1})
        if (const int l = c.reader_of(table); l >= 0) upload_angles(cache.turns[table], l, dropped, 1, true);
    for (int l = 0; l < c.L; l++) {
        if (c.recurrent(l)) continue;
        Turn turn = c.turn(l);
        turn.norm = Turn::Normed::none;
        op.cache_turn(cache.layer(c, l), cache.copies, int(copies.size()), cache.turns[c.table_of(l)], c.heads(l),
                      turn);
    }
}

// Layer l's angles at S positions from each of these on. turn: without the magnitude, for keys that have it.
void Model::upload_angles(float* to, int l, const std::vector<int>& positions, int count, bool turn) {
    std::vector<float> host, last;
    for (size_t i = 0; i < positions.size(); i++) {
        if (i == 0 || positions[i] != positions[i - 1]) last = rope_angles(c, l, count, positions[i], turn);
        host.insert(host.end(), last.begin(), last.end());
    }
    op.upload(to, host.data(), int64_t(sizeof(float) * host.size()));
}

void Model::upload_copies(Cache& cache, const std::vector<PageTable::Copy>& copies) {
    std::vector<int> numbers;
    for (const PageTable::Copy& copy : copies) numbers.push_back(copy.to), numbers.push_back(copy.from);
    op.upload(cache.copies, numbers.data(), int64_t(sizeof(int) * numbers.size()));
}
void Model::copy_pages(Cache& cache, const std::vector<PageTable::Copy>& copies) {
    if (copies.empty()) return;
    upload_copies(cache, copies);
    for (int l = 0; l < c.L; l++)
        if (!c.recurrent(l))
            op.cache_turn(cache.layer(c, l), cache.copies, int(copies.size()), nullptr, c.heads(l), {});
}
void Model::copy_states(Cache& cache) {
    auto at = [&](int b) { return cache.state + b * cache.state_bytes; };
    for (const PageTable::Copy& copy : cache.table.forked) op.copy(at(copy.to), at(copy.from), cache.state_bytes);
    cache.table.forked.clear();
}

// ---- a step ---------------------------------------------------------------------------------------------------------

void Model::extend(Cache& cache, const int* from_tok, int more, const std::vector<int>& which,
                   const std::vector<int>& lengths, Pages::Sums sums, const Drawing* drawing) {
    std::vector<int> running = which;
    for (int b = 0; which.empty() && b < cache.table.sequences(); b++) running.push_back(b);
    B = int(running.size()), S = more, ends = lengths, training = false;
    ends.resize(size_t(B), S), prompt_sums = !Pages::steps(sums, S), unfinished = S > 1;
    const int N = B * S;
    CHECK(int64_t(B) * S <= int64_t(plan.B) * plan.S, "B=%d S=%d", B, S);
    const bool rebuild = cache.table.changed || running != cache.running;
    const bool as_before = S == 1 && B == int(cache.running.size());
    cache.running = std::move(running), cache.sums = sums;
    cache_roll(cache, ends);
    std::vector<int> host(size_t(2 * N)), first;
    std::vector<PageTable::Copy> copies;
    for (int i = 0; i < B; i++) {
        const int b = cache.running[size_t(i)], length = ends[size_t(i)];
        const PageTable::Sequence& s = cache.table[b];
        first.push_back(s.pos);
        for (int n = i * S, k = 0; k < S; n++, k++) {
            host[size_t(n)] = k < length ? s.length() + k : -1;
            host[size_t(N + n)] = cache.kind.rolls ? n : k < length ? s.pos + k : -1;
        }
        cache.table.grow(b, length, copies);
    }
    copy_pages(cache, copies);
    copy_states(cache);
    CHECK(from_tok || as_before, "B=%d S=%d: tokens of other sequences", B, S);
    const bool there = !from_tok && host == cache.on_device;
    cache.on_device = host;
    if (from_tok) host.insert(host.end(), from_tok, from_tok + N);
    if (!there) op.upload(cache.ints, host.data(), int64_t(sizeof(int) * host.size()));
    cache.slot = cache.ints, cache.place = cache.ints + N, cache.tok = cache.ints + 2 * N;
    if (rebuild || cache.table.changed) upload_table(cache);
    for (int table : {0, 1})
        if (const int l = c.reader_of(table); l >= 0 && cache.kind.rolls)
            upload_angles(cache.angles[table], l, first, S, false);
    // The whole prompt is the prefix.
    const bool prompt = (S > 1 || sums == Pages::Sums::prompt) &&
                        std::all_of(first.begin(), first.end(), [](int pos) { return pos == 0; });
    cache.from_start = S > 1 && prompt && prompt_sums;
    now.spans = c.sees == Sees::prefix && prompt;
    if (now.spans) {
        Spans prompts;
        for (int length : ends) {
            std::vector<Text> texts = {{0, length}};
            if (length < S) texts.push_back({length, length});
            prompts.add(texts, S, c.sees);
        }
        op.upload(keys(), prompts.keys.data(), int64_t(sizeof(Span)) * N);
        op.upload(queries(), prompts.queries.data(), int64_t(sizeof(Span)) * N);
    }
    shards.await();    // not within a recording
    run(cache, as_before, drawing);
}

void Model::upload_table(Cache& cache) {
    const int width = cache.width;
    op.upload(cache.sequences, cache.running.data(), int64_t(sizeof(int) * cache.running.size()));
    std::vector<int> host(cache.running.size() * size_t(width));
    for (size_t i = 0; i < cache.running.size(); i++)
        std::copy_n(cache.table[cache.running[i]].pages.begin(), cache.table[cache.running[i]].pages.size(),
                    host.begin() + ptrdiff_t(i) * width);
    if (!host.empty()) op.upload(cache.page_numbers, host.data(), int64_t(sizeof(int) * host.size()));
    cache.table.changed = false;
}

// The blocks, and what is drawn. A step of one token is recorded, once for each number of sequences: what it reads of
// them lies on the device. The first step in a row is not recorded, because it allocates what it needs.
void Model::run(Cache& cache, bool as_before, const Drawing* drawing) {
    if (drawing && *drawing != cache.drawing) {
        cache.drawing = *drawing, as_before = false;
        cache.release_graphs();
    }
    cache.steps = as_before && cache.drawn == (drawing != nullptr) ? cache.steps + 1 : S == 1;
    cache.drawn = drawing != nullptr;
    if (const int64_t rows = int64_t(B) * S; rows > cache.most_rows) {
        cache.most_rows = rows;    // scratch may grow, and the smaller one would stay as long as a graph holds it
        cache.release_graphs();
    }
    auto step = [&] {
        blocks(&cache);
        if (drawing) draw(cache, *drawing);
    };
    // `draw` raises the device's positions; where the cache rolls, `place` counts rows.
    for (int i = 0; drawing && i < (cache.kind.rolls ? B : 2 * B); i++) cache.on_device[size_t(i)]++;
    if (!op.record || S > 1 || now.spans || after_attention) return step();
    auto graph = cache.graphs.find({B, cache.drawn});
    if (graph == cache.graphs.end()) {
        if (cache.steps < 2) return step();
        op.record();
        step();
        graph = cache.graphs.emplace(std::pair(B, cache.drawn), op.recorded()).first;
    }
    op.replay(graph->second);
}

// ---- logits ---------------------------------------------------------------------------------------------------------

void Model::head_product(const Input* x, int rows) {
    op.linear_forward(head, x, c.tied ? w.wte : w.headw, w.headb, nullptr, rows, c.C, c.Vp(), precision());
}
void Model::draw(Cache& cache, const Drawing& d) {
    CHECK(S == 1, "S=%d", S);
    for (int n = 0; n < B; n += head_rows) {
        const int rows = std::min(head_rows, B - n);
        head_product(op.at(lnf, int64_t(n) * c.C), rows);
        op.sample(cache.tok + n, d.counts, d.at + n, cache.slot + n, cache.kind.rolls ? nullptr : cache.place + n,
                  head, d.bias, d.draw, c.logits_of(), rows, d.V, c.Vp());
    }
}
// As rows rise, each is read before it is overwritten.
template <class X> void Model::to_front(X* x, int width, const std::vector<int>& rows) {
    for (int i = 0; i < int(rows.size()); i++)
        if (rows[size_t(i)] != i)
            op.copy(op.at(x, int64_t(i) * width), op.at(x, int64_t(rows[size_t(i)]) * width), op.bytes(x, width));
}
void Model::logits(float* out, const std::vector<int>& asked) {
    const int C = c.C, V = c.V, Vp = c.Vp();
    std::vector<int> which = asked;
    for (int b = 0; b < B && asked.empty(); b++) which.push_back(b * S + ends[size_t(b)] - 1);
    const int all = int(which.size());
    if (unfinished) {
        const Activations& t = a.back();
        to_front(t.atty, c.attention_width(), which);
        to_front(t.x, C, which);
        if (c.parallel == Parallel::one) to_front(t.ln2, C, which);
    } else {
        to_front(lnf, C, which);
    }
    B = 1, S = all, ends = {all};
    if (unfinished) end_blocks(true);
    unfinished = false;
    const int64_t bytes = op.bytes(head, int64_t(std::min(head_rows, all)) * Vp);
    if (bytes > host_logits_bytes) {
        if (host_logits) op.release_host(host_logits, host_logits_bytes);
        host_logits = static_cast<char*>(op.allocate_host(bytes));
        host_logits_bytes = host_logits ? bytes : 0;
    }
    std::vector<char> pageable(host_logits ? 0 : size_t(bytes));
    char* const host = host_logits ? host_logits : pageable.data();
    for (int n = 0; n < all; n += head_rows) {
        const int rows = std::min(head_rows, all - n);
        head_product(op.at(lnf, int64_t(n) * C), rows);
        op.download(host, head, op.bytes(head, int64_t(rows) * Vp));
        for (int i = 0; i < rows; i++, out += V) {
            to_floats(out, host + op.bytes(head, int64_t(i) * Vp), op.activation, V);
            const Logits z = c.logits_of();
            for (int v = 0; v < V && (z.scale != 1 || z.cap != 0); v++)
                out[v] = z.cap != 0 ? z.cap * std::tanh(z.scale * out[v] / z.cap) : z.scale * out[v];
        }
    }
}
