// json_lines.h - reads files of JSON lines or JSON arrays: encodes on all cores, adds in the files'
// order.
#pragma once
#include "base/pool.h"
#include "data/corpus.h"
#include "data/samples.h"

// Samples that are read from lines and held in memory.
class LineSource : public SampleSource {
  public:
    virtual int longest() const = 0;          // tokens that the model reads of the longest sequence
    virtual void shorten(int length) = 0;     // makes sequences this long, which none exceeds
    virtual std::string items() const = 0;    // "50 conversations"
    virtual std::string note() const = 0;     // text on what was cut or left out; "": nothing
};

// pattern: shard_glob expands it; each file may be compressed. Calls encode(line), which returns a
// Result, for many lines at a time, then add(line, value) for each. Returns the error of the first
// line that has one.
template <class Encode, class Add>
Status each_json_line(const std::string& pattern, const Encode& encode, const Add& add) {
    constexpr size_t GROUP_BYTES = 16 << 20;    // bytes of lines that are encoded at once
    CorpusConfig files;
    files.files = TRY(shard_glob(pattern));
    files.format = TextFormat::json;
    files.flags = false;
    Corpus corpus = TRY(Corpus::open(files));
    for (bool more = true; more;) {
        std::vector<Segment> lines;
        for (size_t bytes = 0; more && bytes < GROUP_BYTES; bytes += lines.empty() ? 0 : lines.back().text.size()) {
            Segment line;
            more = TRY(corpus.next(line));
            if (more) lines.push_back(std::move(line));
        }
        typedef decltype(encode(lines[0])) Encoded;
        std::vector<Encoded> encoded(lines.size(), Encoded(Status{}));
        each_chunk(int64_t(lines.size()), [&](int64_t i, int) { encoded[size_t(i)] = encode(lines[size_t(i)]); });
        for (size_t i = 0; i < lines.size(); i++) add(lines[i], TRY(encoded[i]));
        count_progress();
    }
    return {};
}
