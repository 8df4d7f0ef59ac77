// shard.cpp - one file of tokens: header, reading, writing. See loader.h for the format.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <glob.h>
#include <map>
#include <sys/stat.h>
#include <unistd.h>

#include "bpe.h"
#include "base/file.h"
#include "loader.h"

namespace {
constexpr int64_t HEADER_BYTES = 1024;
constexpr int64_t MAX_TOKENS = INT32_MAX;    // the header's count is an int32
struct Kind {
    int32_t magic, version;
    int token_bytes;
};
constexpr Kind KINDS[] = {{20240520, 1, 2}, {20240801, 7, 4}};
constexpr int MAX_VOCAB = 1 << 24, MAX_SHARDS = 1 << 24;

int32_t word(std::string_view head, size_t i) {
    int32_t value;
    memcpy(&value, head.data() + 4 * i, 4);
    return value;
}
// Whether magic, version, count and file size agree with a header. In a file without a header they
// never agree by chance.
bool has_header(std::string_view head, int64_t file_bytes) {
    for (const Kind& k : KINDS)
        if (int64_t(head.size()) >= HEADER_BYTES && word(head, 0) == k.magic && word(head, 1) == k.version &&
            word(head, 2) >= 0 && HEADER_BYTES + int64_t(word(head, 2)) * k.token_bytes == file_bytes)
            return true;
    return false;
}
}    // namespace

bool shard_begins(std::string_view head) {
    return head.size() >= 4 && (word(head, 0) == KINDS[0].magic || word(head, 0) == KINDS[1].magic);
}

namespace {
// Parses the header's words about tokenizer, documents and set.
Status parse_origin(std::string_view head, Shard& s) {
    int32_t vocab = word(head, 3), documents = word(head, 6);
    if (vocab < 0 || vocab > MAX_VOCAB)
        return fail(Exit::input, "%s: offset 12: the tokenizer's vocabulary: expected 0 to %d, found %d",
                    s.path.c_str(), MAX_VOCAB, vocab);
    if (documents < 0 || documents > s.tokens)
        return fail(Exit::input, "%s: offset 24: documents: expected 0 to %lld, the tokens, found %d", s.path.c_str(),
                    (long long)s.tokens, documents);
    memcpy(&s.tokenizer, head.data() + 16, 8);
    s.vocab = vocab;
    s.documents = documents;
    if (s.vocab == 0 || s.tokenizer == 0) s.vocab = 0, s.tokenizer = 0;    // both together identify a tokenizer
    memcpy(&s.set.id, head.data() + 28, 8);
    if (s.set.id) s.set.index = word(head, 9), s.set.shards = word(head, 10);
    if (s.set.id && (s.set.index < 0 || s.set.index >= s.set.shards || s.set.shards > MAX_SHARDS))
        return fail(Exit::input,
                    "%s: offset 36: the shard's place in its set: expected less than the %d shards at "
                    "offset 40 and these at most %d, found %d",
                    s.path.c_str(), s.set.shards, MAX_SHARDS, s.set.index);
    return {};
}
// Path of the set's shard `index` (x_train_001.bin beside x_train_000.bin); "": no number in
// s.path.
std::string sibling(const Shard& s, int index) {
    const size_t cut = s.path.rfind('_');
    const bool numbered = cut != s.path.npos && s.path.ends_with(".bin") &&
                          s.path.find_first_not_of("0123456789", cut + 1) == s.path.size() - 4;
    return numbered ? s.path.substr(0, cut) + formatted("_%03d.bin", index) : "";
}
}    // namespace

// ---- reading ------------------------------------------------------------------------------------

Result<Shard> shard_parse(std::string_view head, int64_t file_bytes, const std::string& path, bool raw_u16) {
    Shard s;
    s.path = path;
    s.file_bytes = file_bytes;
    if (raw_u16) {
        s.data_offset = 0;
        s.tokens = file_bytes / 2;
        if (has_header(head, file_bytes))
            return fail(Exit::input, "%s: has a shard header; leave out --raw-u16", path.c_str());
        if (file_bytes % 2)
            return fail(Exit::input, "%s: raw uint16 tokens: expected an even number of bytes, found %lld",
                        path.c_str(), (long long)file_bytes);
        return s;
    }
    if (file_bytes < HEADER_BYTES || int64_t(head.size()) < HEADER_BYTES)
        return fail(Exit::input, "%s: expected a shard header of %lld bytes, the file has %lld", path.c_str(),
                    (long long)HEADER_BYTES, (long long)file_bytes);
    int32_t magic = word(head, 0), version = word(head, 1), count = word(head, 2);
    auto kind = std::find_if(std::begin(KINDS), std::end(KINDS), [&](const Kind& k) { return k.magic == magic; });
    if (kind == std::end(KINDS))
        return fail(Exit::input,
                    "%s: offset 0: magic: expected %d (uint16 tokens) or %d (uint32), found %d; a file "
                    "without header needs --raw-u16, a text `flatgpt tokenize` first",
                    path.c_str(), KINDS[0].magic, KINDS[1].magic, magic);
    if (version != kind->version)
        return fail(Exit::input, "%s: offset 4: version: expected %d, found %d", path.c_str(), kind->version, version);
    if (count < 0) return fail(Exit::input, "%s: offset 8: token count: found %d", path.c_str(), count);
    s.token_bytes = kind->token_bytes;
    s.tokens = count;
    if (int64_t expected = HEADER_BYTES + s.tokens * s.token_bytes; expected != file_bytes)
        return fail(Exit::input, "%s: offset 8: %d tokens take %lld bytes with the header, the file has %lld",
                    path.c_str(), count, (long long)expected, (long long)file_bytes);
    TRY(parse_origin(head, s));
    return s;
}

Result<Shard> shard_open(const std::string& path, bool raw_u16) {
    const File file = TRY(File::open(path));
    char head[HEADER_BYTES];
    int64_t bytes = std::min(HEADER_BYTES, file.bytes());
    TRY(file.read(0, head, bytes));
    Shard s = TRY(shard_parse({head, size_t(bytes)}, file.bytes(), path, raw_u16));
    s.modified = file.modified();
    return s;
}

Status check_shard_tokenizer(const std::vector<Shard>& shards, const Tokenizer& tokenizer, int vocab,
                             const TokenizerSource& whose) {
    const bool none = tokenizer.vocab_size() == 0;
    for (const Shard& s : shards) {
        if (s.tokenizer == 0 || (none ? s.vocab <= vocab : s.tokenizer == tokenizer.fingerprint())) continue;
        if (none)
            return fail(Exit::input, "%s: made with a tokenizer of %d tokens, the model has %d", s.path.c_str(),
                        s.vocab, vocab);
        return fail(Exit::input, "%s: made with another tokenizer (%d tokens) than %s (%d tokens); %s", s.path.c_str(),
                    s.vocab, whose.name.c_str(), tokenizer.vocab_size(), whose.advice.c_str());
    }
    return {};
}

Status check_shard_sets(const std::vector<Shard>& shards, bool allow_partial_set) {
    std::map<uint64_t, std::map<int, const Shard*>> sets;
    for (const Shard& s : shards) {
        if (s.set.id == 0) continue;
        const auto [there, first] = sets[s.set.id].emplace(s.set.index, &s);
        if (!first)
            return fail(Exit::input, "%s and %s are the same shard; name it once", there->second->path.c_str(),
                        s.path.c_str());
    }
    for (const Shard& one : shards) {
        const auto& set = sets[one.set.id];
        if (allow_partial_set || int(set.size()) == one.set.shards) continue;
        int index = 0;
        while (set.contains(index)) index++;
        const std::string path = sibling(one, index);
        const bool other = std::any_of(shards.begin(), shards.end(), [&](auto& s) { return s.path == path; });
        return fail(Exit::input,
                    "%s: expected all %d shards that were written with it, found %zu; number %d%s%s %s. "
                    "Give all of them (a pattern such as 'x_train_*.bin'), or tokenize the text again",
                    one.path.c_str(), one.set.shards, set.size(), index, path.empty() ? "" : ", ", path.c_str(),
                    other ? "belongs to another text or another run of tokenize" : "is missing");
    }
    return {};
}

// Opens a shard that must not have changed since shard_open. The file is opened for each read, so
// that the limit on open files does not limit the number of shards, and so that a replaced file is
// detected. `offset`: where the caller reads, for the message.
static Result<File> open_unchanged(const Shard& s, int64_t offset) {
    File file = TRY(File::open(s.path));
    if (file.bytes() != s.file_bytes || file.modified() != s.modified)
        return fail(Exit::input, "%s: the file was changed while in use (%lld bytes, now %lld); reading at offset %lld",
                    s.path.c_str(), (long long)s.file_bytes, (long long)file.bytes(), (long long)offset);
    return file;
}

Status shard_read(const Shard& s, int64_t first, int64_t count, int vocab, int* out) {
    CHECK(first >= 0 && count >= 0 && count <= s.tokens - first && vocab > 0);
    int64_t offset = s.data_offset + first * s.token_bytes;
    const File file = TRY(open_unchanged(s, offset));
    // Reads into the upper end of out, then widens in place, where writes never overtake reads.
    char* raw = reinterpret_cast<char*>(out) + count * (4 - s.token_bytes);
    TRY(file.read(offset, raw, count * s.token_bytes));
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = 0;
        memcpy(&token, raw + i * s.token_bytes, size_t(s.token_bytes));
        if (token >= uint32_t(vocab))
            return fail(Exit::input, "%s: offset %lld: token %lld is %u: expected less than %d, the vocabulary",
                        s.path.c_str(), (long long)(offset + i * s.token_bytes), (long long)(first + i), token, vocab);
        out[i] = int(token);
    }
    return {};
}

// shard_find for tokens of type T. A block of 64 is compared without branches, as vectors, because
// the wanted tokens are rare.
template <class T>
static Status find_in(const Shard& s, const File& file, T wanted, const std::function<void(int64_t index)>& found) {
    constexpr int64_t STEP = 1 << 18, BLOCK = 64;    // STEP: tokens that are read at once; they stay in the L2 cache
    std::vector<T> x(size_t(std::min(STEP, s.tokens)));
    for (int64_t first = 0; first < s.tokens; first += STEP) {
        const int64_t n = std::min(STEP, s.tokens - first);
        TRY(file.read(s.data_offset + first * s.token_bytes, x.data(), n * s.token_bytes));
        count_progress();
        for (int64_t from = 0; from < n; from += BLOCK) {
            const int64_t end = std::min(n, from + BLOCK);
            T any = end - from < BLOCK;
            for (int64_t i = 0; i < BLOCK && end - from == BLOCK; i++) any |= T(x[size_t(from + i)] == wanted);
            for (int64_t i = from; any && i < end; i++)
                if (x[size_t(i)] == wanted) found(first + i);
        }
    }
    return {};
}

Status shard_find(const Shard& s, int token, const std::function<void(int64_t index)>& found) {
    const File file = TRY(open_unchanged(s, s.data_offset));
    if (s.token_bytes == 4) return find_in(s, file, uint32_t(token), found);
    return token > UINT16_MAX ? Status{} : find_in(s, file, uint16_t(token), found);
}

// Whether a number follows the last '=', as in an entry of a mixture.
static bool ends_in_number(const std::string& entry) {
    const size_t equals = entry.rfind('=');
    if (equals == entry.npos || equals + 1 == entry.size()) return false;
    char* end = nullptr;
    (void)strtod(entry.c_str() + equals + 1, &end);
    return *end == 0;
}

Result<std::vector<std::string>> shard_glob(const std::string& pattern) {
    std::vector<std::string> files;
    for (size_t begin = 0; begin <= pattern.size();) {
        size_t end = std::min(pattern.find(',', begin), pattern.size());
        std::string one = pattern.substr(begin, end - begin);
        begin = end + 1;
        glob_t found{};
        int rc = glob(one.c_str(), GLOB_TILDE, nullptr, &found);
        if (rc == 0) files.insert(files.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
        globfree(&found);
        if (rc != 0)
            return fail(Exit::input, "'%s': no such files%s", one.c_str(),
                        ends_in_number(one) ? "; a number behind '=' is a weight with `train --data` alone" : "");
    }
    TRY(check_distinct(files, pattern));
    std::sort(files.begin(), files.end());
    return files;
}

Status check_distinct(std::vector<std::string> files, const std::string& pattern) {
    std::sort(files.begin(), files.end());
    std::map<std::pair<dev_t, ino_t>, const std::string*> known;
    for (size_t i = 0; i < files.size(); i++) {
        if (i > 0 && files[i] == files[i - 1])
            return fail(Exit::usage, "'%s': %s is given twice, and would count twice; name it once", pattern.c_str(),
                        files[i].c_str());
        struct stat info {};
        if (stat(files[i].c_str(), &info)) continue;    // opening this file later reports the reason
        const auto [there, first] = known.emplace(std::pair(info.st_dev, info.st_ino), &files[i]);
        if (!first)
            return fail(Exit::usage, "'%s': %s and %s are one file, which would count twice; name it once",
                        pattern.c_str(), there->second->c_str(), files[i].c_str());
    }
    return {};
}

// ---- writing ------------------------------------------------------------------------------------

struct ShardWriter::State {
    std::string path;
    NewFile file;
    int vocab = 0;
    bool open = false;    // tokens may be appended
    Kind kind{};
    uint64_t tokenizer = 0;
    int64_t documents = 0, tokens = 0, offset = HEADER_BYTES;    // offset: file offset of the buffer's begin
    std::string buffer;
    bool safe = false;    // all tokens are on the disk

    Status flush() {
        safe = safe && buffer.empty();
        TRY(file.write(offset, buffer.data(), int64_t(buffer.size())));
        offset += int64_t(buffer.size());
        buffer.clear();
        return {};
    }
};
int64_t ShardWriter::tokens() const { return s ? s->tokens : 0; }
int64_t ShardWriter::documents() const { return s ? s->documents : 0; }
const std::string& ShardWriter::path() const { return s->path; }

Status ShardWriter::open(const std::string& path, int vocab, uint64_t tokenizer) {
    s = std::make_shared<State>();
    s->path = path;
    s->vocab = vocab;
    s->tokenizer = tokenizer;
    s->kind = KINDS[vocab > 65536];
    s->file = TRY(NewFile::create(path));
    s->open = true;
    return {};
}
Status ShardWriter::reopen(const std::string& path, int vocab, uint64_t tokenizer, int64_t tokens, int64_t documents,
                           bool more) {
    s = std::make_shared<State>();
    s->path = path;
    s->vocab = vocab;
    s->tokenizer = tokenizer;
    s->kind = KINDS[vocab > 65536];
    s->tokens = tokens;
    s->documents = documents;
    s->offset = HEADER_BYTES + tokens * s->kind.token_bytes;
    s->file = TRY(NewFile::reopen(path, s->offset));
    s->open = more;
    return {};
}
Status ShardWriter::save() {
    CHECK(s);
    TRY(s->flush());
    if (!s->safe) TRY(s->file.sync());
    s->safe = true;
    return {};
}
void ShardWriter::keep() { s->file.keep(); }

// Stores the lower bytes of each token. Returns the least and the largest token, or 0. A constant
// width lets the loop use vectors.
template <size_t WIDTH> static std::pair<int, int> store_tokens(char* to, const int* tokens, int64_t n) {
    int least = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        least = std::min(least, tokens[i]);
        most = std::max(most, tokens[i]);
        memcpy(to + int64_t(WIDTH) * i, &tokens[i], WIDTH);
    }
    return {least, most};
}

Status ShardWriter::append(const int* tokens, int64_t count) {
    CHECK(s && s->open);
    if (count > MAX_TOKENS - s->tokens)
        return fail(Exit::usage, "%s: one shard holds at most %lld tokens", s->path.c_str(), (long long)MAX_TOKENS);
    const size_t width = size_t(s->kind.token_bytes);
    for (int64_t at = 0, n = 0; at < count; at += n) {
        n = std::min<int64_t>(count - at, 1 << 16);
        const size_t had = s->buffer.size();
        s->buffer.resize(had + size_t(n) * width);
        const auto [least, most] = width == 2 ? store_tokens<2>(&s->buffer[had], tokens + at, n)
                                              : store_tokens<4>(&s->buffer[had], tokens + at, n);
        CHECK(least >= 0 && most < s->vocab, "tokens %d to %d", least, most);
        if (s->buffer.size() >= (1 << 20)) TRY(s->flush());
    }
    s->tokens += count;
    return {};
}

void ShardWriter::count_document() {
    CHECK(s && s->open);
    s->documents++;
}

Status ShardWriter::close() {
    CHECK(s && s->open);
    s->open = false;
    TRY(s->flush());
    std::string().swap(s->buffer);    // frees its memory: only the header is left to write
    return {};
}

Status ShardWriter::finish(const ShardSet& set) {
    CHECK(s);
    if (s->open) TRY(close());
    int32_t header[HEADER_BYTES / 4] = {s->kind.magic, s->kind.version, int32_t(s->tokens)};
    if (s->tokenizer) {
        header[3] = s->vocab;
        memcpy(&header[4], &s->tokenizer, 8);
    }
    header[6] = int32_t(s->documents);
    memcpy(&header[7], &set.id, 8);
    header[9] = set.index;
    header[10] = set.shards;
    TRY(s->file.write(0, header, sizeof header));
    return s->file.sync();
}

Status ShardWriter::publish() {
    CHECK(s && !s->open);
    return s->file.commit();
}

Status ShardWriter::commit() {
    TRY(finish());
    return publish();
}
