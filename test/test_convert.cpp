// test_convert.cpp - `flatgpt convert`: overwriting, endings, the weights it reads, memory.
#include <fcntl.h>
#include <filesystem>
#include <sched.h>
#include <unistd.h>

#include "sanitizers.h"

#include "test.h"

#include "gguf_parts.h"

namespace fs = std::filesystem;

namespace {
ProcessResult convert(std::vector<std::string> args, int exit_code, const std::string& heard) {
    args.insert(args.begin(), "convert");
    const ProcessResult r = run_flatgpt(args);
    INFO(r.err);
    CHECK(r.exit_code == exit_code);
    CHECK_MESSAGE(r.err.find(heard) != std::string::npos, heard);
    return r;
}
}    // namespace

TEST_CASE("convert: nothing is overwritten without --overwrite, and what is read never is") {
    const std::string dir = temporary_directory(), in = dir + "/in.gguf", out = dir + "/out.gguf", hf = dir + "/hf";
    fs::copy(std::string("test/golden/gguf/tiny_llama.gguf"), in);
    const std::string model = read_file(in);
    write_file(out, "mine");
    convert({in, out}, 2, out + ": expected a new name, it is already there; give another name, or --overwrite");
    CHECK(read_file(out) == "mine");
    convert({in, out, "--overwrite"}, 0, "wrote");
    CHECK(read_file(out).starts_with("GGUF"));
    convert({in, hf + "/"}, 0, "wrote " + hf);
    const std::string weights = read_file(hf + "/model.safetensors");
    convert({in, hf}, 2, hf + ": expected a new directory, it is already there; give another name, or --overwrite");
    convert({in, hf, "--overwrite"}, 0, "wrote");
    CHECK(read_file(hf + "/model.safetensors") == weights);
    write_file(hf + "/notes.txt", "mine");
    convert({in, hf, "--overwrite"}, 2, hf + "/notes.txt is no file that is written here, and would be lost");
    CHECK(read_file(hf + "/notes.txt") == "mine");
    fs::remove(hf + "/notes.txt");

    // Output equal to input: by name, another spelling, links; a directory, or a file in it.
    fs::create_directory(dir + "/sub");
    fs::create_symlink(in, dir + "/soft.gguf");
    fs::create_hard_link(in, dir + "/hard.gguf");
    fs::create_directory_symlink(hf, dir + "/soft");
    fs::create_symlink(hf + "/model.safetensors", dir + "/weights.gguf");
    for (const char* name : {"/in.gguf", "/./in.gguf", "/sub/../in.gguf", "/soft.gguf", "/hard.gguf"})
        convert({in, dir + name, "--overwrite"}, 2, "is what is read (" + in + "), and is never overwritten");
    for (const char* name : {"/hf", "/hf/", "/sub/../hf", "/soft", "/weights.gguf"})
        convert({hf, dir + name, "--overwrite"}, 2, "is what is read (" + hf + "), and is never overwritten");
    CHECK(read_file(in) == model);
    CHECK(read_file(hf + "/model.safetensors") == weights);
    convert({in, dir + "/soft", "--overwrite"}, 2, "expected a new directory or one to overwrite, found a link");
    convert({in, out + "/", "--overwrite"}, 0, "wrote");    // an existing file: the slash is ignored
    convert({in, dir + "/none/a.gguf"}, 4, "/none/a.gguf cannot be written");
    convert({in, dir + "/none/a"}, 4, "/none/a cannot be written");
    convert({in, dir + "/sub.gguf/x/", "--type", "q8_0"}, 2, "ending .gguf");
    convert({in, "-"}, 2, "OUT -: expected a file's name, it is not written to standard output");
}

TEST_CASE("convert: the ending of a format that is not written is refused, with what to give instead") {
    const std::string dir = temporary_directory(), in = "test/golden/gguf/tiny_llama.gguf";
    for (const char* ending : {".safetensors", ".bin", ".pt", ".PTH", ".json", ".ggml"})
        convert({in, dir + "/a" + ending}, 2,
                ": expected a name that ends with .gguf, or a new directory, in which model.safetensors and its "
                "config.json are written; give " +
                    dir + "/a\n");
    convert({in, dir + "/a.GGUF", "--type", "q8_0"}, 2, ": expected the ending .gguf; give " + dir + "/a.gguf");
    CHECK(fs::is_empty(dir));
    convert({in, dir + "/llama-3.2"}, 0, "wrote");    // a name with a dot
    fs::create_directory(dir + "/q.tmp");
    write_file(dir + "/q.tmp/notes", "mine");
    convert({in, dir + "/q"}, 0, "wrote");
    CHECK(read_file(dir + "/q.tmp/notes") == "mine");
}

TEST_CASE("convert: what is read in place is what a model loads, for every family and from any number on") {
    const std::string dir = temporary_directory();
    int files = 0, models = 0;
    cpu_set_threads(1);    // too small for more threads
    auto compare = [](const std::string& path) {
        INFO(path);
        const Loaded model = load(path);
        const ModelSource source(path);
        const Result<WeightsReader> reader = weights_reader(source, model.g->c);
        REQUIRE_MESSAGE(reader.ok(), reader.status.message);
        REQUIRE(reader.value.tensors.size() == model.g->tensors.size());
        for (const Tensor& t : model.g->tensors) {
            INFO(t.name);
            std::vector<float> loaded(static_cast<size_t>(t.size()));
            model.g->read(StateKind::weights, t.offset, t.size(), loaded.data());
            for (int64_t piece : {t.size(), t.cols + 3}) {
                std::vector<float> read(loaded.size(), NAN);
                for (int64_t first = 0; first < t.size(); first += piece)
                    REQUIRE(reader.value.read(t, first, std::min(piece, t.size() - first), read.data() + first).ok());
                CHECK(memcmp(read.data(), loaded.data(), read.size() * 4) == 0);
            }
        }
    };
    for (auto& family : fs::directory_iterator(FAMILIES)) {
        if (!fs::exists(family.path() / "config.json")) continue;
        compare(family.path());
        models++;
        const Loaded model = load(family.path());
        const std::string file = dir + "/" + family.path().filename().string() + ".gguf";
        if (!save(*model.g, "f16", file).ok()) continue;    // a model that GGUF cannot express
        compare(file);
        files++;
    }
    cpu_set_threads(0);
    CHECK(models > 20);
    CHECK(files > 10);
}

TEST_CASE("convert: memory for some rows, not for the model") {
    if (__asan_init || __tsan_init) SKIP("a sanitizer needs memory without limit");
    const std::string dir = temporary_directory(), model = dir + "/model";
    fs::create_directory(model);
    const std::string json = R"({"model_type": "llama", "vocab_size": 2048, "hidden_size": 512, "num_hidden_layers": 3,
        "num_attention_heads": 8, "intermediate_size": 1536, "max_position_embeddings": 64, "rms_norm_eps": 1e-5})";
    write_file(model + "/config.json", json);
    const Config c = config_parse(json, "config.json").value;
    const WeightsReader zeros = {c, config_tensors(c), [](const Tensor&, int64_t, int64_t n, float* to) {
                                     std::fill_n(to, n, 0.0f);
                                     return Status{};
                                 }};
    std::string head;    // the weights stay a hole in the file
    int64_t bytes = 0;
    REQUIRE(safetensors_write(checkpoint_tensors(zeros), [&](const void* data, int64_t n) {
                if (bytes < 4096) head.append(static_cast<const char*>(data), size_t(n));
                bytes += n;
                return Status{};
            }).ok());
    write_file(model + "/model.safetensors", head);
    fs::resize_file(model + "/model.safetensors", uintmax_t(bytes));
    CHECK(bytes > int64_t(45) << 20);
    // ulimit -d limits data, not code, which GPU kernels enlarge. One core, as threads need data.
    cpu_set_t all, one;
    REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    for (const char* out : {"/a.gguf", "/b.gguf", "/c"}) {
        std::vector<std::string> args = {"sh",
                                         "-c",
                                         "ulimit -d 25000; exec \"$@\"",
                                         "sh",
                                         flatgpt_binary(),
                                         "convert",
                                         out[1] == 'b' ? dir + "/a.gguf" : model,
                                         dir + out};
        if (out[1] != 'c') args.insert(args.end(), {"--type", "q8_0"});
        const ProcessResult r = run_process(args);
        CHECK_MESSAGE(r.exit_code == 0, r.err);
    }
    sched_setaffinity(0, sizeof all, &all);
}
