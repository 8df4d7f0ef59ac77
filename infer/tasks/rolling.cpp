// rolling.cpp - see rolling.h.
#include "rolling.h"

#include <algorithm>

#include "infer/jinja/value.h"

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
