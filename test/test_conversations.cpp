// test_conversations.cpp - lines of conversations and their errors; packing; what a sample has.
#include "train/conversations.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/philox.h"
#include "test.h"

namespace {
std::string error_of(const std::string& line) {
    const Result<Conversation> c = conversation_parse(line, "f.jsonl:7");
    if (c.ok()) return "";
    CHECK(c.status.code == Exit::input);
    CHECK_MESSAGE(c.status.message.starts_with("f.jsonl:7: "), c.status.message);
    return c.status.message.substr(strlen("f.jsonl:7: "));
}
Conversation parsed(const std::string& line) {
    const Result<Conversation> c = conversation_parse(line, "f:1");
    REQUIRE_MESSAGE(c.ok(), c.status.message);
    return c.value;
}
// A tokenizer of bytes with ChatML's tokens.
Tokenizer chatml_bytes() {
    return Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
}
ChatEncoder chatml(const Tokenizer& tokenizer) {
    const ChatFormat format = chat_format("", "chatml", tokenizer).take();
    return {tokenizer, ChatTemplate::parse(format.chat_template).take(), format, ChatEncoder::TRAINING_DATE};
}
std::shared_ptr<const Conversations> read(const std::string& text, ConversationOptions o, Status* error = nullptr) {
    const std::string dir = temporary_directory();
    write_file(dir + "/c.jsonl", text);
    const Tokenizer tokenizer = chatml_bytes();
    o.pattern = dir + "/c.jsonl";
    o.flag = "--chat";
    o.vocab = tokenizer.vocab_size();
    const Result<std::shared_ptr<Conversations>> all = Conversations::read(o, chatml(tokenizer));
    if (error) *error = all.status;
    else REQUIRE_MESSAGE(all.ok(), all.status.message);
    return all.value;
}
std::string line_of(const std::string& question, const std::string& answer) {
    return "{\"prompt\": \"" + question + "\", \"completion\": \"" + answer + "\"}\n";
}
std::string many(int n) {
    std::string text;
    for (int i = 0; i < n; i++)
        text += line_of(std::string(1 + philox(1, 0, uint64_t(i)).v[0] % 20, char('a' + i % 26)),
                        std::string(1 + philox(1, 1, uint64_t(i)).v[0] % 30, char('A' + i % 26)));
    return text;
}
}    // namespace

TEST_CASE("conversations: lines of three shapes") {
    const std::vector<ChatMessage> plain = {{"user", "q"}, {"assistant", "a"}};
    CHECK(parsed(R"({"id": 3, "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})")
              .messages == plain);
    const Conversation completion = parsed(R"({"prompt": "q", "completion": "a"})");
    CHECK(completion.messages == plain);
    CHECK(completion.first == 1);
    CHECK(parsed(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})").messages ==
          plain);
    const Conversation lists = parsed(R"({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content":
        "a"}, {"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]})");
    CHECK(lists.messages.size() == 4);
    CHECK(lists.first == 3);
    const Conversation call = parsed(R"({"tools": [{"z": 1, "a": 2}], "messages": [{"role": "user", "content": "q"},
        {"role": "assistant", "reasoning_content": "hm", "content": null, "tool_calls": [{"z": 1, "a": 2}]},
        {"role": "tool", "content": "4", "name": "add"}, {"role": "assistant", "content": "a"}]})");
    CHECK(call.tools == R"([{"z":1,"a":2}])");
    CHECK(call.messages[1].more == R"({"content":null,"reasoning_content":"hm","tool_calls":[{"z":1,"a":2}]})");
    CHECK(call.messages[2].more == R"({"name":"add"})");
    const Conversation older = parsed(R"({"functions": [{"name": "add"}], "messages": [{"role": "user", "content": "q",
        "function_call": null}, {"role": "assistant", "content": null, "function_call": {"name": "add",
        "arguments": "{}"}, "x": 1}, {"role": "function", "content": "4", "name": "add"},
        {"role": "assistant", "content": "a"}]})");
    CHECK(older.tools == R"([{"type":"function","function":{"name":"add"}}])");
    CHECK(older.messages[0].more == "");
    CHECK(older.messages[1].calls);
    CHECK(older.messages[1].more ==
          R"({"tool_calls":[{"type":"function","function":{"name":"add","arguments":"{}"}}],"x":1})");
    CHECK(older.messages[2] == ChatMessage{"tool", "4", R"({"name":"add"})"});
    // Exports write null for absent fields. So null, or an empty list of calls, counts as absent.
    const Conversation nulls =
        parsed(R"({"tools": [], "messages": [{"role": "user", "content": "q", "tool_calls": null},
        {"role": "assistant", "content": "a", "tool_calls": [], "reasoning_content": null}]})");
    CHECK(nulls.tools == "");
    CHECK(nulls.messages[0].more == "");
    CHECK(!nulls.messages[1].calls);
    const Conversation parts =
        parsed(R"({"prompt": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type":
        "text", "text": "b", "x": 1}]}],
        "completion": [{"role": "assistant", "content": [{"type": "text", "text": "c"}]}]})");
    CHECK(parts.messages[0].content == "ab");
    CHECK(parts.messages[0].parts == R"([{"type":"text","text":"a"},{"type":"text","text":"b","x":1}])");
    const std::vector<ChatMessage> again = messages_parse(messages_text(parts.messages), "again").take();
    CHECK(again == parts.messages);
    CHECK(again[0].parts == parts.messages[0].parts);
    const Conversation both = parsed(R"({"messages": [{"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [], "function_call": {"name": "f", "arguments": "{}"}}]})");
    CHECK(both.messages[1].more == R"({"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]})");
    const Conversation system = parsed(R"({"system": "s", "conversations": [{"from": "human", "value": "q"},
        {"from": "gpt", "value": "a"}]})");
    CHECK(system.messages == std::vector<ChatMessage>{{"system", "s"}, plain[0], plain[1]});
}

TEST_CASE("conversations: an error names the line and the field") {
    const std::string user = R"({"role": "user", "content": "q"})", answer = R"({"role": "assistant", "content": "a"})";
    auto messages = [](const std::string& list) { return "{\"messages\": [" + list + "]}"; };
    CHECK(error_of(messages(user + ", " + answer)) == "");
    CHECK(error_of(messages(user + R"(, {"role": "asistant", "content": "a"})")) ==
          "message 2: role: expected system, developer, user, assistant, tool, found \"asistant\"");
    CHECK(error_of(messages(user + R"(, {"content": "a"})")) == "message 2: role: expected a string, found nothing");
    CHECK(error_of(messages(R"({"role": "user"}, )" + answer)) ==
          "message 1: content: expected a string, found nothing");
    CHECK(error_of(messages(R"({"role": "user", "content": 3}, )" + answer)) ==
          "message 1: content: expected a string, found 3");
    auto parts = [&](const std::string& list) {
        return error_of(messages(R"({"role": "user", "content": )" + list + "}, " + answer));
    };
    CHECK(parts(R"([{"type": "text", "text": "a"}])") == "");
    CHECK(parts(R"([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}])") ==
          "message 1: content: part 2: type: expected \"text\", as models read nothing else, found \"image_url\"");
    CHECK(parts(R"(["a"])") == "message 1: content: part 1: expected an object");
    CHECK(parts(R"([{"text": "a"}])") == "message 1: content: part 1: type: expected a string, found nothing");
    CHECK(parts(R"([{"type": "text"}])") == "message 1: content: part 1: text: expected a string, found nothing");
    CHECK(parts(R"({"type": "text", "text": "a"})").starts_with("message 1: content: expected a string, found {"));
    CHECK(error_of(messages(user + R"(, {"role": "assistant", "content": [{"type": "text", "text": " "}]})")) ==
          "message 2: content: expected an answer, found none");
    CHECK(error_of(messages(user + R"(, {"role": "assistant", "content": " \n"})")) ==
          "message 2: content: expected an answer, found none");
    CHECK(error_of(messages(user + R"(, {"role": "assistant", "content": null})")) ==
          "message 2: content: expected a string, found null");
    for (const char* calls : {"null", "[]"})
        CHECK(error_of(messages(user + R"(, {"role": "assistant", "content": "", "tool_calls": )" + calls + "}")) ==
              "message 2: content: expected an answer, found none");
    std::string wide = R"({"messages": [])";
    for (int i = 0; i < 10001; i++) wide += ", \"" + std::to_string(i) + "\": 0";
    CHECK(contains(error_of(wide + "}"), "expected at most 10000 fields in an object"));
    CHECK(error_of(messages(user)) == "role: expected an assistant's message to learn, found none");
    CHECK(error_of(messages("")) == "messages: expected some, found none");
    CHECK(error_of(messages("3")) == "message 1: expected an object");
    CHECK(contains(error_of(R"({"messages": 3})"), "expected a list of messages"));
    CHECK(error_of(messages(R"({"role": "user", "content": "q", "tool_calls": []}, )" + answer)) ==
          "message 1: tool_calls: expected a list, in an assistant's message");
    for (const char* wrong : {R"("role": "user", "function_call": {})", R"("role": "assistant", "function_call": [])",
                              R"("role": "assistant", "function_call": {}, "tool_calls": [{}])"})
        CHECK(error_of(messages("{" + std::string(wrong) + R"(, "content": "q"}, )" + answer)) ==
              "message 1: function_call: expected an object, in an assistant's message without tool_calls");
    CHECK(error_of("{\"messages\": [], \"functions\": 3}") == "functions: expected a list");
    CHECK(error_of(messages(user + R"(, {"role": "assistant", "content": "a", "reasoning_content": 1})")) ==
          "message 2: reasoning_content: expected a string, found 1");
    CHECK(error_of(R"({"prompt": "q"})") == "completion: expected a string, found nothing");
    CHECK(error_of(R"({"completion": "q"})") == "prompt: expected a string, found nothing");
    CHECK(error_of(R"({"prompt": "q", "completion": ""})") == "message 2: content: expected an answer, found none");
    CHECK(error_of(R"({"prompt": [{"role": "robot"}], "completion": "a"})").starts_with("prompt: message 1: role: "));
    CHECK(error_of(R"({"conversations": [{"from": "robot", "value": "a"}]})") ==
          "message 1: from: expected human, gpt, system or tool, found \"robot\"");
    CHECK(error_of(R"({"conversations": [{"from": "gpt"}]})") == "message 1: value: expected a string, found nothing");
    CHECK(error_of(R"({"text": "a", "id": 1})") ==
          "expected the field messages, or prompt and completion, or conversations; its fields: \"text\", \"id\"");
    CHECK(error_of("[]") == "expected a JSON object");
    CHECK(contains(error_of(R"({"messages": [{"role": "user", "content": "q)"), "not JSON"));    // cut short
    CHECK(error_of("{\"messages\": [], \"tools\": 3}") == "tools: expected a list");
    CHECK(error_of("\xFF") != "");
}

TEST_CASE("conversations: of a file with errors the first one is told, with its line") {
    Status error;
    read(line_of("a", "b") + "\n" + line_of("c", "") + "{\"prompt\":", {.S = 64}, &error);
    CHECK(error.code == Exit::input);
    CHECK_MESSAGE(contains(error.message, "c.jsonl:3: message 2: content: "), error.message);
    read(line_of("a", "b") + "{\"prompt\": \"q\", \"compl", {.S = 64}, &error);
    CHECK(error.code == Exit::input);
    CHECK_MESSAGE(contains(error.message, "c.jsonl:2: "), error.message);
    read("", {.S = 64}, &error);
    CHECK_MESSAGE(contains(error.message, "expected conversations, found 0 lines"), error.message);
    const std::string call = R"({"role": "assistant", "content": "a", "tool_calls": [{}]})";
    read("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, " + call + "]}", {.S = 64}, &error);
    CHECK_MESSAGE(
        contains(error.message, "c.jsonl:1: message 2: tool_calls or function_call: the chat template writes none"),
        error.message);
    read(R"({"prompt": "q", "completion": "a", "tools": [{}]})", {.S = 64}, &error);
    CHECK_MESSAGE(contains(error.message, "c.jsonl:1: tools or functions: the chat template writes none"),
                  error.message);
}

TEST_CASE("conversations: best fit is what its rule says, and no item is lost") {
    for (int trial = 0; trial < 60; trial++) {
        const int size = 1 + int(philox(2, 0, uint64_t(trial)).v[0] % 40),
                  n = int(philox(2, 1, uint64_t(trial)).v[0] % 60);
        std::vector<int> sizes;
        for (int i = 0; i < n; i++)
            sizes.push_back(1 + int(philox(2, uint64_t(2 + trial), uint64_t(i)).v[0] % uint32_t(size)));
        const std::vector<std::vector<int64_t>> bins = best_fit(sizes, size);
        // The rule, written out.
        std::vector<int64_t> items(sizes.size());
        std::iota(items.begin(), items.end(), 0);
        std::stable_sort(items.begin(), items.end(),
                         [&](auto a, auto b) { return sizes[size_t(a)] > sizes[size_t(b)]; });
        std::vector<std::vector<int64_t>> expected;
        std::vector<int> left;
        for (int64_t item : items) {
            size_t best = left.size();
            for (size_t b = 0; b < left.size(); b++)
                if (left[b] >= sizes[size_t(item)] && (best == left.size() || left[b] < left[best])) best = b;
            if (best == left.size()) left.push_back(size), expected.emplace_back();
            left[best] -= sizes[size_t(item)];
            expected[best].push_back(item);
        }
        CHECK(bins == expected);
        for (int room : left) CHECK(room >= 0);
        // At most one bin is half empty: two would have been one.
        CHECK(std::count_if(left.begin(), left.end(), [&](int room) { return 2 * room >= size && size > 1; }) <= 1);
    }
    CHECK(best_fit({}, 4).empty());
}

TEST_CASE("conversations: each token once, behind its text's start, with the targets of answers") {
    for (const bool pack : {false, true}) {
        const auto all = read(many(60), {.pack = pack, .S = 100});
        CHECK(all->conversations() == 60);
        CHECK((all->samples() == 60) != pack);
        const int S = 100;
        std::multiset<std::vector<int>> found, expected;
        std::map<std::vector<int>, EncodedChat> chats;    // by their tokens but the last
        for (int64_t i = 0; i < 60; i++) {
            const EncodedChat e = all->conversation(i);
            const std::vector<int> inputs(e.ids.begin(), e.ids.end() - 1);
            expected.insert(inputs);
            chats[inputs] = e;
        }
        int64_t targets = 0, used = 0;
        for (int64_t i = 0; i < all->samples(); i++) {
            std::vector<int> in(size_t(S), -7), out(size_t(S), -7);
            std::vector<Text> texts;
            REQUIRE(all->read(i, in.data(), out.data(), &texts).ok());
            CHECK(texts[0].from == 0);
            const int64_t here = std::count_if(out.begin(), out.end(), [](int t) { return t >= 0; });
            CHECK(here == all->targets(i));
            CHECK(here > 0);
            targets += here;
            texts.push_back({S});
            for (size_t t = 0; t + 1 < texts.size(); t++) {
                const auto from = in.begin() + texts[t].from, end = in.begin() + texts[t + 1].from;
                if (*from != 257) {    // padding, as <|im_start|> begins a conversation
                    CHECK(std::all_of(out.begin() + texts[t].from, out.end(), [](int x) { return x == -1; }));
                    CHECK(t + 2 == texts.size());
                    continue;
                }
                found.insert(std::vector<int>(from, end));
                used += end - from;
                const EncodedChat& whole = chats.at(std::vector<int>(from, end));
                for (size_t k = 0; k + 1 < whole.ids.size(); k++)
                    CHECK(out[size_t(texts[t].from) + k] == (whole.trained[k + 1] ? whole.ids[k + 1] : -1));
            }
        }
        CHECK(found == expected);
        CHECK(targets == all->counts.trained);
        CHECK(all->filled() == doctest::Approx(double(used) / double(S * all->samples())));
    }
    CHECK(read(many(60), {.pack = true, .S = 100})->filled() > 0.9);
}

TEST_CASE("conversations: what is too long is cut or left out, and counted") {
    const std::string text = line_of("q", "short") + line_of("q", std::string(100, 'x')) +
                             line_of(std::string(90, 'y'), "a");
    const auto cut = read(text, {.S = 50});    // the third loses its answer
    CHECK(cut->conversations() == 2);
    CHECK(cut->counts.cut == 2);
    CHECK(cut->counts.untrained == 1);
    CHECK(cut->conversation(1).ids.size() == 51);
    CHECK(contains(cut->note(), "; 2 conversations cut to 51 tokens ("));
    CHECK(contains(cut->note(), "; 1 conversation left out, as no token is learnt"));
    const auto drop = read(text, {.drop = true, .S = 50});
    CHECK(drop->conversations() == 1);
    CHECK(drop->counts.dropped == 2);
    CHECK(contains(drop->note(), "; 2 conversations longer than 51 tokens left out ("));
    CHECK(read(text, {.S = 1000})->note() == "");
    Status error;
    read(text, {.drop = true, .S = 10}, &error);
    CHECK(error.code == Exit::input);
    CHECK_MESSAGE(contains(error.message, "found 3 lines; 3 conversations longer"), error.message);
}

TEST_CASE("conversations: samples may be as short as the longest conversation") {
    const std::string text = many(20);
    const auto whole = read(text, {.S = 300}), cut = read(text, {.S = 40});
    CHECK(whole->longest() > 40);
    CHECK(cut->longest() == 40);
    Conversations shorter = *whole;
    shorter.shorten(whole->longest());
    CHECK(shorter.fingerprint() == read(text, {.S = whole->longest()})->fingerprint());
    CHECK(shorter.samples() == 20);
    std::vector<int> tokens(size_t(whole->longest())), targets(tokens);
    std::vector<Text> texts;
    for (int i = 0; i < 20; i++) REQUIRE(shorter.read(i, tokens.data(), targets.data(), &texts).ok());
}

TEST_CASE("conversations: the fingerprint depends on tokens, masks and packing") {
    const std::string text = many(20);
    std::set<uint64_t> all;
    for (const bool pack : {false, true})
        for (const TrainOn on : {TrainOn::assistant, TrainOn::all})
            for (const int S : {90, 91}) all.insert(read(text, {.train_on = on, .pack = pack, .S = S})->fingerprint());
    all.insert(read(many(21), {.S = 90})->fingerprint());
    CHECK(all.size() == 9);
    CHECK(read(text, {.S = 90})->fingerprint() == read(text, {.S = 90})->fingerprint());
}

TEST_CASE("conversations: ranks share a step's samples, and each can count all of its targets") {
    const auto source = read(many(23), {.pack = false, .S = 90});
    auto config = [](int ranks, int rank) {
        LoaderConfig c;
        c.B = 8 / ranks, c.S = 90, c.vocab = 259, c.ranks = ranks, c.rank = rank, c.seed = 3;
        return c;
    };
    Loader alone = Loader::open(source, config(1, 0)).take();
    std::vector<Loader> two = {Loader::open(source, config(2, 0)).take(), Loader::open(source, config(2, 1)).take()};
    for (int step = 0; step < 7; step++) {    // across epochs
        const int64_t expected = alone.targets(8);
        std::vector<int> in(8 * 90), out(8 * 90), part(4 * 90), goal(4 * 90);
        REQUIRE(alone.next(in.data(), out.data()).ok());
        CHECK(std::count_if(out.begin(), out.end(), [](int t) { return t >= 0; }) == expected);
        for (int rank = 0; rank < 2; rank++) {
            CHECK(two[size_t(rank)].targets(8) == expected);
            REQUIRE(two[size_t(rank)].next(part.data(), goal.data()).ok());
            CHECK(std::equal(part.begin(), part.end(), in.begin() + rank * 4 * 90));
            CHECK(std::equal(goal.begin(), goal.end(), out.begin() + rank * 4 * 90));
        }
    }
}

TEST_CASE("conversations: a batch is cut behind the last target of all its sequences") {
    const int B = 3, S = 100;
    for (int last : {0, 1, 15, 16, 40, 63, 64, 98, 99}) {
        CAPTURE(last);
        std::vector<int> tokens(B * S), targets(B * S, -1);
        for (int i = 0; i < B * S; i++) tokens[size_t(i)] = i;
        targets[S + size_t(last)] = 7;    // second sequence
        targets[2 * S] = 8;
        const int length = cut_behind_targets(tokens.data(), targets.data(), B, S);
        CHECK(length == std::min(S, last / 16 * 16 + 16));
        for (int b = 0; b < B; b++)
            for (int s = 0; s < length; s++) {
                const size_t at = size_t(b * length + s);
                CHECK(tokens[at] == b * S + s);
                CHECK(targets[at] == (b == 1 && s == last ? 7 : b == 2 && s == 0 ? 8 : -1));
            }
    }
    std::vector<int> tokens(6), none(6, -1);    // no target at all: nothing is learnt, but something is computed
    CHECK(cut_behind_targets(tokens.data(), none.data(), 2, 3) == 3);
}
