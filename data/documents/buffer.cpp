// buffer.cpp - see buffer.h.
#include "buffer.h"

#include <cstring>

#include "base/console.h"

namespace {
constexpr size_t BLOCK = 1 << 20;    // bytes of a read
}

Status TextBuffer::fill(size_t wanted) {
    if (bytes.size() - at >= wanted || end) return {};
    bytes.erase(0, at);
    if (checked != bytes.npos) checked = std::max(checked, at) - at;
    before += int64_t(at);
    at = 0;
    while (bytes.size() < wanted && !end) {
        const size_t had = bytes.size();
        bytes.resize(had + BLOCK);
        const size_t n = TRY(input.read(bytes.data() + had, BLOCK));
        bytes.resize(had + n);
        end = n < BLOCK;
    }
    check_encoding();
    return {};
}

size_t find_not_utf8(std::string_view all, size_t from, bool whole, size_t* checked) {
    while (from < all.size()) {
        uint64_t eight = 0x80;
        if (from + 8 <= all.size()) memcpy(&eight, &all[from], 8);
        if ((eight & 0x8080808080808080u) == 0) {
            from += 8;
            continue;
        }
        bool complete = false;
        const size_t n = utf8_character(all.substr(from), complete);
        if (!complete && from + n == all.size() && !whole) break;    // more bytes may complete it
        if (!complete) return from;
        from += n;
    }
    *checked = from;
    return all.npos;
}
std::string not_utf8_note(const std::string& where, int64_t offset, char byte) {
    return formatted("%s: byte %lld is 0x%02X, which is no UTF-8", where.c_str(), (long long)offset,
                     static_cast<unsigned char>(byte));
}

void TextBuffer::check_encoding() {
    if (checked == bytes.npos) return;
    const size_t found = find_not_utf8(bytes, checked, end, &checked);
    if (found == bytes.npos) return;
    invalid = not_utf8_note(name, before + int64_t(found), bytes[found]);
    checked = bytes.npos;
}
