// row_order.h - the order in which a grid with fewer blocks than tiles computes rows of heads.
//
// A group is as many heads as L2 holds keys and values of. In a group the last rows of each head
// come first, because they attend to most keys under a causal mask, then the rows before them. A
// block that has finished takes the next tile, so all blocks end at about the same time. (If blocks
// got their tiles beforehand, in alternating directions, they would wait for the last one: 7 % of
// the time by a count of tiles for 384 heads of 64, 1024 positions and 132 multiprocessors, 22 %
// for 32 heads of 128 and 8192.)
#pragma once
#include "base/common.h"

struct RowOrder {
    int heads, tiles, together;    // over all sequences; per head; heads per group
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
