// test_generate.cpp - generation by toy models whose text is known in advance.
#include "infer/decode/generate.h"
#include "base/philox.h"

#include <set>

#include "test.h"
#include "toy_model.h"
#include "write_model.h"

namespace {
const Sampling PLAIN = {.temperature = 1, .top_k = 0};

Tokenizer byte_tokenizer() { return Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"}); }

// A model with activations for 8 rows, which is fed its prompts in chunks of 8 tokens.
struct Small {
    Model g{cpu_ops<float>()};
    Small(int V, int T) {
        REQUIRE(g.allocate({V, T, 2, 2, 32, 64, 1e-5f}, {RunMode::infer, 1, 8}).ok());
        g.init(1);
    }
};
// A model whose next token depends on all tokens before. Its 94 tokens are '!' to '~' in a byte
// tokenizer, so that a text shows its tokens.
struct Talker : Small {
    explicit Talker(int T) : Small(94, T) {
        float* params = typed<float>(g, g.store.params);
        for (const Tensor& t : g.tensors)
            for (int64_t i = 0; i < t.file_rows * t.cols; i++)
                params[t.offset + i] += 0.3f * philox_normal(3, uint64_t(t.offset), uint64_t(i));
    }
};
// A model whose likeliest token after position p is script[p + 1]: tokens' embeddings are random
// directions, and position p's embedding is ten times that of script[p + 1].
struct Actor : Small {
    explicit Actor(const std::vector<int>& script, int T = 64, int V = 258) : Small(V, T) {
        float *wte = typed<float>(g, g.w.wte), *wpe = typed<float>(g, g.w.wpe);
        for (int64_t i = 0; i < V * 32; i++) wte[i] = philox_normal(5, 0, uint64_t(i)) / std::sqrt(32.f);
        for (size_t p = 0; p < size_t(T); p++)
            for (int i = 0; i < 32; i++)
                wpe[int(p) * 32 + i] = p + 1 < script.size() ? 10 * wte[script[p + 1] * 32 + i] : 0;
    }
};

GenerationOptions asked(const std::vector<int>& prompt, int tokens, int num = 1) {
    GenerationOptions what;
    what.prompts = {prompt}, what.tokens = tokens, what.num = num;
    what.sampling = {.temperature = 0};
    return what;
}
// Generates, and checks that what was streamed is what was returned.
GenerationResult run(Model& g, const Tokenizer& tokenizer, GenerationOptions what) {
    std::vector<std::string> streamed(what.prompts.size() * size_t(what.num));
    what.text = [&](int sequence, std::string_view text) {
        streamed.at(size_t(sequence)) += text;
        return true;
    };
    Result<GenerationResult> r = generate(g, tokenizer, what);
    REQUIRE_MESSAGE(r.ok(), r.status.message);
    CHECK(r.value.texts == streamed);
    return r.value;
}
}    // namespace

TEST_CASE("generate: stop strings are cut off, and what may become one is not streamed") {
    const Tokenizer bytes = byte_tokenizer();
    const int h = bytes.encode("h")[0], e = bytes.encode("e")[0];
    // "he" is one token.
    const Tokenizer tokenizer = Tokenizer::from_merges({{h, e}}, Pattern::gpt2, {"<|endoftext|>"});
    const std::string text = "ab abc hello";
    const std::vector<int> script = tokenizer.encode("." + text);
    REQUIRE(script.size() == text.size());    // one more: prompt; one less: "he"
    Actor actor(script);
    auto said = [&](const std::vector<std::string>& stop, int tokens = 11) {
        GenerationOptions what = asked({script[0]}, tokens);
        what.stop = stop;
        return run(actor.g, tokenizer, what).texts[0];
    };
    CHECK(said({}) == text);
    CHECK(said({""}) == text);
    CHECK(said({"nothing"}) == text);
    CHECK(said({"hello"}) == "ab abc ");
    CHECK(said({"abc"}) == "ab ");    // "ab" held back twice, given out once
    CHECK(said({"ab"}) == "");
    CHECK(said({"b abx", "c h"}) == "ab ab");
    CHECK(said({"e", "he"}) == "ab abc ");    // the first match in the text wins
    CHECK(said({"el"}) == "ab abc h");        // a stop that begins within a token
    CHECK(said({"llo"}) == "ab abc he");
    CHECK(said({"hello, world"}) == text);    // held back, as it could become the stop
    CHECK(said({"abc"}, 5) == "ab ab");       // "ab" held back until the last token
    GenerationOptions what = asked({script[0]}, 11);
    what.stop = {"abc"};
    std::vector<std::string> pieces;
    what.text = [&](int, std::string_view piece) {
        pieces.push_back(std::string(piece));
        return true;
    };
    Result<GenerationResult> r = generate(actor.g, tokenizer, what);
    REQUIRE(r.ok());
    CHECK(pieces == std::vector<std::string>{"ab "});
    CHECK(r.value.tokens == 6);    // none after the stop string
}

TEST_CASE("generate: ends at <|endoftext|>, or goes on past it") {
    const Tokenizer tokenizer = byte_tokenizer();
    const std::vector<int> script = tokenizer.encode(".ab<|endoftext|>cd", true);
    REQUIRE(script.size() == 6);
    Actor actor(script);
    GenerationOptions what = asked({script[0]}, 5, 2);
    GenerationResult ended = run(actor.g, tokenizer, what);
    CHECK(ended.texts == std::vector<std::string>{"ab", "ab"});
    CHECK(ended.tokens == 2 * 3);
    what.end_of_text = false;
    CHECK(run(actor.g, tokenizer, what).texts[1] == "ab<|endoftext|>cd");
}

TEST_CASE("generate: characters split across tokens are streamed whole") {
    const Tokenizer tokenizer = byte_tokenizer();
    const std::string text = "a\u00e9\u20ac\U0001F600b";
    const std::vector<int> script = tokenizer.encode("." + text);
    Actor actor(script);
    GenerationOptions what = asked({script[0]}, int(script.size()) - 1);
    CHECK(run(actor.g, tokenizer, what).texts[0] == text);
    std::vector<std::string> pieces;
    what.text = [&](int, std::string_view piece) {
        pieces.push_back(std::string(piece));
        return true;
    };
    REQUIRE(generate(actor.g, tokenizer, what).ok());
    CHECK(pieces == std::vector<std::string>{"a", "\u00e9", "\u20ac", "\U0001F600", "b"});
}

TEST_CASE("generate: a character that the end cuts is U+FFFD, in what the command prints, too") {
    const Tokenizer tokenizer = byte_tokenizer();
    std::vector<int> script = tokenizer.encode(".a\u20ac");
    script.back() = tokenizer.end_of_text();    // after two of the three bytes
    Actor actor(script);
    GenerationOptions what = asked({script[0]}, 3, 2);
    CHECK(run(actor.g, tokenizer, what).texts[1] == "a\uFFFD");    // the limit of 3 tokens
    what.tokens = 9;
    CHECK(run(actor.g, tokenizer, what).texts[1] == "a\uFFFD");    // the text's end token
    what.stop = {"a"};
    CHECK(run(actor.g, tokenizer, what).texts[1] == "");

    const std::string dir = write_model(actor.g, tokenizer);
    for (const char* tokens : {"3", "9"}) {
        const ProcessResult r = run_flatgpt({"sample", dir, "--prompt", ".", "--tokens", tokens, "--temperature", "0"});
        INFO(r.err);
        CHECK(r.out == ".a\uFFFD\n");
    }
}

TEST_CASE("generate: a batch of samples is what each would be alone") {
    const Tokenizer tokenizer = byte_tokenizer();
    Talker talker(64);
    GenerationOptions what = asked(tokenizer.encode("fed-in-several-pieces"), 30);
    what.sampling = PLAIN;
    auto texts = [&](int num, double temperature) {
        what.num = num;
        what.sampling.temperature = temperature;
        return run(talker.g, tokenizer, what).texts;
    };
    const auto one = texts(1, 1), three = texts(3, 1);
    CHECK(one[0].size() == 30);
    CHECK(one == texts(1, 1));
    CHECK(three[0] == one[0]);
    CHECK(three[0] != three[1]);
    CHECK(three[0] != three[2]);
    CHECK(three[1] != three[2]);
    const auto greedy = texts(1, 0), pair = texts(2, 0);
    CHECK(std::set<char>(greedy[0].begin(), greedy[0].end()).size() > 3);    // some variety
    CHECK(pair[0] == greedy[0]);
    CHECK(pair[1] == greedy[0]);
    what.sampling.seed = 2;
    CHECK(texts(1, 1) != one);
    what.prompts[0].back()++;
    CHECK(texts(1, 0) != greedy);    // the prompt matters
}

TEST_CASE("generate: a prompt beyond a rolling cache is read alike among others") {
    const Tokenizer tokenizer = byte_tokenizer();
    Config c = {94, 256, 2, 2, 32, 64, 1e-5f};
    c.position = Position::rope, c.rope_dims = 16;
    for (int rows : {120, 16}) {    // rows for two prompts' chunks; for less
        Model g(cpu_ops<float>());
        toy_model(g, c, {RunMode::infer, 1, rows});
        GenerationOptions what = asked({}, 40);
        what.sampling = PLAIN;
        what.cache = {"auto", 128, 4};
        what.prompts.clear();
        for (int n : {200, 150, 30, 230}) what.prompts.push_back(toy_tokens(n, c.V, uint64_t(n)));
        const std::vector<std::string> together = run(g, tokenizer, what).texts;
        const std::vector<std::vector<int>> prompts = what.prompts;
        for (size_t i = 0; i < prompts.size(); i++) {
            what.prompts = {prompts[i]};
            CHECK(run(g, tokenizer, what).texts[0] == together[i]);
            CHECK(std::set<char>(together[i].begin(), together[i].end()).size() > 3);
        }
    }
}

TEST_CASE("generate: past the context it goes on from the last half, and says so once") {
    const Tokenizer tokenizer = byte_tokenizer();
    std::vector<std::string> notes;
    auto note = [&](const std::string& text) { notes.push_back(text); };
    // Context 8: position 7 predicts 8; then 5678 move to positions 0-3, and position 3 predicts 4.
    const std::vector<int> script = tokenizer.encode("012345678");
    Actor actor(script, 8);
    GenerationOptions what = asked({script[0]}, 20, 2);
    what.note = note;
    CHECK(run(actor.g, tokenizer, what).texts == std::vector<std::string>(2, "12345678456784567845"));
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].find("context of 8 tokens is full") != std::string::npos);

    Talker talker(16);    // a full context of 16 keeps 8 tokens
    what.prompts = {tokenizer.encode("abc")}, what.tokens = 14 + 8, what.num = 1;
    const std::string whole = run(talker.g, tokenizer, what).texts[0];
    what.prompts = {tokenizer.encode(whole.substr(14 - 8, 8))}, what.tokens = 8;
    CHECK(run(talker.g, tokenizer, what).texts[0] == whole.substr(14));

    notes.clear();    // a prompt longer than the context
    what.prompts = {tokenizer.encode("0123456789abcdefghij")}, what.tokens = 1;
    const std::string cut = run(talker.g, tokenizer, what).texts[0];
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].find("only its last 16") != std::string::npos);
    what.prompts = {tokenizer.encode("456789abcdefghij")};
    CHECK(run(talker.g, tokenizer, what).texts[0] == cut);
    CHECK(notes.size() == 1);

    Talker large(64);    // samples share prompt pages until the context refills
    GenerationOptions several = asked(tokenizer.encode("a prompt of some forty bytes: 2 pages and more"), 200, 3);
    const std::string first = run(large.g, tokenizer, several).texts[0];
    several.num = 1;
    CHECK(run(large.g, tokenizer, several).texts[0] == first);
}

TEST_CASE("generate: a reader that has gone stops everything") {
    const Tokenizer tokenizer = byte_tokenizer();
    Talker talker(16);
    GenerationOptions what = asked({1}, 10, 2);
    int calls = 0;
    what.text = [&](int, std::string_view) { return ++calls < 4; };
    CHECK(generate(talker.g, tokenizer, what).status.code == Exit::io);
    CHECK(calls == 4);
}
