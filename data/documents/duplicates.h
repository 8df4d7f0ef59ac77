// duplicates.h - `tokenize --dedup`: leaves out documents that occurred before, counts them and
// lists them.
#pragma once
#include "base/command.h"
#include "base/console.h"
#include "base/file.h"
#include "dedup.h"
#include "reader.h"

struct DedupOptions {
    std::string kind = "none", report;
    double threshold = DedupConfig().threshold;
    int ngram = DedupConfig().ngram, num_perm = DedupConfig().num_perm, memory = 4096;    // memory: MiB
};
std::vector<Flag> dedup_flags(DedupOptions& options);

class DuplicateFilter {
  public:
    // files: CorpusConfig::files, for the report. val_fraction: share of the kept documents that is
    // held out. Exit 2: the report is an input, or exists without `overwrite`; 4: it cannot be
    // written.
    static Result<DuplicateFilter> create(const DedupOptions& options, std::vector<std::string> files,
                                          double val_fraction, bool overwrite);
    bool active() const { return tables.has_value(); }
    // Computes the sketch of a segment, in any thread. A part of a longer document has none.
    Sketch sketch(const Segment& segment) const;
    // Whether the segment is kept, in the corpus' order. A kept record is held out or not by the
    // number of documents kept before it, so that duplicates do not change the share. Exit 3, 4.
    Result<bool> keep(Segment& segment, const Sketch& sketch);
    Status finish();    // gives the report its name
    // Memory of a sketch, which a batch of many small documents must count.
    int64_t sketch_bytes() const { return o.kind == "minhash" ? int64_t(sizeof(uint32_t)) * o.num_perm : 0; }
    void print_notes(Progress& progress) const;

  private:
    std::optional<Deduplicator> tables;
    std::vector<std::string> names;
    DedupOptions o;
    HoldOut held_out;
    bool validation = false;    // last kept document
    Overwrite overwrite_report = Overwrite::no;
    std::optional<NewFile> report;
    std::string lines;    // not yet written to the report
    int64_t report_bytes = 0, documents = 0, bytes = 0, dropped = 0, dropped_bytes = 0, too_long = 0;

    std::string name_of(Origin origin) const;
    Status list(const Segment& segment, const Deduplicator::Match& match);
    Status write_lines();
};
