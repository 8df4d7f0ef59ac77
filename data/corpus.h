// corpus.h - documents from text files, JSON lines and stdin, in bounded memory.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"
#include "files/text_file.h"

// A document, or a part of one that may be encoded on its own.
struct Segment {
    std::string text;
    bool begins_document = false, validation = false;
    std::string where;    // JSON lines: file and line; text is the whole line until json_text
    int64_t line = 0;     // lines mode: 1-based line number
};

// automatic: by the file's name, else by its content.
enum class TextFormat { automatic, text, jsonl };
inline const std::vector<std::string> TEXT_FORMATS = {"auto", "text", "jsonl"};
TextFormat text_format(const std::string& name);    // name: one of TEXT_FORMATS

struct CorpusConfig {
    // JSON lines: a document a line; other files: a document each; "-": stdin. All may be
    // compressed.
    std::vector<std::string> files;
    std::string field = {};     // JSON key of the text; implies JSON lines; empty: "text"
    double val_fraction = 0;    // JSON lines or over 100 files: share of documents; else each file's tail
    // Returns the largest offset in (0, limit] where text may be cut, or 0.
    std::function<size_t(std::string_view text, size_t limit)> safe_cut = {};
    bool lines = false;    // each line of any file is a document
    TextFormat format = TextFormat::automatic;
    int longest = 32;     // MiB of a line, or of text without a safe cut
    bool flags = true;    // messages name --format and --longest-line
};

class Corpus {
  public:
    // Opens every file once, so that wrong names and files that are neither text nor JSON lines
    // fail at the start. Exit 3 naming the file; 2: stdin has no tail to hold out.
    static Result<Corpus> open(CorpusConfig config);
    // The next segment, about 1 MiB of text or one line; false at the end. Exit 3: a line, or text
    // without a safe cut, is longer than config.longest; 4: reading fails.
    Result<bool> next(Segment& segment);
    // Replaces a JSON line by its text; exit 3 naming file and line. Leaves other segments alone.
    Status json_text(Segment& segment) const;
    // Bytes of the files, before decompression.
    int64_t bytes_read() const { return done + (input ? input->file_bytes() : 0); }
    int64_t bytes() const { return total; }    // 0: unknown
    // Names the first text read by next that is not UTF-8, with a remedy; empty: all text is UTF-8.
    std::string encoding_note() const;

  private:
    CorpusConfig config;
    bool many = false;                // more than 100 files: holds out whole ones
    size_t file = 0;                  // index of the next one to open
    std::optional<TextFile> input;    // the open file
    std::string name, buffer;         // the open file's; unread text begins at `at`
    size_t at = 0;
    bool ended = false, json = false;
    bool begins = false, tail = false;    // flags of the next segment: begins_document, validation
    int64_t line = 0, documents = 0, done = 0, total = 0;
    int64_t until_tail = 0;    // bytes
    size_t checked = 0;        // buffer bytes verified as UTF-8; npos: file has others
    int64_t before = 0;        // file bytes before the buffer
    std::string not_utf8;      // first file and offset
    int64_t not_utf8_files = 0;

    bool named_json(const std::string& path) const;
    Result<bool> is_json(const std::string& path, TextFile& text) const;
    void check_encoding();
    Status open_next();
    Result<int64_t> text_bytes() const;
    Status fill(size_t bytes);
    Result<bool> next_line(Segment& segment);
    Result<bool> next_text(Segment& segment);
    bool hold_out();
};
