// tokenizer_gguf.cpp - see tokenizer_gguf.h. What the keys mean: llama.cpp, src/llama-vocab.cpp and gguf-py.
#include "tokenizer_gguf.h"

#include <algorithm>
#include <sstream>
#include <unordered_map>

#include "base/console.h"
#include "merge.h"
#include "sentencepiece.h"

namespace {
constexpr size_t MAX_TOKENS = 1 << 20;
using Type = ScoredPiece::Type;

// The row whose GGUF names hold this one.
const PatternRow* row_of_pre(const std::string& pre) {
    for (const PatternRow& row : pattern_rows()) {
        std::istringstream names(row.gguf);
        for (std::string name; names >> name;)
            if (name == pre) return &row;
    }
    return nullptr;
}
// Pre-tokenizers' names whose models also compose characters (Unicode NFC), which the GGUF does not say.
bool composes(const std::string& pre) {
    for (const char* name : {"mpt", "olmo", "qwen2", "command-r", "deepseek-r1-qwen", "stablelm2"})
        if (pre == name) return true;
    return false;
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
    if (g.model == "llama" && g.scores.size() != n)
        return wrong("scores", std::to_string(n) + " numbers", std::to_string(g.scores.size()));
    struct { const char* key; int id; } ids[] = {{"bos_token_id", g.bos_token_id}, {"eos_token_id", g.eos_token_id},
        {"unknown_token_id", g.unknown_token_id}, {"padding_token_id", g.padding_token_id}};
    for (auto& [key, id] : ids)
        if (id < -1 || id >= int64_t(n)) return wrong(key, "an id below " + std::to_string(n), std::to_string(id));
    return {};
}

// Tokens, added tokens and merges of the models that list their merges.
Status read_merges(const GgufTokenizer& g, const std::string& name, Vocabulary& v) {
    const bool bytes = v.symbols == Symbols::bytes;
    std::unordered_map<std::string_view, int> id_of;
    v.tokens.resize(g.tokens.size());
    for (size_t id = 0; id < g.tokens.size(); id++) {
        const std::string& spelled = g.tokens[id];
        const int type = g.token_type.empty() ? Type::normal : g.token_type[id];
        // The last of equal tokens counts, as in llama.cpp.
        if (type == Type::normal || type == Type::byte || !bytes) id_of[spelled] = int(id);
        if (type == Type::byte && !bytes) v.byte_fallback = true;
        const bool added = type == Type::control || type == Type::user_defined || type == Type::unknown;
        if (spelled.empty()) continue;
        if (added) v.added.push_back({.id = int(id), .special = type != Type::user_defined});
        if (added || !bytes) v.tokens[id] = spelled;
        else if (!byte_alphabet().bytes(spelled, v.tokens[id])) v.tokens[id].clear();    // no text becomes it
    }
    for (size_t i = 0; i < g.merges.size(); i++) {
        const std::string& m = g.merges[i];
        const size_t space = m.find(' ', 1);
        const std::string left = m.substr(0, space), right = space == std::string::npos ? "" : m.substr(space + 1);
        auto l = id_of.find(left), r = id_of.find(right), both = id_of.find(left + right);
        if (left.empty() || right.empty() || l == id_of.end() || r == id_of.end() || both == id_of.end())
            return fail(Exit::input, "%s: tokenizer.ggml.merges[%zu]: expected two tokens whose concatenation is a "
                        "token, found %.60s", name.c_str(), i, m.c_str());
        v.merges.push_back({l->second, r->second, both->second});
    }
    return {};
}
}   // namespace

Result<Tokenizer> tokenizer_from_gguf(const GgufTokenizer& g, const std::string& name) {
    TRY(check(g, name));
    Vocabulary v;
    bool add_bos = false;
    if (g.model == "llama") {
        std::vector<ScoredPiece> pieces;
        for (size_t id = 0; id < g.tokens.size(); id++)
            pieces.push_back({g.tokens[id], g.scores[id], g.token_type.empty() ? Type::normal : g.token_type[id]});
        v = TRY(vocabulary_of_pieces(pieces, g.add_space_prefix != 0, name));
        add_bos = true;
    } else if (g.model == "gpt2" || g.model == "gemma4") {
        const std::string pre = g.model == "gemma4" ? "gemma4" : g.pre.empty() ? "default" : g.pre;
        const PatternRow* row = row_of_pre(pre);
        if (!row)
            return fail(Exit::input, "%s: tokenizer.ggml.pre: expected a pre-tokenizer that flatgpt knows, found %s",
                        name.c_str(), pre.c_str());
        v.pattern = row->pattern;
        v.symbols = v.pattern == Pattern::lines ? Symbols::characters : Symbols::bytes;
        if (composes(pre)) v.normalization.push_back({Normalization::Kind::nfc, "", ""});
        if (v.symbols == Symbols::characters)
            v.normalization.push_back({Normalization::Kind::replace, " ", SPACE_MARK});
        add_bos = v.ignore_merges = pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3";
        TRY(read_merges(g, name, v));
        if (v.symbols == Symbols::characters) v.unknown = g.unknown_token_id, v.fuse_unknown = true;
    } else {
        return fail(Exit::input, "%s: tokenizer.ggml.model: expected gpt2, llama or gemma4, found %s", name.c_str(),
                    g.model.c_str());
    }
    v.bos = g.bos_token_id, v.eos = g.eos_token_id, v.pad = g.padding_token_id;
    if (v.bos >= 0 && (g.add_bos_token < 0 ? add_bos : g.add_bos_token == 1)) v.before = {v.bos};
    if (v.eos >= 0 && g.add_eos_token == 1) v.after = {v.eos};
    v.chat_template = g.chat_template;
    return Tokenizer(std::move(v));
}

Result<GgufTokenizer> tokenizer_to_gguf(const Tokenizer& t) {
    const Vocabulary& v = t.vocabulary();
    GgufTokenizer g;
    const bool bytes = v.symbols == Symbols::bytes;
    const std::string gguf = v.pattern == Pattern::other ? "" : pattern_row(v.pattern).gguf;
    g.pre = gguf.substr(0, gguf.find(' '));
    const bool nfc = v.normalization == std::vector<Normalization>{{Normalization::Kind::nfc, "", ""}};
    if (nfc && v.pattern == Pattern::gpt2) g.pre = "mpt";
    if (nfc && v.pattern == Pattern::smollm) g.pre = "command-r";
    const bool plain = bytes && v.spaces == Spaces::kept && (v.normalization.empty() || nfc);
    if (bytes ? g.pre.empty() || !plain : v.pattern != Pattern::none && v.pattern != Pattern::lines)
        return fail(Exit::usage, "GGUF has no name for this tokenizer's steps; convert to a Hugging Face directory "
                    "instead");
    g.model = bytes ? "gpt2" : "llama";
    if (!bytes) g.pre = "default";
    const bool prefix = std::any_of(v.normalization.begin(), v.normalization.end(), [](const Normalization& n) {
        return n.kind == Normalization::Kind::prepend;
    });
    g.tokens.resize(v.tokens.size());
    g.token_type.assign(v.tokens.size(), Type::normal);
    for (size_t id = 0; id < v.tokens.size(); id++) {
        g.tokens[id] = bytes ? byte_alphabet().spell(v.tokens[id]) : v.tokens[id];
        if (!bytes && v.byte_fallback && is_byte_token(g.tokens[id])) g.token_type[id] = Type::byte;
        if (!v.tokens[id].empty()) continue;
        g.tokens[id] = "[PAD" + std::to_string(id) + "]";    // llama.cpp wants a text for each id
        g.token_type[id] = Type::unused;
    }
    for (const AddedToken& a : v.added) {
        g.tokens[size_t(a.id)] = v.tokens[size_t(a.id)];
        g.token_type[size_t(a.id)] = a.special ? Type::control : Type::user_defined;
    }
    if (!bytes && v.unknown >= 0) g.token_type[size_t(v.unknown)] = Type::unknown;
    if (bytes) {
        for (const Merge& m : v.merges) g.merges.push_back(g.tokens[size_t(m.left)] + " " + g.tokens[size_t(m.right)]);
    } else {    // a token's score falls with its first merge's place
        g.scores.assign(v.tokens.size(), -1e9f);
        for (size_t i = v.merges.size(); i-- > 0;) g.scores[size_t(v.merges[i].id)] = -float(i);
        for (size_t id = 0; id < g.scores.size(); id++)
            if (g.token_type[id] != Type::normal) g.scores[id] = 0;
        g.add_space_prefix = prefix || v.spaces == Spaces::marked_first || v.spaces == Spaces::marked_always;
    }
    g.bos_token_id = v.bos, g.eos_token_id = v.eos, g.padding_token_id = v.pad;
    g.unknown_token_id = v.unknown;
    g.add_bos_token = !v.before.empty();
    g.add_eos_token = !v.after.empty();
    g.chat_template = v.chat_template;
    return g;
}
