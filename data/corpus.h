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

// automatic: by the file's name, else by its beginning.
enum class TextFormat { automatic, text, jsonl };
inline const std::vector<std::string> TEXT_FORMATS = {"auto", "text", "jsonl"};
TextFormat text_format(const std::string& name);    // one of these names

struct CorpusConfig {
    // JSON lines: a document a line; anything else: one document; "-": stdin. Each may be compressed.
    std::vector<std::string> files;
    std::string field = {};     // JSON lines' text; if given, every file is JSON lines. Empty: "text"
    double val_fraction = 0;    // JSON lines and more than 100 files: share of documents; else each file's tail
    // The largest place in (0, limit] where text may be cut, or 0.
    std::function<size_t(std::string_view text, size_t limit)> safe_cut = {};
    bool lines = false;    // each line of any file is a document
    TextFormat format = TextFormat::automatic;
    int longest = 32;     // MiB of a line, or of text without a place where it may be cut
    bool flags = true;    // the command has --format and --longest-line: messages name them
};

class Corpus {
  public:
    // Opens every file once: a bad name and a file that is no text, or JSON but not JSON lines, are found at the start.
    // Exit 3 naming it; 2 where a stream has no tail.
    static Result<Corpus> open(CorpusConfig config);
    // The next segment, about 1 MiB of text or one line; false at the end. Exit 3 where a line, or text without a safe
    // cut, is longer than config.longest; 4 where reading fails.
    Result<bool> next(Segment& segment);
    // A JSON line's text in place of the line; exit 3 naming file and line. Other segments are left alone.
    Status json_text(Segment& segment) const;
    // Counts the files' bytes as they are, compressed or not.
    int64_t bytes_read() const { return done + (input ? input->file_bytes() : 0); }
    int64_t bytes() const { return total; }    // 0: unknown
    // Which text, of what next has read, is no UTF-8, and what to do; empty: none.
    std::string encoding_note() const;

  private:
    CorpusConfig config;
    bool many = false;                // files: whole ones are held out
    size_t file = 0;                  // the next one to open
    std::optional<TextFile> input;    // the open file
    std::string name, buffer;         // the open file's; the buffer's text from `at` on is to come
    size_t at = 0;
    bool ended = false, json = false;
    bool begins = false, tail = false;    // what comes of this text: begins a document; is held out
    int64_t line = 0, documents = 0, done = 0, total = 0;
    int64_t until_tail = 0;    // bytes
    size_t checked = 0;        // the buffer's bytes that are UTF-8; npos: some of this file are not
    int64_t before = 0;        // the file's bytes before the buffer
    std::string not_utf8;      // the first file and byte
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
