// test_foreign.cpp - models and tokenizers of other programs: read, or refused with advice.
#include <filesystem>

#include "checkpoint/foreign.h"
#include "checkpoint/nanochat.h"
#include "base/philox.h"
#include "data/tokenizer_files/vocab_merges.h"
#include "files/json.h"
#include "gguf_parts.h"
#include "model/optimizers.h"
#include "family_goldens.h"

namespace {
const std::string TORCH = "test/golden/torch/";    // written by transformers 5.24 and PyTorch
std::string torch_file() { return read_file(TORCH + "pytorch_model.bin"); }
Result<SafetensorsFile> opened(const std::string& bytes) {
    const std::string path = temporary_directory() + "/pytorch_model.bin";
    write_file(path, bytes);
    return SafetensorsFile::open(path);
}
std::string changed(std::string bytes, const std::string& from, const std::string& to) {
    const size_t at = bytes.find(from);
    REQUIRE(at != bytes.npos);
    return bytes.replace(at, from.size(), to);
}
void refused(const std::string& bytes, const std::string& message) {
    const Status s = opened(bytes).status;
    CHECK(s.code == Exit::input);
    CHECK_MESSAGE(contains(s.message, message), s.message);
}
}    // namespace

TEST_CASE("torch archive: a pytorch_model.bin is read in place, alone or as an index names it") {
    const std::vector<float> weights = load(TORCH).weights();
    double sum = 0, squares = 0;
    for (float x : weights) sum += double(x), squares += double(x) * double(x);
    CHECK(SafetensorsFile::open(TORCH + "pytorch_model.bin").value.entries().size() == 21);
    CHECK(sum == doctest::Approx(104.4042827039957).epsilon(1e-12));
    CHECK(squares == doctest::Approx(1455.8265396151064).epsilon(1e-12));
    const std::string dir = temporary_directory();
    namespace fs = std::filesystem;
    fs::copy(TORCH + "config.json", dir + "/config.json");
    fs::copy(TORCH + "pytorch_model.bin", dir + "/pytorch_model-00001-of-00001.bin");
    write_file(dir + "/pytorch_model.bin.index.json",
               R"({"weight_map": {"lm_head.weight": "pytorch_model-00001-of-00001.bin"}})");
    CHECK(load(dir).weights() == weights);
}

TEST_CASE("torch archive: parameters, parts of a storage, and the types that are read") {
    const Result<SafetensorsFile> f = SafetensorsFile::open(TORCH + "kinds.bin");    // made by dev/golden_torch.py
    REQUIRE_MESSAGE(f.ok(), f.status.message);
    std::map<std::string, std::vector<float>> found;
    for (const TensorEntry& e : f.value.entries()) {
        const int64_t bytes = e.end - e.begin, n = bytes / SafetensorsFile::element_bytes(e.type);
        std::string raw(size_t(bytes), '\0');
        REQUIRE(f.value.read_bytes(f.value.data_begin() + e.begin, raw.data(), bytes).ok());
        found[e.name].resize(size_t(n));
        SafetensorsFile::convert(e.type, raw.data(), n, found[e.name].data());
    }
    CHECK(found == std::map<std::string, std::vector<float>>{{"whole", {0, 1, 2, 3, 4, 5, 6, 7}},
                                                             {"part", {4, 5, 6, 7}},
                                                             {"half", {0.5, -1, 2, 3}},
                                                             {"brain", {1, -2}}});
    CHECK(f.value.entries()[0].shape == std::vector<int64_t>{2, 4});
}

TEST_CASE("torch archive: what is no plain dictionary of tensors is refused by what it is") {
    const std::string file = torch_file();
    using std::string_literals::operator""s;
    refused(changed(file, "K\x08K\x10\x86q\xA1K\x10K\x01\x86"s, "K\x08K\x10\x86q\xA1K\x01K\x08\x86"s),
            "tensor \"model.layers.1.self_attn.v_proj.weight\": its numbers do not follow one another");
    refused(changed(file, "K\x08K\x10\x86q\xA1K\x10K\x01\x86"s, "K\x09K\x10\x86q\xA1K\x10K\x01\x86"s),
            "v_proj.weight\": its storage is missing or too short");
    refused(changed(file, "X\x02\0\0\00019"s, "X\x02\0\0\00099"s), "v_proj.weight\": its storage is missing");
    refused(changed(file, "_rebuild_tensor_v2", "_rebuild_tensor_v9"), "expected a dictionary of tensors, found");
    refused(changed(file, "PK\1\2\0\0\0\0\x08\x08\0\0"s, "PK\1\2\0\0\0\0\x08\x08\x08\0"s), "compressed entries");
    refused(changed(file, "}q\0("s, "\x93q\0("s), "data.pkl, byte 3: expected a dictionary of tensors");
    refused(file.substr(0, file.size() - 30), "cut short");
    refused("\x80\x02\x8A\x0Al\xFC\x9C\x46\xF9 j\xA8P\x19.\x80\x02M\xE9\x03.\x80\x02}q\0(X\x10\0\0\0"s,
            "PyTorch before 1.6");
    for (uint32_t i = 0; i < 600; i++) {    // random damage: no crash, no tensor outside
        std::string bytes = file;
        for (uint32_t k = 0; k < 3; k++) {
            const Philox4 r = philox(7, i, k);
            const size_t most = i % 2 ? 2200 : bytes.size();    // the pickle only, or the whole file
            bytes[r.v[0] % most] = char(r.v[1]);
        }
        const Result<SafetensorsFile> f = opened(i % 5 ? bytes : bytes.substr(0, philox(8, i, 0).v[0] % bytes.size()));
        CHECK((f.ok() || f.status.code == Exit::input));
        for (const TensorEntry& e : f.value.entries()) CHECK((e.begin >= 0 && e.end <= int64_t(bytes.size())));
    }
}

TEST_CASE("torch archive: a pickle of many calls, tuples and marks takes bounded time and memory") {
    const std::string file = torch_file();
    for (const std::string run : {"(", "}\x85", "h\1", "]q\2h\2a"}) {
        std::string program;
        while (program.size() < 2000) program += run;
        std::string bytes = file;
        bytes.replace(66, program.size(), program);    // after the pickle's protocol number
        CHECK(opened(bytes).status.code == Exit::input);
    }
}

TEST_CASE("foreign models: each says what it is and how it becomes one that is read") {
    const std::string dir = temporary_directory();
    namespace fs = std::filesystem;
    using std::string_literals::operator""s;
    const std::string zip = "PK\3\4" + std::string(40, '\0');
    struct {
        std::string name, bytes, message;
    } files[] = {
        {"ckpt.pt", zip, "this is nanoGPT's checkpoint; its weights are GPT-2's with the matrices transposed:\n"},
        {"pytorch_model.bin", zip, "this is a model's weights alone: give the directory"},
        {"x.pth", zip, "this is weights of PyTorch"},
        {"gpt2_124M.bin", "\xC6\xD7\x34\x01\x03\0\0\0"s, "export_hf.py --spin '' --dtype float32 --input " + dir},
        {"train.bin", "\x88\xD8\x34\x01\x01\0\0\0"s, "that is what --data takes"},
        {"old.bin", "tjgg\x03\0\0\0"s, "convert_llama_ggml_to_gguf.py --input " + dir + "/old.bin"},
        {"model.safetensors", std::string(16, '\0'), "give the directory that holds it and config.json"},
        {"tf_model.h5", "\x89HDF\r\n\x1a\n", "TensorFlow's weights"},
        {"x.tiktoken", "IQ== 0\n", "this is tiktoken's tokens"},
        {"other", "some text", "expected \"GGUF\""}};
    for (auto& f : files) {
        write_file(dir + "/" + f.name, f.bytes);
        const Status s = checkpoint_find(dir + "/" + f.name, nullptr).status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(contains(s.message, f.message), s.message);
        fs::remove(dir + "/" + f.name);
    }
    struct {
        std::string holds, message;
    } folders[] = {{"adapter_config.json", "adapter_config.json: peft_type: it is not there"},
                   {"ckpt.pt", "torch.load('" + dir + "/ckpt.pt'"},
                   {"params.json", "a model as its maker publishes it"},
                   {"model.safetensors", "weights without their config.json"},
                   {"a.gguf", "give one of them:\n  " + dir + "/a.gguf"},
                   {"nothing.txt", "expected a run (with step_NNNNNNNN) or a directory with config.json"}};
    for (auto& f : folders) {
        write_file(dir + "/" + f.holds, "{}");
        const Status s = checkpoint_find(dir, nullptr).status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(contains(s.message, f.message), s.message);
        fs::remove(dir + "/" + f.holds);
    }
    fs::copy(TORCH + "config.json", dir + "/config.json");
    CHECK(contains(checkpoint_find(dir, nullptr).status.message, "/model.safetensors: no such file"));
    write_file(dir + "/tf_model.h5", "\x89HDF\r\n\x1a\n");
    CHECK(contains(checkpoint_find(dir, nullptr).status.message, "weights of TensorFlow alone"));
    write_file(dir + "/model.safetensors", "");
    fs::remove(dir + "/config.json");
    CHECK(contains(checkpoint_find(dir, nullptr).status.message, "weights without their config.json"));
}

TEST_CASE("nanochat: its own checkpoints are read, the newest step that is there") {
    const Golden golden("nanochat");    // by transformers' class of the model (dev/golden_nanochat.py)
    CHECK((golden.c.V == 64 && golden.c.T == 32 && golden.c.NKV == 2 && golden.c.F == 64 && golden.c.logit_cap == 15));
    Model g(cpu_ops<float>());
    golden.load(g, {RunMode::infer, Golden::B, Golden::S});
    golden.check_logits(g, 1e-5);
    golden.check_greedy(g);
    namespace fs = std::filesystem;
    const std::string dir = temporary_directory(), meta = read_file(golden.dir + "/meta_000010.json");
    auto config_of = [&] { return checkpoint_config(dir); };
    auto refused = [&](const std::string& text, const std::string& message) {
        write_file(dir + "/meta_000010.json", text);
        const Status s = config_of().status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(contains(s.message, dir + "/meta_000010.json: " + message), s.message);
    };
    fs::copy(golden.dir + "/model_000010.pt", dir + "/model_000010.pt");
    fs::copy(golden.dir + "/model_000010.pt", dir + "/model_000002.pt");
    fs::copy(golden.dir + "/model_000010.pt", dir + "/model_best.pt");
    write_file(dir + "/model_000020.pt", "");    // without a meta file
    write_file(dir + "/meta_000002.json", "{}");
    refused("{", "");
    refused("[]", "model_config: expected an object");
    refused("{\"model_config\": 3}", "model_config: expected an object");
    refused(changed(meta, "\"n_layer\": 2", "\"n_layer\": 0"), "model_config: n_layer: expected an integer");
    refused(changed(meta, "\"n_kv_head\": 2", "\"n_kv_head\": 3"), "heads (4) are not a multiple of kv heads (3)");
    refused(changed(meta, "\"n_kv_head\": 2,", ""), "model_config: n_kv_head: expected an integer");
    refused(changed(meta, "\"n_head\"", "\"mtp\": 1, \"n_head\""),
            "model_config: expected nanochat's keys of 2025 or of July 2026, found \"mtp\"");
    write_file(dir + "/meta_000010.json", changed(meta, "\"n_layer\": 2", "\"n_layer\": 900"));
    CHECK(contains(config_of().status.message, "model_000010.pt: the model it describes takes at least"));
    write_file(dir + "/meta_000010.json", meta);
    CHECK(config_of().value == golden.c);
    CHECK(checkpoint_find(dir, nullptr).ok());
    // Names that torch.compile has changed.
    CHECK(bare_name("_orig_mod.transformer.h.1.attn.c_proj.weight", *golden.c.family) ==
          "layers.1.self_attn.o_proj.weight");
}

TEST_CASE("nanochat of 2026: its window patterns, and more tokens than a short window has") {
    const Golden golden("families/nanochat_2026");    // by nanochat's own model (dev/golden_nanochat.py)
    const Config& c = golden.c;
    CHECK((c.T == 512 && c.window == 129 && c.windowed(0) && c.windowed(1) && !c.windowed(2) && c.smear && c.backout));
    CHECK((c.embeds_values(0) && !c.embeds_values(1) && c.embeds_values(2)));
    for (const Tensor& t : config_tensors(c))    // Muon's matrices
        CHECK(is_block_matrix(t) == (t.bucket > 0 && !t.vector && !t.name.ends_with("value_embedw")));
    const std::vector<int> tokens = golden.tokens("long_tokens");
    const std::vector<float>& expected = golden.expected.at("long_logits");
    Model g(cpu_ops<float>());
    golden.load(g, {RunMode::infer, 1, int(tokens.size())});
    for (const int step : {160, 32, 1}) {    // tokens in a call
        KvCache cache;
        REQUIRE(allocate_cache(g, cache, 1, c.T).ok());
        PendingHead head;
        for (int from = 0; from < int(tokens.size()); from += step)
            head = extend(g, cache, &tokens[size_t(from)], step);
        std::vector<float> logits(size_t(c.V));
        compute_logits(g, head, logits.data());
        CAPTURE(step);
        CHECK(relative_error(logits.data(), expected.data(), c.V) < 1e-5);
    }
    // Layers with all positions, of each pattern; null: refused.
    const std::string dir = temporary_directory(), meta = read_file(golden.dir + "/meta_000010.json");
    std::filesystem::copy(golden.dir + "/model_000010.pt", dir + "/model_000010.pt");
    auto config_of = [&](const std::string& pattern, int layers) {
        write_file(dir + "/meta_000010.json", changed(changed(meta, "\"SSL\"", "\"" + pattern + "\""), "\"n_layer\": 3",
                                                      "\"n_layer\": " + std::to_string(layers)));
        return nanochat_config(dir + "/model_000010.pt");
    };
    for (auto [pattern, layers, global] : {std::tuple{"L", 3, "LLL"},
                                           {"S", 3, "SSL"},
                                           {"SL", 3, "SLL"},
                                           {"sssl", 6, "SSSLSL"},
                                           {"SSSL", 4, "SSSL"},
                                           {"LS", 1, "L"},
                                           {"LS", 4, nullptr},
                                           {"SSLL", 4, "SSLL"},
                                           {"SSLL", 8, nullptr},
                                           {"", 3, nullptr},
                                           {"SX", 3, nullptr}}) {
        CAPTURE(pattern);
        const Result<Config> found = config_of(pattern, layers);
        REQUIRE(found.ok() == (global != nullptr));
        if (!global) CHECK(contains(found.status.message, "model_config: window_pattern: "));
        for (int l = 0; global && l < layers; l++) CHECK(found.value.windowed(l) == (global[l] == 'S'));
    }
}

TEST_CASE("foreign tokenizers: vocab.json with merges.txt is read, others say what they are") {
    const nlohmann::json whole = nlohmann::json::parse(read_file("test/golden/bpe_small_gpt2.json"));
    const Tokenizer expected = Tokenizer::load("test/golden/bpe_small_gpt2.json").value;
    const std::string dir = temporary_directory(), torture = read_file("test/golden/bpe_torture.txt");
    std::string merges = "#version: 0.2\n";
    for (const nlohmann::json& m : whole["model"]["merges"])
        merges += m.is_string() ? m.get<std::string>() + "\n"
                                : m[0].get<std::string>() + " " + m[1].get<std::string>() + "\n";
    write_file(dir + "/vocab.json", whole["model"]["vocab"].dump());
    write_file(dir + "/merges.txt", merges);
    const Result<Tokenizer> read = Tokenizer::load(dir);
    REQUIRE_MESSAGE(read.ok(), read.status.message);
    CHECK(read.value.encode(torture) == expected.encode(torture));
    write_file(dir + "/tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast", "eos_token": "<|end|>"})");
    write_file(dir + "/added_tokens.json", R"({"<|end|>": 5000, "<|extra|>": 5001})");
    const Tokenizer qwen = Tokenizer::load(dir).value;
    CHECK(qwen.encode("a<|end|><|extra|>", true).back() == 5001);
    CHECK(qwen.is_special(5000));
    CHECK(!qwen.is_special(5001));
    CHECK(qwen.encode("12345").size() == 5);    // Qwen 2 splits digits
    std::filesystem::remove(dir + "/added_tokens.json");
    write_file(dir + "/vocab.json", R"({"a": 0})"), write_file(dir + "/merges.txt", "#version: 0.2\n");
    write_file(dir + "/tokenizer_config.json",    // ids as transformers 5.24 numbers missing tokens
               R"({"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": {"content": "</s>"},
                   "pad_token": "<p>", "additional_special_tokens": ["<x>"]})");
    const Tokenizer tiny = Tokenizer::load(dir).value;
    CHECK(tiny.encode("<s></s><|endoftext|><p><x>a", true) == std::vector<int>{1, 2, 3, 4, 5, 0});
    CHECK((tiny.vocabulary().bos == 1 && tiny.vocabulary().eos == 2 && tiny.vocabulary().pad == 4));
    write_file(dir + "/tokenizer_config.json",    // Qwen 2's form: added_tokens_decoder gives ids
               R"({"tokenizer_class": "Qwen2Tokenizer", "bos_token": null, "eos_token": "<|im_end|>",
                   "pad_token": "<p>", "added_tokens_decoder": {"1": {"content": "<p>", "special": true},
                                            "2": {"content": "<|im_end|>", "special": true}}})");
    const Result<Tokenizer> qwen2 = Tokenizer::load(dir);    // listed tokens need no special_tokens_map.json
    REQUIRE_MESSAGE(qwen2.ok(), qwen2.status.message);
    CHECK((qwen2.value.vocabulary().bos == -1 && qwen2.value.vocabulary().eos == 2 && qwen2.value.is_special(1)));
    // U+FF5C spells no byte: vocab.json's key is the token; special_tokens_map.json has its flags.
    write_file(dir + "/vocab.json", "{\"a\": 0, \"<\uFF5Cend\uFF5C>\": 1, \"b\": 2, \"\u0120\": 3}");
    write_file(dir + "/tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer", "eos_token": "b"})");
    write_file(dir + "/special_tokens_map.json", R"({"eos_token": "<\uFF5Cend\uFF5C>",
               "additional_special_tokens": [{"content": "<l>", "lstrip": true}, "<r>"]})");    // JSON's own escapes
    const Tokenizer named = Tokenizer::load(dir).value;
    CHECK(named.encode("a<\uFF5Cend\uFF5C>b <l> <r>", true) == std::vector<int>{0, 1, 2, 5, 3, 6});
    CHECK(named.vocabulary().eos == 1);
    std::filesystem::remove(dir + "/special_tokens_map.json");
    write_file(dir + "/merges.txt", "\xFF a\n");
    CHECK(Tokenizer::load(dir).status.code == Exit::input);
    write_file(dir + "/tokenizer_config.json", R"({"tokenizer_class": "CLIPTokenizer"})");
    CHECK(contains(Tokenizer::load(dir).status.message, "not of \"CLIPTokenizer\"; transformers makes a"));
    write_file(dir + "/merges.txt", "#version: 0.2\na b c\n"), std::filesystem::remove(dir + "/tokenizer_config.json");
    CHECK(contains(Tokenizer::load(dir).status.message, "merges.txt:2: expected two tokens"));
    std::filesystem::remove(dir + "/vocab.json");
    write_file(dir + "/tekken.json", "{}");
    CHECK(contains(Tokenizer::load(dir).status.message, "convert_tekken_tokenizer as c; c('" + dir + "/tekken.json')"));
    write_file(dir + "/x.tiktoken", "IQ== 0\n");
    CHECK(contains(Tokenizer::load(dir + "/x.tiktoken").status.message, "convert_tiktoken_to_fast"));
}
