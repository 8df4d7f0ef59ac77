// encode.cpp - flatgpt's side of dev/compare_tokenizers.py.
//
// build/dev/encode TEXTS.json TOKENIZER... prints one line of JSON for each tokenizer: {"error":
// message}, or for each text its ids with special tokens recognised and without, and the text
// decoded from these. A tokenizer after --gguf is first converted to GGUF's arrays and back.
#include <cstdio>

#include "base/file.h"
#include "data/tokenizer_files/tokenizer_gguf.h"
#include "files/json.h"

using nlohmann::json;

static Status compare(const std::vector<std::string>& texts, const std::string& path, bool gguf, json& out) {
    Tokenizer t = TRY(Tokenizer::load(path));
    if (gguf) t = TRY(tokenizer_from_gguf(TRY(tokenizer_to_gguf(t)), path));
    for (const std::string& text : texts) {
        for (bool special : {true, false}) {
            const std::vector<int> ids = t.encode(text, special);
            StreamDecoder whole;
            std::string decoded = whole.push(t.decode(ids));
            decoded += whole.finish();
            out[special ? "special" : "plain"].push_back(ids);
            out[special ? "decoded" : "decoded_plain"].push_back(decoded);
        }
    }
    out["before"] = t.vocabulary().before, out["after"] = t.vocabulary().after, out["eos"] = t.vocabulary().eos;
    out["json"] = t.to_json();
    return {};
}

int main(int count, char** args) {
    if (count < 3) return fprintf(stderr, "usage: encode TEXTS.json [--gguf] TOKENIZER...\n"), 2;
    const Result<std::string> texts = read_file(args[1], 64 << 20);
    if (!texts.ok()) return fprintf(stderr, "%s\n", texts.status.message.c_str()), 3;
    bool gguf = false;
    for (int i = 2; i < count; i++) {
        if (gguf |= std::string_view(args[i]) == "--gguf"; std::string_view(args[i]) == "--gguf") continue;
        json out;
        const Status s = compare(json::parse(texts.value), args[i], gguf, out);
        if (!s.ok()) out = {{"error", s.message}};
        puts(out.dump(-1, ' ', true, json::error_handler_t::replace).c_str());
        gguf = false;
    }
    return 0;
}
