// corpus.h - documents from text files, JSON lines and stdin, in bounded memory.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"
#include "files/text_file.h"

// A document, or a part of one whose tokens do not depend on the rest.
struct Segment {
    std::string text;
    bool begins_document = false, validation = false;
    std::string where;    // JSON lines: file and line; json_text replaces the raw text
    int64_t line = 0;     // lines mode: 1-based line number
};

// automatic: decided by the file's name, else by its content.
enum class TextFormat { automatic, text, jsonl };
inline const std::vector<std::string> TEXT_FORMATS = {"auto", "text", "jsonl"};
TextFormat text_format(const std::string& name);    // name: one of TEXT_FORMATS

struct CorpusConfig {
    // Each line of a file of JSON lines is a document; any other file is one document. "-" is
    // stdin. All files may be compressed.
    std::vector<std::string> files;
    std::string field = {};     // JSON key of the text; implies JSON lines; empty: "text"
    double val_fraction = 0;    // share held out: documents, or part of each text file
    // Returns the largest offset in (0, limit] at which a cut keeps the text's tokens; 0: none.
    std::function<size_t(std::string_view text, size_t limit)> safe_cut = {};
    bool lines = false;    // each line of any file is a document
    TextFormat format = TextFormat::automatic;
    int longest = 32;     // MiB: longest line, and text without a safe cut
    bool flags = true;    // messages may name --format and --longest-line
};

class Corpus {
  public:
    // Opens every file once, so that missing files, and files that are neither text nor JSON lines,
    // are reported at the start. Exit 3: names the file; 2: a part of stdin cannot be held out.
    static Result<Corpus> open(CorpusConfig config);
    // Gets the next segment, about 1 MiB of text or one line; false at the end. Exit 3: a line, or
    // text without a safe cut, is longer than config.longest; 4: reading fails.
    Result<bool> next(Segment& segment);
    // Replaces a raw JSON line by the text in it. Exit 3: names file and line. Other segments stay.
    Status json_text(Segment& segment) const;
    // Bytes of the files read so far, before decompression.
    int64_t bytes_read() const { return done + (input ? input->file_bytes() : 0); }
    int64_t bytes() const { return total; }    // bytes of all files; 0: unknown
    // Message that names the first text of invalid UTF-8 read so far, with a remedy; empty: none.
    std::string encoding_note() const;

  private:
    CorpusConfig config;
    bool many = false;                // over 100 text files: whole ones held out
    size_t file = 0;                  // index of the next file to open
    std::optional<TextFile> input;    // the open file
    std::string name, buffer;         // the open file's; `at`: first unread byte
    size_t at = 0;
    bool ended = false, json = false;
    bool begins = false, tail = false;    // next segment's begins_document, validation
    int64_t line = 0, documents = 0, done = 0, total = 0;
    int64_t until_tail = 0;    // bytes of text before the held-out tail
    size_t checked = 0;        // buffer bytes known as UTF-8; npos: invalid ones
    int64_t before = 0;        // file bytes before the buffer's
    std::string not_utf8;      // first file and offset with invalid UTF-8
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
