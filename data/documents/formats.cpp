// formats.cpp - which format a file has, by --format, its name and its first bytes. See reader.h.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "files/json_check.h"
#include "readers.h"

namespace {
constexpr size_t BLOCK = 1 << 20;
constexpr size_t HEAD = 32000;    // bytes read to detect the format

// ---- the layout of JSON, from the first bytes ---------------------------------------------------

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
    JsonCheck v(RECORD_DEPTH);
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
// Layout of a file's beginning. lines: the first line is an object. values: an object of several
// lines, or strings in a file named .json. strings: these in another file. other: no JSON in a file
// named .json. none: text.
enum class Json { none, lines, array, values, strings, other };
Json json_shape(std::string_view head, bool named) {
    const bool all = head.size() < HEAD;
    head.remove_prefix(skip(head, 0, " \t\r\n"));
    if (head.empty()) return Json::none;
    if (head[0] == '\x1E') return Json::values;    // a record separator (RFC 7464)
    if (head[0] == '[' && (named || begins_array(head, all))) return Json::array;
    // Lines of prose may be in quotes, too, so a file not named .json must also have an escape.
    if (head[0] == '"' && (named || head.find('\\') != head.npos) && values_by_line(head))
        return named ? Json::values : Json::strings;
    const bool object = begins_object(head);
    if (!object && head[0] != '{') return named ? Json::other : Json::none;
    if (!object && !named) return Json::none;
    const size_t end = head.find('\n');
    if (end == head.npos && !all) return object ? Json::lines : Json::values;
    return is_value(head.substr(0, end), true) ? Json::lines : Json::values;
}

// ---- rows of formats ----------------------------------------------------------------------------

// Bytes of the text. A compressed or converted file is read to its end for this, because only its
// end tells the length.
Result<int64_t> text_bytes(const std::string& path, const TextFile& file) {
    struct stat info {};
    if (fstat(file.fd(), &info)) return fail(Exit::io, "%s: fstat: %s", path.c_str(), strerror(errno));
    if (file.plain()) return int64_t(info.st_size);
    if (path == "-")
        return fail(Exit::usage,
                    "--val-fraction: the tail of a compressed or UTF-16 text is known at its end only, "
                    "and stdin is read once; give the file's name");
    TextFile again = TRY(TextFile::open(path));
    std::string block(BLOCK, '\0');
    for (int64_t bytes = 0;;) {
        const size_t n = TRY(again.read(block.data(), BLOCK));
        bytes += int64_t(n);
        if (n < BLOCK) return bytes;
    }
}

struct Source {    // a file that is being opened
    const std::string& path;
    const CorpusConfig& config;
    bool hold_out_tail;
    TextFile text = {};    // not of Parquet

    TextBuffer buffer(bool watch) const { return {path, text, watch}; }
};
Result<ReaderPtr> open_text(const Source& s) {
    if (s.config.lines) return ReaderPtr(new LineTexts(s.buffer(true), s.config, false));
    int64_t until_tail = INT64_MAX;
    if (s.hold_out_tail && s.config.val_fraction > 0) {
        const int64_t bytes = TRY(text_bytes(s.path, s.text));
        until_tail = bytes - int64_t(double(bytes) * s.config.val_fraction);
    }
    return ReaderPtr(new TextReader(s.buffer(true), s.config, until_tail));
}
// Invalid UTF-8 in JSON is an error, and needs no note.
Result<ReaderPtr> open_jsonl(const Source& s) { return ReaderPtr(new LineTexts(s.buffer(false), s.config, true)); }
Result<ReaderPtr> open_json(const Source& s) { return ReaderPtr(new JsonTexts(s.buffer(false), s.config)); }
Result<ReaderPtr> open_csv(const Source& s) { return ReaderPtr(new CsvReader(s.buffer(true), s.config, ',')); }
Result<ReaderPtr> open_tsv(const Source& s) { return ReaderPtr(new CsvReader(s.buffer(true), s.config, '\t')); }
Result<ReaderPtr> open_parquet(const Source& s) {
    const int64_t longest = int64_t(s.config.longest) << 20;
    Result<ParquetTexts> texts = ParquetTexts::open(s.path, s.config.text_field(), longest, 8 * longest);
    if (!texts.ok() && s.config.flags && texts.status.message.find("expected a column") != std::string::npos)
        texts.status.message += "; --field names another";
    TRY(texts.status);
    return ReaderPtr(new ParquetReader(s.path, std::move(texts.value)));
}

struct FormatRow {
    const char* name;
    std::vector<const char*> endings;    // names' ends, without .gz or .zst
    Result<ReaderPtr> (*open)(const Source&);
};
// Rows in the order of TextFormat.
const FormatRow FORMATS[] = {
    {"auto", {}, nullptr},       {"text", {}, open_text},     {"jsonl", {".jsonl", ".ndjson"}, open_jsonl},
    {"json", {}, open_json},    // *.json may be lines, too
    {"csv", {".csv"}, open_csv}, {"tsv", {".tsv"}, open_tsv}, {"parquet", {".parquet", ".pq"}, open_parquet}};

std::vector<std::string> format_names() {
    std::vector<std::string> names;
    for (const FormatRow& row : FORMATS) names.push_back(row.name);
    return names;
}

// The format of a text whose first bytes are `head`.
Result<TextFormat> format_of(const std::string& path, std::string_view head, const CorpusConfig& c) {
    const TextFormat named = format_by_name(path, c);
    const bool called_json = decompressed_name(path).ends_with(".json"), by_line = named == TextFormat::jsonl;
    if (named != TextFormat::automatic && named != TextFormat::json && !by_line) return named;
    const Json shape = json_shape(head, called_json || named == TextFormat::json);
    const bool separated = shape == Json::array || (!head.empty() && head[0] == '\x1E');
    if (c.format == TextFormat::jsonl && separated)
        return fail(Exit::input, "%s: expected JSON lines, found %s%s", path.c_str(),
                    shape == Json::array ? "a JSON array" : "JSON parted by record separators (RFC 7464)",
                    c.flags ? "; --format json reads it" : "");
    if (by_line) return separated ? TextFormat::json : TextFormat::jsonl;    // errors by line are better
    const bool called_lines = decompressed_name(path).ends_with(".jsonl") ||
                              decompressed_name(path).ends_with(".ndjson");
    if (named == TextFormat::json && called_lines && !separated) return TextFormat::jsonl;
    if (named == TextFormat::json) return shape == Json::lines ? TextFormat::jsonl : TextFormat::json;
    const bool plain = c.lines && !called_json && c.field.empty();    // a line of text may begin like JSON
    if (plain && shape != Json::lines) return TextFormat::text;
    switch (shape) {
        case Json::lines: return TextFormat::jsonl;
        case Json::array:
        case Json::values: return TextFormat::json;
        case Json::strings:
            return fail(Exit::input, "%s: expected text or JSON, found JSON strings%s", path.c_str(),
                        c.flags ? "; --format json reads their texts, --format text takes it as it is" : "");
        case Json::other:
            return fail(Exit::input,
                        "%s: expected text or JSON, found a name of JSON and no object on the first line; write an "
                        "object on each line, and nothing before%s",
                        path.c_str(), c.flags ? "; --format text takes it as it is" : "");
        case Json::none: break;
    }
    return c.field.empty() ? TextFormat::text : TextFormat::jsonl;    // a text has no fields
}

// Whether the file begins as Parquet. A pipe is not touched, because it can be read only once.
bool begins_parquet(const std::string& path) {
    struct stat info {};
    if (stat(path.c_str(), &info) || !S_ISREG(info.st_mode)) return false;
    FILE* file = fopen(path.c_str(), "rb");
    char head[4] = {};
    const size_t n = file ? fread(head, 1, 4, file) : 0;
    if (file) fclose(file);
    return is_parquet({head, n});
}
}    // namespace

const std::vector<std::string> TEXT_FORMATS = format_names();
TextFormat text_format(const std::string& name) {
    return TextFormat(std::find(TEXT_FORMATS.begin(), TEXT_FORMATS.end(), name) - TEXT_FORMATS.begin());
}

TextFormat format_by_name(const std::string& path, const CorpusConfig& c) {
    if (c.format != TextFormat::automatic) return c.format;
    const std::string name = decompressed_name(path);
    for (size_t i = 0; i < std::size(FORMATS); i++)
        for (const char* ending : FORMATS[i].endings)
            if (name.ends_with(ending)) return TextFormat(i);
    return TextFormat::automatic;
}

Result<ReaderPtr> open_documents(const std::string& path, const CorpusConfig& config, bool hold_out_tail) {
    const TextFormat named = format_by_name(path, config);
    const bool parquet = named == TextFormat::parquet && path != "-" && decompressed_name(path).size() == path.size();
    Source source{path, config, hold_out_tail};
    if (parquet || (config.format == TextFormat::automatic && begins_parquet(path))) return open_parquet(source);
    source.text = TRY(TextFile::open(path));
    const TextFormat format = TRY(format_of(path, TRY(source.text.head()), config));
    if (format == TextFormat::parquet)
        return fail(Exit::input, "%s: expected an unpacked Parquet table in a file, because its end is read first",
                    path.c_str());
    return FORMATS[size_t(format)].open(source);
}
Status check_documents(const std::string& path, const CorpusConfig& config) {
    return open_documents(path, config, false).status;
}
