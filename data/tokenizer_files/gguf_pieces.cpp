// gguf_pieces.cpp - Unigram and WordPiece in GGUF's arrays: tokenizer.ggml.model t5 and bert.
//
// llama.cpp's t5 does what SentencePiece does: a map of characters, one space for several, a mark
// before a text, the segmentation with the largest sum of scores. Its bert does BertNormalizer's
// and BertPreTokenizer's steps; tokens that begin a word have a mark before them, and those that
// continue one have lost their "##". A tokenizer.json may say more: it is then the value of
// tokenizer.huggingface.json, a key of GGUF's specification that llama.cpp ignores.
#include <algorithm>

#include "data/merge.h"
#include "data/tokenizer_models/charsmap.h"
#include "data/tokenizer_models/piece_model.h"
#include "files/json.h"
#include "json_reader.h"
#include "sentencepiece.h"
#include "tokenizer_gguf.h"

namespace {
using Kind = Normalization::Kind;
using Type = ScoredPiece::Type;
bool is_charsmap(const Normalization& n) { return n.kind == Kind::charsmap || n.kind == Kind::charsmap_sp; }

int type_of(const GgufTokenizer& g, size_t id) { return g.token_type.empty() ? int(Type::normal) : g.token_type[id]; }
// Drops the unused ids at the end, which only fill the embeddings, up to the last id of a key.
void drop_padding(const GgufTokenizer& g, Vocabulary& v) {
    const auto last =
        size_t(std::max({g.bos_token_id, g.eos_token_id, g.unknown_token_id, g.padding_token_id, g.eot_token_id,
                         g.eom_token_id, g.cls_token_id, g.seperator_token_id, g.mask_token_id, 0}));
    while (v.tokens.size() > last + 1 && v.tokens.back().empty()) v.tokens.pop_back();
    v.scores.resize(std::min(v.scores.size(), v.tokens.size()));
}
// The key's id, else llama.cpp's default, else -1.
int id_or(const Vocabulary& v, int id, int usual) { return id >= 0 || usual >= std::ssize(v.tokens) ? id : usual; }

Result<Vocabulary> unigram_of(const GgufTokenizer& g, const std::string& name) {
    std::vector<ScoredPiece> pieces;
    for (size_t id = 0; id < g.tokens.size(); id++) pieces.push_back({g.tokens[id], g.scores[id], type_of(g, id)});
    if (!Charsmap::valid(g.charsmap))
        return fail(Exit::input, "%s: tokenizer.ggml.precompiled_charsmap: expected a map of characters, found damage",
                    name.c_str());
    const bool squeeze = g.remove_extra_whitespaces == 1;    // llama.cpp then puts a mark before each word
    Vocabulary v = TRY(unigram_of_pieces(pieces, squeeze || g.add_space_prefix == 1, name));
    if (squeeze) v.normalization.insert(v.normalization.begin(), {Kind::squeeze, "", ""});
    if (!g.charsmap.empty()) v.normalization.insert(v.normalization.begin(), {Kind::charsmap_sp, g.charsmap, ""});
    for (AddedToken& a : v.added) a.user_defined = !a.special;
    drop_padding(g, v);
    v.bos = g.bos_token_id;
    v.cls = g.cls_token_id;
    v.sep = g.seperator_token_id;
    v.mask = g.mask_token_id;
    v.eos = id_or(v, g.eos_token_id, 1);
    v.pad = id_or(v, g.padding_token_id, 0);
    if (v.bos >= 0 && g.add_bos_token == 1) v.before = {v.bos};
    if (v.eos >= 0 && g.add_eos_token != 0) v.after = {v.eos};
    return v;
}

Result<Vocabulary> wordpiece_of(const GgufTokenizer& g, const std::string& name) {
    Vocabulary v;
    v.model = ModelKind::wordpiece;
    v.symbols = Symbols::characters;
    v.pattern = Pattern::bert;
    v.strip = Strip::words;
    v.cleanup = true;
    std::string steps = {BERT_CLEAN, BERT_CHINESE};
    const bool lower = g.lowercase != 0;
    if (g.strip_accents < 0 ? lower : g.strip_accents == 1) steps += BERT_ACCENTS;
    if (lower) steps += BERT_LOWERCASE;
    v.normalization = {{Kind::bert, "", steps}};
    for (size_t id = 0; id < g.tokens.size(); id++) {
        const int type = type_of(g, id);
        std::string token = g.tokens[id];
        const bool begins = token.starts_with(SPACE_MARK), special = type == Type::control || type == Type::unknown;
        if (special || type == Type::user_defined) v.added.push_back({.id = int(id), .special = special});
        if (type == Type::unused || token.empty()) token.clear();
        else if (!special) token = begins ? token.substr(3) : v.continuing + token;
        if (token.size() > LONGEST_TOKEN)
            return fail(Exit::input, "%s: tokenizer.ggml.tokens[%zu]: expected at most %zu bytes, found %zu",
                        name.c_str(), id, LONGEST_TOKEN, token.size());
        v.tokens.push_back(std::move(token));
    }
    drop_padding(g, v);
    v.unknown = id_or(v, g.unknown_token_id, 100);
    v.cls = v.bos = id_or(v, g.bos_token_id >= 0 ? g.bos_token_id : g.cls_token_id, 101);
    v.sep = v.eos = id_or(v, g.seperator_token_id >= 0 ? g.seperator_token_id : g.eos_token_id, 102);
    v.pad = id_or(v, g.padding_token_id, 0);
    v.mask = id_or(v, g.mask_token_id, 103);
    if (v.cls < 0 || v.sep < 0)
        return fail(Exit::input, "%s: tokenizer.ggml.bos_token_id, seperator_token_id: expected [CLS] and [SEP]",
                    name.c_str());
    v.before = {v.cls};
    v.after = {v.sep};
    v.pair = {{v.cls, 0}, {TemplatePart::FIRST, 0}, {v.sep, 0}, {TemplatePart::SECOND, 1}, {v.sep, 1}};
    return v;
}

// The tokenizer that tokenizer.huggingface.json has. Its tokens must be those of the arrays.
Result<Vocabulary> from_json(const GgufTokenizer& g, const std::string& name) {
    const std::string where = name + ": tokenizer.huggingface.json";
    Vocabulary v = TRY(tokenizer_json_parse(g.huggingface, where));
    const GgufTokenizer arrays = pieces_to_gguf(v);
    if (v.model == ModelKind::bpe || arrays.model != g.model)
        return fail(Exit::input, "%s: model.type: expected %s", where.c_str(),
                    g.model == "bert" ? "WordPiece" : "Unigram");
    const std::vector<std::string>& theirs = arrays.tokens;
    for (size_t id = 0; id < theirs.size(); id++)
        if (id >= g.tokens.size() || g.tokens[id] != theirs[id])
            return fail(Exit::input, "%s: token %zu: expected %.40s as in tokenizer.ggml.tokens, found %.40s",
                        where.c_str(), id, id < g.tokens.size() ? g.tokens[id].c_str() : "none", theirs[id].c_str());
    const std::pair<int, int Vocabulary::*> ids[] = {
        {g.bos_token_id, &Vocabulary::bos},       {g.eos_token_id, &Vocabulary::eos},
        {g.padding_token_id, &Vocabulary::pad},   {g.cls_token_id, &Vocabulary::cls},
        {g.seperator_token_id, &Vocabulary::sep}, {g.mask_token_id, &Vocabulary::mask}};
    for (auto& [id, field] : ids) v.*field = id < std::ssize(v.tokens) ? id : -1;
    return v;
}
}    // namespace

Result<Vocabulary> pieces_of_gguf(const GgufTokenizer& g, const std::string& name) {
    if (!g.huggingface.empty()) return from_json(g, name);
    return g.model == "bert" ? wordpiece_of(g, name) : unigram_of(g, name);
}

GgufTokenizer pieces_to_gguf(const Vocabulary& v) {
    GgufTokenizer g;
    const bool unigram = v.model == ModelKind::unigram;
    g.model = unigram ? "t5" : "bert";
    g.pre = "default";
    g.tokens = v.tokens;
    g.token_type.assign(v.tokens.size(), Type::normal);
    for (const AddedToken& a : v.added) {
        g.tokens[size_t(a.id)] = v.name(a);
        g.token_type[size_t(a.id)] = a.special ? Type::control : Type::user_defined;
    }
    for (size_t id = 0; id < g.tokens.size(); id++) {
        std::string& token = g.tokens[id];
        int& type = g.token_type[id];
        if (token.empty()) {    // llama.cpp requires a text for each id
            token = "[PAD" + std::to_string(id) + "]";
            type = Type::unused;
        } else if (unigram && v.byte_fallback && type == Type::normal && is_byte_token(token)) {
            type = Type::byte;
        } else if (!unigram && type != Type::control) {
            const bool continues = token.starts_with(v.continuing) && token.size() > v.continuing.size();
            token = continues ? token.substr(v.continuing.size()) : SPACE_MARK + token;
        }
    }
    auto has = [&](auto is) { return std::any_of(v.normalization.begin(), v.normalization.end(), is); };
    if (unigram) {
        if (v.unknown >= 0) g.token_type[size_t(v.unknown)] = Type::unknown;
        g.scores.assign(v.scores.begin(), v.scores.end());
        g.remove_extra_whitespaces = v.spaces == Spaces::marked_words || has([](const Normalization& n) {
                                         return n.kind == Kind::squeeze || n.kind == Kind::runs;
                                     });
        g.add_space_prefix = v.spaces >= Spaces::marked_first ||
                             has([](const Normalization& n) { return n.kind == Kind::prepend; });
        const auto map = std::find_if(v.normalization.begin(), v.normalization.end(), is_charsmap);
        if (map != v.normalization.end()) g.charsmap = map->from;
        return g;
    }
    auto step = [&](char letter) {
        return has([&](const Normalization& n) { return n.kind == Kind::bert && n.to.find(letter) != n.to.npos; });
    };
    g.lowercase = step(BERT_LOWERCASE);
    g.strip_accents = step(BERT_ACCENTS);
    return g;
}
