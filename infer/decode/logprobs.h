// logprobs.h - a sample's log-probabilities as JSON.
#pragma once
#include "files/json_write.h"
#include "infer/decode/generate.h"

// Returns a token as JSON in the form of OpenAI's API.
inline Json logprob_json(const TokenLogprob& t, const Tokenizer& tokenizer) {
    const std::string_view text = tokenizer.token(t.id);
    Json bytes = Json::list();
    for (unsigned char c : text) bytes.add(c);
    return Json::object("token", text, "id", t.id, "logprob", t.logprob, "bytes", std::move(bytes));
}
inline Json logprobs_json(const Sample& sample, const Tokenizer& tokenizer) {
    Json all = Json::list();
    for (const auto& t : sample.logprobs) {
        Json top = Json::list();
        for (size_t i = 1; i < t.size(); i++) top.add(logprob_json(t[i], tokenizer));
        all.add(logprob_json(t[0], tokenizer).set("top_logprobs", top));
    }
    return Json::object("content", std::move(all));
}
