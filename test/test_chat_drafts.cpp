// test_chat_drafts.cpp - conversations with drafts: the same answers, token for token, as without.
#include "heard.h"
#include "base/philox.h"
#include "layers/cpu.h"
#include "model/cost_table.h"

namespace {
// A model with packed weights, as chat has, mostly of ASCII. noise: added to weights.
struct Speaker {
    Model g;
    explicit Speaker(int T, float noise = 0, int S = 8, const Table& op = cpu_packed_ops()) : g(op) {
        const Config c = {.V = CHAT_TOKENS,
                          .T = T,
                          .L = 2,
                          .NH = 4,
                          .C = 32,
                          .F = 48,
                          .NKV = 2,
                          .HS = 8,
                          .position = Position::rope,
                          .rope_dims = 8};
        toy_model(g, c, {RunMode::infer, 1, S});
        for (size_t i = 0; i < g.tensors.size(); i++) {
            const Tensor& t = g.tensors[i];
            std::vector<float> x(size_t(t.size()));
            g.read(StateKind::weights, t.offset, t.size(), x.data());
            for (size_t k = 0; k < x.size(); k++) x[k] += noise * philox_normal(7, i, k);
            for (size_t k = 94 * 32; i == 0 && k < x.size(); k++) x[k] *= 0.3f;    // tokens 0 to 93 are '!' to '~'
            g.write(StateKind::weights, t.offset, t.size(), x.data());
        }
    }
};
ChatOptions sampled(double temperature) {
    ChatOptions o = Heard::plain();
    o.sampling = {.temperature = temperature, .top_k = 8};
    o.tokens = 40;
    return o;
}
}    // namespace

TEST_CASE("chat drafts: each answer, what is kept of it and all notes are those without drafts") {
    Speaker speaker(288), twin(288), weak(288, 0.05f), brief(96);
    const std::string file = temporary_directory() + "/a.json";
    int64_t accepted = 0, rejected = 0, cut = 0;
    for (int k = 0; k < 8; k++) {
        CAPTURE(k);
        ChatOptions o = sampled(k ? 0.6 : 0);
        if (k == 2) o.sampling.penalties.repetition = 1.2, o.seed = 5;
        if (k == 3) o.sampling.mirostat = 2, o.sampling.top_k = Sampling{}.top_k, o.tokens = 0;
        if (k == 4) o.sampling.grammar = Grammar::parse("root ::= [!-~] [!-~]* \"~\"", "g").value;
        if (k == 5) o.stop = {"a", "QR"};
        if (k == 6) o.ends = {0, 10, 20};
        if (k == 7) o.sampling.penalties.dry = 0.8, o.sampling.temperature = 1;
        const Speculation ways[] = {{.lookup = 4},
                                    {.lookup = 100},
                                    {.draft = &twin.g, .tokens = 3},
                                    {.draft = &weak.g},
                                    {.draft = &brief.g, .tokens = 2}};
        for (const Speculation& way : {ways[k % 5], ways[(k + 2) % 5]}) {
            CAPTURE(way.lookup);
            CAPTURE(way.tokens);
            Heard plain(speaker.g, o);
            o.speculation = way;
            Heard drafted(speaker.g, o);
            o.speculation = {};
            for (const char* line :
                 {"hello, hello", "/system be kind", "and what else? hello, hello", "ok", "/params seed 9",
                  "a longer question, which is fed in several pieces", "once more", "/reset", "hello", "/save", "/load",
                  "and now?", "then?", "hello, hello", "and so on, and so on"}) {
                std::string text = line;
                if (text == "/save" || text == "/load") text += " " + file;
                CAPTURE(text);
                plain.notes.clear(), drafted.notes.clear();
                CHECK(drafted.ask(text) == plain.ask(text));
                CHECK(drafted.chat.cached_positions() == plain.chat.cached_positions());
                CHECK(drafted.notes == plain.notes);
                cut += plain.noted("left out");
            }
            CHECK(drafted.chat.history() == plain.chat.history());
            CHECK(drafted.chat.drafted >= drafted.chat.accepted);
            accepted += drafted.chat.accepted, rejected += drafted.chat.drafted - drafted.chat.accepted;
            if (way.draft == &twin.g && k != 4 && k != 5) CHECK(drafted.chat.accepted > drafted.chat.drafted * 9 / 10);
        }
    }
    CHECK(accepted > 400);
    CHECK(rejected > 400);
    CHECK(cut > 0);
}

TEST_CASE("chat drafts: an answer that is interrupted, and one whose output closes, leave the cache as it was") {
    Speaker speaker(288), twin(288);
    ChatOptions o = sampled(0.6);
    o.speculation = {.draft = &twin.g, .tokens = 3};
    Heard drafted(speaker.g, o);
    drafted.patience = 3;
    const std::string part = drafted.ask("hello");
    CHECK(part.size() < 12);
    drafted.patience = -1;
    o.speculation = {};
    Heard plain(speaker.g, o);
    plain.patience = 1 + int(part.size());    // interrupted(): once before the prompt, once per byte
    CHECK(plain.ask("hello") == part);
    plain.patience = -1;
    CHECK(drafted.ask("again") == plain.ask("again"));
    drafted.chat.options.text = [](std::string_view) { return false; };
    CHECK(drafted.chat.line("more").status.code == Exit::io);
    drafted.chat.options.text = [&](std::string_view t) { return drafted.text += t, true; };
    CHECK(drafted.ask("after that") == plain.ask("after that"));
}

// The CPU sums a prompt in another order than decode steps; a chunk of one token is still a prompt.
TEST_CASE("chat drafts: all of a prompt is computed as a prompt, an answer step by step, however long the calls") {
    struct Seen final : Observer {
        std::vector<std::pair<int, bool>> calls;    // S, decode
        using Observer::Observer;
        void call(const Cost& work, const std::function<void()>& run) override {
            if (work.call.operation == Operation::attention_cached) calls.push_back({work.call.S, work.call.decode});
            run();
        }
    };
    for (int lookup : {0, 4}) {
        Seen seen{Table(cpu_packed_ops())};
        Speaker speaker(288, 0, 8, seen.table);
        ChatOptions o = sampled(0);
        o.speculation.lookup = lookup;
        Heard heard(speaker.g, o);
        std::vector<int> lengths;    // S of prompt chunks
        for (const char* line : {"", "x", "xy", "xyz", "four", "fives", "sixsix", "sevens7"}) {
            seen.calls.clear();
            heard.ask("u" + std::string(line));
            bool answer = false;
            for (auto [S, steps] : seen.calls) {
                answer |= steps;
                CHECK(steps == answer);    // no prompt chunk follows a decode step
                if (!steps) lengths.push_back(S);
                else CHECK(S <= 1 + lookup);
            }
        }
        CHECK(std::count(lengths.begin(), lengths.end(), 1) > 0);
        CHECK(std::count(lengths.begin(), lengths.end(), 8) > 0);
    }
}

TEST_CASE("chat drafts: what cannot be, and what /params shows") {
    Speaker speaker(288), twin(288);
    ChatOptions o = sampled(0);
    Talker states(288, LinearAttention::gated);
    const Tokenizer tokenizer = chat_tokenizer();
    o.speculation = {.lookup = 3};
    CHECK(Chat(states.g, tokenizer, {}, o).open().code == Exit::usage);
    o.speculation = {.draft = &states.g};
    CHECK(contains(Chat(speaker.g, tokenizer, {}, o).open().message, "the draft model"));
    o.speculation = {};
    Heard state(states.g, o);
    CHECK(contains(state.refused("/params lookup 2").message, "--lookup: drafted tokens could not be rolled back"));
    CHECK(state.chat.options.speculation.lookup == 0);
    Heard heard(speaker.g, o);
    heard.ask("/params lookup 5");
    CHECK(heard.chat.options.speculation.lookup == 5);
    CHECK(heard.refused("/params draft-tokens 2").code == Exit::usage);
    CHECK(heard.refused("/params lookup 257").code == Exit::usage);
    heard.ask("aaaa");
    CHECK(heard.chat.drafted > 0);
    o.speculation = {.draft = &twin.g}, o.stats = true;
    Heard drafted(speaker.g, o);
    drafted.ask("/params draft-tokens 2");
    CHECK(drafted.chat.options.speculation.tokens == 2);
    CHECK(drafted.refused("/params lookup 5").code == Exit::usage);
    drafted.ask("hello");
    CHECK(drafted.noted(formatted("tokens/s; drafted %lld tokens, %lld accepted (", (long long)drafted.chat.drafted,
                                  (long long)drafted.chat.accepted)));
}
