// corpus.cpp - see corpus.h.
#include "corpus.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/stat.h>

#include "base/console.h"
#include "files/json_check.h"

namespace {
constexpr size_t SEGMENT = 1 << 20, BLOCK = 1 << 20;
constexpr size_t MANY = 100;      // more text files than this: whole ones held out
constexpr size_t HEAD = 32000;    // bytes read to detect the format
constexpr int DEPTH = 64;         // maximum nesting in a JSON line

// ---- detecting the format from the first bytes --------------------------------------------------

size_t skip(std::string_view text, size_t at, const char* white) {
    return std::min(text.find_first_not_of(white, at), text.size());
}
// Whether text begins with {"key":
bool begins_object(std::string_view text) {
    size_t at = skip(text, 1, " \t\r\n");
    if (text[0] != '{' || at == text.size() || text[at++] != '"') return false;
    while (at < text.size() && text[at] != '"' && text[at] != '\n') at += text[at] == '\\' ? 2 : 1;
    if (at >= text.size() || text[at] != '"') return false;
    at = skip(text, at + 1, " \t\r\n");
    return at < text.size() && text[at] == ':';
}
// Whether text is one JSON value, or may begin one. Invalid UTF-8 is accepted: it may be Latin-1.
bool is_value(std::string_view text, bool whole) {
    JsonCheck v(DEPTH);
    return json_check(text, "", v).ok() || v.error.find("UTF-8") != v.error.npos ||
           (!whole && v.error_byte > text.size());
}
// Whether text has several lines and each line is a JSON value.
bool values_by_line(std::string_view text) {
    size_t lines = 0;
    for (size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1, lines++)
        if (!is_value(text.substr(at, end - at), true)) return false;
    return lines > 1;
}
bool begins_array(std::string_view text, bool whole) {
    const size_t inner = skip(text, 1, " \t\r\n");
    return is_value(text, whole) || (inner < text.size() && begins_object(text.substr(inner))) || values_by_line(text);
}
// Layout of a file's beginning. lines: the first line is an object. document: an object of several
// lines. strings: every line is a JSON string. sequence: records separated by RS (RFC 7464). other:
// no JSON in a file named .json. none: text.
enum class Json { none, lines, array, document, strings, sequence, other };
Json json_shape(std::string_view head, bool named) {
    const bool all = head.size() < HEAD;
    head.remove_prefix(skip(head, 0, " \t\r\n"));
    if (head.empty()) return Json::none;
    if (head[0] == '\x1E') return Json::sequence;
    if (head[0] == '[' && (named || begins_array(head, all))) return Json::array;
    // Lines of prose may be in quotes, too, so a file not named .json must also have an escape.
    if (head[0] == '"' && (named || head.find('\\') != head.npos) && values_by_line(head)) return Json::strings;
    const bool object = begins_object(head);
    if (!object && head[0] != '{') return named ? Json::other : Json::none;
    if (!object && !named) return Json::none;
    const size_t end = head.find('\n');
    if (end == head.npos && !all) return object ? Json::lines : Json::document;
    return is_value(head.substr(0, end), true) ? Json::lines : Json::document;
}
// Error text, with a remedy, for a file of this shape; empty: text or JSON lines.
const char* refusal(Json shape) {
    switch (shape) {
        case Json::array:
            return "a JSON array; write an object on each line first: jq -c '.[]' FILE > x.jsonl (of strings: jq -c "
                   "'.[] | {text: .}')";
        case Json::document:
            return "JSON whose first line is no whole object; write an object on each line first: jq -c . FILE > "
                   "x.jsonl (of a list in it: jq -c '.KEY[]')";
        case Json::sequence:
            return "JSON parted by record separators (RFC 7464); remove them first: tr -d '\\036' < FILE > x.jsonl";
        case Json::strings: return "JSON strings; write an object on each line first: jq -c '{text: .}' FILE > x.jsonl";
        case Json::other:
            return "a name of JSON and no object on the first line; write an object on each line, and nothing before";
        default: return "";
    }
}
bool ends_with_any(std::string_view name, std::initializer_list<const char*> ends) {
    return std::any_of(ends.begin(), ends.end(), [&](const char* end) { return name.ends_with(end); });
}
}    // namespace

TextFormat text_format(const std::string& name) {
    return TextFormat(std::find(TEXT_FORMATS.begin(), TEXT_FORMATS.end(), name) - TEXT_FORMATS.begin());
}

bool Corpus::named_json(const std::string& path) const {
    if (config.format != TextFormat::automatic) return config.format == TextFormat::jsonl;
    return !config.field.empty() || ends_with_any(decompressed_name(path), {".jsonl", ".ndjson"});
}

// Whether lines of the file just opened are JSON. Exit 3: the file is a table, or other JSON.
Result<bool> Corpus::is_json(const std::string& path, TextFile& text) const {
    if (config.format == TextFormat::text) return false;
    const std::string plain_name = decompressed_name(path),
                      hatch = config.flags ? "; --format text takes it as it is" : "";
    const bool called_json = plain_name.ends_with(".json"), lines = named_json(path);
    if (ends_with_any(plain_name, {".csv", ".tsv"}))
        return fail(Exit::input,
                    "%s: expected text or JSON lines, found the name of a table; write its text as JSON "
                    "lines first (in Python: pandas.read_csv(FILE).to_json(\"x.jsonl\", orient=\"records\", "
                    "lines=True))%s",
                    path.c_str(), hatch.c_str());
    const Json shape = json_shape(TRY(text.head()), called_json);
    const bool plain = config.lines && !called_json && !lines;    // a line of text may begin like JSON
    const bool by_line = config.format == TextFormat::jsonl ||
                         (lines && !called_json);    // parsing by line gives better errors
    const bool late = by_line && shape != Json::array && shape != Json::sequence;
    if (const std::string why = refusal(shape); !why.empty() && !plain && !late)
        return fail(Exit::input, "%s: expected text or JSON lines, found %s%s", path.c_str(), why.c_str(),
                    hatch.c_str());
    return lines || shape == Json::lines;
}

Result<Corpus> Corpus::open(CorpusConfig config) {
    Corpus c;
    c.config = std::move(config);
    c.many = c.config.files.size() > MANY;
    bool unknown = false;
    for (const std::string& path : c.config.files) {
        struct stat info {};
        bool is_stdin = path == "-";
        if (is_stdin ? fstat(fileno(stdin), &info) : stat(path.c_str(), &info))
            return fail(Exit::input, "%s: cannot read: %s", path.c_str(), strerror(errno));
        if (S_ISDIR(info.st_mode)) return fail(Exit::input, "%s: expected a file, found a directory", path.c_str());
        if (S_ISREG(info.st_mode) && !is_stdin) {    // a pipe can be opened only once
            TextFile text = TRY(TextFile::open(path));
            TRY(c.is_json(path, text).status);
        }
        c.total += info.st_size;
        unknown |= !S_ISREG(info.st_mode);
        if (c.config.val_fraction > 0 && !S_ISREG(info.st_mode) && !c.many && !c.named_json(path))
            return fail(Exit::usage,
                        "--val-fraction: expected files or JSON lines (--format jsonl), found the stream "
                        "%s, which has no tail before its end; write it to a file first",
                        path.c_str());
    }
    if (unknown) c.total = 0;
    return c;
}

Status Corpus::open_next() {
    name = config.files[file++];
    input = TRY(TextFile::open(name));
    buffer.clear();
    at = 0;
    ended = false;
    json = TRY(is_json(name, *input));
    line = 0;
    checked = 0;
    before = 0;
    begins = true;
    tail = !json && many && hold_out();
    until_tail = INT64_MAX;
    if (config.val_fraction > 0 && !many && !json) {
        const int64_t bytes = TRY(text_bytes());
        until_tail = bytes - int64_t(double(bytes) * config.val_fraction);
    }
    return {};
}

// Bytes of text in the file just opened. A compressed or converted file is read to its end for
// this, because only its end tells the length.
Result<int64_t> Corpus::text_bytes() const {
    struct stat info {};
    if (fstat(input->fd(), &info)) return fail(Exit::io, "%s: fstat: %s", name.c_str(), strerror(errno));
    if (input->plain()) return int64_t(info.st_size);
    if (name == "-")
        return fail(Exit::usage,
                    "--val-fraction: the tail of a compressed or UTF-16 text is known at its end only, "
                    "and stdin is read once; give the file's name");
    TextFile again = TRY(TextFile::open(name));
    std::string block(BLOCK, '\0');
    for (int64_t bytes = 0;;) {
        const size_t n = TRY(again.read(block.data(), BLOCK));
        bytes += int64_t(n);
        if (n < BLOCK) return bytes;
    }
}

// Reads until the buffer has `bytes` unread bytes or the file ends.
Status Corpus::fill(size_t bytes) {
    if (buffer.size() - at >= bytes || ended) return {};
    buffer.erase(0, at);
    if (checked != buffer.npos) checked = std::max(checked, at) - at;
    before += int64_t(at);
    at = 0;
    while (buffer.size() < bytes && !ended) {
        size_t had = buffer.size();
        buffer.resize(had + BLOCK);
        const size_t n = TRY(input->read(buffer.data() + had, BLOCK));
        buffer.resize(had + n);
        ended = n < BLOCK;
    }
    if (!json) check_encoding();    // invalid UTF-8 in JSON lines is an error
    return {};
}

void Corpus::check_encoding() {
    const std::string_view all = buffer;
    while (checked < all.size()) {
        uint64_t eight = 0x80;
        if (checked + 8 <= all.size()) memcpy(&eight, &all[checked], 8);
        if ((eight & 0x8080808080808080u) == 0) {
            checked += 8;
            continue;
        }
        bool complete = false;
        const size_t n = utf8_character(all.substr(checked), complete);
        if (!complete && checked + n == all.size() && !ended) return;    // the next block may complete the character
        if (complete) {
            checked += n;
            continue;
        }
        if (not_utf8_files++ == 0)
            not_utf8 = formatted("%s: byte %lld is 0x%02X, which is no UTF-8", name.c_str(),
                                 (long long)(before + int64_t(checked)), static_cast<unsigned char>(all[checked]));
        checked = buffer.npos;
    }
}
std::string Corpus::encoding_note() const {
    if (not_utf8_files == 0) return "";
    const std::string others = not_utf8_files > 1 ? " (and " + counted(not_utf8_files - 1, "other file") + ")" : "";
    return not_utf8 + others +
           ": is the text Latin-1? Such bytes are taken as they are; to convert them: "
           "iconv -f LATIN1 -t UTF-8 FILE";
}

Result<bool> Corpus::next(Segment& segment) {
    for (;;) {
        if (!input) {
            if (file == config.files.size()) return false;
            TRY(open_next());
        }
        segment = {};
        if (TRY(json || config.lines ? next_line(segment) : next_text(segment))) return true;
        done += input->file_bytes();
        input.reset();
    }
}

// Whether the next document is held out for validation. Held-out documents are evenly spaced, so
// that their fraction is right at any time.
bool Corpus::hold_out() {
    documents++;
    return int64_t(double(documents) * config.val_fraction) > int64_t(double(documents - 1) * config.val_fraction);
}

Result<bool> Corpus::next_line(Segment& segment) {
    const size_t longest = size_t(config.longest) << 20;
    for (;;) {
        size_t length = 0;
        for (size_t want = BLOCK;; want = std::min(2 * want, longest + BLOCK)) {
            TRY(fill(want));
            size_t end = buffer.find('\n', at + length);
            length = (end == std::string::npos ? buffer.size() : end) - at;
            if (end != std::string::npos || ended || length > longest) break;
        }
        if (length > longest)
            return fail(Exit::input, "%s:%lld: expected a line of at most %d MiB, found more%s", name.c_str(),
                        (long long)line + 1, config.longest, config.flags ? " (--longest-line)" : "");
        if (at == buffer.size()) return false;
        std::string_view text = std::string_view(buffer).substr(at, length);
        at = std::min(at + length + 1, buffer.size());
        line++;
        if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        if (!json && text.ends_with('\r')) text.remove_suffix(1);
        segment = {std::string(text), true, hold_out(), json ? name + ":" + std::to_string(line) : "", line};
        return true;
    }
}

Result<bool> Corpus::next_text(Segment& segment) {
    const size_t longest = size_t(config.longest) << 20;
    for (size_t want = SEGMENT; want <= longest; want = want < longest ? std::min(2 * want, longest) : longest + 1) {
        TRY(fill(want));
        std::string_view rest = std::string_view(buffer).substr(at);
        if (rest.empty()) return false;
        bool splits = until_tail <= int64_t(want) && until_tail < int64_t(rest.size());
        bool whole = ended && rest.size() <= want && !splits;
        size_t cut = whole ? rest.size() : config.safe_cut(rest, splits ? size_t(until_tail) : want);
        if (cut == 0 && splits) {    // no cut for a tail: all text is for training
            until_tail = INT64_MAX;
            want /= 2;
        }
        if (cut == 0) continue;
        segment.validation = tail;
        segment.begins_document = begins;
        begins = splits;    // the tail begins a document of its own
        tail |= splits;
        until_tail = splits ? INT64_MAX : until_tail - int64_t(cut);
        segment.text = rest.substr(0, cut);
        at += cut;
        return true;
    }
    return fail(Exit::input,
                "%s: byte %lld: expected a place within %d MiB where the tokenizer allows to cut the "
                "text (a space, a line end), found none%s",
                name.c_str(), (long long)(before + int64_t(at)), config.longest,
                config.flags ? "; --longest-line allows more, which takes some 20 bytes of memory a byte" : "");
}

Status Corpus::json_text(Segment& segment) const {
    if (segment.where.empty()) return {};
    const std::string field = config.field.empty() ? "text" : config.field;
    Result<std::string> text = json_text_field(segment.text, segment.where, field, DEPTH);
    std::string& why = text.status.message;
    auto tells = [&](const char* part) { return why.find(part) != std::string::npos; };
    if (tells("UTF-8")) why += "; is it Latin-1? Convert it: iconv -f LATIN1 -t UTF-8 FILE";
    if (tells("its fields:") && config.flags) why += "; --field names one";
    if (tells("not JSON:") && !config.field.empty()) why += "; given --field, every file is JSON lines";
    if (!text.ok() && config.flags && !named_json(segment.where.substr(0, segment.where.rfind(':'))))
        why += "; it is taken for JSON lines by its beginning: --format text takes it as it is";
    if (text.ok()) segment.text = std::move(text.value);
    return text.status;
}
