// tokenizer_json_write.cpp - writes Hugging Face's tokenizer.json from any tokenizer.
#include <algorithm>

#include "data/bpe.h"
#include "files/json_write.h"

namespace {
Json typed(const char* type) { return Json::object("type", type); }
Json sequence(const char* list, const std::vector<Json>& steps) {
    if (steps.empty()) return {};
    if (steps.size() == 1) return steps[0];
    return typed("Sequence").set(list, Json::list(steps));
}

Json normalizer(const Vocabulary& v) {
    const char* const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    std::vector<Json> steps;
    for (const Normalization& n : v.normalization) {
        if (n.kind == Normalization::Kind::prepend) steps.push_back(typed("Prepend").set("prepend", n.to));
        else if (n.kind == Normalization::Kind::replace)
            steps.push_back(typed("Replace").set("pattern", Json::object("String", n.from), "content", n.to));
        else steps.push_back(typed(forms[int(n.kind)]));
    }
    return sequence("normalizers", steps);
}

Json byte_level(bool prefix, bool use_regex) {
    return typed("ByteLevel").set("add_prefix_space", prefix, "trim_offsets", true, "use_regex", use_regex);
}
Json metaspace(const char* scheme) {
    return typed("Metaspace").set("replacement", "▁", "prepend_scheme", scheme, "split", false);
}
Json pre_tokenizer(const Vocabulary& v) {
    const char* const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    const std::vector<Split>& splits = v.pattern == Pattern::other ? v.splits : pattern_row(v.pattern).splits;
    std::vector<Json> steps;
    bool bytes = v.symbols == Symbols::bytes;    // true until a ByteLevel step is added
    const bool prefixed = v.spaces == Spaces::prefixed;
    if (v.spaces >= Spaces::marked) {
        const char* const schemes[] = {"never", "first", "always"};
        steps.push_back(metaspace(schemes[int(v.spaces) - int(Spaces::marked)]));
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
    const Json mark = typed("Replace").set("pattern", Json::object("String", "▁"), "content", " ");
    std::vector<Json> steps = {v.strip == Strip::first_marks ? metaspace("always") : mark, typed("ByteFallback"),
                               typed("Fuse")};
    if (v.strip == Strip::space) steps.push_back(typed("Strip").set("content", " ", "start", 1, "stop", 0));
    return sequence("decoders", steps);
}

Json post_processor(const Vocabulary& v) {
    if (v.before.empty() && v.after.empty()) return {};
    Json single = Json::list(), pair = Json::list(), tokens = Json::object();
    std::vector<int> seen;
    auto add = [&](const std::vector<int>& ids) {
        for (int id : ids) {
            const std::string name = v.name(id);
            single.add(Json::object("SpecialToken", Json::object("id", name, "type_id", 0)));
            if (std::find(seen.begin(), seen.end(), id) != seen.end()) continue;
            seen.push_back(id);
            tokens.set(name, Json::object("id", name, "ids", Json::list().add(id), "tokens", Json::list().add(name)));
        }
    };
    auto text = [](const char* name, int type) {
        return Json::object("Sequence", Json::object("id", name, "type_id", type));
    };
    add(v.before);
    single.add(text("A", 0));
    add(v.after);
    pair.add(text("A", 0)).add(text("B", 1));
    return typed("TemplateProcessing").set("single", single, "pair", pair, "special_tokens", tokens);
}
}    // namespace

std::string Tokenizer::to_json() const {
    const Vocabulary& v = vocabulary();
    std::vector<std::string> spelled = v.tokens;
    if (v.symbols == Symbols::bytes)
        for (std::string& s : spelled) s = byte_alphabet().spell(s);
    std::vector<char> outside(v.tokens.size());
    Json user_defined = Json::list(), added = Json::list(), vocab = Json::object(), merges = Json::list();
    for (const AddedToken& a : v.added) {
        spelled[size_t(a.id)] = a.user_defined ? with_spaces(v.name(a)) : v.name(a);
        outside[size_t(a.id)] = !a.in_model;
        if (a.user_defined) user_defined.add(a.id);
    }
    for (const AddedToken& a : v.added)
        added.add(Json::object("id", a.id, "content", spelled[size_t(a.id)], "single_word", a.single_word, "lstrip",
                               a.lstrip, "rstrip", a.rstrip, "normalized", a.normalized, "special", a.special));
    for (size_t id = 0; id < spelled.size(); id++)
        if (!spelled[id].empty() && !outside[id]) vocab.set(spelled[id], id);
    for (const Merge& m : v.merges) {
        const std::string &left = spelled[size_t(m.left)], &right = spelled[size_t(m.right)];
        const bool spaces = left.find(' ') != std::string::npos || right.find(' ') != std::string::npos;
        merges.add(spaces ? Json::list().add(left).add(right) : Json(left + " " + right));
    }
    Json model = typed("BPE").set("dropout", nullptr, "unk_token",
                                  v.unknown < 0 ? Json() : Json(spelled[size_t(v.unknown)]),
                                  "continuing_subword_prefix", nullptr, "end_of_word_suffix", nullptr, "fuse_unk",
                                  v.fuse_unknown, "byte_fallback", v.byte_fallback, "ignore_merges", v.ignore_merges);
    // The key is flatgpt's own. Other readers find these tokens in the text, and put a space after
    // each.
    if (!user_defined.empty()) model.set("user_defined", user_defined);
    model.set("vocab", std::move(vocab), "merges", std::move(merges));
    return Json::object("version", "1.0", "truncation", nullptr, "padding", nullptr, "added_tokens", std::move(added),
                        "normalizer", normalizer(v), "pre_tokenizer", pre_tokenizer(v), "post_processor",
                        post_processor(v), "decoder", decoder(v), "model", std::move(model))
               .text(2) +
           "\n";
}
