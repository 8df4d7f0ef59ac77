// tokenizer_json.cpp - reads Hugging Face's tokenizer.json.
//
// Supported: models WordPiece, Unigram, and BPE over bytes, spelled in GPT-2's byte alphabet, or
// over characters with byte fallback; merges as "a b" or ["a", "b"]; the normalizers,
// pre-tokenizers and decoders of such models; added tokens; the tokens that a post-processor adds
// around a text or two. Anything else that would change the ids is an error that names it.
#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "base/console.h"
#include "base/file.h"
#include "data/bpe.h"
#include "data/tokenizer_models/charsmap.h"
#include "data/tokenizer_models/piece_model.h"
#include "files/json.h"
#include "files/picture.h"
#include "json_reader.h"

using nlohmann::json;

namespace {
constexpr int MAX_IDS = 1 << 20;
const std::string WHITE = std::string("[") + WHITE_SPACE + "]";

std::string quoted(const std::string& text) {    // regular expression that matches text literally
    std::string s;
    for (char c : text) {
        if (c > 0 && !isalnum(static_cast<unsigned char>(c)) && c > ' ') s += '\\';
        s += c;
    }
    return s;
}

// Reads one tokenizer.json. Each step returns its first error.
struct Reader : JsonReader {
    const json& root;
    Vocabulary v;
    std::vector<Split> splits;
    bool byte_level = false;
    std::unordered_map<std::string, int> id_of;    // by the spelling in the file
    Reader(const std::string& file, const json& whole) : JsonReader{file}, root(whole) {}

    Status model() {
        const json& m = at(root, "model");
        const auto row = std::find_if(std::begin(MODEL_ROWS), std::end(MODEL_ROWS),
                                      [type = model_type()](const ModelRow& r) { return type == r.type; });
        if (row == std::end(MODEL_ROWS))
            return wrong("model.type", "\"BPE\", \"WordPiece\" or \"Unigram\"", at(m, "type"));
        v.model = row->kind;
        v.byte_fallback = flag(m, "byte_fallback", false);
        if (v.model == ModelKind::wordpiece) return wordpiece();
        if (v.model == ModelKind::unigram) return {};
        for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (const json& affix = at(m, key); !affix.is_null() && affix != "")
                return wrong(std::string("model.") + key, "null", affix);
        if (const json& d = at(m, "dropout"); !d.is_null() && d != 0) return wrong("model.dropout", "null", d);
        v.fuse_unknown = flag(m, "fuse_unk", false);
        v.ignore_merges = flag(m, "ignore_merges", false);
        return {};
    }

    // Early files have no type; a Unigram's vocabulary is then an array.
    std::string model_type() const {
        const json& m = at(root, "model");
        if (!at(m, "type").is_null()) return text(m, "type");
        return at(m, "vocab").is_array() ? "Unigram" : at(m, "merges").is_array() ? "BPE" : "WordPiece";
    }
    Status wordpiece() {
        const json& m = at(root, "model");
        const json& longest = at(m, "max_input_chars_per_word");
        if (!longest.is_null() && !(longest.is_number_integer() && longest >= 0))
            return wrong("model.max_input_chars_per_word", "a number of characters", longest);
        if (!longest.is_null()) v.longest_word = int(std::min<uint64_t>(longest.get<uint64_t>(), INT32_MAX));
        if (at(m, "continuing_subword_prefix").is_string()) v.continuing = text(m, "continuing_subword_prefix");
        v.strip = Strip::words;
        v.cleanup = true;
        return {};
    }

    // Calls step for each item of a Sequence, or for a single item. A null has no items.
    template <class Step> Status each(const json& what, const std::string& where, const char* list, Step step) const {
        if (what.is_null()) return {};
        if (text(what, "type") != "Sequence") return step(what, where);
        const json& steps = at(what, list);
        if (!steps.is_array()) return wrong(where + "." + list, "an array", steps);
        for (size_t i = 0; i < steps.size(); i++)
            TRY(each(steps[i], where + "." + list + "[" + std::to_string(i) + "]", list, step));
        return {};
    }
    Status normalizer() {
        return each(at(root, "normalizer"), "normalizer", "normalizers", [&](const json& n, const std::string& where) {
            using Kind = Normalization::Kind;
            const std::string type = text(n, "type"), forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
            const auto form = std::find(std::begin(forms), std::end(forms), type) - forms;
            if (form < 4) {
                v.normalization.push_back({Kind(form), "", ""});
            } else if (type == "Prepend") {
                v.normalization.push_back({Kind::prepend, "", text(n, "prepend")});
            } else if (type == "Replace" && !text(at(n, "pattern"), "String").empty()) {
                v.normalization.push_back({Kind::replace, text(at(n, "pattern"), "String"), text(n, "content")});
            } else if (text(at(n, "pattern"), "Regex") == " {2,}" && type == "Replace") {
                v.normalization.push_back({Kind::runs, "", text(n, "content")});
            } else {
                return other_normalizer(type, n, where);
            }
            return Status{};
        });
    }
    Status other_normalizer(const std::string& type, const json& n, const std::string& where) {
        using Kind = Normalization::Kind;
        if (type == "BertNormalizer") {
            const bool lower = flag(n, "lowercase", true);
            std::string steps;
            if (flag(n, "clean_text", true)) steps += BERT_CLEAN;
            if (flag(n, "handle_chinese_chars", true)) steps += BERT_CHINESE;
            if (flag(n, "strip_accents", lower)) steps += BERT_ACCENTS;
            if (lower) steps += BERT_LOWERCASE;
            v.normalization.push_back({Kind::bert, "", steps});
        } else if (type == "Strip") {
            if (flag(n, "strip_left", true)) v.normalization.push_back({Kind::strip_left, "", ""});
            if (flag(n, "strip_right", true)) v.normalization.push_back({Kind::strip_right, "", ""});
        } else if (type == "Precompiled") {
            const json& map = at(n, "precompiled_charsmap");
            std::string bytes;
            if (!(map.is_null() || (map.is_string() && base64_decode(map.get<std::string>(), bytes))) ||
                !Charsmap::valid(bytes))
                return wrong(where + ".precompiled_charsmap", "a SentencePiece map in base64", map);
            v.normalization.push_back({Kind::charsmap, bytes, ""});
        } else if (type == "Lowercase" || type == "StripAccents") {
            v.normalization.push_back({type == "Lowercase" ? Kind::lowercase : Kind::strip_accents, "", ""});
        } else {
            return wrong(where,
                         "NFC, NFD, NFKC, NFKD, Prepend, Replace of a string or of \" {2,}\", BertNormalizer, Strip, "
                         "Precompiled, Lowercase or StripAccents",
                         n);
        }
        return {};
    }

    bool no_spaces_left() const {
        return std::any_of(v.normalization.begin(), v.normalization.end(),
                           [](const Normalization& n) { return n.from == " " && n.to == SPACE_MARK; });
    }
    Status split(const json& p, const std::string& where) {
        const std::string type = text(p, "type");
        Split cut;
        std::string behavior = text(p, "behavior");
        if (type == "Digits") {
            cut.regex = flag(p, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)";
            behavior = "Isolated";
        } else if (type == "Punctuation") {
            cut.regex = PUNCTUATION;
            if (behavior == "Contiguous") cut.regex += '+';
            if (behavior == "Contiguous" || behavior.empty()) behavior = "Isolated";
        } else {
            const std::string literal = text(at(p, "pattern"), "String");
            if (literal == " " && no_spaces_left()) return {};    // Gemma's split, which never matches
            cut.regex = literal.empty() ? text(at(p, "pattern"), "Regex") : quoted(literal);
            if (cut.regex.empty()) return wrong(where + ".pattern", "a Regex or a String", at(p, "pattern"));
            cut.invert = flag(p, "invert", false);
        }
        const char* const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
        const auto how = std::find(std::begin(names), std::end(names), behavior) - names;
        if (how == std::ssize(names))
            return wrong(where + ".behavior", "Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext",
                         at(p, "behavior"));
        cut.behavior = Split::Behavior(how);
        cut.spelled = byte_level;
        splits.push_back(cut);
        return {};
    }
    Status metaspace(const json& p, const std::string& where) {
        if (const json& mark = at(p, "replacement"); mark != SPACE_MARK)
            return wrong(where + ".replacement", "U+2581", mark);
        std::string scheme = text(p, "prepend_scheme");
        if (scheme.empty()) scheme = flag(p, "add_prefix_space", true) ? "always" : "never";
        v.spaces = scheme == "always"  ? Spaces::marked_always
                   : scheme == "first" ? Spaces::marked_first
                                       : Spaces::marked;
        const bool cut = flag(p, "split", true);
        if (!splits.empty()) {    // after WhitespaceSplit
            if (scheme != "always" || !cut) return wrong(where, "\"always\" and a split after WhitespaceSplit", p);
            v.spaces = Spaces::marked_words;
            splits.clear();
        }
        if (cut) splits.push_back({SPACE_MARK, Split::Behavior::merged_with_next});
        return {};
    }
    Status pre_tokenizer() {
        const json& all = at(root, "pre_tokenizer");
        TRY(each(all, "pre_tokenizer", "pretokenizers", [&](const json& p, const std::string& where) {
            const std::string type = text(p, "type");
            const bool first = splits.empty() && v.spaces == Spaces::kept && !byte_level;
            if (type == "Split" || type == "Digits" || type == "Punctuation") return split(p, where);
            const bool words = splits == std::vector<Split>{{WHITE, Split::Behavior::removed}};
            if (type == "Metaspace" && (first || (words && v.spaces == Spaces::kept && !byte_level)))
                return metaspace(p, where);
            if (type == "BertPreTokenizer" || type == "WhitespaceSplit") {
                splits.push_back({WHITE, Split::Behavior::removed, false, byte_level});
                if (type == "BertPreTokenizer")
                    splits.push_back({PUNCTUATION, Split::Behavior::isolated, false, byte_level});
                return Status{};
            }
            if (type != "ByteLevel" || byte_level)
                return wrong(
                    where,
                    "Split, Digits, Punctuation, BertPreTokenizer, WhitespaceSplit, one ByteLevel, or Metaspace "
                    "before them or after WhitespaceSplit",
                    p);
            if (flag(p, "add_prefix_space", true)) {
                if (!first) return wrong(where + ".add_prefix_space", "false after another step", true);
                v.spaces = Spaces::prefixed;
            }
            if (flag(p, "use_regex", true)) splits.push_back({GPT2_REGEX});
            byte_level = true;
            return Status{};
        }));
        Result<Pretokenizer> compiled = Pretokenizer::compile(splits);
        if (!compiled.ok())
            return fail(Exit::input, "%s: pre_tokenizer: %s", name.c_str(), compiled.status.message.c_str());
        v.pattern = known_pattern(splits);
        if (v.pattern == Pattern::other) v.splits = splits;
        v.symbols = byte_level ? Symbols::bytes : Symbols::characters;
        if (byte_level && v.model != ModelKind::bpe)
            return wrong("pre_tokenizer", "no ByteLevel with this model.type", all);
        return {};
    }
    Status decoder() {
        return each(at(root, "decoder"), "decoder", "decoders", [&](const json& d, const std::string& where) {
            const std::string type = text(d, "type");
            const bool prefix = text(d, "prepend_scheme") != "never" && flag(d, "add_prefix_space", true);
            if (type == "Strip" && text(d, "content") == " " && at(d, "start") != 0) v.strip = Strip::space;
            else if (type == "WordPiece" && (at(d, "prefix").is_null() || at(d, "prefix") == v.continuing)) {
                v.strip = Strip::words;
                v.cleanup = flag(d, "cleanup", true);
            } else if (type == "Metaspace" && prefix) v.strip = Strip::first_marks;
            else if (type == "WordPiece") return wrong(where + ".prefix", "the model's prefix", at(d, "prefix"));
            else if (type != "Strip" && type != "Metaspace" && type != "ByteLevel" && type != "Replace" &&
                     type != "ByteFallback" && type != "Fuse")
                return wrong(where, "ByteLevel, Metaspace, WordPiece, Replace, ByteFallback, Fuse or Strip", d);
            return Status{};
        });
    }

    // where() makes a text for messages; it is lazy, because 100,000 calls never need it.
    template <class Where> Status new_id(const json& value, Where where, int& id) {
        if (!value.is_number_integer() || value < 0 || value >= MAX_IDS)
            return wrong(where(), "an id from 0 to 1048575", value);
        id = value.get<int>();
        if (size_t(id) >= v.tokens.size()) v.tokens.resize(size_t(id) + 1);
        return {};
    }
    // Reads the vocabulary. It runs before added_tokens, so that a name in both gets its vocabulary
    // id.
    Status vocabulary() {
        const json& vocab = at(at(root, "model"), "vocab");
        if (v.model == ModelKind::unigram) return scored_vocabulary(vocab);
        if (!vocab.is_object() || vocab.empty()) return wrong("model.vocab", "an object of ids", vocab);
        std::vector<char> taken;
        for (const auto& [key, value] : vocab.items()) {
            auto where = [&key = key] { return "model.vocab[" + shown(key) + "]"; };
            int id = 0;
            TRY(new_id(value, where, id));
            taken.resize(v.tokens.size());
            if (taken[size_t(id)]++) return wrong(where(), "an id of its own", value);
            id_of[key] = id;
        }
        return {};
    }
    // Unigram: [[text, score], ...], by id. Of equal texts the last one counts.
    Status scored_vocabulary(const json& vocab) {
        if (!vocab.is_array() || vocab.empty() || vocab.size() > MAX_IDS)
            return wrong("model.vocab", "an array of up to 1048576 texts and scores", vocab);
        v.tokens.resize(vocab.size());
        for (size_t id = 0; id < vocab.size(); id++) {
            const json& piece = vocab[id];
            const bool whole = piece.is_array() && piece.size() == 2 && piece[0].is_string() && piece[1].is_number();
            if (!whole || !std::isfinite(piece[1].get<double>()))
                return wrong("model.vocab[" + std::to_string(id) + "]", "a text and a score", piece);
            id_of[piece[0].get<std::string>()] = int(id);
            v.scores.push_back(piece[1].get<double>());
        }
        const json& unknown = at(at(root, "model"), "unk_id");
        if (unknown.is_null()) return {};
        if (!unknown.is_number_integer() || unknown < 0 || unknown >= vocab.size())
            return wrong("model.unk_id", "an id of the vocabulary", unknown);
        v.unknown = unknown.get<int>();
        return {};
    }
    Status added_tokens() {
        const json& list = at(root, "added_tokens");
        if (!list.is_array() && !list.is_null()) return wrong("added_tokens", "an array", list);
        const json& symbols =
            at(at(root, "model"), "user_defined");    // key of flatgpt's own: tokenizer_json_write.cpp
        std::set<json> user_defined(symbols.begin(), symbols.end());
        std::vector<char> taken(v.tokens.size());
        for (auto& [key, id] : id_of) taken[size_t(id)] = 1;
        std::vector<char> seen;
        for (size_t i = 0; i < list.size(); i++) {
            std::string where = "added_tokens[" + std::to_string(i) + "]", content = text(list[i], "content");
            if (content.empty()) return wrong(where + ".content", "a string that is not empty", at(list[i], "content"));
            int id = 0;
            TRY(new_id(
                at(list[i], "id"), [&] { return where + ".id"; }, id));
            taken.resize(v.tokens.size());
            seen.resize(v.tokens.size());
            auto known = id_of.find(content);
            if (known != id_of.end() ? known->second != id : taken[size_t(id)])
                return wrong(where + ".id", "its id in model.vocab, or one of its own", at(list[i], "id"));
            if (seen[size_t(id)]++) return wrong(where, "a token that is not in the list yet", content);
            taken[size_t(id)] = 1;
            AddedToken made = added_token(id, list[i], true);
            std::string& token = v.tokens[size_t(id)];
            // A name in GPT-2's byte alphabet stands for bytes, and the byte-level decoder decodes
            // it to them.
            const bool spells = !byte_level || byte_alphabet().bytes(content, token);
            if (!byte_level || !spells) token = content;
            made.in_model = known != id_of.end() && spells;
            made.user_defined = !byte_level && user_defined.contains(id);
            if (made.user_defined) token = with_marks(content);
            else if (token != content) made.name = content;
            id_of[content] = id;
            v.added.push_back(std::move(made));
        }
        return {};
    }
    Status token_texts() {
        size_t bytes = 0;
        for (auto& [key, id] : id_of) {
            std::string& token = v.tokens[size_t(id)];
            if (!token.empty()) continue;
            if (!byte_level) token = key;
            else if (!byte_alphabet().bytes(key, token)) token.clear();    // no text is encoded as it (Command R)
            bytes += token.size() == 1;
        }
        if (byte_level && !bytes) return wrong("model.vocab", "tokens for single bytes", "none");
        if (!v.scores.empty()) v.scores.resize(v.tokens.size());
        for (const std::string& token : v.tokens)
            if (v.model != ModelKind::bpe && token.size() > LONGEST_TOKEN)
                return wrong("model.vocab", "tokens of at most 512 bytes", token);
        if (v.model == ModelKind::unigram) return {};
        const json& unknown = at(at(root, "model"), "unk_token");
        if (!unknown.is_string()) return {};
        auto it = id_of.find(unknown.get<std::string>());
        if (it == id_of.end()) return wrong("model.unk_token", "a token", unknown);
        v.unknown = it->second;
        return {};
    }
    Status merges() {
        const json& list = at(at(root, "model"), "merges");
        if (v.model != ModelKind::bpe) return {};
        if (!list.is_array()) return wrong("model.merges", "an array", list);
        for (size_t i = 0; i < list.size(); i++) {
            const json& m = list[i];
            auto where = [i] { return "model.merges[" + std::to_string(i) + "]"; };
            std::string left, right;
            if (m.is_string()) {
                auto both = m.get<std::string>();
                size_t space = both.find(' ');
                left = both.substr(0, space);
                right = space == std::string::npos ? "" : both.substr(space + 1);
            } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
                left = m[0], right = m[1];
            }
            if (left.empty() || right.empty()) return wrong(where(), "\"a b\" or [\"a\", \"b\"]", m);
            auto l = id_of.find(left), r = id_of.find(right), both = id_of.find(left + right);
            if (l == id_of.end() || r == id_of.end() || both == id_of.end())
                return wrong(where(), "two tokens whose concatenation is a token", m);
            auto bytes = [&](auto it) -> const std::string& { return v.tokens[size_t(it->second)]; };
            if (bytes(both) != bytes(l) + bytes(r))
                return wrong(where(), "a token that is spelled as its parts are", m);
            v.merges.push_back({l->second, r->second, both->second});
        }
        return {};
    }

    // Tokens that a post-processor adds around a text: [BOS, A, EOS] of TemplateProcessing, or
    // names in {Roberta,Bert}Processing.
    Status surround(const json& p, const std::string& where) {
        const std::string type = text(p, "type");
        if (type == "ByteLevel") return {};
        std::vector<int>* to = &v.before;
        auto add = [&](const json& id) {
            if (!id.is_number_integer() || id < 0 || id >= v.tokens.size() || to->size() > 15)
                return wrong(where, "ids of tokens", id);
            to->push_back(id.get<int>());
            return Status{};
        };
        if (type == "RobertaProcessing" || type == "BertProcessing") {
            for (const char* key : {"cls", "sep"}) {
                const json& pair = at(p, key);
                TRY(add(pair.is_array() && pair.size() == 2 ? pair[1] : pair));
                to = &v.after;
            }
            // RoBERTa's template has two separators in the middle and one segment.
            const int cls = v.before.back(), sep = v.after.back(), second = type == "BertProcessing";
            v.pair = {{cls, 0}, {TemplatePart::FIRST, 0}, {sep, 0}};
            if (!second) v.pair.push_back({sep, 0});
            v.pair.push_back({TemplatePart::SECOND, second});
            v.pair.push_back({sep, second});
            return {};
        }
        if (type != "TemplateProcessing") return wrong(where + ".type", "TemplateProcessing", at(p, "type"));
        for (const json& piece : at(p, "single")) {
            const std::string token = text(at(piece, "SpecialToken"), "id");
            for (const json& id : at(at(at(p, "special_tokens"), token.c_str()), "ids")) TRY(add(id));
            if (!at(piece, "Sequence").is_null()) to = &v.after;
        }
        std::vector<int> ids;
        to = &ids;
        for (const json& piece : at(p, "pair")) {
            const bool special = !at(piece, "SpecialToken").is_null();
            const json& part = at(piece, special ? "SpecialToken" : "Sequence");
            const json& segment = at(part, "type_id");
            if (!segment.is_number_integer() || segment < 0 || segment > 255 || v.pair.size() > 63)
                return wrong(where + ".pair", "at most 64 tokens and texts with a type_id", piece);
            ids.clear();
            if (!special) ids = {text(part, "id") == "B" ? TemplatePart::SECOND : TemplatePart::FIRST};
            for (const json& id : special ? at(at(at(p, "special_tokens"), text(part, "id").c_str()), "ids") : none)
                TRY(add(id));
            for (int id : ids) v.pair.push_back({id, segment.get<int>()});
        }
        return {};
    }
    Status post_processor() {
        return each(at(root, "post_processor"), "post_processor", "processors",
                    [&](const json& p, const std::string& where) { return surround(p, where); });
    }

    Status read() {
        TRY(model());
        TRY(normalizer());
        TRY(pre_tokenizer());
        TRY(decoder());
        TRY(vocabulary());
        TRY(added_tokens());
        TRY(token_texts());
        TRY(merges());
        TRY(post_processor());
        if (v.before.size() == 1) v.bos = v.before[0];
        if (v.after.size() == 1) v.eos = v.after[0];
        if (v.model != ModelKind::bpe) {    // names of BERT, ALBERT and T5, which tokenizer.json alone does not tell
            const std::pair<const char*, int Vocabulary::*> names[] = {
                {"[PAD]", &Vocabulary::pad},   {"[CLS]", &Vocabulary::cls}, {"[SEP]", &Vocabulary::sep},
                {"[MASK]", &Vocabulary::mask}, {"<pad>", &Vocabulary::pad}, {"<mask>", &Vocabulary::mask}};
            for (auto& [token, field] : names)
                if (auto it = id_of.find(token); it != id_of.end()) v.*field = it->second;
        }
        return {};
    }
};
}    // namespace

Result<Vocabulary> tokenizer_json_parse(std::string_view text, const std::string& name) {
    // The document is freed before the tokenizer's tables are made, because it takes more memory
    // than the tokenizer.
    const json document = TRY(json_parse(text, name, 64));
    Reader reader(name, document);
    TRY(reader.read());
    return std::move(reader.v);
}

Result<Tokenizer> Tokenizer::parse(std::string_view text, const std::string& name) {
    return Tokenizer(TRY(tokenizer_json_parse(text, name)));
}
