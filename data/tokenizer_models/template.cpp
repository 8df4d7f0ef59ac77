// template.cpp - puts a tokenizer's special tokens around one text or two, for encoders (BERT).
#include <algorithm>

#include "data/bpe.h"

namespace {
// Numbers of tokens that are left of two texts (Hugging Face: longest_first). The shorter text
// loses tokens only if it has more than half; of an odd number the longer one gets the last.
std::pair<size_t, size_t> shortened(size_t a, size_t b, size_t most) {
    const bool swap = a > b;
    if (swap) std::swap(a, b);
    b = std::min(b, std::max(a, most - std::min(most, a)));
    if (a + b > most) a = most / 2, b = a + most % 2;
    return swap ? std::pair{b, a} : std::pair{a, b};
}
}    // namespace

EncodedText Tokenizer::encode_text(std::string_view text, int most, bool special) const {
    const Vocabulary& v = vocabulary();
    EncodedText out{v.before, {}, 0};
    std::vector<int> ids = encode(text, special);
    const size_t around = v.before.size() + v.after.size();
    out.whole = ids.size() + around;
    if (most > 0) ids.resize(std::min(ids.size(), size_t(most) - std::min(size_t(most), around)));
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.ids.insert(out.ids.end(), v.after.begin(), v.after.end());
    out.segments.assign(out.ids.size(), 0);
    return out;
}
EncodedText Tokenizer::encode_pair(std::string_view first, std::string_view second, int most, bool special) const {
    const Vocabulary& v = vocabulary();
    std::vector<TemplatePart> parts = v.pair;
    auto add = [&](int text, int segment) {
        for (int id : v.before) parts.push_back({id, segment});
        parts.push_back({text, segment});
        for (int id : v.after) parts.push_back({id, segment});
    };
    if (v.pair.empty()) add(TemplatePart::FIRST, 0), add(TemplatePart::SECOND, 1);
    std::vector<int> a = encode(first, special), b = encode(second, special);
    const size_t around = size_t(std::count_if(parts.begin(), parts.end(), [](auto& p) { return p.id >= 0; }));
    const size_t whole = a.size() + b.size() + around;
    if (most > 0) {
        const auto [na, nb] = shortened(a.size(), b.size(), size_t(most) - std::min(size_t(most), around));
        a.resize(na), b.resize(nb);
    }
    EncodedText out{{}, {}, whole};
    for (const TemplatePart& p : parts) {
        if (p.id >= 0) out.ids.push_back(p.id);
        else if (p.id == TemplatePart::FIRST) out.ids.insert(out.ids.end(), a.begin(), a.end());
        else out.ids.insert(out.ids.end(), b.begin(), b.end());
        out.segments.resize(out.ids.size(), p.segment);
    }
    return out;
}
