// test_ahead.cpp - tokens drawn on the device (the table's `sample`, here the reference's): texts
// equal the host Sampler's, and the next step starts before the host has read the last token.
#include "ahead_checks.h"

#include "heard.h"

namespace {
// Steps whose tokens the host has not read yet (now, at most), and all steps.
int in_flight, most_in_flight, steps;
Ops<double> watched() {
    Ops<double> op = reference_ops();
    op.sample = [](int* ids, int* token_counts, SampleState* at, int* cache_pos, int* pos, const double* logits,
                   const double* bias, SampleParams draw, Logits z, int N, int V, int Vp) {
        reference_ops().sample(ids, token_counts, at, cache_pos, pos, logits, bias, draw, z, N, V, Vp);
        most_in_flight = std::max(most_in_flight, ++in_flight), steps++;
    };
    op.wait = [](int64_t) { in_flight--; };
    in_flight = most_in_flight = steps = 0;
    return op;
}
// Untied, because a tied head would repeat the last token for ever.
Config toy(int V, int T) { return {.V = V, .T = T, .L = 1, .NH = 2, .C = 16, .F = 32, .tied = false}; }
GenerationOptions asked(const Config& c, int prompts, int tokens) {
    GenerationOptions what;
    for (int i = 0; i < prompts; i++) what.prompts.push_back(toy_tokens(3 + 2 * i, std::min(c.V, 94), uint64_t(i)));
    what.tokens = tokens, what.batch = 3;
    what.sampling = {.temperature = 1.5, .top_k = 0};
    return what;
}
}    // namespace

TEST_CASE("ahead: the reference draws what the sampler draws") {
    for (int V : {1, 2, 9, 100, 1030})
        for (bool ties : {false, true}) expect_draws_of_sampler(reference_ops(), V < 1000 ? 160 : 16, V, ties);
}

TEST_CASE("ahead: settings that need the host") {
    auto device = [](Sampling s) { return bool(Sampler::open(s, {}, 10).value.on_device()); };
    CHECK(device({}));
    CHECK(device({.penalties = {.last = 5}}));    // no penalty, so no counts
    CHECK(!device({.penalties = {.presence = 1, .last = 5}}));
    CHECK(!device({.penalties = {.dry = 1}}));
    CHECK(!device({.typical_p = 0.9}));
    CHECK(!device({.top_n_sigma = 1}));
    CHECK(!device({.mirostat = 3}));
    CHECK(!Sampler::open({}, {}, SampleParams::MAX_VOCAB + 1).value.on_device());
}

TEST_CASE("ahead: texts are the host's, with every setting") {
    const Config c = toy(94, 32);
    for (const Sampling& s : device_samplings()) {
        GenerationOptions what = asked(c, 3, 20);
        what.num = 2, what.sampling = s;
        expect_same_texts(watched(), c, what);
        CHECK(steps > 0);
        CHECK(most_in_flight == 2);
    }
}

TEST_CASE("ahead: ends, stop strings and single tokens, in batches of any size") {
    const Config c = toy(260, 48);    // V above the tokenizer's 257 tokens
    GenerationOptions what = asked(c, 5, 30);
    what.sampling.penalties.bias = {"256=6"}, what.num = 2;
    for (int batch : {1, 2, 5})
        for (int tokens : {1, 2, 30}) {
            what.batch = batch, what.tokens = tokens;
            what.stop = {};
            const int64_t all = expect_same_texts(watched(), c, what);
            what.stop = {"a", "e", "7", "#!"};
            const int64_t some = expect_same_texts(watched(), c, what);
            if (tokens == 30) CHECK((all < 10 * tokens && some < all));
        }
    what.end_of_text = false;
    expect_same_texts(watched(), c, what);
    CHECK(steps > 0);
}

TEST_CASE("ahead: contexts that fill up") {
    Config c = toy(94, 16);
    GenerationOptions what = asked(c, 3, 60);
    what.sampling.penalties.repetition = 1.2;
    expect_same_texts(watched(), c, what);    // recomputed when the context is full
    CHECK(steps > 30);
    c.T = 256, c.position = Position::rope, c.rope_dims = 8;
    for (int sinks : {0, 4}) {
        what.cache = {"auto", 80, sinks}, what.tokens = 150;
        expect_same_texts(watched(), c, what);    // eviction from a full cache
        CHECK(steps > 140);
    }
}

TEST_CASE("ahead: every kind of model") {
    for (const auto& [name, c] : kind_configs({.V = 94, .T = 24, .L = 2, .NH = 2, .C = 16, .F = 24, .NKV = 2})) {
        CAPTURE(std::string(name));
        GenerationOptions what = asked(c, 3, 12);
        what.batch = 2, what.stop = {"a", "%", "Z"};
        expect_same_texts(watched(), c, what);
        CHECK(steps > 0);
    }
}

TEST_CASE("ahead: what needs the logits, or drafts, is the host's") {
    const Config c = toy(94, 32);
    GenerationOptions what = asked(c, 2, 10);
    what.logprobs = 2;
    expect_same_texts(watched(), c, what);
    CHECK(steps == 0);
    what.logprobs = 0, what.speculation.lookup = 3;
    expect_same_texts(watched(), c, what);
    CHECK(steps == 0);
    what.speculation.lookup = 0;
    setenv("FLATGPT_SAMPLER", "host", 1);
    expect_same_texts(watched(), c, what);
    unsetenv("FLATGPT_SAMPLER");
    CHECK(steps == 0);
    expect_same_texts(watched(), c, what);
    CHECK(steps > 0);
}

// Allocations of exactly this many bytes fail, in device or in pinned memory.
static int64_t refused = -1;
TEST_CASE("ahead: without memory for it the host chooses, and says so") {
    const Config c = toy(94, 32);
    GenerationOptions what = asked(c, 3, 20);
    what.sampling.penalties.repetition = 1.3;
    const int64_t counts = what.batch * (int64_t(sizeof(SampleState)) + int64_t(sizeof(int)) * c.V);
    for (int64_t bytes : {counts, int64_t(sizeof(int)) * 2 * what.batch}) {
        Ops<double> op = watched();
        auto allocate = [](int64_t n) { return n == refused ? nullptr : reference_ops().allocate(n); };
        (bytes == counts ? op.allocate : op.allocate_host) = allocate;
        GenerationResult texts[2];
        std::vector<std::string> notes;
        what.note = [&](const std::string& text) { notes.push_back(text); };
        for (int i : {0, 1}) {
            refused = i ? bytes : -1, steps = 0;
            Model g(op);
            toy_model(g, c, {RunMode::infer, 2, c.T});
            Result<GenerationResult> r =
                generate(g, Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"}), what);
            REQUIRE_MESSAGE(r.ok(), r.status.message);
            texts[i] = std::move(r.value);
            CHECK((steps > 0) == !i);
            CHECK(notes.size() == size_t(i));
        }
        CHECK(notes.at(0).starts_with(DeviceSampler::NO_MEMORY));
        CHECK(texts[0].texts == texts[1].texts);
    }
    refused = -1;
}
TEST_CASE("ahead: a conversation without memory for it is the host's, and says so once") {
    Ops<double> none = watched(), op = none;
    op.allocate_host = [](int64_t n) { return n == refused ? nullptr : reference_ops().allocate_host(n); };
    none.sample = nullptr;
    Model device(op), host(none);
    for (Model* g : {&device, &host})
        toy_model(*g, {.V = CHAT_TOKENS, .T = 160, .L = 1, .NH = 2, .C = 16, .F = 24}, {RunMode::infer, 1, 8});
    ChatOptions o = Heard::plain();
    o.tokens = 20;
    Heard ahead(device, o), plain(host, o);
    refused = int64_t(sizeof(int)) * 2;
    for (const char* line : {"hello", "and what else?"}) CHECK(ahead.ask(line) == plain.ask(line));
    refused = -1;
    CHECK(steps == 0);
    CHECK(std::count(ahead.notes.begin(), ahead.notes.end(), DeviceSampler::NO_MEMORY) == 1);
}

TEST_CASE("ahead: a reader that has gone stops everything") {
    const Config c = toy(94, 32);
    GenerationOptions what = asked(c, 2, 20);
    Model g(watched());
    toy_model(g, c, {RunMode::infer, 2, c.T});
    int calls = 0;
    what.text = [&](int, std::string_view) { return ++calls < 7; };
    const Tokenizer tokenizer = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"});
    CHECK(generate(g, tokenizer, what).status.code == Exit::io);
    CHECK(calls == 7);
}

TEST_CASE("ahead: conversations are the host's, and so is what is kept of them") {
    Ops<double> none = reference_ops();
    none.sample = nullptr;
    for (LinearAttention linear : {LinearAttention::none, LinearAttention::elu}) {
        Config c = {.V = CHAT_TOKENS,
                    .T = 160,
                    .L = 1,
                    .NH = 2,
                    .C = 16,
                    .F = 24,
                    .NKV = 2,
                    .HS = 8,
                    .position = Position::rope,
                    .rope_dims = 8};
        c.linear = linear;
        Model device(watched()), host(none);
        for (Model* g : {&device, &host}) toy_model(*g, c, {RunMode::infer, 1, 8});
        for (int k = 0; k < 4; k++) {
            CAPTURE(k);
            ChatOptions o = Heard::plain();
            o.sampling = {.temperature = k ? 0.9 : 0, .top_k = 30};
            o.tokens = 20;
            if (k == 1) o.sampling.penalties.repetition = 1.3;
            if (k == 2) o.ends = {0, 10, 20, 30, 40}, o.tokens = 0;
            if (k == 3) o.stop = {"a", "b", "e", "T"};
            Heard ahead(device, o), plain(host, o);
            for (const char* line : {"hello", "and what else?", "/params seed 9", "interrupted", "so", "closed",
                                     "once more", "/reset", "hello"}) {
                CAPTURE(std::string(line));
                ahead.notes.clear(), plain.notes.clear();
                for (Heard* h : {&ahead, &plain}) {
                    h->patience = std::string(line) == "interrupted" ? 5 : -1;
                    int left = 3;
                    if (std::string(line) == "closed")
                        h->chat.options.text = [=](std::string_view) mutable { return --left > 0; };
                    (void)h->chat.line(line);
                    h->chat.options.text = [=](std::string_view t) { return h->text += t, true; };
                }
                CHECK(ahead.text == plain.text);
                CHECK(ahead.notes == plain.notes);
                CHECK(ahead.chat.history() == plain.chat.history());
                if (linear == LinearAttention::none)
                    CHECK(ahead.chat.cached_positions() == plain.chat.cached_positions());
            }
        }
        CHECK(steps > 100);
    }
    CHECK(most_in_flight == 2);
}
