// fuzz_text.cpp - libFuzzer: any bytes as a compressed or UTF-16 text; reads of any size agree.
#include "files/text_file.h"

#include <sys/mman.h>
#include <unistd.h>

namespace {
// Reads at most 4 MiB: a small compressed file may expand to much more.
Status read_text(const std::string& path, size_t piece, std::string& text) {
    Result<TextFile> f = TextFile::open(path);
    TRY(f.status);
    std::string buffer(piece, '\0');
    for (size_t n = piece; n == piece && text.size() < (4 << 20);) {
        Result<size_t> read = f.value.read(buffer.data(), piece);
        TRY(read.status);
        n = read.value;
        CHECK(n <= piece);
        text.append(buffer, 0, n);
    }
    return {};
}
}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static int fd = memfd_create("fuzz", 0);
    CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == ssize_t(size));
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    std::string large, small;
    Status a = read_text(path, 1 << 20, large), b = read_text(path, 1 << 10, small);
    CHECK(a.code == b.code && (a.ok() || (a.code == Exit::input && !a.message.empty())));
    CHECK(!a.ok() || large == small);
    return 0;
}
