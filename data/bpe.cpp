// bpe.cpp - encodes texts to ids and decodes them.
#include "bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <thread>

#include "added.h"
#include "base/console.h"
#include "base/pool.h"
#include "merge.h"
#include "normalize.h"

extern "C" const uint16_t gpt2_merges[100000];

namespace {
constexpr size_t CHUNK = 128 << 10;    // bytes of text that one thread encodes at once
constexpr size_t KEPT = 1 << 20;       // ids that a vector of an idle scratch has at most
}

struct Tokenizer::Tables {
    // Memory of one thread that encodes.
    struct Scratch {
        explicit Scratch(const Pretokenizer& pieces) : splitter(pieces) {}
        Splitter splitter;
        PieceCache cache;
        std::vector<int> ids;
    };
    // A scratch that no other thread has. It returns to the tables, so that the next text finds the
    // pieces of earlier ones in its cache.
    class Borrowed {
      public:
        explicit Borrowed(const Tables& tables);
        ~Borrowed();
        Scratch& operator*() const { return *scratch; }

      private:
        const Tables& t;
        std::unique_ptr<Scratch> scratch;
    };

    Vocabulary v;
    Pretokenizer pieces;
    PieceMerger merger;
    AddedTokens raw, late;            // found in the text; in the normalized text
    std::vector<std::string> text;    // by id: decoded bytes; empty: as in v.tokens
    std::vector<char> special;        // by id
    int end_of_text = -1;
    std::string prefix;            // normalization puts it before each segment
    bool cut_at_marks = false;     // characters: texts may be cut before a word
    bool cut_at_spaces = false;    // WordPiece, Unigram: texts may be cut before a space
    uint64_t fingerprint = 0;

    explicit Tables(Vocabulary vocabulary);
    void encode_chunk(Scratch& scratch, std::string_view text, std::vector<int>& out) const;
    void encode_pieces(Scratch& scratch, std::string_view text, std::vector<int>& out) const;
    void encode_segment(Scratch& scratch, std::string_view text, bool special, bool beginning, bool follows,
                        const std::vector<size_t>& plain, std::vector<int>& out) const;
    bool is_plain(const AddedTokens::Found& found, const std::vector<size_t>& plain) const;
    const std::string& decoded(int id) const { return text.empty() ? v.tokens[size_t(id)] : text[size_t(id)]; }
    std::string begun_with(int id) const;    // decoded as the first token of a text
    size_t space_cut(std::string_view text, size_t limit) const;
    size_t chunk_end(std::string_view text, size_t limit) const;
    size_t mark_before(std::string_view text, size_t limit, std::string_view mark) const;

  private:
    mutable std::mutex lock;
    mutable std::vector<std::unique_ptr<Scratch>> idle;    // one for each thread that encodes, and one for Cutter
};

Tokenizer::Tables::Borrowed::Borrowed(const Tables& tables) : t(tables) {
    const std::lock_guard<std::mutex> guard(t.lock);
    if (t.idle.empty()) {
        scratch = std::make_unique<Scratch>(t.pieces);
        return;
    }
    scratch = std::move(t.idle.back());
    t.idle.pop_back();
}
Tokenizer::Tables::Borrowed::~Borrowed() {
    // One piece may be a whole text, of which a scratch would keep the memory for ever.
    for (std::vector<int>* some : {&scratch->ids, &scratch->cache.scratch})
        if (some->capacity() > KEPT) std::vector<int>().swap(*some);
    const std::lock_guard<std::mutex> guard(t.lock);
    t.idle.push_back(std::move(scratch));
}

namespace {
// Shards store the fingerprint, so it must stay the same for ever. A field added later is hashed
// only if it has another value than in GPT-2's vocabulary.
template <class Add, class AddText> void hash_later_fields(const Vocabulary& v, Add add, AddText add_text) {
    const Vocabulary plain;
    const std::vector<Split>& splits = v.pattern == Pattern::other ? v.splits : pattern_row(v.pattern).splits;
    for (size_t i = 0; i < splits.size() && (splits.size() > 1 || splits[0] != Split{splits[0].regex}); i++) {
        add_text(splits[i].regex);
        add(uint64_t(splits[i].behavior) << 2 | splits[i].invert << 1 | splits[i].spelled);
    }
    auto single = [&](const AddedToken& a) {    // a one-symbol token, which merging could leave
        bool whole = true;
        const std::string& token = v.tokens[size_t(a.id)];
        return v.symbols == Symbols::bytes ? token.size() == 1 : utf8_character(token, whole) == token.size();
    };
    for (const Normalization& n : v.normalization) add(0x100 + uint64_t(n.kind)), add_text(n.from), add_text(n.to);
    for (const AddedToken& a : v.added) {
        const uint64_t how = (!a.in_model && single(a)) << 5 | a.user_defined << 4 | a.lstrip << 3 | a.rstrip << 2 |
                             a.single_word << 1 | a.normalized;
        if (how) add(0x200 + how), add(uint64_t(a.id));
    }
    const int fields[] = {int(v.symbols), int(v.spaces), v.byte_fallback, v.fuse_unknown, v.unknown};
    const int none[] = {int(plain.symbols), int(plain.spaces), plain.byte_fallback, plain.fuse_unknown, plain.unknown};
    for (size_t i = 0; i < std::size(fields); i++)
        if (fields[i] != none[i]) add(0x300 + i), add(uint64_t(fields[i]));
    if (v.model == ModelKind::bpe) return;
    add(0x400 + uint64_t(v.model)), add_text(v.continuing), add(uint64_t(v.longest_word));
    for (double score : v.scores) add(std::bit_cast<uint64_t>(score));
}
uint64_t hash_vocabulary(const Vocabulary& v) {
    uint64_t h = FNV_OFFSET_BASIS;
    auto add = [&h](uint64_t word) { h = mix(h ^ word, 0); };
    auto add_text = [&](std::string_view text) {
        add(text.size());
        for (size_t i = 0; i < text.size(); i += 8) {
            uint64_t word = 0;
            memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
            add(word);
        }
    };
    const std::vector<Split>& splits = v.pattern == Pattern::other ? v.splits : pattern_row(v.pattern).splits;
    add_text(splits.size() == 1 ? splits[0].regex : std::to_string(splits.size()));
    add(v.ignore_merges);
    add(v.tokens.size());
    std::vector<std::string_view> texts(v.tokens.begin(), v.tokens.end());
    for (const AddedToken& a : v.added) texts[size_t(a.id)] = v.name(a);
    for (std::string_view token : texts) add_text(token);
    add(v.merges.size());
    for (const Merge& m : v.merges) add(uint64_t(m.left) << 32 | uint32_t(m.right)), add(uint64_t(m.id));
    std::vector<uint64_t> added;    // sorted, because files list them in any order
    for (const AddedToken& a : v.added) added.push_back(uint64_t(a.id) << 1 | a.special);
    std::sort(added.begin(), added.end());
    for (uint64_t a : added) add(a);
    hash_later_fields(v, add, add_text);
    return h ? h : 1;
}
}    // namespace

Tokenizer::Tables::Tables(Vocabulary vocabulary)
    : v(std::move(vocabulary)), pieces(Pretokenizer::known(v.pattern == Pattern::other ? Pattern::none : v.pattern)),
      merger(v), raw(v, false), late(v, true), special(v.tokens.size()) {
    if (v.pattern == Pattern::other) {
        Result<Pretokenizer> compiled = Pretokenizer::compile(v.splits);
        CHECK(compiled.ok(), "%s", compiled.status.message.c_str());    // cannot fail: checked when the file was read
        pieces = compiled.value;
    }
    for (const AddedToken& a : v.added) {
        CHECK(!v.tokens[size_t(a.id)].empty(), "added token %d", a.id);
        special[size_t(a.id)] = a.special;
    }
    auto named = [&](const char* name) {
        auto it = std::find_if(v.added.begin(), v.added.end(), [&](const AddedToken& a) { return v.name(a) == name; });
        return it == v.added.end() ? -1 : it->id;
    };
    end_of_text = named("<|endoftext|>");
    if (end_of_text < 0) end_of_text = v.eos;
    for (const char* name : {"<|end_of_text|>", "</s>", "<eos>"})    // tokenizer.json alone does not name EOS
        if (end_of_text < 0) end_of_text = named(name);
    cut_at_marks = v.model == ModelKind::bpe && v.symbols == Symbols::characters && !v.ignore_merges &&
                   (v.pattern == Pattern::none || v.pattern == Pattern::lines);
    const std::string apart = normalized("1 1", v.normalization, true);
    cut_at_spaces = (v.pattern == Pattern::bert || v.pattern == Pattern::metaspace) &&
                    std::min(apart.find(' ', 1), apart.find(SPACE_MARK, 1)) != apart.npos;
    if (v.symbols == Symbols::characters)
        for (const std::string& token : v.tokens)
            text.push_back(v.strip == Strip::words ? word_piece(v, token, false)
                           : is_byte_token(token)  ? std::string(1, byte_of_token(token))
                                                   : with_spaces(token));
    for (const AddedToken& a : v.added) {    // decodes to the text that it matches
        if (!a.normalized || search_text(v, a) == v.name(a) || v.strip == Strip::words) continue;
        if (text.empty()) text = v.tokens;
        std::string& made = text[size_t(a.id)];
        if (v.symbols == Symbols::characters) made = with_spaces(search_text(v, a));
        else if (!byte_alphabet().bytes(search_text(v, a), made)) made = search_text(v, a);
    }
    const std::string follows = normalized("a", v.normalization, true);
    prefix = normalized("a", v.normalization, false);
    prefix.resize(prefix.size() - std::min(prefix.size(), follows.size()));
    fingerprint = hash_vocabulary(v);
}

void Tokenizer::Tables::encode_chunk(Scratch& scratch, std::string_view chunk, std::vector<int>& out) const {
    constexpr size_t PIECES = 256;
    std::string_view some[PIECES];
    const char* readable = chunk.data() + chunk.size();
    scratch.splitter.start(chunk);
    while (const size_t count = scratch.splitter.next(some, PIECES)) {
        size_t bytes = PieceCache::IDS;
        for (size_t i = 0; i < count; i++) bytes += some[i].size();
        if (scratch.ids.size() < bytes) scratch.ids.resize(bytes);
        int *const ids = scratch.ids.data(), *end = ids;
        for (size_t i = 0; i < count; i++) {
            std::string_view piece = some[i];
            if (v.symbols == Symbols::bytes) {
                end = merger.encode(piece, readable, scratch.cache, end);
                continue;
            }
            while (!piece.empty()) {
                const size_t n = v.ignore_merges ? piece.size() : merger.word(piece);
                end = merger.encode(piece.substr(0, n), readable, scratch.cache, end);
                piece.remove_prefix(n);
            }
        }
        out.insert(out.end(), ids, end);
    }
}

// Metaspace's decoder drops the first token's marks, WordPiece's puts no space before it.
std::string Tokenizer::Tables::begun_with(int id) const {
    if (v.strip == Strip::words) return word_piece(v, v.name(id), true);
    auto added = std::find_if(v.added.begin(), v.added.end(), [&](const AddedToken& a) { return a.id == id; });
    const std::string& token = v.tokens[size_t(id)];
    if (is_byte_token(token)) return text[size_t(id)];
    std::string spelled = added == v.added.end() ? token : search_text(v, *added);
    for (size_t at = 0; (at = spelled.find(SPACE_MARK)) != spelled.npos;) spelled.erase(at, 3);
    return spelled;
}

// Last offset up to limit of a space between a word and a visible character or another space: there
// normalization neither removes nor moves anything, so what the text becomes is cut at a word, too.
size_t Tokenizer::Tables::space_cut(std::string_view whole, size_t limit) const {
    constexpr size_t TAIL = 64;    // more bytes than decide how the last character is normalized
    for (size_t at = std::min(limit, whole.size() - 1); at > 0; at--) {
        if (whole[at] != ' ' || at + 1 >= whole.size() || whole[at + 1] < ' ' || whole[at + 1] > '~') continue;
        const auto last = static_cast<unsigned char>(whole[at - 1]);
        if (last <= ' ' || last == 0x7F) continue;
        size_t from = at > TAIL ? at - TAIL : 0;
        while (from > 0 && (whole[from] & 0xC0) == 0x80) from++;
        if (ends_word(normalized(whole.substr(from, at - from), v.normalization, true)) &&
            ends_word(whole.substr(from, at - from)))
            return at;
    }
    return 0;
}

// Largest offset up to limit at which prepared text may be cut without changing its ids; 0: none.
size_t Tokenizer::Tables::chunk_end(std::string_view prepared, size_t limit) const {
    if (!cut_at_marks) return ::safe_cut(v.pattern, prepared, limit);
    return mark_before(prepared, limit, SPACE_MARK);
}
// Last offset up to limit at which `mark` begins a word; 0: none.
size_t Tokenizer::Tables::mark_before(std::string_view prepared, size_t limit, std::string_view mark) const {
    for (size_t at = std::min(limit, prepared.size() - 1); at > 0; at--) {
        if (!prepared.substr(at).starts_with(mark)) continue;
        const std::string_view before = prepared.substr(0, at);
        const bool run = before.ends_with(mark) || before.ends_with(SPACE_MARK);
        if (!run && merger.mark_ends(static_cast<unsigned char>(before.back()))) return at;
    }
    return 0;
}

// Encodes prepared text, in chunks that end between pieces; serial if called in parallel.
void Tokenizer::Tables::encode_pieces(Scratch& scratch, std::string_view prepared, std::vector<int>& out) const {
    if (prepared.size() < 2 * CHUNK) return encode_chunk(scratch, prepared, out);
    std::vector<std::string_view> chunks;
    while (!prepared.empty()) {
        size_t cut = 0;
        for (size_t n = CHUNK; cut == 0; n *= 2) cut = n < prepared.size() ? chunk_end(prepared, n) : prepared.size();
        chunks.push_back(prepared.substr(0, cut));
        prepared.remove_prefix(cut);
    }
    std::vector<std::vector<int>> ids(chunks.size());
    const std::thread::id caller = std::this_thread::get_id();    // whose scratch is at hand
    each_chunk(int64_t(chunks.size()), [&](int64_t i, int) {
        if (std::this_thread::get_id() == caller) encode_chunk(scratch, chunks[size_t(i)], ids[size_t(i)]);
        else encode_chunk(*Borrowed(*this), chunks[size_t(i)], ids[size_t(i)]);
    });
    for (auto& part : ids) out.insert(out.end(), part.begin(), part.end());
}

// Encodes the text between two added tokens: normalizes it, finds added tokens of normalized text,
// marks spaces, splits into pieces, and merges.
void Tokenizer::Tables::encode_segment(Scratch& scratch, std::string_view segment, bool specials, bool beginning,
                                       bool follows, const std::vector<size_t>& plain, std::vector<int>& out) const {
    std::string held;
    std::vector<size_t> here = plain;    // offsets in the normalized segment
    if (!is_normalized(segment, v.normalization, follows)) {
        for (size_t& offset : here) offset = normalized(segment.substr(0, offset), v.normalization, follows).size();
        held = normalized(segment, v.normalization, follows);
        segment = held;
    }
    auto ordinary = [&](std::string_view between, bool first) {
        if (between.empty()) return;
        if (v.spaces == Spaces::kept) return encode_pieces(scratch, between, out);
        encode_pieces(scratch, marked(between, v.spaces, beginning && first, follows && first), out);
    };
    size_t from = 0;
    for (AddedTokens::Found found; late.find(segment, from, specials, found);) {
        if (is_plain(found, here)) continue;
        if (found.begin > from) ordinary(segment.substr(from, found.begin - from), from == 0);
        out.push_back(found.id);
        from = found.end;
    }
    ordinary(segment.substr(from), from == 0);
}

// Whether one of these offsets is where a special token's name begins, or inside the name.
bool Tokenizer::Tables::is_plain(const AddedTokens::Found& found, const std::vector<size_t>& plain) const {
    const auto inside = std::lower_bound(plain.begin(), plain.end(), found.begin);
    return special[size_t(found.id)] && inside != plain.end() && *inside < found.end;
}

Tokenizer::Tokenizer() = default;
Tokenizer::Tokenizer(Vocabulary vocabulary) : t(std::make_shared<Tables>(std::move(vocabulary))) {}

Tokenizer Tokenizer::from_merges(const std::vector<std::pair<int, int>>& merges, Pattern pattern,
                                 const std::vector<std::string>& special) {
    Vocabulary v;
    v.pattern = pattern;
    for (unsigned char b : gpt2_byte_order()) v.tokens.emplace_back(1, char(b));
    for (auto [left, right] : merges) {
        auto id = int(v.tokens.size());
        CHECK(left >= 0 && right >= 0 && left < id && right < id, "merge %d: (%d, %d)", id - 256, left, right);
        v.merges.push_back({left, right, id});
        v.tokens.push_back(v.tokens[size_t(left)] + v.tokens[size_t(right)]);
    }
    for (const std::string& name : special) {
        v.added.push_back({.id = int(v.tokens.size()), .special = true});
        v.tokens.push_back(name);
    }
    return Tokenizer(std::move(v));
}

Tokenizer Tokenizer::gpt2() {
    std::vector<std::pair<int, int>> merges;
    for (int i = 0; i < 50000; i++) merges.emplace_back(gpt2_merges[2 * i], gpt2_merges[2 * i + 1]);
    return from_merges(merges, Pattern::gpt2, {"<|endoftext|>"});
}

Tokenizer Tokenizer::of_model(int V) const {
    if (vocab_size() <= V) return *this;
    Vocabulary v = t->v;
    auto beyond = [V](int id) { return id >= V; };
    for (const AddedToken& a : v.added)
        if (beyond(a.id)) v.tokens[size_t(a.id)].clear();
    const bool others = std::any_of(v.tokens.begin() + V, v.tokens.end(), [](auto& text) { return !text.empty(); }) ||
                        std::any_of(v.merges.begin(), v.merges.end(), [&](auto& m) { return beyond(m.id); });
    if (others) return *this;
    v.tokens.resize(size_t(V));
    std::erase_if(v.added, [&](auto& a) { return beyond(a.id); });
    for (std::vector<int>* some : {&v.before, &v.after, &v.ends}) std::erase_if(*some, beyond);
    if (std::any_of(v.pair.begin(), v.pair.end(), [&](auto& p) { return beyond(p.id); })) v.pair.clear();
    if (!v.scores.empty()) v.scores.resize(size_t(V));
    for (int* one : {&v.bos, &v.eos, &v.pad, &v.unknown, &v.cls, &v.sep, &v.mask})
        if (beyond(*one)) *one = -1;
    auto tables = std::make_shared<Tables>(std::move(v));
    tables->fingerprint = t->fingerprint;
    Tokenizer less;
    less.t = std::move(tables);
    return less;
}
Tokenizer Tokenizer::with_chat_template(const std::string& source, const std::vector<int>& ends) const {
    Vocabulary v = vocabulary();
    v.chat_template = source;
    for (int id : ends)
        if (id != v.eos && std::find(v.ends.begin(), v.ends.end(), id) == v.ends.end()) v.ends.push_back(id);
    auto tables = std::make_shared<Tables>(std::move(v));
    tables->fingerprint = fingerprint();
    Tokenizer other;
    other.t = std::move(tables);
    return other;
}
Status Tokenizer::fits(int V, Exit code, const std::string& advice) const {
    if (vocab_size() <= V) return {};
    return fail(code, "the tokenizer has %d tokens, the model %d%s", vocab_size(), V, advice.c_str());
}

const Vocabulary& Tokenizer::vocabulary() const {
    static const Vocabulary empty;
    return t ? t->v : empty;
}
int Tokenizer::vocab_size() const { return int(vocabulary().tokens.size()); }
int Tokenizer::end_of_text() const { return t ? t->end_of_text : -1; }
std::string_view Tokenizer::token(int id) const {
    CHECK(id >= 0 && id < vocab_size(), "token %d of %d", id, vocab_size());
    return t->decoded(id);
}
uint64_t Tokenizer::fingerprint() const { return t ? t->fingerprint : 0; }
bool Tokenizer::is_special(int id) const { return id >= 0 && id < vocab_size() && t->special[size_t(id)]; }

// The offsets of encode_cut, and how they lie among the tokens.
struct Tokenizer::Cutter {
    const Tables& t;
    const std::vector<size_t>& plain;
    std::vector<TextCut>* cuts;
    size_t done = 0;    // cuts with final counts

    std::vector<size_t> plain_within(size_t from, size_t end) const {
        std::vector<size_t> some;
        for (auto i = std::lower_bound(plain.begin(), plain.end(), from); i != plain.end() && *i < end; ++i)
            some.push_back(*i - from);
        return some;
    }
    // Sets the counts of each cut before the end of `part`, which begins at offset `from` of the
    // text, and whose tokens begin at ids[first].
    void add(std::string_view part, size_t from, const std::vector<int>& ids, size_t first, bool follows) {
        for (; cuts && done < cuts->size() && (*cuts)[done].at < from + part.size(); done++) {
            TextCut& cut = (*cuts)[done];
            cut.ended = cut.begun = int(first);
            if (cut.at > from) count(part, from, ids, first, follows, cut);
        }
    }
    void count(std::string_view part, size_t from, const std::vector<int>& ids, size_t first, bool follows,
               TextCut& cut) const;
};

// Decoded, the tokens give the normalized part, with one space before it if the tokenizer adds one.
// Where they do not (characters without a token), the tokens of the text before the cut are counted
// instead.
void Tokenizer::Cutter::count(std::string_view part, size_t from, const std::vector<int>& ids, size_t first,
                              bool follows, TextCut& cut) const {
    const size_t at = cut.at - from;
    std::string all;
    for (size_t i = first; i < ids.size(); i++) all += t.decoded(ids[i]);
    auto plainly = [&](std::string_view text) { return with_spaces(normalized(text, t.v.normalization, follows)); };
    const std::string before = plainly(part.substr(0, at)), whole = plainly(part);
    const size_t shift = all.size() == whole.size() + 1 && all[0] == ' ' ? 1 : 0;
    if (all.compare(shift, before.size(), before) != 0 || all.size() != whole.size() + shift) {
        std::vector<int> some;
        t.encode_segment(*Tables::Borrowed(t), part.substr(0, at), true, from == 0, follows, plain_within(from, cut.at),
                         some);
        cut.ended = cut.begun = int(std::min(first + some.size(), ids.size()));
        return;
    }
    size_t offset = 0;
    for (size_t i = first; i < ids.size() && offset < before.size() + shift; i++) {
        offset += t.decoded(ids[i]).size();
        cut.begun = int(i + 1);
        if (offset <= before.size() + shift) cut.ended = int(i + 1);
    }
}

std::vector<int> Tokenizer::encode_with(std::string_view text, bool special, bool follows, Cutter* cutter) const {
    std::vector<int> out;
    CHECK(t || text.empty(), "encode without a vocabulary");
    if (!t) return out;
    const Tables::Borrowed scratch(*t);
    const std::vector<size_t> none;
    size_t from = 0;
    auto segment = [&](size_t end) {
        const bool beginning = from == 0;
        const size_t first = out.size();
        const std::string_view part = text.substr(from, end - from);
        t->encode_segment(*scratch, part, special, beginning, follows && beginning,
                          cutter ? cutter->plain_within(from, end) : none, out);
        if (cutter) cutter->add(part, from, out, first, follows && beginning);
    };
    for (AddedTokens::Found found; t->raw.find(text, from, special, found);) {
        if (cutter && t->is_plain(found, cutter->plain)) continue;
        if (found.begin > from) segment(found.begin);
        out.push_back(found.id);
        from = found.end;
        if (!cutter) continue;
        std::vector<TextCut>* cuts = cutter->cuts;
        for (; cuts && cutter->done < cuts->size() && (*cuts)[cutter->done].at < found.end; cutter->done++) {
            TextCut& cut = (*cuts)[cutter->done];
            cut.ended = int(out.size()) - 1;
            cut.begun = cut.ended + (cut.at > found.begin);
        }
    }
    segment(text.size());
    return out;
}
std::vector<int> Tokenizer::encode(std::string_view text, bool special, bool follows) const {
    return encode_with(text, special, follows, nullptr);
}
std::vector<int> Tokenizer::encode_cut(std::string_view text, const std::vector<size_t>& plain,
                                       std::vector<TextCut>* cuts) const {
    CHECK(t, "encode without a vocabulary");
    Cutter cutter{*t, plain, cuts};
    const std::vector<int> ids = encode_with(text, true, false, &cutter);
    for (; cuts && cutter.done < cuts->size(); cutter.done++)
        (*cuts)[cutter.done].ended = (*cuts)[cutter.done].begun = int(ids.size());
    return ids;
}

std::vector<int> Tokenizer::encode_prompt(std::string_view text) const {
    std::vector<int> ids = vocabulary().before;
    for (int id : encode(text, true)) ids.push_back(id);
    return ids;
}

std::string Tokenizer::decode(const std::vector<int>& ids) const {
    std::string text;
    for (int id : ids) text += token(id);
    if (vocabulary().strip == Strip::space && text.starts_with(' ')) text.erase(0, 1);
    if (vocabulary().strip < Strip::first_marks || ids.empty()) return text;
    return t->begun_with(ids[0]) + text.substr(token(ids[0]).size());
}

int Tokenizer::first_special(std::string_view text) const {
    if (!t) return -1;
    auto first = [&](const AddedTokens& some, std::string_view in) {
        AddedTokens::Found found;
        for (size_t from = 0; some.any_special() && some.find(in, from, true, found); from = found.end)
            if (t->special[size_t(found.id)]) return found.id;
        return -1;
    };
    const int id = first(t->raw, text);
    return id < 0 && t->late.any_special() ? first(t->late, normalized(text, t->v.normalization, false)) : id;
}

size_t Tokenizer::safe_cut(std::string_view text, size_t limit, bool special) const {
    if (!t || text.empty()) return 0;
    // Bytes of text that may normalize to the longest name: a Unicode form can shrink text to a
    // quarter.
    size_t reach = t->late.any(special) ? t->late.longest() : 0;
    for (const Normalization& n : t->v.normalization) {
        const bool form = n.kind != Normalization::Kind::replace && n.kind != Normalization::Kind::prepend;
        if (n.kind > Normalization::Kind::replace && (reach > 0 || !t->cut_at_spaces)) return 0;
        if (n.kind > Normalization::Kind::replace) continue;
        const bool removes = n.kind == Normalization::Kind::replace && n.to.empty();
        if (n.from.size() > 1 || removes || (form && t->cut_at_marks))
            return 0;    // cutting could change normalization
        if (form) reach *= 4;
    }
    auto may_cut = [&](size_t at) {
        if (!t->raw.may_cut(text, at, special)) return false;
        if (reach == 0) return true;
        const size_t from = at > reach ? at - reach : 0;
        const std::string before = normalized(text.substr(from, at - from), t->v.normalization, true);
        const std::string behind = normalized(text.substr(at, reach), t->v.normalization, true);
        return t->late.may_cut(before + behind, before.size(), special, t->prefix);
    };
    for (size_t at = limit; at > 0; at--) {
        at = t->cut_at_spaces  ? t->space_cut(text, at)
             : t->cut_at_marks ? t->mark_before(text, at, " ")
                               : ::safe_cut(t->v.pattern, text, at);
        if (at == 0 || may_cut(at)) return at;
    }
    return 0;
}

// ---- streaming ----------------------------------------------------------------------------------

namespace {
// Moves whole characters from `from` to the result; keeps bytes that later ones may complete.
std::string take(std::string& from, bool end) {
    std::string out;
    size_t at = 0;
    while (at < from.size()) {
        bool complete = false;
        size_t n = utf8_character(std::string_view(from).substr(at), complete);
        auto lead = static_cast<unsigned char>(from[at]);
        if (!complete && !end && at + n == from.size() && lead >= 0xC2 && lead <= 0xF4) break;
        complete ? out.append(from, at, n) : out.append("\xEF\xBF\xBD");
        at += n;
    }
    from.erase(0, at);
    return out;
}
}    // namespace

std::string StreamDecoder::push(std::string_view bytes) {
    waiting += bytes;
    return take(waiting, false);
}
std::string StreamDecoder::finish() { return take(waiting, true); }
