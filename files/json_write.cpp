// json_write.cpp - see json_write.h.
#include "json_write.h"

#include <cstdio>
#include <nlohmann/json.hpp>

using nlohmann::ordered_json;

Json::Json(std::nullptr_t) : value(std::make_shared<ordered_json>()) {}
Json::Json(bool b) : value(std::make_shared<ordered_json>(b)) {}
Json::Json(double x) : value(std::make_shared<ordered_json>(x)) {}
Json::Json(std::string_view text) : value(std::make_shared<ordered_json>(text)) {}
Json Json::list() {
    Json all;
    *all.value = ordered_json::array();
    return all;
}
Json Json::empty_object() {
    Json all;
    *all.value = ordered_json::object();
    return all;
}
void Json::set_integer(int64_t n) { *value = n; }

ordered_json& Json::own() {
    if (value.use_count() > 1) value = std::make_shared<ordered_json>(*value);
    return *value;
}
// Appends a new field. The key is not compared with the object's other keys, because that would
// take quadratic time for a vocabulary.
void Json::set_field(std::string_view key, Json to) {
    own().get_ref<ordered_json::object_t&>().emplace_back(std::string(key), std::move(to.own()));
}
Json& Json::add(Json item) {
    own().push_back(std::move(item.own()));
    return *this;
}
bool Json::empty() const { return value->empty(); }
std::string Json::text(int indent) const {
    return value->dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}
std::string Json::fields() const {
    const std::string all = text();
    return all.substr(1, all.size() - 2);
}
void Json::print() const { puts(text().c_str()); }
