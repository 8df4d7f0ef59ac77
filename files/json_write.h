// json_write.h - JSON to write: nlohmann's ordered_json, behind a pointer because its header
// compiles slowly.
#pragma once
#include <concepts>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// A JSON value. A copy shares the value's memory until either copy changes.
class Json {
  public:
    Json(std::nullptr_t = nullptr);
    Json(bool b);
    Json(double x);                 // reads back to equal bits; NaN, infinity: null
    Json(std::string_view text);    // bytes that are not UTF-8 become U+FFFD
    Json(const std::string& text) : Json(std::string_view(text)) {}
    Json(const char* text) : Json(std::string_view(text)) {}
    template <std::integral N> Json(N n) : Json(nullptr) { set_integer(int64_t(n)); }
    template <class... Fields> static Json object(Fields&&... keys_and_values) {
        return std::move(empty_object().set(std::forward<Fields>(keys_and_values)...));
    }
    template <class T> static Json list(const std::vector<T>& items) {
        Json all = list();
        for (const T& item : items) all.add(item);
        return all;
    }
    static Json list();    // an empty list

    // Appends fields to the object: key, value, key, value, ... No key may come twice.
    template <class V, class... More> Json& set(std::string_view key, V&& to, More&&... more) {
        set_field(key, std::forward<V>(to));
        return set(std::forward<More>(more)...);
    }
    Json& set() { return *this; }
    Json& add(Json item);                       // appends an item to the list
    bool empty() const;                         // object without fields or list without items
    std::string text(int indent = -1) const;    // -1: on one line
    std::string fields() const;                 // an object's text without its braces
    void print() const;                         // writes one line to standard output

  private:
    static Json empty_object();
    void set_field(std::string_view key, Json to);
    void set_integer(int64_t n);
    nlohmann::ordered_json& own();
    std::shared_ptr<nlohmann::ordered_json> value;
};

// A JSON string with quotes.
inline std::string json_string(std::string_view text) { return Json(text).text(); }
