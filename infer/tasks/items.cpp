// items.cpp - see items.h.
#include "items.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/loader.h"
#include "files/json.h"
#include "files/text_file.h"
#include "infer/jinja/chat_template.h"
#include "requests.h"

namespace {
typedef nlohmann::ordered_json Object;
constexpr int DEPTH = 16;
constexpr int64_t MOST_BYTES = 1 << 30;

Record record_of(const std::string& where, Object json) {
    return {where, std::make_shared<const Object>(std::move(json))};
}
std::string line_of(const std::string& name, int64_t line) { return name + " line " + std::to_string(line); }

// ---- CSV ----------------------------------------------------------------------------------------
//
// The readers of data/documents do not serve here: they return one column, which a header names, or
// one text field of an object, and read no text from memory. MMLU's CSV has no header, and an item
// needs all fields.

// Splits one CSV record (RFC 4180), which begins at `at`; quoted fields may have line breaks.
Result<std::vector<std::string>> csv_fields(const std::string& text, size_t& at, int64_t& line,
                                            const std::string& name) {
    const int64_t first = line;
    std::vector<std::string> fields(1);
    for (bool quoted = false, ended = false; !ended; at++) {
        const bool end = at >= text.size();
        const char c = end ? '\n' : text[at];
        if (quoted && end)
            return fail(Exit::input,
                        "%s line %lld: expected a second \" at the quoted field's end, found the file's end",
                        name.c_str(), (long long)first);
        if (c == '\n') line++;
        if (c == '"' && (quoted || fields.back().empty())) {
            const bool twice = quoted && at + 1 < text.size() && text[at + 1] == '"';
            if (twice) fields.back() += text[at++];
            else quoted = !quoted;
        } else if (quoted) fields.back() += c;
        else if (c == ',') fields.emplace_back();
        else if (c == '\n') ended = true;
        else if (c != '\r') fields.back() += c;
    }
    return fields;
}
}    // namespace
Result<std::vector<std::vector<std::string>>> parse_csv_rows(const std::string& text, const std::string& name,
                                                             std::vector<int64_t>* lines) {
    std::vector<std::vector<std::string>> rows;
    int64_t line = 1;
    for (size_t at = 0; at < text.size();) {
        const int64_t first = line;
        std::vector<std::string> fields = TRY(csv_fields(text, at, line, name));
        if (fields.size() == 1 && fields[0].empty()) continue;
        rows.push_back(std::move(fields));
        if (lines) lines->push_back(first);
    }
    return rows;
}

namespace {
Result<std::vector<Record>> parse_csv(const std::string& text, const std::string& name,
                                      const std::vector<const char*>& columns) {
    const std::string file = name.substr(name.rfind('/') + 1);
    std::string subject;
    for (const char* split : {"_test.", "_val.", "_dev."})
        if (const size_t end = file.find(split); end != file.npos) subject = file.substr(0, end);
    std::vector<Record> records;
    std::vector<int64_t> lines;
    for (const std::vector<std::string>& fields : TRY(parse_csv_rows(text, name, &lines))) {
        const int64_t line = lines[records.size()];
        if (fields.size() != columns.size())
            return fail(Exit::input, "%s line %lld: expected %zu columns, found %zu", name.c_str(), (long long)line,
                        columns.size(), fields.size());
        Object json;
        for (size_t i = 0; i < fields.size(); i++) {
            const bool list = std::count(columns.begin(), columns.end(), std::string(columns[i])) > 1;
            if (list) json[columns[i]].push_back(fields[i]);
            else json[columns[i]] = fields[i];
        }
        records.push_back(record_of(line_of(name, line), std::move(json)));
        records.back().subject = subject;
    }
    return records;
}

// ---- JSON ---------------------------------------------------------------------------------------

Status expect_object(const Object& json, const std::string& where) {
    if (json.is_object()) return {};
    return fail(Exit::input, "%s: expected an object, found %s", where.c_str(), json.type_name());
}
Result<std::vector<Record>> parse_array(const std::string& text, const std::string& name) {
    std::vector<Record> records;
    for (Object& json : TRY(json_parse_ordered(text, name, DEPTH))) {
        const std::string where = name + " item " + std::to_string(records.size() + 1);
        TRY(expect_object(json, where));
        records.push_back(record_of(where, std::move(json)));
    }
    return records;
}
Result<std::vector<Record>> parse_lines(const std::string& text, const std::string& name) {
    std::vector<Record> records;
    int64_t number = 1;
    for (size_t at = 0, end; at < text.size(); at = end + 1, number++) {
        end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        if (line.find_first_not_of(" \t\r") == line.npos) continue;
        const std::string where = line_of(name, number);
        Result<Object> parsed = json_parse_ordered(line, where, DEPTH);
        if (!parsed.ok() && records.empty()) parsed.status.message += "; a plain text needs a name that ends in .txt";
        TRY(parsed.status);
        Object json = std::move(parsed.value);
        TRY(expect_object(json, where));
        records.push_back(record_of(where, std::move(json)));
    }
    return records;
}

// ---- fields -------------------------------------------------------------------------------------

bool is_label(const Object& v) { return v.is_string() || v.is_number_integer() || v.is_boolean(); }
bool all_of(const Object& v, bool (*is)(const Object&)) { return v.is_array() && std::all_of(v.begin(), v.end(), is); }
bool is_text(const Object& v) { return v.is_string(); }
const char* form_of(FieldKind kind) {
    switch (kind) {
        case FieldKind::text: return "a text";
        case FieldKind::texts: return "a list of texts";
        case FieldKind::label: return "a text or a whole number";
        case FieldKind::labels: return "a list of texts or whole numbers";
        case FieldKind::blank: return "a text with a blank, _";
        default: return "an object";
    }
}
bool has_form(const Object& v, const Field& field) {
    switch (field.kind) {
        case FieldKind::text: return v.is_string();
        case FieldKind::blank: return v.is_string() && v.get_ref<const std::string&>().find('_') != std::string::npos;
        case FieldKind::texts: return all_of(v, is_text) && (field.count == 0 || v.size() == size_t(field.count));
        case FieldKind::label: return is_label(v);
        default: return all_of(v, is_label);
    }
}
// The value at a path; null: there is none.
Object value_at(const Object& json, std::string path, FieldKind kind) {
    const size_t dot = path.find('.');
    const std::string key = path.substr(0, dot);
    path = dot == path.npos ? "" : path.substr(dot + 1);
    if (!json.is_object()) return nullptr;
    const auto member = json.find(key);
    if (member == json.end()) return nullptr;
    if (path.empty()) {
        if (kind != FieldKind::keys && kind != FieldKind::values) return *member;
        if (!member->is_object()) return nullptr;
        Object list = Object::array();
        for (auto& [name, value] : member->items()) list.push_back(kind == FieldKind::keys ? Object(name) : value);
        return list;
    }
    if (!member->is_array()) return value_at(*member, path, kind);
    Object list = Object::array();
    for (const Object& element : *member) list.push_back(value_at(element, path, kind));
    return list;
}
// The fields' values under their names. `fitting`: the number of fields that fit; `wrong`: text on
// the first one that does not.
Object values_of(const Record& record, const TaskLayout& layout, size_t& fitting, std::string& wrong) {
    Object values = Object::object();
    fitting = 0;
    wrong.clear();
    for (const Field& field : layout.fields) {
        Object v = value_at(*record.json, field.path, field.kind);
        if (v.is_null() && field.optional) v = record.subject;
        const bool fits = has_form(v, field);
        fitting += fits;
        if (!fits && wrong.empty()) {
            const std::string form = field.count ? formatted("a list of %d texts", field.count) : form_of(field.kind);
            const std::string found = v.is_null()    ? "none"
                                      : v.is_array() ? formatted("an array of %zu", v.size())
                                                     : std::string(v.type_name());
            wrong = "expected field \"" + std::string(field.path) + "\", " + form + ", found " + found;
        }
        values[field.name] = std::move(v);
    }
    return values;
}
// The values of the layout that fits, and that layout.
Result<Object> fields_of(const EvalTask& task, const Record& record, const TaskLayout*& fits) {
    size_t fitting = 0, most = 0;
    std::string wrong, first_wrong;
    for (const TaskLayout& layout : task.layouts) {
        Object values = values_of(record, layout, fitting, wrong);
        fits = &layout;
        if (wrong.empty()) return values;
        if (first_wrong.empty() || fitting > most) first_wrong = wrong;
        most = std::max(most, fitting);
    }
    std::string other;
    for (const bool same_kind : {true, false})    // a task of the same kind is likelier meant
        for (const EvalTask& another : tasks())
            for (const TaskLayout& layout : another.layouts) {
                (void)values_of(record, layout, fitting, wrong);
                if (wrong.empty() && other.empty() && (another.kind == task.kind || !same_kind)) other = another.name;
            }
    std::string list;
    for (auto& [name, value] : record.json->items())
        if (list.size() < 200) list += (list.empty() ? "" : ", ") + name;
    return fail(Exit::input, "%s: %s: %s; its fields: %s%s", record.where.c_str(), task.name, first_wrong.c_str(),
                list.empty() ? "none" : list.c_str(),
                other.empty() ? "" : ("; this is an item of task " + other).c_str());
}

// The whole number that a label is, if it is one.
bool number_of(const Object& label, int64_t* number) {
    if (label.is_string()) {
        const std::string& text = label.get_ref<const std::string&>();
        if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != text.npos) return false;
        *number = atoll(text.c_str());
        return true;
    }
    *number = label.is_boolean() ? int64_t(label.get<bool>()) : label.get<int64_t>();
    return true;
}
std::string label_text(const Object& label) {
    if (!label.is_string()) return label.dump();
    const std::string text = label.get<std::string>();
    const size_t begin = std::min(text.find_first_not_of(" \t\n"), text.size());    // some answerKeys of OpenBookQA
    return text.substr(begin);
}
const char* gold_path(const TaskLayout& layout) {
    for (const Field& field : layout.fields)
        if (field.name == std::string("gold")) return field.path;
    return "gold";
}
// The number of the right one of n answers.
Result<int> gold_of(const EvalTask& task, const TaskLayout& layout, const Object& values, size_t n,
                    const std::string& where) {
    const Object& gold = values["gold"];
    const std::string text = label_text(gold);
    std::vector<std::string> names(task.labels.begin(), task.labels.end());
    if (values.contains("labels"))
        for (const Object& label : values["labels"]) names.push_back(label_text(label));
    const auto found = std::find(names.begin(), names.end(), text);
    if (size_t(found - names.begin()) < std::min(names.size(), n)) return int(found - names.begin());
    int64_t number = -1;
    const bool numbered = !values.contains("labels") && number_of(gold, &number);
    if (numbered && number >= task.first_label && number - task.first_label < int64_t(n))
        return int(number - task.first_label);
    std::string expected = formatted("a number from %d to %zu", task.first_label, n + size_t(task.first_label) - 1);
    if (!names.empty()) {
        expected = "one of";
        for (const std::string& name : names) expected += " " + name;
    }
    return fail(Exit::input, "%s: %s: expected field \"%s\" to be %s, found %s", where.c_str(), task.name,
                gold_path(layout), expected.substr(0, 200).c_str(), text.substr(0, 80).c_str());
}

// ---- templates ----------------------------------------------------------------------------------

struct Templates {
    ChatTemplate prompt, answers, description;
};
Result<std::string> rendered(const ChatTemplate& t, const Object& values, const EvalTask& task, const Record& record) {
    Result<std::string> text = t.render(values, 0);
    if (text.ok()) return text;
    return fail(Exit::input, "%s: %s: %s", record.where.c_str(), task.name, text.status.message.c_str());
}
std::vector<std::string> list_of(const std::string& json) {
    std::vector<std::string> texts;
    const Object list = Object::parse(json, nullptr, false);
    CHECK(list.is_array(), "a row's template gives %s", json.c_str());
    for (const Object& text : list) texts.push_back(text.get<std::string>());    // by tojson
    return texts;
}
Result<Item> item_of(const EvalTask& task, const Templates& t, const Record& record) {
    Item item{.record = record};
    const TaskLayout* layout = nullptr;
    const Object values = TRY(fields_of(task, record, layout));
    // A text of any length exceeds a template's limits on output.
    const std::string prompt = TRY(rendered(t.prompt, values, task, record)),
                      answers = task.kind == TaskKind::rolling ? values.at(task.answers).get<std::string>()
                                                               : TRY(rendered(t.answers, values, task, record));
    item.description = TRY(rendered(t.description, values, task, record));
    item.prompts = task.kind == TaskKind::contexts ? list_of(prompt) : std::vector<std::string>{prompt};
    item.answers = task.kind == TaskKind::choices ? list_of(answers) : std::vector<std::string>{answers};
    if (task.kind == TaskKind::rolling) {
        item.words = count_words(answers);
        item.bytes = int64_t(answers.size());
    }
    for (auto* texts : {&item.prompts, &item.answers})
        for (std::string& text : *texts)
            if (task.clean) text = task.clean(text);
    if (*task.pool_by && values.contains(task.pool_by)) item.pool = values[task.pool_by].get<std::string>();
    const size_t n = std::max(item.prompts.size(), item.answers.size());
    if (task.kind == TaskKind::choices && n < 2)
        return fail(Exit::input, "%s: %s: expected at least two answers, found %zu", record.where.c_str(), task.name,
                    n);
    if (values.contains("gold")) item.gold = TRY(gold_of(task, *layout, values, n, record.where));
    if (values.contains("truths")) {
        int64_t truth = 0;
        for (const Object& label : values["truths"]) {
            if (!number_of(label, &truth)) truth = -1;
            if (truth == 1 && item.gold < 0) item.gold = int(item.truths.size());
            item.truths.push_back(truth == 1);
            if (truth == 0 || truth == 1) continue;
            return fail(Exit::input, "%s: %s: expected labels 0 and 1, found %s", record.where.c_str(), task.name,
                        label.dump().substr(0, 80).c_str());
        }
        if (item.truths.size() != n || item.gold < 0)
            return fail(Exit::input,
                        "%s: %s: expected a label for each of %zu answers, one of them 1, found %zu labels",
                        record.where.c_str(), task.name, n, item.truths.size());
    }
    return item;
}
}    // namespace

Result<std::vector<Record>> parse_records(const std::string& text, const std::string& name,
                                          const std::vector<const char*>& columns) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first == text.npos) return fail(Exit::input, "%s: expected items, found an empty file", name.c_str());
    if (decompressed_name(name).ends_with(".txt")) return std::vector<Record>{record_of(name, Object{{"text", text}})};
    const bool csv = !columns.empty() && decompressed_name(name).ends_with(".csv");
    if (csv) return parse_csv(text, name, columns);
    return text[first] == '[' ? parse_array(text, name) : parse_lines(text, name);
}
Result<std::vector<Record>> read_records(const std::string& path, const std::vector<const char*>& columns) {
    TextFile file = TRY(TextFile::open(path));
    std::string text;
    for (size_t had = 0;; had = text.size()) {
        text.resize(had + (1 << 20));
        text.resize(had + TRY(file.read(&text[had], text.size() - had)));
        if (text.size() == had) break;
        if (int64_t(text.size()) > MOST_BYTES)
            return fail(Exit::input, "%s: expected at most 1 GiB of items, found more; split the file", path.c_str());
    }
    return parse_records(text, path == "-" ? "stdin" : path, columns);
}

Result<std::vector<Item>> task_items(const EvalTask& task, const std::vector<Record>& records) {
    const Templates templates = {TRY(ChatTemplate::parse(task.prompt)), TRY(ChatTemplate::parse(task.answers)),
                                 TRY(ChatTemplate::parse(task.description))};
    std::vector<Item> items;
    for (const Record& record : records) items.push_back(TRY(item_of(task, templates, record)));
    return items;
}
Result<std::vector<Item>> read_items(const EvalTask& task, const std::string& pattern) {
    std::vector<const char*> columns;
    for (const TaskLayout& layout : task.layouts)
        if (!layout.columns.empty()) columns = layout.columns;
    std::vector<Item> items;
    const std::vector<std::string> paths = pattern == "-" ? std::vector<std::string>{pattern}
                                                          : TRY(shard_glob(pattern));
    for (const std::string& path : paths) {
        const std::vector<Item> more = TRY(task_items(task, TRY(read_records(path, columns))));
        items.insert(items.end(), more.begin(), more.end());
    }
    if (items.empty()) return fail(Exit::input, "%s: expected items, found none", pattern.c_str());
    return items;
}
