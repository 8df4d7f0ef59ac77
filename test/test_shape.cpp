// test_shape.cpp - runs with grouped heads, --head-size and a window, from training to text.
#include "toy_run.h"

namespace {
const std::vector<std::pair<std::string, std::string>> SHAPES = {
    {"--kv-heads", "1"}, {"--head-size", "24"}, {"--window", "5"}};
}    // namespace

TEST_CASE("shape: each option trains, resumes with the same bits, is sampled, evaluated and named") {
    Toy toy;
    std::vector<std::string> all = {"--steps", "8", "--save-every", "4", "--keep", "0"};
    for (auto& [flag, value] : SHAPES) all.insert(all.end(), {flag, value});
    auto check = [&](const std::string& name, const std::vector<std::string>& flags, const std::string& listed) {
        CAPTURE(name);
        const std::string a = toy.dir + "/" + name, b = a + "-resumed";
        must(toy.args(name, flags), 0, "transformers");    // a note: transformers cannot load it
        // The resumed run does not repeat the options of the shape.
        must({"train",
              "--data",
              toy.dir + "/train.bin",
              "--val",
              toy.dir + "/val.bin",
              "--out",
              b,
              "--batch",
              "4",
              "--seq-len",
              "32",
              "--lr",
              "3e-3",
              "--seed",
              "5",
              "--dtype",
              "fp32",
              "--eval-tokens",
              "256",
              "--steps",
              "8",
              "--resume",
              a + "/step_00000004"});
        for (const char* file : {"/model.safetensors", "/optimizer.safetensors"})
            CHECK(same_file(toy.newest(name) + file, toy.newest(name + "-resumed") + file));
        must({"info", a}, 0, listed);
        must({"eval", a, "--data", toy.dir + "/val.bin"});
        const ProcessResult text = must({"sample", a, "--prompt", "abc", "--tokens", "20", "--temperature", "0"});
        CHECK(text.out.size() >= 20);
        std::vector<std::string> dry = toy.args(name + "-dry", flags);
        dry.push_back("--dry-run");
        must(dry, 0, listed);
    };
    for (auto& [flag, value] : SHAPES)
        check(flag.substr(2), {"--steps", "8", "--save-every", "4", "--keep", "0", flag, value},
              flag == "--kv-heads"          ? "1 kv head"
              : flag.substr(2, 4) == "head" ? "head size 24"
                                            : "window 5");
    check("all", all, "1 kv head, head size 24, window 5");
    must({"train", "--from", toy.dir + "/all", "--data", toy.dir + "/train.bin", "--out", toy.dir + "/tuned", "--batch",
          "4", "--steps", "2"});
    must({"info", toy.dir + "/tuned"}, 0, "1 kv head, head size 24, window 5");
}

TEST_CASE("shape: what cannot be is exit 2, and a checkpoint's shape is not changed") {
    Toy toy;
    for (auto& [flag, value, says] :
         {std::tuple{"--kv-heads", "3", "heads (2) are not a multiple of kv heads (3)"},
          std::tuple{"--head-size", "100000", "65536"}, std::tuple{"--window", "-3", "0 to 1048576"}})
        must(toy.args("a", {"--steps", "1", flag, value}), 2, says);
    must(toy.args("a", {"--steps", "2"}));
    CHECK(contains(read_file(toy.newest("a") + "/config.json"), "\"model_type\": \"gpt2\""));
    for (auto& [flag, value] : SHAPES)
        must(toy.args("a", {"--steps", "4", "--resume", "auto", flag, value}), 2, "the command line asks for");
    must(toy.args("a", {"--steps", "4", "--resume", "auto", "--kv-heads", "2"}));    // no change
    must(toy.args("a", {"--steps", "4", "--resume", "auto", "--model", "gpt2-xl", "--layers", "0"}), 2, "48 layers");
    // On resume 0 means the checkpoint's own value, whatever run.toml says.
    must(toy.args("b", {"--steps", "2", "--model", "d2", "--window", "5"}));
    std::vector<std::string> resumed = {"train", "--config", toy.dir + "/b/run.toml", "--resume", "auto"};
    for (const char* flag : {"--window", "--heads", "--layers"}) Toy::set(resumed, flag, "0");
    must(resumed, 0, "resumed from");
    must({"info", toy.dir + "/b"}, 0, "window 5");
    Toy::set(resumed, "--seq-len", "16");
    must(resumed, 2, "--seq-len");
}

TEST_CASE("shape: a config.json alone is a model to take; a window that limits nothing is none") {
    Toy toy;
    fs::create_directory(toy.dir + "/alone");
    write_file(toy.dir + "/alone/config.json", config_json({257, 32, 3, 2, 16}, {256}));
    std::vector<std::string> a = {"train",
                                  "--data",
                                  toy.dir + "/train.bin",
                                  "--tokenizer",
                                  toy.dir + "/tok.json",
                                  "--model",
                                  toy.dir + "/alone",
                                  "--steps",
                                  "1",
                                  "--batch",
                                  "4",
                                  "--out",
                                  toy.dir + "/a",
                                  "--dtype",
                                  "fp32",
                                  "--window",
                                  "32"};
    must(a, 0, "window 32 is no limit in a context of 32");
    must({"info", toy.dir + "/a"}, 0, "3 layers, 2 heads");
    CHECK(contains(read_file(toy.newest("a") + "/config.json"), "\"model_type\": \"gpt2\""));
    must({"train", "--config", toy.dir + "/a/run.toml", "--resume", "auto", "--steps", "2"}, 0, "resumed from");
    Toy::set(a, "--window", "31");
    Toy::set(a, "--out", toy.dir + "/b");
    must(a, 0, "transformers");
    must({"info", toy.dir + "/b"}, 0, "window 31");
    Toy::set(a, "--out", toy.dir + "/c");
    a.push_back("--dry-run");
    must(a, 0, " MFLOP per step, ");
    // Here the layers without a window are those without RoPE: no window would mean no RoPE.
    Toy::set(a, "--model", "cohere2:d4");
    Toy::set(a, "--seq-len", "32");
    Toy::set(a, "--window", "512");
    CHECK_FALSE(contains(must(a, 0, "ffn 704, window 512").err, "is no limit"));
}
