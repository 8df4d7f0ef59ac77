// reference.cpp - see reference.h. The file has 8-byte little-endian words: magic, fingerprints and
// counts of both kinds of scores, the scores as doubles, and the hash of all words before.
#include "train/reference.h"

#include <cstring>

#include "base/file.h"

namespace {
constexpr uint64_t MAGIC = 0x31465250474C46;    // "FLGPRF1"
struct Header {
    uint64_t magic, data, validation, data_scores, validation_scores;
};
uint64_t hash_of(const std::string& bytes, size_t n) { return fnv1a_words(FNV_OFFSET_BASIS, bytes.data(), int64_t(n)); }
}    // namespace

Status reference_write(const std::string& path, const ReferenceScores& s) {
    const Header h = {MAGIC, s.data, s.validation, s.of_data.size(), s.of_validation.size()};
    std::string bytes(reinterpret_cast<const char*>(&h), sizeof h);
    for (const std::vector<double>* scores : {&s.of_data, &s.of_validation})
        bytes.append(reinterpret_cast<const char*>(scores->data()), 8 * scores->size());
    const uint64_t hash = hash_of(bytes, bytes.size());
    bytes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
    return replace_file(path, bytes);
}

Result<ReferenceScores> reference_read(const std::string& path) {
    const std::string bytes = TRY(read_file(path, int64_t(1) << 36));
    Header h = {};
    if (bytes.size() < sizeof h + 8 || bytes.size() % 8)
        return fail(Exit::input, "%s: expected the reference's scores, found a file of %zu bytes", path.c_str(),
                    bytes.size());
    memcpy(&h, bytes.data(), sizeof h);
    const size_t scores = (bytes.size() - sizeof h - 8) / 8;
    if (h.magic != MAGIC || h.data_scores > scores || h.validation_scores != scores - h.data_scores)
        return fail(Exit::input, "%s: expected the reference's scores, found another header or length", path.c_str());
    uint64_t hash;
    memcpy(&hash, &bytes[bytes.size() - 8], 8);
    if (hash != hash_of(bytes, bytes.size() - 8))
        return fail(Exit::input, "%s: damaged: its hash is not that of its content; start the run again", path.c_str());
    ReferenceScores s = {h.data, h.validation, std::vector<double>(h.data_scores),
                         std::vector<double>(h.validation_scores)};
    memcpy(s.of_data.data(), &bytes[sizeof h], 8 * s.of_data.size());
    memcpy(s.of_validation.data(), &bytes[sizeof h + 8 * s.of_data.size()], 8 * s.of_validation.size());
    return s;
}
