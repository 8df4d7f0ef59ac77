// duplicates.cpp - see duplicates.h.
#include "duplicates.h"

#include <filesystem>

#include "files/json_write.h"

std::vector<Flag> dedup_flags(DedupOptions& o) {
    const std::vector<std::string> any = {"--dedup exact or --dedup minhash"}, minhash = {"--dedup minhash"};
    return {{.name = "--dedup",
             .to = &o.kind,
             .help = "leave out documents that occurred before; exact: with equal bytes; minhash: with nearly the "
                     "same n-grams of words",
             .choices = DEDUP_KINDS},
            {.name = "--dedup-threshold",
             .to = &o.threshold,
             .help = "Jaccard similarity of n-grams from which on a document is left out, as MinHash estimates it",
             .min = 0.1,
             .max = 1,
             .needs = minhash,
             .level = Level::expert},
            {.name = "--dedup-ngram",
             .to = &o.ngram,
             .help = "words of an n-gram",
             .min = 1,
             .max = 100,
             .needs = minhash,
             .level = Level::expert},
            {.name = "--dedup-num-perm",
             .to = &o.num_perm,
             .help = "hash functions (permutations) of MinHash, a byte each for every document",
             .min = 16,
             .max = 1024,
             .needs = minhash,
             .level = Level::expert},
            {.name = "--dedup-memory",
             .to = &o.memory,
             .help = "MiB: documents whose tables need more are refused",
             .min = 1,
             .max = 1 << 24,
             .needs = any,
             .level = Level::expert},
            {.name = "--dedup-report",
             .to = &o.report,
             .help = "JSON lines to write: each document left out, the one that was kept, their similarity",
             .needs = any,
             .level = Level::expert}};
}

// Nothing but an older report may be replaced.
static Status check_report(const std::string& path, const std::vector<std::string>& inputs, bool overwrite) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return {};
    for (const std::string& input : inputs)
        if (std::filesystem::equivalent(path, input, error))
            return fail(Exit::usage, "--dedup-report: %s is an input; give another name", path.c_str());
    if (overwrite) return {};
    return fail(Exit::usage, "--dedup-report: %s exists; give another name, or --overwrite", path.c_str());
}

Result<DuplicateFilter> DuplicateFilter::create(const DedupOptions& options, std::vector<std::string> files,
                                                double val_fraction, bool overwrite) {
    DuplicateFilter f;
    f.o = options;
    f.names = std::move(files);
    f.held_out = HoldOut(val_fraction);
    const auto kind = std::find(DEDUP_KINDS.begin(), DEDUP_KINDS.end(), options.kind);
    if (kind == DEDUP_KINDS.begin()) return f;
    f.tables.emplace(DedupConfig{Dedup(kind - DEDUP_KINDS.begin()), options.threshold, options.ngram, options.num_perm,
                                 int64_t(options.memory) << 20, !options.report.empty()});
    if (options.report.empty()) return f;
    TRY(check_report(options.report, f.names, overwrite));
    TRY(check_writable(options.report, "--dedup-report"));
    f.overwrite_report = overwrite ? Overwrite::yes : Overwrite::no;
    f.report = TRY(NewFile::create(options.report));
    return f;
}

// Whether other documents may repeat the segment: a part of a document, or no text, has no repeats.
static bool is_compared(const Segment& segment) { return segment.whole_document && !segment.text.empty(); }

Sketch DuplicateFilter::sketch(const Segment& segment) const {
    return active() && is_compared(segment) ? tables->sketch(segment.text) : Sketch{};
}

Result<bool> DuplicateFilter::keep(Segment& segment, const Sketch& sketch) {
    if (!active()) return true;
    if (segment.begins_document) documents++;
    bytes += int64_t(segment.text.size());
    too_long += segment.begins_document && !segment.whole_document;
    std::optional<Deduplicator::Match> match;
    if (is_compared(segment)) match = TRY(tables->add(sketch, {segment.file, segment.line}));
    if (!match && segment.held_out_by_number && !segment.text.empty()) {
        if (segment.begins_document) validation = held_out.next();
        segment.validation = validation;
    }
    if (!match) return true;
    dropped++;
    dropped_bytes += int64_t(segment.text.size());
    if (report) TRY(list(segment, *match));
    return false;
}

std::string DuplicateFilter::name_of(Origin origin) const {
    return names[size_t(origin.file)] + (origin.line ? ":" + std::to_string(origin.line) : "");
}
Status DuplicateFilter::list(const Segment& segment, const Deduplicator::Match& match) {
    constexpr size_t BLOCK = 1 << 20;
    lines += Json::object("dropped", name_of({segment.file, segment.line}), "kept", name_of(match.origin), "similarity",
                          match.similarity)
                 .text() +
             "\n";
    return lines.size() < BLOCK ? Status{} : write_lines();
}
Status DuplicateFilter::write_lines() {
    TRY(report->write(report_bytes, lines.data(), int64_t(lines.size())));
    report_bytes += int64_t(lines.size());
    lines.clear();
    return {};
}
Status DuplicateFilter::finish() {
    if (!report) return {};
    TRY(write_lines());
    return report->commit(overwrite_report);
}

void DuplicateFilter::print_notes(Progress& progress) const {
    if (!active()) return;
    const double share = documents ? 100.0 * double(dropped) / double(documents) : 0;
    progress.note(formatted("--dedup %s: %lld of %s left out (%.1f %%), %s of %s; tables of %s", o.kind.c_str(),
                            (long long)dropped, counted(documents, "document").c_str(), share,
                            human_bytes(double(dropped_bytes)).c_str(), human_bytes(double(bytes)).c_str(),
                            human_bytes(double(tables->bytes())).c_str()));
    if (too_long)
        progress.note(counted(too_long, "document") + (too_long > 1 ? " were" : " was") +
                      " too long to be compared (--longest-line), and kept");
}
