// config_json.cpp - reads and writes config.json by the family's row. Every field has a range.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "checkpoint.h"
#include "config_json.h"

namespace {
using nlohmann::json;
using nlohmann::ordered_json;

// Prefix of model_type for models that the family's class in transformers cannot run, such as
// "flatgpt-gpt2". transformers then refuses the file, instead of running it wrongly. The oldest
// such checkpoints have the model_type "flatgpt"; their family is GPT-2.
const char* const OWN_TYPE = "flatgpt";
std::string own_type(const Family& family) { return std::string(OWN_TYPE) + "-" + family.type; }

// Keys of features that flatgpt lacks; a file with another value is refused.
constexpr Family::Fixed REFUSED[] = {{"add_cross_attention", "false", false, true},
                                     {"use_bidirectional_attention", "false", false, true},
                                     {"is_encoder_decoder", "false", false, true},
                                     {"quantization_config", "null", false, true}};

// ---- one field ----------------------------------------------------------------------------------

// Converts a key's value to the field's value.
double from_number(const Config& c, ConfigKey::Form form, double x) {
    switch (form) {
        case ConfigKey::inverse: return 1 / x;
        // A scale of 1/sqrt(HS), the default, is 0 in Config.
        case ConfigKey::scale: return float(x) == float(1 / std::sqrt(double(c.HS))) ? 0 : x;
        case ConfigKey::root: return x == c.HS ? 0 : 1 / std::sqrt(x);
        case ConfigKey::positions: return x - c.family->kinds.position_offset;
        case ConfigKey::by_layer:
        case ConfigKey::both_sides: return std::floor(x / 2) + 1;
        case ConfigKey::width: return x == c.C ? 0 : x;
        case ConfigKey::width_root: return x != 0 ? std::sqrt(double(c.C)) : 1;
        case ConfigKey::width_inverse: return x != 0 ? 1 / std::sqrt(double(c.C)) : 1;
        default: return x;
    }
}
double to_number(const Config& c, ConfigKey::Form form, double x) {
    switch (form) {
        case ConfigKey::inverse: return json_shortest(float(1 / x));
        case ConfigKey::scale: return json_shortest(float(x != 0 ? x : 1 / std::sqrt(double(c.HS))));
        case ConfigKey::root: return x != 0 ? 1 / (x * x) : c.HS;
        case ConfigKey::positions: return x + c.family->kinds.position_offset;
        case ConfigKey::by_layer:
        case ConfigKey::both_sides: return x != 0 ? 2 * (x - 1) : 2.0 * c.T;
        case ConfigKey::width: return x != 0 ? x : c.C;
        default: return json_shortest(float(x));
    }
}

json field_json(const Config& c, const ConfigRow& row, ConfigKey::Form form = ConfigKey::as_is, int on = 1) {
    const double value = config_value(c, row);
    if (form == ConfigKey::or_none && value == 0) return {};
    if (form == ConfigKey::width_root || form == ConfigKey::width_inverse) return value != 1;
    if (form == ConfigKey::t5_ffn && c.gated)
        return "gated-" + (c.activation == Act::gelu_tanh ? "gelu" : row.choices[size_t(value)][0]);
    if (form == ConfigKey::flag) return int(value) == on;
    if (form == ConfigKey::by_layer) return json(size_t(c.L), int64_t(to_number(c, form, value)));
    if (form == ConfigKey::root) {    // integer if possible: the class requires one
        const double square = to_number(c, form, value), whole = std::round(square);
        return std::abs(square - whole) < 1e-5 * whole ? json(int64_t(whole)) : json(square);
    }
    if (std::holds_alternative<float Config::*>(row.member)) return to_number(c, form, value);
    if (std::holds_alternative<bool Config::*>(row.member) && row.choices.empty()) return value != 0;
    if (row.choices.empty()) return int64_t(form == ConfigKey::as_is ? value : to_number(c, form, value));
    if (form == ConfigKey::bert_position) return value == int(Position::relative_key) ? "relative_key" : "absolute";
    const bool torch_name = form == ConfigKey::torch_gelu || form == ConfigKey::any_gelu;
    return row.choices[size_t(value)][torch_name && Act(value) == Act::gelu_tanh];
}

Status choice_parse(const JsonFields& f, const char* key, const ConfigRow& row, double* value) {
    std::string name, known;
    TRY(f.get(key, &name));
    for (size_t i = 0; i < row.choices.size(); i++)
        for (const std::string& choice : row.choices[i]) {
            if (name == choice) return *value = double(i), Status{};
            known += (known.empty() ? "" : " or ") + choice;
        }
    return fail(Exit::input, "%s: %s: expected %s, found \"%s\"", f.name.c_str(), key, known.c_str(), name.c_str());
}
Status flag_parse(const JsonFields& f, const char* key, bool* value) {
    if (!f.object[key].is_boolean())
        return fail(Exit::input, "%s: %s: expected true or false, found %s", f.name.c_str(), key,
                    f.object[key].dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60).c_str());
    *value = f.object[key].get<bool>();
    return {};
}

// Parses an even number, or a list with one for each layer, all of them equal.
Status by_layer_parse(const JsonFields& f, const char* key, const Config& c, double* value) {
    const json& found = f.object[key];
    const bool listed = found.is_array() && !found.empty();
    const json each = listed ? found[0] : found;
    const bool alike = !listed || found == json(size_t(c.L), each);
    if (alike && each.is_number_integer() && each > 0 && each <= 1 << 20 && each.get<int>() % 2 == 0)
        return *value = each.get<int>(), Status{};
    return fail(
        Exit::input, "%s: %s: expected an even number above 0, or one for each of the %d layers, all equal, found %s",
        f.name.c_str(), key, c.L, found.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60).c_str());
}

// Parses a key that is present and not null into the row's field.
Status field_parse(const JsonFields& f, const char* key, const ConfigRow& row, Config* c,
                   ConfigKey::Form form = ConfigKey::as_is, int on = 1) {
    double value = 0;
    bool yes = false;
    const bool by_width = form == ConfigKey::width_root || form == ConfigKey::width_inverse;
    if (form == ConfigKey::by_layer) {
        TRY(by_layer_parse(f, key, *c, &value));
        value = from_number(*c, form, value);
    } else if (by_width) {
        TRY(flag_parse(f, key, &yes));
        value = from_number(*c, form, yes);
    } else if (form == ConfigKey::t5_ffn) {
        std::string name;
        TRY(f.get(key, &name));
        const std::string_view gated = "gated-";
        c->gated = name.starts_with(gated);
        json own = {{key, c->gated ? name.substr(gated.size()) : name}};
        TRY(choice_parse({own, f.name}, key, row, &value));
        if (c->gated && value == int(Act::gelu)) value = int(Act::gelu_tanh);
    } else if (form == ConfigKey::bert_position) {
        std::string name;
        TRY(f.get(key, &name));
        if (name != "absolute" && name != "relative_key")
            return fail(Exit::input, "%s: %s: expected absolute or relative_key, found \"%s\"", f.name.c_str(), key,
                        name.c_str());
        value = int(name == "absolute" ? Position::learned : Position::relative_key);
    } else if (form == ConfigKey::flag || (std::holds_alternative<bool Config::*>(row.member) && row.choices.empty())) {
        TRY(flag_parse(f, key, &yes));
        value = !yes ? 0 : form == ConfigKey::flag ? on : 1;
    } else if (std::holds_alternative<float Config::*>(row.member)) {
        const bool own = form == ConfigKey::inverse || form == ConfigKey::root;
        TRY(f.get(key, &value, own ? 1e-6 : row.min, own ? 1e9 : row.max));
        value = from_number(*c, form, value);
    } else if (row.choices.empty()) {
        int whole = 0;
        TRY(f.get(key, &whole, int(row.min), int(row.max)));
        value = from_number(*c, form, whole);
    } else {
        TRY(choice_parse(f, key, row, &value));
        if (form == ConfigKey::any_gelu && value == int(Act::gelu)) value = int(Act::gelu_tanh);
    }
    config_set(*c, row, value);
    return {};
}

Status key_parse(const JsonFields& f, const ConfigKey& k, Config* c) {
    const ConfigRow& row = config_row(k.field);
    const bool required = row.presence == ConfigRow::required;
    if (k.form == ConfigKey::copy) {
        Config copy = *c;
        if (f.has(k.key)) TRY(field_parse(f, k.key, row, &copy));
        if (config_value(copy, row) == config_value(*c, row)) return {};
        return fail(Exit::input, "%s: %s: flatgpt runs only models where it is %g, as another field says",
                    f.name.c_str(), k.key, config_value(*c, row));
    }
    auto has_it = [&](const ConfigKey& other) { return other.field == k.field && f.has(other.key); };
    const std::vector<ConfigKey>& keys = c->family->keys;
    const auto first = std::find_if(keys.begin(), keys.end(), has_it);
    if (first != keys.end() && &*first != &k) return {};    // another key of the field is present
    const bool there = f.object.contains(k.key);
    if (f.has(k.key)) return field_parse(f, k.key, row, c, k.form, k.on);
    if (there && k.form == ConfigKey::or_none) config_set(*c, row, 0);
    else if (!there && !std::isnan(k.absent)) config_set(*c, row, from_number(*c, k.form, k.absent));
    else if (required && first == keys.end()) return field_parse(f, k.key, row, c);    // reports the missing key
    return {};
}
// Parses the fields for which the family has keys. The sizes come first, because the defaults of
// all other fields are computed from them.
Status keys_parse(const JsonFields& f, Config* c) {
    for (bool sizes : {true, false}) {
        for (const ConfigKey& k : c->family->keys)
            if ((config_row(k.field).presence == ConfigRow::required) == sizes) TRY(key_parse(f, k, c));
        if (sizes) *c = c->family_defaults();
    }
    return {};
}

// ---- the whole ----------------------------------------------------------------------------------

// Names of a classifier's classes: id2label, else num_labels of them, as transformers names them.
Status classes_parse(const JsonFields& f, Config* c) {
    constexpr int MOST = Config::MOST_CLASSES;
    if (c->head != HeadKind::texts && c->head != HeadKind::positions) return {};
    if (f.has("problem_type") && f.object["problem_type"] == "multi_label_classification")
        return fail(Exit::input, "%s: problem_type: flatgpt has one class for each text or position, found several",
                    f.name.c_str());
    int count = 2;    // transformers' default
    if (f.has("num_labels")) TRY(f.get("num_labels", &count, 1, MOST));
    const bool named = f.has("id2label");
    if (named &&
        (!f.object["id2label"].is_object() || f.object["id2label"].empty() || f.object["id2label"].size() > MOST))
        return fail(Exit::input, "%s: id2label: expected an object of 1 to %d names", f.name.c_str(), MOST);
    if (named) count = int(f.object["id2label"].size());
    for (int i = 0; i < count; i++) {
        const std::string key = std::to_string(i);
        c->classes.push_back("LABEL_" + key);
        if (!named) continue;
        const json& labels = f.object["id2label"];
        if (!labels.contains(key) || !labels[key].is_string())
            return fail(Exit::input, "%s: id2label: expected the name of class %d", f.name.c_str(), i);
        c->classes.back() = labels[key].get<std::string>();
    }
    return {};
}
// Sets the fields of the head by the class that `architectures` names.
Status head_parse(const JsonFields& f, Config* c) {
    const std::vector<Family::Head>& rows = c->family->heads;
    if (rows.empty()) return {};
    const Family::Head* head = &rows[0];
    if (f.has("architectures")) {
        const json& names = f.object["architectures"];
        std::string known;
        auto is_named = [&](const Family::Head& row) { return names.is_array() && names[0] == row.architecture; };
        for (const Family::Head& row : rows) known += (known.empty() ? "" : ", ") + std::string(row.architecture);
        if (!names.empty()) head = nullptr;
        for (const Family::Head& row : rows)
            if (!names.empty() && is_named(row)) head = &row;
        if (!head)
            return fail(Exit::input, "%s: architectures: expected one of %s, found %s", f.name.c_str(), known.c_str(),
                        names.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 80).c_str());
    }
    c->head = head->kind;
    c->next_sentence = head->next_sentence;
    c->transform = head->transform;
    c->transform_act = head->act.value_or(c->activation);
    if (const ConfigRow& row = config_row(&Config::transform); c->head == HeadKind::none && f.has(row.key)) {
        TRY(field_parse(f, row.key, row, c));
        c->transform_act = c->activation;
    }
    return {};
}

// An encoder's mask token, which no class of transformers reads: its tokenizer has it.
constexpr const char* MASK_KEY = "mask_token_id";

// config.json with only the keys that the family's class in transformers reads.
ordered_json class_json(const Config& c) {
    const Family& family = *c.family;
    ordered_json j = {{"architectures", json::array()},
                      {"model_type", family.class_type ? family.class_type : family.type}};
    const Family::Head* head = family.head_of(c);
    if (head || family.architecture) j["architectures"].push_back(head ? head->architecture : family.architecture);
    for (size_t i = 0; i < c.classes.size(); i++) {
        j["id2label"][std::to_string(i)] = c.classes[i];
        j["label2id"][c.classes[i]] = i;
    }
    for (const ConfigKey& k : family.keys) j[k.key] = field_json(c, config_row(k.field), k.form, k.on);
    // A key of flatgpt's own says that a BertModel lacks its pooler, which transformers then adds.
    if (const ConfigRow& row = config_row(&Config::transform);
        head && c.head == HeadKind::none && c.transform != head->transform)
        j[row.key] = field_json(c, row);
    if (!family.heads.empty() && c.mask >= 0) j[MASK_KEY] = c.mask;
    layers_json(c, &j);
    rope_json(c, &j);
    for (const Family::Fixed& f : family.fixed)
        if (f.written) j[ordered_json::json_pointer("/" + std::string(f.key))] = ordered_json::parse(f.value);
    return j;
}

Status fixed_check(const JsonFields& f, const Family::Fixed& fixed) {
    const json::json_pointer pointer("/" + std::string(fixed.key));
    if (!fixed.checked || !f.object.contains(pointer)) return {};
    const json& found = f.object[pointer];
    if (found.is_null() || found == json::parse(fixed.value)) return {};
    return fail(Exit::input, "%s: %s: flatgpt runs only models where it is %s", f.name.c_str(), fixed.key, fixed.value);
}

Result<Config> class_parse(const JsonFields& f, const Family& family) {
    Config c;
    c.family = &family;
    auto says = [&](const Family::Fixed& own, const Family::Fixed& other) { return !strcmp(own.key, other.key); };
    for (const Family::Fixed& fixed : REFUSED)
        if (std::ranges::none_of(family.fixed, [&](auto& own) { return says(own, fixed); })) TRY(fixed_check(f, fixed));
    for (const Family::Fixed& fixed : family.fixed) TRY(fixed_check(f, fixed));
    TRY(keys_parse(f, &c));
    TRY(head_parse(f, &c));
    if (!family.heads.empty() && f.has(MASK_KEY)) TRY(field_parse(f, MASK_KEY, config_row(&Config::mask), &c));
    TRY(layers_parse(f, &c));
    TRY(rope_parse(f, &c));
    return c;
}

Result<const Family*> family_parse(const JsonFields& f) {
    std::string type, known;
    TRY(f.get("model_type", &type));
    if (type == OWN_TYPE) return &GPT2;
    std::string architecture;
    if (const json& names = f.has("architectures") ? f.object["architectures"] : json();
        names.is_array() && !names.empty() && names[0].is_string())
        architecture = names[0];
    if (const char* lacks = missing_for(architecture))
        return fail(Exit::input, "%s: architectures: %s: flatgpt lacks %s", f.name.c_str(), architecture.c_str(),
                    lacks);
    for (const Family* family : families())
        if (family->class_type && type == family->class_type && architecture == family->architecture) return family;
    for (const Family* family : families()) {
        if (type == family->type || type == own_type(*family)) return family;
        known += (known.empty() ? "" : ", ") + std::string(family->type);
    }
    if (const char* lacks = missing_for(type))
        return fail(Exit::input, "%s: model_type \"%s\": flatgpt lacks %s", f.name.c_str(), type.c_str(), lacks);
    return fail(Exit::input, "%s: model_type: expected %s, each also with \"%s-\" in front, found \"%s\"",
                f.name.c_str(), known.c_str(), OWN_TYPE, type.c_str());
}
}    // namespace

double json_shortest(float x) {
    char text[32];
    std::to_chars_result end = std::to_chars(text, text + sizeof text, x);
    double wide = 0;
    std::from_chars(text, end.ptr, wide);
    return wide;
}

// Lists the fields that the class cannot express: those whose values change if the class's keys are
// written and read again.
std::vector<const ConfigRow*> config_beyond_class(const Config& c) {
    const json j = json::parse(class_json(c).dump());
    const Result<Config> read = class_parse({j, "config.json"}, *c.family);
    const Config kept = read.ok() ? read.value : c.family_defaults();
    return config_listed(c, &kept);
}

std::string beyond_class_warning(const Config& c) {
    const std::vector<const ConfigRow*> beyond = config_beyond_class(c);
    if (!c.family->architecture)
        return std::string("warning: transformers has no class of type ") + c.family->type +
               "; it cannot load these checkpoints, flatgpt can";
    if (beyond.empty()) return "";
    return "warning: " + config_text(c, beyond) + ": " + c.family->architecture +
           " of transformers has no such field; "
           "it cannot load these checkpoints, flatgpt can";
}

nlohmann::json ids_json(const std::vector<int>& ids) {
    return ids.empty() ? json() : ids.size() == 1 ? json(ids[0]) : json(ids);
}

std::string config_json(const Config& c, const std::vector<int>& ends, int bos) {
    ordered_json j = class_json(c);
    const std::vector<const ConfigRow*> beyond = config_beyond_class(c);
    if (!beyond.empty()) j["architectures"] = json::array(), j["model_type"] = own_type(*c.family);
    for (const ConfigRow* row : beyond) j[row->key] = field_json(c, *row);
    for (const ConfigRow::Member& of_head :
         {ConfigRow::Member(&Config::head), ConfigRow::Member(&Config::transform),
          ConfigRow::Member(&Config::transform_act), ConfigRow::Member(&Config::next_sentence)})
        if (!beyond.empty() && !c.family->heads.empty())    // as no class is named
            j[config_row(of_head).key] = field_json(c, config_row(of_head));
    j["bos_token_id"] = bos >= 0 ? json(bos) : ends.empty() ? json() : json(ends[0]);
    j["eos_token_id"] = ids_json(ends);
    j["torch_dtype"] = "float32";
    return j.dump(2) + "\n";
}

Result<Config> config_parse(std::string_view text, const std::string& name) {
    json j = TRY(json_parse(text, name, 16));
    if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", name.c_str());
    // Gemma 3 (multimodal): only its text model is read, from text_config.
    if (j.contains("model_type") && j["model_type"] == "gemma3" && j.contains("text_config") &&
        j["text_config"].is_object()) {
        json text_config = j["text_config"];
        text_config["model_type"] = "gemma3_text";
        j = std::move(text_config);
    }
    const JsonFields f{j, name};
    const Family& family = *TRY(family_parse(f));
    Config c = TRY(class_parse(f, family));
    const std::string type = j["model_type"];
    for (const ConfigRow& row : config_rows()) {
        auto same = [&](const ConfigKey& k) { return std::string_view(k.key) == row.key; };
        if (!type.starts_with(OWN_TYPE) || std::any_of(family.keys.begin(), family.keys.end(), same)) continue;
        if (f.has(row.key)) TRY(field_parse(f, row.key, row, &c));
    }
    TRY(classes_parse(f, &c));
    if (Status s = config_check(c); !s.ok()) return fail(Exit::input, "%s: %s", name.c_str(), s.message.c_str());
    return c;
}
