// json_check.h - checks hostile JSON without building a tree: syntax, depth, duplicate keys;
// extracts one string field.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "base/shorten.h"
#include "json.h"

// A first pass over the text, because the DOM parser keeps the last of two equal keys and has no
// depth limit.
struct JsonCheck : nlohmann::json_sax<nlohmann::json> {
    static constexpr size_t MAX_QUOTED = 320;    // bytes of the file quoted in a message
    int max_depth;
    // Keys of each open object; empty for an open array. At the object's end they are sorted to
    // find duplicates: a hostile file cannot make sorting quadratic, unlike a hash table.
    std::vector<std::vector<std::string>> keys;
    std::string error;
    size_t error_byte = 0;
    // Field to extract: a key of the outermost object, or "a.b" for key b of the object at key a.
    const std::string* field = nullptr;
    std::vector<size_t> path;           // bytes of *field that the keys of open objects cover, outermost first
    size_t covered = 0;                 // bytes of *field that the last key covers, if an object follows
    bool found = false;                 // the field's key has come: the first one counts
    bool text_alone = false;            // the outermost value is a string, kept in `value`
    std::string value;                  // the field's value, if it is a string
    std::string other;                  // text or type of another value
    std::vector<std::string> fields;    // the outermost object's keys
    bool object = false;                // the outermost value is an object
    bool here = false;                  // the next value is the field's
    size_t most_keys = SIZE_MAX;        // in one object
    explicit JsonCheck(int most_levels, const std::string* wanted = nullptr) : max_depth(most_levels), field(wanted) {}

    bool null() override { return is("null"); }
    bool boolean(bool b) override { return is(b ? "true" : "false"); }
    bool number_integer(number_integer_t n) override { return is(nullptr, n); }
    bool number_unsigned(number_unsigned_t n) override { return is(nullptr, n); }
    bool number_float(number_float_t, const string_t& text) override { return is(text.c_str()); }
    bool string(string_t& text) override {
        text_alone |= keys.empty();
        covered = 0;
        if (std::exchange(here, false) || keys.empty()) {
            value = std::move(text);
            other.clear();
        }
        return true;
    }
    bool binary(binary_t&) override { return true; }
    bool start_object(size_t) override {
        object |= keys.empty();
        if (covered) path.push_back(covered);
        return is("an object") && open();
    }
    bool end_object() override {
        if (!path.empty() && keys.size() == path.size() + 1) path.pop_back();
        return distinct() && close();
    }
    bool start_array(size_t) override { return is("an array") && open(); }
    bool end_array() override { return close(); }
    bool key(string_t& name) override {
        if (field && keys.size() == path.size() + 1) match(name);
        std::vector<std::string>& names = keys.back();
        if (names.size() >= most_keys) {
            error = "expected at most " + std::to_string(most_keys) + " fields in an object";
            return false;
        }
        if (names.size() == names.capacity() && !distinct()) return false;    // detects many equal keys early
        names.push_back(name);
        return true;
    }
    bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& e) override {
        std::string what = e.what();
        error = "not JSON: " + shorten(what.substr(what.find("] ") + 2), MAX_QUOTED);    // without the library's tag
        error_byte = byte;
        return false;
    }

  private:
    // Compares a key of the innermost object on the field's path with the next part of the path.
    void match(const std::string& name) {
        const size_t from = path.empty() ? 0 : path.back();
        const std::string_view rest = std::string_view(*field).substr(from);
        here = !found && name == rest;
        found |= here;
        const bool begins = rest.size() > name.size() && rest.starts_with(name) && rest[name.size()] == '.';
        covered = begins ? from + name.size() + 1 : 0;
    }
    bool is(const char* what) {    // the next value is no string
        covered = 0;
        if (std::exchange(here, false)) other = std::string(what).substr(0, 60);
        return true;
    }
    template <class N> bool is(std::nullptr_t, N number) {
        covered = 0;
        return !here || is(std::to_string(number).c_str());
    }
    bool distinct() {    // checks the innermost object's keys
        std::vector<std::string>& names = keys.back();
        std::sort(names.begin(), names.end());
        const auto twice = std::adjacent_find(names.begin(), names.end());
        if (twice == names.end()) return true;
        error = "the key \"" + shorten(*twice, MAX_QUOTED) + "\" occurs twice";
        return false;
    }
    bool open() {
        keys.emplace_back();
        if (int(keys.size()) <= max_depth) return true;
        error = "nested more than " + std::to_string(max_depth) + " deep";
        return false;
    }
    bool close() {
        if (keys.size() == 1) fields = std::move(keys.back());
        keys.pop_back();
        return true;
    }
};

// Checks JSON text in one pass; v gets the extracted field. Exit 3 naming `name` and the byte.
Status json_check(std::string_view text, const std::string& name, JsonCheck& v);
// Returns the text in a field (JsonCheck::field) of a JSON object. or_string: `text` may also be a
// JSON string, which is then returned. No tree: memory grows only with the field and the object's
// keys. Exit 3 naming the byte, or if `text` is no object, or if the field is missing or no string;
// the message then lists the other fields.
Result<std::string> json_text_field(std::string_view text, const std::string& name, const std::string& field,
                                    int max_depth, bool or_string = false);
