// json.cpp - see json.h.
#include "json.h"

#include "json_check.h"
#include "json_write.h"

using nlohmann::json;

Status json_check(std::string_view text, const std::string& name, JsonCheck& v) {
    // The library treats a NUL as the end and ignores later bytes.
    if (size_t nul = text.find('\0'); nul != text.npos)
        return fail(Exit::input, "%s: byte %zu: not JSON: a NUL", name.c_str(), nul + 1);
    if (nlohmann::json::sax_parse(text.begin(), text.end(), &v)) return {};
    std::string where = v.error_byte ? "byte " + std::to_string(v.error_byte) + ": " : "";
    return fail(Exit::input, "%s: %s%s", name.c_str(), where.c_str(), v.error.c_str());
}

Result<json> json_parse(std::string_view text, const std::string& name, int max_depth) {
    JsonCheck v(max_depth);
    TRY(json_check(text, name, v));
    return json::parse(text.begin(), text.end(), nullptr, false);
}
Result<nlohmann::ordered_json> json_parse_ordered(std::string_view text, const std::string& name, int max_depth) {
    JsonCheck v(max_depth);
    v.most_keys = 10000;    // an ordered object searches its keys one by one
    TRY(json_check(text, name, v));
    return nlohmann::ordered_json::parse(text.begin(), text.end(), nullptr, false);
}

Result<std::string> json_text_field(std::string_view text, const std::string& name, const std::string& field,
                                    int max_depth, bool or_string) {
    constexpr size_t NAMED = 8, LETTERS = 40;
    JsonCheck v(max_depth, &field);
    v.other = "nothing";
    TRY(json_check(text, name, v));
    if (or_string && v.text_alone) return std::move(v.value);
    if (!v.object)
        return fail(Exit::input, "%s: expected a JSON object%s", name.c_str(), or_string ? " or a string" : "");
    if (v.other.empty()) return std::move(v.value);
    std::string there;
    for (size_t i = 0; i < v.fields.size() && i < NAMED; i++)
        there += (i ? ", " : "") + json_string(v.fields[i].substr(0, LETTERS));
    if (v.fields.size() > NAMED) there += " and " + std::to_string(v.fields.size() - NAMED) + " more";
    if (v.other == "nothing") v.other += "; its fields: " + (there.empty() ? "none" : there);
    return fail(Exit::input, "%s: %s: expected a string, found %s", name.c_str(), field.c_str(), v.other.c_str());
}

namespace {
template <class J> const J& field(const J& object, const char* key) {    // JSON null if absent
    static const J none;
    auto it = object.find(key);
    return it == object.end() ? none : *it;
}
}    // namespace

template <class J> bool FieldsOf<J>::has(const char* key) const { return !field(object, key).is_null(); }

template <class J> template <class V>
Status FieldsOf<J>::take(const char* key, bool fits, const std::string& expected, V* out) const {
    std::string found = "nothing";
    if (auto it = object.find(key); it != object.end()) {
        if (fits) return *out = it->template get<V>(), Status{};
        found = it->dump(-1, ' ', true, J::error_handler_t::replace).substr(0, 60);
    }
    return fail(Exit::input, "%s: %s: expected %s, found %s", name.c_str(), key, expected.c_str(), found.c_str());
}

template <class J> Status FieldsOf<J>::get(const char* key, int64_t* out, int64_t min, int64_t max) const {
    const J& j = field(object, key);
    const bool fits = j.is_number_integer() &&
                      !(j.is_number_unsigned() && j.template get<uint64_t>() > uint64_t(INT64_MAX)) &&
                      j.template get<int64_t>() >= min && j.template get<int64_t>() <= max;
    return take(key, fits, "an integer from " + std::to_string(min) + " to " + std::to_string(max), out);
}
template <class J> Status FieldsOf<J>::get(const char* key, int* out, int min, int max) const {
    int64_t wide = 0;
    TRY(get(key, &wide, int64_t(min), int64_t(max)));
    *out = int(wide);
    return {};
}
template <class J> Status FieldsOf<J>::get(const char* key, uint64_t* out) const {
    return take(key, field(object, key).is_number_unsigned(), "an integer from 0 to 2^64-1", out);
}
template <class J> Status FieldsOf<J>::get(const char* key, double* out, double min, double max) const {
    const J& j = field(object, key);
    char range[80];
    snprintf(range, sizeof range, "a number from %g to %g", min, max);
    return take(key, j.is_number() && j.template get<double>() >= min && j.template get<double>() <= max, range, out);
}
template <class J> Status FieldsOf<J>::get(const char* key, std::string* out) const {
    return take(key, field(object, key).is_string(), "a string", out);
}

template struct FieldsOf<nlohmann::json>;
template struct FieldsOf<nlohmann::ordered_json>;
