// reader.h - a file as a sequence of documents: one class for each format.
//
//   path --open_documents--> format (by content, name, --format) --> DocumentReader --> Segments
//
// A reader only finds where documents begin and end; a record that takes time to parse (JSON) stays
// raw, and record_text parses it in any thread. data/corpus.h joins the files.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"

// A document, or a part of one whose tokens do not depend on the rest.
struct Segment {
    std::string text;
    bool begins_document = false, validation = false;
    bool whole_document = false;        // nothing of the document is in other segments
    bool held_out_by_number = false;    // validation comes from HoldOut, not from a text's tail
    std::string where;                  // records (JSON, CSV, Parquet): file, line or row; else empty
    int64_t line = 0;                   // number of the line, element, record or row, from 1; text: 0
    enum class Raw { no, json_object, json_value } raw = Raw::no;    // record_text replaces the text
    std::string error = {};    // why the record has no text; record_text returns it
    int file = 0;              // index in CorpusConfig::files
};

// automatic: decided by the file's first bytes and its name.
enum class TextFormat { automatic, text, jsonl, json, csv, tsv, parquet };
extern const std::vector<std::string> TEXT_FORMATS;    // names, in the order of the enumeration
TextFormat text_format(const std::string& name);       // name: one of TEXT_FORMATS

struct CorpusConfig {
    // Each line of a file of JSON lines, each element of a JSON array, each record of a CSV file
    // and each row of a Parquet file is a document; any other file is one document. "-" is stdin.
    // All files but Parquet may be compressed.
    std::vector<std::string> files;
    std::string field = {};     // key or column of the text, "a.b" for one within another; empty: "text"
    double val_fraction = 0;    // share held out: documents, or part of each text file
    // Returns the largest offset in (0, limit] at which a cut keeps the text's tokens; 0: none.
    std::function<size_t(std::string_view text, size_t limit)> safe_cut = {};
    bool lines = false;    // each line of any text file is a document
    TextFormat format = TextFormat::automatic;
    int longest = 32;                // MiB: longest record, and text without a safe cut
    bool flags = true;               // messages may name --format, --field and --longest-line
    bool whole_documents = false;    // text files of up to `longest` MiB are one segment

    std::string text_field() const { return field.empty() ? "text" : field; }
};

// Chooses the documents that are held out for validation: evenly spaced ones, so that their share
// is right at any time.
class HoldOut {
  public:
    explicit HoldOut(double share = 0) : fraction(share) {}
    bool next() {
        documents++;
        return int64_t(double(documents) * fraction) > int64_t(double(documents - 1) * fraction);
    }

  private:
    double fraction;
    int64_t documents = 0;
};

class DocumentReader {
  public:
    virtual ~DocumentReader() = default;
    // Fills in the next segment; false at the end. Corpus sets `file`, and decides which records
    // are for validation. Exit 3: the file is damaged, or a record is longer than config.longest;
    // 4: reading fails.
    virtual Result<bool> next(Segment& segment) = 0;
    virtual int64_t file_bytes() const = 0;    // bytes of the file read so far, compressed
    // First text of invalid UTF-8 read so far: file, offset, byte; empty: none.
    virtual std::string not_utf8() const { return ""; }
    bool records = true;    // every segment is a document
};

typedef std::unique_ptr<DocumentReader> ReaderPtr;
// Opens a file in its format. hold_out_tail: the last config.val_fraction of a text is a document
// of its own, for validation. The config must outlive the reader. Exit 3: the file is no text in
// that format; the message says what was found, and a remedy.
Result<ReaderPtr> open_documents(const std::string& path, const CorpusConfig& config, bool hold_out_tail);
// The format of a file by name and options alone; automatic: only its content tells.
TextFormat format_by_name(const std::string& path, const CorpusConfig& config);
// Checks that a file can be opened, without reading on. Exit 3: as open_documents.
Status check_documents(const std::string& path, const CorpusConfig& config);

// Replaces a raw record by the text in it; may run in any thread. Exit 3: names file and line.
Status record_text(Segment& segment, const CorpusConfig& config);
