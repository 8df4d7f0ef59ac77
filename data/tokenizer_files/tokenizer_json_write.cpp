// tokenizer_json_write.cpp - writes Hugging Face's tokenizer.json from any tokenizer.
#include <algorithm>

#include "data/bpe.h"
#include "data/tokenizer_models/piece_model.h"
#include "files/json_write.h"
#include "files/picture.h"

namespace {
Json typed(const char* type) { return Json::object("type", type); }
Json sequence(const char* list, const std::vector<Json>& steps) {
    if (steps.empty()) return {};
    if (steps.size() == 1) return steps[0];
    return typed("Sequence").set(list, Json::list(steps));
}

Json normalizer(const Vocabulary& v) {
    using Kind = Normalization::Kind;
    const char* const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    auto replace = [](const char* kind, const std::string& from, const std::string& to) {
        return typed("Replace").set("pattern", Json::object(kind, from), "content", to);
    };
    auto strip = [](bool left) { return typed("Strip").set("strip_left", left, "strip_right", !left); };
    std::vector<Json> steps;
    for (const Normalization& n : v.normalization) {
        auto has = [&](char step) { return n.to.find(step) != std::string::npos; };
        switch (n.kind) {
            case Kind::prepend: steps.push_back(typed("Prepend").set("prepend", n.to)); break;
            case Kind::replace: steps.push_back(replace("String", n.from, n.to)); break;
            case Kind::runs: steps.push_back(replace("Regex", " {2,}", n.to)); break;
            case Kind::bert:
                steps.push_back(typed("BertNormalizer")
                                    .set("clean_text", has(BERT_CLEAN), "handle_chinese_chars", has(BERT_CHINESE),
                                         "strip_accents", has(BERT_ACCENTS), "lowercase", has(BERT_LOWERCASE)));
                break;
            case Kind::strip_accents: steps.push_back(typed("StripAccents")); break;
            case Kind::lowercase: steps.push_back(typed("Lowercase")); break;
            case Kind::strip_left:
            case Kind::strip_right: steps.push_back(strip(n.kind == Kind::strip_left)); break;
            case Kind::charsmap_sp:    // the nearest that this format has
            case Kind::charsmap:
                steps.push_back(typed("Precompiled").set("precompiled_charsmap", base64(n.from)));
                break;
            case Kind::squeeze:
                for (const Json& step : {strip(true), strip(false), replace("Regex", " {2,}", " ")})
                    steps.push_back(step);
                break;
            case Kind::nfc:
            case Kind::nfd:
            case Kind::nfkc:
            case Kind::nfkd: steps.push_back(typed(forms[int(n.kind)]));
        }
    }
    return sequence("normalizers", steps);
}

Json byte_level(bool prefix, bool use_regex) {
    return typed("ByteLevel").set("add_prefix_space", prefix, "trim_offsets", true, "use_regex", use_regex);
}
Json metaspace(const char* scheme, bool split) {
    return typed("Metaspace").set("replacement", "▁", "prepend_scheme", scheme, "split", split);
}
Json pre_tokenizer(const Vocabulary& v) {
    const char* const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    const std::vector<Split>& splits = v.pattern == Pattern::other ? v.splits : pattern_row(v.pattern).splits;
    std::vector<Json> steps;
    if (v.pattern == Pattern::bert && v.spaces == Spaces::kept) return typed("BertPreTokenizer");
    bool bytes = v.symbols == Symbols::bytes;    // true until a ByteLevel step is added
    const bool prefixed = v.spaces == Spaces::prefixed;
    if (v.spaces >= Spaces::marked) {
        const char* const schemes[] = {"never", "first", "always", "always"};
        if (v.spaces == Spaces::marked_words) steps.push_back(typed("WhitespaceSplit"));
        steps.push_back(metaspace(schemes[int(v.spaces) - int(Spaces::marked)], v.pattern == Pattern::metaspace));
        if (v.pattern == Pattern::metaspace) return sequence("pretokenizers", steps);
    }
    if (prefixed && !(splits.size() == 1 && splits[0].regex == GPT2_REGEX)) {    // the space comes before every step
        steps.push_back(byte_level(true, false));
        bytes = false;
    }
    for (size_t i = 0; i < splits.size(); i++) {
        const Split& cut = splits[i];
        const bool last = i + 1 == splits.size() || splits[i + 1].spelled;    // the last split before ByteLevel
        if (bytes && last && cut == Split{GPT2_REGEX}) {
            steps.push_back(byte_level(prefixed, true));
            bytes = false;
            continue;
        }
        if (bytes && cut.spelled) {
            steps.push_back(byte_level(false, false));
            bytes = false;
        }
        steps.push_back(typed("Split").set("pattern", Json::object("Regex", cut.regex), "behavior",
                                           names[int(cut.behavior)], "invert", cut.invert));
    }
    if (bytes) steps.push_back(byte_level(false, false));
    return sequence("pretokenizers", steps);
}

Json decoder(const Vocabulary& v) {
    if (v.symbols == Symbols::bytes) return byte_level(false, true);
    if (v.strip == Strip::words) return typed("WordPiece").set("prefix", v.continuing, "cleanup", v.cleanup);
    const Json mark = typed("Replace").set("pattern", Json::object("String", "▁"), "content", " ");
    std::vector<Json> steps = {v.strip == Strip::first_marks ? metaspace("always", true) : mark, typed("ByteFallback"),
                               typed("Fuse")};
    if (v.strip == Strip::space) steps.push_back(typed("Strip").set("content", " ", "start", 1, "stop", 0));
    return sequence("decoders", steps);
}

Json post_processor(const Vocabulary& v) {
    if (v.before.empty() && v.after.empty() && v.pair.empty()) return {};
    Json single = Json::list(), pair = Json::list(), tokens = Json::object();
    std::vector<int> seen;
    auto add = [&](Json& list, const std::vector<int>& ids, int segment) {
        for (int id : ids) {
            const std::string name = v.name(id);
            list.add(Json::object("SpecialToken", Json::object("id", name, "type_id", segment)));
            if (std::find(seen.begin(), seen.end(), id) != seen.end()) continue;
            seen.push_back(id);
            tokens.set(name, Json::object("id", name, "ids", Json::list().add(id), "tokens", Json::list().add(name)));
        }
    };
    auto text = [](const char* name, int type) {
        return Json::object("Sequence", Json::object("id", name, "type_id", type));
    };
    add(single, v.before, 0);
    single.add(text("A", 0));
    add(single, v.after, 0);
    for (const TemplatePart& part : v.pair) {
        if (part.id < 0) pair.add(text(part.id == TemplatePart::FIRST ? "A" : "B", part.segment));
        else add(pair, {part.id}, part.segment);
    }
    if (v.pair.empty()) pair.add(text("A", 0)).add(text("B", 1));
    return typed("TemplateProcessing").set("single", single, "pair", pair, "special_tokens", tokens);
}
void bpe_parts(const Vocabulary& v, const std::vector<std::string>& spelled, Json vocab, Json& model) {
    Json merges = Json::list(), user_defined = Json::list();
    for (const Merge& m : v.merges) {
        const std::string &left = spelled[size_t(m.left)], &right = spelled[size_t(m.right)];
        const bool spaces = left.find(' ') != std::string::npos || right.find(' ') != std::string::npos;
        merges.add(spaces ? Json::list().add(left).add(right) : Json(left + " " + right));
    }
    for (const AddedToken& a : v.added)
        if (a.user_defined) user_defined.add(a.id);
    model.set("dropout", nullptr, "unk_token", v.unknown < 0 ? Json() : Json(spelled[size_t(v.unknown)]),
              "continuing_subword_prefix", nullptr, "end_of_word_suffix", nullptr, "fuse_unk", v.fuse_unknown,
              "byte_fallback", v.byte_fallback, "ignore_merges", v.ignore_merges);
    // The key is flatgpt's own. Other readers find these tokens in the text, and put a space after
    // each.
    if (!user_defined.empty()) model.set("user_defined", user_defined);
    model.set("vocab", std::move(vocab), "merges", std::move(merges));
}
}    // namespace

std::string Tokenizer::to_json() const {
    const Vocabulary& v = vocabulary();
    std::vector<std::string> spelled = v.tokens;
    if (v.symbols == Symbols::bytes)
        for (std::string& s : spelled) s = byte_alphabet().spell(s);
    std::vector<char> outside(v.tokens.size());
    Json added = Json::list(), vocab = Json::object();
    for (const AddedToken& a : v.added) {
        spelled[size_t(a.id)] = a.user_defined ? with_spaces(v.name(a)) : v.name(a);
        outside[size_t(a.id)] = !a.in_model;
    }
    for (const AddedToken& a : v.added)
        added.add(Json::object("id", a.id, "content", spelled[size_t(a.id)], "single_word", a.single_word, "lstrip",
                               a.lstrip, "rstrip", a.rstrip, "normalized", a.normalized, "special", a.special));
    for (size_t id = 0; id < spelled.size(); id++)
        if (!spelled[id].empty() && !outside[id]) vocab.set(spelled[id], id);
    Json model = typed(model_row(v.model).type);
    const Json unknown = v.unknown < 0 ? Json() : Json(spelled[size_t(v.unknown)]);
    if (v.model == ModelKind::wordpiece) {
        model.set("unk_token", unknown, "continuing_subword_prefix", v.continuing, "max_input_chars_per_word",
                  v.longest_word, "vocab", std::move(vocab));
    } else if (v.model == ModelKind::unigram) {
        Json scored = Json::list();
        for (size_t id = 0; id < spelled.size() && !outside[id]; id++)
            scored.add(Json::list().add(spelled[id]).add(v.scores[id]));
        model.set("unk_id", v.unknown < 0 ? Json() : Json(v.unknown), "vocab", std::move(scored), "byte_fallback",
                  v.byte_fallback);
    } else {
        bpe_parts(v, spelled, std::move(vocab), model);
    }
    return Json::object("version", "1.0", "truncation", nullptr, "padding", nullptr, "added_tokens", std::move(added),
                        "normalizer", normalizer(v), "pre_tokenizer", pre_tokenizer(v), "post_processor",
                        post_processor(v), "decoder", decoder(v), "model", std::move(model))
               .text(2) +
           "\n";
}
