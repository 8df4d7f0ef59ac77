// text_file.cpp - see text_file.h. Stages: file bytes, decompressed bytes, text.
#include "text_file.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/console.h"

namespace {
constexpr size_t BLOCK = 64 << 10;    // bytes per read; the first block must decompress to text

// ---- detecting the format -----------------------------------------------------------------------

using namespace std::string_view_literals;
enum class Packing { none, gzip, zstd };
const char* name_of(Packing p) { return p == Packing::gzip ? "gzip" : "zstd"; }
enum class Encoding { bytes, utf16_little, utf16_big };

Packing packing_of(std::string_view head) {
    if (head.starts_with("\x1F\x8B"sv)) return Packing::gzip;
    // Files of pzstd begin with a skippable frame, whose magic is compared here.
    bool skippable = head.size() >= 4 && (head[0] & 0xF0) == 0x50 && head.substr(1, 3) == "\x2A\x4D\x18"sv;
    return head.starts_with("\x28\xB5\x2F\xFD"sv) || skippable ? Packing::zstd : Packing::none;
}

struct Signature {
    size_t at;
    std::string_view bytes;
    const char* what;
};
const Signature SIGNATURES[] = {
    {0, "\x88\xD8\x34\x01"sv, "a shard of tokens: it is tokenized already; give it to flatgpt train --data"},
    {0, "\xA1\xD9\x34\x01"sv, "a shard of tokens: it is tokenized already; give it to flatgpt train --data"},
    {0, "PAR1"sv, "a Parquet table, whose end is read first: give it as an unpacked file"},
    {0, "ARROW1"sv, "an Arrow table; write its text as JSON lines first"},
    {0, "PK\x03\x04"sv, "a zip archive (or a document in one); unpack it first, or: unzip -p FILE | flatgpt ... -"},
    {0,
     "\xFD"
     "7zXZ\0"sv,
     "compressed by xz; unpack it on the way: xz -dc FILE | flatgpt ... -"},
    {0, "BZh"sv, "compressed by bzip2; unpack it on the way: bzip2 -dc FILE | flatgpt ... -"},
    {0, "7z\xBC\xAF\x27\x1C"sv, "a 7z archive; unpack it first"},
    {0, "\x04\x22\x4D\x18"sv, "compressed by lz4; unpack it on the way: lz4 -dc FILE | flatgpt ... -"},
    {257, "ustar"sv, "a tar archive; unpack it first, or: tar -xOf FILE | flatgpt ... -"},
    {0, "%PDF-"sv, "a PDF; take out its text first: pdftotext FILE"},
    {0, "GGUF"sv, "a GGUF model, no text"},
    {0, "\x93NUMPY"sv, "a NumPy array, no text"},
    {0, "SQLite format 3\0"sv, "an SQLite data base; write its text as JSON lines first"},
    {0, "\xFF\xFE\0\0"sv, "UTF-32; convert it on the way: iconv -f UTF-32 -t UTF-8 FILE | flatgpt ... -"},
    {0, "\0\0\xFE\xFF"sv, "UTF-32; convert it on the way: iconv -f UTF-32 -t UTF-8 FILE | flatgpt ... -"},
};
bool is_bzip2(std::string_view head) { return head.substr(4).starts_with("1AY&SY") || head.substr(4, 1) == "\x17"; }
bool utf16_bom(std::string_view head) { return head.starts_with("\xFF\xFE"sv) || head.starts_with("\xFE\xFF"sv); }
}    // namespace

std::string not_text_reason(std::string_view head) {
    for (const Signature& s : SIGNATURES) {
        if (head.size() < s.at || !head.substr(s.at).starts_with(s.bytes)) continue;
        if (s.bytes == "BZh" && !(head.size() > 4 && is_bzip2(head))) continue;    // BZh alone may begin a text
        return s.what;
    }
    if (utf16_bom(head) || head.find('\0') == head.npos) return "";
    if (head.size() > 8 && head[8] == '{' && head[7] == 0) return "a safetensors file, no text";
    // Latin letters in UTF-16 have a NUL in every second byte.
    size_t nul[2] = {}, looked = std::min<size_t>(head.size(), 4096);
    for (size_t i = 0; i < looked; i++) nul[i % 2] += head[i] == 0;
    const bool units = head.size() >= 16 && head.size() % 2 == 0;    // fewer bytes are ambiguous
    for (size_t odd : {0, 1})
        if (units && nul[odd] > looked / 5 && nul[1 - odd] <= looked / 50)
            return std::string("UTF-16 without a byte order mark; convert it on the way: iconv -f UTF-16") +
                   (odd ? "LE" : "BE") + " -t UTF-8 FILE | flatgpt ... -";
    return "a binary file: byte " + std::to_string(head.find('\0')) + " is a NUL";
}

std::string decompressed_name(std::string path) {
    for (char& c : path) c = char(tolower(static_cast<unsigned char>(c)));
    for (std::string_view end : {".gz", ".zst"})
        if (path.ends_with(end)) return path.substr(0, path.size() - end.size());
    return path;
}

// ---- stages -------------------------------------------------------------------------------------

struct TextFile::State {
    std::string path;
    FILE* file = nullptr;
    std::string block;    // file bytes; decompression continues at `at`
    size_t at = 0;
    int64_t consumed = 0;
    bool ended = false;    // the block is the file's last one

    Packing packing = Packing::none;
    z_stream inflater{};
    ZSTD_DStream* decompressor = nullptr;
    bool inside = false;    // in a gzip member or zstd frame: an end here is an error

    Encoding encoding = Encoding::bytes;
    std::string beginning;    // the first decompressed bytes, emitted up to `given`
    size_t given = 0;
    std::string units;    // undecoded UTF-16, less than one character
    std::string text;     // decoded text, emitted up to text_given
    size_t text_given = 0;
    bool text_ended = false;

    ~State() {
        if (packing == Packing::gzip) inflateEnd(&inflater);
        ZSTD_freeDStream(decompressor);
        if (file && file != stdin) fclose(file);
    }
    long long offset() const { return (long long)(consumed - int64_t(block.size() - at)); }
    Status damaged(const char* how) const {
        return fail(Exit::input, "%s: offset %lld: the %s data are damaged: %s", path.c_str(), offset(),
                    name_of(packing), how);
    }
    Status next_block() {
        block.resize(BLOCK);
        size_t n = fread(block.data(), 1, BLOCK, file);
        if (ferror(file)) return fail(Exit::io, "%s: cannot read on: %s", path.c_str(), strerror(errno));
        block.resize(n);
        at = 0;
        consumed += int64_t(n);
        ended = n < BLOCK;
        return {};
    }
    Status start();
    Status inflate_some(char* to, size_t bytes, size_t* done);
    Status decompress_some(char* to, size_t bytes, size_t* done);
    Result<size_t> unpack(char* to, size_t bytes);
    Result<size_t> unpacked(char* to, size_t bytes);
    Status decode_some();
};

// Decompresses gzip data from `block` into `to` and sets *done to the number of bytes written. Gzip
// members may follow each other; zeros after the last one are padding.
Status TextFile::State::inflate_some(char* to, size_t bytes, size_t* done) {
    auto* in = reinterpret_cast<unsigned char*>(block.data());
    if (!inside) {
        if (in[at] == 0) {
            if (std::all_of(in + at, in + block.size(), [](unsigned char c) { return c == 0; })) {
                at = block.size();
                return {};
            }
            return damaged("something follows the end");
        }
        inflateReset(&inflater);
        inside = true;
    }
    inflater.next_in = in + at;
    inflater.avail_in = unsigned(block.size() - at);
    inflater.next_out = reinterpret_cast<unsigned char*>(to);
    inflater.avail_out = unsigned(bytes);
    int rc = inflate(&inflater, Z_NO_FLUSH);
    at = block.size() - inflater.avail_in;
    *done = bytes - inflater.avail_out;
    if (rc == Z_STREAM_END) inside = false;
    if (rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR) return {};
    return damaged(inflater.msg ? inflater.msg : "a preset dictionary is not supported");
}

Status TextFile::State::decompress_some(char* to, size_t bytes, size_t* done) {
    ZSTD_inBuffer in{block.data(), block.size(), at};
    ZSTD_outBuffer out{to, bytes, 0};
    size_t rc = ZSTD_decompressStream(decompressor, &out, &in);
    at = in.pos;
    *done = out.pos;
    inside = rc != 0;
    if (!ZSTD_isError(rc)) return {};
    if (ZSTD_getErrorCode(rc) == ZSTD_error_frameParameter_windowTooLarge)
        return fail(Exit::input,
                    "%s: offset %lld: unpacking takes more than 128 MiB of memory (zstd --long); unpack "
                    "it on the way: zstd -dc --long=31 FILE | flatgpt ... -",
                    path.c_str(), offset());
    return damaged(ZSTD_getErrorName(rc));
}

// Decompresses into `to`. Returns less than `bytes` only at the end.
Result<size_t> TextFile::State::unpack(char* to, size_t bytes) {
    size_t filled = 0;
    while (filled < bytes) {
        if (at == block.size() && !ended) TRY(next_block());
        bool no_input = at == block.size();
        if (no_input && (packing == Packing::none || !inside)) break;
        size_t done = 0, want = std::min(bytes - filled, size_t(1) << 30);
        if (packing == Packing::none) {
            done = std::min(want, block.size() - at);
            memcpy(to + filled, block.data() + at, done);
            at += done;
        } else {
            TRY(packing == Packing::gzip ? inflate_some(to + filled, want, &done)
                                         : decompress_some(to + filled, want, &done));
            if (no_input && done == 0 && inside) return damaged("the file ends inside them: was it cut short?");
        }
        filled += done;
    }
    return filled;
}

// Detects compression, encoding and binary files from the beginning.
Status TextFile::State::start() {
    TRY(next_block());
    packing = packing_of(block);
    if (packing == Packing::gzip) CHECK(inflateInit2(&inflater, 15 + 16) == Z_OK);    // + 16: a gzip header
    if (packing == Packing::zstd) CHECK((decompressor = ZSTD_createDStream()) != nullptr);
    std::string lower = path;
    for (char& c : lower) c = char(tolower(static_cast<unsigned char>(c)));
    for (Packing p : {Packing::gzip, Packing::zstd})
        if (lower.ends_with(p == Packing::gzip ? ".gz" : ".zst") && packing != p)
            return fail(Exit::input,
                        "%s: expected %s data, as its name says, found %s; a file that is not compressed "
                        "needs another name",
                        path.c_str(), name_of(p), block.empty() ? "nothing" : "other bytes");
    beginning.resize(BLOCK);
    beginning.resize(TRY(unpack(beginning.data(), BLOCK)));
    if (std::string what = not_text_reason(beginning); !what.empty())
        return fail(Exit::input, "%s: expected text, but %sit is %s", path.c_str(),
                    packing == Packing::none ? "" : "unpacked ", what.c_str());
    if (packing != Packing::none && packing_of(beginning) != Packing::none)
        return fail(Exit::input, "%s: compressed twice; unpack it once", path.c_str());
    if (beginning.starts_with("\xEF\xBB\xBF")) given = 3;
    if (utf16_bom(beginning)) {
        encoding = beginning[0] == '\xFF' ? Encoding::utf16_little : Encoding::utf16_big;
        given = 2;
    }
    return {};
}

// Returns decompressed bytes, beginning with those that start() has read already.
Result<size_t> TextFile::State::unpacked(char* to, size_t bytes) {
    size_t n = std::min(bytes, beginning.size() - given);
    memcpy(to, beginning.data() + given, n);
    given += n;
    if (n == bytes) return n;
    return n + TRY(unpack(to + n, bytes - n));
}

// Decodes the next units to UTF-8; a lone surrogate and half a unit at the end become U+FFFD.
Status TextFile::State::decode_some() {
    size_t had = units.size();
    units.resize(had + BLOCK);
    const size_t n = TRY(unpacked(units.data() + had, BLOCK));
    units.resize(had + n);
    text_ended = n < BLOCK;
    text.clear();
    text_given = 0;
    size_t i = 0;
    auto unit = [&](size_t k) {
        uint32_t first = static_cast<unsigned char>(units[k]), second = static_cast<unsigned char>(units[k + 1]);
        return encoding == Encoding::utf16_little ? first | second << 8 : first << 8 | second;
    };
    for (; i + 2 <= units.size(); i += 2) {
        uint32_t c = unit(i);
        bool high = c >= 0xD800 && c < 0xDC00;
        if (high && i + 4 > units.size() && !text_ended) break;
        uint32_t low = high && i + 4 <= units.size() ? unit(i + 2) : 0;
        if (low >= 0xDC00 && low < 0xE000) {
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
            i += 2;
        } else if (c >= 0xD800 && c < 0xE000) {
            c = 0xFFFD;
        }
        append_utf8(text, c);
    }
    if (text_ended && i < units.size()) append_utf8(text, 0xFFFD);
    units.erase(0, text_ended ? units.size() : i);
    return {};
}

// ---- class --------------------------------------------------------------------------------------

Result<TextFile> TextFile::open(const std::string& path) {
    TextFile f;
    f.s = std::make_shared<State>();
    f.s->path = path == "-" ? "stdin" : path;
    f.s->file = path == "-" ? stdin : fopen(path.c_str(), "rb");
    if (!f.s->file) return fail(Exit::input, "%s: cannot read: %s", path.c_str(), strerror(errno));
    TRY(f.s->start());
    return f;
}

Result<size_t> TextFile::read(char* to, size_t bytes) {
    if (s->encoding == Encoding::bytes) return s->unpacked(to, bytes);
    size_t filled = 0;
    while (filled < bytes) {
        if (s->text_given == s->text.size()) {
            if (s->text_ended) break;
            TRY(s->decode_some());
            continue;
        }
        size_t n = std::min(bytes - filled, s->text.size() - s->text_given);
        memcpy(to + filled, s->text.data() + s->text_given, n);
        s->text_given += n;
        filled += n;
    }
    return filled;
}

Result<std::string_view> TextFile::head() {
    if (s->encoding == Encoding::bytes) return std::string_view(s->beginning).substr(s->given);
    if (s->text.empty() && !s->text_ended) TRY(s->decode_some());
    return std::string_view(s->text);
}

int64_t TextFile::file_bytes() const { return s->consumed; }
bool TextFile::plain() const { return s->packing == Packing::none && s->encoding == Encoding::bytes; }
int TextFile::fd() const { return fileno(s->file); }
