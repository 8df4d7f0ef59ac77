// json_text.cpp - see json_text.h.
#include "json_text.h"

#include "json_check.h"

Result<std::string> json_text_field(std::string_view text, const std::string& name, const std::string& field,
                                    int max_depth) {
    constexpr size_t NAMED = 8, LETTERS = 40;
    JsonCheck v(max_depth, &field);
    v.other = "nothing";
    TRY(json_check(text, name, v));
    if (!v.object) return fail(Exit::input, "%s: expected a JSON object", name.c_str());
    if (v.other.empty()) return std::move(v.value);
    std::string there;
    for (size_t i = 0; i < v.fields.size() && i < NAMED; i++)
        there += (i ? ", " : "") + json_string(v.fields[i].substr(0, LETTERS));
    if (v.fields.size() > NAMED) there += " and " + std::to_string(v.fields.size() - NAMED) + " more";
    if (v.other == "nothing") v.other += "; its fields: " + (there.empty() ? "none" : there);
    return fail(Exit::input, "%s: %s: expected a string, found %s", name.c_str(), field.c_str(), v.other.c_str());
}
