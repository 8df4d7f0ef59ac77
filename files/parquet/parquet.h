// parquet.h - reads one column of texts from a Parquet file, a page at a time.
//
// Layout (the format's specification, github.com/apache/parquet-format): "PAR1", row groups, each
// with a chunk of pages for each column, then the footer (Thrift: schema, offsets of the chunks),
// its length, "PAR1". A chunk is an optional page with a dictionary of values, then data pages:
// levels that tell nulls, and encoded values.
//
//   footer --ParquetSchema--> column --ParquetChunk, by row group--> pages --PageValues--> texts
//
// Encodings: PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY.
// Codecs: none, Snappy, gzip, zstd, raw LZ4. Encryption, lists and other codecs are refused by
// name.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

// The values of the format's enumeration CompressionCodec.
enum class ParquetCodec : int { none = 0, snappy = 1, gzip = 2, lzo = 3, brotli = 4, lz4 = 5, zstd = 6, lz4_raw = 7 };

// A leaf of the schema.
struct ParquetColumn {
    std::string path;                      // names from the root, joined by dots
    int type = 0, converted = -1;          // the format's Type and ConvertedType; -1: none
    int definition = 0, repetition = 0;    // largest levels
};
const char* parquet_type(const ParquetColumn& column);    // "string", "int64", ...: for messages

// Pages of one column in one row group.
struct ParquetChunk {
    ParquetCodec codec = ParquetCodec::none;
    int64_t values = 0, offset = 0, bytes = 0;    // values count nulls
};
struct ParquetFooter {
    std::vector<ParquetColumn> columns;
    std::vector<ParquetChunk> chunks;    // the chosen column's, by row group
    int64_t rows = 0;
    int column = -1;
};
// Reads the footer and finds the column `name`. Exit 3: no Parquet, damaged, encrypted, no such
// column (the message lists them), or a column that does not hold texts. Exit 4: the disk fails.
Result<ParquetFooter> parquet_footer(const File& file, const std::string& name);
bool is_parquet(std::string_view head);    // whether a file that begins so is Parquet
// Decompresses a page into `out`. `size` is the number of bytes that the page's header promises.
// False: the page is damaged, or has another number of bytes. A damaged header cannot take much
// memory, because `out` grows in proportion to the bytes in `in`.
bool parquet_decompress(ParquetCodec codec, std::string_view in, size_t size, std::string& out);

// Reads a run-length and bit-packed sequence of numbers of `width` bits (the format's hybrid).
class HybridReader {
  public:
    HybridReader() = default;
    HybridReader(std::string_view bytes, int bits) : data(bytes), width(bits) {}
    // Next number, and in *run how many equal ones follow at least, including this one. False: the
    // bytes end, or are damaged.
    bool peek(uint32_t* value, int64_t* run);
    void consume(int64_t n);    // n: at most the last *run

  private:
    std::string_view data;
    int width = 0;
    size_t pos = 0, packed_bit = 0;    // packed_bit: next bit of the bit-packed group's bytes
    int64_t left = 0;                  // numbers left in the current run or group
    bool packed = false;
    uint32_t value_of_run = 0;

    bool begin();
};

// Texts of one page, in sequence.
class PageValues {
  public:
    // encoding: the format's Encoding. dictionary: texts for the dictionary encodings.
    Status start(std::string_view bytes, int encoding, int64_t values, const std::vector<std::string_view>* dictionary);
    // The next text, valid until the next call. Exit 3 without a file name: damaged.
    Result<std::string_view> next(size_t longest);

  private:
    enum class Kind { plain, dictionary, lengths, prefixes } kind = Kind::plain;
    std::string_view data;
    const std::vector<std::string_view>* words = nullptr;
    HybridReader indices;
    std::vector<uint32_t> lengths, prefixes;
    size_t pos = 0, count = 0;    // bytes and values that were read
    std::string previous;
};

// One column of a file. Memory: a page, packed and unpacked, and the chunk's dictionary. An object
// must not be moved once `next` was called, because its members refer to each other.
class ParquetTexts {
  public:
    // longest: bytes of a text. A page has at most `largest_page` bytes, packed or not.
    static Result<ParquetTexts> open(const std::string& path, const std::string& column, int64_t longest,
                                     int64_t largest_page);
    // The next text that is not null; false at the end. Exit 3 names file, row group, column and
    // offset. `text` is valid until the next call.
    Result<bool> next(std::string_view* text);
    int64_t row() const { return rows_read; }    // rows read so far: number of the last text, from 1
    int64_t file_bytes() const;                  // bytes of the file, in proportion to the rows read

  private:
    File file;
    ParquetFooter footer;
    int64_t longest = 0, largest_page = 0, rows_read = 0;
    size_t group = 0;                                 // index of the next row group
    int64_t chunk_left = 0, chunk_end = 0, at = 0;    // values, offsets in the file
    ParquetCodec codec = ParquetCodec::none;
    int64_t page_left = 0, present = 0;    // values left in the page; texts that follow without a null
    int64_t page_offset = 0;
    uint64_t emitted = 0;    // bytes of texts so far
    std::string packed, page, dictionary_page;
    std::vector<std::string_view> dictionary;
    HybridReader levels;
    PageValues values;

    struct PageHeader;
    Result<PageHeader> read_header();
    Status damaged(const char* format, ...) const;
    Status next_chunk();
    Status next_page();
    Status read_dictionary(const PageHeader& header);
    Status start_page(const PageHeader& header);
    Status unpack(const PageHeader& header, size_t levels_bytes, std::string& to);
    Result<bool> skip_nulls();
};
