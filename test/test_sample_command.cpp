// test_sample_command.cpp - sampling options of the commands: combinations, results, refusals.
#include "files/json.h"
#include "speaker.h"

using nlohmann::json;
using Strings = std::vector<std::string>;

namespace {
Strings with(Strings args, const Strings& more) {
    args.insert(args.end(), more.begin(), more.end());
    return args;
}
std::string talker() {
    Talker model(64);
    return write_model(model.g, chat_tokenizer());
}
std::string out_of(const Strings& args, const ProcessOptions& options = {}) {
    const ProcessResult r = run_flatgpt(args, options);
    REQUIRE_MESSAGE(r.exit_code == 0, r.err);
    return r.out;
}
}    // namespace

TEST_CASE("sample: options that do not go together are refused by their names") {
    const std::string dir = talker(), grammar = dir + "/g", bad = dir + "/bad", schema = dir + "/s.json";
    write_file(grammar, "root ::= \"a\"");
    write_file(bad, "root ::= \"a\"\nroot ::= (");
    write_file(schema, R"({"type": "number", "multipleOf": 3})");
    auto refused = [&](const char* command, int code, const Strings& args, const Strings& named) {
        const ProcessResult r = run_flatgpt(with({command, dir}, args));
        CAPTURE(r.err);
        CHECK(r.exit_code == code);
        for (const std::string& name : named) CHECK(r.err.find(name) != std::string::npos);
    };
    for (const char* command : {"sample", "chat"}) {
        refused(command, 2, {"--mirostat", "5", "--top-p", "0.9"}, {"--mirostat and --top-p exclude each other"});
        refused(command, 2, {"--mirostat", "5", "--temperature", "0"},
                {"--mirostat and --temperature 0 exclude each other"});
        refused(command, 2, {"--mirostat-rate", "0.2"}, {"--mirostat-rate needs --mirostat"});
        refused(command, 2, {"--dry-length", "3"}, {"--dry-length needs --dry"});
        refused(command, 2, {"--grammar", grammar, "--json-schema", schema},
                {"--grammar and --json-schema exclude each other"});
        refused(command, 3, {"--grammar", bad}, {bad + ":2"});
        refused(command, 3, {"--json-schema", schema}, {schema, "multipleOf"});
        refused(command, 3, {"--grammar", dir + "/none"}, {dir + "/none"});
        const Strings look = command[0] == 'c' ? Strings{"--template", "chatml"} : Strings{};
        refused(command, 2, with({"--logit-bias", "ab=3"}, look), {"--logit-bias", "ab=3"});
    }
    refused("sample", 2, {"--logprobs", "3"}, {"--logprobs needs --json"});
    refused("sample", 2, {"--grammar", grammar, "--ignore-end"},
            {"--ignore-end and --grammar exclude each other: a text ends"});
    refused("sample", 2, {"--length-penalty", "2"}, {"--length-penalty needs --beams"});
    refused("sample", 2, {"--beams", "2", "--num", "3"}, {"--beams", "--num"});
    for (const char* other : {"--temperature", "--top-k", "--dry", "--logit-bias", "--stop", "--logprobs", "--seed"})
        refused("sample", 2, {"--beams", "2", other, "2", "--json"},
                {std::string("--beams and ") + other + " exclude each other: beams are"});
    const ProcessResult greedy = run_flatgpt({"sample", dir, "--temperature", "0", "--min-p", "0.2", "--tokens", "1"});
    CHECK(contains(greedy.err, "always takes the likeliest token and ignores --min-p\n"));
    write_file(dir + "/generation_config.json", "{\"do_sample\": false}");
    refused("sample", 2, {"--mirostat", "5"}, {"--mirostat: the model's generation_config.json asks"});
}

TEST_CASE("sample: a schema's JSON, logprobs, the best beams") {
    const std::string dir = talker(), schema = dir + "/s.json";
    write_file(
        schema,
        R"({"properties": {"a": {"enum": [1, 22]}, "b": {"type": "string", "maxLength": 4}}, "required": ["a"]})");
    for (const Strings& how : {Strings{"--temperature", "0"}, Strings{"--temperature", "3", "--top-k", "0"}}) {
        const json said =
            json::parse(out_of(with({"sample", dir, "--prompt", "x", "--no-echo", "--json-schema", schema}, how)));
        CHECK((said["a"] == 1 || said["a"] == 22));
    }
    const json all = json::parse(
        out_of({"sample", dir, "--prompt", "x", "--tokens", "5", "--json", "--logprobs", "2", "--temperature", "0"}));
    REQUIRE(all["logprobs"]["content"].size() == 5);
    std::string text;
    for (const json& t : all["logprobs"]["content"]) {
        text += t["token"];
        CHECK(t["top_logprobs"].size() == 2);
        CHECK(t["top_logprobs"][0]["id"] == t["id"]);
        CHECK(t["top_logprobs"][0]["logprob"] == t["logprob"]);
        CHECK(t["top_logprobs"][1]["logprob"] < t["logprob"]);
        CHECK(t["logprob"] < 0);
        CHECK(t["bytes"][0] == int(t["token"].get<std::string>()[0]));
    }
    CHECK(text == all["text"]);
    // One beam is greedy search; its score is the mean of the log-probabilities above.
    const Strings beam = {"sample", dir, "--prompt", "x", "--tokens", "5", "--ignore-end", "--beams"};
    const json one = json::parse(out_of(with(beam, {"1", "--json"})));
    CHECK(one["text"] == all["text"]);
    double sum = 0;
    for (const json& t : all["logprobs"]["content"]) sum += t["logprob"].get<double>();
    CHECK(one["score"].get<double>() == doctest::Approx(sum / 5).epsilon(1e-5));
    const std::string lines = out_of(with(beam, {"4", "--num", "2", "--json"}));
    const json first = json::parse(lines.substr(0, lines.find('\n'))),
               second = json::parse(lines.substr(lines.find('\n')));
    CHECK(first["score"] > second["score"]);
    CHECK(first["score"] >= one["score"]);
    CHECK(out_of(with(beam, {"4"})) == "x" + first["text"].get<std::string>() + "\n");
}

TEST_CASE("sample: a text that --tokens cut off is marked") {
    const std::string dir = talker(), grammar = dir + "/g";
    const Strings three = {"sample", dir, "--prompt", "x", "--tokens", "3"}, json_of = {"--grammar", grammar, "--json"};
    auto reason = [&](const Strings& more) {
        const std::string text = out_of(with(three, more));
        return json::parse(text.substr(0, text.find('\n')))["finish_reason"].get<std::string>();
    };
    CHECK(reason({"--json"}) == "length");
    CHECK(reason({"--json", "--ignore-end"}) == "length");
    CHECK(reason({"--beams", "2", "--json"}) == "length");
    write_file(grammar, "root ::= [a-z]+ \"!\"");
    CHECK(reason(with(json_of, {"--logit-bias", "!=-100"})) == "length");
    ProcessResult r = run_flatgpt(with(three, {"--grammar", grammar, "--logit-bias", "!=-100"}));
    CHECK(contains(r.err, "note: 1 text of 1 is cut off after 3 tokens, before the grammar's end"));
    r = run_flatgpt(with(three, with(json_of, {"--num", "2", "--logit-bias", "!=-100"})));
    CHECK(contains(r.err, "note: 2 texts of 2 are cut off"));
    // Not cut off: the third token completes the grammar, or a stop string ends the text.
    write_file(grammar, "root ::= [a-z] [a-z] \"!\"");
    CHECK(reason(json_of) == "stop");
    CHECK_FALSE(contains(run_flatgpt(with(three, {"--grammar", grammar})).err, "cut off"));
    CHECK(reason({"--json", "--grammar", grammar, "--stop", "!"}) == "stop");
}

TEST_CASE("sample, chat: text that cannot be written ends them with the reason") {
    if (!std::filesystem::exists("/dev/full")) return;
    const std::string dir = polite_model();
    for (const Strings& args : {Strings{"sample", dir, "--prompt", "x", "--tokens", "3"},
                                {"sample", dir, "--prompt", "x", "--tokens", "3", "--num", "2"},
                                {"sample", dir, "--prompt", "x", "--tokens", "3", "--beams", "2"},
                                {"chat", dir}}) {
        Strings line = {"sh", "-c", "exec \"$@\" >/dev/full", "sh", flatgpt_binary()};
        const ProcessResult r = run_process(with(line, args), {.stdin_text = "u\n"});
        CHECK(r.exit_code == 4);
        CHECK_MESSAGE(contains(r.err, "the text cannot be written: No space left on device"), r.err);
    }
}

TEST_CASE("eval: texts without a token to predict have no loss, and a file of them is refused") {
    const std::string dir = talker(), file = dir + "/t.jsonl";
    write_file(file, "{\"text\": \"\"}\n");
    const ProcessResult none = run_flatgpt({"eval", dir, "--text", file, "--json"});
    CHECK(none.exit_code == 3);
    CHECK(none.out == "{\"line\":1,\"loss\":null,\"tokens\":0}\n");
    CHECK(contains(none.err, "t.jsonl: no token to measure"));
    write_file(file, "{\"text\": \"\"}\n{\"text\": \"ab\"}\n");
    const std::string lines = out_of({"eval", dir, "--text", file, "--json"});
    CHECK(lines.starts_with("{\"line\":1,\"loss\":null,\"tokens\":0}\n{\"line\":2,\"loss\":"));
    CHECK(json::parse(lines.substr(lines.rfind('{')))["tokens"] == 2);
}

TEST_CASE("chat: an answer keeps to its grammar, and the next one begins anew") {
    const std::string dir = polite_model();
    write_file(dir + "/g", "root ::= \"he\" [a-z]{2} \"p\"");
    const Strings args = {"chat", dir, "--temperature", "0", "--grammar", dir + "/g"};
    CHECK(out_of(args, {.stdin_text = "u\nu\n"}).substr(0, 6) == "hellp\n");
    const std::string both = out_of(args, {.stdin_text = "u\nu\n"});
    CHECK(both.size() == 12);
    CHECK(both.substr(6, 2) == "he");
    // The grammar allows an end after "hello", where the model wants to end.
    write_file(dir + "/g", "root ::= \"hello\" [a-z]*");
    CHECK(out_of(args, {.stdin_text = "u\n"}) == "hello\n");
}

TEST_CASE("sample: --prompts reads lines, JSON lines or what --format and --field name") {
    const std::string dir = talker(), file = dir + "/p.txt";
    write_file(file, "{\"text\": \"ab\", \"q\": \"cd\"}\n");
    auto prompt = [&](const Strings& more) {    // output: prompt and one token
        return out_of(with({"sample", dir, "--prompts", file, "--tokens", "1"}, more));
    };
    CHECK(prompt({}).starts_with("ab"));
    CHECK(prompt({"--field", "q"}).starts_with("cd"));
    CHECK(prompt({"--format", "text"}).starts_with("{\"text\""));
    const struct {
        Strings args;
        int code;
        const char* part;
    } wrong[] = {{{"--prompts", file, "--field", "none"}, 3, "--field names one"},
                 {{"--prompts", file, "--format", "text", "--field", "q"}, 2, "a text has no fields"},
                 {{"--prompt", "a", "--format", "text"}, 2, "--format needs --prompts"}};
    for (const auto& w : wrong) {
        const ProcessResult r = run_flatgpt(with({"sample", dir}, w.args));
        CHECK(r.exit_code == w.code);
        CHECK_MESSAGE(contains(r.err, w.part), r.err);
    }
}

TEST_CASE("a model whose weights are not finite is refused by every command, with the tensor's name") {
    Talker model(64);
    const std::string t = temporary_directory() + "/t.txt", out = temporary_directory() + "/a.gguf";
    write_file(t, "a line\n");
    for (const float x : {float(NAN), INFINITY, -INFINITY}) {
        const Tensor& last = model.g.tensors.back();
        model.g.write(StateKind::weights, last.offset + last.cols - 1, 1, &x);
        const std::string dir = write_model(model.g, chat_tokenizer());
        for (const Strings& args : {Strings{"sample", dir, "--prompt", "a"},
                                    {"eval", dir, "--text", t},
                                    {"sample", dir, "--prompt", "a", "--quantize", "q8_0"},
                                    {"convert", dir, out}}) {
            const ProcessResult r = run_flatgpt(args);
            CAPTURE(args[0]);
            CHECK(r.exit_code == 3);
            CHECK(r.out == "");
            CHECK_MESSAGE(contains(r.err, "/model.safetensors: tensor \"" + last.pieces.back().name +
                                              "\": expected finite numbers"),
                          r.err);
        }
    }
}

TEST_CASE("a model whose numbers overflow ends sample, chat and eval with code 6") {
    Talker model(64);
    const Tensor& first = model.g.tensors[0];
    const std::vector<float> huge(size_t(first.size()), 3e38f);
    model.g.write(StateKind::weights, first.offset, first.size(), huge.data());
    const std::string dir = write_model(model.g, chat_tokenizer()), t = dir + "/t.txt";
    write_file(t, "a line\n");
    for (const Strings& args : {Strings{"sample", dir, "--prompt", "a"},
                                {"sample", dir, "--prompt", "a", "--beams", "2"},
                                {"chat", dir, "--template", "chatml"},
                                {"eval", dir, "--text", t},
                                {"eval", dir, "--needle"}}) {
        const ProcessResult r = run_flatgpt(args, {.stdin_text = "ab\n"});
        CAPTURE(args[0]);
        CHECK(r.exit_code == 6);
        CHECK_MESSAGE(contains(r.err, "its training has diverged"), r.err);
    }
}
