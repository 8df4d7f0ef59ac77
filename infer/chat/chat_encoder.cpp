// chat_encoder.cpp - see chat_encoder.h.
#include "chat_encoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/console.h"
#include "infer/jinja/value.h"

using nlohmann::ordered_json;

namespace {
// Noncharacters of Unicode, which conversations may not have. MARK is put into special tokens'
// names in messages: where it stood, the tokenizer reads a name as text. BEGIN is put before an
// answer's content, to find the content in the rendered text.
const std::string MARK = "\uFDD0", BEGIN = "\uFDD1";
constexpr size_t MOST_NAMES = 10000;    // limit of special tokens' names in a conversation

size_t inside(const std::string& name) {    // bytes of its first character; 0: it has no other
    bool complete;
    const size_t n = utf8_character(name, complete);
    return n < name.size() ? n : 0;
}
size_t common_bytes(const std::string& a, const std::string& b) {
    return size_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}
// Applies f to each string of a value, and to each key but those of the outermost object.
template <class F> ordered_json each_string(const ordered_json& j, const F& f, bool outermost = false) {
    if (j.is_string()) return f(j.get<std::string>());
    if (!j.is_structured()) return j;
    ordered_json all = j.is_array() ? ordered_json::array() : ordered_json::object();
    if (j.is_array())
        for (auto& item : j) all.push_back(each_string(item, f));
    else
        for (auto& [key, value] : j.items()) all[outermost ? key : f(key)] = each_string(value, f);
    return all;
}
// Templates read an answer's reasoning under one of two names, so it is given under both, as
// transformers does.
void add_reasoning_names(ordered_json& message) {
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
        const auto found = message.find(name);
        if (found == message.end() || found->is_null()) continue;
        const ordered_json reasoning = *found;
        message["reasoning_content"] = reasoning;
        if (!message.contains("thinking")) message["thinking"] = reasoning;
        return;
    }
}
}    // namespace

ChatEncoder::ChatEncoder(const Tokenizer& t, const ChatTemplate& form, const ChatFormat& format, int64_t date)
    : tokenizer(t), chat_template(form), source(format.chat_template), bos(format.bos), eos(format.eos), now(date),
      ends(format.stop) {
    const Vocabulary& v = tokenizer.vocabulary();
    for (const AddedToken& a : v.added)
        if (a.special) special.push_back(v.name(a));
    for (int id : format.ends) ends.push_back(v.name(id));
}

// Inserts MARK into each special token's name in the text: after the name's first character, or
// before a name that has only one.
std::string ChatEncoder::marked(const std::string& text) const {
    std::vector<size_t> offsets;
    for (const std::string& name : special)
        for (size_t at = 0; !name.empty() && (at = text.find(name, at)) != text.npos; at++)
            offsets.push_back(at + inside(name));
    std::sort(offsets.begin(), offsets.end());
    offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
    std::string out;
    size_t from = 0;
    for (size_t at : offsets) {
        out.append(text, from, at - from).append(MARK);
        from = at;
    }
    return out.append(text, from);
}

struct ChatEncoder::Values {
    jinja::Items messages;
    jinja::Value tools = jinja::Value(jinja::Kind::none);
};
Result<ChatEncoder::Values> ChatEncoder::values(const std::vector<ChatMessage>& messages,
                                                const std::string& tools) const {
    auto ordinary = [&](const std::string& text) { return marked(text); };
    ordered_json list = messages_json(messages);
    for (ordered_json& message : list) {
        const std::string role = message["role"];
        message = each_string(message, ordinary, true);
        message["role"] = role;
        add_reasoning_names(message);
    }
    Values v;
    jinja::Value all;
    TRY(ChatTemplate::convert(list, &all));
    v.messages = all.items();
    if (!tools.empty()) TRY(ChatTemplate::convert(each_string(ordered_json::parse(tools), ordinary), &v.tools));
    return v;
}
Result<ChatEncoder::Rendered> ChatEncoder::render(const Values& v, size_t count, bool prompts) const {
    jinja::Items some(v.messages.begin(), v.messages.begin() + ptrdiff_t(count));
    jinja::Items context = {"messages",
                            jinja::Value(jinja::Kind::list, std::move(some)),
                            "add_generation_prompt",
                            prompts,
                            "tools",
                            v.tools,
                            "documents",
                            jinja::Value(jinja::Kind::none)};
    for (auto [name, text] : {std::pair{"bos_token", &bos}, {"eos_token", &eos}})
        if (!text->empty()) context.insert(context.end(), {name, *text});
    Rendered r;
    r.text = TRY(chat_template.render(jinja::Value(jinja::Kind::dict, std::move(context)), now,
                                      prompts ? nullptr : &r.generated));
    return r;
}
Result<ChatEncoder::Rendered> ChatEncoder::render(const std::vector<ChatMessage>& messages, const std::string& tools,
                                                  bool prompts) const {
    return render(TRY(values(messages, tools)), messages.size(), prompts);
}

namespace {
// A rendered text without its marks, and their offsets in it.
struct Unmarked {
    std::string text;
    std::vector<size_t> offsets;
    explicit Unmarked(const std::string& marked, const std::string& mark = MARK) {
        for (size_t from = 0;;) {
            const size_t at = marked.find(mark, from);
            text.append(marked, from, at - from);
            if (at == marked.npos) return;
            offsets.push_back(text.size());
            from = at + mark.size();
        }
    }
    // Returns the offset in `text` of an offset in the text with MARKs, which lies in no MARK.
    size_t offset_of(size_t marked) const {
        size_t before = 0, most = offsets.size();
        while (before < most) {
            const size_t i = (before + most) / 2;
            if (offsets[i] + i * MARK.size() < marked) before = i + 1;
            else most = i;
        }
        return marked - before * MARK.size();
    }
};
}    // namespace

// No name tells the templates that read lists, so the template is tried: each part gets a mark, and
// a field of its own. A template reads lists if it writes no fewer marks of lists than of joined
// texts, and not the field; others fail, leave parts out or print the list.
std::vector<ChatMessage> ChatEncoder::readable(const std::vector<ChatMessage>& messages, const std::string& tools,
                                               bool prompts) const {
    if (std::ranges::all_of(messages, [](const ChatMessage& m) { return m.parts.empty(); })) return messages;
    const std::string field = "not_in_templates";
    size_t longest = 0;
    for (const std::string& name : special) longest = std::max(longest, name.size());
    std::vector<ChatMessage> joined = messages, lists = messages, tried = messages, tried_joined = messages;
    for (size_t k = 0; k < messages.size(); k++) {
        if (messages[k].parts.empty()) continue;
        ordered_json parts = ordered_json::parse(messages[k].parts), tried_parts = parts;
        std::string before;
        tried_joined[k].content.clear();
        for (size_t i = 0; i < parts.size(); i++) {
            const std::string text = parts[i]["text"];
            // A special token's name may lie across parts, which the template joins.
            const std::string tail = before.substr(before.size() - std::min(before.size(), longest));
            if (marked(tail + text) != marked(tail) + marked(text)) parts[i]["text"] = MARK + text;
            tried_parts[i] = parts[i];
            tried_parts[i]["text"] = text + BEGIN;
            tried_parts[i][field] = true;
            tried_joined[k].content += text + BEGIN;
            before += text;
        }
        lists[k].parts = parts.dump();
        tried[k].parts = tried_parts.dump();
        joined[k].parts.clear();
        tried_joined[k].parts.clear();
    }
    const Result<Rendered> of_lists = render(tried, tools, prompts), of_texts = render(tried_joined, tools, prompts);
    const std::string &listed = of_lists.value.text, &whole = of_texts.value.text;
    auto marks = [](const std::string& text) { return Unmarked(text, BEGIN).offsets.size(); };
    const bool reads = of_lists.ok() && listed.find(field) == listed.npos && marks(listed) >= marks(whole);
    return reads ? lists : joined;
}

Result<std::vector<int>> ChatEncoder::prompt(const std::vector<ChatMessage>& messages) const {
    const Unmarked text(TRY(render(readable(messages, "", true), "", true)).text);
    return tokenizer.encode_cut(text.text, text.offsets);
}

static Status check_characters(const Conversation& c) {
    for (const std::string& mark : {MARK, BEGIN}) {
        for (size_t k = 0; k < c.messages.size(); k++)
            if ((c.messages[k].content + c.messages[k].parts + c.messages[k].more).find(mark) != mark.npos)
                return fail(Exit::input, "message %zu: U+FDD0 and U+FDD1 are no characters: expected none", k + 1);
        if (c.tools.find(mark) != mark.npos)
            return fail(Exit::input, "tools: U+FDD0 and U+FDD1 are no characters: expected none");
    }
    return {};
}

Result<EncodedChat> ChatEncoder::encode(const Conversation& given, TrainOn train_on) const {
    Conversation c = given;
    auto here = [&](Status s) {
        if (!s.ok()) s.message = c.where + ": " + s.message;
        return s;
    };
    TRY(here(check_characters(c)));
    c.messages = readable(c.messages, c.tools, false);
    const Result<Values> v = values(c.messages, c.tools);
    TRY(here(v.status));
    const Result<Rendered> whole = render(v.value, c.messages.size(), false);
    TRY(here(whole.status));
    const Result<std::vector<TextRange>> ranges = answers(c, v.value, whole.value, train_on);
    TRY(here(ranges.status));
    const Unmarked text(whole.value.text);
    std::vector<TextCut> cuts;
    for (const TextRange& r : ranges.value)
        for (size_t offset : {r.from, r.to}) cuts.push_back({.at = text.offset_of(offset)});
    if (text.offsets.size() > MOST_NAMES)
        return fail(Exit::input, "%s: expected at most %zu names of special tokens in the messages, found %zu",
                    c.where.c_str(), MOST_NAMES, text.offsets.size());
    EncodedChat e;
    e.ids = tokenizer.encode_cut(text.text, text.offsets, &cuts);
    e.trained.resize(e.ids.size());
    for (size_t i = 0; i < cuts.size(); i += 2)
        for (int k = cuts[i].ended; k < cuts[i + 1].begun; k++) e.trained[size_t(k)] = true;
    return e;
}

Result<std::vector<TextRange>> ChatEncoder::answers(const Conversation& c, const Values& v, const Rendered& whole,
                                                    TrainOn train_on) const {
    const std::vector<ChatMessage>& m = c.messages;
    if (train_on == TrainOn::all) return std::vector<TextRange>{{0, whole.text.size()}};
    size_t first = c.first;
    for (size_t k = 0; k < m.size() && train_on == TrainOn::last; k++)
        if (m[k].role == "assistant") first = std::max(first, k);
    std::vector<TextRange> ranges;
    if (chat_template.marks_generation()) {
        size_t earlier = 0;    // generation blocks of answers that are not learnt
        if (first > 0) earlier = TRY(render(v, first, false)).generated.size();
        for (size_t i = earlier; i < whole.generated.size(); i++)
            if (whole.generated[i].from < whole.generated[i].to) ranges.push_back(whole.generated[i]);
        return ranges;
    }
    size_t from = 0;
    for (size_t k = 0; k < m.size(); k++) {
        if (m[k].role != "assistant" || k < first) continue;
        ranges.push_back(TRY(answer(c, v, whole.text, k, from)));
        from = ranges.back().to;
    }
    return ranges;
}

// ---- a template without generation blocks -------------------------------------------------------

// Returns the bytes of answer k, which begins at `from` at the earliest.
Result<TextRange> ChatEncoder::answer(const Conversation& c, const Values& v, const std::string& whole, size_t k,
                                      size_t from) const {
    TextRange range = {TRY(answer_begin(c, v, whole, k, from)), whole.size()};
    if (k + 1 < c.messages.size()) {
        const std::string text = TRY(render(v, k + 1, false)).text;
        range.to = whole.starts_with(text) && text.size() > range.from ? text.size() : behind_end(whole, range.from);
        // An end token behind later messages ends the conversation, not this answer.
        const size_t last = range.to == whole.npos ? whole.npos : whole.find_last_not_of(" \n", range.to - 1);
        if (last == whole.npos || last < range.from ||
            text.find(whole.substr(range.from, last + 1 - range.from)) == text.npos)
            range.to = whole.npos;
    }
    if (range.to == whole.npos || range.to <= range.from)
        return fail(
            Exit::input,
            "message %zu: the chat template writes the conversation up to here otherwise than within the whole, "
            "so the answer's end cannot be found; give --chat-template a copy of it with {%% generation %%} and "
            "{%% endgeneration %%} around an answer",
            k + 1);
    return range;
}

// Returns the offset behind the first text that ends an answer, and the white space behind it;
// npos: there is none.
size_t ChatEncoder::behind_end(const std::string& text, size_t from) const {
    size_t end = text.npos, first = text.npos;
    for (const std::string& name : ends) {
        const size_t at = text.find(name, from);
        if (at < first || (at == first && at != text.npos && at + name.size() > end)) {
            first = at;
            end = at + name.size();
        }
    }
    while (end < text.size() && (text[end] == ' ' || text[end] == '\n')) end++;
    return end;
}

// Puts BEGIN before the first letter of a text. False: it has none.
static bool mark_begin(std::string* text) {
    const size_t letter = text->find_first_not_of(" \t\r\n");
    if (letter == text->npos) return false;
    text->insert(letter, BEGIN);
    return true;
}
static bool mark_begin(ChatMessage* m) {
    if (m->parts.empty()) return mark_begin(&m->content);
    ordered_json parts = ordered_json::parse(m->parts);
    bool done = false;
    for (ordered_json& part : parts) done = done || mark_begin(&part["text"].get_ref<std::string&>());
    m->parts = parts.dump();
    return done;
}

Result<size_t> ChatEncoder::answer_begin(const Conversation& c, const Values& v, const std::string& whole, size_t k,
                                         size_t from) const {
    // Some templates refuse an empty conversation, and others write a system prompt of their own
    // only if there is a message.
    const Result<Rendered> asks = render(v, k, true);
    if (k > 0) TRY(asks);
    const std::string& asked = asks.value.text;
    if (asks.ok() && whole.starts_with(asked) && asked.size() >= from) return asked.size();
    const Result<Rendered> pasts = render(v, k, false);
    if (k > 0) TRY(pasts);
    const std::string& past = pasts.value.text;
    // The generation prompt may contain text that a finished conversation lacks, such as <think>
    // (DeepSeek-R1). The answer then begins behind the last special token that both have.
    if (k > 0 && whole.starts_with(past) && past.size() >= from && asked.starts_with(past)) {
        const size_t common = common_bytes(asked, whole);
        size_t begin = past.size();
        for (const std::string& name : special)
            for (size_t at = past.size(); (at = whole.find(name, at)) < common; at += name.size())
                if (at + name.size() <= common) begin = std::max(begin, at + name.size());
        return begin;
    }
    // The messages before are written otherwise within the whole. A mark shows the answer's
    // content, and the generation prompt is the last one before it.
    ChatMessage marked = c.messages[k];
    if (mark_begin(&marked)) {
        Values with_mark = v;
        with_mark.messages[k] = TRY(values({marked}, "")).messages[0];
        const std::string text = TRY(render(with_mark, c.messages.size(), false)).text;
        const size_t at = text.find(BEGIN);
        const std::string prompt = asked.starts_with(past) ? asked.substr(past.size()) : "";
        if (at != text.npos && Unmarked(text, BEGIN).text == whole && at >= from) {
            const size_t begin = prompt.empty() || at < prompt.size() ? whole.npos
                                                                      : whole.rfind(prompt, at - prompt.size());
            return begin != whole.npos && begin >= from ? begin + prompt.size() : at;
        }
    }
    return fail(Exit::input,
                "message %zu: the chat template writes the messages before it otherwise than within the whole "
                "conversation, so the answer's beginning cannot be found; give --chat-template a copy of it with {%% "
                "generation %%} and {%% endgeneration %%} around an answer",
                k + 1);
}
