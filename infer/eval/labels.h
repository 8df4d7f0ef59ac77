// labels.h - texts with labels for classifiers: files of JSON lines come in, tokens and targets go
// out; a classifier's scores on them.
//
// A line is an object of one of two shapes:
//   {"text": "...", "pair": "...", "label": "positive"}        a class of the text; pair: optional
//   {"text": ["A", "few", "words"], "labels": ["O", "O", "X"]}     a class of each word
// A label is a word, a whole number or a boolean, which names a class, or in a file that also has
// numbers with a fraction (0.5) a number to be guessed. Of a word's tokens the first one has the
// word's class as target, as usual.
#pragma once
#include "data/bpe.h"
#include "data/objective.h"
#include "files/json_write.h"
#include "model/model.h"

struct LabelledLine {
    std::vector<std::string> words, labels;    // one text and one label, unless `words` are apart
    std::string pair;
    bool has_pair = false, apart = false;
    std::string where;    // for messages
};
struct LabelledFile {
    std::vector<LabelledLine> lines;
    std::vector<std::string> classes;    // sorted, numbers by value; one: numbers
    HeadKind kind = HeadKind::texts;
    bool numbers = false;
};
// Reads all lines of the files. Exit 3: a line is wrong, names its place; there is none.
Result<LabelledFile> read_labels(const std::string& pattern);

// A text's tokens, and targets (NO_VALUE: none) as the model's loss reads them.
struct LabelledText {
    std::vector<int> ids, targets;
    int second = 0;    // Text::second
};
// Encodes the lines for a model with these classes, each cut to S tokens. Exit 2: a label is no
// class of the model, the file is one for another kind of head, or S leaves no room for a text; 3:
// a text has no token.
Result<std::vector<LabelledText>> encode_labels(const LabelledFile& file, const Config& c, const Tokenizer& tokenizer,
                                                int S);

// A classifier's scores; a macro mean is one over classes. Of two classes the second is positive.
// For numbers: mean squared error, and correlations of the values and of their ranks.
struct LabelScores {
    int64_t targets = 0;
    double loss = 0, accuracy = 0, f1 = 0, macro_f1 = 0, matthews = 0;
    double pearson = 0, spearman = 0;
};
// The scores of guesses. counts (K,K): targets by true and by guessed class.
LabelScores scores_of(const std::vector<int64_t>& counts, int K);
LabelScores scores_of(const std::vector<double>& found, const std::vector<double>& expected);
// Runs the model on the texts, in batches of similar lengths of at most model.plan.max_tokens().
// Plan::spans must be set.
LabelScores score_labels(Model& model, const std::vector<LabelledText>& texts);
void set_scores(Json& to, const LabelScores& scores, const Config& c);
std::string scores_text(const LabelScores& scores, const Config& c);
