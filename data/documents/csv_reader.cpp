// csv_reader.cpp - comma- and tab-separated values. See readers.h.
//
// Source: RFC 4180. A field in quotes may hold separators and line ends, and two quotes for one. A
// quote inside a field that does not begin with one is an ordinary character.
#include <algorithm>

#include "base/shorten.h"
#include "files/json_write.h"
#include "readers.h"

namespace {
constexpr size_t BLOCK = 1 << 20, MAX_COLUMNS = 10'000;

// A field's value: without its quotes, and each pair of quotes inside as one.
std::string unquoted(std::string_view field) {
    if (!field.starts_with('"')) return std::string(field);
    field = field.substr(1, field.size() - 2);
    std::string text;
    text.reserve(field.size());
    for (size_t at = 0; at < field.size();) {
        const size_t quote = std::min(field.find('"', at), field.size());
        text.append(field, at, quote + 1 - at);    // one of the two quotes, if there are any
        at = quote + 2;
    }
    return text;
}
}    // namespace

// Splits a record; the state between two bytes is all that a longer buffer needs to go on.
Result<bool> CsvReader::read_record() {
    const size_t longest = size_t(c.longest) << 20;
    enum class In { begin, plain, quoted, closed, closed_cr } in = In::begin;
    ends.clear();
    size_t at = 0, separators = 0;
    int64_t lines = 0;
    bool done = false, bad_quote = false;
    for (size_t want = BLOCK; !done; want = std::min(2 * want, longest + BLOCK)) {
        TRY(buffer.fill(want));
        const std::string_view rest = buffer.unread();
        if (rest.empty()) return false;
        for (; at < rest.size() && !done; at++) {
            const char b = rest[at];
            if (in == In::quoted) {
                const size_t quote = std::min(rest.find('"', at), rest.size());
                lines += std::count(rest.begin() + long(at), rest.begin() + long(quote), '\n');
                at = quote;
                if (at == rest.size()) break;
                in = In::closed;
            } else if (b == '"' && in != In::plain && in != In::closed_cr) {
                in = In::quoted;    // the field's first quote, or the second of a pair
            } else if (b == comma || b == '\n') {
                bad_quote |= in == In::closed_cr && b == comma;
                separators++;
                if (ends.size() < MAX_COLUMNS) ends.push_back(at);
                in = In::begin;
                done = b == '\n';
                lines += done;
            } else {
                // Behind a closing quote only a line end may follow, which may begin with \r.
                bad_quote |= in == In::closed_cr || (in == In::closed && b != '\r');
                in = in == In::closed || in == In::closed_cr ? In::closed_cr : In::plain;
            }
        }
        if (buffer.ended() || at > longest) break;
    }
    const std::string_view record = buffer.unread().substr(0, at);
    if (in == In::quoted || at > longest)
        return fail(Exit::input, "%s:%lld: expected a record of at most %d MiB%s%s", buffer.path().c_str(),
                    (long long)line, c.longest,
                    in == In::quoted ? ", found one with a quote that is not closed" : ", found more",
                    at > longest && c.flags ? " (--longest-line)" : "");
    if (!done) ends.push_back(at);
    fields.clear();
    size_t begin = 0;
    for (const size_t end : ends) {
        fields.push_back(record.substr(begin, end - begin));
        begin = end + 1;
    }
    if (fields.back().ends_with('\r')) fields.back().remove_suffix(1);
    error = bad_quote ? formatted("%s:%lld: expected a separator or the line's end behind a closing quote",
                                  buffer.path().c_str(), (long long)line)
                      : "";
    if (separators > MAX_COLUMNS)
        error = formatted("%s:%lld: expected at most %zu fields, found %zu", buffer.path().c_str(), (long long)line,
                          MAX_COLUMNS, separators);
    buffer.consume(at);
    line += lines;
    return true;
}

Status CsvReader::read_header() {
    constexpr size_t NAMED = 12, LETTERS = 60;
    do {
        if (!TRY(read_record())) return {};
    } while (fields.size() == 1 && fields[0].empty());
    if (!error.empty()) return {Exit::input, error};
    columns = fields.size();
    const std::string wanted = c.text_field();
    std::string names;
    size_t found = 0;
    for (size_t i = 0; i < columns; i++) {
        const std::string name = unquoted(fields[i]);
        if (name == wanted && found++ == 0) column = i;
        if (i < NAMED) names += (i ? ", " : "") + json_string(shorten(name, LETTERS));
    }
    if (columns > NAMED) names += " and " + std::to_string(columns - NAMED) + " more";
    if (found == 1) return {};
    return fail(Exit::input, "%s: expected %s \"%s\" in the first line, found: %s%s%s", buffer.path().c_str(),
                found ? "one column" : "a column", shorten(wanted, LETTERS).c_str(), names.c_str(),
                c.flags && !found ? "; --field names another" : "",
                c.flags ? "; --format text takes the file as it is" : "");
}

Result<bool> CsvReader::next(Segment& segment) {
    if (columns == 0) {
        TRY(read_header());
        if (columns == 0) return false;    // an empty file
    }
    for (;;) {
        const int64_t first = line;
        if (!TRY(read_record())) return false;
        if (fields.size() == 1 && fields[0].empty()) continue;    // a blank line
        segment.begins_document = segment.whole_document = true;
        segment.line = first;
        segment.where = buffer.path() + ":" + std::to_string(first);
        segment.error = error;
        if (error.empty() && fields.size() != columns)
            segment.error = formatted("%s: expected %zu fields, as in the first line, found %zu", segment.where.c_str(),
                                      columns, fields.size());
        if (segment.error.empty()) segment.text = unquoted(fields[column]);
        return true;
    }
}
