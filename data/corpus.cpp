// corpus.cpp - see corpus.h.
#include "corpus.h"

#include <cerrno>
#include <cstring>
#include <sys/stat.h>

#include "base/console.h"

namespace {
constexpr size_t MANY = 100;    // more files than this: whole texts held out
}

Result<Corpus> Corpus::open(CorpusConfig given) {
    Corpus c;
    c.config = std::make_shared<const CorpusConfig>(std::move(given));
    c.many = c.config->files.size() > MANY;
    c.held_out = HoldOut(c.config->val_fraction);
    bool unknown = false;
    for (const std::string& path : c.config->files) {
        struct stat info {};
        const bool is_stdin = path == "-";
        if (is_stdin ? fstat(fileno(stdin), &info) : stat(path.c_str(), &info))
            return fail(Exit::input, "%s: cannot read: %s", path.c_str(), strerror(errno));
        if (S_ISDIR(info.st_mode)) return fail(Exit::input, "%s: expected a file, found a directory", path.c_str());
        if (S_ISREG(info.st_mode) && !is_stdin) TRY(check_documents(path, *c.config));    // a pipe opens only once
        c.total += info.st_size;
        unknown |= !S_ISREG(info.st_mode);
        const TextFormat format = format_by_name(path, *c.config);
        const bool may_be_text = format == TextFormat::text ||
                                 (format == TextFormat::automatic && c.config->field.empty());
        if (c.config->val_fraction > 0 && !S_ISREG(info.st_mode) && !c.many && may_be_text)
            return fail(Exit::usage,
                        "--val-fraction: expected files or JSON lines (--format jsonl), found the stream "
                        "%s, which has no tail before its end; write it to a file first",
                        path.c_str());
    }
    if (unknown) c.total = 0;
    return c;
}

Status Corpus::open_next() {
    reader = TRY(open_documents(config->files[file++], *config, !many));
    whole_held_out = !reader->records && many && held_out.next();
    return {};
}
void Corpus::close() {
    done += reader->file_bytes();
    if (const std::string bad = reader->not_utf8(); !bad.empty() && not_utf8_files++ == 0) not_utf8 = bad;
    reader.reset();
}

std::string Corpus::encoding_note() const {
    const std::string open = reader ? reader->not_utf8() : "", &first = not_utf8_files ? not_utf8 : open;
    const int64_t files = not_utf8_files + !open.empty();
    if (files == 0) return "";
    const std::string others = files > 1 ? " (and " + counted(files - 1, "other file") + ")" : "";
    return first + others +
           ": is the text Latin-1? Such bytes are taken as they are; to convert them: "
           "iconv -f LATIN1 -t UTF-8 FILE";
}

Result<bool> Corpus::next(Segment& segment) {
    for (;;) {
        if (!reader) {
            if (file == config->files.size()) return false;
            TRY(open_next());
        }
        segment = {};
        if (TRY(reader->next(segment))) break;
        close();
    }
    segment.file = int(file) - 1;
    segment.held_out_by_number = reader->records || many;
    if (reader->records) segment.validation = held_out.next();
    else segment.validation |= whole_held_out;
    return true;
}
