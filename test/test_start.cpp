// test_start.cpp - `sample` and `eval` up to the first token: they read the weights once and the
// optimizer's state never; choice of a run's checkpoint; memory.
#include "checkpoint/manifest.h"
#include "files/json.h"
#include "model/device.h"
#include "model/decoder.h"
#include "layers/cpu.h"
#include "sanitizers.h"
#include "tensors.h"
#include "toy_run.h"

#include <map>

namespace {
// A run with checkpoints of steps 20, 40 and 60, each with a validation loss.
std::string three(const Toy& toy) {
    ProcessResult r =
        run_flatgpt(toy.args("run", {"--steps", "60", "--save-every", "20", "--eval-every", "20", "--keep", "0"}));
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    REQUIRE(checkpoint_list(toy.dir + "/run").size() == 3);
    return toy.dir + "/run";
}
ProcessResult sample(const std::string& model, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {"sample", model, "--prompt", "abc", "--tokens", "8",
                                     "--seed", "3",   "--device", "cpu", "--dtype",  "fp32"};
    args.insert(args.end(), more.begin(), more.end());
    return run_flatgpt(args);
}
void flip(const std::string& path, int64_t from_end) {
    std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(-from_end, std::ios::end);
    const std::streamoff at = f.tellg();
    const char byte = char(f.get() ^ 4);
    f.seekp(at);
    REQUIRE(f.put(byte));
}
}    // namespace

TEST_CASE("start: sample and eval read nothing of the optimizer, and all of the weights") {
    Toy toy;
    const std::string run = three(toy), newest = run + "/step_00000060", before = run + "/step_00000040";
    const ProcessResult whole = sample(run);
    REQUIRE_MESSAGE(whole.exit_code == 0, whole.err);
    auto same = [&] {
        const ProcessResult r = sample(run);
        INFO(r.err);
        CHECK(r.exit_code == 0);
        CHECK(r.out == whole.out);
        CHECK(!contains(r.err, "passed over"));
    };
    flip(newest + "/optimizer.safetensors", 5);
    same();
    fs::remove(newest + "/optimizer.safetensors");
    same();
    CHECK(run_flatgpt({"eval", run, "--data", toy.dir + "/val.bin", "--seq-len", "32", "--device", "cpu"}).exit_code ==
          0);
    CHECK(run_flatgpt({"info", newest}).exit_code == 3);    // info checks every file

    // Damages, in turn, the last byte, one in the middle (a transposed tensor), one of the header.
    const int64_t bytes = int64_t(fs::file_size(newest + "/model.safetensors"));
    for (int64_t from_end : {int64_t(1), bytes / 2, bytes - 9}) {
        flip(newest + "/model.safetensors", from_end);
        ProcessResult r = sample(run);
        INFO(from_end, r.err);
        CHECK(r.exit_code == 0);
        CHECK(contains(r.err, "passed over: " + newest + "/model.safetensors"));
        CHECK(contains(r.err, before + " (the last"));
        CHECK(r.out == sample(run, {"--checkpoint", "40"}).out);
        r = sample(newest);
        CHECK(r.exit_code == 3);
        CHECK(contains(r.err, newest + "/model.safetensors"));
        CHECK(sample(run, {"--checkpoint", "60"}).exit_code == 3);
        flip(newest + "/model.safetensors", from_end);
    }
    same();
    flip(newest + "/tokenizer.json", 30);
    CHECK(contains(sample(run).err, "passed over: " + newest + "/tokenizer.json"));
}

TEST_CASE("start: sample and eval take the checkpoint asked for, and say which one") {
    Toy toy;
    const std::string run = three(toy);
    auto at = [&](int step) { return run + "/step_000000" + std::to_string(step); };
    for (int step : {40, 60}) forge(at(step), [](TrainState& t) { t.best_step = 40, t.best_loss = 4.1875; });
    std::map<std::string, std::string> said;
    for (const char* which : {"last", "best", "20", "40"}) {
        const ProcessResult r = sample(run, {"--checkpoint", which});
        INFO(r.err);
        CHECK(r.exit_code == 0);
        said[which] = r.err.substr(0, r.err.find('\n'));
        CHECK(contains(r.err, "tokens/s"));
    }
    CHECK(said["last"] == at(60) + " (the last; the best by validation is step 40, 4.188: --checkpoint best)");
    CHECK(said["best"] == at(40) + " (the best by validation, 4.188; the last is step 60)");
    CHECK(said["40"] == at(40) + " (as asked, and the best by validation, 4.188; the last is step 60)");
    CHECK(said["20"].starts_with(at(20) + " (as asked"));
    CHECK(sample(run + "/").err.starts_with(at(60) + " (the last"));
    CHECK(sample(run).out == sample(at(60)).out);
    CHECK(!contains(sample(at(60)).err, "(the last"));    // not a run: no choice
    const ProcessResult e =
        run_flatgpt({"eval", run, "--data", toy.dir + "/val.bin", "--device", "cpu", "--checkpoint", "best"});
    CHECK(e.exit_code == 0);
    CHECK(contains(e.err, at(40) + " (the best by validation"));

    const ProcessResult none = sample(run, {"--checkpoint", "30"});
    CHECK(none.exit_code == 2);
    CHECK(contains(none.err, "steps 20, 40 and 60"));
    CHECK(sample(run, {"--checkpoint", "newest"}).exit_code == 2);
    CHECK(sample(at(60), {"--checkpoint", "best"}).exit_code == 2);
    fs::remove_all(at(40));
    CHECK(sample(run, {"--checkpoint", "best"}).exit_code == 3);
    CHECK(sample(run).err.starts_with(at(60) + " (the last)"));    // no hint at a removed one
}

TEST_CASE("start: weights loaded by many threads are the file's, bit for bit, of every type") {
    // Tensors of more than one piece, which several threads read.
    const Config c = {.V = 700, .T = 40, .L = 2, .NH = 2, .C = 160, .F = 640};
    const std::string run = temporary_directory();
    Model wrote(cpu_ops<float>());
    REQUIRE(wrote.allocate(c, {RunMode::infer, 1, 1}).ok());
    wrote.init(5);
    for (TensorType type : {TensorType::f32, TensorType::bf16}) {
        std::vector<TensorSource> sources = checkpoint_tensors(wrote, {weights_state(wrote)});
        for (TensorSource& s : sources) s.type = type;
        std::string file;
        REQUIRE(safetensors_write(sources, [&](const void* data, int64_t bytes) -> Status {
                    file.append(static_cast<const char*>(data), size_t(bytes));
                    return {};
                }).ok());
        write_file(run + "/model.safetensors", file);
        // The weights that the file holds by definition: those written, rounded to its type.
        std::vector<float> expected(static_cast<size_t>(wrote.store.flat));
        for (const Tensor& t : wrote.tensors) {
            wrote.read(StateKind::weights, t.offset, t.size(), expected.data() + t.offset);
            for (int64_t i = t.offset; type == TensorType::bf16 && i < t.offset + t.size(); i++)
                expected[size_t(i)] = to_float(to_bf16(expected[size_t(i)]));
        }
        auto loads = [&](Model& g, auto round) {
            REQUIRE(g.allocate(c, {RunMode::infer, 1, 1}).ok());
            CHECK(g.op.on_host());
            g.init(6);    // other weights; zeros in padding rows
            REQUIRE(checkpoint_weights(run, g).ok());
            int64_t wrong = 0;
            for (const Tensor& t : g.tensors) {
                std::vector<float> is(static_cast<size_t>(t.size()));
                g.read(StateKind::weights, t.offset, t.size(), is.data());
                for (size_t i = 0; i < is.size(); i++) wrong += is[i] != round(expected[size_t(t.offset) + i]);
            }
            CHECK(wrong == 0);
        };
        Model floats(cpu_ops<float>());
        loads(floats, [](float x) { return x; });
        Model halves(cpu_ops<bf16>());
        loads(halves, [](float x) { return to_float(to_bf16(x)); });
        Model reference(reference_ops());
        loads(reference, [](float x) { return x; });
    }
}

TEST_CASE("safetensors: every half-precision number, to the bit") {
    const std::string path = temporary_directory() + "/h.safetensors";
    std::string file(8, '\0'), header = R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]}})";
    file[0] = char(header.size());
    file += header;
    for (int h = 0; h < 65536; h++) file += {char(h & 255), char(h >> 8)};
    write_file(path, file);
    Result<SafetensorsFile> f = SafetensorsFile::open(path);
    REQUIRE_MESSAGE(f.ok(), f.status.message);
    std::vector<float> x(65536);
    REQUIRE(read_tensor(f.value, f.value.entries()[0], 0, 65536, x.data()).ok());
    int wrong = 0;
    for (int h = 0; h < 65536; h++) {
        const int exponent = h >> 10 & 31, fraction = h & 1023;
        float expected = exponent == 0 ? std::ldexp(float(fraction), -24)
                                       : std::ldexp(float(1024 + fraction), exponent - 25);
        if (exponent == 31) expected = fraction ? NAN : INFINITY;
        if (h >> 15) expected = -expected;
        const float is = x[size_t(h)];
        wrong += std::isnan(expected) ? !std::isnan(is) : is != expected || std::signbit(is) != std::signbit(expected);
    }
    CHECK(wrong == 0);
}

TEST_CASE("start: sample holds the weights once") {
    if (ASAN) SKIP("AddressSanitizer has memory of its own");
    // 302 MB of zeros in fp32, a hole in the file. MANIFEST lists an optimizer's file, which is
    // missing: it must not be read.
    const Config c = {.V = 257, .T = 1024, .L = 6, .NH = 16, .C = 1024, .F = 4096};
    const std::string run = temporary_directory(), dir = run + "/step_00000000";
    fs::create_directory(dir);
    nlohmann::ordered_json header;
    int64_t bytes = 0;
    for (const Tensor& t : config_tensors(c)) {
        const int64_t begin = bytes, rows = t.file_rows;
        const bool turned = t.layout == FileLayout::transposed;
        std::vector<int64_t> shape = turned ? std::vector{t.cols, rows} : std::vector{rows, t.cols};
        if (t.vector) shape = {t.rows};
        bytes += rows * t.cols * 4;
        header[t.pieces[0].name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, bytes}}};
    }
    std::string text = header.dump();
    text.resize(size_t(round_up(int64_t(text.size()), 8)), ' ');
    const uint64_t length = text.size();
    text.insert(0, reinterpret_cast<const char*>(&length), 8);
    const std::string weights = dir + "/model.safetensors";
    write_file(weights, text);
    fs::resize_file(weights, uintmax_t(int64_t(text.size()) + bytes));
    uint32_t crc = crc32c(0, text.data(), int64_t(text.size()));
    const std::vector<char> zeros(1 << 20);
    for (int64_t at = 0; at < bytes; at += 1 << 20)
        crc = crc32c(crc, zeros.data(), std::min<int64_t>(1 << 20, bytes - at));
    std::vector<FileChecksum> sums = {{"model.safetensors", int64_t(text.size()) + bytes, crc},
                                      {"optimizer.safetensors", 2 * bytes, 1}};
    const Tokenizer tokenizer = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"});
    for (auto& [name, content] : {std::pair<const char*, std::string>{"config.json", config_json(c, {256})},
                                  {"tokenizer.json", tokenizer.to_json()},
                                  {"state.json", state_json(TrainState{})}}) {
        write_file(dir + "/" + name, content);
        sums.push_back({name, int64_t(content.size()), crc32c(0, content.data(), int64_t(content.size()))});
    }
    write_file(dir + "/MANIFEST", manifest_text(sums));
    for (const char* dtype : {"fp32", "bf16"}) {
        for (bool manifest : {true, false}) {
            if (!manifest) fs::rename(dir + "/MANIFEST", run + "/m"), fs::rename(dir + "/state.json", run + "/s");
            Process running({flatgpt_binary(), "sample", dir, "--prompt", "a", "--tokens", "1", "--device", "cpu",
                             "--dtype", dtype});
            const double peak = peak_memory(running);
            const ProcessResult r = running.wait();
            INFO(r.err);
            CHECK(r.exit_code == 0);
            const double held = double(config_flat_size(c)) * (dtype == std::string("bf16") ? 2 : 4);
            // 17 of the 45 MB allowed are a tensor that is being transposed, 15 MB the process.
            MESSAGE(std::string(dtype) << ": " << peak / 1e6 << " MB, the weights " << held / 1e6 << " MB");
            CHECK(peak > held);
            CHECK(peak < held + 45e6);
            if (!manifest) fs::rename(run + "/m", dir + "/MANIFEST"), fs::rename(run + "/s", dir + "/state.json");
        }
    }
}
