// test_batch.cpp - texts do not depend on the batch, on shared beginnings of prompts or on drafts.
#include <set>

#include "files/json.h"
#include "infer/decode/generate.h"
#include "layers/cpu.h"
#include "test.h"
#include "toy_model.h"
#include "write_model.h"

namespace {
const Config PLAIN = {.V = 94, .T = 128, .L = 2, .NH = 4, .C = 32, .F = 48, .NKV = 2, .HS = 8};
Config rotating() {
    Config c = PLAIN;
    c.position = Position::rope, c.rope_dims = 8;
    return c;
}
Config gated(int softmax_every) {
    Config c = rotating();
    c.linear = LinearAttention::gated, c.softmax_every = softmax_every;
    return c;
}
Tokenizer byte_tokenizer() { return Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"}); }
Ids joined(Ids a, const Ids& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}
// Prompts of all lengths; every second one begins with the same 40 tokens.
std::vector<Ids> some_prompts(int n) {
    std::vector<Ids> all;
    for (int i = 0; i < n; i++) {
        const Ids own = toy_tokens(1 + i * 7 % 31, PLAIN.V, uint64_t(10 + i));
        all.push_back(i % 2 ? own : joined(toy_tokens(40, PLAIN.V, 1), own));
    }
    return all;
}
GenerationOptions asked(const std::vector<Ids>& prompts, int tokens, int batch) {
    GenerationOptions what;
    what.prompts = prompts, what.tokens = tokens, what.batch = batch;
    what.sampling.temperature = 1, what.sampling.top_k = 0;
    what.logprobs = 3;
    return what;
}
GenerationResult run(Model& g, const GenerationOptions& what) {
    Result<GenerationResult> r = generate(g, byte_tokenizer(), what);
    REQUIRE_MESSAGE(r.ok(), r.status.message);
    return r.take();
}
bool same_logprobs(const std::vector<std::vector<TokenLogprob>>& a, const std::vector<std::vector<TokenLogprob>>& b) {
    bool same = a.size() == b.size();
    for (size_t i = 0; same && i < a.size(); i++)
        for (size_t k = 0; k < a[i].size(); k++) same &= a[i][k].id == b[i][k].id && a[i][k].logprob == b[i][k].logprob;
    return same;
}
int64_t rows_computed(Model& g, const GenerationOptions& what) {
    int64_t rows = 0;
    g.after_attention = [&](int l) { rows += l == 1 ? int64_t(g.pass.B) * g.pass.S : 0; };
    (void)run(g, what);
    g.after_attention = {};
    return rows;
}
}    // namespace

TEST_CASE("batch: a text depends on its prompt and number alone, for any batch, order and company") {
    Config window = rotating(), experts = rotating();
    window.window = 12;
    experts.experts = 4, experts.experts_used = 2, experts.expert_ffn = 12;
    for (const Config& c : {PLAIN, rotating(), window, experts, gated(0), gated(2)}) {
        CAPTURE(int(c.position));
        CAPTURE(c.window);
        CAPTURE(c.experts);
        CAPTURE(c.softmax_every);
        Model g(cpu_packed_ops());
        toy_model(g, c, {RunMode::infer, 4, 24});
        const std::vector<Ids> prompts = some_prompts(12);
        GenerationOptions what = asked(prompts, 30, 16);
        what.num = 2;
        what.stop = {"a", "Q"};    // texts of many lengths
        const GenerationResult all = run(g, what);
        std::set<size_t> lengths;
        for (const std::string& text : all.texts) lengths.insert(text.size());
        CHECK(lengths.size() > 3);
        for (int batch : {1, 2, 5}) {
            what.batch = batch;
            const GenerationResult some = run(g, what);
            CHECK(some.texts == all.texts);
            for (size_t i = 0; i < all.texts.size(); i++) CHECK(same_logprobs(some.logprobs[i], all.logprobs[i]));
        }
        what.prompts = {prompts.rbegin(), prompts.rend()};
        const GenerationResult back = run(g, what);
        for (size_t i = 0; i < all.texts.size(); i++)
            CHECK(back.texts[i] == all.texts[all.texts.size() - 2 - i + 2 * (i % 2)]);
        for (size_t p : {0, 3, 8}) {
            what.prompts = {prompts[p]};
            const GenerationResult alone = run(g, what);
            for (size_t k : {0, 1}) CHECK(same_logprobs(alone.logprobs[k], all.logprobs[2 * p + k]));
        }
    }
}

TEST_CASE("batch: more prompts than the activations have rows, handed out in order as they end") {
    Model g(cpu_packed_ops());
    toy_model(g, rotating(), {RunMode::infer, 1, 6});
    GenerationOptions what = asked(some_prompts(60), 12, 16);
    what.stop = {"a"};
    const std::vector<std::string> texts = run(g, what).texts;
    std::vector<std::string> handed;
    int64_t ended = 0, behind = 0;
    what.each = [&](const Sample& s) {
        CHECK(s.number == int(handed.size()));
        handed.push_back(s.text);
        return true;
    };
    what.progress = [&](int64_t done, int64_t all) {
        CHECK(done == ++ended);
        CHECK(all == 60);
        behind = std::max(behind, done - int64_t(handed.size()));
    };
    CHECK(run(g, what).texts.empty());
    CHECK(handed == texts);
    CHECK(ended == 60);
    CHECK(behind > 0);     // some ended before an earlier one
    CHECK(behind < 40);    // results come out before the end
    what.progress = {};
    what.each = [&](const Sample& s) { return s.number < 3; };
    CHECK(generate(g, byte_tokenizer(), what).status.code == Exit::io);
}

TEST_CASE("batch: what prompts begin with alike is computed once") {
    Model g(cpu_packed_ops());
    toy_model(g, rotating(), {RunMode::infer, 1, 64});
    std::vector<Ids> prompts;
    for (int i = 0; i < 10; i++)
        prompts.push_back(joined(toy_tokens(90, PLAIN.V, 1), toy_tokens(5, PLAIN.V, uint64_t(10 + i))));
    for (int batch : {1, 4, 16})    // prefix of finished, running, joining sequences
        CHECK(rows_computed(g, asked(prompts, 2, batch)) == 90 + 10 * (5 + 1));
    GenerationOptions what = asked({prompts[0]}, 2, 3);
    what.num = 7;    // later samples recompute the last token, once together
    CHECK(rows_computed(g, what) == 95 + 1 + 1 + 7);
    for (size_t i = 0; i < 10; i++) prompts[i][3] = int(i);    // a common prefix shorter than a page
    CHECK(rows_computed(g, asked(prompts, 2, 4)) > 10 * 90);
    Model states(cpu_packed_ops());
    toy_model(states, gated(2), {RunMode::infer, 1, 64});
    CHECK(rows_computed(states, asked({prompts[0], prompts[0]}, 2, 1)) == 2 * (95 + 1));
}

TEST_CASE("lookup: what followed the longest run of last tokens, the latest of them") {
    CHECK(lookup_draft({1, 2, 3, 1, 2}, 1) == Ids{3});
    CHECK(lookup_draft({1, 2, 3, 1, 2}, 5) == Ids{3, 1, 2, 3, 1});       // periodic continuation
    CHECK(lookup_draft({1, 2, 3, 9, 2}, 5).empty());                     // a match of one token only
    CHECK(lookup_draft({5, 1, 2, 7, 1, 2, 8, 5, 1, 2}, 1) == Ids{7});    // a match of 3 before one of 2
    CHECK(lookup_draft({1, 2, 7, 1, 2, 8, 1, 2}, 2) == Ids{8, 1});
    CHECK(lookup_draft({4, 4, 4}, 3) == Ids{4, 4, 4});
    CHECK(lookup_draft({1}, 3).empty());
    CHECK(lookup_draft({1, 1}, 3).empty());
}

TEST_CASE("speculation: drafts change no text and no bit, whatever chooses the tokens") {
    Config learned = PLAIN, window = rotating(), small = rotating();
    window.window = 12, window.T = 600;
    small.L = 1, small.T = 80;
    Model weak(cpu_packed_ops());
    toy_model(weak, small, {RunMode::infer, 5, 16});
    for (const Config& c : {learned, rotating(), window}) {
        Model g(cpu_packed_ops());
        toy_model(g, c, {RunMode::infer, 5, 16});
        int64_t accepted = 0, rejected = 0;
        for (int k = 0; k < 7; k++) {
            CAPTURE(c.window);
            CAPTURE(int(c.position));
            CAPTURE(k);
            GenerationOptions what = asked(some_prompts(6), 60, 1 + k);
            what.sampling.seed = uint64_t(k);
            // k == 5 exceeds the context; k == 6 has a cache of 64 positions, which evicts.
            if (k == 1) what.sampling.temperature = 0;
            if (k == 2) what.sampling.temperature = 0.4, what.sampling.top_k = 5, what.stop = {"b"};
            if (k == 3) what.sampling.top_p = 0.5, what.sampling.penalties.repetition = 1.3;
            if (k == 4) what.sampling.mirostat = 2, what.num = 2;
            if (k == 5) what.tokens = 150, what.sampling.temperature = 0.3;
            if (k == 6) what.cache.positions = 64, what.tokens = 90, what.sampling.temperature = 0.3;
            const GenerationResult plain = run(g, what);
            auto same = [&](Speculation how) {
                what.speculation = how;
                const GenerationResult drafted = run(g, what);
                CHECK(drafted.texts == plain.texts);
                CHECK(drafted.tokens == plain.tokens);
                CHECK(drafted.drafted > 0);
                CHECK(drafted.accepted <= drafted.drafted);
                for (size_t i = 0; i < plain.texts.size(); i++)
                    CHECK(same_logprobs(drafted.logprobs[i], plain.logprobs[i]));
                accepted += drafted.accepted, rejected += drafted.drafted - drafted.accepted;
                return drafted;
            };
            same({.lookup = 4});
            same({.draft = &weak, .tokens = 3});
        }
        CHECK(accepted > 100);
        CHECK(rejected > 100);
    }
}

TEST_CASE("speculation: a draft model with the same weights is always right") {
    Model g(cpu_packed_ops()), twin(cpu_packed_ops());
    toy_model(g, rotating(), {RunMode::infer, 4, 24});
    toy_model(twin, rotating(), {RunMode::infer, 4, 24});
    GenerationOptions what = asked(some_prompts(6), 41, 4);
    what.speculation = {.draft = &twin, .tokens = 4};
    const GenerationResult out = run(g, what);
    CHECK(out.accepted > out.drafted * 98 / 100);    // near ties: drafts sum prompts in another order
    CHECK(out.drafted > 6 * 41 * 7 / 10);
}

TEST_CASE("speculation: what cannot be taken back is not drafted") {
    Model g(cpu_packed_ops()), states(cpu_packed_ops());
    toy_model(g, rotating(), {RunMode::infer, 1, 24});
    toy_model(states, gated(2), {RunMode::infer, 1, 24});
    GenerationOptions what = asked(some_prompts(1), 5, 1);
    what.speculation = {.lookup = 3};
    CHECK(generate(states, byte_tokenizer(), what).status.code == Exit::usage);
    what.speculation = {.draft = &states};
    const Status s = generate(g, byte_tokenizer(), what).status;
    CHECK(s.code == Exit::usage);
    CHECK(s.message.find("the draft model") != std::string::npos);
}

TEST_CASE("batch: a text ends where no token fits its grammar and none ends a text, which is said once") {
    Model g(cpu_ops<float>());
    toy_model(g, PLAIN, {RunMode::infer, 1, 24});
    const Tokenizer endless = Tokenizer::from_merges({}, Pattern::gpt2, {});
    GenerationOptions what = asked({{1, 2, 3}}, 9, 4);
    what.num = 3;
    what.sampling.grammar = Grammar::parse("root ::= \"ab\\n\"", "g").value;    // no "\n" among the model's 94 tokens
    int notes = 0;
    what.note = [&](const std::string& text) { notes += text == NO_TOKEN; };
    for (Model* draft : {static_cast<Model*>(nullptr), &g})
        for (double temperature : {0.0, 1.0}) {
            notes = 0;
            what.speculation.draft = draft, what.sampling.temperature = temperature, what.stop = {};
            const GenerationResult out = generate(g, endless, what).value;
            CHECK(out.texts == std::vector<std::string>{"ab", "ab", "ab"});
            CHECK(out.tokens == 6);
            for (auto& each : out.logprobs) CHECK(each.size() == 2);
            CHECK(notes == 1);
            what.stop = {"b"};
            CHECK(generate(g, endless, what).value.texts == std::vector<std::string>{"a", "a", "a"});
            CHECK(notes == 1);
        }
}

TEST_CASE("sample: prompts of a file in its order, drafts, and drafts of another tokenizer") {
    Config c = rotating();
    c.V = 257;
    Model g(cpu_ops<float>());
    toy_model(g, c, {RunMode::infer, 1, 24});
    const Tokenizer bytes = byte_tokenizer(), more = Tokenizer::from_merges({{1, 2}}, Pattern::gpt2, {});
    const std::string dir = write_model(g, bytes), other = write_model(g, more);
    const std::string file = temporary_directory() + "/p.txt";
    std::string lines;
    for (int i = 0; i < 9; i++) lines += "prompt " + std::to_string(i) + "\n";
    write_file(file, lines);
    auto sample = [&](std::vector<std::string> args) {
        args.insert(args.begin(), {"sample", dir, "--prompts", file, "--tokens", "20", "--temperature", "0.7"});
        return run_flatgpt(args);
    };
    for (auto& [option, needs] : {std::pair{"--draft-tokens", "--draft-tokens needs --draft"},
                                  std::pair{"--penalty-last", "--penalty-last needs --repetition-penalty"}}) {
        const ProcessResult r = sample({option, "3"});
        CHECK(r.exit_code == 2);
        CHECK_MESSAGE(r.err.find(needs) != std::string::npos, r.err);
    }
    CHECK(sample({"--penalty-last", "3", "--presence-penalty", "1"}).exit_code == 0);
    const ProcessResult plain = sample({"--json", "--num", "2"});
    INFO(plain.err);
    REQUIRE(plain.exit_code == 0);
    const ProcessResult two = sample({"--json", "--num", "2", "--batch", "2"});
    CHECK(two.out == plain.out);
    std::istringstream in(plain.out);
    int n = 0;
    for (std::string line; std::getline(in, line); n++) {
        REQUIRE(json_parse(line, "line", 8).ok());
        CHECK(line.starts_with(
            formatted("{\"number\":%d,\"sample\":%d,\"prompt\":\"prompt %d\"", n / 2 + 1, n % 2, n / 2)));
    }
    CHECK(n == 18);
    const ProcessResult text = sample({}), looked = sample({"--lookup", "3"}), drafted = sample({"--draft", dir});
    CHECK(looked.out == text.out);
    CHECK(drafted.out == text.out);
    CHECK(looked.err.find(" accepted (") != std::string::npos);
    CHECK(drafted.err.find("; drafted ") != std::string::npos);
    CHECK(sample({"--draft", dir, "--json"}).out.find("\"drafted\":") != std::string::npos);
    CHECK(sample({"--draft", dir, "--lookup", "3"}).exit_code == 2);
    const ProcessResult wrong = sample({"--draft", other});
    CHECK(wrong.exit_code == 3);
    CHECK(wrong.err.find("tokenizer") != std::string::npos);
}
