// test_device.cpp - device operations of the CUDA table: copies, batches uploaded ahead, marks,
// graphs, scratch, failures.
#include <csignal>

#include "cuda_test.h"

void* cuda_scratch(int64_t bytes, int64_t kept = 0);    // cuda.cuh

namespace {
const Ops<float>& table() { return cuda_ops<float>(Dtype::fp32); }
typedef std::vector<int> Ints;
// Device memory of n ints for the time of a test.
struct Buffer {
    int64_t bytes;
    int* p;
    explicit Buffer(int64_t n) : bytes(n * 4), p(static_cast<int*>(table().allocate(bytes))) { REQUIRE(p); }
    ~Buffer() { table().release(p, bytes); }
    Buffer(const Buffer&) = delete;
    Ints read() const {
        Ints host(size_t(bytes / 4));
        table().download(host.data(), p, bytes);
        return host;
    }
};
Ints count_from(int first, int64_t n) {
    Ints x(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) x[size_t(i)] = first + int(i);
    return x;
}
// Queues so much work on the first stream that work which does not wait for it comes too early,
// even on a GPU.
void keep_busy() {
    static Buffer big(1 << 22);
    for (int i = 0; i < (cuda_emulated() ? 1 : 50); i++) table().zero(big.p, big.bytes);
}
}    // namespace

TEST_CASE("cuda device: what it says of itself") {
    std::string why;
    const std::vector<CudaDevice> all = cuda_devices(&why);
    REQUIRE(!all.empty());
    const CudaDevice& d = cuda_device();
    CHECK(d.major >= 8);
    CHECK(d.memory > 0);
    CHECK(d.free <= d.memory);
    CHECK(cuda_context_bytes() == d.memory - d.free);
    CHECK(table().free_bytes() <= d.free);
    if (cuda_emulated()) {    // 1 GHz
        const double per_clock = d.major == 9 ? 4096 * 0.924 : 2048;
        CHECK(d.peak_bf16 == doctest::Approx(d.multiprocessors * per_clock * 1e9));
    }
    CHECK(cuda_open(0).ok());    // open already
    for (Dtype t : {Dtype::fp32, Dtype::tf32}) CHECK(std::string(cuda_ops<float>(t).name).find(d.name) == 0);
    CHECK(cuda_ops<float>(Dtype::fp32).name != std::string(cuda_ops<float>(Dtype::tf32).name));
}

TEST_CASE("cuda device: memory is zero, aligned, and null when there is none") {
    const Ops<float>& op = table();
    const int64_t before = op.free_bytes();
    each_order([&] {
        for (int64_t n : {1, 63, 1000, 70000}) {
            Buffer x(n);
            CHECK(reinterpret_cast<uintptr_t>(x.p) % 256 == 0);
            CHECK(x.read() == Ints(size_t(n), 0));
        }
        CHECK(op.allocate(int64_t(1) << 60) == nullptr);
        if (cuda_emulated()) CHECK(op.allocate(op.free_bytes() + 1) == nullptr);
        Buffer after(4);    // the device still works
        CHECK(after.read() == Ints(4, 0));
    });
    if (cuda_emulated()) CHECK(op.free_bytes() == before);
    void* host = op.allocate_host(100);
    CHECK(host);
    op.release_host(host, 100);
}

TEST_CASE("cuda device: uploads have read their source on return, small ones, many, and pieces of large ones") {
    const Ops<float>& op = table();
    each_order([&] {
        Buffer x(64 * 5), y(64 * 5);
        int host[5];
        for (int i = 0; i < 64; i++) {
            for (int j = 0; j < 5; j++) host[j] = 5 * i + j;
            op.upload(x.p + 5 * i, host, sizeof host);
        }
        op.copy(y.p, x.p, x.bytes);
        op.zero(x.p, 8);
        CHECK(y.read() == count_from(0, 320));
        CHECK(x.read()[1] == 0);
        CHECK(x.read()[2] == 2);
    });
    const int64_t n = (int64_t(18) << 20) / 4 + 3;    // more than twice the upload ring
    each_order([&] {
        Buffer x(n);
        for (int times = 0; times < 2; times++) {
            Ints host = count_from(times, n);
            op.upload(x.p, host.data(), x.bytes);
            std::fill(host.begin(), host.end(), -1);
            CHECK(x.read() == count_from(times, n));
        }
    });
}

TEST_CASE("cuda device: each batch that was sent ahead is the one that is taken") {
    const Ops<float>& op = table();
    const int64_t n = 5000;
    each_order([&] {
        Buffer staged(n), in(n), seen(n * 6);
        for (int step = 0; step < 6; step++) {
            Ints host = count_from(step * 10, n);
            op.upload_async(staged.p, host.data(), staged.bytes);
            std::fill(host.begin(), host.end(), -1);
            keep_busy();    // work of the previous step
            op.use_uploaded(in.p, staged.p, in.bytes);
            op.copy(seen.p + n * step, in.p, in.bytes);
        }
        const Ints got = seen.read();
        for (int step = 0; step < 6; step++)
            CHECK(Ints(got.begin() + step * n, got.begin() + (step + 1) * n) == count_from(step * 10, n));
    });
}

TEST_CASE("cuda device: a result is there when its mark has been waited for") {
    const Ops<float>& op = table();
    int* host = static_cast<int*>(op.allocate_host(200 * 4));
    int64_t marks[200];
    each_order([&] {
        Buffer x(1);
        auto result = [&](int i) {
            host[i] = -1;
            op.upload(x.p, &i, 4);
            op.download_async(host + i, x.p, 4);
            marks[i] = op.mark();
        };
        result(0);
        for (int i = 0; i < 64; i++) op.mark();
        op.wait(marks[0]);    // older than the ring of events
        CHECK(host[0] == 0);
        for (int i = 1; i < 200; i++) {
            result(i);
            if (i % 3 == 0) {    // result of two steps before
                op.wait(marks[i - 2]);
                CHECK(host[i - 2] == i - 2);
            }
        }
        op.wait(marks[199]);
        CHECK(Ints(host, host + 200) == count_from(0, 200));
    });
    op.release_host(host, 200 * 4);
}

TEST_CASE("cuda device: what is recorded is not done but replayed, in order with the rest") {
    const Ops<float>& op = table();
    each_order([&] {
        Buffer a(100), b(100), c(100);
        const Ints first = count_from(1, 100), second = count_from(500, 100);
        op.upload(a.p, first.data(), a.bytes);
        op.begin_capture();
        op.copy(b.p, a.p, a.bytes);
        op.copy(c.p, b.p, b.bytes);
        op.zero(b.p, 8);
        void* graph = op.end_capture();
        CHECK(c.read() == Ints(100, 0));
        op.launch_graph(graph);
        CHECK(c.read() == first);
        op.upload(a.p, second.data(), a.bytes);
        op.launch_graph(graph);
        op.copy(a.p, b.p, 8);
        CHECK(c.read() == second);
        CHECK(b.read()[1] == 0);
        CHECK(b.read()[2] == second[2]);
        CHECK(a.read()[0] == 0);
        op.release_graph(graph);
    });
}

TEST_CASE("cuda device: scratch grows, and graphs keep what they were recorded with") {
    const Ops<float>& op = table();
    int64_t size = 2 << 20;    // grows until scratch is allocated anew
    for (const int64_t before = op.free_bytes(); op.free_bytes() == before;) cuda_scratch(size *= 2);
    each_order([&] {
        int* small = static_cast<int*>(cuda_scratch(size));
        CHECK(cuda_scratch(100) == small);
        CHECK(reinterpret_cast<uintptr_t>(small) % 256 == 0);
        Buffer x(1);
        op.begin_capture();
        op.copy(x.p, small, 4);
        void* graph = op.end_capture();
        const int64_t before = op.free_bytes();
        const int64_t was = size;
        int* large = static_cast<int*>(cuda_scratch(size += 4 << 20));
        const int one = 1;
        op.upload(small, &one, 4);
        op.launch_graph(graph);
        CHECK(x.read()[0] == 1);
        op.zero(large, size);
        if (cuda_emulated()) CHECK(op.free_bytes() == before - size);
        op.release_graph(graph);
        if (cuda_emulated()) CHECK(op.free_bytes() == before - size + was);
    });
}

// ---- failures that end the process: run_again() starts one of these cases -----------------------

TEST_CASE("fails: a call" * doctest::skip()) {
    int here;
    table().release(&here, 4);
}
TEST_CASE("fails: scratch" * doctest::skip()) { cuda_scratch(int64_t(1) << 60); }
TEST_CASE("fails: scratch in a recording" * doctest::skip()) {
    table().begin_capture();
    cuda_scratch(int64_t(1) << 32);
}

TEST_CASE("cuda device: failures say what failed and end the process") {
    auto output = [](const char* environment, const char* arguments, int expected) {
        int status;
        const std::string text = run_again(environment, arguments, &status);
        CHECK_MESSAGE(status == expected, text);
        return text;
    };
    auto expect_part = [](const std::string& text, const std::string& part) {
        CHECK_MESSAGE(text.find(part) != std::string::npos, "'" << part << "' is not in: " << text);
    };
    std::string text = output("", "--no-skip -tc='fails: a call'", int(Exit::device));
    expect_part(text, "cuda.cu:");
    expect_part(text, "cudaFree(p): invalid argument");
    text = output("", "--no-skip -tc='fails: scratch'", int(Exit::device));
    expect_part(text, "out of memory");
    expect_part(text, "--batch");
    text = output("", "--no-skip -tc='fails: scratch in a recording'", 128 + SIGABRT);
    expect_part(text, "4294967296 bytes of scratch are needed in a graph capture");
    if (!cuda_emulated()) return;
    text = output("EMU_DEVICES=0", "", int(Exit::device));    // no GPU: a failure, not a skip
    expect_part(text, "no CUDA-capable device is detected");
    expect_part(text, "0 passed, 1 failed, 0 skipped");
    text = output("EMU_CC=75", "", int(Exit::device));
    expect_part(text, "has compute capability 7.5, needed is 8.0");
}
