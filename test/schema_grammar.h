// schema_grammar.h - a JSON Schema's grammar, and which texts it allows.
#pragma once
#include "infer/sampling/grammar.h"
#include "infer/sampling/json_schema.h"
#include "test.h"

inline std::shared_ptr<const Grammar> schema_grammar(const std::string& schema) {
    const Result<std::string> text = json_schema_grammar(schema, "s");
    REQUIRE_MESSAGE(text.ok(), text.status.message);
    Result<std::shared_ptr<const Grammar>> g = Grammar::parse(text.value, "g");
    REQUIRE_MESSAGE(g.ok(), (g.status.message + " in\n" + text.value));
    return g.take();
}
// One letter for each text: '+' if the grammar allows it as a whole, else 'x'.
inline std::string verdicts(const std::string& schema, const std::vector<std::string>& texts) {
    GrammarMachine m(schema_grammar(schema));
    std::string all;
    for (const std::string& text : texts) {
        int state = m.start();
        for (char c : text) state = m.step(state, static_cast<unsigned char>(c));
        all += m.may_end(state) ? '+' : 'x';
    }
    return all;
}
