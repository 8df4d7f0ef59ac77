// prompts.cpp - see prompts.h.
#include "train/reward/prompts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/command.h"
#include "base/console.h"
#include "files/json.h"
#include "train/conversations.h"

using nlohmann::ordered_json;

// ---- a line -------------------------------------------------------------------------------------

namespace {
constexpr int JSON_DEPTH = 64;

std::string found(const ordered_json& j, const char* name) {
    if (j.contains(name)) return j[name].dump(-1, ' ', false, ordered_json::error_handler_t::replace).substr(0, 60);
    std::vector<std::string> fields;
    for (auto& [key, value] : j.items())
        if (fields.size() < 8) fields.push_back("\"" + key.substr(0, 40) + "\"");
    return "nothing; the line's fields: " + (fields.empty() ? "none" : join(fields, ", "));
}

Status read_prompt(const ordered_json& j, const std::string& where, PromptLine* line) {
    const auto prompt = j.find("prompt");
    const bool is_text = prompt != j.end() && prompt->is_string();
    if (!is_text && (prompt == j.end() || !prompt->is_array()))
        return fail(Exit::input, "%s: prompt: expected a text or a list of messages, found %s", where.c_str(),
                    found(j, "prompt").c_str());
    line->prompt = prompt->dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    if (is_text) TRY((OrderedFields{j, where}).get("prompt", &line->text));
    else line->messages = TRY(messages_of(*prompt, where + ": prompt"));
    if (is_text ? line->text.empty() : line->messages.empty())
        return fail(Exit::input, "%s: prompt: expected a prompt, found an empty one", where.c_str());
    if (!is_text && line->messages.back().role == "assistant")
        return fail(Exit::input,
                    "%s: prompt: expected messages that a model has to answer, found an assistant's as the last one",
                    where.c_str());
    return {};
}
}    // namespace

Result<PromptLine> prompt_parse(std::string_view text, const std::string& where, bool needs_answer) {
    const ordered_json j = TRY(json_parse_ordered(text, where, JSON_DEPTH));
    if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", where.c_str());
    PromptLine line;
    TRY(read_prompt(j, where, &line));
    const auto answer = j.find("answer");
    const bool is_text = answer != j.end() && answer->is_string();
    if (needs_answer && !is_text && (answer == j.end() || !answer->is_number()))
        return fail(Exit::input, "%s: answer: expected a text or a number, with which answers are compared, found %s",
                    where.c_str(), found(j, "answer").c_str());
    if (is_text) TRY((OrderedFields{j, where}).get("answer", &line.expected));
    else if (answer != j.end()) line.expected = answer->dump();
    if (needs_answer && line.expected.find_first_not_of(" \t\r\n") == std::string::npos)
        return fail(Exit::input, "%s: answer: expected an answer, found an empty one", where.c_str());
    if (answer != j.end() && j.contains("expected"))
        return fail(Exit::input, "%s: expected: commands get the field \"answer\" by this name; rename one of them",
                    where.c_str());
    ordered_json rest = ordered_json::object();
    for (auto& [key, value] : j.items())
        if (key != "prompt") rest[key == "answer" ? "expected" : key] = value;
    line.fields = rest.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    line.fields = line.fields.substr(1, line.fields.size() - 2);
    return line;
}

// ---- all lines ----------------------------------------------------------------------------------

Result<std::shared_ptr<Prompts>> Prompts::read(const PromptOptions& options, const Tokenizer& tokenizer,
                                               const ChatEncoder* encoder) {
    auto all = std::make_shared<Prompts>();
    all->o = options;
    const size_t most = size_t(std::max(0, options.S + 1 - options.answer_tokens));
    auto encode = [&](const Segment& segment) -> Result<PromptLine> {
        PromptLine line = TRY(prompt_parse(segment.text, segment.where, options.needs_answer));
        if (!line.messages.empty() && !encoder)
            return fail(Exit::input,
                        "%s: prompt: messages need a chat template, and the model has none: give --chat-template a "
                        "file, or --chat-template chatml; or give texts",
                        segment.where.c_str());
        line.ids = line.messages.empty() ? tokenizer.encode_prompt(line.text) : TRY(encoder->prompt(line.messages));
        if (line.ids.empty()) return fail(Exit::input, "%s: prompt: it has no tokens", segment.where.c_str());
        return line;
    };
    TRY(each_json_line(options.pattern, encode, [&](const Segment&, PromptLine line) {
        for (int id : line.ids) CHECK(id >= 0 && id < options.vocab, "token %d of %d", id, options.vocab);
        if (line.ids.size() > most) all->dropped++;
        else all->lines.push_back(std::move(line));
    }));
    if (all->lines.empty())
        return fail(Exit::input, "%s %s: expected prompts, found none%s", options.flag.c_str(), options.pattern.c_str(),
                    all->note().c_str());
    return all;
}

int Prompts::longest() const {
    size_t most = 0;
    for (const PromptLine& line : lines) most = std::max(most, line.ids.size());
    return int(most) + o.answer_tokens - 1;
}
void Prompts::shorten(int length) {
    CHECK(longest() <= length, "%d tokens of %d", longest(), length);
    o.S = length;
}
int64_t Prompts::tokens() const {
    int64_t n = 0;
    for (const PromptLine& line : lines) n += int64_t(line.ids.size());
    return n;
}

Status Prompts::read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const {
    *texts = {Text{}};
    std::fill_n(tokens, o.S, o.pad);
    std::fill_n(targets, o.S, -1);
    const std::vector<int>& ids = line(sample).ids;
    std::copy(ids.begin(), ids.end(), tokens);
    return {};
}

uint64_t Prompts::fingerprint() const {
    uint64_t h = FNV_OFFSET_BASIS;
    for (const PromptLine& line : lines) {
        h = fnv1a_words(h, line.ids.data(), int64_t(line.ids.size() * sizeof line.ids[0]));
        for (const std::string* text : {&line.prompt, &line.fields})
            h = fnv1a_words(h, text->data(), int64_t(text->size()));
    }
    const int64_t shape[] = {o.S, o.answer_tokens, samples()};
    return fnv1a_words(h, shape, sizeof shape);
}

std::string Prompts::text() const {
    return formatted("%s tokens in %s; answers of at most %s", human_count(double(tokens())).c_str(), items().c_str(),
                     counted(o.answer_tokens, "token").c_str());
}
std::string Prompts::items() const { return counted(samples(), "prompt"); }
std::string Prompts::note() const {
    if (!dropped) return "";
    return formatted("; %s left out, as no answer of %d tokens fits behind in a sequence of %d",
                     counted(dropped, "prompt").c_str(), o.answer_tokens, o.S);
}
