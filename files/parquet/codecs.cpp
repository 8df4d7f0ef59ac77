// codecs.cpp - unpacks a Parquet page: Snappy and raw LZ4 by hand, gzip and zstd by their
// libraries. See parquet.h.
//
// Sources: google/snappy format_description.txt; lz4 lz4_Block_format.md. Both are sequences of
// literal bytes and copies of earlier output.
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "parquet.h"

namespace {
unsigned char byte_at(std::string_view in, size_t at) { return static_cast<unsigned char>(in[at]); }

// The output of a page: `size` bytes, of which the first `done` are written.
struct Output {
    char* bytes;
    size_t size, done = 0;

    // Repeats `length` bytes from `distance` bytes before. The ranges may overlap.
    bool copy_back(size_t distance, size_t length) {
        if (distance == 0 || distance > done || length > size - done) return false;
        char* to = bytes + done;
        const char* from = to - distance;
        done += length;
        if (distance >= 8 && size - done >= 8) {    // whole words; the last one may write beyond the copy
            for (size_t i = 0; i < length; i += 8) memcpy(to + i, from + i, 8);
            return true;
        }
        for (size_t i = 0; i < length; i++) to[i] = from[i];
        return true;
    }
    bool literal(std::string_view in, size_t& at, size_t length) {
        if (length > in.size() - at || length > size - done) return false;
        memcpy(bytes + done, in.data() + at, length);
        at += length;
        done += length;
        return true;
    }
};

bool snappy(std::string_view in, Output& out) {
    size_t at = 0;
    uint64_t declared = 0;
    for (int shift = 0;; shift += 7) {
        if (at == in.size() || shift > 28) return false;
        const unsigned char bits = byte_at(in, at++);
        declared |= uint64_t(bits & 0x7F) << shift;
        if (!(bits & 0x80)) break;
    }
    if (declared != out.size) return false;
    while (at < in.size()) {
        const unsigned char tag = byte_at(in, at++);
        size_t length = (tag >> 2) + 1u, distance = 0;
        const size_t kind = tag & 3, long_length = kind == 0 && length > 60 ? length - 60 : 0,
                     more = kind == 0   ? long_length
                            : kind == 3 ? 4
                                        : kind;
        if (more > in.size() - at) return false;
        for (size_t i = 0; i < more; i++) distance |= size_t(byte_at(in, at + i)) << (8 * i);
        at += more;
        if (kind == 0) {
            if (long_length) length = distance + 1;
            if (!out.literal(in, at, length)) return false;
            continue;
        }
        if (kind == 1) {
            length = ((tag >> 2) & 7u) + 4;
            distance |= size_t(tag >> 5) << 8;
        }
        if (!out.copy_back(distance, length)) return false;
    }
    return true;
}

// Adds the bytes that extend a length of LZ4, of which the last one is below 255.
bool extend(std::string_view in, size_t& at, size_t& length) {
    for (unsigned char more = 255; more == 255; length += more) {
        if (at == in.size()) return false;
        more = byte_at(in, at++);
    }
    return true;
}
bool lz4(std::string_view in, Output& out) {
    for (size_t at = 0; at < in.size();) {
        const unsigned char token = byte_at(in, at++);
        size_t literal = token >> 4, match = token & 15;
        if (literal == 15 && !extend(in, at, literal)) return false;
        if (!out.literal(in, at, literal)) return false;
        if (at == in.size()) return true;    // the last sequence has no copy
        if (in.size() - at < 2) return false;
        const size_t distance = byte_at(in, at) | size_t(byte_at(in, at + 1)) << 8;
        at += 2;
        if (match == 15 && !extend(in, at, match)) return false;
        if (!out.copy_back(distance, match + 4)) return false;
    }
    return out.size == 0;
}

constexpr size_t STEP = 1 << 20;    // bytes by which output grows
// Makes room behind the `done` bytes of `out` that are written, `size` bytes in all.
size_t grow(std::string& out, size_t done, size_t size) {
    if (done == out.size()) out.resize(std::min(size, done + STEP));
    return out.size() - done;
}
bool gzip(std::string_view in, size_t size, std::string& out) {
    z_stream z{};
    if (inflateInit2(&z, 15 + 32) != Z_OK) return false;    // + 32: a gzip or a zlib header
    z.next_in = reinterpret_cast<unsigned char*>(const_cast<char*>(in.data()));
    z.avail_in = unsigned(in.size());
    int rc = Z_OK;
    size_t done = 0;
    while (rc == Z_OK && done < size) {
        const size_t free_bytes = grow(out, done, size), unread = z.avail_in;
        z.next_out = reinterpret_cast<unsigned char*>(&out[done]);
        z.avail_out = unsigned(free_bytes);
        rc = inflate(&z, Z_NO_FLUSH);
        const size_t written = free_bytes - z.avail_out;
        done += written;
        if (rc == Z_STREAM_END && z.avail_in) rc = inflateReset(&z);    // another member follows
        if (written == 0 && z.avail_in == unread) break;
    }
    inflateEnd(&z);
    out.resize(done);
    return rc == Z_OK || rc == Z_STREAM_END;
}
bool zstd(std::string_view in, size_t size, std::string& out) {
    ZSTD_DStream* stream = ZSTD_createDStream();
    if (!stream) return false;
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    size_t rc = 1, done = 0;
    while (!ZSTD_isError(rc) && done < size) {
        const size_t free_bytes = grow(out, done, size), unread = from.pos;
        ZSTD_outBuffer to{&out[done], free_bytes, 0};
        rc = ZSTD_decompressStream(stream, &to, &from);
        done += to.pos;
        if (to.pos == 0 && from.pos == unread) break;
    }
    ZSTD_freeDStream(stream);
    out.resize(done);
    return !ZSTD_isError(rc);
}
}    // namespace

bool parquet_decompress(ParquetCodec codec, std::string_view in, size_t size, std::string& out) {
    out.clear();
    // Snappy and LZ4 emit at most 64 and 255 bytes for a byte of input, so the size is bounded by
    // bytes that exist; the output of the other two grows in steps.
    const size_t ratio = codec == ParquetCodec::snappy ? 64 : codec == ParquetCodec::lz4_raw ? 256 : 0;
    if (ratio && size / ratio > in.size()) return false;
    if (ratio) out.resize(size);
    Output to{out.data(), size};
    switch (codec) {
        case ParquetCodec::none: out = in; return out.size() == size;
        case ParquetCodec::snappy: return snappy(in, to) && to.done == size;
        case ParquetCodec::lz4_raw: return lz4(in, to) && to.done == size;
        case ParquetCodec::gzip: return gzip(in, size, out) && out.size() == size;
        case ParquetCodec::zstd: return zstd(in, size, out) && out.size() == size;
        default: return false;
    }
}
