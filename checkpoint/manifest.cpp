// manifest.cpp - see manifest.h.
#include "manifest.h"

#include <algorithm>
#include <mutex>

#include "base/file.h"
#include "base/pool.h"

static constexpr const char* VERSION_LINE = "flatgpt checkpoint 1\n";

std::string checksum_line(const FileChecksum& s) {
    return formatted("%08x %lld %s\n", s.crc, (long long)s.bytes, s.name.c_str());
}
bool checksum_parse(const std::string& line, FileChecksum* s) {
    long long bytes = 0;
    int name = 0;
    if (sscanf(line.c_str(), "%8x %lld %n", &s->crc, &bytes, &name) != 2) return false;
    s->bytes = bytes;
    s->name = line.substr(size_t(name));
    return true;
}

std::string manifest_text(const std::vector<FileChecksum>& sums) {
    std::string text = VERSION_LINE;
    for (const FileChecksum& s : sums) text += checksum_line(s);
    return text + formatted("%08x MANIFEST\n", crc32c(0, text.data(), int64_t(text.size())));
}

// Accepts a text only if writing its parsed lines gives the same text.
Result<std::vector<FileChecksum>> manifest_parse(const std::string& text, const std::string& path) {
    std::vector<FileChecksum> sums;
    for (size_t begin = text.find('\n') + 1, end; begin && (end = text.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
        FileChecksum s;
        if (!checksum_parse(text.substr(begin, end - begin), &s)) break;    // last line: MANIFEST's own checksum
        if (s.name.empty() || s.name.find('/') != std::string::npos)
            return fail(Exit::input, "%s: expected the name of a file, found \"%s\"", path.c_str(), s.name.c_str());
        sums.push_back(s);
    }
    if (!text.starts_with(VERSION_LINE))
        return fail(Exit::input, "%s: line 1: expected \"flatgpt checkpoint 1\"", path.c_str());
    if (manifest_text(sums) != text)
        return fail(Exit::input, "%s: its own checksum is wrong, or it is cut short", path.c_str());
    auto listed = [&](const char* name) {
        return std::any_of(sums.begin(), sums.end(), [&](const FileChecksum& s) { return s.name == name; });
    };
    const bool weights = listed("model.safetensors.index.json") || listed("adapter_model.safetensors");
    for (const char* needed : {"model.safetensors", "config.json", "state.json"})
        if (!listed(needed) && !(needed[0] == 'm' && weights))
            return fail(Exit::input, "%s: it does not list %s", path.c_str(), needed);
    return sums;
}

Result<std::vector<FileChecksum>> manifest_read(const std::string& dir) {
    const std::string path = dir + "/MANIFEST";
    return manifest_parse(TRY(read_file(path, 1 << 20)), path);
}

Status checksum_verify(const std::string& path, const FileChecksum& expected, bool contents, Cores cores) {
    const File file = TRY(File::open(path));
    if (file.bytes() != expected.bytes)
        return fail(Exit::input, "%s: expected %lld bytes (MANIFEST), found %lld", path.c_str(),
                    (long long)expected.bytes, (long long)file.bytes());
    if (!contents) return {};
    constexpr int64_t PIECE = 1 << 18;    // stays in a core's cache between read and checksum
    std::vector<uint32_t> sums(size_t(ceil_div(expected.bytes, PIECE)));
    Status status;
    std::mutex mutex;    // guards status
    std::vector<std::vector<char>> pieces(static_cast<size_t>(pool_threads()));
    each_chunk_if(cores == Cores::all, int64_t(sums.size()), [&](int64_t i, int worker) {
        const int64_t at = i * PIECE, bytes = std::min(PIECE, expected.bytes - at);
        std::vector<char>& piece = pieces[size_t(worker)];
        piece.resize(size_t(std::min(PIECE, expected.bytes)));
        const Status s = file.read(at, piece.data(), bytes);
        if (s.ok()) sums[size_t(i)] = crc32c(0, piece.data(), bytes);
        const std::lock_guard<std::mutex> lock(mutex);
        if (!s.ok() && status.ok()) status = s;
        count_progress();
    });
    TRY(status);
    uint32_t crc = 0;
    for (size_t i = 0; i < sums.size(); i++)
        crc = crc32c_combine(crc, sums[i], std::min(PIECE, expected.bytes - int64_t(i) * PIECE));
    if (crc != expected.crc)
        return fail(Exit::input, "%s: expected CRC-32C %08x (MANIFEST), found %08x", path.c_str(), expected.crc, crc);
    return {};
}

void ReadChecksums::add(const SafetensorsFile* file, int64_t at, const void* data, int64_t bytes) {
    const uint32_t crc = crc32c(0, data, bytes);
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    pieces[file].push_back({at, bytes, crc});
}

Status ReadChecksums::check(const SafetensorsFile& file, const FileChecksum& expected) {
    std::vector<Piece>& all = pieces[&file];
    std::sort(all.begin(), all.end(), [](const Piece& a, const Piece& b) { return a.at < b.at; });
    all.push_back({file.bytes(), 0, 0});
    std::vector<char> rest(std::min(size_t(1) << 18, size_t(file.bytes())));
    uint32_t crc = 0;
    int64_t end = 0;    // end of the bytes that crc covers
    for (const Piece& p : all) {
        while (end < p.at) {
            const int64_t bytes = std::min(p.at - end, int64_t(rest.size()));
            TRY(file.read_bytes(end, rest.data(), bytes));
            crc = crc32c(crc, rest.data(), bytes);
            end += bytes;
        }
        crc = crc32c_combine(crc, p.crc, p.bytes);
        end += p.bytes;
    }
    if (crc != expected.crc)
        return fail(Exit::input, "%s: expected CRC-32C %08x (MANIFEST), found %08x", file.path().c_str(), expected.crc,
                    crc);
    return {};
}
