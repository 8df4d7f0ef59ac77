// json_reader.h - shared by the readers of tokenizer.json and tokenizer_config.json: optional
// fields, and messages that locate an error.
#pragma once
#include <string>
#include <string_view>

#include "files/json.h"
#include "data/vocabulary.h"

struct JsonReader {
    const std::string& name;    // file name, for messages
    static inline const nlohmann::json none = nullptr;

    static std::string shown(const nlohmann::json& value) {    // value as text for messages
        std::string s = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
        return s.size() > 60 ? s.substr(0, 57) + "..." : s;
    }
    Status wrong(const std::string& where, const char* expected, const nlohmann::json& found) const {
        return fail(Exit::input, "%s: %s: expected %s, found %s", name.c_str(), where.c_str(), expected,
                    shown(found).c_str());
    }
    static const nlohmann::json& at(const nlohmann::json& object, const char* key) {    // JSON null if absent
        auto it = object.is_object() ? object.find(key) : object.end();
        return object.is_object() && it != object.end() ? *it : none;
    }
    static bool flag(const nlohmann::json& object, const char* key, bool otherwise) {
        const nlohmann::json& value = at(object, key);
        return value.is_boolean() ? value.get<bool>() : otherwise;
    }
    static std::string text(const nlohmann::json& object, const char* key) {
        const nlohmann::json& value = at(object, key);
        return value.is_string() ? value.get<std::string>() : std::string();
    }
    // normalized: default for a missing field "normalized", as in Hugging Face.
    static AddedToken added_token(int id, const nlohmann::json& j, bool normalized) {
        const bool special = flag(j, "special", false);
        return {id,
                special,
                flag(j, "lstrip", false),
                flag(j, "rstrip", false),
                flag(j, "single_word", false),
                flag(j, "normalized", normalized && !special)};
    }
};
Result<Vocabulary> tokenizer_json_parse(std::string_view text, const std::string& name);
