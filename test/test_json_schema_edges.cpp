// test_json_schema_edges.cpp - limits of JSON Schemas: digits, formats, bounds, joined schemas.
#include "files/json.h"
#include "schema_grammar.h"

namespace {
using nlohmann::json;
void refused(const std::string& schema, const char* what) {
    CAPTURE(schema);
    const Status s = json_schema_grammar(schema, "s").status;
    CHECK(s.code == Exit::input);
    CAPTURE(s.message);
    CHECK(contains(s.message, what));
}
std::string quoted(const std::string& text) { return json(text).dump(); }
}    // namespace

TEST_CASE("json schema edges: numbers have the digits of a double, escapes are whole characters") {
    const std::string digits = "1234567890123456";
    CHECK(verdicts(R"({"type": "integer"})", {digits, "-" + digits, digits + "7", "0", "-0"}) == "++x++");
    CHECK(verdicts(R"({"type": "number"})",
                   {"0." + digits, "0." + digits + "7", "1e99", "1e308", "1.5E-05", digits + "7"}) == "+x+x+x");
    CHECK(verdicts("{}", {R"("\uD7FF")", R"("\uDFFF")", R"("\uE000")", R"("\ud800\udc00")", R"("\uD")"}) == "+x+xx");
    CHECK(verdicts(R"({"maximum": 1200})", {"1199.12345678901", "1199.123456789012", "1200.0", "1200.1"}) == "+x+x");
    CHECK(verdicts(R"({"maximum": 123456789012345})", {"123456789012345", "123456789012346", "1.5"}) == "+x+");
    refused(R"({"type": "integer", "minimum": 2e16})", "minimum: expected a number of at most 16 digits");
    refused(R"({"minimum": 1e15})", "minimum: expected a number of at most 15 digits");
    refused(R"({"maximum": 1e300})", "maximum: expected a number of at most 15 digits");
}

TEST_CASE("json schema edges: formats") {
    const struct {
        const char* format;
        std::vector<std::string> good, bad;
    } rows[] = {{"date",
                 {"2026-01-31", "2024-02-28", "0000-11-30", "1999-09-29", "2000-10-01"},
                 {"2026-02-29", "2026-04-31", "2026-00-10", "2026-01-00", "2026-01-32", "26-01-01", "2026-1-1"}},
                {"time",
                 {"00:00:00Z", "23:59:59.123456+23:59", "12:30:45-00:00"},
                 {"24:00:00Z", "12:60:00Z", "12:00:60Z", "12:00:00", "12:00Z", "12:00:00.Z", "12:00:00.1234567Z"}},
                {"date-time", {"2026-12-31T23:59:59Z"}, {"2026-12-31", "2026-02-30T00:00:00Z", "2026-12-31T23:59:59"}},
                {"uuid",
                 {"123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-42661417400F"},
                 {"123e4567e89b12d3a456426614174000", "23e4567-e89b-12d3-a456-426614174000",
                  "g23e4567-e89b-12d3-a456-42661417400"}},
                {"hostname",
                 {"a.b", "a-b.example.com", "1.2.3.4"},
                 {"localhost", "-a.b", "a-.b", "a..b", "a.b.", "a.b.c.d.e", "A.b", ".a.b"}},
                {"email", {"a@b.c", "a.b-c_d+e@x.y"}, {"a@b", "a@", "@b.c", "a.@b.c", ".a@b.c", "a b@c.d"}},
                {"ipv4",
                 {"0.0.0.0", "255.249.199.99", "10.100.200.25"},
                 {"256.0.0.0", "1.2.3", "1.2.3.4.5", "01.2.3.4", "300.1.1.1"}},
                {"uri",
                 {"http://a.b", "https://a.b/c/~d?e=f&g", "https://a.b/"},
                 {"//a.b", "ftp://a.b", "http://a", "http://a.b?", "http://a.b/c d", "a.b"}}};
    for (const auto& row : rows) {
        CAPTURE(std::string(row.format));
        std::vector<std::string> texts;
        for (const auto* all : {&row.good, &row.bad})
            for (const std::string& text : *all) texts.push_back(quoted(text));
        CHECK(verdicts(json{{"format", row.format}}.dump(), texts) ==
              std::string(row.good.size(), '+') + std::string(row.bad.size(), 'x'));
    }
    refused(R"({"format": "date", "maxLength": 3})", "without a length");
    refused(R"({"format": "date", "pattern": "a"})", "format: not beside pattern");
}

TEST_CASE("json schema edges: every pair of bounds allows what lies between them") {
    const double bounds[] = {-12.5, -1.27, -1.25, -1.2, -1, -0.05, 0, 0.05, 0.5, 1, 1.25, 1.27, 1.3, 9.99, 10, 112.5};
    for (const double low : bounds)
        for (const double high : bounds)
            for (const int open : {0, 1, 2, 3}) {
                if (low > high) continue;
                CAPTURE(low);
                CAPTURE(high);
                CAPTURE(open);
                const json s = {{open & 1 ? "exclusiveMinimum" : "minimum", low},
                                {open & 2 ? "exclusiveMaximum" : "maximum", high}};
                if (low == high && open) {
                    refused(s.dump(), "no number is allowed");
                    continue;
                }
                std::vector<std::string> texts = {"-0", "-0.0", "00", "1.", ".5"};
                std::string expected = "xxxxx";
                for (const double bound : bounds)
                    for (const double step : {0.0, 0.001, -0.001, 0.1, -0.1, 0.03}) {
                        const double v = std::round((bound + step) * 1000) / 1000;
                        for (const char* form : {"%.6f", "%g"}) {
                            texts.push_back(formatted(form, v == 0 ? 0.0 : v));
                            const bool in = (open & 1 ? v > low : v >= low) && (open & 2 ? v < high : v <= high);
                            expected += in ? '+' : 'x';
                        }
                    }
                const bool same = verdicts(s.dump(), texts) == expected;
                CHECK(same);
            }
    CHECK(verdicts(R"({"minimum": 1e-7, "maximum": 2.5e-7})",
                   {"0.0000001", "0.00000024", "0.00000009", "0.0000003", "0"}) == "++xxx");
    CHECK(verdicts(R"({"minimum": -0.0})", {"0", "5", "-1", "-0.5"}) == "++xx");
    CHECK(verdicts(R"({"type": "integer", "minimum": -2.5, "maximum": 2.5})", {"-3", "-2", "0", "2", "3"}) == "x+++x");
    CHECK(verdicts(R"({"type": "integer", "minimum": 5, "exclusiveMinimum": 2, "maximum": 7, "exclusiveMaximum": 20})",
                   {"4", "5", "7", "8"}) == "x++x");
    CHECK(verdicts(R"({"minimum": 5, "exclusiveMinimum": 2, "maximum": 7, "exclusiveMaximum": 20})",
                   {"4", "5", "7", "8"}) == "x++x");
}

TEST_CASE("json schema edges: members and items") {
    const std::string name(256, 'a');
    CHECK(verdicts("{\"properties\": {\"" + name + "\": {}}}", {"{\"" + name + "\":1}"}) == "+");
    refused("{\"required\": [\"" + name + "a\"]}", "required: a name of more than 256 bytes");
    CHECK(verdicts(R"({"required": ["z", "z"]})", {R"({"z":1})", R"({"z":1,"z":1})", "{}"}) == "+xx");
    const char* odd = R"({"properties": {"]": {"type": "null"}, "^": {"type": "null"}, "a\\b": {"type": "null"},
        "\"": {"type": "null"}, "é": {"type": "null"}}, "additionalProperties": {"type": "integer"}})";
    CHECK(verdicts(odd, {R"({"]":null})", R"({"^":null})", R"({"a\\b":null})", R"({"\"":null})", R"({"é":null})",
                         R"({"è":1})", R"({"éa":1})", R"({"a":1})", R"({"]]":1})"}) == "+++++++++");
    CHECK(verdicts(odd, {R"({"]":1})", R"({"^":1})", R"({"a\\b":1})", R"({"é":1})", R"({"é":1.5})"}) == "xxxxx");
    CHECK(verdicts(R"({"prefixItems": [{"const": 1}, {"const": 2}], "items": false, "maxItems": 1})",
                   {"[]", "[1]", "[1,2]"}) == "++x");
    CHECK(verdicts(R"({"prefixItems": [{"const": 1}, false, {"const": 3}]})", {"[]", "[1]", "[1,3]"}) == "++x");
    CHECK(verdicts(R"({"items": {"const": 1}, "minItems": 2})", {"[1]", "[1,1]", "[1,1,1]"}) == "x++");
    CHECK(verdicts(R"({"type": ["integer", "string"], "enum": [1.0, 1.5, "a", null]})",
                   {"1.0", "1.5", "\"a\"", "null"}) == "+x+x");
    refused(R"({"enum": [1], "minimum": 0})", "minimum: not known here");
    refused(R"({"$ref": "#/$defs/x", "$defs": {"x": {"type": "y"}}})", "s: #/$defs/x: type: expected");
}

TEST_CASE("json schema edges: patterns") {
    auto finds = [](const char* pattern, const std::vector<std::string>& texts) {
        return verdicts(json{{"pattern", pattern}}.dump(), texts);
    };
    CHECK(finds("^\\W$", {"\"é\"", "\"-\"", "\"a\""}) == "x+x");
    CHECK(finds("^\\D$", {"\"é\"", "\"a\"", "\"1\""}) == "x+x");
    CHECK(finds("^\\S$", {"\"é\"", "\"\uFEFF\"", "\"\u0085\"", "\"\u00A0\""}) == "+xxx");
    CHECK(finds("^\\s$", {"\"\u00A0\"", "\"\uFEFF\"", "\" \"", R"("\t")"}) == "+x++");
    CHECK(finds("^[^\\ue000]$", {"\"a\"", "\"\uE000\"", "\"\uD7FF\"", "\"\uE001\""}) == "+x++");
    CHECK(finds("^\\0$", {R"("\u0000")"}) == "+");
    CHECK(finds("^[a-]$", {"\"a\"", "\"-\"", "\"b\""}) == "++x");
    CHECK(finds("^[b-da-c]$", {"\"a\"", "\"d\"", "\"e\""}) == "++x");
    std::string a50 = std::string(50, '(') + "a" + std::string(50, ')');
    CHECK(finds(a50.c_str(), {"\"a\""}) == "+");
    refused(json{{"pattern", "(" + a50 + ")"}}.dump(), "50 deep");
    for (const char* pattern : {"\\01", "a)", "a{3,2}", "[\\d-z]", "\\uDC00", "\\uDFFF"})
        CHECK_FALSE(json_schema_grammar(json{{"pattern", pattern}}.dump(), "s").ok());
    refused(R"({"pattern": "a", "minLength": 100000})", "so long an expression beside these lengths");
}

TEST_CASE("json schema edges: schemas that hold together") {
    CHECK(verdicts(R"({"allOf": [{"minLength": 1, "maxLength": 3}, {"maxLength": 9, "minLength": 2}]})",
                   {R"("a")", R"("ab")", R"("abc")", R"("abcd")"}) == "x++x");
    CHECK(verdicts(R"({"allOf": [{"exclusiveMinimum": 1, "exclusiveMaximum": 5}, {"exclusiveMinimum": 2,
        "exclusiveMaximum": 9}], "type": "integer"})",
                   {"2", "3", "4", "5"}) == "x++x");
    CHECK(verdicts(R"({"allOf": [{"exclusiveMinimum": 2, "exclusiveMaximum": 9}, {"exclusiveMinimum": 1,
        "exclusiveMaximum": 5}], "type": "integer"})",
                   {"2", "3", "4", "5"}) == "x++x");
    CHECK(verdicts(R"({"allOf": [{"type": ["number", "null"]}, {"type": ["number", "string"]}]})",
                   {"1", "1.5", "null"}) == "++x");
    CHECK(verdicts(R"({"allOf": [{"properties": {"a": {}}, "additionalProperties": false},
                                 {"properties": {"a": {}}}]})",
                   {"{}", R"({"a":1})", R"({"b":1})"}) == "++x");
    // Properties a and b have equal schemas without any value: neither may occur, c may.
    const std::string none = R"({"allOf": [{"type": "string"}, {"type": "null"}]})";
    CHECK(verdicts("{\"properties\": {\"a\": " + none + ", \"b\": " + none + ", \"c\": {\"const\": 1}}}",
                   {R"({"c":1})", R"({"a":1,"c":1})"}) == "+x");
    std::string many;    // 60 side by side; nesting's limit is 40
    for (int i = 0; i < 60; i++)
        many += formatted(R"(%s"p%d": {"allOf": [{"type": "string"}, {"maxLength": %d}]})", i ? ", " : "", i, i);
    CHECK(json_schema_grammar("{\"properties\": {" + many + "}}", "s").ok());
    for (int i = 60; i < 2001; i++)
        many += formatted(R"(, "p%d": {"allOf": [{"type": "string"}, {"maxLength": %d}]})", i, i);
    refused("{\"properties\": {" + many + "}}", "make too many schemas");
    auto chain = [](int n) {
        std::string all = R"({"$ref": "#/$defs/d0", "$defs": {)";
        for (int i = 0; i < n; i++)
            all += formatted(R"("d%d": {"items": {"$ref": "#/$defs/d%d", "minItems": %d}}, )", i, i + 1, i + 1);
        return all + formatted(R"("d%d": {"type": "array"}}})", n);
    };
    CHECK(json_schema_grammar(chain(40), "s").ok());
    refused(chain(41), "make too many schemas");
    std::string any;
    for (int i = 0; i < 17; i++) any += formatted("%s{\"const\": %d}", i ? ", " : "", i);
    refused("{\"allOf\": [{\"anyOf\": [" + any + "]}, {\"anyOf\": [" + any + ", 99]}]}", "anyOf: two schemas");
    refused(R"({"allOf": [{"prefixItems": [{}]}, {"items": {"type": "null"}}]})", "prefixItems: items of a schema");
    refused(R"({"allOf": [{"properties": {"a": {}}, "additionalProperties": false},
                          {"additionalProperties": {"type": "null"}, "required": ["z"]}]})",
            "'z' is not among");
    CHECK(verdicts(R"({"$defs": {"~1": {"const": 5}, "/": {"const": 6}}, "$ref": "#/$defs/~01"})", {"5", "6"}) == "+x");
    for (const char* place : {"#/x/2", "#/x/4294967296", "#/x/-1", "#/x/", "#/x/0/y", "#x"})
        refused(R"({"x": [true, true], "$ref": ")" + std::string(place) + "\"}", "$ref '#");
}

TEST_CASE("json schema edges: schemas of which one alone allows a value") {
    for (const char* apart :
         {R"(false, {"type": "string"})", R"({"exclusiveMaximum": 4}, {"exclusiveMinimum": 4})",
          R"({"maximum": 4}, {"minimum": 5})", R"({"const": "éé"}, {"type": "string", "minLength": 3})",
          R"({"const": {"k": 1}}, {"properties": {"k": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                                      "required": ["k"]})",
          R"({"const": {"a": 1}}, {"properties": {"b": {}}, "required": ["b"]})",
          R"({"const": {"a": 1}}, {"properties": {"b": {}}, "additionalProperties": false})",
          R"({"const": [1]}, {"type": "array", "minItems": 2})", R"({"const": true}, {"const": null})"}) {
        CAPTURE(std::string(apart));
        const Status s = json_schema_grammar("{\"oneOf\": [" + std::string(apart) + "]}", "s").status;
        CAPTURE(s.message);
        CHECK(s.ok());
    }
    for (const char* both :
         {// A text fits both: k stands beside anyOf, and unnamed members are allowed.
          R"({"properties": {"k": {}}, "anyOf": [{"properties": {"x": {}}, "required": ["x"]}]},
                {"properties": {"k": {}}, "required": ["k"]})",
          R"({"properties": {"z": {}}, "required": ["z"], "additionalProperties": true},
                {"properties": {"k": {}}, "required": ["k"]})",
          R"({"properties": {"k": {}, "z": {}}, "required": ["z"]}, {"properties": {"k": {}}, "required": ["k"]})",
          R"({"properties": {"a": {}}, "required": ["a"]},
                {"properties": {"b": {}}, "required": ["b"], "additionalProperties": true})",
          R"({"prefixItems": [{"const": "s"}], "items": {"type": "null"}, "minItems": 1},
                {"items": {"type": "string"}, "minItems": 1})",
          R"({"const": "éé"}, {"type": "string", "minLength": 2})",
          R"({"const": {"k": 1}}, {"properties": {"k": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}})"}) {
        CAPTURE(std::string(both));
        refused("{\"oneOf\": [" + std::string(both) + "]}", "0 and 1 may allow the same");
    }
}
