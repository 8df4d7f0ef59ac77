// special_flag.h - the option --special, with one meaning in every command that encodes texts.
#pragma once
#include "base/command.h"

inline const std::vector<std::string> SPECIAL_KINDS = {"text", "token"};

// to: holds the command's default. unit: what may spell a token's name ("a text", "a prompt").
inline Flag special_flag(std::string* to, const std::string& unit) {
    return {.name = "--special",
            .to = to,
            .help = "where " + unit +
                    " spells a special token (<|im_start|>): text, ordinary text, as in crawled pages; token, that "
                    "token, as in conversations that a chat template has written",
            .choices = SPECIAL_KINDS};
}
