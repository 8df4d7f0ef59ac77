// test_beam.cpp - beam search against a search of all texts, and against beams without a cache.
#include "infer/decode/beam.h"

#include <algorithm>

#include "speaker.h"
#include "test.h"

namespace {
struct Said {
    std::vector<int> tokens;
    double sum = 0, score = 0;
    bool ended = false;
};
// The model's log-probabilities after these tokens, from an empty cache.
std::vector<double> next(Model& g, const std::vector<int>& tokens) {
    KvCache cache;
    REQUIRE(allocate_cache(g, cache, 1, int(tokens.size())).ok());
    PendingHead head;
    for (int id : tokens) head = extend(g, cache, &id, 1);
    std::vector<float> logits(size_t(g.c.V));
    compute_logits(g, head, logits.data());
    double sum = 0;
    for (float x : logits) sum += std::exp(double(x));
    std::vector<double> all;
    for (float x : logits) all.push_back(double(x) - std::log(sum));
    return all;
}
std::vector<int> with(std::vector<int> tokens, const std::vector<int>& more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
}
bool better(const Said& a, const Said& b) { return a.score > b.score; }

// All texts that end within n tokens or have n tokens.
void all_texts(Model& g, const std::vector<int>& prompt, int end, int n, double penalty, const Said& so_far,
               std::vector<Said>& out) {
    if (so_far.ended || int(so_far.tokens.size()) == n) {
        out.push_back(so_far);
        out.back().score = so_far.sum / std::pow(double(so_far.tokens.size()), penalty);
        return;
    }
    const std::vector<double> p = next(g, with(prompt, so_far.tokens));
    for (int id = 0; id < g.c.V; id++)
        all_texts(g, prompt, end, n, penalty, {with(so_far.tokens, {id}), so_far.sum + p[size_t(id)], 0, id == end},
                  out);
}
// transformers' rules of beam search in plain loops, without a cache.
std::vector<Said> plain_beams(Model& g, const std::vector<int>& prompt, int end, int n, double penalty, size_t beams) {
    std::vector<Said> running = {{}}, finished;
    auto finish = [&](Said t) {
        t.score = t.sum / std::pow(double(t.tokens.size()), penalty);
        finished.push_back(t);
        std::stable_sort(finished.begin(), finished.end(), better);
        if (finished.size() > beams) finished.pop_back();
    };
    for (int i = 0; i < n; i++) {
        std::vector<Said> grown, on;
        for (const Said& t : running) {
            const std::vector<double> p = next(g, with(prompt, t.tokens));
            for (int id = 0; id < g.c.V; id++)
                grown.push_back({with(t.tokens, {id}), t.sum + p[size_t(id)], 0, id == end});
        }
        std::stable_sort(grown.begin(), grown.end(), [](const Said& a, const Said& b) { return a.sum > b.sum; });
        for (size_t rank = 0; rank < std::min(grown.size(), 2 * beams); rank++) {
            if (grown[rank].ended && rank < beams) finish(grown[rank]);
            else if (!grown[rank].ended && on.size() < beams) on.push_back(grown[rank]);
        }
        running = on;
        if (finished.size() == beams && finished.back().score >= grown[0].sum / std::pow(i + 1.0, penalty))
            return finished;
    }
    for (const Said& t : running) finish(t);
    return finished;
}
// A byte tokenizer ('!' is token 0) whose only end token is `id`.
Tokenizer ending_at(int id) {
    Vocabulary v = chat_tokenizer().vocabulary();
    v.ends = {id};
    return Tokenizer(v);
}
std::string text_of(const std::vector<int>& tokens, int end) {
    std::string text;
    for (int id : tokens)
        if (id != end) text += char('!' + id);
    return text;
}
}    // namespace

TEST_CASE("beam search: with as many beams as there are texts it finds the best of all") {
    for (double penalty : {0.0, 1.0, 2.0}) {
        Config c = {.V = 4, .T = 64, .L = 1, .NH = 2, .C = 16, .F = 32};
        Model g(cpu_ops<float>());
        toy_model(g, c, {RunMode::infer, 2, 64});
        std::vector<Said> all;
        const std::vector<int> prompt = {1, 2, 0};
        all_texts(g, prompt, 3, 3, penalty, {}, all);
        REQUIRE(all.size() == 1 + 3 + 9 + 27);
        std::sort(all.begin(), all.end(), better);
        GenerationOptions what;
        what.prompts = {prompt}, what.tokens = 3, what.num = 5;
        const Result<GenerationResult> found = beam_search(g, ending_at(3), what, {64, penalty});
        REQUIRE_MESSAGE(found.ok(), found.status.message);
        for (size_t i = 0; i < 5; i++) {
            CHECK(found.value.texts[i] == text_of(all[i].tokens, 3));
            CHECK(found.value.scores[i] == doctest::Approx(all[i].score).epsilon(1e-5));
        }
    }
}

TEST_CASE("beam search: few beams are what plain ones are, across pages, with states and windows") {
    Config plain = {.V = 7, .T = 128, .L = 2, .NH = 2, .C = 16, .F = 32};
    Config states = plain, window = plain;
    states.linear = LinearAttention::retention, states.softmax_every = 2, states.position = Position::rope,
    states.rope_dims = 4;
    window.window = 20, window.position = Position::rope, window.rope_dims = 4;
    for (const Config& c : {plain, states, window}) {
        Model g(cpu_ops<float>());
        toy_model(g, c, {RunMode::infer, 1, 32});
        const std::vector<int> prompt = toy_tokens(14, 7, 3);
        for (int beams : {1, 2, 5})
            for (double penalty : {1.0, -1.0, 3.0}) {
                const int end = penalty > 1 ? 2 : 6;
                const std::vector<Said> expected = plain_beams(g, prompt, end, 12, penalty, size_t(beams));
                GenerationOptions what;
                what.prompts = {prompt, prompt}, what.tokens = 12, what.num = beams;
                const Result<GenerationResult> found = beam_search(g, ending_at(end), what, {beams, penalty});
                REQUIRE_MESSAGE(found.ok(), found.status.message);
                REQUIRE(found.value.texts.size() == size_t(2 * beams));
                for (size_t i = 0; i < size_t(2 * beams); i++) {
                    CHECK(found.value.texts[i] == text_of(expected[i % size_t(beams)].tokens, end));
                    CHECK(found.value.scores[i] == doctest::Approx(expected[i % size_t(beams)].score).epsilon(1e-4));
                }
            }
    }
}

TEST_CASE("beam search: of equally likely texts the first beam's, then the smallest tokens count") {
    Model g(cpu_ops<float>());
    toy_model(g, {.V = 7, .T = 128, .L = 1, .NH = 2, .C = 16, .F = 32}, {RunMode::infer, 1, 32});
    std::fill_n(typed<float>(g, g.w.wte), 7 * 16, 0.f);
    for (int beams : {1, 3, 10}) {
        const std::vector<Said> expected = plain_beams(g, {1, 2}, 4, 4, 1, size_t(beams));
        GenerationOptions what;
        what.prompts = {{1, 2}}, what.tokens = 4, what.num = beams;
        const GenerationResult found = beam_search(g, ending_at(4), what, {beams, 1}).value;
        for (size_t i = 0; i < size_t(beams); i++) CHECK(found.texts[i] == text_of(expected[i].tokens, 4));
    }
}

TEST_CASE("beam search: the context ends a text, stop strings cut it, and one that fills the context is refused") {
    Model g(cpu_ops<float>());
    toy_model(g, {.V = 7, .T = 20, .L = 1, .NH = 2, .C = 16, .F = 32}, {RunMode::infer, 1, 16});
    GenerationOptions what;
    std::string note, streamed;
    what.note = [&](const std::string& text) { note += text; };
    what.text = [&](int, std::string_view text) { return streamed += text, true; };
    what.prompts = {toy_tokens(15, 7, 1)}, what.tokens = 9;
    GenerationResult out = beam_search(g, ending_at(-1), what, {3, 1}).value;
    CHECK(out.texts[0].size() == 5);
    CHECK(streamed == out.texts[0]);
    CHECK(note.find("context of 20 tokens ends the text after 5") != std::string::npos);
    what.stop = {out.texts[0].substr(2, 1)};
    CHECK(beam_search(g, ending_at(-1), what, {3, 1}).value.texts[0] ==
          out.texts[0].substr(0, out.texts[0].find(what.stop[0])));
    what.prompts = {toy_tokens(20, 7, 1)};
    CHECK(beam_search(g, ending_at(-1), what, {3, 1}).status.code == Exit::usage);
}

TEST_CASE("generate: logits that are not finite end sampling and beam search") {
    Model g(cpu_ops<float>());
    toy_model(g, {.V = 7, .T = 20, .L = 1, .NH = 2, .C = 16, .F = 32}, {RunMode::infer, 1, 16});
    GenerationOptions what;
    what.prompts = {toy_tokens(3, 7, 1)}, what.num = 2, what.tokens = 4;
    REQUIRE(beam_search(g, ending_at(-1), what, {3, 1}).ok());
    typed<float>(g, g.w.wte)[6 * 16] = INFINITY;    // only logit 6, if the prompt lacks it
    const Status s = beam_search(g, ending_at(-1), what, {3, 1}).status;
    CHECK(s.code == Exit::diverged);
    CHECK_MESSAGE(contains(s.message, "the logits are not finite"), s.message);
    CHECK(generate(g, ending_at(-1), what).status.code == Exit::diverged);
}
