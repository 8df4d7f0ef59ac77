// head_report.h - output of `flatgpt inspect`: text, JSON, CSV and pictures.
#pragma once
#include "attention_maps.h"
#include "files/picture.h"
#include "data/bpe.h"

// A score and its display: a column in tables, a field in JSON and CSV, a panel in the picture.
struct ScoreColumn {
    const char *name, *title, *format;
    bool part;    // values are fractions from 0 to 1
    HeadScores::Score HeadScores::*field;
};

struct HeadReport {
    const Tokenizer& tokenizer;
    std::vector<HeadIndex> heads = {};             // by layer; equally many in each
    std::vector<HeadSums> sums = {};               // by head
    std::vector<double> importance = {};           // by head, nats; empty: not measured
    std::vector<int> tokens = {};                  // the text's; empty: no text
    std::vector<std::vector<double>> maps = {};    // (S,S) each; empty: no output needs them

    std::vector<ScoreColumn> columns() const;    // without importance if not measured
    HeadScores scores(size_t i) const;
    std::vector<int> layers() const;
    // Returns the means over layer l's heads. *best becomes the head with the highest induction
    // score; it is empty if no head has one.
    HeadScores layer(int l, std::optional<int>* best) const;
    std::vector<int> broken_layers() const;    // layers with non-finite maps
};

constexpr size_t MAPS_SHOWN = 4;    // print_report prints no maps beyond this number of heads
void print_report(const HeadReport& r);
void print_report_json(const HeadReport& r, bool with_maps);
// Writes a line for each nonzero probability of a text's maps or, without a text, for each head's
// scores. Exit 2, 4: errors of replace_file.
Status write_report_csv(const std::string& path, const HeadReport& r);
// Draws the maps of a text: a single map with its tokens, or many small ones. Without a text it
// draws a panel of layers by heads for each score; the title then has `subject`, the data measured,
// unless it is empty. Exit 1, 2, 4: errors of picture_check and replace_file.
Status write_report_picture(const std::string& path, const HeadReport& r, const std::string& subject);
