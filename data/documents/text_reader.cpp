// text_reader.cpp - a text as one document, and a text whose lines are documents. See readers.h.
#include <algorithm>

#include "readers.h"

namespace {
constexpr size_t SEGMENT = 1 << 20, BLOCK = 1 << 20;
}

Result<bool> TextReader::next(Segment& segment) {
    const size_t longest = size_t(c.longest) << 20, first = c.whole_documents && begins ? longest : SEGMENT;
    for (size_t want = first; want <= longest; want = want < longest ? std::min(2 * want, longest) : longest + 1) {
        TRY(buffer.fill(want));
        const std::string_view rest = buffer.unread();
        if (rest.empty()) return false;
        bool splits = before_tail <= int64_t(want) && before_tail < int64_t(rest.size());
        bool whole = buffer.ended() && rest.size() <= want && !splits;
        size_t cut = whole ? rest.size() : c.safe_cut(rest, splits ? size_t(before_tail) : want);
        if (cut == 0 && splits) {    // no cut for a tail: all text is for training
            before_tail = INT64_MAX;
            want /= 2;
        }
        if (cut == 0) continue;
        segment.validation = tail;
        segment.begins_document = begins;
        segment.whole_document = begins && (whole || splits);
        begins = splits;    // the tail begins a document of its own
        tail |= splits;
        before_tail = splits ? INT64_MAX : before_tail - int64_t(cut);
        segment.text = rest.substr(0, cut);
        buffer.consume(cut);
        return true;
    }
    return fail(Exit::input,
                "%s: byte %lld: expected a place within %d MiB where the tokenizer allows to cut the "
                "text (a space, a line end), found none%s",
                buffer.path().c_str(), (long long)buffer.offset(), c.longest,
                c.flags ? "; --longest-line allows more, which takes some 20 bytes of memory a byte" : "");
}

Result<bool> LineTexts::next(Segment& segment) {
    const size_t longest = size_t(c.longest) << 20;
    for (;;) {
        size_t length = 0;
        for (size_t want = BLOCK;; want = std::min(2 * want, longest + BLOCK)) {
            TRY(buffer.fill(want));
            const std::string_view rest = buffer.unread();
            const size_t end = rest.find('\n', length);
            length = std::min(end, rest.size());
            if (end != rest.npos || buffer.ended() || length > longest) break;
        }
        if (length > longest)
            return fail(Exit::input, "%s:%lld: expected a line of at most %d MiB, found more%s", buffer.path().c_str(),
                        (long long)line + 1, c.longest, c.flags ? " (--longest-line)" : "");
        std::string_view text = buffer.unread();
        if (text.empty()) return false;
        text = text.substr(0, length);
        buffer.consume(std::min(length + 1, buffer.unread().size()));
        line++;
        if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        if (!json && text.ends_with('\r')) text.remove_suffix(1);
        segment.text = text;
        segment.begins_document = segment.whole_document = true;
        segment.line = line;
        if (json) segment.where = buffer.path() + ":" + std::to_string(line);
        segment.raw = json ? Segment::Raw::json_object : Segment::Raw::no;
        return true;
    }
}
