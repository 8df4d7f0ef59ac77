// corpus.h - text files, JSON lines and stdin as documents, in bounded memory; compressed or not (files/text_file.h).
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"
#include "files/text_file.h"

// A document, or a part of one that may be encoded by itself.
struct Segment {
    std::string text;
    bool begins_document = false, validation = false;
    std::string where;    // JSON lines: file and line; text is the whole line until json_text
    int64_t line = 0;     // where each line is a document: its number, from 1
};

struct CorpusConfig {
    // .jsonl, .ndjson (also .gz, .zst): a document a line; anything else: one document; "-": stdin
    std::vector<std::string> files;
    std::string field;                 // JSON lines' text; if given, stdin is JSON lines, too. Empty: "text"
    double val_fraction = 0;           // JSON lines and more than 100 files: share of documents; else each file's tail
    // The largest place in (0, limit] where text may be cut, or 0.
    std::function<size_t(std::string_view text, size_t limit)> safe_cut = {};
    bool lines = false;                // each line of any file is a document
};

class Corpus {
  public:
    // Opens every file once: a bad name or a file that is no text is found at the start. Exit 3 naming it; 2 where
    // a stream has no tail.
    static Result<Corpus> open(CorpusConfig config);
    // The next segment, about 1 MiB of text or one line; false at the end. Exit 3 where 1 GiB has no safe cut or line
    // end, 4 where reading fails.
    Result<bool> next(Segment& segment);
    // A JSON line's text in place of the line; exit 3 naming file and line. Other segments are left alone.
    Status json_text(Segment& segment) const;
    // Counts the files' bytes as they are, compressed or not.
    int64_t bytes_read() const { return done + (input ? input->file_bytes() : 0); }
    int64_t bytes() const { return total; }    // 0: unknown

  private:
    CorpusConfig config;
    bool many = false;                     // files: whole ones are held out
    size_t file = 0;                       // the next one to open
    std::optional<TextFile> input;         // the open file
    std::string name, buffer;              // the open file's; the buffer's text from `at` on is to come
    size_t at = 0;
    bool ended = false, json = false;
    bool begins = false, tail = false;     // what comes of this text: begins a document; is held out
    int64_t line = 0, documents = 0, done = 0, total = 0;
    int64_t until_tail = 0;                // bytes

    bool is_json(const std::string& path) const;
    Status open_next();
    Result<int64_t> text_bytes() const;
    Status fill(size_t bytes);
    Result<bool> next_line(Segment& segment);
    Result<bool> next_text(Segment& segment);
    bool hold_out();
};
