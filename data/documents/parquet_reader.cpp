// parquet_reader.cpp - the rows of a column of texts. See readers.h.
#include "readers.h"

Result<bool> ParquetReader::next(Segment& segment) {
    std::string_view text;
    if (!TRY(texts.next(&text))) return false;
    segment.text = text;
    segment.begins_document = segment.whole_document = true;
    segment.line = texts.row();
    segment.where = name + ":" + std::to_string(texts.row());
    size_t checked = 0;
    if (!invalid.empty()) return true;
    if (const size_t bad = find_not_utf8(text, 0, true, &checked); bad != text.npos)
        invalid = not_utf8_note(segment.where, int64_t(bad), text[bad]);
    return true;
}
