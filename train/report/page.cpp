// page.cpp - see page.h.
#include "train/report/page.h"

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "base/console.h"
#include "base/file.h"
#include "base/toml.h"
#include "files/json.h"
#include "files/picture.h"
#include "train/metrics.h"
#include "train/report/run_state.h"

// The files of this folder, each as a C string (Makefile).
extern "C" const char page_html_file[], page_css_file[], chart_js_file[], page_js_file[];

namespace {
using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t MAX_SECTION = 4 << 20;    // bytes of a section's file
constexpr size_t MAX_ROWS = 2000;           // rows of a table

// JSON for a script element: "</script>" and "<!--" cannot occur in it.
std::string embedded(const ordered_json& j) {
    std::string out;
    for (const char c : j.dump(-1, ' ', false, json::error_handler_t::replace))
        if (c == '<') out += "\\u003c";
        else out += c;
    return out;
}

ordered_json cell(const json& value) {
    if (value.is_number() || value.is_null()) return value;
    if (value.is_string()) return value.get<std::string>();
    return value.dump(-1, ' ', false, json::error_handler_t::replace);
}
// A list of objects as {title, head, rows}.
ordered_json table_of(const std::string& title, const std::vector<ordered_json>& objects) {
    std::vector<std::string> head;
    ordered_json rows = ordered_json::array();
    for (const ordered_json& object : objects)
        for (const auto& [key, value] : object.items())
            if (std::find(head.begin(), head.end(), key) == head.end()) head.push_back(key);
    for (const ordered_json& object : objects) {
        ordered_json row = ordered_json::array();
        for (const std::string& key : head) row.push_back(object.contains(key) ? cell(object[key]) : ordered_json());
        rows.push_back(row);
        if (rows.size() == MAX_ROWS) break;
    }
    return {{"title", title}, {"head", head}, {"rows", rows}};
}
bool is_objects(const ordered_json& j) {
    return j.is_array() && !j.empty() && std::all_of(j.begin(), j.end(), [](auto& x) { return x.is_object(); });
}
// Tables of JSON text: one value, or an object on each line. Lists of objects within an object are
// tables of their own.
Result<ordered_json> tables_of(const std::string& text, const std::string& path) {
    constexpr int DEPTH = 12;
    std::vector<ordered_json> objects;
    Result<ordered_json> whole = json_parse_ordered(text, path, DEPTH);
    if (whole.ok() && is_objects(whole.value)) objects.assign(whole.value.begin(), whole.value.end());
    else if (whole.ok() && whole.value.is_object()) objects = {whole.value};
    else if (whole.ok()) return fail(Exit::input, "%s: expected JSON objects", escape_control(path).c_str());
    size_t number = 0;
    for (size_t at = 0, end; !whole.ok() && at < text.size(); at = end + 1) {
        end = std::min(text.find('\n', at), text.size());
        number++;
        if (text.find_first_not_of(" \r\t", at) >= end) continue;
        const std::string where = escape_control(path) + ":" + std::to_string(number);
        objects.push_back(TRY(json_parse_ordered(text.substr(at, end - at), where, DEPTH)));
        if (!objects.back().is_object()) return fail(Exit::input, "%s: expected a JSON object", where.c_str());
    }
    if (objects.empty())
        return fail(Exit::input, "%s: expected JSON objects, found none", escape_control(path).c_str());
    ordered_json tables = ordered_json::array();
    if (objects.size() > 1) tables.push_back(table_of("", objects));
    else {
        ordered_json rest = ordered_json::object();
        for (const auto& [key, value] : objects[0].items())
            if (!is_objects(value)) rest[key] = value;
        if (!rest.empty()) tables.push_back(table_of("", {rest}));
        for (const auto& [key, value] : objects[0].items())
            if (is_objects(value)) tables.push_back(table_of(key, {value.begin(), value.end()}));
    }
    return tables;
}
}    // namespace

size_t page_buckets(size_t runs) { return std::clamp<size_t>(4000 / std::max<size_t>(1, runs), 100, 800); }

std::string page_html(const PageContent& content) {
    const ordered_json data = {{"title", content.title},
                               {"written", int64_t(time(nullptr))},
                               {"refresh", content.refresh},
                               {"runs", content.runs},
                               {"sections", content.sections}};
    // The template is split at its marks, so that marks in the data mean nothing.
    std::string rest = page_html_file, page;
    for (const auto& [mark, text] :
         {std::pair<std::string, std::string>{"<!--STYLE-->", page_css_file},
          {"<!--DATA-->", embedded(data)},
          {"<!--SCRIPT-->", "(() => {\n" + std::string(chart_js_file) + page_js_file + "})();"}}) {
        const size_t at = rest.find(mark);
        CHECK(at != rest.npos, "page.html lacks %s", mark.c_str());
        page += rest.substr(0, at) + text;
        rest = rest.substr(at + mark.size());
    }
    return page + rest;
}

Result<ordered_json> page_section(const std::string& path) {
    const std::string name = std::filesystem::path(path).filename();
    const bool svg = path.ends_with(".svg"), png = path.ends_with(".png");
    if (!svg && !png && !path.ends_with(".json") && !path.ends_with(".jsonl"))
        return fail(Exit::usage, "--section %s: expected a file's name that ends in .svg, .png or .json", path.c_str());
    const std::string text = TRY(read_file(path, MAX_SECTION));
    if (!svg && !png) return ordered_json{{"title", name}, {"tables", TRY(tables_of(text, path))}};
    if (svg ? text.find("<svg") == text.npos : !text.starts_with("\x89PNG\r\n"))
        return fail(Exit::input, "%s: expected a picture, found no %s", escape_control(path).c_str(),
                    svg ? "SVG" : "PNG");
    return ordered_json{{"title", name},
                        {"image", (svg ? "data:image/svg+xml;base64," : "data:image/png;base64,") + base64(text)}};
}

Status add_settings(const std::string& toml, const std::string& name, RunData* run) {
    for (const TomlSetting& s : TRY(toml_parse(toml, name))) {
        std::string value;
        for (const std::string& v : s.values) value += (value.empty() ? "" : ", ") + v;
        run->settings.emplace_back(s.key, value);
    }
    return {};
}

Status read_run(const std::string& path, RunData* run) {
    TRY(read_metrics(path, [&](const json& row, const std::string& where) { return run->add(row, where); }));
    if (!run->rows()) return fail(Exit::input, "%s: no rows of metrics in it yet", escape_control(path).c_str());
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) return {};
    const RunState state = run_state(path, run->last_step());
    run->state = state.state;
    run->steps = state.steps;
    const std::string toml = path + "/run.toml";
    if (!std::filesystem::exists(toml, error)) return {};
    const Status s = add_settings(TRY(read_file(toml, 1 << 20)), toml, run);
    return s.ok() ? s : Status{Exit::input, s.message};
}
