// trie.h - finds all pieces of a vocabulary that a text begins with, in one walk over its bytes.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

class Trie {
  public:
    static constexpr uint32_t ROOT = 1, NONE = 0;
    struct Node {
        uint32_t at = NONE;    // NONE: no text of the trie begins so
        int id = -1;           // the text that ends here; -1: none does
    };
    // texts[id]; empty texts are left out. Of equal texts the last one counts.
    explicit Trie(const std::vector<std::string_view>& texts);
    Node step(uint32_t from, char byte) const {
        const uint64_t key = uint64_t(from) << 8 | static_cast<unsigned char>(byte);
        for (size_t i = bucket(key);; i = (i + 1) & mask) {
            if (edges[i].key == key) return edges[i].to;
            if (edges[i].key == 0) return {};
        }
    }
    Node walk(uint32_t from, std::string_view text) const {
        Node n{from, -1};
        for (size_t i = 0; i < text.size() && n.at != NONE; i++) n = step(n.at, text[i]);
        return n;
    }

  private:
    // One table of edges: a look-up costs one probe in the mean, and building is linear for any
    // vocabulary.
    struct Edge {
        uint64_t key = 0;    // node << 8 | byte
        Node to;
    };
    std::vector<Edge> edges;
    size_t mask = 0;
    size_t bucket(uint64_t key) const {
        key *= 0x9E3779B97F4A7C15u;
        return size_t(key >> 32 ^ key >> 20) & mask;
    }
};
