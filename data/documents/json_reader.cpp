// json_reader.cpp - JSON arrays, and JSON values one after the other. See readers.h.
//
// The reader only matches brackets outside of strings, which is fast and holds one value in memory;
// record_text checks the value's syntax.
#include <algorithm>

#include "files/json_check.h"
#include "readers.h"

namespace {
constexpr size_t BLOCK = 1 << 20;
// White space of JSON, and the record separator that RFC 7464 puts before each value.
constexpr std::string_view SPACE = " \t\r\n\x1E", SCALAR_ENDS = " \t\r\n\x1E,]}";
}    // namespace

std::string JsonTexts::where() const {
    const std::string at = buffer.path() + ":" + std::to_string(line);
    return array ? at + " (element " + std::to_string(count) + ")" : at;
}

// False: the file has ended.
Result<bool> JsonTexts::skip_space() {
    for (;;) {
        TRY(buffer.fill(1));
        const std::string_view rest = buffer.unread();
        const size_t n = std::min(rest.find_first_not_of(SPACE), rest.size());
        line += std::count(rest.begin(), rest.begin() + long(n), '\n');
        buffer.consume(n);
        if (n < rest.size()) return true;
        if (buffer.ended()) return false;
    }
}

// Whether the next byte is a bracket or a comma of the array, which is then passed.
Result<bool> JsonTexts::punctuation(char next) {
    const State old = state;
    if (state == State::start && next == '[') {
        array = true;
        state = State::first;
    } else if (array && next == ']' && (state == State::first || state == State::after)) state = State::end;
    else if (array && next == ',' && state == State::after) state = State::between;
    else if (array && state == State::after)
        return fail(Exit::input, "%s: expected a comma or ] behind it, on line %lld", where().c_str(), (long long)line);
    if (state != old) buffer.consume(1);
    return state != old;
}

Result<size_t> JsonTexts::value_length() {
    const size_t longest = size_t(c.longest) << 20;
    size_t at = 0, depth = 0;
    bool quoted = false;
    for (size_t want = BLOCK;; want = std::min(2 * want, longest + BLOCK)) {
        TRY(buffer.fill(want));
        const std::string_view rest = buffer.unread();
        while (at < rest.size()) {
            if (quoted) {    // a backslash takes the next byte with it
                at = std::min(rest.find_first_of("\"\\", at), rest.size());
                if (at == rest.size() || (rest[at] == '\\' && at + 1 == rest.size())) break;
                quoted = rest[at] == '\\';
                at += quoted ? 2 : 1;
            } else if (depth == 0 && at == 0 && rest[0] != '"' && rest[0] != '{' && rest[0] != '[') {
                at = std::min(rest.find_first_of(SCALAR_ENDS), rest.size());
                if (at < rest.size() || buffer.ended()) return std::max<size_t>(at, 1);
                at = 0;
                break;
            } else {
                const char b = rest[at++];
                quoted = b == '"';
                depth += b == '{' || b == '[';
                depth -= b == '}' || b == ']';
            }
            if (depth == 0 && !quoted) return at;
        }
        if (buffer.ended())
            return fail(Exit::input, "%s: not JSON: the file ends inside the value that begins here: was it cut short?",
                        where().c_str());
        if (rest.size() > longest)
            return fail(Exit::input, "%s: expected a value of at most %d MiB, found more%s", where().c_str(), c.longest,
                        c.flags ? " (--longest-line); of a list in an object: jq -c '.KEY[]' FILE > x.jsonl" : "");
    }
}

Result<bool> JsonTexts::next(Segment& segment) {
    while (TRY(skip_space())) {
        if (state == State::end)
            return fail(Exit::input, "%s:%lld: expected nothing behind the JSON array, found more",
                        buffer.path().c_str(), (long long)line);
        if (TRY(punctuation(buffer.unread()[0]))) continue;
        count++;
        const size_t length = TRY(value_length());
        segment.text = buffer.unread().substr(0, length);
        segment.begins_document = segment.whole_document = true;
        segment.line = array ? count : line;
        segment.where = where();
        segment.raw = Segment::Raw::json_value;
        line += std::count(segment.text.begin(), segment.text.end(), '\n');
        buffer.consume(length);
        state = State::after;
        return true;
    }
    if (array && state != State::end)
        return fail(Exit::input, "%s:%lld: expected ] at the array's end, found the file's: was it cut short?",
                    buffer.path().c_str(), (long long)line);
    return false;
}

Status record_text(Segment& segment, const CorpusConfig& config) {
    const bool remedies = config.flags;
    if (segment.raw != Segment::Raw::no && segment.error.empty()) {
        Result<std::string> text = json_text_field(segment.text, segment.where, config.text_field(), RECORD_DEPTH,
                                                   segment.raw == Segment::Raw::json_value);
        if (text.ok()) {
            segment.text = std::move(text.value);
            segment.raw = Segment::Raw::no;
            return {};
        }
        std::string why = std::move(text.status.message);
        auto tells = [&](const char* part) { return why.find(part) != std::string::npos; };
        if (tells("UTF-8")) why += "; is it Latin-1? Convert it: iconv -f LATIN1 -t UTF-8 FILE";
        if (tells("its fields:") && remedies) why += "; --field names one";
        if (tells("not JSON:") && !config.field.empty()) why += "; given --field, every file is JSON lines";
        if (remedies && format_by_name(config.files[size_t(segment.file)], config) == TextFormat::automatic)
            why += "; it is taken for JSON by its beginning: --format text takes it as it is";
        return {Exit::input, why};
    }
    return segment.error.empty() ? Status{} : Status{Exit::input, segment.error};
}
