// sentencepiece.cpp - see sentencepiece.h. Field numbers: sentencepiece_model.proto.
#include "sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <unordered_map>

#include "data/merge.h"
#include "data/tokenizer_models/charsmap.h"

namespace {
constexpr size_t MAX_PIECES = 1 << 20, LONGEST = 512;    // pieces; bytes of a piece: limit its splits

// Iterates over the fields of one protobuf message.
struct Message {
    std::string_view rest;
    bool broken = false;
    int field = 0;
    uint64_t number = 0;            // value of a varint
    float real = 0;                 // value of a float
    std::string_view bytes = {};    // value of a string or message

    bool varint(uint64_t& value) {
        value = 0;
        for (int shift = 0; shift < 64 && !rest.empty(); shift += 7) {
            const auto b = static_cast<unsigned char>(rest[0]);
            rest.remove_prefix(1);
            value |= uint64_t(b & 0x7F) << shift;
            if (b < 0x80) return true;
        }
        return false;
    }
    bool take(uint64_t n) {
        if (n > rest.size()) return false;
        bytes = rest.substr(0, n);
        rest.remove_prefix(n);
        return true;
    }
    bool next() {    // false at the end or at broken bytes
        if (rest.empty()) return false;
        uint64_t tag = 0, size = 0;
        bool good = varint(tag) && tag >> 3 > 0 && tag >> 3 < 1 << 29;
        field = good ? int(tag >> 3) : 0;
        switch (good ? tag & 7 : 7) {
            case 0: good = varint(number); break;
            case 1: good = take(8); break;
            case 2: good = varint(size) && take(size); break;
            case 5:
                good = take(4);
                if (good) memcpy(&real, bytes.data(), 4);
                break;
            default: good = false;
        }
        broken = !good;
        return good;
    }
};

// The used fields of a tokenizer.model.
struct Model {
    std::vector<ScoredPiece> pieces;
    int64_t type = 1, bos = 1, eos = 2, pad = -1;
    bool byte_fallback = false, prefix = true, remove_spaces = true, escape = true, suffix = false;
    std::string charsmap;    // precompiled normalization map
};
Status read_piece(std::string_view bytes, Model& m, const std::string& name) {
    ScoredPiece piece;
    Message f{bytes};
    while (f.next()) {
        if (f.field == 1) piece.text = f.bytes;
        if (f.field == 2) piece.score = f.real;
        if (f.field == 3) piece.type = f.number <= 6 ? int(f.number) : 0;
    }
    if (f.broken || piece.text.empty() || !std::isfinite(piece.score) || piece.type < 1)
        return fail(Exit::input, "%s: piece %zu: expected a text, a score and a type from 1 to 6", name.c_str(),
                    m.pieces.size());
    if (m.pieces.size() == MAX_PIECES) return fail(Exit::input, "%s: more than %zu pieces", name.c_str(), MAX_PIECES);
    m.pieces.push_back(piece);
    return {};
}
Status read_model(std::string_view file, Model& m, const std::string& name) {
    Message all{file};
    while (all.next()) {
        Message f{all.bytes};
        if (all.field == 1) TRY(read_piece(all.bytes, m, name));
        while (all.field == 2 && f.next()) {    // trainer_spec
            const auto value = int64_t(f.number);
            if (f.field == 3) m.type = value;
            if (f.field == 24) m.suffix = f.number;    // treat_whitespace_as_suffix
            if (f.field == 35) m.byte_fallback = f.number;
            if (f.field == 41) m.bos = value;
            if (f.field == 42) m.eos = value;
            if (f.field == 43) m.pad = value;
        }
        while (all.field == 3 && f.next()) {    // normalizer_spec
            if (f.field == 2) m.charsmap = f.bytes;
            if (f.field == 3) m.prefix = f.number;
            if (f.field == 4) m.remove_spaces = f.number;
            if (f.field == 5) m.escape = f.number;
        }
        all.broken = f.broken;
        if (f.broken) break;
    }
    const size_t at = file.size() - all.rest.size();
    if (all.broken)
        return fail(Exit::input, "%s: expected a SentencePiece model, found no field of one before byte %zu",
                    name.c_str(), at);
    if (m.pieces.empty()) return fail(Exit::input, "%s: expected pieces, found none", name.c_str());
    return {};
}
}    // namespace

namespace {
// Reads the pieces' texts and types, which both kinds of models have.
Status read_pieces(const std::vector<ScoredPiece>& pieces, bool space_before, const std::string& name, Vocabulary& v) {
    using Kind = Normalization::Kind;
    v.symbols = Symbols::characters;
    v.pattern = Pattern::none;
    if (space_before) v.normalization.push_back({Kind::prepend, "", SPACE_MARK});
    v.normalization.push_back({Kind::replace, " ", SPACE_MARK});
    v.strip = space_before ? Strip::space : Strip::none;
    v.fuse_unknown = true;
    std::unordered_map<std::string_view, int> id_of;
    for (size_t id = 0; id < pieces.size(); id++) {
        const ScoredPiece& p = pieces[id];
        v.tokens.push_back(p.text);
        if (p.type == ScoredPiece::byte && !is_byte_token(p.text))
            return fail(Exit::input, "%s: piece %zu: expected <0x00> to <0xFF> for a byte, found %.40s", name.c_str(),
                        id, p.text.c_str());
        v.byte_fallback |= p.type == ScoredPiece::byte;
        if (p.type == ScoredPiece::unknown && v.unknown < 0) v.unknown = int(id);
        const bool special = p.type == ScoredPiece::control || p.type == ScoredPiece::unknown;
        if (!p.text.empty() && (special || p.type == ScoredPiece::user_defined))
            v.added.push_back({.id = int(id), .special = special});
        if (!p.text.empty() && !id_of.emplace(p.text, int(id)).second)
            return fail(Exit::input, "%s: two tokens are %.40s", name.c_str(), p.text.c_str());
    }
    return {};
}
}    // namespace

Result<Vocabulary> unigram_of_pieces(const std::vector<ScoredPiece>& pieces, bool space_before,
                                     const std::string& name) {
    Vocabulary v;
    v.model = ModelKind::unigram;
    TRY(read_pieces(pieces, space_before, name, v));
    for (size_t id = 0; id < pieces.size(); id++) {
        v.scores.push_back(double(pieces[id].score));
        // No text becomes an unused piece.
        if (pieces[id].type == ScoredPiece::unused) v.tokens[id].clear();
        if (pieces[id].text.size() > LONGEST_TOKEN)
            return fail(Exit::input, "%s: piece %zu: expected at most %zu bytes, found %zu", name.c_str(), id,
                        LONGEST_TOKEN, pieces[id].text.size());
    }
    // If no token crosses a mark, the best segmentation of a text is its words' best ones.
    const bool apart = std::none_of(pieces.begin(), pieces.end(), [](const ScoredPiece& p) {
        return p.type == ScoredPiece::normal && p.text.find(SPACE_MARK, 1) != std::string::npos;
    });
    if (apart && std::find(v.tokens.begin(), v.tokens.end(), SPACE_MARK) != v.tokens.end())
        v.pattern = Pattern::metaspace;
    return v;
}

Result<Vocabulary> vocabulary_of_pieces(const std::vector<ScoredPiece>& pieces, bool space_before,
                                        const std::string& name) {
    Vocabulary v;
    TRY(read_pieces(pieces, space_before, name, v));
    std::unordered_map<std::string_view, int> id_of;
    for (size_t id = 0; id < pieces.size(); id++) id_of.emplace(pieces[id].text, int(id));
    for (size_t id = 0; id < pieces.size(); id++) {
        const std::string_view text = pieces[id].text;
        if (text.size() > LONGEST)
            return fail(Exit::input, "%s: piece %zu: expected at most %zu bytes, found %zu", name.c_str(), id, LONGEST,
                        text.size());
        if (pieces[id].type != ScoredPiece::normal) continue;
        for (size_t cut = 1; cut < text.size(); cut++) {
            if ((text[cut] & 0xC0) == 0x80) continue;
            auto left = id_of.find(text.substr(0, cut)), right = id_of.find(text.substr(cut));
            auto normal = [&](auto it) { return pieces[size_t(it->second)].type == ScoredPiece::normal; };
            if (left != id_of.end() && right != id_of.end() && normal(left) && normal(right))
                v.merges.push_back({left->second, right->second, int(id)});
        }
    }
    auto length = [&](int id) {    // in characters
        const std::string& s = pieces[size_t(id)].text;
        return std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; });
    };
    // Hugging Face's converters order equal scores by the lengths of left and right, then by ids.
    std::sort(v.merges.begin(), v.merges.end(), [&](const Merge& a, const Merge& b) {
        const float sa = pieces[size_t(a.id)].score, sb = pieces[size_t(b.id)].score;
        if (sa != sb) return sa > sb;
        if (length(a.left) != length(b.left)) return length(a.left) > length(b.left);
        if (length(a.right) != length(b.right)) return length(a.right) > length(b.right);
        return std::tie(a.id, a.left, a.right) < std::tie(b.id, b.left, b.right);
    });
    return v;
}

Result<Vocabulary> sentencepiece_parse(std::string_view file, const std::string& name) {
    Model m;
    TRY(read_model(file, m, name));
    if (m.type != 1 && m.type != 2)
        return fail(Exit::input, "%s: expected a unigram or a BPE model (model_type 1, 2), found type %lld",
                    name.c_str(), (long long)m.type);
    if (!m.escape || m.suffix)
        return fail(Exit::input, "%s: expected a mark U+2581 before each word, found another treatment of spaces",
                    name.c_str());
    if (!Charsmap::valid(m.charsmap))
        return fail(Exit::input, "%s: expected a map of characters (precompiled_charsmap), found damaged bytes",
                    name.c_str());
    Vocabulary v = m.type == 2 ? TRY(vocabulary_of_pieces(m.pieces, m.prefix, name))
                               : TRY(unigram_of_pieces(m.pieces, m.prefix, name));
    if (m.remove_spaces) v.normalization.insert(v.normalization.begin(), {Normalization::Kind::squeeze, "", ""});
    if (!m.charsmap.empty())
        v.normalization.insert(v.normalization.begin(), {Normalization::Kind::charsmap_sp, m.charsmap, ""});
    // SentencePiece searches for symbols after it has replaced spaces by marks (U+2581), so symbols
    // with ordinary spaces never match.
    std::erase_if(v.added, [&](const AddedToken& a) { return !a.special && v.name(a).find(' ') != std::string::npos; });
    for (AddedToken& a : v.added) a.user_defined = !a.special;
    v.byte_fallback = m.byte_fallback;
    auto in = [&](int64_t id) { return id >= 0 && id < int64_t(v.tokens.size()) ? int(id) : -1; };
    v.bos = in(m.bos), v.eos = in(m.eos), v.pad = in(m.pad);
    if (m.type == 1 && v.eos >= 0) v.after = {v.eos};    // T5's
    else if (v.bos >= 0) v.before = {v.bos};
    return v;
}

bool sentencepiece_begins(std::string_view file) {
    Message m{file};    // first field: a piece, beginning with its text
    if (!m.next() || m.field != 1 || m.bytes.empty()) return false;
    Message piece{m.bytes};
    return piece.next() && piece.field == 1;
}
