// speaker.h - small models that answer: one whose text depends on all tokens before, one with a
// script; a byte tokenizer with ChatML's tokens. Include it after the project's headers.
#pragma once
#include "base/philox.h"
#include "model/decoder.h"
#include "test.h"
#include "toy_model.h"
#include "write_model.h"

constexpr int START_OF_TURN = 257, END_OF_TURN = 258, CHAT_TOKENS = 259;
inline Tokenizer chat_tokenizer() {
    return Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
}

// A model planned for 8 positions a call, so that longer prompts are fed in chunks.
struct SmallSpeaker {
    Model g{cpu_ops<float>()};
    explicit SmallSpeaker(int T, LinearAttention linear = LinearAttention::none) {
        const Config c{.V = CHAT_TOKENS, .T = T, .L = 2, .NH = 2, .C = 32, .F = 64, .linear = linear};
        REQUIRE(g.allocate(c, {RunMode::infer, 1, 8}).ok());
        g.init(1);
    }
};
// Generates printable ASCII; each token depends on all tokens before it.
struct Talker : SmallSpeaker {
    explicit Talker(int T, LinearAttention linear = LinearAttention::none) : SmallSpeaker(T, linear) {
        float* params = typed<float>(g, g.store.params);
        for (const Tensor& t : g.tensors)
            for (int64_t i = 0; i < t.file_rows * t.cols; i++)
                params[t.offset + i] += 0.3f * philox_normal(3, uint64_t(t.offset), uint64_t(i));
        float* wte = typed<float>(g, g.w.wte);
        for (int64_t i = 94 * 32; i < CHAT_TOKENS * 32; i++) wte[i] *= 0.3f;    // 0-93: '!'-'~'
    }
};
// At position p the likeliest next token is script[p + 1]: token embeddings are random directions,
// and the position's embedding is ten times that of script[p + 1].
struct Actor : SmallSpeaker {
    explicit Actor(const std::vector<int>& script, int T) : SmallSpeaker(T) {
        float *wte = typed<float>(g, g.w.wte), *wpe = typed<float>(g, g.w.wpe);
        for (int64_t i = 0; i < CHAT_TOKENS * 32; i++) wte[i] = philox_normal(5, 0, uint64_t(i)) / std::sqrt(32.f);
        for (size_t p = 0; p < size_t(T); p++)
            for (size_t i = 0; i < 32; i++)
                wpe[p * 32 + i] = p + 1 < script.size() ? 10 * wte[size_t(script[p + 1]) * 32 + i] : 0;
    }
};
inline const char* const CHATML =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
// A directory with a model that answers "u" with "hello", and the same again to a second "u".
inline std::string polite_model(int T = 256) {
    const Tokenizer tokenizer = chat_tokenizer();
    const std::string turn = "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n";
    Actor actor(tokenizer.encode(turn + turn, true), T);
    const std::string dir = write_model(actor.g, tokenizer);
    write_file(dir + "/chat_template.jinja", CHATML);
    return dir;
}
