// head_report.h - what `flatgpt inspect` has measured of attention heads, as text, JSON, CSV and pictures.
#pragma once
#include "attention_maps.h"
#include "files/picture.h"
#include "data/bpe.h"

// A score, one row each: its column in tables, its field in JSON and CSV, its map in the picture.
struct ScoreColumn {
    const char *name, *title, *format;
    bool part;    // within 0 to 1
    HeadScores::Score HeadScores::*field;
};

struct HeadReport {
    const Tokenizer& tokenizer;
    std::vector<HeadIndex> heads = {};             // by layer; equally many in each
    std::vector<HeadSums> sums = {};               // each head's
    std::vector<double> importance = {};           // each head's, nats; empty: not measured
    std::vector<int> tokens = {};                  // the text's; empty: there is none
    std::vector<std::vector<double>> maps = {};    // (S,S) each; empty where nobody looks at them

    std::vector<ScoreColumn> columns() const;    // without importance where that was not measured
    HeadScores scores(size_t i) const;
    std::vector<int> layers() const;
    // A layer's mean over its heads; best: the one with the highest induction score, none where no head has one.
    HeadScores layer(int l, std::optional<int>* best) const;
    std::vector<int> broken_layers() const;    // whose maps are not finite
};

constexpr size_t MAPS_SHOWN = 4;    // print_report prints no maps of more heads
void print_report(const HeadReport& r);
void print_report_json(const HeadReport& r, bool with_maps);
// A text's maps, a line for each probability that is not 0; without a text the scores. Exit 2, 4: as of replace_file.
Status write_report_csv(const std::string& path, const HeadReport& r);
// A text's maps: one with its tokens' texts, or many small ones. Without a text the scores: a map of layers and heads
// for each; of: what they were measured on, for the title, may be empty. Exit 1, 2, 4.
Status write_report_picture(const std::string& path, const HeadReport& r, const std::string& subject);
