// heard.h - a chat that records answers and notes. Include it after the project's headers.
#pragma once
#include <algorithm>

#include "infer/chat/chat.h"
#include "speaker.h"

inline std::string turn(const std::string& role, const std::string& text) {
    return "<|im_start|>" + role + "\n" + text + "<|im_end|>\n";
}
inline const std::string ASKS = "<|im_start|>assistant\n";

// A Chat with a model in memory; keeps the last answer's text and all notes to the user.
struct Heard {
    Tokenizer tokenizer = chat_tokenizer();
    std::string text;
    std::vector<std::string> notes;
    int patience = -1;    // interrupted() calls that return false; -1: all
    Chat chat;

    static ChatOptions plain() {
        ChatOptions o;
        o.sampling = {.temperature = 0};
        o.ends = {END_OF_TURN};
        return o;
    }
    Heard(Model& g, ChatOptions o = plain(), const std::string& chat_template = CHATML)
        : chat(g, tokenizer, ChatTemplate::parse(chat_template).take(), std::move(o)) {
        chat.options.text = [this](std::string_view t) { return text += t, true; };
        chat.options.note = [this](const std::string& t) { notes.push_back(t); };
        chat.options.interrupted = [this] { return patience == 0 || (patience > 0 && --patience < 0); };
        const Status s = chat.open();
        REQUIRE_MESSAGE(s.ok(), s.message);
    }
    // Sends a line of the user and returns the answer.
    std::string ask(const std::string& line) {
        text.clear();
        const Result<bool> r = chat.line(line);
        REQUIRE_MESSAGE(r.ok(), r.status.message);
        CHECK(r.value);
        return text;
    }
    Status refused(const std::string& line) {
        text.clear();
        const auto before = chat.history();
        const Result<bool> r = chat.line(line);
        CHECK_FALSE(r.ok());
        CHECK(chat.history() == before);
        CHECK(text == "");
        return r.status;
    }
    bool noted(const std::string& part) const {
        return std::any_of(notes.begin(), notes.end(), [&](auto& n) { return contains(n, part); });
    }
};
