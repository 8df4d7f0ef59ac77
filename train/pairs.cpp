// pairs.cpp - see pairs.h.
#include "train/pairs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/command.h"
#include "base/console.h"
#include "files/json.h"

using nlohmann::ordered_json;

// ---- a line -------------------------------------------------------------------------------------

namespace {
constexpr int JSON_DEPTH = 64;
typedef std::vector<ChatMessage> Messages;

bool begins_with(const Messages& all, const Messages& prefix) {
    return all.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), all.begin());
}
bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

Result<PairLine> texts_of(const ordered_json& j, const std::string& where) {
    const OrderedFields fields{j, where};
    PairLine line;
    TRY(fields.get("prompt", &line.prompt));
    TRY(fields.get("chosen", &line.chosen));
    TRY(fields.get("rejected", &line.rejected));
    for (auto [name, answer] : {std::pair{"chosen", &line.chosen}, {"rejected", &line.rejected}})
        if (is_blank(*answer)) return fail(Exit::input, "%s: %s: expected an answer, found none", where.c_str(), name);
    return line;
}

// Number of messages of the prompt with which both lists begin. Of equal lists the last message is
// the answer.
size_t common_messages(const Messages& a, const Messages& b) {
    const size_t most = std::min(a.size(), b.size());
    size_t n = 0;
    while (n < most && a[n] == b[n]) n++;
    return a.size() == b.size() && n == most && n > 0 ? n - 1 : n;
}

Result<PairLine> chats_of(const ordered_json& j, const std::string& where) {
    Messages prompt, lists[2];
    const char* names[] = {"chosen", "rejected"};
    for (int i : {0, 1}) lists[i] = TRY(messages_of(j[names[i]], where + ": " + names[i]));
    const auto given = j.find("prompt");
    size_t first = common_messages(lists[0], lists[1]);
    if (given != j.end() && given->is_array()) {
        prompt = TRY(messages_of(*given, where + ": prompt"));
        first = prompt.size();
        // The answers may repeat the prompt. If not, they begin with an assistant's message.
        for (int i : {0, 1}) {
            if (!prompt.empty() && begins_with(lists[i], prompt)) continue;
            if (!lists[i].empty() && lists[i][0].role != "assistant")
                return fail(Exit::input,
                            "%s: %s: message 1: expected an assistant's message, or the prompt's messages first, found "
                            "role \"%s\"",
                            where.c_str(), names[i], lists[i][0].role.c_str());
            lists[i].insert(lists[i].begin(), prompt.begin(), prompt.end());
        }
    } else if (given != j.end() && given->is_string()) {
        if (first == 0 || lists[0][first - 1].content != given->get<std::string>())
            return fail(Exit::input,
                        "%s: prompt: expected the content of the last message that chosen and rejected both begin with",
                        where.c_str());
    } else if (given != j.end() && !given->is_null()) {
        return fail(Exit::input, "%s: prompt: expected a text or a list of messages", where.c_str());
    }
    PairLine line;
    const std::string tools = TRY(tools_of(j, where));
    for (int i : {0, 1}) {
        Conversation& c = i ? line.rejected_chat : line.chosen_chat;
        c = {std::move(lists[i]), tools, first, where + ": " + names[i]};
        TRY(check_conversation(c));
    }
    return line;
}
}    // namespace

Result<PairLine> pair_parse(std::string_view line, const std::string& where) {
    const ordered_json j = TRY(json_parse_ordered(line, where, JSON_DEPTH));
    if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", where.c_str());
    for (const char* name : {"chosen", "rejected"}) {
        const auto field = j.find(name);
        if (field != j.end() && (field->is_string() || field->is_array())) continue;
        std::vector<std::string> fields;
        for (auto& [key, value] : j.items())
            if (fields.size() < 8) fields.push_back("\"" + key.substr(0, 40) + "\"");
        return fail(Exit::input, "%s: %s: expected a text or a list of messages, found %s; the line's fields: %s",
                    where.c_str(), name, field == j.end() ? "nothing" : field->dump().substr(0, 60).c_str(),
                    fields.empty() ? "none" : join(fields, ", ").c_str());
    }
    if (j["chosen"].type() != j["rejected"].type())
        return fail(Exit::input, "%s: rejected: expected %s, as chosen is one", where.c_str(),
                    j["chosen"].is_string() ? "a text" : "a list of messages");
    return j["chosen"].is_string() ? texts_of(j, where) : chats_of(j, where);
}

// ---- all lines ----------------------------------------------------------------------------------

// Encodes a prompt and an answer in one, as their tokens may merge. The token that crosses the
// prompt's end belongs to the answer, as in TRL.
static EncodedChat encode_text(const Tokenizer& tokenizer, const std::string& prompt, const std::string& answer) {
    const Vocabulary& v = tokenizer.vocabulary();
    std::vector<TextCut> cuts = {{.at = prompt.size()}};
    EncodedChat e;
    e.ids = tokenizer.encode_cut(prompt + answer, {}, &cuts);
    e.trained.assign(e.ids.size(), false);
    std::fill(e.trained.begin() + cuts[0].ended, e.trained.end(), true);
    e.ids.insert(e.ids.begin(), v.before.begin(), v.before.end());
    e.trained.insert(e.trained.begin(), v.before.size(), false);
    const int end = v.eos >= 0 ? v.eos : tokenizer.end_of_text();
    if (end >= 0 && (e.ids.empty() || e.ids.back() != end)) e.ids.push_back(end), e.trained.push_back(true);
    return e;
}

Result<Pairs::Encoded> Pairs::encode(const Tokenizer& tokenizer, const ChatEncoder* encoder, std::string_view text,
                                     const std::string& where) {
    const PairLine line = TRY(pair_parse(text, where));
    if (line.chosen_chat.messages.empty())
        return Encoded{
            {encode_text(tokenizer, line.prompt, line.chosen), encode_text(tokenizer, line.prompt, line.rejected)}};
    if (!encoder)
        return fail(Exit::input,
                    "%s: chosen: messages need a chat template, and the model has none: give --chat-template a file, "
                    "or --chat-template chatml; or give texts",
                    where.c_str());
    return Encoded{{TRY(conversation_encode(*encoder, line.chosen_chat, TrainOn::assistant)),
                    TRY(conversation_encode(*encoder, line.rejected_chat, TrainOn::assistant))}};
}

Result<std::shared_ptr<Pairs>> Pairs::read(const PairOptions& options, const Tokenizer& tokenizer,
                                           const ChatEncoder* encoder) {
    auto all = std::make_shared<Pairs>();
    all->o = options;
    TRY(each_json_line(
        options.pattern, [&](const Segment& line) { return encode(tokenizer, encoder, line.text, line.where); },
        [&](const Segment&, Encoded e) { all->add(std::move(e)); }));
    if (all->samples() == 0)
        return fail(Exit::input, "%s %s: expected pairs of answers, found %s%s", options.flag.c_str(),
                    options.pattern.c_str(), counted(all->counts.lines, "line").c_str(), all->note().c_str());
    return all;
}

void Pairs::add(Encoded e) {
    const size_t most = size_t(o.S) + 1;    // the last token is only a target
    counts.lines++;
    if (o.drop && std::max(e.answers[0].ids.size(), e.answers[1].ids.size()) > most) {
        counts.dropped++;
        counts.dropped_tokens += int64_t(e.answers[0].ids.size() + e.answers[1].ids.size());
        return;
    }
    int64_t learnt[2];
    for (int i : {0, 1}) {
        EncodedChat& a = e.answers[i];
        if (!a.ids.empty()) a.trained[0] = false;    // the first token is never a target
        for (int id : a.ids) CHECK(id >= 0 && id < o.vocab, "token %d of %d", id, o.vocab);
        if (a.ids.size() > most) {
            counts.cut++;
            counts.cut_tokens += int64_t(a.ids.size() - most);
            a.ids.resize(most), a.trained.resize(most);
        }
        learnt[i] = std::count(a.trained.begin(), a.trained.end(), true);
    }
    const bool untrained = learnt[0] == 0 || learnt[1] == 0, equal = e.answers[0].ids == e.answers[1].ids;
    counts.untrained += untrained;
    counts.equal += equal && !untrained;
    if (untrained || equal) return;
    counts.trained += learnt[0] + learnt[1];
    for (const EncodedChat& a : e.answers) {
        begins.push_back(int64_t(ids.size()));
        ids.insert(ids.end(), a.ids.begin(), a.ids.end());
        trained.insert(trained.end(), a.trained.begin(), a.trained.end());
    }
}

EncodedChat Pairs::sequence(int64_t i) const {
    const int64_t from = begins[size_t(i)], end = size_t(i) + 1 < begins.size() ? begins[size_t(i) + 1] : tokens();
    return {{ids.begin() + from, ids.begin() + end}, {trained.begin() + from, trained.begin() + end}};
}

int Pairs::longest() const {
    size_t most = 0;
    for (int64_t i = 0; i < 2 * samples(); i++) most = std::max(most, sequence(i).ids.size() - 1);
    return int(most);
}
void Pairs::shorten(int length) {
    CHECK(longest() <= length, "%d tokens of %d", longest(), length);
    o.S = length;
}

// ---- samples ------------------------------------------------------------------------------------

Status Pairs::read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const {
    *texts = {Text{}};
    std::fill_n(tokens, 2 * o.S, o.pad);
    std::fill_n(targets, 2 * o.S, -1);
    for (int i : {0, 1}) {
        const EncodedChat a = sequence(2 * sample + i);
        CHECK(int(a.ids.size()) <= o.S + 1, "%zu tokens in a sequence of %d", a.ids.size(), o.S);
        for (size_t k = 0; k + 1 < a.ids.size(); k++) {
            tokens[size_t(i * o.S) + k] = a.ids[k];
            if (a.trained[k + 1]) targets[size_t(i * o.S) + k] = a.ids[k + 1];
        }
    }
    return {};
}

int64_t Pairs::targets(int64_t sample) const {
    int64_t n = 0;
    for (int i : {0, 1}) {
        const EncodedChat a = sequence(2 * sample + i);
        n += std::count(a.trained.begin(), a.trained.end(), true);
    }
    return n;
}

uint64_t Pairs::fingerprint() const {
    uint64_t h = fnv1a_words(FNV_OFFSET_BASIS, ids.data(), int64_t(ids.size() * sizeof ids[0]));
    std::vector<char> learnt(trained.begin(), trained.end());
    h = fnv1a_words(h, learnt.data(), int64_t(learnt.size()));
    h = fnv1a_words(h, begins.data(), int64_t(begins.size() * sizeof begins[0]));
    const int64_t shape[] = {o.S, 2};
    return fnv1a_words(h, shape, sizeof shape);
}

std::string Pairs::text() const {
    return formatted("%s tokens in %s, %s of answers; two sequences of %d each", human_count(double(tokens())).c_str(),
                     counted(samples(), "pair").c_str(), human_count(double(counts.trained)).c_str(), o.S);
}
std::string Pairs::items() const { return counted(samples(), "pair"); }
std::string Pairs::note() const {
    std::string all;
    if (counts.cut)
        all += formatted("; %s cut to %d tokens (%lld tokens; --seq-len keeps more, --too-long drop leaves them out)",
                         counted(counts.cut, "sequence").c_str(), o.S + 1, (long long)counts.cut_tokens);
    if (counts.dropped)
        all += formatted("; %s longer than %d tokens left out (%lld tokens)", counted(counts.dropped, "pair").c_str(),
                         o.S + 1, (long long)counts.dropped_tokens);
    if (counts.untrained)
        all += formatted("; %s left out, as nothing is left of an answer", counted(counts.untrained, "pair").c_str());
    if (counts.equal)
        all += formatted("; %s left out, as both answers are the same", counted(counts.equal, "pair").c_str());
    return all;
}
