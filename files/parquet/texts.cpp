// texts.cpp - reads the pages of a column, one after the other. See parquet.h.
#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "base/shorten.h"
#include "parquet.h"
#include "thrift.h"

namespace {
using Field = ThriftReader::Field;
enum PageType { DATA = 0, INDEX = 1, DICTIONARY = 2, DATA_V2 = 3 };
enum Encoding { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, BIT_PACKED = 4, RLE_DICTIONARY = 8 };
constexpr uint64_t MOST_RATIO = 1000, LEAST_REFUSED = 1 << 30;        // bytes of text, at the most
constexpr int64_t MOST_WORDS = 1 << 23;                               // texts of a dictionary
constexpr int64_t HEADER_STEPS[] = {4 << 10, 256 << 10, 16 << 20};    // bytes read for a page's header

const char* codec_name(ParquetCodec codec) {
    static const char* const names[] = {"none", "snappy", "gzip", "LZO", "Brotli", "LZ4 (Hadoop's)", "zstd", "lz4_raw"};
    const int i = int(codec);
    return i >= 0 && i < 8 ? names[i] : "an unknown one";
}
bool supported(ParquetCodec codec) {
    switch (codec) {
        case ParquetCodec::none:
        case ParquetCodec::snappy:
        case ParquetCodec::gzip:
        case ParquetCodec::zstd:
        case ParquetCodec::lz4_raw: return true;
        default: return false;
    }
}
int level_bits(int largest) {
    int bits = 0;
    while (largest >> bits) bits++;
    return bits;
}
}    // namespace

struct ParquetTexts::PageHeader {
    int64_t type = -1, unpacked = -1, packed = -1, values = 0, encoding = -1;
    int64_t definition_encoding = RLE;
    int32_t definition_bytes = 0, repetition_bytes = 0;    // not negative
    std::optional<uint32_t> crc;
    bool compressed = true;
};

namespace {
// Reads one of the structures data_page_header, dictionary_page_header, data_page_header_v2, whose
// field numbers differ.
template <class Header> void read_kind(ThriftReader& in, Header& header, int kind) {
    for (Field f; in.next(f);) {
        const int id = f.id;
        if (id == 1) header.values = in.integer(f);
        else if (id == 2 && kind != 8) header.encoding = in.integer(f);
        else if (id == 3 && kind == 5) header.definition_encoding = in.integer(f);
        else if (id == 4 && kind == 8) header.encoding = in.integer(f);
        else if (id == 5 && kind == 8) header.definition_bytes = in.small(f);
        else if (id == 6 && kind == 8) header.repetition_bytes = in.small(f);
        else if (id == 7 && kind == 8) header.compressed = in.boolean(f);
        else in.skip(f.type);
    }
}
}    // namespace

Result<ParquetTexts> ParquetTexts::open(const std::string& path, const std::string& column, int64_t longest,
                                        int64_t largest_page) {
    ParquetTexts texts;
    texts.file = TRY(File::open(path));
    texts.footer = TRY(parquet_footer(texts.file, column));
    texts.longest = longest;
    texts.largest_page = largest_page;
    return texts;
}

int64_t ParquetTexts::file_bytes() const {
    return footer.rows ? int64_t(double(file.bytes()) * (double(rows_read) / double(footer.rows))) : file.bytes();
}

Status ParquetTexts::damaged(const char* format, ...) const {
    va_list args;
    va_start(args, format);
    const std::string what = formatted(format, args);
    va_end(args);
    return fail(Exit::input, "%s: row group %zu, column %s, page at offset %lld: %s", file.path().c_str(), group - 1,
                shorten(footer.columns[size_t(footer.column)].path, 80).c_str(), (long long)page_offset, what.c_str());
}

Status ParquetTexts::next_chunk() {
    const ParquetChunk& chunk = footer.chunks[group++];
    codec = chunk.codec;
    at = page_offset = chunk.offset;
    chunk_end = chunk.offset + chunk.bytes;
    chunk_left = chunk.values;
    dictionary.clear();
    if (supported(codec)) return {};
    return damaged(
        "packed by %s; expected none, snappy, gzip, zstd or lz4_raw; write it anew (in Python: "
        "pandas.read_parquet(FILE).to_parquet(\"x.parquet\", compression=\"zstd\"))",
        codec_name(codec));
}

// Reads the header of the page at `at` and moves there to the page's bytes.
Result<ParquetTexts::PageHeader> ParquetTexts::read_header() {
    page_offset = at;
    if (at >= chunk_end) return damaged("the pages end, but %lld values are missing", (long long)chunk_left);
    for (const int64_t step : HEADER_STEPS) {
        const int64_t bytes = std::min(step, chunk_end - at);
        packed.resize(size_t(bytes));
        TRY(file.read(at, packed.data(), bytes));
        ThriftReader in(packed);
        PageHeader header;
        for (Field f; in.next(f);) switch (f.id) {
                case 1: header.type = in.integer(f); break;
                case 2: header.unpacked = in.integer(f); break;
                case 3: header.packed = in.integer(f); break;
                case 4: header.crc = uint32_t(in.integer(f)); break;
                case 5:
                case 7:
                case 8:
                    if (in.is(f, ThriftReader::structure)) read_kind(in, header, f.id);
                    break;
                default: in.skip(f.type);
            }
        if (in.ended_early() && bytes == step) continue;    // long statistics: read more
        if (!in.ok()) return damaged("its header is damaged");
        at += int64_t(in.at());
        if (header.packed < 0 || header.packed > chunk_end - at || header.unpacked < 0 || header.values < 0)
            return damaged("expected at most %lld bytes, found %lld (%lld unpacked)", (long long)(chunk_end - at),
                           (long long)header.packed, (long long)header.unpacked);
        if (std::max(header.packed, header.unpacked) > largest_page)
            return damaged("expected at most %lld MiB in a page, found %lld bytes (%lld unpacked)",
                           (long long)(largest_page >> 20), (long long)header.packed, (long long)header.unpacked);
        return header;
    }
    return damaged("its header has more than %lld MiB", (long long)(HEADER_STEPS[2] >> 20));
}

// Unpacks `packed` behind its first levels_bytes bytes, which are never packed, into `to`.
Status ParquetTexts::unpack(const PageHeader& header, size_t levels_bytes, std::string& to) {
    const std::string_view body = std::string_view(packed).substr(levels_bytes);
    const size_t size = size_t(header.unpacked) - levels_bytes;
    const ParquetCodec by = header.compressed ? codec : ParquetCodec::none;
    if (size == 0 && body.empty()) {
        to.clear();
        return {};
    }
    if (parquet_decompress(by, body, size, to)) return {};
    return damaged("expected %zu bytes of data (codec: %s), found another number, or damaged data", size,
                   codec_name(by));
}

Status ParquetTexts::read_dictionary(const PageHeader& header) {
    if (header.encoding != PLAIN && header.encoding != PLAIN_DICTIONARY)
        return damaged("expected a dictionary in PLAIN encoding, found encoding %lld", (long long)header.encoding);
    if (header.values > MOST_WORDS)
        return damaged("expected a dictionary of at most %lld texts, found %lld", (long long)MOST_WORDS,
                       (long long)header.values);
    TRY(unpack(header, 0, dictionary_page));
    dictionary.clear();
    size_t pos = 0;
    for (int64_t i = 0; i < header.values; i++) {
        uint32_t length = 0;
        if (dictionary_page.size() - pos < 4) return damaged("the dictionary ends early");
        memcpy(&length, dictionary_page.data() + pos, 4);
        pos += 4;
        if (length > dictionary_page.size() - pos) return damaged("a text of the dictionary ends behind it");
        dictionary.push_back(std::string_view(dictionary_page).substr(pos, length));
        pos += length;
    }
    return {};
}

// Finds levels and values of a data page in `packed`. Version 1 packs all bytes together, with the
// levels' length before them; version 2 leaves the levels unpacked.
Status ParquetTexts::start_page(const PageHeader& header) {
    if (header.values > chunk_left)
        return damaged("expected at most %lld values, found %lld", (long long)chunk_left, (long long)header.values);
    const int bits = level_bits(footer.columns[size_t(footer.column)].definition);
    const bool has_levels = bits > 0;
    std::string_view body, level_bytes;
    if (header.type == DATA_V2) {
        const int64_t most = std::min(header.packed, header.unpacked);
        const int64_t definitions = header.definition_bytes, repetitions = header.repetition_bytes;
        if (definitions > most || repetitions > most - definitions)
            return damaged("expected levels within %lld bytes, found %lld and %lld", (long long)most,
                           (long long)repetitions, (long long)definitions);
        TRY(unpack(header, size_t(definitions + repetitions), page));
        body = page;
        level_bytes = std::string_view(packed).substr(size_t(repetitions), size_t(definitions));
    } else {
        TRY(unpack(header, 0, page));
        body = page;
        uint32_t length = 0;
        if (has_levels && header.definition_encoding == BIT_PACKED)
            return damaged("expected levels in RLE encoding, found BIT_PACKED, which is deprecated");
        if (has_levels && body.size() < 4) return damaged("it ends before its levels");
        if (has_levels) memcpy(&length, body.data(), 4);
        if (has_levels && length > body.size() - 4) return damaged("its levels end behind it");
        if (has_levels) {
            level_bytes = body.substr(4, length);
            body.remove_prefix(4 + size_t(length));
        }
    }
    levels = HybridReader(level_bytes, bits);
    page_left = header.values;
    present = has_levels ? 0 : page_left;
    const Status s = values.start(body, int(header.encoding), header.values, &dictionary);
    return s.ok() ? s : damaged("%s", s.message.c_str());
}

Status ParquetTexts::next_page() {
    const PageHeader header = TRY(read_header());
    packed.resize(size_t(header.packed));
    TRY(file.read(at, packed.data(), header.packed));
    at += header.packed;
    if (header.crc &&
        uint32_t(crc32(0, reinterpret_cast<const Bytef*>(packed.data()), uInt(packed.size()))) != *header.crc)
        return damaged("its checksum differs: the file is damaged");
    if (header.type == DICTIONARY) return read_dictionary(header);
    if (header.type == DATA || header.type == DATA_V2) return start_page(header);
    if (header.type == INDEX) return {};
    return damaged("expected a page of data or a dictionary, found type %lld", (long long)header.type);
}

// Passes nulls, a run at a time. True: a text is next; false: the page has ended.
Result<bool> ParquetTexts::skip_nulls() {
    const auto largest = uint32_t(footer.columns[size_t(footer.column)].definition);
    while (page_left > 0 && present == 0) {
        uint32_t level = 0;
        int64_t run = 0;
        if (!levels.peek(&level, &run)) return damaged("its levels end early");
        if (level > largest) return damaged("expected levels of at most %u, found %u", largest, level);
        run = std::min(run, page_left);
        levels.consume(run);
        if (level == largest) {
            present = run;
        } else {
            page_left -= run;
            chunk_left -= run;
            rows_read += run;
        }
    }
    return present > 0;
}

Result<bool> ParquetTexts::next(std::string_view* text) {
    while (!TRY(skip_nulls())) {
        if (chunk_left > 0) {
            TRY(next_page());
            continue;
        }
        if (group == footer.chunks.size()) return false;
        TRY(next_chunk());
    }
    present--;
    page_left--;
    chunk_left--;
    rows_read++;
    const Result<std::string_view> value = values.next(size_t(longest));
    if (!value.ok()) return damaged("%s", value.status.message.c_str());
    if (value.value.size() > size_t(longest))
        return damaged("expected a text of at most %lld MiB, found a longer one in row %lld",
                       (long long)(longest >> 20), (long long)rows_read);
    *text = value.value;
    // A dictionary and runs need few bytes for very much text, as a bomb would have it.
    emitted += text->size() + 1;
    if (emitted > MOST_RATIO * uint64_t(file.bytes()) + LEAST_REFUSED)
        return damaged("expected at most %llu bytes of text for each byte of the file, found more",
                       (unsigned long long)MOST_RATIO);
    return true;
}
