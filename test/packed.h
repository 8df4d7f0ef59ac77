// packed.h - texts as gzip, zstd and UTF-16, for tests of code that reads them.
#pragma once
#include <zlib.h>
#include <zstd.h>

#include <string>

inline std::string gzip(const std::string& text) {
    z_stream z{};
    deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    std::string out(deflateBound(&z, text.size()), '\0');
    z.next_in = reinterpret_cast<unsigned char*>(const_cast<char*>(text.data()));
    z.avail_in = unsigned(text.size());
    z.next_out = reinterpret_cast<unsigned char*>(out.data());
    z.avail_out = unsigned(out.size());
    deflate(&z, Z_FINISH);
    out.resize(z.total_out);
    deflateEnd(&z);
    return out;
}
inline std::string zstd(const std::string& text) {    // with a checksum
    ZSTD_CCtx* context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
    ZSTD_freeCCtx(context);
    return out;
}
// With a byte order mark. text: valid UTF-8.
inline std::string utf16(const std::string& text, bool big = false) {
    std::string out;
    auto unit = [&](uint32_t u) { (out += char(big ? u >> 8 : u)) += char(big ? u : u >> 8); };
    unit(0xFEFF);
    for (size_t i = 0; i < text.size();) {
        auto byte = static_cast<unsigned char>(text[i++]);
        int more = byte < 0x80 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
        uint32_t c = more ? byte & (0x3F >> more) : byte;
        while (more--) c = c << 6 | (static_cast<unsigned char>(text[i++]) & 0x3F);
        if (c < 0x10000) {
            unit(c);
        } else {
            unit(0xD800 + ((c - 0x10000) >> 10));
            unit(0xDC00 + ((c - 0x10000) & 0x3FF));
        }
    }
    return out;
}
