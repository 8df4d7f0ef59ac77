// unigram.cpp - Unigram (Kudo 2018): a piece is segmented into the tokens whose scores have the
// largest sum. Viterbi's algorithm finds them from left to right.
//
// A character that is no token itself may be an unknown one, with a score of 10 below the lowest.
// Unknown characters side by side are one token, or byte tokens. Order of the comparisons and sums
// are Hugging Face's, so equal sums give equal ids.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>

#include "base/console.h"
#include "data/merge.h"
#include "piece_model.h"
#include "trie.h"

namespace {
// Hugging Face's library reads "-11.156723022460938" as the double next to 11156723022460938,
// divided by 1e15, which may be the neighbour of the nearest one. SentencePiece's scores are often
// exactly equal in sum, where this decides.
double as_read(double score) {
    char text[32];
    const char* const end = std::to_chars(text, text + sizeof text, std::abs(score), std::chars_format::scientific).ptr;
    uint64_t digits = 0;
    int exponent = 0;
    bool fraction = false;
    const char* p = text;
    for (; p < end && *p != 'e'; p++) {
        if (*p != '.') digits = digits * 10 + uint64_t(*p - '0'), exponent -= fraction;
        fraction |= *p == '.';
    }
    exponent += atoi(std::string(p + 1, size_t(end - p - 1)).c_str());
    if (exponent < -22 || exponent > 22) return score;
    double power = 1;    // exact
    for (int i = 0; i < std::abs(exponent); i++) power *= 10;
    const double read = exponent < 0 ? double(digits) / power : double(digits) * power;
    return std::signbit(score) ? -read : read;
}

class Unigram : public PieceModel {
  public:
    explicit Unigram(const Vocabulary& vocabulary) : v(vocabulary), trie(ordinary_texts(v)) {
        CHECK(v.scores.size() == v.tokens.size());
        for (double score : v.scores) scores.push_back(as_read(score));
        std::vector<char> outside(v.tokens.size());
        for (const AddedToken& a : v.added) outside[size_t(a.id)] = !a.in_model;
        double least = 0;
        bool any = false;
        for (size_t id = 0; id < v.scores.size(); id++) {
            if (v.tokens[id].empty() || outside[id]) continue;
            least = any ? std::min(least, scores[id]) : scores[id];
            any = true;
        }
        unknown_score = least - 10;
        byte_id.fill(-1);
        for (size_t id = 0; id < v.tokens.size(); id++)
            if (is_byte_token(v.tokens[id])) byte_id[static_cast<unsigned char>(byte_of_token(v.tokens[id]))] = int(id);
    }
    void encode(std::string_view piece, std::vector<int>& ids) const override {
        constexpr size_t FEW = 256;
        Cell few[FEW];
        std::vector<Cell> many;
        if (piece.size() < FEW) std::fill_n(few, piece.size() + 1, Cell{});
        else many.resize(piece.size() + 1);
        Cell* const cells = piece.size() < FEW ? few : many.data();
        search(piece, cells);
        const size_t first = ids.size();
        for (size_t end = piece.size(); end > 0;) {    // from the right, so the ids come in reverse order
            size_t begin = end - cells[end].length;
            if (cells[end].id >= 0) {
                ids.push_back(cells[end].id);
            } else {
                while (begin > 0 && cells[begin].id < 0) begin -= cells[begin].length;
                unknown(piece.substr(begin, end - begin), ids);
            }
            end = begin;
        }
        std::reverse(ids.begin() + int64_t(first), ids.end());
    }

  private:
    // The best segmentation of the text before an offset, and its last token. length 0: none yet.
    struct Cell {
        double score = 0;
        int id = -1;    // -1: an unknown character
        uint32_t length = 0;
    };
    const Vocabulary& v;
    Trie trie;
    std::vector<double> scores;    // by id
    double unknown_score = 0;
    std::array<int, 256> byte_id;

    void search(std::string_view piece, Cell* cells) const {
        for (size_t at = 0; at < piece.size();) {
            bool whole = true, single = false;
            const size_t character = piece[at] >= 0 ? 1 : utf8_character(piece.substr(at), whole);
            const double score = cells[at].score;
            auto offer = [&](size_t length, int id, double sum) {
                Cell& to = cells[at + length];
                if (to.length == 0 || sum > to.score) to = {sum, id, uint32_t(length)};
            };
            Trie::Node n{Trie::ROOT, -1};
            for (size_t i = at; i < piece.size() && n.at != Trie::NONE; i++) {
                n = trie.step(n.at, piece[i]);
                if (n.id < 0) continue;
                offer(i + 1 - at, n.id, scores[size_t(n.id)] + score);
                single |= i + 1 - at == character;
            }
            if (!single) offer(character, -1, unknown_score + score);
            at += character;
        }
    }
    // Appends the ids of unknown characters in reverse order.
    void unknown(std::string_view text, std::vector<int>& ids) const {
        if (const int id = trie.walk(Trie::ROOT, text).id; id >= 0) return ids.push_back(id);
        const bool bytes = v.byte_fallback && std::all_of(text.begin(), text.end(), [&](char c) {
                               return byte_id[static_cast<unsigned char>(c)] >= 0;
                           });
        for (size_t i = text.size(); bytes && i-- > 0;) ids.push_back(byte_id[static_cast<unsigned char>(text[i])]);
        if (!bytes && v.unknown >= 0) ids.push_back(v.unknown);
    }
};
}    // namespace

std::unique_ptr<PieceModel> unigram_model(const Vocabulary& v) { return std::make_unique<Unigram>(v); }
