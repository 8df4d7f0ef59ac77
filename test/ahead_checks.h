// ahead_checks.h - checks of sampling on the device, for the reference and for the emulated GPU.
#pragma once
#include "infer/decode/generate.h"
#include "tools/selftest/check.h"

#include "test.h"
#include "toy_model.h"

// Each sampling setting alone, then several combined.
inline std::vector<Sampling> device_samplings() {
    const Sampling all = {.temperature = 1, .top_k = 0};
    std::vector<Sampling> list(14, all);
    list[1].temperature = 0;
    list[2].temperature = 0.4;
    list[3].top_k = 5;
    list[4].top_p = 0.7;
    list[5].min_p = 0.1;
    list[6].penalties.repetition = 1.4;
    list[7].penalties.presence = 0.8;
    list[8].penalties.frequency = 0.6;
    list[9].penalties.bias = {"0=1.5", "3=-inf", "5=-1"};
    list[10] = {.temperature = 0.8, .top_k = 50, .seed = 7};
    list[11] = {.temperature = 3, .top_k = 40, .top_p = 0.9, .min_p = 0.02, .seed = 8};
    list[11].penalties = {.repetition = 1.2, .presence = 0.3, .frequency = 0.2, .bias = {"1=2"}};
    list[12].temperature = 0, list[12].penalties = {.repetition = 0.8, .frequency = 1.5};
    list[13].top_p = 0;
    return list;
}

// op.sample draws the tokens of the host's Sampler under every setting, and counts them alike.
template <class T, class P> void expect_draws_of_sampler(const Ops<T, P>& op, int draws, int V, bool ties) {
    const int Vp = V + 3, N = 16;
    const Memory m(op);
    const Tokenizer none;
    uint64_t stream = uint64_t(V);
    for (const Sampling& s : device_samplings()) {
        if (V < 6 && !s.penalties.bias.empty()) continue;
        const Sampler first = Sampler::open(s, none, V).value;
        const std::optional<SampleParams> draw = first.on_device();
        REQUIRE(draw);
        const std::vector<double> biases = first.token_history().bias();
        Array<double> bias(m, Numbers(biases.begin(), biases.end()));
        for (int done = 0; done < draws; done += N) {
            Numbers logits = rounded<T>(random_normal(int64_t(N) * Vp, ++stream, 3)), counts, at;
            if (ties)
                for (double& x : logits) x = std::floor(x);
            for (size_t i = stream % 29; i < logits.size(); i += 29) logits[i] = i % 2 ? -INFINITY : double(NAN);
            std::vector<Sampler> samplers;
            for (int n = 0; n < N; n++) {
                samplers.push_back(first.for_sequence(uint64_t(n % 5)));
                samplers.back().accept_prompt(random_tokens(n % 4, V, stream + 1000));
                for (int id : random_tokens(n % 7, std::min(V, 20), stream + uint64_t(n))) samplers.back().accept({id});
                for (int count : samplers.back().token_history().counts()) counts.push_back(count);
                at.insert(at.end(), {double(n % 5), double(done + n), double(n)});
            }
            Array<T> x(m, logits);
            Array<int> ids(m, N), token_history(m, counts);
            Array<uint64_t> places(m, at);
            op.sample(ids, or_null(draw->penalises(), token_history),
                      reinterpret_cast<SampleState*>(static_cast<uint64_t*>(places)), nullptr, nullptr, x,
                      or_null(!biases.empty(), bias), *draw, {}, N, V, Vp);
            const Numbers got = ids.read(), now = token_history.read();
            for (int n = 0; n < N; n++) {
                CAPTURE(s.temperature);
                CAPTURE(s.top_k);
                CAPTURE(s.top_p);
                CAPTURE(s.min_p);
                CAPTURE(n);
                std::vector<float> row;
                for (int v = 0; v < V; v++) row.push_back(float(logits[size_t(n * Vp + v)]));
                const Sampler::Choice choice = samplers[size_t(n)].choose(row.data(), uint64_t(done + n));
                CHECK(got[size_t(n)] == choice.id);
                samplers[size_t(n)].accept(choice);
                const std::vector<int> expected = samplers[size_t(n)].token_history().counts();
                if (draw->penalises())
                    CHECK(std::equal(expected.begin(), expected.end(), now.begin() + int64_t(n) * V));
            }
        }
    }
}

// Texts drawn by op.sample equal those drawn on the host (sample = nullptr); returns their tokens.
inline int64_t expect_same_texts(const Table& op, const Config& c, GenerationOptions what) {
    Table host = op;
    host.sample = nullptr;
    const Tokenizer tokenizer = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"});
    GenerationResult texts[2];
    std::vector<std::string> notes[2];
    for (int i : {0, 1}) {
        Model g(i ? host : op);
        toy_model(g, c, {RunMode::infer, 2, c.T});
        std::vector<std::string> streamed(what.prompts.size() * size_t(what.num));
        what.text = [&](int sequence, std::string_view text) {
            streamed.at(size_t(sequence)) += text;
            return true;
        };
        what.note = [&](const std::string& text) { notes[i].push_back(text); };
        Result<GenerationResult> r = generate(g, tokenizer, what);
        REQUIRE_MESSAGE(r.ok(), r.status.message);
        texts[i] = std::move(r.value);
        CHECK(texts[i].texts == streamed);
    }
    CHECK(texts[0].texts == texts[1].texts);
    CHECK(texts[0].tokens == texts[1].tokens);
    CHECK(notes[0] == notes[1]);
    return texts[0].tokens;
}
