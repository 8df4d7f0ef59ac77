// test_json_schema.cpp - grammars of JSON Schemas: texts by hand; sampled texts must be valid.
#include <algorithm>
#include <regex>
#include <set>

#include "files/json.h"
#include "base/philox.h"
#include "infer/sampling/sampler.h"
#include "schema_grammar.h"

namespace {
using nlohmann::json;
// Validates v against s by the standard's definitions, for the keywords of the schemas below.
bool valid(const json& v, const json& s, const json& root) {
    if (s.is_boolean()) return s.get<bool>();
    if (s.contains("$ref")) return valid(v, root.at(json::json_pointer(s["$ref"].get<std::string>().substr(1))), root);
    auto is = [&](const std::string& t) {
        return t == "object"    ? v.is_object()
               : t == "array"   ? v.is_array()
               : t == "string"  ? v.is_string()
               : t == "boolean" ? v.is_boolean()
               : t == "null"    ? v.is_null()
               : t == "integer" ? v.is_number() && v.get<double>() == std::floor(v.get<double>())
                                : v.is_number();
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
            Sampler sampler = first.for_sequence(sequence);
            std::string text;
            for (uint64_t step_index = 0; step_index < 3000 && !sampler.done(); step_index++) {
                std::vector<float> logits;
                for (int i = 0; i < V; i++) logits.push_back(2 * philox_normal(sequence, step_index, uint64_t(i)));
                for (char c : std::string("\"]}")) logits[size_t(tokenizer.encode(std::string(1, c))[0])] += 5;
                const Sampler::Choice c = sampler.choose(logits.data(), step_index);
                sampler.accept(c);
                if (!tokenizer.is_special(c.id)) text += tokenizer.token(c.id);
            }
            CAPTURE(text);
            REQUIRE(sampler.done());
            REQUIRE(!sampler.broken());
            Result<json> parsed = json_parse(text, "text", 1000);
            // Names of additional properties are sampled freely, so that one may repeat another.
            if (parsed.status.message.find("twice") != std::string::npos) continue;
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
    // Limits such as 2 may be written 2.0 or 0.2e1, also where allOf joins schemas.
    CHECK(verdicts(R"({"type": "array", "minItems": 1.0, "maxItems": 0.2e1})", {"[]", "[1]", "[1, 2]", "[1,2,3]"}) ==
          "x++x");
    CHECK(verdicts(R"({"allOf": [{"type": "string", "minLength": 2.0}, {"maxLength": 3.0}]})",
                   {R"("a")", R"("ab")", R"("abc")", R"("abcd")"}) == "x++x");
    // Property a is never generated, because its value would be endless: n requires another n.
    CHECK(verdicts(R"({"properties": {"a": {"$ref": "#/$defs/n"}, "b": {"type": "null"}},
                       "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}})",
                   {"{}", R"({"a": {}})", R"({"a")", R"({"b": null})"}) == "+xx+");
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
            // CHECK(verdicts(...) == expected) would print thousands of letters.
            const bool same = verdicts(schema, texts) == expected;
            CHECK(same);
        }
    }
    CHECK(verdicts(R"({"type": "integer", "minimum": 17})", {"16", "17", "9999999999999999", "-17"}) == "x++x");
    CHECK(verdicts(R"({"type": "integer", "exclusiveMaximum": -9})", {"-9", "-10", "0"}) == "x+x");
    // 9007199254740993 = 2^53 + 1 is no double: the bound must not be rounded to 2^53.
    CHECK(verdicts(R"({"type": "integer", "minimum": 9007199254740993})", {"9007199254740992", "9007199254740993"}) ==
          "x+");
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
    has(R"({"type": "array", "maxItems": 2.5})", "maxItems: expected a whole number from 0");
    has(R"({"type": "string", "minLength": -1.0})", "minLength: expected a whole number from 0");
    const std::string endless = R"({"properties": {"next": {"$ref": "#"}}, "required": ["next"]})";
    CHECK(contains(Grammar::parse(json_schema_grammar(endless, "s").value, "s").status.message,
                   "s: root allows no text that ends"));
    has("1", "expected a schema");
    has("false", "no value is allowed");
    has(R"({"type": "strin"})", "type: expected object");
    has(R"({"type": []})", "at least one");
    has(R"({"items": {"properties": {"x": {"type": "boolean", "minimum": 3}}}})",
        "#/items/properties/x: minimum: not known");
    has(R"({"properties": {"x\ny\u001b": {"not": {}}}})", R"(s: #/properties/x\x0Ay\x1B: not: not known)");
    has(R"({"x\ny": 1})", R"(s: #: x\x0Ay: not known)");
    for (const char* key : {"multipleOf", "not", "if", "uniqueItems", "patternProperties", "minProperties",
                            "dependentRequired", "contains", "propertyNames", "unheardOf"})
        has(formatted(R"({"type": ["object", "array", "number"], "%s": 1})", key), key);
    has(R"({"type": "integer", "maximum": "1.5"})", "maximum: expected a number");
    has(R"({"type": "number", "exclusiveMinimum": true})", "exclusiveMinimum: expected a number");
    has(R"({"type": "number", "minimum": 0.1234567890123456})", "minimum: expected a number of at most 15 digits");
    has(R"({"type": "number", "minimum": 1, "exclusiveMaximum": 1})", "no number is allowed");
    has(R"({"type": "integer", "maximum": 3, "exclusiveMinimum": 3})", "no whole number");
    has(R"({"type": "integer", "minLength": 2})", "minLength: not known here, or not beside");
    has(R"({"anyOf": []})", "list of schemas");
    has(R"({"allOf": []})", "list of schemas");
    has(R"({"allOf": [{"type": "string"}, {"type": "null"}]})", "no value is allowed");
    has(R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "pattern: two schemas that hold together each have");
    has(R"({"allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"additionalProperties": false}]})",
        "#/properties/a: no value");
    has(R"({"prefixItems": 1})", "prefixItems: expected a list");
    has(R"({"prefixItems": [true], "items": false, "minItems": 2})", "fewer than minItems");
    has(R"({"enum": 3})", "list of values");
    has(R"({"enum": [1], "type": "string"})", "allow no value");
    has(R"({"enum": []})", "allow no value");
    has(R"({"$ref": "other.json"})", "a place in this file");
    has(R"({"$ref": "#/$defs/x"})", "no such place");
    has(R"({"$ref": "#", "type": "string"})", "$ref and allOf more than 24 deep");
    has(R"({"maxLength": -1})", "maxLength: expected a whole number");
    has(R"({"maxItems": 100001})", "from 0 to 100000");
    has(R"({"minItems": 3, "maxItems": 2})", "larger than");
    has(R"({"format": "idn-email"})", "format: expected date, time, uuid");
    has(R"({"properties": [], "required": []})", "properties: expected");
    has(R"({"required": "a"})", "required: expected");
    has(R"({"allOf": [{"required": "x"}, {"required": ["y"]}]})", "required: expected a list of names");
    std::string many = R"({"$ref": "#/$defs/a0", "$defs": {)";    // 10^12 joined schemas
    for (int i = 0; i < 12; i++) {
        std::string all;
        for (int k = 0; k < 10; k++) all += formatted(R"(%s{"$ref": "#/$defs/a%d"})", k ? ", " : "", i + 1);
        many += formatted(R"("a%d": {"allOf": [%s]}, )", i, all.c_str());
    }
    has(many + R"("a12": {"type": "string"}}})", "join too many schemas");
    has(R"({"properties": {}, "required": ["a"], "additionalProperties": false})", "'a' is not among");
    has("{\"properties\": {\"" + std::string(257, 'a') + "\": {}}}", "more than 256 bytes");
    has(std::string(70, '[') + std::string(70, ']'), "64 deep");
    has(std::string(300 << 10, ' '), "256 KiB");
    CHECK(!Grammar::parse(json_schema_grammar(R"({"$ref": "#"})", "s").value, "g").ok());
}

TEST_CASE("json schema: oneOf is what exactly one of its schemas allows, or refused") {
    auto one_of = [](const std::string& all) { return "{\"oneOf\": [" + all + "]}"; };
    for (const char* apart :
         {R"({"type": "string"}, {"type": "integer"}, {"type": "null"})",
          R"({"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3})",
          R"({"type": "integer", "maximum": 4}, {"type": "number", "exclusiveMinimum": 4})",
          R"({"const": 1}, {"const": "1"}, {"enum": [2, null]})",
          R"({"const": "abc"}, {"type": "string", "maxLength": 2}, {"const": {"a": 1}}, {"type": "array"})",
          R"({"properties": {"k": {"const": "a"}}, "required": ["k"]},
                {"properties": {"k": {"enum": ["b", "c"]}, "x": {}}, "required": ["k"]})",
          R"({"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]})",
          R"({"properties": {"a": {}}, "required": ["a"]},
                {"properties": {"b": {}}, "additionalProperties": false})",
          R"({"type": "array", "items": {"type": "null"}, "minItems": 1}, {"items": {"type": "string"}})",
          R"({"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2})",
          R"({"anyOf": [{"type": "null"}, {"type": "integer"}]}, {"type": "string"})",
          R"({"$ref": "#/oneOf/1", "type": ["object", "null"]}, {"type": "string"})"}) {
        CAPTURE(std::string(apart));
        const Status s = json_schema_grammar(one_of(apart), "s").status;
        CAPTURE(s.message);
        CHECK(s.ok());
    }
    for (const char* both :
         {R"({"type": "integer"}, {"type": "number"})", R"({"type": "number"}, {"type": "integer"})",
          R"({"type": "string"}, {"type": "string", "pattern": "a"})", R"({}, {"type": "null"})",
          R"({"type": "integer", "maximum": 4}, {"type": "number", "minimum": 4})",
          R"({"const": 1}, {"enum": [1.0, 2]})", R"({"const": "ab"}, {"maxLength": 2})",
          R"({"properties": {"a": {}}}, {"properties": {"b": {}}, "required": ["a"]})",
          R"({"properties": {"k": {"const": "a"}}}, {"properties": {"k": {"const": "b"}}})",
          R"({"properties": {"a": {}}, "required": ["a"]}, {"required": ["a"], "properties": {"b": {}}})",
          R"({"type": "array", "items": {"type": "null"}}, {"type": "array", "items": {"type": "string"}})",
          R"({"type": "array", "maxItems": 2}, {"type": "array", "minItems": 2})",
          R"({"anyOf": [{"type": "null"}, {"type": "integer"}]}, {"type": ["string", "null"]})",
          R"({"type": "boolean"}, {"const": true})", R"({"$ref": "#/oneOf/1"}, {"type": "string"})"}) {
        CAPTURE(std::string(both));
        const Status s = json_schema_grammar(one_of(both), "s").status;
        CHECK(s.code == Exit::input);
        CAPTURE(s.message);
        CHECK(s.message.find("#/oneOf: expected schemas of which exactly one allows a value, found that 0 and 1") !=
              s.message.npos);
    }
    // Properties beside oneOf apply to both branches. So a text that matches the first branch may
    // also have k, and then it matches the second branch, too.
    const char* beside = R"({"properties": {"k": {}, "x": {}}, "oneOf": [{"required": ["x"]}, {"required": ["k"]}]})";
    CHECK(json_schema_grammar(beside, "s").status.message.find("0 and 1 may allow the same") != std::string::npos);
    CHECK(verdicts(one_of(R"({"const": 1}, {"type": "string"})"), {"1", "\"1\"", "2"}) == "++x");
}

TEST_CASE("json schema: decimals in ranges") {
    const double inf = INFINITY;
    const struct {
        const char* schema;
        double least, most;
        bool over, under;
    } rows[] = {{R"("minimum": 0, "maximum": 1)", 0, 1, false, false},
                {R"("exclusiveMinimum": 0, "exclusiveMaximum": 1)", 0, 1, true, true},
                {R"("minimum": -0.5, "exclusiveMaximum": 2.25)", -0.5, 2.25, false, true},
                {R"("exclusiveMinimum": -2.5, "maximum": -1.05)", -2.5, -1.05, true, false},
                {R"("minimum": 1.25, "maximum": 1.3)", 1.25, 1.3, false, false},
                {R"("minimum": 1.25, "maximum": 1.25)", 1.25, 1.25, false, false},
                {R"("exclusiveMinimum": -1, "exclusiveMaximum": 0)", -1, 0, true, true},
                {R"("minimum": -1e-1)", -0.1, inf, false, false},
                {R"("exclusiveMaximum": -0.05)", -inf, -0.05, false, true},
                {R"("maximum": 0)", -inf, 0, false, false},
                {R"("exclusiveMinimum": 2)", 2, inf, true, false},
                {R"("minimum": 0, "exclusiveMinimum": 0.5, "maximum": 9e1)", 0.5, 90, true, false},
                {R"("minimum": 1, "exclusiveMinimum": 1)", 1, inf, true, false},
                {R"("minimum": 1, "exclusiveMinimum": 0.5)", 1, inf, false, false}};
    for (auto& row : rows) {
        CAPTURE(row.schema);
        std::vector<std::string> texts;
        std::string expected;
        for (int x = -350; x <= 350; x += 5) {
            const double v = x / 100.0;
            const bool in = (row.over ? v > row.least : v >= row.least) && (row.under ? v < row.most : v <= row.most);
            for (const char* form : {"%.2f", "%g"}) {
                texts.push_back(x == 0 ? form[1] == 'g' ? "0" : "0.00" : formatted(form, v));
                expected += in ? '+' : 'x';
            }
        }
        CHECK(verdicts(std::string(R"({"type": "number", )") + row.schema + "}", texts) == expected);
    }
    CHECK(verdicts(R"({"minimum": 0.5, "maximum": 1200})", {"0.5", "0.499999", "0.", ".5", "00.5", "1200", "1200.0",
                                                            "1200.00001", "1199.99", "87", "-1", "\"1\""}) ==
          "+xxxx++x++xx");
    CHECK(verdicts(R"({"type": "number", "exclusiveMaximum": 100})",
                   // Up to 15 digits, which a double preserves, and no exponent.
                   {"99.999999999999", "99.999999999999999999", "-5e3"}) == "+xx");
    CHECK(verdicts(R"({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 3.0})", {"0", "1", "2", "3"}) == "x++x");
    CHECK(verdicts(R"({"type": "integer", "exclusiveMinimum": -2.5, "maximum": -1})", {"-3", "-2", "-1", "0"}) ==
          "x++x");
}

TEST_CASE("json schema: patterns find what std::regex finds, in all short texts") {
    std::vector<std::string> texts = {""};
    for (size_t from = 0, length = 0; length < 4; length++)
        for (const size_t to = texts.size(); from < to; from++)
            for (char c : std::string("abA1_ -")) texts.push_back(texts[from] + c);
    for (const char* pattern : {"a",
                                "^a",
                                "a$",
                                "^a$",
                                "",
                                "^$",
                                "^ab|b1$",
                                "^(ab|b)*$",
                                "^(?:a|b){2,3}$",
                                "^a?b+?1*$",
                                "^[^a-zA-Z]+$",
                                "[-a]_",
                                "^\\w+$",
                                "^\\d{2}",
                                "\\D$",
                                "^\\S*\\s\\W",
                                "^.{3}$",
                                "^(a|ab)(1|b1)",
                                "(^a|b$)",
                                "(a{2}){2}|^_$",
                                "^[ab]{2}[^\\d]?$",
                                "^(a*)*$",
                                "^[\\d_-]{1,}$",
                                "a^|^b",
                                "$a|1$",
                                "^\\x61\\u0062",
                                "^(a|^b|1$)+$"})
        for (auto [least, most] : {std::pair{0, -1}, std::pair{2, -1}, std::pair{1, 3}}) {
            CAPTURE(std::string(pattern));
            json s = {{"pattern", pattern}};
            if (least) s["minLength"] = least;
            if (most >= 0) s["maxLength"] = most;
            // Fails if no text can match.
            const Status some = json_schema_grammar(s.dump(), "s").status;
            if (!some.ok()) CHECK(some.message.find("it finds nothing") != some.message.npos);
            GrammarMachine m;
            if (some.ok()) m = GrammarMachine(schema_grammar(s.dump()));
            const std::regex expected(pattern);
            int wrong = 0;
            for (const std::string& text : texts) {
                int state = m.start();
                for (char c : "\"" + text + "\"") state = m.step(state, static_cast<unsigned char>(c));
                const bool in = int(text.size()) >= least && (most < 0 || int(text.size()) <= most);
                wrong += m.may_end(state) != (in && std::regex_search(text, expected));
            }
            CHECK(wrong == 0);
        }
    // A pattern's characters match their JSON form, such as \n; each counts once, whatever its
    // bytes.
    CHECK(verdicts(R"({"pattern": "^[\"\\\\\n]x$"})", {R"("\"x")", R"("\\x")", R"("\nx")", "\"\nx\"", R"("ax")"}) ==
          "+++xx");
    CHECK(verdicts(R"({"pattern": "^.é$", "maxLength": 2})", {"\"€é\"", "\"é\"", "\"\u2028é\""}) == "+xx");
    CHECK(verdicts(R"({"pattern": "^\\x01$"})", {R"("\u0001")", "\"\x01\""}) == "+x");
    CHECK(verdicts(R"({"pattern": "^[^\\s]$"})", {"\"\uFEFF\"", "\"\u0085\"", "\"a\""}) == "xx+");
    for (auto [pattern, what] :
         {std::pair{"(?=a)b", "(? other than"}, std::pair{"(?<=a)b", "a look behind"}, std::pair{"(a)\\1", "\\1"},
          std::pair{"\\bx", "\\b"}, std::pair{"(a", "without its )"}, std::pair{"a)", "closes nothing"},
          std::pair{"[a", "without its ]"}, std::pair{"*a", "repeats nothing"}, std::pair{"a**", "a repetition of a"},
          std::pair{"a{2,1}", "{2,5}"}, std::pair{"a{1001}", "1000 times"}, std::pair{"a{,3}", "a { that"},
          std::pair{"[b-a]", "other than a-z"}, std::pair{"[]", "without characters"}, std::pair{"a\\", "at the end"},
          std::pair{"(a{999}){999}", "so long an expression, with"}, std::pair{"\\ud800", "half a character"},
          std::pair{"\\x1", "digits"}, std::pair{"a^b", "it finds nothing"}}) {
        const Status s = json_schema_grammar(json{{"pattern", pattern}}.dump(), "s").status;
        CAPTURE(s.message);
        CHECK(s.code == Exit::input);
        CHECK(s.message.find(std::string("s: #: pattern: ")) == 0);
        CHECK(s.message.find(what) != s.message.npos);
    }
    std::string deep;
    for (int i = 0; i < 100'000; i++) deep += "(";
    CHECK(json_schema_grammar(json{{"pattern", deep}}.dump(), "s").status.message.find("50 deep") != deep.npos);
}

TEST_CASE("json schema: schemas that hold together; tuples; members that only required names") {
    const char* base = R"({"$defs": {"b": {"type": "object", "properties": {"id": {"type": "integer"}, "n": {}},
        "required": ["id"]}}, "allOf": [{"$ref": "#/$defs/b"}, {"properties": {"id": {"minimum": 3, "maximum": 5},
        "s": {"type": "null"}}, "required": ["s"]}]})";
    CHECK(verdicts(base, {R"({"id":3,"s":null})", R"({"id":6,"s":null})", R"({"id":3})", R"({"id":4,"n":{},"s":null})",
                          R"({"s":null})"}) == "+xx+x");
    CHECK(verdicts(R"({"allOf": [{"minLength": 2, "maxLength": 9}, {"maxLength": 3, "minLength": 1}]})",
                   {R"("a")", R"("ab")", R"("abc")", R"("abcd")"}) == "x++x");
    CHECK(verdicts(R"({"allOf": [{"type": ["number", "null"]}, {"type": ["string", "integer"]}]})",
                   {"1", "1.5", "null", "\"a\""}) == "+xxx");
    CHECK(verdicts(R"({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}], "const": 3})", {"2", "3"}) == "x+");
    CHECK(verdicts(R"({"allOf": [{"anyOf": [{"const": 1}, {"const": "a"}]}, true, {"anyOf": [{"type": "string"}]}]})",
                   {"1", "\"a\""}) == "x+");
    CHECK(verdicts(R"({"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
                   {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})", R"({"a":1,"c":1})"}) == "x+++x");
    CHECK(verdicts(R"({"allOf": [{"additionalProperties": {"type": "null"}}, {"properties": {"a": {}, "b": false}}]})",
                   {R"({"a":null})", R"({"a":1})", R"({"b":null})", R"({"c":null})", R"({"c":1})"}) == "+xx+x");
    // The items' schema joins the root's: equal schemas share one grammar rule, so this terminates.
    CHECK(verdicts(R"({"properties": {"k": {"items": {"allOf": [{"$ref": "#"}, {"required": ["k"]}]}}}})",
                   {R"({"k":[{"k":[]}]})", R"({"k":[{}]})"}) == "+x");
    CHECK(verdicts(R"({"$ref": "#/$defs/a", "title": "T", "$defs": {"a": {"const": 5}}})", {"5", "4"}) == "+x");

    auto tuple = [](const std::string& more) { return R"({"prefixItems": [{"const": 1}, {"const": 2}])" + more + "}"; };
    const std::vector<std::string> arrays = {"[]", "[1]", "[1,2]", "[1,2,3]", "[1, 2, 3, 3]", "[2]", "[1,3]"};
    CHECK(verdicts(tuple(""), arrays) == "+++xxxx");
    CHECK(verdicts(tuple(R"(, "minItems": 2)"), arrays) == "xx+xxxx");
    CHECK(verdicts(tuple(R"(, "minItems": 1, "maxItems": 1)"), arrays) == "x+xxxxx");
    CHECK(verdicts(tuple(R"(, "items": {"const": 3})"), arrays) == "+++++xx");
    CHECK(verdicts(tuple(R"(, "items": {"const": 3}, "minItems": 3, "maxItems": 3)"), arrays) == "xxx+xxx");
    CHECK(verdicts(tuple(R"(, "items": false)"), arrays) == "+++xxxx");
    CHECK(verdicts(tuple(R"(, "minItems": 4)"), arrays) == "xxxx+xx");
    CHECK(verdicts(tuple(R"(, "maxItems": 0)"), arrays) == "+xxxxxx");

    CHECK(verdicts(R"({"properties": {"a": {"const": 1}}, "required": ["z", "a"]})",
                   {R"({"a":1,"z":[{}]})", R"({"a":1})", R"({"z":1})", R"({"a":1,"z":1,"y":1})"}) == "+xxx");
    CHECK(verdicts(R"({"properties": {"a": false, "b": {"const": 1}}})", {"{}", R"({"b":1})", R"({"a":1})"}) == "++x");
}

TEST_CASE("json schema: white space is bounded at each place") {
    GrammarMachine m(schema_grammar(R"({"type": "object", "properties": {"a": {"items": {"type": "null"}}}})"));
    const std::string text = R"({"a":[null,null]})";
    std::string before;
    for (size_t at = 0; at <= text.size(); before += text[at++])
        for (const char* more : {" ", "\n", "\t"}) {
            int state = m.start(), n = 0;
            for (char c : before) state = m.step(state, static_cast<unsigned char>(c));
            for (char c = more[0]; n < 100 && (state = m.step(state, static_cast<unsigned char>(c))) >= 0; n++)
                if (c == '\n') c = ' ';
            CHECK(n <= 50);    // two places of 25 in an empty list
        }
}
