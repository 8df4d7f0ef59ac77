#include "text_loss.h"

#include <algorithm>
#include <numeric>

#include "base/console.h"

Result<TextLines> TextLines::open(CorpusConfig config) {
    TextLines lines;
    lines.path = config.files[0];
    config.lines = true;
    lines.corpus = TRY(Corpus::open(std::move(config)));
    return lines;
}
Result<std::vector<Line>> TextLines::next(int64_t bytes) {
    std::vector<Line> lines;
    for (Segment line; bytes > 0 && TRY(corpus.next(line));) {
        TRY(corpus.json_text(line));
        bytes -= int64_t(line.text.size() + sizeof(Line));
        lines.push_back({std::move(line.text), line.line});
    }
    found_line |= !lines.empty();
    if (!found_line) return fail(Exit::input, "%s: expected a text on each line, found none", path.c_str());
    if (lines.empty() && !corpus.encoding_note().empty()) Progress().note("note: " + corpus.encoding_note());
    return lines;
}
Result<std::vector<Line>> read_lines(const CorpusConfig& config) {
    TextLines file = TRY(TextLines::open(config));
    constexpr int64_t MOST = 2 * TEXT_GROUP;
    std::vector<Line> lines = TRY(file.next(MOST));
    if (!TRY(file.next(1)).empty())
        return fail(Exit::input, "%s: expected at most %s of lines, found more; split the file",
                    config.files[0].c_str(), human_bytes(double(MOST)).c_str());
    return lines;
}

TextEncoder::TextEncoder(const Tokenizer& t, std::vector<int> first_tokens, bool as_tokens)
    : tokenizer(t), begin(std::move(first_tokens)), tokens(as_tokens) {
    if (!t.vocabulary().before.empty()) begin = t.vocabulary().before;
}
std::vector<std::vector<int>> TextEncoder::encode(const std::vector<Line>& lines) {
    std::vector<std::vector<int>> texts;
    for (const Line& line : lines) {
        texts.push_back(begin);
        const std::vector<int> ids = tokenizer.encode(line.text, tokens);
        texts.back().insert(texts.back().end(), ids.begin(), ids.end());
        const int id = tokens ? -1 : tokenizer.first_special(line.text);
        if (id >= 0 && count++ == 0) first = tokenizer.token(id);
    }
    return texts;
}
void TextEncoder::note_special_tokens() const {
    if (count)
        Progress().note("note: " + counted(count, "text") + (count > 1 ? " spell" : " spells") +
                        " special tokens such as " + escape_control(first) +
                        ", read as ordinary text; --special token makes tokens of them");
}
std::vector<int> ordinary_tokens(const Tokenizer& tokenizer, int V) {
    std::vector<int> ids;
    for (int id = 0; id < V; id++)
        if (tokenizer.vocab_size() == 0 ||
            (id < tokenizer.vocab_size() && !tokenizer.is_special(id) && !tokenizer.token(id).empty()))
            ids.push_back(id);
    return ids;
}

namespace {
struct Row {    // a text or a chunk of one
    size_t text;
    int from, length;    // in tokens
};
std::vector<Row> chunks_of(const std::vector<std::vector<int>>& texts, int S, bool shifted) {
    std::vector<Row> chunks;
    for (size_t i = 0; i < texts.size(); i++) {
        const int n = int(texts[i].size()) - shifted;    // the last token is only a target
        for (int from = 0; from < n; from += S) chunks.push_back({i, from, std::min(S, n - from)});
    }
    return chunks;
}
}    // namespace

std::vector<Evaluation> evaluate_texts(Model& model, const Tokenizer& tokenizer,
                                       const std::vector<std::vector<int>>& texts, const Objective& objective,
                                       int64_t* before) {
    const std::vector<Row> chunks = chunks_of(texts, model.plan.S, objective.mask_kind != MaskKind::all);
    std::vector<size_t> order(chunks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return chunks[a].length > chunks[b].length; });
    std::vector<Evaluation> all(texts.size());
    std::vector<double> bytes(texts.size());
    for (size_t first = 0; first < order.size(); first += size_t(model.plan.B)) {
        const int B = int(std::min(order.size() - first, size_t(model.plan.B))), S = chunks[order[first]].length;
        std::vector<int> tokens(size_t(B) * size_t(S)), targets(tokens.size(), -1);
        Spans spans;
        for (int b = 0; b < B; b++) {
            const size_t number = order[first + size_t(b)];
            const auto& [text, from, length] = chunks[number];
            const std::vector<int>& ids = texts[text];
            int *in = &tokens[size_t(b) * size_t(S)], *out = &targets[size_t(b) * size_t(S)];
            std::copy_n(ids.begin() + from, length, in);
            std::copy_n(ids.begin() + from + 1, std::min<size_t>(size_t(length), ids.size() - size_t(from) - 1), out);
            objective.apply(*before + int64_t(number), in, out, length, S, &spans);
        }
        // Without spans the mask is causal, so padding at the end is never attended.
        model.batch.upload(tokens.data(), targets.data(), B, S, objective.is_plain_causal() ? nullptr : &spans);
        model.forward();
        model.loss(false, 0);
        std::vector<float> losses(tokens.size());
        (void)model.mean_loss(losses.data());
        for (size_t n = 0; n < losses.size(); n++) {
            const int id = targets[n];
            if (id < 0) continue;
            const size_t text = chunks[order[first + n / size_t(S)]].text;
            all[text].loss += double(losses[n]);
            all[text].tokens++;
            if (id < tokenizer.vocab_size() && !tokenizer.is_special(id))
                bytes[text] += double(tokenizer.token(id).size());
        }
    }
    *before += int64_t(chunks.size());
    for (size_t i = 0; i < all.size(); i++) {
        all[i].bits_per_byte = bytes[i] > 0 ? all[i].loss / std::log(2.0) / bytes[i] : 0;
        all[i].loss /= double(all[i].tokens);    // NaN without targets
    }
    return all;
}

Evaluation combined(const std::vector<Evaluation>& each) {
    Evaluation all;
    double bytes = 0;
    for (const Evaluation& e : each) {
        if (e.tokens == 0) continue;
        all.loss += e.loss * double(e.tokens);
        all.tokens += e.tokens;
        if (e.bits_per_byte > 0) bytes += e.loss * double(e.tokens) / std::log(2.0) / e.bits_per_byte;
    }
    all.bits_per_byte = bytes > 0 ? all.loss / std::log(2.0) / bytes : 0;
    all.loss /= double(std::max<int64_t>(1, all.tokens));
    return all;
}
