// grammar_files.h - options that name a file with the form of generated text.
#pragma once
#include "base/command.h"
#include "base/file.h"
#include "infer/sampling/grammar.h"
#include "infer/sampling/json_schema.h"

struct GrammarFiles {
    std::string grammar, json_schema;
};
inline FlagGroup grammar_flags(GrammarFiles& files) {
    return {"Form of the text",
            {},
            {{.name = "--grammar",
              .to = &files.grammar,
              .help = "a file with a grammar (GBNF, llama.cpp's format): "
                      "only what it allows is generated",
              .excludes = {"--json-schema"}},
             {"--json-schema", &files.json_schema,
              "a file with a JSON Schema: only JSON that it allows is "
              "generated"}}};
}
// Reads the grammar or the JSON schema of the options; null: neither was given.
inline Result<std::shared_ptr<const Grammar>> read_grammar(const GrammarFiles& files) {
    if (!files.grammar.empty()) return Grammar::parse(TRY(read_file(files.grammar, 64 << 20)), files.grammar);
    if (files.json_schema.empty()) return std::shared_ptr<const Grammar>();
    const std::string schema = TRY(read_file(files.json_schema, 64 << 20));
    return Grammar::parse(TRY(json_schema_grammar(schema, files.json_schema)), files.json_schema + ", as a grammar");
}
