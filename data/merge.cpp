// merge.cpp - see merge.h.
#include "merge.h"

#include <algorithm>
#include <functional>

#include "base/console.h"

namespace {
constexpr size_t SHORT = 48;    // symbols of the longest piece merged in an array

// Hash table size for open addressing: at most half of the slots are used.
size_t slots_for(size_t entries) {
    size_t n = 16;
    while (n < 2 * entries) n *= 2;
    return n;
}
int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }
}    // namespace

bool is_byte_token(std::string_view name) {
    return name.size() == 6 && name.starts_with("<0x") && hex_digit(name[3]) >= 0 && hex_digit(name[4]) >= 0 &&
           name[5] == '>';
}

char byte_of_token(std::string_view name) { return char(16 * hex_digit(name[3]) + hex_digit(name[4])); }

PairTable::PairTable(const std::vector<Merge>& merges) : slots(slots_for(merges.size())), mask(slots.size() - 1) {
    for (size_t i = 0; i < merges.size(); i++) {    // the last of equal pairs counts, as in Hugging Face
        Slot& s = slots[bucket(uint32_t(merges[i].left), uint32_t(merges[i].right))];
        s = {uint32_t(merges[i].left), uint32_t(merges[i].right), uint32_t(i)};
    }
}

TextTable::TextTable(size_t entries) : slots(slots_for(entries)), mask(slots.size() - 1) {}
void TextTable::add(std::string_view text, int id) {
    if (text.size() <= PieceKey::LONGEST) {
        PieceKey k = key_of(text);
        slots[bucket(k)] = {k, id};
    } else {
        longer.emplace(text, id);
    }
}
PieceMerger::PieceMerger(const Vocabulary& vocabulary)
    : v(vocabulary), model(model_row(v.model).make ? model_row(v.model).make(v) : nullptr), pairs(v.merges),
      character(v.symbols == Symbols::characters ? v.tokens.size() : 0), whole(v.tokens.size()),
      byte_ranks(v.symbols == Symbols::bytes ? 1 << 16 : 0), beside(v.symbols == Symbols::characters ? 1 << 16 : 0),
      outside(v.tokens.size()) {
    if (model) return;
    for (const AddedToken& a : v.added) outside[size_t(a.id)] = !a.in_model;
    read_symbols();
    for (const Merge& m : v.merges)
        CHECK(v.tokens[size_t(m.id)] == v.tokens[size_t(m.left)] + v.tokens[size_t(m.right)], "token %d", m.id);
    if (v.symbols == Symbols::characters) find_words();
    for (size_t pair = 0; pair < byte_ranks.size(); pair++)
        byte_ranks[pair] = pairs.rank(byte_id[pair >> 8], byte_id[pair & 255]);
    std::vector<int> ids;
    for (size_t id = 0; id < v.tokens.size(); id++) {
        if (v.tokens[id].empty() || outside[id]) continue;
        ids.clear();
        if (!v.ignore_merges) merge(v.tokens[id], ids);
        if (v.ignore_merges || (ids.size() == 1 && ids[0] == int(id))) whole.add(v.tokens[id], int(id));
    }
}

void PieceMerger::read_symbols() {
    byte_id.fill(-1);
    ascii.fill(-1);
    for (size_t id = 0; id < v.tokens.size(); id++) {
        const std::string& token = v.tokens[id];
        if (token.empty() || outside[id]) continue;
        if (v.symbols == Symbols::bytes) {
            if (token.size() == 1) byte_id[static_cast<unsigned char>(token[0])] = int(id);
            continue;
        }
        bool complete = false;
        const bool one = utf8_character(token, complete) == token.size() && complete;
        if (one && token.size() == 1) ascii[size_t(token[0])] = int(id);
        if (one) character.add(token, int(id));
        if (is_byte_token(token)) byte_id[static_cast<unsigned char>(byte_of_token(token))] = int(id);
    }
}

void PieceMerger::find_words() {
    marks = character.find(SPACE_MARK) >= 0;
    const bool all_bytes = v.byte_fallback && std::count(byte_id.begin(), byte_id.end(), -1) == 0;
    words = all_bytes || v.unknown < 0 || (!v.fuse_unknown && !v.byte_fallback);
    for (const Merge& m : v.merges) {
        const std::string& token = v.tokens[size_t(m.id)];
        for (size_t at = 1; at < token.size(); at++) {
            const auto a = static_cast<unsigned char>(token[at - 1]), b = static_cast<unsigned char>(token[at]);
            if ((b & 0xC0) != 0x80) beside[size_t(a << 8 | b)] = 1;
            const bool mark = std::string_view(token).substr(at).starts_with(SPACE_MARK);
            if (mark && !std::string_view(token).substr(0, at).ends_with(SPACE_MARK)) joined.set(a);
        }
    }
    if (all_bytes || v.unknown >= 0) return;
    // Without byte tokens and an unknown token, a character that has no token is dropped, so its
    // neighbours may merge. Only ASCII characters are known here to have tokens, so no cut is
    // allowed beside another one.
    for (size_t a = 0; a < 256; a++)
        for (size_t b = 0; b < 256; b++) {
            const bool kept = a < 128 && b < 128 && ascii[a] >= 0 && ascii[b] >= 0;
            if (!kept) beside[a << 8 | b] = 1;
            if (a >= 128 || ascii[a] < 0) joined.set(a);
        }
}

size_t PieceMerger::word(std::string_view text) const {
    for (size_t at = 1; words && at < text.size(); at++) {
        const auto a = static_cast<unsigned char>(text[at - 1]), b = static_cast<unsigned char>(text[at]);
        if ((b & 0xC0) == 0x80) continue;
        if (!beside[size_t(a << 8 | b)]) return at;
        const bool mark = b == static_cast<unsigned char>(SPACE_MARK[0]) && text.substr(at).starts_with(SPACE_MARK);
        if (mark && mark_ends(a) && !text.substr(0, at).ends_with(SPACE_MARK)) return at;
    }
    return text.size();
}

// Hugging Face's library does not emit the unknown token at once, but before the next character
// with a token, or at the end. Byte tokens of characters in between come first. This function keeps
// that order of ids.
void PieceMerger::symbols(std::string_view piece, std::vector<int>& out) const {
    bool waiting = false;
    auto known = [&](int id) {
        if (waiting) out.push_back(v.unknown);
        waiting = false;
        out.push_back(id);
    };
    auto unknown = [&] {
        if (waiting && !v.fuse_unknown) out.push_back(v.unknown);
        waiting = v.unknown >= 0;
    };
    for (size_t i = 0, n = 1; i < piece.size(); i += n) {
        bool complete = true;
        const auto first = static_cast<unsigned char>(piece[i]);
        if (v.symbols == Symbols::bytes) {
            byte_id[first] >= 0 ? known(byte_id[first]) : unknown();
            continue;
        }
        n = first < 0x80 ? 1 : utf8_character(piece.substr(i), complete);
        const int id = first < 0x80 ? ascii[first] : complete ? character.find(piece.substr(i, n)) : -1;
        bool bytes = v.byte_fallback;
        for (size_t k = 0; k < n; k++) bytes &= byte_id[static_cast<unsigned char>(piece[i + k])] >= 0;
        if (id >= 0) known(id);
        else if (!bytes) unknown();
        for (size_t k = 0; id < 0 && bytes && k < n; k++)
            out.push_back(byte_id[static_cast<unsigned char>(piece[i + k])]);
    }
    if (waiting) out.push_back(v.unknown);
}

PieceKey PieceCache::long_key(std::string_view piece) {
    uint64_t h = 0;
    for (size_t i = 0; i + 8 < piece.size(); i += 8) h = mix(h ^ load_as<uint64_t>(&piece[i]), 0);
    h = mix(h, load_as<uint64_t>(piece.data() + piece.size() - 8));
    return {h, uint64_t(piece.size()) << 56};
}
void PieceCache::set(Entry& entry, const PieceKey& key, std::string_view piece, const std::vector<int>& ids) {
    const bool is_long = piece.size() > PieceKey::LONGEST;
    entry.key = key;
    entry.count = int(ids.size());
    if (!is_long && ids.size() <= IDS) {
        std::copy(ids.begin(), ids.end(), entry.ids);
        return;
    }
    if (more.size() > MOST) {    // all offsets go with the ids
        buckets.assign(BUCKETS, {});
        more.clear();
        return;
    }
    entry.ids[0] = int(more.size());
    more.insert(more.end(), ids.begin(), ids.end());
    if (!is_long) return;
    const size_t at = more.size();
    more.resize(at + (piece.size() + 3) / 4);
    memcpy(&more[at], piece.data(), piece.size());
}

int* PieceMerger::encode_new(std::string_view piece, const PieceKey& key, PieceCache& cache, PieceCache::Entry* entry,
                             int* out) const {
    std::vector<int>& ids = cache.scratch;
    ids.clear();
    const int id = whole.find(piece);
    if (model) model->encode(piece, ids);
    else if (id >= 0) ids.push_back(id);
    else merge(piece, ids);
    if (entry) cache.set(*entry, key, piece, ids);
    return std::copy(ids.begin(), ids.end(), out);
}
int* PieceMerger::encode_long(std::string_view piece, PieceCache& cache, int* out) const {
    if (piece.size() > PieceCache::LONGEST) return encode_new(piece, {}, cache, nullptr, out);
    const PieceKey key = PieceCache::long_key(piece);
    bool found = false;
    PieceCache::Entry& entry = cache.entry(key, found);
    if (!found || !cache.holds(entry, piece)) return encode_new(piece, key, cache, &entry, out);
    return std::copy_n(cache.ids_of(entry), entry.count, out);
}

void PieceMerger::merge(std::string_view piece, std::vector<int>& out) const {
    uint64_t cell[SHORT];
    const size_t n = piece.size();
    auto byte = [&](size_t i) { return static_cast<unsigned char>(piece[i]); };
    if (n <= SHORT && v.symbols == Symbols::bytes) {
        bool known = true;
        for (size_t i = 0; i < n; i++) {
            const uint64_t rank = i + 1 < n ? byte_ranks[size_t(byte(i)) << 8 | byte(i + 1)] : PairTable::NONE;
            cell[i] = rank << 32 | uint32_t(byte_id[byte(i)]);
            known &= byte_id[byte(i)] >= 0;
        }
        if (known) return merge_short(cell, n, out);
    }
    std::vector<int> id;
    id.reserve(n);
    symbols(piece, id);
    if (id.size() > SHORT) return merge_long(id, out);
    for (size_t i = 0; i < id.size(); i++) {
        const uint64_t rank = i + 1 < id.size() ? pairs.rank(id[i], id[i + 1]) : PairTable::NONE;
        cell[i] = rank << 32 | uint32_t(id[i]);
    }
    merge_short(cell, id.size(), out);
}

// A cell's upper half has the rank of the pair that begins there, its lower half its symbol's id.
void PieceMerger::merge_short(uint64_t* cell, size_t n, std::vector<int>& out) const {
    constexpr uint64_t END = uint64_t(PairTable::NONE) << 32;
    while (n > 1) {
        size_t best = 0;
        uint64_t least = cell[0];
        for (size_t i = 1; i + 1 < n; i++) {
            const bool less = cell[i] >> 32 < least >> 32;    // the leftmost of equal pairs
            least = less ? cell[i] : least;
            best = less ? i : best;
        }
        if (least >= END) break;
        const int made = v.merges[least >> 32].id;
        n--;
        memmove(cell + best + 1, cell + best + 2, (n - best - 1) * sizeof *cell);
        auto set = [&](size_t i, int left) {
            const uint64_t rank = i + 1 < n ? pairs.rank(left, int(uint32_t(cell[i + 1]))) : PairTable::NONE;
            cell[i] = rank << 32 | uint32_t(left);
        };
        set(best, made);
        if (best > 0) set(best - 1, int(uint32_t(cell[best - 1])));
    }
    for (size_t i = 0; i < n; i++) out.push_back(int(uint32_t(cell[i])));
}

// Merges in the order of merge_short. A heap has an entry (rank, cell) for each pair that can
// merge; entries whose pair no longer exists are stale and skipped. A symbol of several cells has
// its id in the first one. Its negative length is in the second, for steps forward, and in the
// last, for steps back. Stale entries are dropped before the heap grows. So cells (4 bytes) and
// heap (1.25 entries of 8 bytes) take at most 14 bytes per initial symbol.
void PieceMerger::merge_long(std::vector<int>& cell, std::vector<int>& out) const {
    const auto n = uint32_t(cell.size());
    CHECK(cell.size() < INT32_MAX, "a piece of %zu symbols", cell.size());
    auto after = [&](uint32_t i) { return i + 1 < n && cell[i + 1] < 0 ? i - uint32_t(cell[i + 1]) : i + 1; };
    auto before = [&](uint32_t i) { return cell[i - 1] < 0 ? i + uint32_t(cell[i - 1]) : i - 1; };
    auto rank_at = [&](uint32_t i) {    // rank of the pair that begins at i
        const uint32_t next = cell[i] < 0 ? n : after(i);
        return next < n ? pairs.rank(cell[i], cell[next]) : PairTable::NONE;
    };
    std::vector<uint64_t> heap;
    heap.reserve(n + n / 4 + 2);
    auto add = [&](uint32_t i) {
        if (const uint32_t rank = rank_at(i); rank != PairTable::NONE) heap.push_back(uint64_t(rank) << 32 | i);
    };
    auto current = [&](uint64_t entry) { return rank_at(uint32_t(entry)) == uint32_t(entry >> 32); };
    for (uint32_t i = 0; i + 1 < n; i++) add(i);
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    while (!heap.empty()) {
        const uint64_t entry = heap.front();
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        heap.pop_back();
        if (!current(entry)) continue;
        const auto i = uint32_t(entry);
        const uint32_t middle = after(i), end = after(middle);
        cell[middle] = -1;    // no symbol begins here any more
        cell[i] = v.merges[size_t(entry >> 32)].id;
        cell[i + 1] = cell[end - 1] = -int(end - i);
        for (uint32_t at : {i, i > 0 ? before(i) : n}) {
            const size_t had = heap.size();
            if (at < n) add(at);
            if (heap.size() > had) std::push_heap(heap.begin(), heap.end(), std::greater<>());
        }
        if (heap.size() + 2 <= heap.capacity()) continue;
        std::erase_if(heap, [&](uint64_t e) { return !current(e); });
        std::make_heap(heap.begin(), heap.end(), std::greater<>());
    }
    for (uint32_t i = 0; i < n; i = after(i)) out.push_back(cell[i]);
}
