// cache_flags.cpp - options for the key/value cache, and their checks.
#include <algorithm>

#include "generate.h"

// Whether every layer has linear attention, and so no keys and values to cache.
static bool all_recurrent(const Config& c) { return c.recurrent_layers_below(c.L) == c.L; }

bool has_narrow_weights(const Model& model) { return model.store.packed.bytes_beside_fp32() < 0; }

Result<std::optional<Element>> cache_type(const Config& c, const std::string& name, Element activation,
                                          bool narrow_weights) {
    if (name == "auto" && narrow_weights && activation == Element::f32 && !all_recurrent(c))
        return std::optional<Element>(Element::bf16);
    if (name == "auto") return std::optional<Element>();
    if (all_recurrent(c))
        return fail(Exit::usage,
                    "--cache-dtype %s: with --linear-attention in all layers no keys and values are kept; "
                    "leave it out",
                    name.c_str());
    const Element type = name == "fp8"    ? Element::fp8
                         : name == "int8" ? Element::int8
                         : name == "bf16" ? Element::bf16
                                          : Element::f32;
    if (type == Element::f32 && activation == Element::bf16)
        return fail(Exit::usage, "--cache-dtype fp32 with --dtype bf16: keys and values are computed as bf16");
    return std::optional<Element>(type);
}

Result<CacheLimits> cache_limits(const Config& c, const CacheFlags& options, int64_t length) {
    if (options.positions > c.T)
        return fail(Exit::usage, "--cache %d: the model's context has %d positions%s", options.positions, c.T,
                    c.position == Position::learned ? "" : "; --context asks for more");
    const char* why = why_no_eviction(c);
    const int needed = cache_positions(c);
    if (options.sinks >= 0 && why) return fail(Exit::usage, "--sinks %d: %s; leave it out", options.sinks, why);
    if (options.positions && c.mask_kind != MaskKind::causal)
        return fail(Exit::usage, "--cache %d: %s; leave it out", options.positions, why);
    if (all_recurrent(c) && !why) {
        const char* option = options.positions ? "--cache" : options.sinks >= 0 ? "--sinks" : nullptr;
        if (option)
            return fail(Exit::usage, "%s %d: with --linear-attention in all layers no position is kept; leave it out",
                        option, options.positions ? options.positions : options.sinks);
        return CacheLimits{INT32_MAX / 2, 0, true, true};
    }
    CacheLimits limits = {options.positions ? options.positions : c.T, options.sinks < 0 ? 4 : options.sinks, false,
                          false};
    for (int l = 0; l < c.L; l++) limits.sinks = std::max(limits.sinks, c.heads(l).global_tokens);
    const int least = (pages_for(limits.sinks) + 3) * Pages::SIZE;
    if (length <= std::min(limits.positions, needed)) {
        limits.positions = int(length);
    } else if (!why) {
        limits.lossless = needed < c.T && needed <= limits.positions;
        if (limits.lossless && options.sinks > 0)
            return fail(Exit::usage,
                        "--sinks %d: each layer has a window, no position would attend to them; leave it out",
                        options.sinks);
        if (limits.lossless) limits.positions = needed, limits.sinks = 0;
        limits.evicts = limits.lossless || limits.positions >= least;
        if (!limits.evicts && options.sinks >= 0)
            return fail(Exit::usage, "--sinks %d: a cache of %d positions has no room for them: at least %d",
                        options.sinks, limits.positions, least);
    }
    return limits;
}

std::vector<Flag> cache_flags(CacheFlags& options) {
    return {{"--cache-dtype",
             &options.type,
             "type of cached keys and values; auto: the activations' type, but bf16 with weights of 16 bits or "
             "fewer. fp8 and int8 store a scale for each key and value of a head",
             0,
             0,
             {"auto", "fp32", "bf16", "fp8", "int8"}},
            {"--cache", &options.positions,
             "positions that a sequence keeps: the oldest are evicted, page by page. The last half is "
             "fed again instead if the sinks and three pages do not fit (64 with 4 sinks), with strided attention, "
             "with smear, and with learned positions; 0: the model's context",
             0, 1 << 24},
            {"--sinks",
             &options.sinks,
             "number of first positions that are never evicted, rounded up to 16; auto: 4, "
             "if any are evicted",
             -1,
             4096,
             {"auto"}}};
}
