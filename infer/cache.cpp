// cache.cpp - which cache a command asks for.
#include <algorithm>

#include "generate.h"

// Every layer keeps a state, none keys and values.
static bool states_alone(const Config& c) { return c.recurrent_before(c.L) == c.L; }

Result<std::optional<Element>> cache_type(const Config& c, const std::string& name, Element activation) {
    if (name == "auto") return std::optional<Element>();
    if (states_alone(c))
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

Result<CacheRoom> cache_room(const Config& c, const CacheChoice& choice, int64_t length) {
    if (choice.positions > c.T)
        return fail(Exit::usage, "--cache %d: the model's context has %d positions%s", choice.positions, c.T,
                    c.position == Position::learned ? "" : "; --context asks for more");
    const char* why = cache_cannot_roll(c);
    const int needed = cache_positions(c);
    if (choice.sinks >= 0 && why) return fail(Exit::usage, "--sinks %d: %s; leave it out", choice.sinks, why);
    if (choice.positions && c.sees != Sees::causal)
        return fail(Exit::usage, "--cache %d: %s; leave it out", choice.positions, why);
    if (states_alone(c) && !why) {
        const char* option = choice.positions ? "--cache" : choice.sinks >= 0 ? "--sinks" : nullptr;
        if (option)
            return fail(Exit::usage, "%s %d: with --linear-attention in all layers no position is kept; leave it out",
                        option, choice.positions ? choice.positions : choice.sinks);
        return CacheRoom{INT32_MAX / 2, 0, true, true};
    }
    CacheRoom room = {choice.positions ? choice.positions : c.T, choice.sinks < 0 ? 4 : choice.sinks, false, false};
    for (int l = 0; l < c.L; l++) room.sinks = std::max(room.sinks, c.heads(l).globals);
    const int least = (pages_for(room.sinks) + 3) * Pages::SIZE;
    if (length <= std::min(room.positions, needed)) {
        room.positions = int(length);
    } else if (!why) {
        room.exact = needed < c.T && needed <= room.positions;
        if (room.exact && choice.sinks > 0)
            return fail(Exit::usage, "--sinks %d: each layer has a window, none would see them", choice.sinks);
        if (room.exact) room.positions = needed, room.sinks = 0;
        room.rolls = room.exact || room.positions >= least;
        if (!room.rolls && choice.sinks >= 0)
            return fail(Exit::usage, "--sinks %d: a cache of %d positions has no room for them: at least %d",
                        choice.sinks, room.positions, least);
    }
    return room;
}

std::vector<Flag> cache_flags(CacheChoice& choice) {
    return {{"--cache-dtype",
             &choice.type,
             "type of cached keys and values; auto: as activations are. fp8 and int8 "
             "hold a factor for each key and value of a head",
             0,
             0,
             {"auto", "fp32", "bf16", "fp8", "int8"}},
            {"--cache", &choice.positions,
             "positions that a sequence keeps: the oldest are given up, page by page; "
             "it goes on from its last half instead where there is no room for the sinks and three pages (64 with 4 "
             "sinks), with a stride, and where positions are a table; 0: the model's context",
             0, 1 << 24},
            {"--sinks",
             &choice.sinks,
             "the first so many positions are never given up, rounded up to 16; auto: 4, "
             "where any are given up",
             -1,
             4096,
             {"auto"}}};
}
