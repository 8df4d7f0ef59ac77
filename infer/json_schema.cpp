// json_schema.cpp - see json_schema.h. Each schema becomes a rule; a $ref names the rule of its place.
#include "json_schema.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "files/json.h"

namespace {
using nlohmann::ordered_json;
constexpr int64_t MOST_COUNT = 100'000;    // GBNF's own limit for repetitions
constexpr size_t MOST_BYTES = 256 << 10, MOST_KEY = 256;

// Where a value may be anything; and the parts of others. A space or a line's start, not more: a model could go on with
// them for ever. Numbers have as many digits as a double.
const char* const COMMON = R"(
ws ::= " "? | "\n" [ \t]{0,24}
char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] hex{3} | [dD] [0-7] hex{2}))
hex ::= [0-9a-fA-F]
integer ::= "-"? ("0" | [1-9] [0-9]{0,15})
number ::= integer ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?
string ::= "\"" char* "\""
boolean ::= "true" | "false"
null ::= "null"
member ::= string ":" ws value
object ::= "{" ws (member ("," ws member)*)? ws "}"
array ::= "[" ws (value ("," ws value)*)? ws "]"
value ::= object | array | string | number | boolean | null
day ::= "0" [1-9] | "1" [0-9] | "2" [0-8]
month ::= ("0" [13578] | "1" [02]) "-" (day | "29" | "3" [01]) | ("0" [469] | "11") "-" (day | "29" | "30") | "02-" day
date ::= [0-9]{4} "-" month
minutes ::= ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]
time ::= minutes ":" [0-5] [0-9] ("." [0-9]{1,6})? ("Z" | [-+] minutes)
uuid ::= hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12}
)";
const char* const TYPES[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
const std::set<std::string> IGNORED = {"title", "description", "default", "examples", "$schema", "$id", "$comment",
                                       "$anchor", "deprecated", "readOnly", "writeOnly", "$defs", "definitions"};

// A literal in GBNF.
std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (char c : text) {
        if (static_cast<unsigned char>(c) < ' ') out += formatted("\\x%02X", c);
        else if (c == '"' || c == '\\') out += std::string("\\") + c;
        else out += c;
    }
    return out + "\"";
}
// The text as JSON has it.
std::string literal(const ordered_json& value) { return quoted(value.dump()); }

// The numbers from a to b of as many digits.
std::string digits_between(const std::string& a, const std::string& b) {
    if (a == b) return quoted(a);
    const size_t n = a.size() - 1;
    if (a[0] == b[0]) return quoted(a.substr(0, 1)) + " " + digits_between(a.substr(1), b.substr(1));
    const bool whole_a = a.substr(1) == std::string(n, '0'), whole_b = b.substr(1) == std::string(n, '9');
    const char from = char(a[0] + !whole_a), to = char(b[0] - !whole_b);
    std::string all;
    if (from <= to) all = formatted(" | [%c-%c] [0-9]{%zu}", from, to, n);
    if (!whole_a) all += formatted(" | \"%c\" ", a[0]) + digits_between(a.substr(1), std::string(n, '9'));
    if (!whole_b) all += formatted(" | \"%c\" ", b[0]) + digits_between(std::string(n, '0'), b.substr(1));
    return "(" + all.substr(3) + ")";
}
// Whole numbers from `least` >= 0 to `most`.
std::string between(int64_t least, int64_t most) {
    std::string all;
    for (int64_t first = 1, from = least; from <= most; first *= 10) {    // those of one length
        if (from >= first * 10) continue;
        const int64_t to = std::min(most, first * 10 - 1);
        all += " | " + digits_between(std::to_string(from), std::to_string(to));
        from = to + 1;
    }
    return all;
}

class Compiler {
  public:
    Compiler(const ordered_json& root, const std::string& name) : root(root), name(name) {}
    Result<std::string> run();

  private:
    using Keys = std::set<std::string>;
    Status refuse(const std::string& place, const std::string& what) const {
        std::string line;    // keys may hold anything
        for (char c : "#" + place + ": " + what)
            line += static_cast<unsigned char>(c) < ' ' ? formatted("\\x%02X", c) : std::string(1, c);
        return fail(Exit::input, "%s: %s", name.c_str(), line.c_str());
    }
    std::string add(const std::string& body) {
        const std::string rule = "r" + std::to_string(count++);
        rules += rule + " ::= " + body + "\n";
        return rule;
    }
    Result<std::string> value(const ordered_json& schema, const std::string& place);    // gives its rule's name
    Result<std::string> of_type(const std::string& type, const ordered_json& s, const std::string& place, Keys& used);
    Result<std::string> object(const ordered_json& s, const std::string& place);
    Result<std::string> array(const ordered_json& s, const std::string& place);
    Result<std::string> string(const ordered_json& s, const std::string& place);
    Result<std::string> integer(const ordered_json& s, const std::string& place);
    Result<std::string> any_of(const ordered_json& all, const std::string& place);
    Result<std::string> one_of_values(const ordered_json& s, const std::string& place);
    Result<std::string> reference(const ordered_json& s, const std::string& place);
    Result<std::string> times(const ordered_json& s, const char* least, const char* most, int64_t minus,
                              const std::string& place);
    Result<std::vector<std::string>> types(const ordered_json& s, const std::string& place);
    std::string other_keys(const std::set<std::string>& taken);
    Status only(const ordered_json& s, const Keys& used, const std::string& place) const;

    const ordered_json& root;
    const std::string& name;
    std::string rules;
    int count = 0;
    std::map<std::string, std::string> places;                       // a $ref's rule
    std::vector<std::pair<std::string, const ordered_json*>> open;    // those that are still to be compiled
};

Status Compiler::only(const ordered_json& s, const Keys& used, const std::string& place) const {
    for (auto& [key, of] : s.items())
        if (!used.count(key) && !IGNORED.count(key))
            return refuse(place, key == "pattern"
                                     ? "pattern: regular expressions are not known here; write a grammar (--grammar)"
                                     : key.substr(0, 60) + ": not known here, or not beside the other keywords");
    return {};
}

// Types that the schema's keywords are about, where it names none.
Result<std::vector<std::string>> Compiler::types(const ordered_json& s, const std::string& place) {
    std::vector<std::string> all;
    if (!s.contains("type")) {
        for (const char* key : {"properties", "required", "additionalProperties"})
            if (s.contains(key)) return std::vector<std::string>{"object"};
        for (const char* key : {"items", "minItems", "maxItems"})
            if (s.contains(key)) return std::vector<std::string>{"array"};
        for (const char* key : {"minLength", "maxLength", "pattern", "format"})
            if (s.contains(key)) return std::vector<std::string>{"string"};
        return all;
    }
    const ordered_json& type = s["type"];
    for (const ordered_json& t : type.is_array() ? type : ordered_json::array({type})) {
        if (!t.is_string() || std::find(std::begin(TYPES), std::end(TYPES), t.get<std::string>()) == std::end(TYPES))
            return refuse(place, "type: expected object, array, string, number, integer, boolean or null");
        all.push_back(t);
    }
    if (all.empty()) return refuse(place, "type: expected at least one");
    return all;
}

Result<std::string> Compiler::value(const ordered_json& s, const std::string& place) {
    if (s.is_boolean() && s.get<bool>()) return std::string("value");
    if (s.is_boolean()) return refuse(place, "false: no value is allowed there");
    if (!s.is_object()) return refuse(place, "expected a schema: an object, true or false");
    if (s.contains("$ref")) return reference(s, place);
    if (s.contains("enum") || s.contains("const")) return one_of_values(s, place);
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
        if (!s.contains(key)) continue;
        TRY(only(s, {key}, place));
        if (key == std::string("allOf") && (!s[key].is_array() || s[key].size() != 1))
            return refuse(place, "allOf: only of one schema");
        return any_of(s[key], place + "/" + key);
    }
    const std::vector<std::string> named = TRY(types(s, place));
    Keys used = {"type"};
    std::string body;
    for (const std::string& type : named) {
        const std::string one = TRY(of_type(type, s, place, used));
        body += (body.empty() ? "" : " | ") + one;
    }
    TRY(only(s, used, place));
    return named.empty() ? "value" : named.size() == 1 ? body : add(body);
}
Result<std::string> Compiler::of_type(const std::string& type, const ordered_json& s, const std::string& place,
                                      Keys& used) {
    if (type == "object") {
        used.insert({"properties", "required", "additionalProperties"});
        return object(s, place);
    }
    if (type == "array") {
        used.insert({"items", "minItems", "maxItems"});
        if (s.contains("uniqueItems") && s["uniqueItems"] == false) used.insert("uniqueItems");
        return array(s, place);
    }
    if (type == "integer") {
        used.insert({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
        return integer(s, place);
    }
    if (type != "string") return type;
    used.insert({"minLength", "maxLength", "format"});
    return string(s, place);
}

Result<std::string> Compiler::any_of(const ordered_json& all, const std::string& place) {
    if (!all.is_array() || all.empty()) return refuse(place, "expected a list of schemas");
    std::string body;
    for (size_t i = 0; i < all.size(); i++)
        body += (i ? " | " : "") + TRY(value(all[i], place + "/" + std::to_string(i)));
    return all.size() == 1 ? body : add(body);
}
Result<std::string> Compiler::one_of_values(const ordered_json& s, const std::string& place) {
    TRY(only(s, {"enum", "const", "type"}, place));
    if (s.contains("enum") && !s["enum"].is_array()) return refuse(place, "enum: expected a list of values");
    const std::vector<std::string> named = TRY(types(s, place));
    std::string body;
    for (const ordered_json& v : s.contains("enum") ? s["enum"] : ordered_json::array({s["const"]})) {
        const std::string type = v.is_object() ? "object" : v.is_array() ? "array" : v.is_string() ? "string"
                               : v.is_boolean() ? "boolean" : v.is_null() ? "null" : "number";
        auto is = [&](const char* t) { return std::find(named.begin(), named.end(), t) != named.end(); };
        const bool whole = v.is_number_integer() || (v.is_number() && v.get<double>() == std::floor(v.get<double>()));
        if (!named.empty() && !is(type.c_str()) && !(type == "number" && whole && is("integer"))) continue;
        if (s.contains("enum") && s.contains("const") && v != s["const"]) continue;
        body += (body.empty() ? "" : " | ") + literal(v);
    }
    if (body.empty()) return refuse(place, "enum, const, type: together they allow no value");
    return add(body);
}

// The rule of a place in this file; places are compiled one after the other, not within each other.
Result<std::string> Compiler::reference(const ordered_json& s, const std::string& place) {
    TRY(only(s, {"$ref"}, place));
    if (!s["$ref"].is_string()) return refuse(place, "$ref: expected a string");
    const std::string to = s["$ref"];
    if (to != "#" && !to.starts_with("#/"))
        return refuse(place, "$ref '" + to.substr(0, 60) + "': expected a place in this file, such as #/$defs/item");
    if (const auto known = places.find(to); known != places.end()) return known->second;
    const ordered_json* found = &root;
    for (size_t at = 1; at < to.size();) {
        const size_t end = std::min(to.find('/', at + 1), to.size());
        std::string key = to.substr(at + 1, end - at - 1);
        for (auto [from, into] : {std::pair{"~1", "/"}, std::pair{"~0", "~"}})
            for (size_t i = 0; (i = key.find(from, i)) != key.npos; i++) key.replace(i, 2, into);
        const bool number = !key.empty() && key.size() < 8 && key.find_first_not_of("0123456789") == key.npos;
        if (found->is_object() && found->contains(key)) found = &(*found)[key];
        else if (found->is_array() && number && size_t(atoi(key.c_str())) < found->size())
            found = &(*found)[size_t(atoi(key.c_str()))];
        else return refuse(place, "$ref '" + to.substr(0, 60) + "': there is no such place");
        at = end;
    }
    open.push_back({to.substr(1), found});
    return places[to] = "ref" + std::to_string(places.size());
}

// ---- strings, arrays, objects ---------------------------------------------------------------------------------------

// "{2,5}" of two keywords, each lowered by `minus`.
Result<std::string> Compiler::times(const ordered_json& s, const char* least, const char* most, int64_t minus,
                                    const std::string& place) {
    int64_t bounds[] = {0, -1};
    for (int i : {0, 1}) {
        const char* key = i ? most : least;
        if (!s.contains(key)) continue;
        const ordered_json& v = s[key];
        if (!v.is_number_unsigned() || v.get<uint64_t>() > uint64_t(MOST_COUNT))
            return refuse(place, formatted("%s: expected a whole number from 0 to %lld", key, (long long)MOST_COUNT));
        bounds[i] = v.get<int64_t>();
    }
    if (bounds[1] >= 0 && bounds[0] > bounds[1])
        return refuse(place, formatted("%s is larger than %s", least, most));
    return "{" + std::to_string(std::max<int64_t>(0, bounds[0] - minus)) + "," +
           (bounds[1] < 0 ? "" : std::to_string(std::max<int64_t>(0, bounds[1] - minus))) + "}";
}
Result<std::string> Compiler::string(const ordered_json& s, const std::string& place) {
    const std::string many = TRY(times(s, "minLength", "maxLength", 0, place));
    if (!s.contains("format")) return many == "{0,}" ? "string" : add("\"\\\"\" char" + many + " \"\\\"\"");
    const std::string format = s["format"].is_string() ? s["format"].get<std::string>() : "";
    for (auto [known, body] : {std::pair{"date", "date"}, std::pair{"time", "time"}, std::pair{"uuid", "uuid"},
                               std::pair{"date-time", "date \"T\" time"}})
        if (format == known && many == "{0,}") return add(std::string("\"\\\"\" ") + body + " \"\\\"\"");
    return refuse(place, "format: expected date, time, date-time or uuid, without a length");
}
Result<std::string> Compiler::integer(const ordered_json& s, const std::string& place) {
    constexpr int64_t MOST = 9'999'999'999'999'999;
    int64_t least = -MOST, most = MOST;
    bool any = true;
    for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
        if (!s.contains(key)) continue;
        if (!s[key].is_number_integer() || std::fabs(s[key].get<double>()) > double(MOST))
            return refuse(place, formatted("%s: expected a whole number of at most 16 digits", key));
        const int64_t x = s[key].get<int64_t>() + (key[0] == 'e' ? key[10] == 'i' ? 1 : -1 : 0);
        any = false;
        if (strstr(key, "in")) least = std::max(least, x);
        else most = std::min(most, x);
    }
    if (any) return std::string("integer");
    if (least > most) return refuse(place, "no whole number is allowed");
    std::string all;
    if (least < 0) all = " | \"-\" (" + between(std::max<int64_t>(1, -most), -least).substr(3) + ")";
    if (most >= 0) all += between(std::max<int64_t>(0, least), most);
    return add(all.substr(3));
}
Result<std::string> Compiler::array(const ordered_json& s, const std::string& place) {
    const std::string item = s.contains("items") ? TRY(value(s["items"], place + "/items")) : "value";
    const std::string more = TRY(times(s, "minItems", "maxItems", 1, place));
    const bool none = s.contains("maxItems") && s["maxItems"] == 0, some = s.contains("minItems") && s["minItems"] > 0;
    const std::string items = "(" + item + " (\",\" ws " + item + ")" + more + ")" + (some ? "" : "?");
    return add("\"[\" ws " + (none ? "" : items + " ws ") + "\"]\"");
}

// A string without escapes that is none of these: a rule for each beginning of one of them.
std::string Compiler::other_keys(const std::set<std::string>& taken) {
    std::map<std::string, std::string> next;    // a beginning's: the characters that lead to another one, for a class
    std::map<std::string, std::string> alternatives;
    std::map<std::string, std::string> rule_of;
    auto rule = [&](const std::string& beginning) {
        const auto [known, fresh] = rule_of.try_emplace(beginning, "");
        if (fresh) known->second = "r" + std::to_string(count++), next[beginning];
        return known->second;
    };
    const std::string first = rule("");
    for (const std::string& key : taken) {
        bool plain = true;    // else no string without escapes is it
        for (char c : key) plain &= static_cast<unsigned char>(c) >= ' ' && c != '"' && c != '\\' && c != '\x7F';
        for (size_t at = 0, end; plain && at < key.size(); at = end) {
            end = at + 1;
            while (end < key.size() && (key[end] & 0xC0) == 0x80) end++;
            const std::string c = key.substr(at, end - at), before = key.substr(0, at);
            const bool fresh = !rule_of.count(key.substr(0, end));
            const std::string to = rule(key.substr(0, end));
            if (!fresh) continue;
            next[before] += strchr("]^-", c[0]) ? "\\" + c : c;
            alternatives[before] += " | " + quoted(c) + " " + to;
        }
    }
    for (auto& [beginning, number] : rule_of)
        rules += number + " ::= [^\"\\\\\\x7F\\x00-\\x1F" + next[beginning] + "] plain*" + alternatives[beginning] +
                 (taken.count(beginning) ? "" : " | \"\"") + "\n";
    return "\"\\\"\" " + first + " \"\\\"\"";
}

// Members in the order of `properties`, required ones that it lacks after them, then others. For each member two rules
// say how the object goes on from there: where none has come before, and where one has.
Result<std::string> Compiler::object(const ordered_json& s, const std::string& place) {
    if (!s.contains("properties") && !s.contains("required") && !s.contains("additionalProperties"))
        return std::string("object");
    std::set<std::string> required, taken;
    std::vector<std::string> missing;
    const ordered_json none = ordered_json::object(), list = s.value("required", ordered_json::array());
    const ordered_json& properties = s.contains("properties") ? s["properties"] : none;
    if (!properties.is_object()) return refuse(place, "properties: expected an object");
    if (!list.is_array()) return refuse(place, "required: expected a list of names");
    for (auto& [key, of] : properties.items()) {
        if (key.size() > MOST_KEY)
            return refuse(place, formatted("properties: a name of more than %zu bytes", MOST_KEY));
        taken.insert(key);
    }
    for (const ordered_json& key : list) {
        if (!key.is_string()) return refuse(place, "required: expected a list of names");
        if (key.get<std::string>().size() > MOST_KEY)
            return refuse(place, formatted("required: a name of more than %zu bytes", MOST_KEY));
        required.insert(key.get<std::string>());
        if (taken.insert(key.get<std::string>()).second) missing.push_back(key);
    }
    std::string rest;
    if (const char* key = "additionalProperties"; s.contains(key) ? s[key] != false : !s.contains("properties"))
        rest = s.contains(key) ? TRY(value(s[key], place + "/" + key)) : "value";
    if (rest.empty() && !missing.empty())
        return refuse(place, "required: '" + missing[0].substr(0, 60) + "' is not among the properties");
    std::vector<std::pair<std::string, bool>> members;    // and whether it is required
    for (auto& [key, of] : properties.items()) {
        const std::string one = TRY(value(of, place + "/properties/" + key));
        members.push_back({literal(key) + " \":\" ws " + one, required.count(key) > 0});
    }
    for (const std::string& key : missing) members.push_back({literal(key) + " \":\" ws " + rest, true});
    std::string begins = "\"\"", goes_on = "\"\"";
    if (!rest.empty()) {
        const std::string other = add(other_keys(taken) + " \":\" ws " + rest);
        goes_on = add("(\",\" ws " + other + ")*");
        begins = add("(" + other + " " + goes_on + ")?");
    }
    for (size_t i = members.size(); i-- > 0;) {
        const auto& [member, is_required] = members[i];
        const std::string one = add(member), on = goes_on;
        begins = add(one + " " + on + (is_required ? "" : " | " + begins));
        goes_on = add("\",\" ws " + one + " " + on + (is_required ? "" : " | " + on));
    }
    return add("\"{\" ws " + begins + " ws \"}\"");
}

Result<std::string> Compiler::run() {
    places["#"] = "root";
    open = {{"", &root}};
    for (size_t i = 0; i < open.size(); i++) {
        const auto [place, schema] = open[i];
        const std::string rule = TRY(value(*schema, place));
        rules += places["#" + place] + " ::= " + rule + "\n";
        if (rules.size() > size_t(8) << 20) return refuse(place, "the schema's grammar has more than 8 MiB");
    }
    return COMMON + rules + "plain ::= [^\"\\\\\\x7F\\x00-\\x1F]\n";
}
}    // namespace

Result<std::string> json_schema_grammar(std::string_view text, const std::string& name) {
    if (text.size() > MOST_BYTES) return fail(Exit::input, "%s: a schema of more than 256 KiB", name.c_str());
    TRY(json_parse(text, name, 64));
    const ordered_json root = ordered_json::parse(text.begin(), text.end(), nullptr, false);
    return Compiler(root, name).run();
}
