// fuzz_grammar.cpp - libFuzzer: any text, as a JSON Schema or a grammar, is accepted or an error;
// GrammarMatcher (tokens) and GrammarMachine (bytes) agree on accepted ones.
#include "infer/sampling/grammar.h"
#include "infer/sampling/json_schema.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    auto plain = [](const Status& s) { CHECK(s.ok() || (s.code == Exit::input && !s.message.empty())); };
    const Result<std::string> schema = json_schema_grammar(text, "fuzz");
    plain(schema.status);
    const auto grammar = Grammar::parse(schema.ok() ? schema.value : std::string(text), "fuzz");
    plain(grammar.status);
    if (!grammar.ok()) return 0;
    static const Tokenizer tokenizer = Tokenizer::from_merges({{64, 65}, {1, 25}}, Pattern::gpt2, {"<|endoftext|>"});
    GrammarMatcher matcher(grammar.value, tokenizer, tokenizer.vocab_size(), {tokenizer.end_of_text()});
    GrammarMachine again(grammar.value);
    int state = again.start();
    for (size_t i = 0; i < 40 && !matcher.done(); i++) {
        const std::vector<bool>& allowed = matcher.allowed();
        int id = size ? data[i * 7 % size] : 0;
        for (int tries = 0; !allowed[size_t(id)] && tries < tokenizer.vocab_size(); tries++)
            id = (id + 1) % tokenizer.vocab_size();
        CHECK(allowed[size_t(id)] == matcher.allows(id) || !allowed[size_t(id)]);    // none allowed if too costly
        if (!allowed[size_t(id)] || id == tokenizer.end_of_text()) break;
        matcher.accept(id);
        for (char c : tokenizer.token(id)) state = again.step(state, static_cast<unsigned char>(c));
        CHECK(state != GrammarMachine::DEAD && matcher.done() == again.must_end(state));
    }
    return 0;
}
