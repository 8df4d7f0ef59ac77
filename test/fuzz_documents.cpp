// fuzz_documents.cpp - libFuzzer: any bytes as JSON lines, JSON values, CSV and text.
#include "data/documents/reader.h"

#include "memory_file.h"

namespace {
// Reads all documents, at most 4 MiB. Their places in the file must not go backwards.
Status read_all(const std::string& path, const CorpusConfig& config, bool tail) {
    Result<ReaderPtr> reader = open_documents(path, config, tail);
    TRY(reader.status);
    Segment segment;
    int64_t last = 0, bytes = 0;
    for (Result<bool> more = true; bytes < (4 << 20); bytes += int64_t(segment.text.size())) {
        more = reader.value->next(segment);
        TRY(more.status);
        if (!more.value) break;
        CHECK(segment.line >= last, "line %lld after %lld", (long long)segment.line, (long long)last);
        last = segment.line;
        if (const Status s = record_text(segment, config); !s.ok())
            CHECK(s.code == Exit::input && !s.message.empty(), "%s", s.message.c_str());
    }
    return {};
}
}    // namespace

// The last byte chooses format and field.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (!size--) return 0;
    const int choice = data[size], formats = int(TEXT_FORMATS.size()) - 1;    // Parquet: fuzz_parquet.cpp
    const std::string path = memory_file(data, size);
    const bool inner = choice / formats % 2;
    CorpusConfig config = {.files = {path}, .format = TextFormat(choice % formats), .longest = 1};
    config.lines = config.format == TextFormat::text && inner;
    if (config.format != TextFormat::text) config.field = inner ? "a.b" : "text";
    config.safe_cut = [](std::string_view text, size_t limit) { return std::min(text.size(), limit); };
    const Status s = read_all(path, config, size % 2);
    CHECK(s.ok() || (s.code == Exit::input && !s.message.empty()), "%s", s.message.c_str());
    return 0;
}
