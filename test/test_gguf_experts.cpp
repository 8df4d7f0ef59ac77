// test_gguf_experts.cpp - GGUF files with experts: keys and shapes that may differ, and errors.
#include "gguf_parts.h"

TEST_CASE("gguf model: experts: what files may leave out, and what is no model") {
    auto good = [](const char* family) {
        const std::string path = temporary_directory() + "/a.gguf";
        REQUIRE(save(*load(FAMILIES + family).g, "f32", path).ok());
        return std::pair(path, parts_of(path));
    };
    auto read = [](const std::string& path, const Parts& p) {
        write_file(path, p.written());
        return checkpoint_config(path);
    };
    auto [path, qwen] = good("qwen2_moe");
    const Config c = checkpoint_config(path).value;
    const std::vector<float> weights = load(path).weights();
    // The shared expert's gate may be stored as a vector.
    qwen.tensor("blk.0.ffn_gate_inp_shexp.weight").shape = {16};
    CHECK(read(path, qwen).value == c);
    CHECK(load(path).weights() == weights);
    // Without keys of widths: expert_ffn is ffn / experts used, shared_ffn is the whole ffn.
    Parts p = qwen;
    std::erase_if(p.keys, [](auto& row) { return row.first.find("feed_forward_length") != row.first.npos; });
    p["qwen2moe.feed_forward_length"] = GgufValue::integer(24);
    const Result<Config> shared = read(path, p);
    CHECK(contains(shared.status.message, "\"blk.0.ffn_gate_shexp.weight\": expected shape (24, 16), found (20, 16)"));
    p["qwen2moe.expert_shared_feed_forward_length"] = GgufValue::integer(20);
    CHECK(read(path, p).value == c);
    auto [file, mixtral] = good("mixtral");
    auto integer = [](const char* key, int64_t v) { return [=](Parts& p) { p[key] = GgufValue::integer(v); }; };
    struct Case {
        std::function<void(Parts&)> change;
        const char* message;
    };
    const Case cases[] = {
        {integer("llama.expert_count", 3), "blk.0.ffn_gate_inp.weight\": expected shape (3, 16), found (4, 16)"},
        {integer("llama.expert_count", 0), "tensor \"blk.0.ffn_"},
        {integer("llama.expert_count", -1), "llama.expert_count: expected an integer from 0"},
        {integer("llama.expert_used_count", 5), "expected --experts-used of 1 to 4"},
        {[](Parts& p) { std::erase_if(p.keys, [](auto& r) { return r.first == "llama.expert_used_count"; }); },
         "llama.expert_used_count"},
        {[](Parts& p) {
             std::swap(p.tensor("blk.1.ffn_up_exps.weight").shape[0], p.tensor("blk.1.ffn_up_exps.weight").shape[1]);
         },
         "expected shape (4, 24, 16), found (24, 4, 16)"},
        {[](Parts& p) { p.tensor("blk.0.ffn_down_exps.weight").name = "blk.0.ffn_down.0.weight"; },
         "\"blk.0.ffn_down.0.weight\": each expert has tensors of its own"},
    };
    for (const Case& one : cases) {
        CAPTURE(one.message);
        Parts changed = mixtral;
        one.change(changed);
        const Status s = read(file, changed).status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(contains(s.message, one.message), s.message);
    }
}
