// requests.cpp - see requests.h.
#include "requests.h"

#include <algorithm>

#include "infer/jinja/value.h"

int prefix_token(const Tokenizer& tokenizer) {
    const Vocabulary& v = tokenizer.vocabulary();
    for (int id : {v.bos, v.eos, tokenizer.end_of_text()})
        if (id >= 0) return id;
    return 0;
}
std::vector<int> encode_context(const Tokenizer& tokenizer, const std::string& text) {
    const std::string first(tokenizer.token(prefix_token(tokenizer)));
    const bool has_bos = !first.empty() && text.starts_with(first);
    return has_bos ? tokenizer.encode(text, true) : tokenizer.encode_prompt(text);
}

Result<std::vector<LikelihoodRequest>> encode_requests(const Tokenizer& tokenizer, const std::string& context,
                                                       const std::vector<std::string>& continuations, int T) {
    const std::string kept = jinja::strip(context, {}, false, true);
    const std::vector<int> before = kept.empty() ? std::vector<int>{} : encode_context(tokenizer, kept);
    std::vector<LikelihoodRequest> all;
    for (const std::string& continuation : continuations) {
        LikelihoodRequest r{.tokens = before};
        std::vector<int> whole = kept.empty() ? tokenizer.encode(context + continuation, true)
                                              : encode_context(tokenizer, context + continuation);
        if (before.empty() && (whole.empty() || whole[0] != prefix_token(tokenizer)))
            r.tokens.push_back(prefix_token(tokenizer));
        else if (before.empty()) {
            r.tokens.push_back(whole[0]);
            whole.erase(whole.begin());
        }
        if (whole.size() > before.size())
            r.tokens.insert(r.tokens.end(), whole.begin() + ptrdiff_t(before.size()), whole.end());
        r.from = int(r.tokens.size()) - int(whole.size() - std::min(whole.size(), before.size()));
        const int length = int(r.tokens.size()) - r.from;
        if (length == 0)
            return fail(Exit::input, "expected an answer of at least one token, found \"%s\"",
                        continuation.substr(0, 80).c_str());
        if (length > T)
            return fail(Exit::input, "expected an answer of at most %d tokens, the model's context, found %d", T,
                        length);
        if (const int over = int(r.tokens.size()) - T - 1; over > 0) {
            r.tokens.erase(r.tokens.begin(), r.tokens.begin() + over);
            r.from -= over;
        }
        all.push_back(std::move(r));
    }
    return all;
}

std::vector<LikelihoodRequest> rolling_windows(const std::vector<int>& text, int prefix, int context, int stride,
                                               int64_t group) {
    CHECK(stride >= 1 && stride <= context, "stride %d of %d", stride, context);
    std::vector<int> all = {prefix};
    all.insert(all.end(), text.begin(), text.end());
    std::vector<LikelihoodRequest> windows;
    for (int scored = 0, n = int(text.size()); scored < n;) {
        const int end = std::min(n, scored + (scored ? stride : context));
        const int begin = std::max(0, end - context);
        windows.push_back({{all.begin() + begin, all.begin() + end + 1}, scored + 1 - begin, group++});
        scored = end;
    }
    return windows;
}

int64_t count_words(const std::string& text) {
    int64_t words = 1;
    bool space = false;
    for (char32_t c : jinja::to_utf32(text)) {
        words += jinja::is_space(c) && !space;
        space = jinja::is_space(c);
    }
    return words;
}
