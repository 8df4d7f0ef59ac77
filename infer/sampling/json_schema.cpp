// json_schema.cpp - see json_schema.h. Each schema becomes a rule; a $ref becomes the name of its
// target's rule.
#include "json_schema.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "files/json.h"
#include "json_schema_parts.h"

namespace {
using nlohmann::ordered_json;
constexpr int64_t MOST_COUNT = 100'000;    // GBNF's largest number of repetitions
constexpr size_t MOST_BYTES = 256 << 10, MOST_KEY = 256;

// Rules for unconstrained values, and parts that rules share. White space is at most a space or an
// indented line, because a model could continue it for ever. Numbers have at most a double's
// digits.
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
label ::= [a-z0-9] ([a-z0-9-]{0,20} [a-z0-9])?
hostname ::= label ("." label){1,3}
word ::= [A-Za-z0-9_+-]{1,24}
email ::= word ("." word){0,2} "@" hostname
octet ::= [0-9] | [1-9] [0-9] | "1" [0-9]{2} | "2" [0-4] [0-9] | "25" [0-5]
ipv4 ::= octet ("." octet){3}
uri ::= "http" "s"? "://" hostname ("/" [A-Za-z0-9._~-]{0,40}){0,8} ("?" [A-Za-z0-9._~=&-]{1,80})?
)";
const char* const FORMATS[] = {"date",  "time", "uuid", "hostname",
                               "email", "ipv4", "uri"};    // each is the name of a rule
constexpr size_t MOST_MADE = 2000;                         // limit for made()

// A value's JSON as a GBNF literal.
std::string literal(const ordered_json& value) { return gbnf_quoted(value.dump()); }

class Compiler {
  public:
    Compiler(const ordered_json& schema, const std::string& file) : root(schema), name(file) {}
    Result<std::string> run();

  private:
    using Keys = std::set<std::string>;
    Status refuse(const std::string& path, const std::string& what) const {
        std::string line;    // keys may have control characters
        for (char c : "#" + path + ": " + what)
            line += static_cast<unsigned char>(c) < ' ' ? formatted("\\x%02X", c) : std::string(1, c);
        return fail(Exit::input, "%s: %s", name.c_str(), line.c_str());
    }
    // Handles a schema without valid values: returns "", which removes the schema from
    // alternatives, and keeps the message in case no alternative remains.
    std::string none(const std::string& path, const std::string& what) {
        if (no_value.empty()) no_value = refuse(path, what).message;
        return "";
    }
    std::string add(const std::string& body) {
        const std::string rule = "r" + std::to_string(count++);
        rules += rule + " ::= " + body + "\n";
        return rule;
    }
    // Compiles a schema. Returns a rule's name, or "" if no value is valid. The functions below,
    // too, return a rule's name or body.
    Result<std::string> value(const ordered_json& schema, const std::string& path);
    Result<std::string> of_type(const std::string& type, const ordered_json& s, const std::string& path, Keys& used);
    Result<std::string> object(const ordered_json& s, const std::string& path);
    Result<std::string> array(const ordered_json& s, const std::string& path);
    Result<std::string> string(const ordered_json& s, const std::string& path);
    Result<std::string> integer(const ordered_json& s, const std::string& path);
    Result<std::string> number(const ordered_json& s, const std::string& path);
    Result<std::string> made(const ordered_json& s, const std::string& path);
    Result<std::string> branches(const ordered_json& s, const char* key, const std::string& path);
    Status check_exclusive(const ordered_json& branches, const std::string& path) const;
    Result<std::string> one_of_values(const ordered_json& s, const std::string& path);
    Result<std::string> reference(const ordered_json& s, const std::string& path);
    Result<std::string> times(const ordered_json& s, const char* least, const char* most, int64_t minus,
                              const std::string& path);
    Result<std::vector<std::string>> types(const ordered_json& s, const std::string& path);
    Status only(const ordered_json& s, const Keys& used, const std::string& path) const;

    const ordered_json& root;
    const std::string& name;
    const Schemas schemas{root};
    std::string rules;
    std::string no_value;    // message about the first schema without valid values
    int count = 0, depth = 0;
    std::map<std::string, std::string> made_rules;                    // rule's name by the schema's text
    std::map<std::string, std::string> ref_rules;                     // rule's name by $ref
    std::vector<std::pair<std::string, const ordered_json*>> open;    // paths and schemas still to be compiled
};

Status Compiler::only(const ordered_json& s, const Keys& used, const std::string& path) const {
    for (auto& [key, of] : s.items())
        if (!used.count(key) && !is_annotation(key))
            return refuse(path, key.substr(0, 60) + ": not known here, or not beside the other keywords");
    return {};
}

// Types that the schema names; without `type`, those that its keywords imply.
Result<std::vector<std::string>> Compiler::types(const ordered_json& s, const std::string& path) {
    std::vector<std::string> all;
    if (!s.contains("type")) {
        if (const char* type = implied_type(s)) all.push_back(type);
        return all;
    }
    const ordered_json& type = s["type"];
    for (const ordered_json& t : type.is_array() ? type : ordered_json::array({type})) {
        if (!t.is_string() || !std::count(std::begin(JSON_TYPES), std::end(JSON_TYPES), t.get<std::string>()))
            return refuse(path, "type: expected object, array, string, number, integer, boolean or null");
        all.push_back(t);
    }
    if (all.empty()) return refuse(path, "type: expected at least one");
    return all;
}

Result<std::string> Compiler::value(const ordered_json& s, const std::string& path) {
    if (s.is_boolean() && s.get<bool>()) return std::string("value");
    if (s.is_boolean()) return none(path, "no value is allowed there");
    if (!s.is_object()) return refuse(path, "expected a schema: an object, true or false");
    const bool alone = std::all_of(s.items().begin(), s.items().end(),
                                   [](auto& item) { return item.key() == "$ref" || is_annotation(item.key()); });
    if (s.contains("$ref") && alone) return reference(s, path);
    if (s.contains("$ref") || s.contains("allOf")) return made(s, path);
    for (const char* key : {"anyOf", "oneOf"})
        if (s.contains(key)) return branches(s, key, path);
    if (s.contains("enum") || s.contains("const")) return one_of_values(s, path);
    const std::vector<std::string> named = TRY(types(s, path));
    Keys used = {"type"};
    std::string body;
    for (const std::string& type : named) {
        const std::string one = TRY(of_type(type, s, path, used));
        if (!one.empty()) body += (body.empty() ? "" : " | ") + one;
    }
    TRY(only(s, used, path));
    return named.empty() ? "value" : named.size() == 1 || body.empty() ? body : add(body);
}
Result<std::string> Compiler::of_type(const std::string& type, const ordered_json& s, const std::string& path,
                                      Keys& used) {
    if (type == "object") {
        used.insert({"properties", "required", "additionalProperties"});
        return object(s, path);
    }
    if (type == "array") {
        used.insert({"items", "prefixItems", "minItems", "maxItems"});
        if (s.contains("uniqueItems") && s["uniqueItems"] == false) used.insert("uniqueItems");
        return array(s, path);
    }
    if (type == "integer" || type == "number") {
        used.insert({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
        return type == "integer" ? integer(s, path) : number(s, path);
    }
    if (type != "string") return type;
    used.insert({"minLength", "maxLength", "format", "pattern"});
    return string(s, path);
}

// Makes a rule for the intersection of $ref, allOf and the keywords beside them. Equal
// intersections share a rule, so that recursive schemas terminate.
Result<std::string> Compiler::made(const ordered_json& s, const std::string& path) {
    const Schemas::Flat all = schemas.flat(s);
    if (!all.error.empty()) return refuse(path, all.error);
    const auto [known, fresh] = made_rules.try_emplace(all.schema.dump(), "m" + std::to_string(made_rules.size()));
    if (!fresh) return known->second;
    const std::string rule = known->second;
    if (known->first.size() > MOST_BYTES || made_rules.size() > MOST_MADE || depth >= 40)
        return refuse(path, "allOf and $ref within each other make too many schemas, or too large ones");
    depth++;
    const Result<std::string> body = value(all.schema, path);
    depth--;
    if (!body.ok() || body.value.empty()) return made_rules.insert_or_assign(all.schema.dump(), ""), body;
    rules += rule + " ::= " + body.value + "\n";
    return rule;
}
// Compiles anyOf or oneOf; each branch is joined with the keywords beside it.
Result<std::string> Compiler::branches(const ordered_json& s, const char* key, const std::string& path) {
    if (!s[key].is_array() || s[key].empty()) return refuse(path + "/" + key, "expected a list of schemas");
    ordered_json rest = ordered_json::object(), all = s[key];
    for (auto& [other, of] : s.items())
        if (other != key && !is_annotation(other)) rest[other] = of;
    if (!rest.empty())
        for (ordered_json& branch : all) branch = {{"allOf", {rest, branch}}};
    if (key == std::string("oneOf")) TRY(check_exclusive(all, path + "/" + key));
    std::string body;
    for (size_t i = 0; i < all.size(); i++) {
        const std::string one = TRY(value(all[i], path + "/" + key + "/" + std::to_string(i)));
        if (!one.empty()) body += (body.empty() ? "" : " | ") + one;
    }
    return all.size() == 1 || body.empty() ? body : add(body);
}
Status Compiler::check_exclusive(const ordered_json& branches, const std::string& path) const {
    for (size_t i = 0; i < branches.size(); i++)
        for (size_t j = 0; j < branches.size(); j++)
            if (i != j && !schemas.apart(branches[i], branches[j]))
                return refuse(path, formatted("expected schemas of which exactly one allows a value, found that %zu "
                                              "and %zu may allow the same; write anyOf where both may, or let a "
                                              "required property's const tell them apart",
                                              std::min(i, j), std::max(i, j)));
    return {};
}
Result<std::string> Compiler::one_of_values(const ordered_json& s, const std::string& path) {
    TRY(only(s, {"enum", "const", "type"}, path));
    if (s.contains("enum") && !s["enum"].is_array()) return refuse(path, "enum: expected a list of values");
    const std::vector<std::string> named = TRY(types(s, path));
    std::string body;
    for (const ordered_json& v : s.contains("enum") ? s["enum"] : ordered_json::array({s["const"]})) {
        const std::string type = v.is_object()    ? "object"
                                 : v.is_array()   ? "array"
                                 : v.is_string()  ? "string"
                                 : v.is_boolean() ? "boolean"
                                 : v.is_null()    ? "null"
                                                  : "number";
        auto is = [&](const char* t) { return std::find(named.begin(), named.end(), t) != named.end(); };
        const bool whole = v.is_number_integer() || (v.is_number() && v.get<double>() == std::floor(v.get<double>()));
        if (!named.empty() && !is(type.c_str()) && !(type == "number" && whole && is("integer"))) continue;
        if (s.contains("enum") && s.contains("const") && v != s["const"]) continue;
        body += (body.empty() ? "" : " | ") + literal(v);
    }
    if (body.empty()) return none(path, "enum, const, type: together they allow no value");
    return add(body);
}

// Returns the rule of a $ref's target. Targets are compiled one after another, not recursively.
Result<std::string> Compiler::reference(const ordered_json& s, const std::string& path) {
    TRY(only(s, {"$ref"}, path));
    const Schemas::Found found = schemas.find(s["$ref"]);
    if (!found.schema) return refuse(path, found.error);
    const std::string to = s["$ref"];
    if (const auto known = ref_rules.find(to); known != ref_rules.end()) return known->second;
    open.push_back({to.substr(1), found.schema});
    return ref_rules[to] = "ref" + std::to_string(ref_rules.size());
}

// ---- strings, arrays, objects -------------------------------------------------------------------

// Returns "{2,5}" for the values of two keywords, each reduced by `minus`.
Result<std::string> Compiler::times(const ordered_json& s, const char* least, const char* most, int64_t minus,
                                    const std::string& path) {
    int64_t bounds[] = {0, -1};
    for (int i : {0, 1}) {
        const char* key = i ? most : least;
        if (!s.contains(key)) continue;
        const ordered_json& v = s[key];
        if (!v.is_number_unsigned() || v.get<uint64_t>() > uint64_t(MOST_COUNT))
            return refuse(path, formatted("%s: expected a whole number from 0 to %lld", key, (long long)MOST_COUNT));
        bounds[i] = v.get<int64_t>();
    }
    if (bounds[1] >= 0 && bounds[0] > bounds[1]) return refuse(path, formatted("%s is larger than %s", least, most));
    return "{" + std::to_string(std::max<int64_t>(0, bounds[0] - minus)) + "," +
           (bounds[1] < 0 ? "" : std::to_string(std::max<int64_t>(0, bounds[1] - minus))) + "}";
}
Result<std::string> Compiler::string(const ordered_json& s, const std::string& path) {
    const std::string many = TRY(times(s, "minLength", "maxLength", 0, path));
    if (s.contains("pattern")) {
        if (!s["pattern"].is_string()) return refuse(path, "pattern: expected a string");
        if (s.contains("format")) return refuse(path, "format: not beside pattern");
        const int64_t least = s.value("minLength", int64_t(0)), most = s.value("maxLength", int64_t(-1));
        const PatternRules p = pattern_rules(s["pattern"], least, most, "p" + std::to_string(count++) + "-", &rules);
        if (!p.error.empty()) return refuse(path, "pattern: " + p.error);
        if (p.first.empty()) return none(path, "pattern: it finds nothing in any text of the allowed lengths");
        return add("\"\\\"\" " + p.first + " \"\\\"\"");
    }
    if (!s.contains("format")) return many == "{0,}" ? "string" : add("\"\\\"\" char" + many + " \"\\\"\"");
    const std::string format = s["format"].is_string() ? s["format"].get<std::string>() : "";
    std::string body = format == "date-time" ? "date \"T\" time" : "", all;
    for (const char* known : FORMATS) {
        if (format == known) body = known;
        all += std::string(known) + ", ";
    }
    if (!body.empty() && many == "{0,}") return add("\"\\\"\" " + body + " \"\\\"\"");
    return refuse(path, "format: expected " + all + "or date-time, without a length");
}
Result<std::string> Compiler::integer(const ordered_json& s, const std::string& path) {
    constexpr int64_t MOST = 9'999'999'999'999'999;
    int64_t least = -MOST, most = MOST;
    bool any = true;
    for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
        if (!s.contains(key)) continue;
        const double bound = s[key].is_number() ? s[key].get<double>() : NAN;
        if (!(std::fabs(bound) <= double(MOST)))
            return refuse(path, formatted("%s: expected a number of at most 16 "
                                          "digits",
                                          key));
        const bool exclusive = key[0] == 'e', low = strstr(key, "in");
        const bool exact = s[key].is_number_integer();    // int64_t; a double has only 53 bits
        const int64_t whole = exact ? s[key].get<int64_t>() : int64_t(low ? std::ceil(bound) : std::floor(bound));
        const int64_t x = whole + (exclusive && (exact || double(whole) == bound) ? low ? 1 : -1 : 0);
        any = false;
        if (low) least = std::max(least, x);
        else most = std::min(most, x);
    }
    if (any) return std::string("integer");
    if (least > most) return none(path, "no whole number is allowed");
    return add(integers_between(least, most));
}
Result<std::string> Compiler::number(const ordered_json& s, const std::string& path) {
    std::optional<Decimal> bounds[2];
    for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
        if (!s.contains(key)) continue;
        std::optional<Decimal> d = s[key].is_number() ? decimal(s[key]) : std::nullopt;
        if (!d) return refuse(path, formatted("%s: expected a number of at most 15 digits", key));
        d->exclusive = key[0] == 'e';
        const bool low = strstr(key, "in");
        std::optional<Decimal>& bound = bounds[!low];
        const double before = bound ? s[low ? "minimum" : "maximum"].get<double>() : 0, x = s[key].get<double>();
        if (!bound || x == before || (low ? x > before : x < before)) bound = d;    // exclusive bounds come second
    }
    if (!bounds[0] && !bounds[1]) return std::string("number");
    const std::string body = decimals_between(bounds[0], bounds[1]);
    return body.empty() ? none(path, "no number is allowed") : add(body);
}
// Compiles prefixItems, then repeated items. The rest of an array after each prefix item is a rule.
// With prefixItems but without items, further items are generated only if minItems demands them.
Result<std::string> Compiler::array(const ordered_json& s, const std::string& path) {
    std::vector<std::string> first;
    const bool tuple = s.contains("prefixItems");
    const ordered_json prefix = tuple ? s["prefixItems"] : ordered_json::array();
    if (!prefix.is_array()) return refuse(path, "prefixItems: expected a list of schemas");
    for (size_t i = 0; i < prefix.size(); i++)
        first.push_back(TRY(value(prefix[i], path + "/prefixItems/" + std::to_string(i))));
    TRY(times(s, "minItems", "maxItems", 0, path));
    const int64_t least = s.value("minItems", int64_t(0));
    const auto possible = int64_t(std::find(first.begin(), first.end(), "") - first.begin());
    const bool extends = s.contains("items") ? s["items"] != false : !tuple || least > int64_t(first.size());
    const std::string item = !extends ? "" : s.contains("items") ? TRY(value(s["items"], path + "/items")) : "value";
    int64_t most = s.value("maxItems", int64_t(-1));
    const bool ends = possible < int64_t(first.size()) || item.empty();    // no item may follow the possible prefix
    if (ends) most = most < 0 ? possible : std::min(most, possible);
    if (most >= 0 && least > most) return none(path, "items: fewer than minItems can be there");
    const int64_t n = std::min(possible, most < 0 ? possible : most);
    const bool rest = most < 0 || most > n;
    auto more = [&](int64_t there) {    // items after the first `there`
        return formatted("{%lld,", (long long)std::max<int64_t>(0, least - there)) +
               (most < 0 ? "" : std::to_string(most - there)) + "}";
    };
    std::string on = rest && n > 0 ? add("(\",\" ws " + item + ")" + more(n)) : "\"\"";
    for (int64_t i = n; i-- > 1;) on = add("\",\" ws " + first[size_t(i)] + " " + on + (i >= least ? " | \"\"" : ""));
    std::string items = n > 0 ? first[0] + " " + on : item + " (\",\" ws " + item + ")" + (rest ? more(1) : "");
    if (least == 0) items = "(" + items + " ws)?";
    else items += " ws";
    return add("\"[\" ws " + (most == 0 ? "" : items + " ") + "\"]\"");
}

// Members come in the order of `properties`, then other required ones, then additional ones. At
// each point of this list the rest of the object has two rules: one for when no member was written
// yet, and one that begins with a comma.
Result<std::string> Compiler::object(const ordered_json& s, const std::string& path) {
    if (!s.contains("properties") && !s.contains("required") && !s.contains("additionalProperties"))
        return std::string("object");
    std::set<std::string> required, taken;
    std::vector<std::string> missing;
    const ordered_json empty = ordered_json::object(), list = s.value("required", ordered_json::array());
    const ordered_json& properties = s.contains("properties") ? s["properties"] : empty;
    if (!properties.is_object()) return refuse(path, "properties: expected an object");
    if (!list.is_array()) return refuse(path, "required: expected a list of names");
    for (auto& [key, of] : properties.items()) {
        if (key.size() > MOST_KEY)
            return refuse(path, formatted("properties: a name of more than %zu bytes", MOST_KEY));
        taken.insert(key);
    }
    for (const ordered_json& key : list) {
        if (!key.is_string()) return refuse(path, "required: expected a list of names");
        if (key.get<std::string>().size() > MOST_KEY)
            return refuse(path, formatted("required: a name of more than %zu bytes", MOST_KEY));
        required.insert(key.get<std::string>());
        if (taken.insert(key.get<std::string>()).second) missing.push_back(key);
    }
    std::string rest;
    if (const char* key = "additionalProperties"; s.contains(key) ? s[key] != false : !s.contains("properties"))
        rest = s.contains(key) ? TRY(value(s[key], path + "/" + key)) : "value";
    const bool closed = s.contains("additionalProperties") && s["additionalProperties"] == false;
    if (closed && !missing.empty())
        return refuse(path, "required: '" + missing[0].substr(0, 60) + "' is not among the properties");
    std::vector<std::pair<std::string, bool>> members;    // rule of the member; whether it is required
    for (auto& [key, of] : properties.items()) {
        const std::string one = TRY(value(of, path + "/properties/" + key));
        if (!one.empty()) members.push_back({literal(key) + " \":\" ws " + one, required.count(key) > 0});
        else if (required.count(key)) return one;
    }
    for (const std::string& key : missing)
        members.push_back({literal(key) + " \":\" ws " + (rest.empty() ? "value" : rest), true});
    std::string begins = "\"\"", goes_on = "\"\"";
    if (!rest.empty()) {
        const std::string key = other_strings(taken, "k" + std::to_string(count++) + "-", &rules);
        const std::string other = add(key + " \":\" ws " + rest);
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
    ref_rules["#"] = "root";
    open = {{"", &root}};
    for (size_t i = 0; i < open.size(); i++) {
        const auto [path, schema] = open[i];
        const std::string rule = TRY(value(*schema, path));
        if (rule.empty()) return Status{Exit::input, no_value};
        rules += ref_rules["#" + path] + " ::= " + rule + "\n";
        if (rules.size() > size_t(8) << 20) return refuse(path, "the schema's grammar has more than 8 MiB");
    }
    return COMMON + rules + "plain ::= [^\"\\\\\\x7F\\x00-\\x1F]\n";
}
// Writes 2.0 and 1e2 as integers, since JSON Schema counts them as such.
void write_counts_whole(ordered_json& schema) {
    for (auto& [key, of] : schema.items()) {
        if (of.is_structured()) write_counts_whole(of);
        const bool counts = key == "minLength" || key == "maxLength" || key == "minItems" || key == "maxItems";
        if (!schema.is_object() || !counts || !of.is_number_float()) continue;
        const double x = of.get<double>();
        if (x >= 0 && x <= double(MOST_COUNT) && x == std::floor(x)) of = uint64_t(x);
    }
}
}    // namespace

Result<std::string> json_schema_grammar(std::string_view text, const std::string& name) {
    if (text.size() > MOST_BYTES) return fail(Exit::input, "%s: a schema of more than 256 KiB", name.c_str());
    TRY(json_parse(text, name, 64));
    ordered_json root = ordered_json::parse(text.begin(), text.end(), nullptr, false);
    write_counts_whole(root);
    return Compiler(root, name).run();
}
