// readers.h - the readers of text, JSON, CSV and Parquet. formats.cpp chooses one of them.
#pragma once
#include "buffer.h"
#include "files/parquet/parquet.h"
#include "reader.h"

constexpr int RECORD_DEPTH = 64;    // maximum nesting of JSON in a record

// A reader of a text in a buffer.
class BufferReader : public DocumentReader {
  public:
    BufferReader(TextBuffer text, const CorpusConfig& config) : buffer(std::move(text)), c(config) {}
    int64_t file_bytes() const override { return buffer.file_bytes(); }
    std::string not_utf8() const override { return buffer.not_utf8(); }

  protected:
    TextBuffer buffer;
    const CorpusConfig& c;
};

// One document, in segments of about 1 MiB, or with config.whole_documents in one segment if it is
// short. The last config.val_fraction of the text may be a document of its own, which is held out.
class TextReader : public BufferReader {
  public:
    // until_tail: bytes of text before the held-out tail.
    TextReader(TextBuffer text, const CorpusConfig& config, int64_t until_tail)
        : BufferReader(std::move(text), config), before_tail(until_tail) {
        records = false;
    }
    Result<bool> next(Segment& segment) override;

  private:
    int64_t before_tail;
    bool begins = true, tail = false;    // next segment's begins_document, validation
};

// A document on each line that is not blank: text, or a JSON object.
class LineTexts : public BufferReader {
  public:
    LineTexts(TextBuffer text, const CorpusConfig& config, bool is_json)
        : BufferReader(std::move(text), config), json(is_json) {}
    Result<bool> next(Segment& segment) override;

  private:
    bool json;
    int64_t line = 0;
};

// JSON objects or strings: the elements of an array, or values one after the other, on any lines.
class JsonTexts : public BufferReader {
  public:
    using BufferReader::BufferReader;
    Result<bool> next(Segment& segment) override;

  private:
    enum class State { start, first, after, between, end } state = State::start;
    bool array = false;
    int64_t line = 1, count = 0;    // line of the first unread byte; values so far

    Result<bool> skip_space();
    Result<bool> punctuation(char next);
    Result<size_t> value_length();
    std::string where() const;
};

// Records of comma- or tab-separated values (RFC 4180), the first of which names the columns.
class CsvReader : public BufferReader {
  public:
    CsvReader(TextBuffer text, const CorpusConfig& config, char separator)
        : BufferReader(std::move(text), config), comma(separator) {}
    Result<bool> next(Segment& segment) override;

  private:
    char comma;
    int64_t line = 1;    // line of the first unread byte
    size_t columns = 0, column = 0;
    std::vector<size_t> ends;                // the last record's fields
    std::vector<std::string_view> fields;    // last record, with quotes
    std::string error;                       // in the last record

    Result<bool> read_record();
    Status read_header();
};

// Rows of a Parquet file. Nulls are left out.
class ParquetReader : public DocumentReader {
  public:
    ParquetReader(std::string path, ParquetTexts rows) : name(std::move(path)), texts(std::move(rows)) {}
    Result<bool> next(Segment& segment) override;
    int64_t file_bytes() const override { return texts.file_bytes(); }
    std::string not_utf8() const override { return invalid; }

  private:
    std::string name, invalid;
    ParquetTexts texts;
};
