// footer.cpp - the footer of a Parquet file: schema, and offsets of a column's chunks. See
// parquet.h.
#include <algorithm>

#include "base/shorten.h"
#include "parquet.h"
#include "thrift.h"

namespace {
using Field = ThriftReader::Field;
constexpr int64_t LARGEST_FOOTER = 256 << 20;
constexpr size_t MAX_COLUMNS = 100'000, MAX_DEPTH = 64, MAX_PATH = 4096;
constexpr size_t MAX_PATHS = 16 << 20;    // bytes of all columns' paths: a group's name is in each of them
constexpr int BYTE_ARRAY = 6;

// Whether values of this ConvertedType are texts: UTF8, ENUM, JSON.
bool converts_to_text(int converted) { return converted == 0 || converted == 4 || converted == 19; }

struct Element {    // a node of the schema, in depth-first order
    std::string name;
    int type = -1, converted = -1;
    int64_t repetition = 0, children = 0;
};
Element read_element(ThriftReader& in) {
    Element e;
    for (Field f; in.next(f);) switch (f.id) {
            case 1: e.type = in.small(f); break;
            case 3: e.repetition = in.integer(f); break;
            case 4: e.name = std::string(in.bytes(f).substr(0, MAX_PATH)); break;
            case 5: e.children = in.integer(f); break;
            case 6: e.converted = in.small(f); break;
            default: in.skip(f.type);
        }
    return e;
}

// Turns the schema's nodes into leaves. False: the nodes are no tree, or their paths are too long.
bool leaves(const std::vector<Element>& schema, std::vector<ParquetColumn>& columns) {
    struct Open {
        int64_t left;
        ParquetColumn node;
    };
    std::vector<Open> open;
    size_t paths = 0;
    for (size_t i = 0; i < schema.size(); i++) {
        const Element& e = schema[i];
        if (e.repetition < 0 || e.repetition > 2 || e.children < 0) return false;
        ParquetColumn node = open.empty() ? ParquetColumn{} : open.back().node;
        if (i > 0) {
            if (open.empty()) return false;
            open.back().left--;
            node.path += (node.path.empty() ? "" : ".") + e.name;
            node.definition += e.repetition != 0;
            node.repetition += e.repetition == 2;
            if (node.path.size() > MAX_PATH) return false;
        }
        node.type = e.type;
        node.converted = e.converted;
        if (e.children > 0 || i == 0) open.push_back({e.children, node});
        else columns.push_back(node);
        paths += node.path.size();
        if (open.size() > MAX_DEPTH || paths > MAX_PATHS) return false;
        while (!open.empty() && open.back().left == 0) open.pop_back();
    }
    return open.empty();
}

ParquetChunk read_chunk_metadata(ThriftReader& in) {
    ParquetChunk chunk;
    int64_t dictionary = 0;
    for (Field f; in.next(f);) switch (f.id) {
            case 4: chunk.codec = ParquetCodec(in.small(f)); break;
            case 5: chunk.values = in.integer(f); break;
            case 7: chunk.bytes = in.integer(f); break;
            case 9: chunk.offset = in.integer(f); break;
            case 11: dictionary = in.integer(f); break;
            default: in.skip(f.type);
        }
    // Some old writers leave 0 in place of an absent dictionary.
    if (dictionary > 0 && dictionary < chunk.offset) chunk.offset = dictionary;
    return chunk;
}
struct RowGroup {
    std::optional<ParquetChunk> chunk;    // the wanted column's
    bool encrypted = false, elsewhere = false;
};
RowGroup read_row_group(ThriftReader& in, int column) {
    RowGroup group;
    for (Field f; in.next(f);) {
        if (f.id != 1) {
            in.skip(f.type);
            continue;
        }
        ThriftReader::Type type = ThriftReader::stop;
        const uint64_t n = in.elements(f, &type);
        for (uint64_t i = 0; i < n && in.ok(); i++) {
            if (int64_t(i) != column) {
                in.skip(type);
                continue;
            }
            for (Field c; in.is({0, type}, ThriftReader::structure) && in.next(c);) switch (c.id) {
                    case 1:
                        group.elsewhere = true;
                        in.skip(c.type);
                        break;
                    case 3:
                        if (in.is(c, ThriftReader::structure)) group.chunk = read_chunk_metadata(in);
                        break;
                    case 8:
                    case 9:
                        group.encrypted = true;
                        in.skip(c.type);
                        break;
                    default: in.skip(c.type);
                }
        }
    }
    return group;
}

std::string listed(const std::vector<ParquetColumn>& columns) {
    constexpr size_t NAMED = 12, LETTERS = 60;
    std::string names;
    for (size_t i = 0; i < columns.size() && i < NAMED; i++)
        names += (i ? ", \"" : "\"") + shorten(columns[i].path, LETTERS) + "\" (" + parquet_type(columns[i]) + ")";
    if (columns.size() > NAMED) names += " and " + std::to_string(columns.size() - NAMED) + " more";
    return names.empty() ? "none" : names;
}

// Finds the column and checks that it holds texts.
Result<int> choose(const std::vector<ParquetColumn>& columns, const std::string& name, const std::string& path) {
    const auto found = std::find_if(columns.begin(), columns.end(), [&](auto& c) { return c.path == name; });
    auto within = [&](auto& c) { return c.path.starts_with(name + ".") && c.repetition; };
    if (found == columns.end() && std::any_of(columns.begin(), columns.end(), within))
        return fail(Exit::input, "%s: column %s: expected texts, found a list; write one text in each row",
                    path.c_str(), shorten(name, 80).c_str());
    if (found == columns.end())
        return fail(Exit::input, "%s: expected a column \"%s\", found: %s", path.c_str(), shorten(name, 80).c_str(),
                    listed(columns).c_str());
    const ParquetColumn& c = *found;
    const bool texts = c.type == BYTE_ARRAY && (c.converted == -1 || converts_to_text(c.converted));
    if (texts && c.repetition == 0) return int(found - columns.begin());
    return fail(Exit::input, "%s: column %s: expected texts, found %s%s; all columns: %s", path.c_str(),
                shorten(name, 80).c_str(), c.repetition ? "a list of " : "", parquet_type(c), listed(columns).c_str());
}

// Reads the file's schema and, if column >= 0, the chunks of that column.
Status read_metadata(const File& file, std::string_view bytes, ParquetFooter& footer, int column) {
    ThriftReader in(bytes);
    std::vector<Element> schema;
    const std::string& path = file.path();
    for (Field f; in.next(f);) {
        ThriftReader::Type type = ThriftReader::stop;
        if (f.id == 3) footer.rows = in.integer(f);
        else if (f.id == 2 && column < 0) {
            const uint64_t n = in.elements(f, &type);
            if (n > MAX_COLUMNS)
                return fail(Exit::input, "%s: expected a Parquet schema of at most %zu columns, found %llu",
                            path.c_str(), MAX_COLUMNS, (unsigned long long)n);
            for (uint64_t i = 0; i < n && in.is({0, type}, ThriftReader::structure); i++)
                schema.push_back(read_element(in));
        } else if (f.id == 4 && column >= 0) {
            const uint64_t n = in.elements(f, &type);
            for (uint64_t i = 0; i < n && in.is({0, type}, ThriftReader::structure); i++) {
                const RowGroup group = read_row_group(in, column);
                const long long number = (long long)i;
                if (!in.ok()) break;
                if (group.encrypted)
                    return fail(Exit::input, "%s: row group %lld: the column is encrypted; decrypt it first",
                                path.c_str(), number);
                if (group.elsewhere || !group.chunk)
                    return fail(Exit::input, "%s: row group %lld: the column's data are not in this file", path.c_str(),
                                number);
                footer.chunks.push_back(*group.chunk);
            }
        } else if (f.id == 8) {
            return fail(Exit::input, "%s: the Parquet table is encrypted; decrypt it first", path.c_str());
        } else {
            in.skip(f.type);
        }
    }
    if (!in.ok())
        return fail(Exit::input, "%s: the Parquet footer is damaged at its byte %zu (file offset %lld)", path.c_str(),
                    in.at(), (long long)(file.bytes() - 8 - int64_t(bytes.size()) + int64_t(in.at())));
    if (column < 0 && !leaves(schema, footer.columns))
        return fail(Exit::input,
                    "%s: the Parquet footer's schema is damaged: its %zu nodes are no tree, or have too long names",
                    path.c_str(), schema.size());
    return {};
}

Status check_chunks(const File& file, const ParquetFooter& footer) {
    int64_t rows = 0;
    for (size_t i = 0; i < footer.chunks.size(); i++) {
        const ParquetChunk& c = footer.chunks[i];
        if (c.offset < 4 || c.bytes < 0 || c.offset > file.bytes() || c.bytes > file.bytes() - c.offset || c.values < 0)
            return fail(Exit::input,
                        "%s: row group %zu, column %s: expected pages within the file's %lld bytes, found %lld bytes "
                        "at offset %lld: was the file cut short?",
                        file.path().c_str(), i, footer.columns[size_t(footer.column)].path.c_str(),
                        (long long)file.bytes(), (long long)c.bytes, (long long)c.offset);
        if (__builtin_add_overflow(rows, c.values, &rows)) rows = -1;
        if (rows < 0) break;
    }
    if (rows == footer.rows) return {};
    return fail(Exit::input, "%s: the Parquet footer is damaged: it has %lld rows, and its row groups %lld",
                file.path().c_str(), (long long)footer.rows, (long long)rows);
}
}    // namespace

const char* parquet_type(const ParquetColumn& c) {
    static const char* const types[] = {"boolean", "int32",  "int64", "int96",
                                        "float",   "double", "bytes", "bytes of a fixed length"};
    if (c.repetition) return "list";
    if (c.type == BYTE_ARRAY && converts_to_text(c.converted)) return "string";
    if (c.converted == 5) return "decimal";
    return c.type >= 0 && c.type < 8 ? types[c.type] : "group";
}

bool is_parquet(std::string_view head) { return head.starts_with("PAR1") || head.starts_with("PARE"); }

Result<ParquetFooter> parquet_footer(const File& file, const std::string& name) {
    char begin[4], end[8] = {};
    if (file.bytes() < 12)
        return fail(Exit::input, "%s: expected a Parquet table, found a file of %lld bytes", file.path().c_str(),
                    (long long)file.bytes());
    TRY(file.read(0, begin, 4));
    TRY(file.read(file.bytes() - 8, end, 8));
    const std::string_view head(begin, 4), tail(end + 4, 4);
    if (head == "PARE" || tail == "PARE")
        return fail(Exit::input, "%s: the Parquet table is encrypted; decrypt it first", file.path().c_str());
    if (head != "PAR1")
        return fail(Exit::input, "%s: expected a Parquet table, which begins with PAR1", file.path().c_str());
    uint32_t bytes = 0;
    __builtin_memcpy(&bytes, end, 4);
    if (tail != "PAR1")
        return fail(Exit::input, "%s: expected PAR1 at the end of a Parquet table, at offset %lld: was it cut short?",
                    file.path().c_str(), (long long)file.bytes() - 4);
    if (bytes > file.bytes() - 12 || bytes > LARGEST_FOOTER)
        return fail(Exit::input, "%s: expected a Parquet footer of at most %lld bytes, found %u", file.path().c_str(),
                    (long long)std::min(file.bytes() - 12, LARGEST_FOOTER), bytes);
    std::string text(bytes, '\0');
    TRY(file.read(file.bytes() - 8 - int64_t(bytes), text.data(), int64_t(bytes)));
    ParquetFooter footer;
    TRY(read_metadata(file, text, footer, -1));
    footer.column = TRY(choose(footer.columns, name, file.path()));
    TRY(read_metadata(file, text, footer, footer.column));
    TRY(check_chunks(file, footer));
    return footer;
}
