// toml.h - TOML without tables: `key = value` with strings, numbers, booleans or lists of strings.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "common.h"

struct TomlSetting {
    std::string key;
    std::vector<std::string> values;    // escapes resolved; numbers as written
    bool text = false, list = false;    // text: quoted value; list: value in brackets
    int line = 0;                       // 1-based
};
// Parses TOML. Exit 2: the message has `name`, the line, the expected and the found text.
Result<std::vector<TomlSetting>> toml_parse(std::string_view text, const std::string& name);
std::string toml_string(const std::string& text);    // quoted and escaped
