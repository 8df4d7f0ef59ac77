// conversations.cpp - see conversations.h.
#include "conversations.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/command.h"
#include "base/console.h"
#include "files/json.h"

using nlohmann::ordered_json;

const TrainOnRow& train_on_named(const std::string& name) {
    for (const TrainOnRow& row : TRAIN_ON)
        if (row.name == name) return row;
    CHECK(false, "--train-on %s", name.c_str());
}

// ---- a line -------------------------------------------------------------------------------------

namespace {
constexpr int JSON_DEPTH = 64;

// ShareGPT's {"from": "human", "value": "..."} as OpenAI's messages.
Result<ordered_json> from_sharegpt(const ordered_json& list, const std::string& where) {
    static const std::map<std::string, std::string> ROLES = {
        {"human", "user"},    {"user", "user"}, {"gpt", "assistant"},   {"assistant", "assistant"},
        {"system", "system"}, {"tool", "tool"}, {"observation", "tool"}};
    if (!list.is_array()) return fail(Exit::input, "%s: expected a list of messages", where.c_str());
    ordered_json messages = ordered_json::array();
    for (const ordered_json& m : list) {
        const std::string at = formatted("%s: message %zu", where.c_str(), messages.size() + 1);
        if (!m.is_object()) return fail(Exit::input, "%s: expected an object", at.c_str());
        const OrderedFields f{m, at};
        std::string from, value;
        TRY(f.get("from", &from));
        TRY(f.get("value", &value));
        const auto role = ROLES.find(from);
        if (role == ROLES.end())
            return fail(Exit::input, "%s: from: expected human, gpt, system or tool, found \"%s\"", at.c_str(),
                        from.substr(0, 60).c_str());
        messages.push_back({{"role", role->second}, {"content", value}});
    }
    return messages;
}
// A prompt or a completion: messages, or the text of one message of this role.
Result<std::vector<ChatMessage>> part_of(const ordered_json& object, const char* key, const char* role,
                                         const std::string& where) {
    const auto part = object.find(key);
    if (part != object.end() && part->is_string()) return std::vector<ChatMessage>{{role, part->get<std::string>()}};
    if (part != object.end() && part->is_array()) return messages_of(*part, where + ": " + key);
    std::string text;
    return OrderedFields{object, where}.get(key, &text);    // fails: no text
}
}    // namespace

Status check_conversation(const Conversation& c) {
    if (c.messages.empty()) return fail(Exit::input, "%s: messages: expected some, found none", c.where.c_str());
    bool answered = false;
    for (size_t k = 0; k < c.messages.size(); k++) {
        const ChatMessage& m = c.messages[k];
        const bool empty = m.content.find_first_not_of(" \t\r\n") == std::string::npos;
        if (m.role != "assistant") continue;
        if (empty && !m.calls)
            return fail(Exit::input, "%s: message %zu: content: expected an answer, found none", c.where.c_str(),
                        k + 1);
        answered |= k >= c.first;
    }
    if (!answered)
        return fail(Exit::input, "%s: role: expected an assistant's message to learn, found none", c.where.c_str());
    return {};
}

Result<std::string> tools_of(const ordered_json& line, const std::string& where) {
    ordered_json all = ordered_json::array();
    for (const std::string name : {"tools", "functions"}) {
        const auto tools = line.find(name);
        if (tools == line.end() || tools->is_null()) continue;
        if (!tools->is_array()) return fail(Exit::input, "%s: %s: expected a list", where.c_str(), name.c_str());
        for (const ordered_json& tool : *tools)
            all.push_back(name == "tools" ? tool : ordered_json{{"type", "function"}, {"function", tool}});
    }
    return all.empty() ? std::string() : all.dump();
}

Result<Conversation> conversation_parse(std::string_view line, const std::string& where) {
    const ordered_json j = TRY(json_parse_ordered(line, where, JSON_DEPTH));
    if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", where.c_str());
    Conversation c;
    c.where = where;
    if (j.contains("messages")) {
        c.messages = TRY(messages_of(j["messages"], where));
    } else if (j.contains("conversations")) {
        c.messages = TRY(messages_of(TRY(from_sharegpt(j["conversations"], where)), where));
        if (j.contains("system") && !j["system"].is_null()) {
            std::string system;
            const OrderedFields fields{j, where};
            TRY(fields.get("system", &system));
            if (!system.empty()) c.messages.insert(c.messages.begin(), {"system", system});
        }
    } else if (j.contains("prompt") || j.contains("completion")) {
        c.messages = TRY(part_of(j, "prompt", "user", where));
        c.first = c.messages.size();
        for (ChatMessage& m : TRY(part_of(j, "completion", "assistant", where))) c.messages.push_back(std::move(m));
    } else {
        std::vector<std::string> fields;
        for (auto& [key, value] : j.items())
            if (fields.size() < 8) fields.push_back("\"" + key.substr(0, 40) + "\"");
        return fail(Exit::input,
                    "%s: expected the field messages, or prompt and completion, or conversations; its fields: %s",
                    where.c_str(), fields.empty() ? "none" : join(fields, ", ").c_str());
    }
    c.tools = TRY(tools_of(j, where));
    TRY(check_conversation(c));
    return c;
}

// ---- all lines ----------------------------------------------------------------------------------

Result<EncodedChat> conversation_encode(const ChatEncoder& encoder, const Conversation& c, TrainOn train_on) {
    if (!c.tools.empty() && !encoder.writes("tools"))
        return fail(Exit::input,
                    "%s: tools or functions: the chat template writes none; give --chat-template one that does, or "
                    "take the field out",
                    c.where.c_str());
    const bool calls = encoder.writes("tool_calls");
    for (size_t k = 0; k < c.messages.size() && !calls; k++)
        if (c.messages[k].calls)
            return fail(
                Exit::input,
                "%s: message %zu: tool_calls or function_call: the chat template writes none; give --chat-template one "
                "that does",
                c.where.c_str(), k + 1);
    return encoder.encode(c, train_on);
}

Result<std::shared_ptr<Conversations>> Conversations::read(const ConversationOptions& options,
                                                           const ChatEncoder& encoder) {
    auto all = std::make_shared<Conversations>();
    all->o = options;
    const bool reasons = encoder.writes("reasoning_content") || encoder.writes(".thinking") ||
                         encoder.writes("['thinking']");
    auto encode = [&](const Segment& line) -> Result<EncodedChat> {
        return conversation_encode(encoder, TRY(conversation_parse(line.text, line.where)), options.train_on);
    };
    TRY(each_json_line(options.pattern, encode, [&](const Segment& line, EncodedChat e) {
        all->counts.lines++;
        all->counts.unread += !reasons && line.text.find("\"reasoning_content\"") != std::string::npos;
        all->add(std::move(e));
    }));
    if (all->conversations() == 0)
        return fail(Exit::input, "%s %s: expected conversations, found %s%s", options.flag.c_str(),
                    options.pattern.c_str(), counted(all->counts.lines, "line").c_str(), all->note().c_str());
    all->arrange();
    return all;
}

int Conversations::longest() const {
    int64_t most = 0;
    for (size_t i = 0; i + 1 < begins.size(); i++) most = std::max(most, begins[i + 1] - begins[i] - 1);
    return int(most);
}
void Conversations::shorten(int length) {
    CHECK(longest() <= length, "%d tokens of %d", longest(), length);
    o.S = length;
    arrange();
}

void Conversations::add(EncodedChat e) {
    const size_t most = size_t(o.S) + 1;         // the last token is only a target
    if (!e.ids.empty()) e.trained[0] = false;    // the first token is never a target
    for (int id : e.ids) CHECK(id >= 0 && id < o.vocab, "token %d of %d", id, o.vocab);
    if (e.ids.size() > most && o.drop) {
        counts.dropped++;
        counts.dropped_tokens += int64_t(e.ids.size());
        return;
    }
    if (e.ids.size() > most) {
        counts.cut++;
        counts.cut_tokens += int64_t(e.ids.size() - most);
        e.ids.resize(most), e.trained.resize(most);
    }
    const int64_t learnt = std::count(e.trained.begin(), e.trained.end(), true);
    if (learnt == 0) {
        counts.untrained++;
        return;
    }
    counts.trained += learnt;
    ids.insert(ids.end(), e.ids.begin(), e.ids.end());
    trained.insert(trained.end(), e.trained.begin(), e.trained.end());
    begins.push_back(int64_t(ids.size()));
}

void Conversations::arrange() {
    order.resize(size_t(conversations()));
    if (!o.pack) {
        std::iota(order.begin(), order.end(), 0);
        first_of.resize(order.size() + 1);
        std::iota(first_of.begin(), first_of.end(), 0);
        return;
    }
    std::vector<int> sizes;
    for (size_t i = 0; i + 1 < begins.size(); i++) sizes.push_back(int(begins[i + 1] - begins[i] - 1));
    order.clear();
    first_of = {0};
    for (const std::vector<int64_t>& bin : best_fit(sizes, o.S)) {
        order.insert(order.end(), bin.begin(), bin.end());
        first_of.push_back(int64_t(order.size()));
    }
}

std::vector<std::vector<int64_t>> best_fit(const std::vector<int>& sizes, int size) {
    std::vector<int64_t> items(sizes.size());
    std::iota(items.begin(), items.end(), 0);
    std::stable_sort(items.begin(), items.end(),
                     [&](int64_t a, int64_t b) { return sizes[size_t(a)] > sizes[size_t(b)]; });
    std::vector<std::vector<int64_t>> bins;
    std::set<std::pair<int, size_t>> room;    // free tokens of a bin, its index
    for (int64_t item : items) {
        const int n = sizes[size_t(item)];
        CHECK(n > 0 && n <= size, "an item of %d in a bin of %d", n, size);
        auto fits = room.lower_bound({n, 0});
        if (fits == room.end()) {
            fits = room.emplace(size, bins.size()).first;
            bins.emplace_back();
        }
        const auto [left, bin] = *fits;
        room.erase(fits);
        bins[bin].push_back(item);
        if (left > n) room.emplace(left - n, bin);
    }
    return bins;
}

// ---- samples ------------------------------------------------------------------------------------

Status Conversations::read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const {
    texts->clear();
    int n = 0;
    for (int64_t i = first_of[size_t(sample)]; i < first_of[size_t(sample) + 1]; i++) {
        const size_t from = size_t(begins[size_t(order[size_t(i)])]),
                     end = size_t(begins[size_t(order[size_t(i)]) + 1]);
        texts->push_back({n});
        for (size_t k = from; k + 1 < end; k++, n++) {
            tokens[n] = ids[k];
            targets[n] = trained[k + 1] ? ids[k + 1] : -1;
        }
    }
    CHECK(n <= o.S, "%d tokens in a sample of %d", n, o.S);
    if (n < o.S) texts->push_back({n});
    std::fill(tokens + n, tokens + o.S, o.pad);
    std::fill(targets + n, targets + o.S, -1);
    return {};
}

int64_t Conversations::targets(int64_t sample) const {
    int64_t n = 0;
    for (int64_t i = first_of[size_t(sample)]; i < first_of[size_t(sample) + 1]; i++) {
        const int64_t from = begins[size_t(order[size_t(i)])], end = begins[size_t(order[size_t(i)]) + 1];
        n += std::count(trained.begin() + from + 1, trained.begin() + end, true);
    }
    return n;
}

uint64_t Conversations::fingerprint() const {
    uint64_t h = fnv1a_words(FNV_OFFSET_BASIS, ids.data(), int64_t(ids.size() * sizeof ids[0]));
    std::vector<char> learnt(trained.begin(), trained.end());
    h = fnv1a_words(h, learnt.data(), int64_t(learnt.size()));
    h = fnv1a_words(h, begins.data(), int64_t(begins.size() * sizeof begins[0]));
    const int64_t shape[] = {o.S, o.pack};
    return fnv1a_words(h, shape, sizeof shape);
}

EncodedChat Conversations::conversation(int64_t i) const {
    const int64_t from = begins[size_t(i)], end = begins[size_t(i) + 1];
    return {{ids.begin() + from, ids.begin() + end}, {trained.begin() + from, trained.begin() + end}};
}
double Conversations::filled() const { return double(tokens() - conversations()) / (double(samples()) * o.S); }
std::string Conversations::text() const {
    return formatted("%s tokens in %s, %s trained on; %s of %d, %.1f %% filled", human_count(double(tokens())).c_str(),
                     counted(conversations(), "conversation").c_str(), human_count(double(counts.trained)).c_str(),
                     counted(samples(), "sample").c_str(), o.S, 100 * filled());
}
std::string Conversations::items() const { return counted(conversations(), "conversation"); }
std::string Conversations::note() const {
    std::string all;
    if (counts.cut)
        all += formatted("; %s cut to %d tokens (%lld tokens; --seq-len keeps more, --too-long drop leaves them out)",
                         counted(counts.cut, "conversation").c_str(), o.S + 1, (long long)counts.cut_tokens);
    if (counts.dropped)
        all += formatted("; %s longer than %d tokens left out (%lld tokens)",
                         counted(counts.dropped, "conversation").c_str(), o.S + 1, (long long)counts.dropped_tokens);
    if (counts.untrained)
        all += formatted("; %s left out, as no token is learnt", counted(counts.untrained, "conversation").c_str());
    if (counts.unread)
        all += formatted("; the chat template does not write the reasoning_content of %s",
                         counted(counts.unread, "conversation").c_str());
    return all;
}
