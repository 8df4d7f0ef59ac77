// config.cpp - what a model is: its sizes, and the presets by name.
#include "config.h"

#include <algorithm>
#include <cstdlib>

// ---- configuration --------------------------------------------------------------------------------------------------

Status config_check(const Config& c) {
    struct {
        const char* name;
        int64_t value, min, max;
    } sizes[] = {{"vocabulary", c.V, 2, 1 << 24}, {"context", c.T, 1, 1 << 20},  {"layers", c.L, 1, 1024},
                 {"heads", c.NH, 1, 1024},        {"channels", c.C, 1, 1 << 16}, {"ffn width", c.F, 1, 1 << 18}};
    for (auto& s : sizes)
        if (s.value < s.min || s.value > s.max)
            return fail(Exit::usage, "%s: expected %lld to %lld, found %lld", s.name, (long long)s.min,
                        (long long)s.max, (long long)s.value);
    if (c.C % c.NH) return fail(Exit::usage, "channels (%d) are not a multiple of heads (%d)", c.C, c.NH);
    if (!(c.norm_eps > 0 && c.norm_eps < 1))
        return fail(Exit::usage, "norm epsilon: expected 0 to 1, found %g", double(c.norm_eps));
    return {};
}

Result<Config> config_named(const std::string& name) {
    struct {
        const char* name;
        int L, NH, C;
    } known[] = {
        {"gpt2", 12, 12, 768}, {"gpt2-medium", 24, 16, 1024}, {"gpt2-large", 36, 20, 1280}, {"gpt2-xl", 48, 25, 1600}};
    Config c;
    for (auto& k : known)
        if (name == k.name) {
            c.L = k.L, c.NH = k.NH, c.C = k.C, c.F = 4 * k.C;
            return c;
        }
    char* end = nullptr;
    long depth = name.size() > 1 && name[0] == 'd' ? strtol(name.c_str() + 1, &end, 10) : 0;
    if (depth < 1 || depth > 1024 || *end || name[1] < '0' || name[1] > '9')
        return fail(Exit::usage,
                    "model '%s': expected gpt2, gpt2-medium, gpt2-large, gpt2-xl, or d and a depth such as d6",
                    name.c_str());
    c.L = c.NH = int(depth), c.C = 64 * c.L, c.F = 4 * c.C;
    return c;
}
