// test_chat.cpp - conversations with models of known answers: turns, the KV cache, commands.
#include "infer/chat/chat.h"

#include <algorithm>

#include "heard.h"
#include "infer/chat/interactive.h"

TEST_CASE("chat: messages of several lines") {
    auto messages = [](const std::vector<std::string>& lines) {
        MessageReader reader;
        std::string all;
        for (auto& line : lines)
            if (auto message = reader.push(line)) all += "[" + *message + "]";
        if (auto rest = reader.finish()) all += "(" + *rest + ")";
        return all;
    };
    CHECK(messages({"one", "", "two"}) == "[one][][two]");
    CHECK(messages({"a\\", "b \\", "c", "d"}) == "[a\nb \nc][d]");
    CHECK(messages({"\"\"\"a", "b\\", "", "c\"\"\"", "d"}) == "[a\nb\\\n\nc][d]");
    CHECK(messages({"\"\"\"", "a", "\"\"\"", "\"\"\"b\"\"\""}) == "[\na\n][b]");
    CHECK(messages({"a \"\"\"", "b\"\"\""}) == "[a \"\"\"][b\"\"\"]");
    CHECK(messages({"\"\"\"a", "b"}) == "(a\nb)");
    CHECK(messages({"a\\"}) == "(a)");
}

TEST_CASE("chat: messages as JSON, both ways, and files that are none") {
    const std::vector<ChatMessage> all = {{"system", "s"}, {"user", "a \"b\"\n\u00e9"}, {"assistant", ""}};
    CHECK(messages_parse(messages_text(all), "f").value == all);
    CHECK(messages_parse("{\"messages\":" + messages_text(all) + "}", "f").value == all);
    CHECK(messages_parse("[]", "f").ok());
    for (auto& [text, part] : std::vector<std::pair<const char*, const char*>>{
             {"", "f"},
             {"{}", "list of messages"},
             {"3", "list of messages"},
             {"[3]", "message 1: expected an object"},
             {"[{\"role\":\"user\"}]", "content"},
             {"[{\"role\":\"user\",\"content\":[]}]", "content"},
             {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"robot\",\"content\":\"a\"}]", "message 2: role"},
             {"[[[[", "f"}}) {
        const auto r = messages_parse(text, "f");
        CHECK(r.status.code == Exit::input);
        CHECK_MESSAGE(contains(r.status.message, part), r.status.message);
    }
}

TEST_CASE("chat: each turn is what a new conversation with the same past gives, and only new tokens are computed") {
    Talker talker(512);
    ChatOptions o = Heard::plain();
    o.tokens = 24;
    for (double temperature : {0.0, 1.0}) {
        o.sampling.temperature = temperature;
        o.sampling.top_k = 5;    // answers in ASCII
        o.system = "be kind";
        Heard heard(talker.g, o);
        const std::string file = temporary_directory() + "/past.json";
        std::string past = turn("system", o.system);
        for (const char* user : {"hello", "what?", "a longer question, which is fed in several pieces", "ok"}) {
            heard.ask("/save " + file);
            const int64_t before = heard.chat.computed;
            const int cached_positions = heard.chat.cached_positions();
            const std::string answer = heard.ask(user);
            CHECK(answer.size() == 24);
            past += turn("user", user);
            const int prompt = int(heard.tokenizer.encode(past + ASKS, true).size());
            CHECK(heard.chat.computed - before == prompt - cached_positions + 23);    // the last token is never fed
            CHECK(heard.chat.cached_positions() == prompt + 23);
            past += turn("assistant", answer);

            o.seed = heard.chat.answers;
            Heard fresh(talker.g, o);
            fresh.ask("/load " + file);
            CHECK(fresh.ask(user) == answer);
            CHECK(fresh.chat.computed == prompt + 23);
        }
        CHECK(heard.chat.history().size() == 8);
        const std::string again = heard.ask("/reset");
        CHECK(heard.chat.history().empty());
        Heard first(talker.g, o);    // a new chat to compare with
        first.chat.options.seed = heard.chat.options.seed = 9, first.chat.answers = heard.chat.answers;
        CHECK(heard.ask("hello") == first.ask("hello"));
        o.seed = 1;
    }
}

TEST_CASE("chat: an old turn that changes is computed again") {
    Talker talker(512);
    ChatOptions o = Heard::plain();
    o.tokens = 10, o.system = "one";
    Heard heard(talker.g, o);
    heard.ask("hello");
    heard.ask("/system two");
    const std::string answer = heard.ask("again");
    const auto past = heard.chat.history();
    const std::string file = temporary_directory() + "/past.json";
    o.system = "two";
    write_file(file, messages_text({{"system", "two"}, past[0], past[1]}));
    Heard fresh(talker.g, o);
    fresh.ask("/load " + file);
    CHECK(fresh.ask("again") == answer);
    heard.ask("/system");
    CHECK(heard.noted("no system prompt"));
    CHECK(heard.ask("x") != "");
    CHECK(heard.chat.cached_positions() ==
          int(heard.tokenizer
                  .encode(turn("user", "hello") + turn("assistant", past[1].content) + turn("user", "again") +
                              turn("assistant", answer) + turn("user", "x") + ASKS,
                          true)
                  .size()) +
              9);
}

// A recurrent state cannot forget some tokens. It can only return to the copy that is kept at the
// last prompt's end, or to the start.
TEST_CASE("chat: without softmax an old turn that changes is computed again, and nothing else") {
    Talker talker(512, LinearAttention::gated);
    ChatOptions o = Heard::plain();
    o.tokens = 10, o.system = "one";
    Heard heard(talker.g, o);
    heard.ask("hello");
    const int64_t first = heard.chat.computed;
    const int end = heard.chat.cached_positions();
    heard.ask("again");    // continues from the kept state
    const int64_t second = heard.chat.computed - first;
    CHECK(second == heard.chat.cached_positions() - end);
    const std::string before = temporary_directory() + "/before.json", edited = before + "2";
    heard.ask("/save " + before);
    // The last answer is edited: the state returns to the end of its question.
    auto past = heard.chat.history();
    past[3].content = "no";
    write_file(edited, messages_text({{"system", "one"}, past[0], past[1], past[2], past[3]}));
    for (const std::string& file : {edited, before})
        for (const char* system : {"/system one", "/system two"}) {    // two: another prompt, computed anew
            Heard fresh(talker.g, o);
            const int64_t from = heard.chat.computed;
            for (Heard* h : {&heard, &fresh}) h->ask("/load " + file), h->ask(system);
            CHECK(heard.ask("x") == fresh.ask("x"));
            if (file == edited && contains(system, "one")) CHECK(heard.chat.computed - from < fresh.chat.computed / 2);
        }
}

TEST_CASE("chat: when the context is full the oldest turns go, the system prompt stays") {
    Talker talker(192);
    ChatOptions o = Heard::plain();
    o.tokens = 16, o.system = "sys";
    Heard heard(talker.g, o);
    std::vector<ChatMessage> all;
    size_t first = 0;
    int drops = 0;
    for (int i = 0; i < 9; i++) {
        const std::string user = "question " + std::to_string(i);
        heard.notes.clear();
        const int64_t before = heard.chat.computed;
        const std::string answer = heard.ask(user);
        all.push_back({"user", user});
        std::vector<ChatMessage> kept(all.begin() + ptrdiff_t(first), all.end());
        auto tokens = [&] {
            std::string text = turn("system", "sys");
            for (auto& m : kept) text += turn(m.role, m.content);
            return int(heard.tokenizer.encode(text + ASKS, true).size());
        };
        if (tokens() > 192 - 16) {
            while (tokens() > 96) kept.erase(kept.begin(), kept.begin() + 2);
            const size_t left_out = all.size() - first - kept.size();
            CHECK(heard.noted("the oldest " + std::to_string(left_out) + " messages are left out"));
            first = all.size() - kept.size();
            drops++;
        } else {
            CHECK(heard.notes == std::vector<std::string>{"the answer ends after 16 tokens"});
            CHECK(heard.chat.computed - before < 60);    // all other tokens are cached
        }
        CHECK(heard.chat.cached_positions() == tokens() + 15);
        const std::string file = temporary_directory() + "/kept.json";
        write_file(file, messages_text({kept.begin(), kept.end() - 1}));
        o.seed = heard.chat.answers;
        Heard fresh(talker.g, o);
        fresh.ask("/load " + file);
        fresh.ask("/system sys");
        CHECK(fresh.ask(user) == answer);
        all.push_back({"assistant", answer});
        CHECK(heard.chat.history() == all);    // history keeps the messages left out
    }
    CHECK(drops >= 2);
    const Status s = heard.refused(std::string(200, 'x'));
    CHECK(s.code == Exit::usage);
    CHECK(contains(s.message, "the context 192, with 16 kept"));
    CHECK(heard.ask("short").size() == 16);

    o.context = 193;
    CHECK(Chat(talker.g, heard.tokenizer, {}, o).open().code == Exit::usage);
    o.context = 64, o.tokens = 0, o.ends = {};
    Heard small(talker.g, o);
    const std::string cut = small.ask("hi");
    CHECK(small.chat.cached_positions() == 64);
    CHECK(small.noted("context of 64 tokens is full: the answer ends here"));
}

TEST_CASE("chat: answers end at end tokens and stop strings, which are no part of them") {
    const Tokenizer tokenizer = chat_tokenizer();
    const std::string before = turn("user", "u") + ASKS;
    auto said = [&](const std::string& answer, ChatOptions o = Heard::plain(), std::vector<std::string>* notes = {}) {
        const std::vector<int> script = tokenizer.encode(before + answer + "<|im_end|>trailing", true);
        Actor actor(script, 96);
        Heard heard(actor.g, o);
        const std::string text = heard.ask("u");
        CHECK(heard.chat.answer() == text);
        CHECK(heard.chat.history() == std::vector<ChatMessage>{{"user", "u"}, {"assistant", text}});
        if (notes) *notes = heard.notes;
        return text;
    };
    CHECK(said("hello") == "hello");
    CHECK(said("") == "");
    CHECK(said("h\u00e9\U0001F600") == "h\u00e9\U0001F600");
    CHECK(said("h\xc3") == "h\uFFFD");
    CHECK(said("a<|im_start|>b") == "ab");    // special tokens give no text
    ChatOptions o = Heard::plain();
    o.stop = {"lo, w"};
    CHECK(said("hello, world", o) == "hel");    // a stop string of five tokens
    CHECK(said("hello, you", o) == "hello, you");
    CHECK(said("hello, ", o) == "hello, ");    // possible stop string, held back until the end
    o.tokens = 3;
    std::vector<std::string> notes;
    CHECK(said("hello", o, &notes) == "hel");
    CHECK(notes == std::vector<std::string>{"the answer ends after 3 tokens"});
    o.tokens = 6;
    CHECK(said("hello", o, &notes) == "hello");    // five bytes and the end token
    CHECK(notes.empty());
    o.ends = {tokenizer.encode("l")[0]};
    CHECK(said("hello", o) == "he");
}

TEST_CASE("chat: what is interrupted ends there; a message without an answer is forgotten") {
    const Tokenizer tokenizer = chat_tokenizer();
    const std::string before = turn("user", "u") + ASKS;
    Actor actor(tokenizer.encode(before + "hello<|im_end|>", true), 96);    // fed in pieces of 8 tokens
    const int pieces = (int(tokenizer.encode(before, true).size()) + 7) / 8;
    for (int patience = 0; patience <= pieces; patience++) {
        Heard heard(actor.g);
        heard.patience = patience;
        CHECK(heard.ask("u") == "");
        CHECK(heard.noted("forgotten"));
        CHECK(heard.chat.history().empty());
        CHECK(heard.chat.cached_positions() == std::min(8 * patience, int(tokenizer.encode(before, true).size())));
        heard.patience = -1;
        CHECK(heard.ask("u") == "hello");
        heard.ask("/reset");
        CHECK(heard.ask("u") == "hello");
    }
    Heard heard(actor.g);
    heard.patience = pieces + 3;
    CHECK(heard.ask("u") == "hel");
    CHECK(heard.chat.history().size() == 2);
}

TEST_CASE("chat: an answer ends where no token fits the grammar and none ends it") {
    Model g(cpu_ops<float>());
    toy_model(g, {.V = 94, .T = 64, .L = 1, .NH = 2, .C = 16, .F = 32}, {RunMode::infer, 1, 16});    // tokens ! to ~
    ChatOptions o = Heard::plain();
    o.sampling.grammar = Grammar::parse("root ::= \"ab\\n\"", "g").value;
    Heard heard(g, o, "!");
    CHECK(heard.ask("u") == "ab");
    CHECK(heard.noted(NO_TOKEN));
    CHECK(heard.chat.history()[1].content == "ab");
    CHECK(heard.ask("v") == "ab");
}

TEST_CASE("chat: commands") {
    const Tokenizer tokenizer = chat_tokenizer();
    Actor actor(tokenizer.encode(turn("user", "u") + ASKS + "hello<|im_end|>", true), 256);
    Heard heard(actor.g);
    auto note = [&](const std::string& line) {
        heard.notes.clear();
        CHECK(heard.ask(line) == "");
        return heard.notes.empty() ? "" : heard.notes.back();
    };
    for (const char* name : {"/reset", "/system", "/params", "/save", "/load", "/exit", "Ctrl-C"})
        CHECK(contains(note("/help"), name));
    CHECK(contains(note("/params"), "temperature = 0.0\ntop-n-sigma = 0.0\ntop-k = 50\n"));
    CHECK(note("/params temperature 0.25") == "");
    CHECK(note("/params  top_k = 7 ") == "");
    CHECK(note("/params stop ###") == "");
    CHECK(heard.chat.options.sampling.temperature == 0.25);
    CHECK(heard.chat.options.sampling.top_k == 7);
    CHECK(heard.chat.options.stop == std::vector<std::string>{"###"});
    for (auto& [line, part] : std::vector<std::pair<const char*, const char*>>{
             {"/params temperature", "a value is missing"},
             {"/params temperature hot", "expected a number from 0 to 100"},
             {"/params temperatur 1", "did you mean temperature?"},
             {"/params top-k -1", "whole number"},
             {"/save", "a file's name"},
             {"/load", "a file's name"}}) {
        const Status s = heard.refused(line);
        CHECK(s.code == Exit::usage);
        CHECK_MESSAGE(contains(s.message, part), s.message);
    }
    CHECK(note("") == "");
    CHECK(note(" \t") == "");
    CHECK(heard.chat.answers == 0);
    heard.ask("/params temperature 0");
    CHECK(heard.ask("u") == "hello");
    const Status unknown = heard.refused("/rest now");
    CHECK(unknown.code == Exit::usage);
    CHECK(unknown.message ==
          "/rest: no such command; did you mean /reset?; /help shows all. A message may begin so "
          "behind a space");
    heard.ask("/usr/bin/x is a path");    // no command, so a message
    CHECK(heard.chat.history()[2].content == "/usr/bin/x is a path");
    const std::string dir = temporary_directory();
    heard.ask("/system  be \u00e9 ");
    CHECK(contains(note("/save " + dir + "/a file"), "4 messages"));
    CHECK(heard.refused("/save " + dir + "/none/a").code == Exit::io);
    const auto saved = heard.chat.history();
    heard.ask("/reset");
    heard.ask("/system");
    for (const char* text : {"", "[", "{}", "[{\"role\":\"user\",\"content\":1}]", "\xff", "[[[[[[[[[["}) {
        write_file(dir + "/broken", text);
        CHECK(heard.refused("/load " + dir + "/broken").code == Exit::input);
    }
    CHECK(heard.refused("/load " + dir + "/none").code == Exit::input);
    CHECK(heard.refused("/load " + dir).code == Exit::input);
    CHECK(contains(note("/load " + dir + "/a file"), "4 messages"));
    CHECK(heard.chat.history() == saved);
    CHECK(heard.chat.options.system == "be \u00e9");
    CHECK_FALSE(heard.chat.line("/exit").value);
}

TEST_CASE("chat: /params refuses what cannot be, and the old value stays") {
    Talker talker(64);
    ChatOptions o = Heard::plain();
    o.sampling = {.top_k = 7};
    Heard heard(talker.g, o);
    const Sampling& sampling = heard.chat.options.sampling;
    for (auto& [line, part] : std::vector<std::pair<const char*, const char*>>{
             {"/params logit-bias xyzzy=5", "'xyzzy=5': the text is 5 tokens"},
             {"/params mirostat 5", "--top-k"},
             {"/params mirostat-rate 0.5", "needs --mirostat"}}) {
        const Status s = heard.refused(line);
        CHECK(s.code == Exit::usage);
        CHECK_MESSAGE(contains(s.message, part), s.message);
    }
    CHECK(sampling.penalties.bias.empty());
    CHECK(sampling.mirostat == 0);
    CHECK(sampling.mirostat_rate == 0.1);
    for (const char* line : {"/params top-k 50", "/params mirostat 5", "/params logit-bias x=1"})
        CHECK(heard.ask(line) == "");
    CHECK(heard.refused("/params top-n-sigma 1").code == Exit::usage);
    CHECK(heard.refused("/params logit-bias xyzzy=5").code == Exit::usage);
    CHECK(sampling.top_n_sigma == 0);
    CHECK(sampling.mirostat == 5);
    CHECK(sampling.penalties.bias == std::vector<std::string>{"x=1"});
    CHECK(heard.ask("/params mirostat 0") == "");
}

TEST_CASE("chat: a template that fails or never ends is an error with its line; the conversation stays as it was") {
    Talker talker(256);
    ChatOptions o = Heard::plain();
    o.tokens = 4;
    auto refusal = [&](const std::string& chat_template) {
        Heard heard(talker.g, o, chat_template);
        const Status s = heard.refused("hello");
        CHECK(s.code == Exit::input);
        CHECK(heard.chat.cached_positions() == 0);
        return s.message;
    };
    const std::string refused = refusal("\n{{ raise_exception('no ' + messages[0].role) }}");
    CHECK_MESSAGE(contains(refused, "chat template: "), refused);
    CHECK_MESSAGE(contains(refused, "line 2"), refused);
    CHECK_MESSAGE(contains(refused, "no user"), refused);
    CHECK(contains(refusal("{{ messages[5].content }}"), "line 1"));
    CHECK(contains(refusal("{% for a in range(99999999) %}{% for b in range(99999999) %}{% endfor %}{% endfor %}"),
                   "line 1"));
    CHECK(contains(refusal(""), "makes no text"));
    const std::string once =
        "{{ messages[0].content }}"
        "{% if messages | length > 1 %}{{ raise_exception('x') }}{% endif %}";
    Heard heard(talker.g, o, once);
    CHECK(heard.ask("hello").size() == 4);
    CHECK(contains(heard.refused("again").message, "x"));
    heard.ask("/reset");
    CHECK(heard.ask("hello").size() == 4);

    o.bos = "<|im_start|>", o.eos = "<|im_end|>";
    Heard tokens(talker.g, o,
                 "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
                 "{{ 'no' if tools is not none or documents is not none or not add_generation_prompt }}");
    tokens.ask("a");
    CHECK(tokens.chat.cached_positions() == 3 + 3);
}
