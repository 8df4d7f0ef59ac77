// json_schema_join.cpp - schemas as sets of values: targets of $ref, intersections, and whether two
// schemas are disjoint.
#include <algorithm>
#include <cmath>
#include <set>

#include "json_schema_parts.h"

namespace {
using nlohmann::ordered_json;
constexpr int MOST_DEPTH = 24;
constexpr size_t MOST_BRANCHES = 256;
const std::set<std::string> ANNOTATIONS = {"title",     "description", "default",     "examples",     "$schema",
                                           "$id",       "$comment",    "$anchor",     "deprecated",   "readOnly",
                                           "writeOnly", "$defs",       "definitions", "discriminator"};

bool is_whole(const ordered_json& v) {
    return v.is_number_integer() || (v.is_number() && v.get<double>() == std::floor(v.get<double>()));
}
const char* type_of(const ordered_json& v) {
    return v.is_object()    ? "object"
           : v.is_array()   ? "array"
           : v.is_string()  ? "string"
           : v.is_boolean() ? "boolean"
           : v.is_null()    ? "null"
           : is_whole(v)    ? "integer"
                            : "number";
}
using Types = std::set<std::string>;
// Types that a schema allows; number includes integer. `all`: result for a schema without `type`.
Types types(const ordered_json& s, const Types& all) {
    if (!s.contains("type")) return all;
    const ordered_json& type = s["type"];
    Types named;
    for (const ordered_json& t : type.is_array() ? type : ordered_json::array({type}))
        if (t.is_string()) named.insert(t.get<std::string>());
    if (named.count("number")) named.insert("integer");
    return named;
}
const Types EVERY(std::begin(JSON_TYPES), std::end(JSON_TYPES));
Types written(const ordered_json& s) {    // types that the schema's grammar generates
    const char* type = implied_type(s);
    return !type ? types(s, EVERY) : type == std::string("number") ? types(s, {type, "integer"}) : types(s, {type});
}
double bound(const ordered_json& s, const char* key, double otherwise) {
    return s.contains(key) && s[key].is_number() ? s[key].get<double>() : otherwise;
}
// Whether no number is in both ranges.
bool ranges_apart(const ordered_json& a, const ordered_json& b) {
    auto below = [](const ordered_json& x, const ordered_json& y) {    // whether all of x is below all of y
        const double inf = INFINITY, most = bound(x, "maximum", inf), least = bound(y, "minimum", -inf),
                     under = bound(x, "exclusiveMaximum", inf), over = bound(y, "exclusiveMinimum", -inf);
        return most < least || under <= least || most <= over || under <= over;
    };
    return below(a, b) || below(b, a);
}
bool counts_apart(const ordered_json& a, const ordered_json& b, const char* least, const char* most) {
    return bound(a, least, 0) > bound(b, most, INFINITY) || bound(b, least, 0) > bound(a, most, INFINITY);
}
bool requires_key(const ordered_json& s, const std::string& key) {
    if (s.contains("required") && s["required"].is_array())
        for (const ordered_json& r : s["required"])
            if (r == key) return true;
    return false;
}
const ordered_json* property(const ordered_json& s, const std::string& key) {
    if (!s.contains("properties") || !s["properties"].is_object() || !s["properties"].contains(key)) return nullptr;
    return &s["properties"][key];
}
bool closed(const ordered_json& s) { return s.contains("additionalProperties") && s["additionalProperties"] == false; }
// Returns the schema for members that are not in `properties`; null: none given.
const ordered_json* others(const ordered_json& s) {
    return s.contains("additionalProperties") ? &s["additionalProperties"] : nullptr;
}
ordered_json both(const ordered_json& a, const ordered_json& b) {
    return a == b || b == true ? a : a == true ? b : ordered_json{{"allOf", {a, b}}};
}
}    // namespace

const char* const JSON_TYPES[7] = {"object", "array", "string", "number", "integer", "boolean", "null"};
const char* implied_type(const ordered_json& s) {
    static const struct {
        const char* type;
        std::vector<const char*> keywords;
    } ROWS[] = {{"object", {"properties", "required", "additionalProperties"}},
                {"array", {"items", "prefixItems", "minItems", "maxItems"}},
                {"string", {"minLength", "maxLength", "pattern", "format"}},
                {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}}};
    for (auto& row : ROWS)
        for (const char* keyword : row.keywords)
            if (s.contains(keyword)) return row.type;
    return nullptr;
}
bool is_annotation(const std::string& keyword) { return ANNOTATIONS.count(keyword) > 0; }

// ---- references ---------------------------------------------------------------------------------

Schemas::Found Schemas::find(const ordered_json& ref) const {
    if (!ref.is_string()) return {nullptr, "$ref: expected a string"};
    const std::string to = ref, shown = "$ref '" + to.substr(0, 60) + "': ";
    if (to != "#" && !to.starts_with("#/"))
        return {nullptr, shown + "expected a place in this file, such as #/$defs/item"};
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
        else return {nullptr, shown + "there is no such place"};
        at = end;
    }
    return {found, ""};
}

// ---- intersection -------------------------------------------------------------------------------

Schemas::Flat Schemas::flat(const ordered_json& s, int depth) const {
    if (depth > MOST_DEPTH) return {{}, formatted("$ref and allOf more than %d deep", MOST_DEPTH)};
    if (--flat_left < 0) return {{}, "$ref and allOf join too many schemas"};
    if (!s.is_object()) return {s, s.is_boolean() ? "" : "expected a schema: an object, true or false"};
    Flat all{s, ""};
    all.schema.erase("$ref");
    all.schema.erase("allOf");
    auto add = [&](const ordered_json& part) {
        const Flat one = all.error.empty() ? flat(part, depth + 1) : all;
        if (all.error.empty()) all = one.error.empty() ? joined(all.schema, one.schema) : one;
    };
    if (s.contains("$ref")) {
        const Found found = find(s["$ref"]);
        if (!found.schema) return {{}, found.error};
        add(*found.schema);
    }
    if (s.contains("allOf")) {
        if (!s["allOf"].is_array() || s["allOf"].empty()) return {{}, "allOf: expected a list of schemas"};
        for (const ordered_json& part : s["allOf"]) add(part);
    }
    return all;
}

namespace {
// Joins object schemas. A schema's additionalProperties applies to members that its own properties
// lack.
void join_properties(const ordered_json& a, const ordered_json& b, ordered_json* all) {
    ordered_json properties = ordered_json::object();
    for (const ordered_json* s : {&a, &b}) {
        const ordered_json& other = s == &a ? b : a;
        if (!s->contains("properties") || !(*s)["properties"].is_object()) continue;
        for (auto& [key, of] : (*s)["properties"].items()) {
            if (properties.contains(key)) continue;
            const ordered_json* there = property(other, key) ? property(other, key) : others(other);
            properties[key] = there ? both(of, *there) : of;
        }
    }
    if (!properties.empty()) (*all)["properties"] = properties;
    if (others(a) && others(b))
        (*all)["additionalProperties"] = closed(a) || closed(b) ? ordered_json(false) : both(*others(a), *others(b));
}
// Joins the values of one keyword; returns an error if that is not possible.
std::string join_keyword(const std::string& key, const ordered_json& a, const ordered_json& b, ordered_json* to) {
    if (a == b) return "";
    if (key == "type") {
        const Types x = types({{"type", a}}, {}), y = types({{"type", b}}, {});
        ordered_json common = ordered_json::array();
        for (const char* t : JSON_TYPES)
            if (x.count(t) && y.count(t)) common.push_back(t);
        *to = common.size() == 1 ? common[0] : common;
    } else if (key == "required") {
        if (!a.is_array() || !b.is_array()) return "required: expected a list of names";
        for (const ordered_json& name : b)
            if (std::find(to->begin(), to->end(), name) == to->end()) to->push_back(name);
    } else if (key == "enum") {
        ordered_json common = ordered_json::array();
        for (const ordered_json& v : a)
            if (std::find(b.begin(), b.end(), v) != b.end()) common.push_back(v);
        *to = common;
    } else if (key.starts_with("min") || key == "exclusiveMinimum") {
        if (a.is_number() && b.is_number()) *to = a < b ? b : a;
    } else if (key.starts_with("max") || key == "exclusiveMaximum") {
        if (a.is_number() && b.is_number()) *to = a < b ? a : b;
    } else if (key == "items" && !a.is_array() && !b.is_array()) {
        *to = both(a, b);
    } else if (key == "anyOf" && a.is_array() && b.is_array() && a.size() * b.size() <= MOST_BRANCHES) {
        *to = ordered_json::array();
        for (const ordered_json& x : a)
            for (const ordered_json& y : b) to->push_back(both(x, y));
    } else {
        return key.substr(0, 60) + ": two schemas that hold together each have their own";
    }
    return "";
}
}    // namespace

Schemas::Flat Schemas::joined(const ordered_json& a, const ordered_json& b) const {
    if (b == true) return {a, ""};
    if (a == false || b == false) return {false, ""};
    if (a.contains("prefixItems") != b.contains("prefixItems") && (a.contains("items") || b.contains("items")))
        return {{}, "prefixItems: items of a schema that holds together with it"};
    Flat all{a, ""};
    join_properties(a, b, &all.schema);
    for (auto& [key, value] : b.items()) {
        if (key == "properties" || (key == "additionalProperties" && others(a))) continue;
        if (is_annotation(key) || !a.contains(key)) {
            all.schema[key] = value;
            continue;
        }
        all.error = join_keyword(key, a[key], value, &all.schema[key]);
        if (!all.error.empty()) return all;
        if (key == "type" && all.schema[key].empty()) return {false, ""};    // no common type: no values
    }
    return all;
}

// ---- disjointness -------------------------------------------------------------------------------

// Whether a value may be valid by a schema; also true if this is uncertain.
bool Schemas::may_hold(const ordered_json& v, const ordered_json& schema, int depth) const {
    const Flat f = flat(schema);
    const ordered_json& s = f.schema;
    if (!f.error.empty() || depth > MOST_DEPTH || !s.is_object()) return s != false;
    if (!types(s, EVERY).count(type_of(v))) return false;
    if (s.contains("const") && s["const"] != v) return false;
    if (s.contains("enum") && s["enum"].is_array() && !std::count(s["enum"].begin(), s["enum"].end(), v)) return false;
    for (const char* any : {"anyOf", "oneOf"})
        if (s.contains(any) && s[any].is_array() &&
            std::none_of(s[any].begin(), s[any].end(), [&](auto& branch) { return may_hold(v, branch, depth + 1); }))
            return false;
    if (v.is_number()) return !ranges_apart(s, {{"minimum", v}, {"maximum", v}});
    if (v.is_string()) {
        const std::string text = v;
        const auto n = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
        return !counts_apart(s, {{"minLength", n}, {"maxLength", n}}, "minLength", "maxLength");
    }
    if (v.is_array()) return !counts_apart(s, {{"minItems", v.size()}, {"maxItems", v.size()}}, "minItems", "maxItems");
    if (!v.is_object()) return true;
    if (s.contains("required") && s["required"].is_array())
        for (const ordered_json& key : s["required"])
            if (key.is_string() && !v.contains(key.get<std::string>())) return false;
    for (auto& [key, value] : v.items())
        if (const ordered_json* of = property(s, key); of ? !may_hold(value, *of, depth + 1) : closed(s)) return false;
    return true;
}

bool Schemas::apart(const ordered_json& left, const ordered_json& right, int depth) const {
    const Flat x = flat(left), y = flat(right);
    const ordered_json &a = x.schema, &b = y.schema;
    if (!x.error.empty() || !y.error.empty() || depth > MOST_DEPTH || --apart_left < 0) return false;
    if (a == false || b == false) return true;
    if (!a.is_object() || !b.is_object()) return false;
    for (const char* any : {"anyOf", "oneOf"}) {
        ordered_json rest = a;    // a branch also obeys the keywords beside it
        rest.erase(any);
        if (a.contains(any) && a[any].is_array() &&
            std::all_of(a[any].begin(), a[any].end(),
                        [&](const ordered_json& branch) { return apart(both(rest, branch), b, depth + 1); }))
            return true;
        if (b.contains(any) && b[any].is_array() &&
            std::all_of(b[any].begin(), b[any].end(),
                        [&](const ordered_json& branch) { return apart(a, branch, depth + 1); }))
            return true;
    }
    for (auto [s, other] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
        if (!s->contains("const") && !(s->contains("enum") && (*s)["enum"].is_array())) continue;
        const ordered_json values = s->contains("const") ? ordered_json::array({(*s)["const"]}) : (*s)["enum"];
        if (std::none_of(values.begin(), values.end(), [&, in = other](auto& v) { return may_hold(v, *in, 0); }))
            return true;
    }
    const Types mine = written(a), there = types(b, EVERY);
    return std::all_of(mine.begin(), mine.end(),
                       [&](const std::string& type) { return !there.count(type) || apart_of_type(type, a, b, depth); });
}
bool Schemas::apart_of_type(const std::string& type, const ordered_json& a, const ordered_json& b, int depth) const {
    if (type == "number" || type == "integer") return ranges_apart(a, b);
    if (type == "string") return counts_apart(a, b, "minLength", "maxLength");
    if (type == "array") {
        if (counts_apart(a, b, "minItems", "maxItems")) return true;
        const double first = std::max(bound(a, "minItems", 0), bound(b, "minItems", 0));
        return first > 0 && a.contains("items") && b.contains("items") && !a.contains("prefixItems") &&
               !b.contains("prefixItems") && apart(a["items"], b["items"], depth + 1);
    }
    if (type != "object") return false;
    std::set<std::string> keys;
    for (const ordered_json* s : {&a, &b})
        if (s->contains("required") && (*s)["required"].is_array())
            for (const ordered_json& key : (*s)["required"])
                if (key.is_string()) keys.insert(key.get<std::string>());
    for (const std::string& key : keys) {
        const ordered_json *mine = property(a, key), *there = property(b, key);
        const bool opened = others(a) ? !closed(a) : !a.contains("properties");
        if (requires_key(b, key) && !requires_key(a, key) && !mine && !opened)
            return true;    // a's grammar never generates this member
        if (!there && closed(b)) return true;
        if (mine && there && apart(*mine, *there, depth + 1)) return true;
    }
    return false;
}
