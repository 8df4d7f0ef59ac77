// test_family_train.cpp - `flatgpt train` of families: presets, directories, resume, vocabulary.
#include "tensors.h"
#include "toy_run.h"

namespace {
// All numbers of a tensor in a checkpoint's model.safetensors.
std::vector<float> tensor_of(const std::string& dir, const std::string& name) {
    Result<SafetensorsFile> file = SafetensorsFile::open(dir + "/model.safetensors");
    REQUIRE_MESSAGE(file.ok(), file.status.message);
    const TensorEntry* e = find_tensor(file.value, name);
    REQUIRE_MESSAGE(e, name);
    std::vector<float> x(size_t((e->end - e->begin) / SafetensorsFile::element_bytes(e->type)));
    REQUIRE(read_tensor(file.value, *e, 0, int64_t(x.size()), x.data()).ok());
    return x;
}
}    // namespace

TEST_CASE("family train: families learn, resume with the same bits and generate, under their class's name") {
    Toy toy;
    for (const std::string type :
         {"llama", "gemma3_text", "olmo3", "gpt_neox", "bloom", "cohere2", "mixtral", "qwen2_moe"}) {    // every kind
        const std::string a = toy.dir + "/" + type, b = a + "-resumed";
        CAPTURE(type);
        std::vector<std::string> args = {"train",
                                         "--data",
                                         toy.dir + "/train.bin",
                                         "--val",
                                         toy.dir + "/val.bin",
                                         "--tokenizer",
                                         toy.dir + "/tok.json",
                                         "--batch",
                                         "4",
                                         "--seq-len",
                                         "16",
                                         "--lr",
                                         "3e-3",
                                         "--dtype",
                                         "fp32",
                                         "--eval-tokens",
                                         "256",
                                         "--save-every",
                                         "4",
                                         "--keep",
                                         "0",
                                         "--steps",
                                         "8",
                                         "--model",
                                         type + ":d1",
                                         "--out",
                                         a};
        must(args);
        Toy::set(args, "--out", b);
        Toy::set(args, "--resume", a + "/step_00000004");
        must(args, 0, "resumed from");
        for (const char* file : {"/model.safetensors", "/optimizer.safetensors"})
            CHECK(same_file(toy.newest(type) + file, toy.newest(type + "-resumed") + file));
        const std::string metrics = toy.metrics(type);
        CHECK(number(metrics.substr(metrics.rfind("\"step\":8")), "\"loss\":") < number(metrics, "\"loss\":") - 0.01);
        CHECK(contains(read_file(toy.newest(type) + "/config.json"), "\"model_type\": \"" + type + "\""));
        must({"sample", a, "--prompt", "abc", "--tokens", "5", "--temperature", "0"});
    }
}

TEST_CASE("family train: --model DIRECTORY makes new weights in its shape; --init says so") {
    Toy toy;
    const std::string qwen = "test/golden/families/qwen3";
    std::vector<std::string> a = {"train",   "--data",  toy.dir + "/train.bin",
                                  "--vocab", "64",      "--steps",
                                  "1",       "--batch", "2",
                                  "--dtype", "fp32",    "--model",
                                  qwen,      "--out",   toy.dir + "/a"};
    must(a, 0, "new weights in the shape of " + qwen);
    Toy::set(a, "--out", toy.dir + "/b");
    a.push_back("--init");
    CHECK(!contains(must(a).err, "says that this is meant"));
    CHECK(tensor_of(toy.newest("b"), "model.embed_tokens.weight") != tensor_of(qwen, "model.embed_tokens.weight"));
    CHECK(checkpoint_config(toy.newest("b")).value == checkpoint_config(qwen).value);
    a.insert(a.end(), {"--from", qwen});
    must(a, 2, "--init and --from exclude each other");
}

TEST_CASE("family train: --resize-vocab adds rows, the mean of the others, or cuts them") {
    Toy toy;
    const std::string tied = "test/golden/families/llama3_tied", untied = "test/golden/families/phi";
    std::vector<std::string> a = {"train",
                                  "--data",
                                  toy.dir + "/train.bin",
                                  "--tokenizer",
                                  toy.dir + "/tok.json",
                                  "--steps",
                                  "1",
                                  "--batch",
                                  "2",
                                  "--dtype",
                                  "fp32",
                                  "--lr",
                                  "0",
                                  "--weight-decay",
                                  "0",
                                  "--from",
                                  tied,
                                  "--out",
                                  toy.dir + "/a"};
    must(a, 2, "--resize-vocab adds rows");
    a.push_back("--resize-vocab");
    must(a, 0, "the vocabulary of 64 is resized to 257");
    const size_t C = 16, V = 64;
    auto check = [&](const std::string& run, const std::string& from, const std::string& name, size_t cols) {
        const std::vector<float> was = tensor_of(from, name), is = tensor_of(toy.newest(run), name);
        REQUIRE(is.size() == 257 * cols);
        CHECK(std::equal(was.begin(), was.end(), is.begin()));
        for (size_t c = 0; c < cols; c++) {
            double mean = 0;
            for (size_t v = 0; v < V; v++) mean += double(was[v * cols + c]) / double(V);
            for (size_t v : {V, size_t(256)}) CHECK(double(is[v * cols + c]) == doctest::Approx(mean).epsilon(1e-6));
        }
    };
    check("a", tied, "model.embed_tokens.weight", C);
    must({"train", "--config", toy.dir + "/a/run.toml", "--resume", "auto", "--steps", "2"}, 0, "resumed from");
    Toy::set(a, "--from", untied), Toy::set(a, "--out", toy.dir + "/b");
    must(a);
    check("b", untied, "model.embed_tokens.weight", C);
    check("b", untied, "lm_head.weight", C);
    check("b", untied, "lm_head.bias", 1);
    std::vector<std::string> cut = {"train",
                                    "--data",
                                    toy.dir + "/train.bin",
                                    "--steps",
                                    "1",
                                    "--batch",
                                    "2",
                                    "--dtype",
                                    "fp32",
                                    "--lr",
                                    "0",
                                    "--weight-decay",
                                    "0",
                                    "--from",
                                    tied,
                                    "--out",
                                    toy.dir + "/c",
                                    "--resize-vocab",
                                    "--vocab",
                                    "64"};
    must(cut);
    CHECK(tensor_of(toy.newest("c"), "model.embed_tokens.weight") == tensor_of(tied, "model.embed_tokens.weight"));
    Toy::set(cut, "--from", toy.dir + "/b"), Toy::set(cut, "--out", toy.dir + "/d");
    must(cut, 2);    // run b's tokenizer has 257 tokens
    must({"train", "--data", toy.dir + "/train.bin", "--out", toy.dir + "/e", "--resize-vocab", "--steps", "1"}, 2,
         "--resize-vocab needs --from");
}
