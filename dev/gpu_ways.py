"""The ways that warps take through attention's kernels, and how often: for gpu_time.py. Masks, dropout's random numbers
and biases lie behind branches that the shortest way leaves out. Here a way is named by what it must pass, and a row's
mask says how many tiles are visited, and how many of these are masked."""
import bisect
import math
import re

from sass_read import branch, shortest_round

# What lies behind branches, by instructions that are hardly anywhere else in these loops. EXP2:
# exp2f, not tanh's.
PHILOX, MASK, TANH, EXP2 = r"IMAD\.WIDE\.U32", r"FSEL .*-INF", r"MUFU\.RCP", r"FSETP.*, -126"


def way_with(pattern, code):
    """The way through code, round no loop within, that has most of these instructions, in the fewest of all."""
    index, best, ends = {i.address: n for n, i in enumerate(code)}, {0: (0, 0, None)}, []
    for n, i in enumerate(code):
        if n not in best:
            continue
        here = (best[n][0] + bool(re.match(pattern, f"{i.op} {i.operands}")), best[n][1] - 1, n)
        target, always = branch(i)
        if n + 1 == len(code) or (i.op in ("EXIT", "RET") and not i.predicate) or (always and target <= i.address):
            ends.append(here)
            continue
        for way in [index.get(target)] + ([] if always else [n + 1]):
            if way is not None and way > n and here[:2] > best.get(way, (-1,))[:2]:
                best[way] = here
    way, at = [], max(ends)[2]
    while at is not None:
        way.append(code[at])
        at = best[at][2]
    return way[::-1]


# ---- masks: spans, whose ends never go back, as layers/attention/visible_keys.h has them ---------

def causal(S):
    return [(0, i + 1) for i in range(S)]


def sees_of(row):
    """The keys from..to that each query of a sequence sees."""
    return row["spans"] or causal(row["S"])


def seen_by(sees):
    """The queries from..to that see each key."""
    froms, tos = zip(*sees)
    return [(bisect.bisect_right(tos, key), bisect.bisect_right(froms, key)) for key in range(len(sees))]


def visits(sees, rows, columns):
    """[(tiles of so many columns that the next rows visit, those of them that all of these rows see)]"""
    for n in range(0, len(sees), rows):
        first, last = sees[n], sees[min(n + rows, len(sees)) - 1]
        yield (max(0, math.ceil(last[1] / columns) - first[0] // columns),
               max(0, first[1] // columns - math.ceil(last[0] / columns)))


def streams_of(row, keys):
    """What rows, queries or keys, see of each stream: of all keys, then of those of a pattern."""
    sees, S, globals, stride = sees_of(row), row["S"], row["globals"], row["stride"]
    streams = [(0, 1, min(globals, S))] if globals else []
    if stride and (first := math.ceil(globals / stride) * stride) < S:
        streams.append((first, stride, math.ceil((S - first) / stride)))
    yield seen_by(sees) if keys else sees
    for first, step, n in streams:
        if keys:
            yield [(first + t * step, S) for t in range(n)]
        else:
            yield [(0, min(n, max(0, math.ceil((begin - first) / step)))) for begin, _ in sees]


# ---- attention by mma.sync -----------------------------------------------------------------------

class Tiles:
    """What a warp of layers/attention's sm80, sm80_backward and position_bias does. rows, columns: of its part of a tile. terms:
    of all products that have it on one side. share: warps that compute the same part. keys: its rows are keys."""

    def __init__(self, kernel, D, drops):
        self.mma, self.keys, self.drops = kernel == "mma", kernel == "key", drops
        self.share = 2 if self.keys and D > 128 else 1    # each of them has half of dk's and dv's columns
        self.terms = {"forward": 2, "mma": 2, "query": 3, "key": 4 if self.share == 1 else 3}[kernel] * D
        if kernel in ("forward", "mma"):
            self.rows, self.columns = 16 if self.mma or D > 128 else 32, 64 if self.mma or D <= 64 else 32
        else:
            self.rows, self.columns = 16 if D > 64 else 32, 16 if D > 128 else 32

    @staticmethod
    def of(k):
        found = re.match(r"attention/(?:sm80|sm80_backward|position_bias) (forward|query|key|mma)_kernel<(\d+)(.*, true>)?",
                         f"{k.file} {k.name}")
        # The flag of position_bias is not dropout's: each query has its own biases.
        return Tiles(found[1], int(found[2]), bool(found[3]) and found[1] != "mma") if found else None

    def ways(self, k, softcap=0):
        """Round a tile that all rows see, and round one where pairs are masked. The biases' gradient has one way, as it
        asks of each pair; the loops that copy its tiles lie within, and go round once."""
        loop, passes = k.loop_with("HMMA"), ["HMMA"] + [PHILOX] * self.drops + [TANH] * (softcap != 0)
        if not self.mma:
            return [way_with("|".join(passes + also), loop) for also in ([], [MASK])]
        copies = [inner for inner in k.inner_loops() if k.count("LDGSTS", inner)]
        pairs = way_with("|".join(passes + [EXP2, r"LDG\.E "]), loop)
        return [sum(map(shortest_round, copies), pairs)] * 2

    def rounds(self, row):
        """(warps' rounds without a mask, those with one) of the row's call"""
        tiles = full = 0
        for sees in streams_of(row, self.keys):
            # The four warps of the biases' gradient take the same tiles.
            for n, seen in visits(sees, 64 if self.mma else self.rows, self.columns):
                tiles, full = tiles + n, full + seen
        each = row["B"] * row["NH"] * (4 if self.mma else self.share)
        return full * each, (tiles - full) * each

    def multiplications(self):
        """Philox's for a lane's part of a tile, counted by hand. A call gives 4 pairs' words in 10 rounds of 2. It
        begins as the key, the query and a stream, which is all tiles'; nvcc computes once what follows from one of
        them: the first round's product of the key, the second's of the key and of the query; the stream's outside."""
        own, other = self.rows // 16, self.columns // 8
        keys, queries = (own, other) if self.keys else (other, own)
        return own * other * 8 * 2 + 2 * keys + queries

    def check(self, k):
        """[(whether, what is wrong otherwise)]: what a way has, as counted by hand."""
        pairs = self.rows * self.columns // 32    # a lane's
        for way, masks in zip(self.ways(k), (0, 0 if self.mma else pairs)):
            yield (k.count("HMMA", way) == self.rows * self.columns * self.terms // (16 * 8 * 16),
                   f"{k}: its tiles have other sizes than gpu_ways.py says")
            yield (sum(bool(re.match(MASK, f"{i.op} {i.operands}")) for i in way) == masks,
                   f"{k}: expected {masks} masked pairs on a way round a tile")
            drawn, hand = k.count(PHILOX, way), self.multiplications()    # addresses have a few of their own
            yield (not self.drops or hand <= drawn < hand + 20,
                   f"{k}: {drawn} wide multiplications on a way round a tile, {hand} of them by hand")


# ---- attention without softmax -------------------------------------------------------------------

class Walk:
    """A walk of layers/attention/recurrent.cu: it fills shared memory with decays and three operands of a chunk, and
    multiplies."""

    def __init__(self, k, walk):
        inner = sorted(k.inner_loops(), key=lambda loop: loop[0].address)
        step = k.loops()[-1][0].address
        self.back, self.along, self.first = walk > 1, walk in (0, 3), walk == 0    # dk, dv; y, dv; y
        self.product = max(inner, key=lambda loop: k.count("FFMA", loop))
        self.fills = [loop for loop in inner if loop[0].address > step and k.count("LDG", loop) and
                      k.count("STS", loop) and not k.count("STG", loop)]

    @staticmethod
    def of(k):
        found = re.match(r"attention/recurrent walk_kernel<bf16, \(Walk\)(\d)", f"{k.file} {k.name}")
        return Walk(k, int(found[1])) if found else None

    def rounds(self, row, k):
        """[(a warp's way, how often)] of the row's call."""
        HS, heads, elu, gated = row["HS"], row["NH"] // row["NKV"], row["linear"] == 1, row["linear"] == 3
        n, terms, columns = 32 if HS <= 128 else 16, HS + elu * (not self.along), HS + elu * self.first
        chunks = row["B"] * row["NKV"] * math.ceil(row["S"] / n) * math.ceil(columns / 32)
        flops = 2 * n * 32 * (heads * (2 * terms + n) + terms)    # scores, chunk and state of each head; the state
        found = [(self.product, chunks * flops / (64 * k.count("FFMA", self.product)))]
        decays, *operands = self.fills    # in the order of the code
        if not elu:
            way = way_with("LDG|STS", decays) if gated else shortest_round(decays)
            found.append((way, chunks * n * (HS if self.along else 32) / 32))
        for loop, width in zip(operands, ((1, terms), (heads, terms), (heads, 32)) if self.back else
                               ((1, terms), (1, 32), (heads, terms))):
            way = way_with("LDG|STS|" + (r"MUFU\.EX2" if elu else "LDS"), loop)
            found.append((way, chunks * n * math.prod(width) / 32 / k.count("STS", way)))
        return found

    def check(self, k):
        yield len(self.fills) == 4, f"{k}: expected loops that fill decays and three operands"


def executed(k, row):
    """[(a warp's way, how often)] of a call; None: another kernel, or too short a call."""
    if tiles := Tiles.of(k):
        return list(zip(tiles.ways(k, row["softcap"]), tiles.rounds(row)))
    walk = Walk.of(k)
    return walk.rounds(row, k) if walk and row["S"] > 1 else None


def check(kernels):
    return [checked for k in kernels for known in [Tiles.of(k) or Walk.of(k)] if known for checked in known.check(k)]
