// pairs_file.h - pairs of a source and a target, from files of JSON lines, as samples.
//
// A line is an object {"source": "...", "target": "..."}; other fields are ignored.
#pragma once
#include <memory>

#include "data/documents/json_lines.h"
#include "data/seq2seq/seq2seq.h"

struct SourceTarget {
    std::string source, target;
};
// Reads one line. Exit 3: names `where` and the field, with what was expected and what was found.
Result<SourceTarget> source_target_parse(std::string_view line, const std::string& where);

struct PairsFileOptions {
    std::string pattern = {};    // shard_glob expands it; each file may be compressed
    std::string flag = {};       // option that gave the pattern, for error texts
    std::string advice = "a larger --seq-len or --source-len keeps more";    // for texts that are cut
    bool drop = false;            // leave out pairs beyond a limit, instead of cutting them
    bool target_texts = false;    // keep them, too, for scores of texts
    int source_S = 0, S = 0;      // limits, with the tokenizer's own tokens
    int vocab = 0, pad = 0;
};

// A sample's tokens are a source, and its targets a target; both are padded to the larger limit. A
// second text is the source's padding. Seq2Seq::batch makes a batch of samples.
class PairsFile : public LineSource {
  public:
    // Reads and encodes all lines, on all cores. Exit 2: a limit leaves no token of a text; 3: the
    // first line that is wrong, or no pair is left.
    static Result<std::shared_ptr<PairsFile>> read(const PairsFileOptions& options, const Tokenizer& tokenizer);
    SequencePair pair(int64_t i) const;
    int longest() const override;         // source or target
    void shorten(int length) override;    // none exceeds it
    std::string items() const override;
    std::string note() const override;
    int64_t samples() const override { return int64_t(begins.size()) / 2; }
    int64_t tokens() const override { return int64_t(ids.size()); }
    int64_t targets(int64_t sample) const override { return length_of(2 * sample + 1); }
    int64_t length(int64_t sample) const override;    // by the source, then by the target
    uint64_t fingerprint() const override;
    std::string text() const override;
    Status read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const override;

    std::vector<std::string> target_texts;    // texts of all targets, if they are kept
    // Pairs that were left out are not in ids.
    struct Counts {
        int64_t lines = 0, dropped = 0;
        int64_t cut_sources = 0, cut_targets = 0, cut_tokens = 0;
    } counts;

  private:
    struct Encoded {
        SequencePair ids;
        std::string target;
        size_t source_length = 0, target_length = 0;    // before cutting
    };
    void add(Encoded e);
    int length_of(int64_t i) const;
    PairsFileOptions o;
    std::vector<int> ids;           // sources and targets by turns
    std::vector<int64_t> begins;    // index in ids of each source and target
};
