// tokenizer_gguf.cpp - see tokenizer_gguf.h. Sources for the keys: llama.cpp, src/llama-vocab.cpp
// and gguf-py.
#include "tokenizer_gguf.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <unordered_map>

#include "base/console.h"
#include "data/merge.h"
#include "sentencepiece.h"

namespace {
constexpr size_t MAX_TOKENS = 1 << 20;
using Type = ScoredPiece::Type;

struct Pre {
    const PatternRow* row = nullptr;
    const GgufPre* means = nullptr;
};
Pre find_pre(const std::string& pre) {
    for (const PatternRow& row : pattern_rows())
        for (const GgufPre& each : row.gguf) {
            std::istringstream names(each.names);
            for (std::string name; names >> name;)
                if (name == pre) return {&row, &each};
        }
    return {};
}
// Returns a value of the key tokenizer.ggml.pre that implies this tokenizer's pattern, NFC and
// ignore_merges. If there is none, returns one that implies the pattern alone, or "".
std::string pre_of(const Vocabulary& v) {
    if (v.pattern == Pattern::other) return "";
    const bool nfc = v.normalization == std::vector<Normalization>{{Normalization::Kind::nfc, "", ""}};
    const std::vector<GgufPre>& all = pattern_row(v.pattern).gguf;
    auto it = std::find_if(all.begin(), all.end(),
                           [&](const GgufPre& p) { return p.nfc == nfc && p.ignore_merges == v.ignore_merges; });
    if (it == all.end()) it = all.begin();
    const std::string names = it == all.end() ? "" : it->names;
    return names.substr(0, names.find(' '));
}

// Tokens that end a text, by the keys and by known names (as in llama.cpp: special_eog_ids).
std::vector<int> ends_of(const GgufTokenizer& g, const Vocabulary& v) {
    std::vector<int> ends = {g.eot_token_id};
    if (g.eom_token_id != g.eot_token_id) ends.push_back(g.eom_token_id);
    for (const AddedToken& a : v.added) {
        const bool named = std::count(std::begin(ANSWER_ENDS), std::end(ANSWER_ENDS), v.name(a));
        if (named && a.id != g.eot_token_id && a.id != g.eom_token_id) ends.push_back(a.id);
    }
    std::erase_if(ends, [&](int id) { return id < 0 || id == v.eos; });
    return ends;
}

Status check(const GgufTokenizer& g, const std::string& name) {
    const size_t n = g.tokens.size();
    auto wrong = [&](const char* key, const std::string& expected, const std::string& found) {
        return fail(Exit::input, "%s: tokenizer.ggml.%s: expected %s, found %s", name.c_str(), key, expected.c_str(),
                    found.c_str());
    };
    if (n == 0 || n > MAX_TOKENS) return wrong("tokens", "1 to 1048576 tokens", std::to_string(n));
    if (!g.token_type.empty() && g.token_type.size() != n)
        return wrong("token_type", std::to_string(n) + " numbers", std::to_string(g.token_type.size()));
    if ((g.model == "llama" || g.model == "t5") && g.scores.size() != n)
        return wrong("scores", std::to_string(n) + " numbers", std::to_string(g.scores.size()));
    struct {
        const char* key;
        int id;
    } ids[] = {{"bos_token_id", g.bos_token_id},         {"eos_token_id", g.eos_token_id},
               {"unknown_token_id", g.unknown_token_id}, {"padding_token_id", g.padding_token_id},
               {"eot_token_id", g.eot_token_id},         {"eom_token_id", g.eom_token_id},
               {"cls_token_id", g.cls_token_id},         {"seperator_token_id", g.seperator_token_id},
               {"mask_token_id", g.mask_token_id}};
    for (auto& [key, id] : ids)
        if (id < -1 || id >= int64_t(n)) return wrong(key, "an id below " + std::to_string(n), std::to_string(id));
    return {};
}

// Reads tokens, added tokens and merges of models that list merges.
Status read_merges(const GgufTokenizer& g, const std::string& name, Vocabulary& v) {
    const bool bytes = v.symbols == Symbols::bytes;
    std::unordered_map<std::string_view, int> id_of;
    v.tokens.resize(g.tokens.size());
    for (size_t id = 0; id < g.tokens.size(); id++) {
        const std::string& spelled = g.tokens[id];
        const int type = g.token_type.empty() ? Type::normal : g.token_type[id];
        // If tokens have equal text the last one counts, as in llama.cpp.
        if (type == Type::normal || type == Type::byte || !bytes) id_of[spelled] = int(id);
        if (type == Type::byte && !bytes) v.byte_fallback = true;
        const bool added = type == Type::control || type == Type::user_defined || type == Type::unknown;
        if (spelled.empty() || type == Type::unused) continue;
        const bool spells = !bytes || byte_alphabet().bytes(spelled, v.tokens[id]);
        if (!bytes || (added && !spells)) v.tokens[id] = spelled;
        else if (!spells) v.tokens[id].clear();    // no text is encoded as this token
        if (!added) continue;
        v.added.push_back({.id = int(id), .special = type != Type::user_defined, .in_model = spells});
        if (v.tokens[id] != spelled) v.added.back().name = spelled;
    }
    for (size_t i = 0; i < g.merges.size(); i++) {
        const std::string& m = g.merges[i];
        const size_t space = m.find(' ', 1);
        const std::string left = m.substr(0, space), right = space == std::string::npos ? "" : m.substr(space + 1);
        auto l = id_of.find(left), r = id_of.find(right), both = id_of.find(left + right);
        auto bytes_of = [&](auto it) -> const std::string& { return v.tokens[size_t(it->second)]; };
        if (left.empty() || right.empty() || l == id_of.end() || r == id_of.end() || both == id_of.end() ||
            bytes_of(both) != bytes_of(l) + bytes_of(r))
            return fail(Exit::input,
                        "%s: tokenizer.ggml.merges[%zu]: expected two tokens whose concatenation is a "
                        "token, found %.60s",
                        name.c_str(), i, m.c_str());
        v.merges.push_back({l->second, r->second, both->second});
    }
    return {};
}
}    // namespace

Result<Tokenizer> tokenizer_from_gguf(const GgufTokenizer& g, const std::string& name) {
    TRY(check(g, name));
    Vocabulary v;
    bool add_bos = false;
    if (g.model == "t5" || g.model == "bert") {
        v = TRY(pieces_of_gguf(g, name));
        v.ends = ends_of(g, v);
        v.chat_template = g.chat_template;
        return Tokenizer(std::move(v));
    }
    if (g.model == "llama") {
        std::vector<ScoredPiece> pieces;
        for (size_t id = 0; id < g.tokens.size(); id++)
            pieces.push_back({g.tokens[id], g.scores[id], g.token_type.empty() ? Type::normal : g.token_type[id]});
        v = TRY(vocabulary_of_pieces(pieces, g.add_space_prefix != 0, name));
        for (AddedToken& a : v.added) {
            a.user_defined = !a.special && g.space_prefix == "user_defined";
            std::string& token = v.tokens[size_t(a.id)];
            // llama.cpp searches for added tokens in the unnormalized text, which has spaces.
            if (!a.special) token = a.user_defined ? with_marks(token) : with_spaces(token);
        }
        if (g.space_prefix == "always" || g.space_prefix == "first") {
            v.normalization.clear();
            v.spaces = g.space_prefix == "first" ? Spaces::marked_first : Spaces::marked_always;
        }
        add_bos = true;
    } else if (g.model == "gpt2" || g.model == "gemma4") {
        const std::string pre = g.model == "gemma4" ? "gemma4" : g.pre.empty() ? "default" : g.pre;
        const auto [row, means] = find_pre(pre);
        if (!row)
            return fail(Exit::input, "%s: tokenizer.ggml.pre: expected a pre-tokenizer that flatgpt knows, found %s",
                        name.c_str(), pre.c_str());
        v.pattern = row->pattern;
        v.symbols = v.pattern == Pattern::lines ? Symbols::characters : Symbols::bytes;
        if (means->nfc) v.normalization.push_back({Normalization::Kind::nfc, "", ""});
        if (v.symbols == Symbols::characters)
            v.normalization.push_back({Normalization::Kind::replace, " ", SPACE_MARK});
        v.ignore_merges = means->ignore_merges, add_bos = means->bos;
        TRY(read_merges(g, name, v));
        if (v.symbols == Symbols::characters) v.unknown = g.unknown_token_id, v.fuse_unknown = true;
    } else {
        return fail(Exit::input, "%s: tokenizer.ggml.model: expected gpt2, llama, gemma4, t5 or bert, found %s",
                    name.c_str(), g.model.c_str());
    }
    v.bos = g.bos_token_id;
    v.eos = g.eos_token_id;
    v.pad = g.padding_token_id;
    v.cls = g.cls_token_id;
    v.sep = g.seperator_token_id;
    v.mask = g.mask_token_id;
    if (v.bos >= 0 && (g.add_bos_token < 0 ? add_bos : g.add_bos_token == 1)) v.before = {v.bos};
    if (v.eos >= 0 && g.add_eos_token == 1) v.after = {v.eos};
    if (v.cls >= 0 && v.sep >= 0 && !v.before.empty() && !v.after.empty()) {    // an encoder's
        v.pair = {{v.bos, 0}, {TemplatePart::FIRST, 0}, {v.eos, 0}, {TemplatePart::SECOND, 0}, {v.eos, 0}};
        if (g.add_sep_token == 1) v.pair.insert(v.pair.begin() + 3, {v.sep, 0});
    }
    v.ends = ends_of(g, v);
    v.chat_template = g.chat_template;
    return Tokenizer(std::move(v));
}

namespace {
// Text to compare tokenizers on: many kinds of letters, spaces, digits and marks.
const char* const TORTURE =
    "Hello world!  I'll say: it's 3 o'CLOCK, 12345678 (x^2)==y_1;\r\n\tif (a[i] != 0.5) return;\n\n\n  # end\n \u00E9"
    "e\u0301 \u00A0\u3000\u2581a \uFB01 \u212B \u6F22\u5B57\u304B\u3099 \uAC00\u1100\u1161 \u0438\u0306 \u0915\u093F "
    "\u0627\u0644 \u00BD\u00B2 \U0001F600\U0001F468\u200D\U0001F469 <|x|> \x01\xFF http://a.b/c?d=e 's 'S ...!!! --- ";

// Describes how a tokenizer and its GGUF form differ in ordinary text; null: they do not.
const char* difference(const Tokenizer& ours, const Tokenizer& theirs) {
    const Vocabulary &a = ours.vocabulary(), &b = theirs.vocabulary();
    const bool bytes = a.symbols == Symbols::bytes;
    auto added_of = [&](const Vocabulary& v) {
        std::map<int, bool> all;
        for (const AddedToken& t : v.added)
            if (bytes || t.id != v.unknown) all[t.id] = t.special;
        return all;
    };
    const auto added = added_of(a);
    bool tokens = a.tokens.size() == b.tokens.size();
    auto ids_of = [](const std::vector<TemplatePart>& parts) {
        std::vector<int> all;
        for (const TemplatePart& part : parts) all.push_back(part.id);
        return all;
    };
    std::string text = TORTURE;
    for (size_t id = 0; tokens && id < a.tokens.size(); id++) {
        const auto as_added = added.find(int(id));
        const bool found = !bytes && as_added != added.end() && !as_added->second;
        tokens = a.tokens[id].empty() ||
                 (found ? with_spaces(a.tokens[id]) == with_spaces(b.tokens[id]) : a.tokens[id] == b.tokens[id]);
        if (as_added == added.end()) text += std::string(ours.token(int(id))) + "\n";
    }
    const std::pair<const char*, bool> rows[] = {
        {"tokens", tokens},
        {"pre-tokenizer", !bytes || a.pattern == b.pattern},
        {"normalizer", !bytes || a.normalization == b.normalization},
        {"space before a text (add_prefix_space)", !bytes || a.spaces == b.spaces},
        {"ignore_merges", a.ignore_merges == b.ignore_merges},
        {"added tokens", added == added_of(b)},
        {"tokens put around a text", a.before == b.before && a.after == b.after},
        {"tokens put around a pair of texts",
         a.cls < 0 || a.sep < 0 || a.pair.empty() || ids_of(a.pair) == ids_of(b.pair)},
    };
    for (auto& [name, same] : rows)
        if (!same) return name;
    const std::vector<int> ids = ours.encode(text);
    if (ids != theirs.encode(text)) return bytes ? "merges" : "merges or normalizer";
    if (ours.encode(" " + text) != theirs.encode(" " + text)) return "a space at the beginning of a text";
    return ours.decode(ids) == theirs.decode(ids) ? nullptr : "decoder";
}

GgufTokenizer merges_to_gguf(const Vocabulary& v) {
    GgufTokenizer g;
    const bool bytes = v.symbols == Symbols::bytes;
    g.pre = bytes ? pre_of(v) : "default";
    g.model = bytes ? "gpt2" : "llama";
    const bool prefix = std::any_of(v.normalization.begin(), v.normalization.end(),
                                    [](const Normalization& n) { return n.kind == Normalization::Kind::prepend; });
    g.tokens.resize(v.tokens.size());
    g.token_type.assign(v.tokens.size(), Type::normal);
    for (size_t id = 0; id < v.tokens.size(); id++) {
        g.tokens[id] = bytes ? byte_alphabet().spell(v.tokens[id]) : v.tokens[id];
        if (!bytes && v.byte_fallback && is_byte_token(g.tokens[id])) g.token_type[id] = Type::byte;
        if (!v.tokens[id].empty()) continue;
        g.tokens[id] = "[PAD" + std::to_string(id) + "]";    // llama.cpp requires a text for each id
        g.token_type[id] = Type::unused;
    }
    for (const AddedToken& a : v.added) {
        // llama.cpp searches for user-defined tokens in the unnormalized text, which has spaces.
        const std::string& token = v.name(a);
        g.tokens[size_t(a.id)] = bytes || a.special ? token : with_spaces(token);
        g.token_type[size_t(a.id)] = a.special ? Type::control : Type::user_defined;
    }
    if (!bytes && v.unknown >= 0) g.token_type[size_t(v.unknown)] = Type::unknown;
    if (bytes) {
        for (const Merge& m : v.merges) g.merges.push_back(g.tokens[size_t(m.left)] + " " + g.tokens[size_t(m.right)]);
    } else {    // a token's score falls with the index of its first merge
        g.scores.assign(v.tokens.size(), -1e9f);
        for (size_t i = v.merges.size(); i-- > 0;) g.scores[size_t(v.merges[i].id)] = -float(i);
        for (size_t id = 0; id < g.scores.size(); id++)
            if (g.token_type[id] != Type::normal) g.scores[id] = 0;
        const bool first = v.spaces == Spaces::marked_first, always = v.spaces == Spaces::marked_always;
        g.add_space_prefix = prefix || first || always;
        const bool symbols = std::any_of(v.added.begin(), v.added.end(), [](auto& a) { return a.user_defined; });
        g.space_prefix = first ? "first" : always ? "always" : symbols ? "user_defined" : "";
    }
    return g;
}
// Whether all that a tokenizer.json can say of the tokenizer is equal.
bool same_json(const Tokenizer& t, const Result<Tokenizer>& other) {
    return other.ok() && other.value.vocabulary().normalization == t.vocabulary().normalization &&
           other.value.to_json() == t.to_json();
}
}    // namespace

Result<GgufTokenizer> tokenizer_to_gguf(const Tokenizer& t) {
    const Vocabulary& v = t.vocabulary();
    const bool merges = v.model == ModelKind::bpe;
    GgufTokenizer g = merges ? merges_to_gguf(v) : pieces_to_gguf(v);
    g.bos_token_id = v.bos, g.eos_token_id = v.eos, g.padding_token_id = v.pad;
    g.unknown_token_id = v.unknown;
    g.cls_token_id = v.cls;
    g.seperator_token_id = v.sep;
    g.mask_token_id = v.mask;
    if (merges && v.cls >= 0 && v.sep >= 0) {    // llama.cpp puts bos and eos around a text
        if (v.bos < 0 && v.before.size() == 1) g.bos_token_id = v.before[0];
        if (v.eos < 0 && v.after.size() == 1) g.eos_token_id = v.after[0];
    }
    if (!v.pair.empty() && v.sep >= 0) g.add_sep_token = v.pair.size() == 6;
    std::vector<int> ends = v.ends;
    std::erase_if(ends,
                  [&](int id) { return size_t(id) >= v.tokens.size(); });    // files may list ids beyond the vocabulary
    if (!ends.empty()) g.eot_token_id = ends[0];
    if (ends.size() > 1) g.eom_token_id = ends[1];
    g.add_bos_token = !v.before.empty();
    g.add_eos_token = !v.after.empty();
    g.chat_template = v.chat_template;
    Result<Tokenizer> back = tokenizer_from_gguf(g, "GGUF");
    if (!merges && !same_json(t, back)) {
        g.huggingface = t.to_json();
        back = tokenizer_from_gguf(g, "GGUF");
        if (same_json(t, back)) return g;
    }
    const char* const lost = back.ok() ? difference(t, back.value) : back.status.message.c_str();
    if (!lost) return g;
    return fail(Exit::usage,
                "GGUF cannot say what this tokenizer does: %s; convert to a Hugging Face directory "
                "instead",
                lost);
}

std::string beyond_gguf(const Tokenizer& t) {
    const Vocabulary& v = t.vocabulary();
    if (v.model != ModelKind::bpe) {
        GgufTokenizer keys = tokenizer_to_gguf(t).value;
        keys.huggingface.clear();
        const Result<Tokenizer> theirs = tokenizer_from_gguf(keys, "GGUF");
        if (theirs.ok() && theirs.value.encode(TORTURE) == t.encode(TORTURE)) return "";
        return "steps of the tokenizer.json, so llama.cpp gives some texts other ids; flatgpt reads it whole from the "
               "key tokenizer.huggingface.json";
    }
    std::string lost;
    auto add = [&](const std::string& what) { lost += (lost.empty() ? "" : "; ") + what; };
    auto list = [&](const char* what, auto is) {
        std::string names;
        for (const AddedToken& a : v.added)
            if (is(a)) names += (names.empty() ? ": " : ", ") + v.name(a);
        if (!names.empty()) add(what + names);
    };
    list("tokens that take white space next to them along", [](auto& a) { return a.lstrip || a.rstrip; });
    list("tokens that are no part of a longer word", [](auto& a) { return a.single_word; });
    if (!v.normalization.empty())
        list("tokens that are looked for after normalization", [](auto& a) { return a.normalized; });
    if (v.spaces == Spaces::marked_first && !v.added.empty()) add("no space after added tokens (prepend_scheme first)");
    if (v.spaces == Spaces::marked_first || v.spaces == Spaces::marked_always)
        add("no space before a text that begins with one (Metaspace); flatgpt reads it from a key of its own");
    const bool prefix = !v.normalization.empty() && v.normalization[0].kind == Normalization::Kind::prepend;
    if (prefix) list("no space after user-defined symbols", [](auto& a) { return a.user_defined; });
    return lost;
}
