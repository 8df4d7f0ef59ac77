// corpus.cpp - see corpus.h.
#include "corpus.h"

#include <cerrno>
#include <cstring>
#include <sys/stat.h>

#include "files/json.h"

namespace {
constexpr size_t SEGMENT = 1 << 20, BLOCK = 1 << 20;
constexpr size_t LONGEST = size_t(1) << 30;    // a line, or text without a safe cut
constexpr size_t MANY = 100;                   // from more text files, whole documents are held out
}   // namespace

bool Corpus::is_json(const std::string& path) const {
    std::string name = unpacked_name(path);
    return path == "-" ? !config.field.empty() : name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

Result<Corpus> Corpus::open(CorpusConfig config) {
    Corpus c;
    c.config = std::move(config);
    c.many = c.config.files.size() > MANY;
    bool unknown = false;
    for (const std::string& path : c.config.files) {
        struct stat info{};
        bool is_stdin = path == "-";
        if (is_stdin ? fstat(fileno(stdin), &info) : stat(path.c_str(), &info))
            return fail(Exit::input, "%s: cannot read: %s", path.c_str(), strerror(errno));
        if (S_ISDIR(info.st_mode)) return fail(Exit::input, "%s: expected a file, found a directory", path.c_str());
        if (S_ISREG(info.st_mode) && !is_stdin) TRY(TextFile::open(path).status);    // a pipe opens only once
        c.total += info.st_size;
        unknown |= !S_ISREG(info.st_mode);
        if (c.config.val_fraction > 0 && !S_ISREG(info.st_mode) && !c.many && !c.is_json(path))
            return fail(Exit::usage, "--val-fraction: expected files or JSON lines, found the stream %s, which has no "
                        "tail before its end; write it to a file first", path.c_str());
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
    json = is_json(name);
    line = 0;
    begins = true;
    tail = !json && many && hold_out();
    until_tail = INT64_MAX;
    if (config.val_fraction > 0 && !many && !json) {
        const int64_t bytes = TRY(text_bytes());
        until_tail = bytes - int64_t(double(bytes) * config.val_fraction);
    }
    return {};
}

// The number of bytes of text in the file just opened. Text that is compressed or converted shows it at its end only:
// the file is read once more.
Result<int64_t> Corpus::text_bytes() const {
    struct stat info{};
    if (fstat(input->fd(), &info)) return fail(Exit::io, "%s: fstat: %s", name.c_str(), strerror(errno));
    if (input->plain()) return int64_t(info.st_size);
    if (name == "-")
        return fail(Exit::usage, "--val-fraction: the tail of a compressed or UTF-16 text is known at its end only, "
                    "and stdin is read once; give the file's name");
    TextFile again = TRY(TextFile::open(name));
    std::string block(BLOCK, '\0');
    for (int64_t bytes = 0;;) {
        const size_t n = TRY(again.read(block.data(), BLOCK));
        bytes += int64_t(n);
        if (n < BLOCK) return bytes;
    }
}

// At least `bytes` to come, unless the file ends.
Status Corpus::fill(size_t bytes) {
    if (buffer.size() - at >= bytes || ended) return {};
    buffer.erase(0, at);
    at = 0;
    while (buffer.size() < bytes && !ended) {
        size_t had = buffer.size();
        buffer.resize(had + BLOCK);
        const size_t n = TRY(input->read(buffer.data() + had, BLOCK));
        buffer.resize(had + n);
        ended = n < BLOCK;
    }
    return {};
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

// Whether the next whole document is held out: evenly spaced, so that the share is right at any time.
bool Corpus::hold_out() {
    documents++;
    return int64_t(double(documents) * config.val_fraction) > int64_t(double(documents - 1) * config.val_fraction);
}

Result<bool> Corpus::next_line(Segment& segment) {
    for (;;) {
        size_t length = 0;
        for (size_t want = BLOCK; ; want *= 2) {
            TRY(fill(want));
            size_t end = buffer.find('\n', at + length);
            length = (end == std::string::npos ? buffer.size() : end) - at;
            if (end != std::string::npos || ended) break;
            if (length > LONGEST)
                return fail(Exit::input, "%s:%lld: a line of more than 1 GiB", name.c_str(), (long long)line + 1);
        }
        if (at == buffer.size()) return false;
        std::string_view text = std::string_view(buffer).substr(at, length);
        at = std::min(at + length + 1, buffer.size());
        line++;
        if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        if (!json && text.ends_with('\r')) text.remove_suffix(1);
        segment = {std::string(text), true, hold_out(), json ? name + ":" + std::to_string(line) : "",
                   line};
        return true;
    }
}

Result<bool> Corpus::next_text(Segment& segment) {
    for (size_t want = SEGMENT; want <= LONGEST; want *= 2) {
        TRY(fill(want));
        std::string_view rest = std::string_view(buffer).substr(at);
        if (rest.empty()) return false;
        bool splits = until_tail <= int64_t(want) && until_tail < int64_t(rest.size());
        bool whole = ended && rest.size() <= want && !splits;
        size_t cut = whole ? rest.size() : config.safe_cut(rest, splits ? size_t(until_tail) : want);
        if (cut == 0 && splits) {    // all of it stays in training
            until_tail = INT64_MAX;
            want /= 2;
        }
        if (cut == 0) continue;
        segment.validation = tail;
        segment.begins_document = begins;
        begins = splits;    // the tail is a document of its own
        tail |= splits;
        until_tail = splits ? INT64_MAX : until_tail - int64_t(cut);
        segment.text = rest.substr(0, cut);
        at += cut;
        return true;
    }
    return fail(Exit::input, "%s: expected a space or a line end within 1 GiB, found none", name.c_str());
}

Status Corpus::json_text(Segment& segment) const {
    if (segment.where.empty()) return {};
    const nlohmann::json line = TRY(json_parse(segment.text, segment.where, 64));
    if (!line.is_object()) return fail(Exit::input, "%s: expected a JSON object", segment.where.c_str());
    std::string field = config.field.empty() ? "text" : config.field;
    return JsonFields{line, segment.where}.get(field.c_str(), &segment.text);
}
