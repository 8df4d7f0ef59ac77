// row_order.h - in which order rows of heads are computed, where a grid has fewer blocks than there is work.
//
// Heads go together as many as L2 holds keys and values of. Of these the last rows, which see most keys under a causal
// mask, come first, head by head, then the rows before them. A block that is done takes the next: so all end at about
// the same time. (Dealt out beforehand, to and fro, blocks would wait for the last one: 7 % of the time by a count of
// tiles for 384 heads of 64, 1024 positions and 132 multiprocessors, 22 % for 32 heads of 128 and 8192.)
#pragma once
#include "base/common.h"

struct RowOrder {
    int heads, tiles, together;    // all sequences' heads; each one's tiles of rows; together <= heads
    HOST_DEVICE int all() const { return heads * tiles; }
    struct Rows {
        int head, tile;
    };
    HOST_DEVICE Rows operator[](int i) const {
        const int first = i / (together * tiles) * together, here = heads - first < together ? heads - first : together;
        const int rank = i - first * tiles;
        return {first + rank % here, tiles - 1 - rank / here};
    }
};
