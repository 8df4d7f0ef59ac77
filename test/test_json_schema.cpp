// test_json_schema.cpp - JSON Schemas: texts by hand, and texts that are drawn, which must parse and be valid.
#include "infer/json_schema.h"

#include <algorithm>
#include <set>

#include "files/json.h"
#include "infer/sampler.h"
#include "test.h"

namespace {
using nlohmann::json;
std::shared_ptr<const Grammar> schema_grammar(const std::string& schema) {
    const Result<std::string> text = json_schema_grammar(schema, "s");
    REQUIRE_MESSAGE(text.ok(), text.status.message);
    Result<std::shared_ptr<const Grammar>> g = Grammar::parse(text.value, "g");
    REQUIRE_MESSAGE(g.ok(), (g.status.message + " in\n" + text.value));
    return g.take();
}
// '+' where the whole text is allowed.
std::string verdicts(const std::string& schema, const std::vector<std::string>& texts) {
    GrammarMachine m(schema_grammar(schema));
    std::string all;
    for (const std::string& text : texts) {
        int state = m.start();
        for (char c : text) state = m.step(state, static_cast<unsigned char>(c));
        all += m.may_end(state) ? '+' : 'x';
    }
    return all;
}

// A validator of what the schemas below say, by the standard's definitions.
bool valid(const json& v, const json& s, const json& root) {
    if (s.is_boolean()) return s.get<bool>();
    if (s.contains("$ref")) return valid(v, root.at(json::json_pointer(s["$ref"].get<std::string>().substr(1))), root);
    auto is = [&](const std::string& t) {
        return t == "object" ? v.is_object() : t == "array" ? v.is_array() : t == "string" ? v.is_string()
             : t == "boolean" ? v.is_boolean() : t == "null" ? v.is_null()
             : t == "integer" ? v.is_number() && v.get<double>() == std::floor(v.get<double>()) : v.is_number();
    };
    bool good = true;
    if (s.contains("type") && s["type"].is_string()) good &= is(s["type"]);
    if (s.contains("type") && s["type"].is_array())
        good &= std::any_of(s["type"].begin(), s["type"].end(), [&](const json& t) { return is(t); });
    if (s.contains("enum")) good &= std::count(s["enum"].begin(), s["enum"].end(), v) > 0;
    if (s.contains("const")) good &= v == s["const"];
    for (const char* any : {"anyOf", "oneOf"})
        if (s.contains(any))
            good &= std::any_of(s[any].begin(), s[any].end(), [&](const json& t) { return valid(v, t, root); });
    if (v.is_string()) {
        const std::string text = v;
        const auto length = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
        good &= length >= s.value("minLength", 0) && length <= s.value("maxLength", 1 << 30);
    }
    if (v.is_array()) {
        good &= int(v.size()) >= s.value("minItems", 0) && int(v.size()) <= s.value("maxItems", 1 << 30);
        for (const json& item : v) good &= !s.contains("items") || valid(item, s["items"], root);
    }
    if (v.is_object()) {
        for (const json& key : s.value("required", json::array())) good &= v.contains(key.get<std::string>());
        for (auto& [key, value] : v.items()) {
            if (s.contains("properties") && s["properties"].contains(key))
                good &= valid(value, s["properties"][key], root);
            else if (s.contains("additionalProperties")) good &= valid(value, s["additionalProperties"], root);
        }
    }
    return good;
}

const char* const SCHEMAS[] = {
    "true",
    R"({"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 5},
        "age": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b", 3, null, {"x": [1]}]},
        "minItems": 2, "maxItems": 4}}, "required": ["age", "tags"], "additionalProperties": false})",
    R"({"properties": {"a": {"type": ["boolean", "null"]}, "ab": {"const": "\"\\\n\u00e9"}, "b": {"type": "number"}},
        "additionalProperties": {"type": "integer"}, "required": ["z", "b"]})",
    R"({"$defs": {"tree": {"type": "object", "properties": {"value": {"type": "integer"}, "kids": {"type": "array",
        "maxItems": 2, "items": {"$ref": "#/$defs/tree"}}}, "required": ["value"]}}, "$ref": "#/$defs/tree"})",
    R"({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "array", "items": {"type": "number"}, "minItems": 3},
        {"oneOf": [{"type": "integer"}, {"const": {"k": true}}]}]})",
    R"({"type": "array", "items": {"type": ["object", "string"], "maxLength": 2, "additionalProperties": true},
        "maxItems": 5})",
};
}    // namespace

TEST_CASE("json schema: texts that drawn tokens make parse and are valid") {
    const Tokenizer tokenizer = Tokenizer::from_merges({{1, 25}, {88, 64}}, Pattern::gpt2, {"<|endoftext|>"});
    const int V = tokenizer.vocab_size();
    for (const char* schema : SCHEMAS) {
        CAPTURE(std::string(schema));
        const json s = json::parse(schema);
        Sampling sampling = {.temperature = 1, .top_k = 0};
        sampling.grammar = schema_grammar(schema);
        const Sampler first = Sampler::open(sampling, tokenizer, V, {tokenizer.end_of_text()}).take();
        std::set<std::string> all;
        for (uint64_t sequence = 0; sequence < 12; sequence++) {
            Sampler sampler = first.of(sequence);
            std::string text;
            for (uint64_t place = 0; place < 3000 && !sampler.done(); place++) {
                std::vector<float> logits;
                for (int i = 0; i < V; i++) logits.push_back(2 * philox_normal(sequence, place, uint64_t(i)));
                for (char c : std::string("\"]}")) logits[size_t(tokenizer.encode(std::string(1, c))[0])] += 5;
                const Sampler::Choice c = sampler.choose(logits.data(), place);
                sampler.take(c);
                if (!tokenizer.is_special(c.id)) text += tokenizer.token(c.id);
            }
            CAPTURE(text);
            REQUIRE(sampler.done());
            REQUIRE(!sampler.broken());
            Result<json> parsed = json_parse(text, "text", 1000);
            if (parsed.status.message.find("twice") != std::string::npos) continue;    // keys that nobody named
            REQUIRE_MESSAGE(parsed.ok(), parsed.status.message);
            CHECK(valid(parsed.value, s, s));
            all.insert(text);
        }
        CHECK(all.size() > 4);
    }
}

TEST_CASE("json schema: what each keyword allows") {
    CHECK(verdicts("{}", {"1", "-0.5e+3", "\"a\"", "[1, [], {\"a\": null}]", "{}", "tru", "01", "1.", "nul", "[1,]",
                          "{\"a\":}"}) == "+++++xxxxxx");
    CHECK(verdicts(R"({"type": "string"})",
                   {R"("a\n\u00e9\/")", R"("\ud800")", R"("\x")", "\"\n\"", "\"\u00e9\"", "a"}) == "+xxx+x");
    CHECK(verdicts(R"({"type": "integer"})", {"0", "-12", "1.0", "1e3", "007", "-"}) == "++xxxx");
    CHECK(verdicts(R"({"type": "string", "minLength": 2, "maxLength": 3})",
                   {R"("a")", R"("ab")", "\"a\u20ac\\n\"", R"("abcd")"}) == "x++x");
    const char* object = R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"},
                             "c": {"type": "null"}}, "required": ["b"]})";
    CHECK(verdicts(object, {R"({"b": null})", R"({"a": null, "b": null})", R"({"a":null,"b":null,"c":null})",
                            R"({"b": null, "c": null})", "{\n  \"b\": null\n}"}) == "+++++");
    CHECK(verdicts(object, {"{}", R"({"a": null})", R"({"b": null,})", R"({"b": null, "a": null})",
                            R"({"b": null, "d": null})", R"({, "b": null})", R"({"b": 1})"}) == "xxxxxxx");
    const char* others = R"({"properties": {"ab": {"type": "null"}, "a": {"type": "null"}, "-": {"type": "null"}},
                             "additionalProperties": {"type": "integer"}})";
    CHECK(verdicts(others, {"{}", R"({"ab": null})", R"({"abc": 1})", R"({"a": null, "b": 1, "": 2})", R"({"ac": 1})",
                            R"({"--": 1})", "{\"a\u00e9\": 1}"}) == "+++++++");
    CHECK(verdicts(others, {R"({"ab": 1})", R"({"b": null})", R"({"a": 1})", R"({"-": 1})", R"({"\u0061": 1})"}) ==
          "xxxxx");
    CHECK(verdicts(R"({"type": "object", "additionalProperties": false})", {"{}", R"({"a": 1})"}) == "+x");
    CHECK(verdicts(R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2})",
                   {"[]", "[1]", "[1, 2]", "[1,2,3]", "[true]"}) == "x++xx");
    CHECK(verdicts(R"({"type": "array", "maxItems": 0})", {"[]", "[1]"}) == "+x");
    CHECK(verdicts(R"({"enum": ["a\"", 1.5, [1, 2]], "type": ["string", "array"]})", {R"("a\"")", "1.5", "[1,2]"}) ==
          "+x+");
    CHECK(verdicts(R"({"type": "integer", "enum": [1, "1", 2.5]})", {"1", "\"1\"", "2.5"}) == "+xx");
    CHECK(verdicts(R"({"format": "date"})", {R"("2026-11-30")", R"("2026-02-30")", R"("2026-13-01")"}) == "+xx");
    CHECK(verdicts(R"({"type": "string", "format": "date-time"})",
                   {R"("2026-12-31T23:59:59.5Z")", R"("2026-12-31 23:59:59")"}) == "+x");
    CHECK(verdicts(R"({"type": "array", "items": {"$ref": "#"}})", {"[[], [[]]]", "[1]"}) == "+x");
    CHECK(verdicts(R"({"definitions": {"a~/": {"const": 5}}, "allOf": [{"$ref": "#/definitions/a~0~1"}]})", {"5"}) ==
          "+");
}

TEST_CASE("json schema: integers in ranges, all of them") {
    for (auto [least, most] :
         {std::pair{-3, 12}, std::pair{0, 0}, std::pair{7, 1234}, std::pair{-1100, -98}, std::pair{95, 105},
          std::pair{-20, -20}, std::pair{100, 999}, std::pair{-5, 0}, std::pair{1, 9}}) {
        CAPTURE(least);
        for (const char* form : {R"({"type": "integer", "minimum": %d, "maximum": %d})",
                                 R"({"type": "integer", "exclusiveMinimum": %d, "exclusiveMaximum": %d})"}) {
            const bool exclusive = form[21] == 'e';
            std::vector<std::string> texts = {"-0", "00", "01", ""};
            std::string expected = "xxxx";
            for (int x = -1300; x < 1300; x++) {
                texts.push_back(std::to_string(x));
                expected += x >= least && x <= most ? '+' : 'x';
            }
            char schema[200];
            snprintf(schema, sizeof schema, form, least - exclusive, most + exclusive);
            const bool same = verdicts(schema, texts) == expected;    // thousands of letters are no message
            CHECK(same);
        }
    }
    CHECK(verdicts(R"({"type": "integer", "minimum": 17})", {"16", "17", "9999999999999999", "-17"}) == "x++x");
    CHECK(verdicts(R"({"type": "integer", "exclusiveMaximum": -9})", {"-9", "-10", "0"}) == "x+x");
}

TEST_CASE("json schema: what is not known is refused, by its name and place") {
    auto has = [](const std::string& schema, const char* what) {
        CAPTURE(schema);
        const Status s = json_schema_grammar(schema, "s").status;
        CHECK(s.code == Exit::input);
        CAPTURE(s.message);
        CHECK(s.message.find(what) != std::string::npos);
    };
    has("", "not JSON");
    has("1", "expected a schema");
    has("false", "no value is allowed");
    has(R"({"type": "strin"})", "type: expected object");
    has(R"({"type": []})", "at least one");
    has(R"({"type": "string", "pattern": "a+"})", "s: #: pattern: regular expressions");
    has(R"({"items": {"properties": {"x": {"type": "number", "minimum": 3}}}})",
        "#/items/properties/x: minimum: not known");
    has(R"({"properties": {"x\ny\u001b": {"not": {}}}})", R"(s: #/properties/x\x0Ay\x1B: not: not known)");
    has(R"({"x\ny": 1})", R"(s: #: x\x0Ay: not known)");
    for (const char* key : {"multipleOf", "not", "if", "uniqueItems", "prefixItems", "patternProperties",
                            "minProperties", "dependentRequired", "contains", "propertyNames", "unheardOf"})
        has(formatted(R"({"type": ["object", "array", "number"], "%s": 1})", key), key);
    has(R"({"type": "integer", "maximum": 1.5})", "maximum: expected a whole number");
    has(R"({"type": "integer", "maximum": 3, "exclusiveMinimum": 3})", "no whole number");
    has(R"({"type": "integer", "minLength": 2})", "minLength: not known here, or not beside");
    has(R"({"anyOf": [{}], "type": "string"})", "type: not known");
    has(R"({"anyOf": []})", "list of schemas");
    has(R"({"allOf": [{}, {}]})", "only of one");
    has(R"({"enum": 3})", "list of values");
    has(R"({"enum": [1], "type": "string"})", "allow no value");
    has(R"({"enum": []})", "allow no value");
    has(R"({"$ref": "other.json"})", "a place in this file");
    has(R"({"$ref": "#/$defs/x"})", "no such place");
    has(R"({"$ref": "#", "type": "string"})", "type: not known");
    has(R"({"maxLength": -1})", "maxLength: expected a whole number");
    has(R"({"maxItems": 100001})", "from 0 to 100000");
    has(R"({"minItems": 3, "maxItems": 2})", "larger than");
    has(R"({"format": "email"})", "format: expected date");
    has(R"({"properties": [], "required": []})", "properties: expected");
    has(R"({"required": "a"})", "required: expected");
    has(R"({"properties": {}, "required": ["a"]})", "'a' is not among");
    has("{\"properties\": {\"" + std::string(257, 'a') + "\": {}}}", "more than 256 bytes");
    has(std::string(70, '[') + std::string(70, ']'), "64 deep");
    has(std::string(300 << 10, ' '), "256 KiB");
    CHECK(!Grammar::parse(json_schema_grammar(R"({"$ref": "#"})", "s").value, "g").ok());
}
