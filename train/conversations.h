// conversations.h - conversations as training samples: files of JSON lines come in, tokens and
// targets go out.
//
// A line is an object of one of three shapes:
//   {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}    OpenAI's
//   {"prompt": "..." or messages, "completion": "..." or messages}             TRL's
//   {"conversations": [{"from": "human", "value": "..."}, ...], "system": ""}  ShareGPT's
// OpenAI's older "functions" are tools, too. Other fields of the object are ignored.
// infer/chat/chat_encoder.h says which tokens are learnt.
#pragma once
#include <memory>

#include "infer/chat/chat_encoder.h"
#include "data/documents/json_lines.h"

// Values of --train-on: name, and what is learnt, for people.
struct TrainOnRow {
    const char* name;
    TrainOn value;
    const char* text;
};
inline constexpr TrainOnRow TRAIN_ON[] = {{"assistant", TrainOn::assistant, "answers"},
                                          {"all", TrainOn::all, "all tokens"},
                                          {"last", TrainOn::last, "each conversation's last answer"}};
const TrainOnRow& train_on_named(const std::string& name);    // one of these names

// Reads one line. Exit 3: names `where` and the field, with what was expected and what was found.
Result<Conversation> conversation_parse(std::string_view line, const std::string& where);
// Parts of conversation_parse for lines that hold conversations in other fields (train/pairs.h).
// check_conversation checks what training needs beyond what templates do. tools_of returns the
// line's tools as JSON text.
Status check_conversation(const Conversation& c);
Result<std::string> tools_of(const nlohmann::ordered_json& line, const std::string& where);
// Encodes a conversation. Exit 3: it has tools or calls, and the template writes none.
Result<EncodedChat> conversation_encode(const ChatEncoder& encoder, const Conversation& c, TrainOn train_on);

struct ConversationOptions {
    std::string pattern = {};    // shard_glob expands it; each file may be compressed
    std::string flag = {};       // option that gave the pattern, for error texts
    TrainOn train_on = TrainOn::assistant;
    bool pack = false;
    bool drop = false;    // leave out conversations longer than S, instead of cutting them
    int S = 0, vocab = 0, pad = 0;
};

class Conversations : public LineSource {
  public:
    // Reads, renders and encodes all lines, on all cores. Exit 3: the first line that is wrong, or
    // no conversation is left.
    static Result<std::shared_ptr<Conversations>> read(const ConversationOptions& options, const ChatEncoder& encoder);
    int longest() const override;
    void shorten(int length) override;
    std::string items() const override;
    int64_t samples() const override { return int64_t(first_of.size()) - 1; }
    int64_t tokens() const override { return int64_t(ids.size()); }
    int64_t targets(int64_t sample) const override;
    uint64_t fingerprint() const override;
    std::string text() const override;
    Status read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const override;

    // Counts of lines, conversations and tokens: read, cut, left out. What was cut or left out is
    // not in ids.
    struct Counts {
        int64_t lines = 0, trained = 0;             // trained: tokens that are targets
        int64_t cut = 0, cut_tokens = 0;            // conversations longer than S + 1 tokens
        int64_t dropped = 0, dropped_tokens = 0;    // left out as too long
        int64_t untrained = 0;                      // left out: nothing in them is a target
        int64_t unread = 0;                         // lines with reasoning that the template does not write
    } counts;
    int64_t conversations() const { return int64_t(begins.size()) - 1; }
    EncodedChat conversation(int64_t i) const;
    double filled() const;    // share of the samples' positions that are no padding
    std::string note() const override;

  private:
    void add(EncodedChat e);
    void arrange();
    ConversationOptions o;
    std::vector<int> ids;                   // all conversations, one behind the other
    std::vector<bool> trained;              // by token
    std::vector<int64_t> begins = {0};      // index in ids of each conversation; last entry: the end
    std::vector<int64_t> first_of = {0};    // index in `order` of each sample's first conversation
    std::vector<int64_t> order;             // conversations, by sample
};

// Assigns items to bins of the given size: longest first, each into the fullest bin that it fits
// (best fit decreasing: Johnson 1974), of equals the first. Returns each bin's items. A size is at
// most `size`.
std::vector<std::vector<int64_t>> best_fit(const std::vector<int>& sizes, int size);
