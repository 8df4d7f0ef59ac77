// json.cpp - see json.h.
#include "json.h"

#include <algorithm>
#include <vector>

namespace {
using nlohmann::json;

// A first pass that builds nothing: the DOM parser keeps the last of two equal keys and knows no depth.
struct Validator : nlohmann::json_sax<json> {
    int max_depth;
    // Each open object's keys; none for an array. They are sorted at the object's end: a hostile file cannot make that
    // quadratic, as it could a hash table.
    std::vector<std::vector<std::string>> keys;
    std::string error;
    size_t error_byte = 0;
    explicit Validator(int max_depth) : max_depth(max_depth) {}

    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, const string_t&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool start_object(size_t) override { return open(); }
    bool end_object() override { return distinct() && close(); }
    bool start_array(size_t) override { return open(); }
    bool end_array() override { return close(); }
    bool key(string_t& name) override {
        std::vector<std::string>& names = keys.back();
        if (names.size() == names.capacity() && !distinct()) return false;    // a million equal keys are not gathered
        names.push_back(name);
        return true;
    }
    bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& e) override {
        std::string what = e.what();
        error = "not JSON: " + what.substr(what.find("] ") + 2);    // after the library's own tag
        error_byte = byte;
        return false;
    }

  private:
    bool distinct() {    // the innermost object's keys
        std::vector<std::string>& names = keys.back();
        std::sort(names.begin(), names.end());
        const auto twice = std::adjacent_find(names.begin(), names.end());
        if (twice == names.end()) return true;
        error = "the key \"" + *twice + "\" occurs twice";
        return false;
    }
    bool open() {
        keys.emplace_back();
        if (int(keys.size()) <= max_depth) return true;
        error = "nested more than " + std::to_string(max_depth) + " deep";
        return false;
    }
    bool close() {
        keys.pop_back();
        return true;
    }
};
}   // namespace

Result<json> json_parse(std::string_view text, const std::string& name, int max_depth) {
    // The library takes a NUL for the end and would not look behind it.
    if (size_t nul = text.find('\0'); nul != text.npos)
        return fail(Exit::input, "%s: byte %zu: not JSON: a NUL", name.c_str(), nul + 1);
    Validator v(max_depth);
    if (!json::sax_parse(text.begin(), text.end(), &v)) {
        std::string where = v.error_byte ? "byte " + std::to_string(v.error_byte) + ": " : "";
        return fail(Exit::input, "%s: %s%s", name.c_str(), where.c_str(), v.error.c_str());
    }
    return json::parse(text.begin(), text.end(), nullptr, false);
}

namespace {
const json& field(const json& object, const char* key) {    // null where there is none
    static const json none;
    auto it = object.find(key);
    return it == object.end() ? none : *it;
}
}   // namespace

bool JsonFields::has(const char* key) const { return !field(object, key).is_null(); }

template <class V> Status JsonFields::take(const char* key, bool fits, const std::string& expected, V* out) const {
    std::string found = "nothing";
    if (auto it = object.find(key); it != object.end()) {
        if (fits) return *out = it->get<V>(), Status{};
        found = it->dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60);
    }
    return fail(Exit::input, "%s: %s: expected %s, found %s", name.c_str(), key, expected.c_str(), found.c_str());
}

Status JsonFields::get(const char* key, int64_t* out, int64_t min, int64_t max) const {
    const json& j = field(object, key);
    const bool fits = j.is_number_integer() && !(j.is_number_unsigned() && j.get<uint64_t>() > uint64_t(INT64_MAX)) &&
                      j.get<int64_t>() >= min && j.get<int64_t>() <= max;
    return take(key, fits, "an integer from " + std::to_string(min) + " to " + std::to_string(max), out);
}
Status JsonFields::get(const char* key, int* out, int min, int max) const {
    int64_t wide = 0;
    TRY(get(key, &wide, int64_t(min), int64_t(max)));
    *out = int(wide);
    return {};
}
Status JsonFields::get(const char* key, uint64_t* out) const {
    return take(key, field(object, key).is_number_unsigned(), "an integer from 0 to 2^64-1", out);
}
Status JsonFields::get(const char* key, double* out, double min, double max) const {
    const json& j = field(object, key);
    char range[80];
    snprintf(range, sizeof range, "a number from %g to %g", min, max);
    return take(key, j.is_number() && j.get<double>() >= min && j.get<double>() <= max, range, out);
}
Status JsonFields::get(const char* key, std::string* out) const {
    return take(key, field(object, key).is_string(), "a string", out);
}

std::string json_string(std::string_view text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_number(double x) {
    char text[32];
    snprintf(text, sizeof text, std::isfinite(x) ? "%.17g" : "null", x);
    return text;
}
