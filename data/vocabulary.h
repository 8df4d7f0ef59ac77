// vocabulary.h - what a tokenizer is, whichever file it comes from: tokenizer.json, tokenizer.model or a GGUF.
//
// A text becomes ids in steps: added tokens are found in it, what lies between them is normalized, marked (spaces), cut
// into pieces, and each piece's symbols are merged in the order of the merge table.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pretokenize.h"

struct Merge {
    int left, right, id;
};    // ids: left and right next to each other become id
struct AddedToken {
    int id;
    bool special;                // false: recognised in every text, as Hugging Face does
    bool lstrip = false;         // takes the white space before it, too
    bool rstrip = false;         // ... after it
    bool single_word = false;    // only where no letter or digit is next to it
    bool normalized = false;     // looked for in the normalized text
    // SentencePiece finds its user-defined symbols when the text has its prefix, so none is put after a symbol.
    bool user_defined = false;
    bool in_model = true;     // merging may end in it, too
    std::string name = {};    // as it is looked for; empty: the token's text
};

// One step of normalization: a Unicode form, a text put before each stretch, or one text for another.
struct Normalization {
    enum class Kind { nfc, nfd, nfkc, nfkd, prepend, replace } kind;
    std::string from, to;    // replace; prepend: to
    bool operator==(const Normalization&) const = default;
};

// How spaces are written before cutting. SentencePiece's mark for a space is U+2581; `first` and `always` also put a
// mark at the beginning: of the text, of each stretch between added tokens. prefixed: a space there (ByteLevel's
// add_prefix_space).
enum class Spaces { kept, prefixed, marked, marked_first, marked_always };
constexpr const char* SPACE_MARK = "\xE2\x96\x81";
inline std::string with_spaces(std::string marked) {
    for (size_t at = 0; (at = marked.find(SPACE_MARK, at)) != marked.npos;) marked.replace(at, 3, " ");
    return marked;
}
inline std::string with_marks(std::string spaces) {
    for (size_t at = 0; (at = spaces.find(' ', at)) != spaces.npos;) spaces.replace(at, 1, SPACE_MARK);
    return spaces;
}

// A symbol is what merging starts from: a byte (GPT-2), or a character, whose bytes stand in for it where the
// vocabulary lacks it (SentencePiece).
enum class Symbols { bytes, characters };

// What decoding drops: one space at the very beginning, or each mark in the first token.
enum class Strip { none, space, first_marks };

// What ends an answer by its name, in the families that flatgpt runs.
constexpr std::string_view ANSWER_ENDS[] = {
    "<|im_end|>",      "<|eot_id|>",    "<|eot|>",         "<|eom_id|>",
    "<|end|>",         "<end_of_turn>", "<|end_of_turn|>", "<|endoftext|>",
    "<|end_of_text|>", "</s>",          "<eos>",           "[EOS]",
    "<EOT>",           "_<EOT>",        "[EOT]",           "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
    "<|fim_pad|>",     "<fim-pad>",     "<fim_pad>",       "<|fim_repo|>",
    "<|repo_name|>",   "<fim-repo>",    "<reponame>",      "<|file_sep|>"};

struct Vocabulary {
    Symbols symbols = Symbols::bytes;
    Pattern pattern = Pattern::gpt2;
    std::vector<Split> splits;    // where pattern is Pattern::other
    std::vector<Normalization> normalization;
    Spaces spaces = Spaces::kept;
    // By id: bytes; characters' tokens are UTF-8 with marks for spaces, and <0xAB> is a byte; empty where no token has
    // the id.
    std::vector<std::string> tokens;
    std::vector<Merge> merges;    // the first one is applied first; a token's text is left's, then right's
    std::vector<AddedToken> added;
    bool ignore_merges = false;    // a piece that is a token is not merged (Llama 3)
    bool byte_fallback = false;    // characters without a token become <0xAB> of each byte
    bool fuse_unknown = false;     // unknown symbols next to each other are one
    Strip strip = Strip::none;
    int unknown = -1;    // id for a symbol without a token; -1: it is left out

    // What does not change the ids of a text.
    std::vector<int> before, after;    // put around a text: BOS, EOS
    int bos = -1, eos = -1, pad = -1;
    std::vector<int> ends;        // end an answer besides eos, by all of the model's files
    std::string chat_template;    // Jinja2; empty: none

    const std::string& name(int id) const {
        for (const AddedToken& a : added)
            if (a.id == id) return name(a);
        return tokens[size_t(id)];
    }
    const std::string& name(const AddedToken& a) const { return a.name.empty() ? tokens[size_t(a.id)] : a.name; }
};
// A line for people on stderr about a tokenizer's files, once in a process whoever reads them again.
void note_once(const std::string& text);
