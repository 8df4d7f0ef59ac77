// labels.cpp - see labels.h.
#include "labels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/command.h"
#include "base/element.h"
#include "data/documents/json_lines.h"
#include "data/loader.h"
#include "files/json.h"

// ---- lines --------------------------------------------------------------------------------------

namespace {
constexpr int JSON_DEPTH = 8;

// A label as text; *fraction is set if it is a number that is not whole.
Result<std::string> label_of(const nlohmann::json& label, const std::string& where, bool* fraction, bool* all_numbers) {
    *all_numbers &= label.is_number();
    if (label.is_string()) return label.get<std::string>();
    if (label.is_boolean()) return std::string(label.get<bool>() ? "true" : "false");
    if (label.is_number_integer()) return label.dump();
    if (label.is_number_float() && std::isfinite(label.get<double>())) {
        *fraction = true;
        return label.dump();
    }
    return fail(Exit::input, "%s: label: expected a word, a number, true or false, found %s", where.c_str(),
                label.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 60).c_str());
}
struct ParsedLine {
    LabelledLine line;
    bool fraction = false, all_numbers = true;
};
Result<ParsedLine> parse_line(const Segment& segment) {
    ParsedLine parsed;
    LabelledLine& line = parsed.line;
    line.where = segment.where;
    const nlohmann::json j = TRY(json_parse(segment.text, line.where, JSON_DEPTH));
    if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", line.where.c_str());
    const JsonFields f{j, line.where};
    line.apart = j.contains("labels");
    if (!line.apart) {
        line.words.emplace_back();
        TRY(f.get("text", &line.words[0]));
        line.has_pair = f.has("pair");
        if (line.has_pair) TRY(f.get("pair", &line.pair));
        if (!j.contains("label"))
            return fail(Exit::input, "%s: expected the field label, or labels for each word", line.where.c_str());
        line.labels.push_back(TRY(label_of(j["label"], line.where, &parsed.fraction, &parsed.all_numbers)));
        return parsed;
    }
    if (!j["labels"].is_array() || !j.contains("text") || !j["text"].is_array() || j["text"].empty() ||
        j["text"].size() != j["labels"].size())
        return fail(Exit::input, "%s: labels: expected a list as long as text, a list of words", line.where.c_str());
    for (const nlohmann::json& word : j["text"]) {
        if (!word.is_string()) return fail(Exit::input, "%s: text: expected a list of words", line.where.c_str());
        line.words.push_back(word.get<std::string>());
    }
    for (const nlohmann::json& label : j["labels"])
        line.labels.push_back(TRY(label_of(label, line.where, &parsed.fraction, &parsed.all_numbers)));
    return parsed;
}
}    // namespace

Result<LabelledFile> read_labels(const std::string& pattern) {
    std::vector<ParsedLine> parsed;
    TRY(each_json_line(pattern, parse_line, [&](const Segment&, ParsedLine p) { parsed.push_back(std::move(p)); }));
    LabelledFile all;
    bool fraction = false, all_numbers = true;
    std::set<std::string> names;
    for (ParsedLine& p : parsed) {
        all.lines.push_back(std::move(p.line));
        fraction |= p.fraction;
        all_numbers &= p.all_numbers;
        const LabelledLine& line = all.lines.back();
        if (line.apart != all.lines[0].apart)
            return fail(Exit::input, "%s: expected the field %s, as in the lines before", line.where.c_str(),
                        line.apart ? "label" : "labels");
        names.insert(line.labels.begin(), line.labels.end());
        if (fraction && !all_numbers)
            return fail(Exit::input, "%s: expected numbers alone, or words alone, as labels", line.where.c_str());
        if (!fraction && names.size() > size_t(Config::MOST_CLASSES))
            return fail(Exit::input, "%s: expected at most %d classes", line.where.c_str(), Config::MOST_CLASSES);
    }
    if (all.lines.empty()) return fail(Exit::input, "%s: expected texts with labels, found none", pattern.c_str());
    all.kind = all.lines[0].apart ? HeadKind::positions : HeadKind::texts;
    all.numbers = fraction;
    if (fraction && all.kind == HeadKind::positions)
        return fail(Exit::input, "%s: labels: expected classes, found numbers", pattern.c_str());
    all.classes.assign(names.begin(), names.end());
    if (all_numbers)
        std::ranges::sort(all.classes, {}, [](const std::string& s) { return strtod(s.c_str(), nullptr); });
    if (fraction) all.classes = {"LABEL_0"};    // transformers' name of a single number
    return all;
}

// ---- tokens and targets -------------------------------------------------------------------------

namespace {
// Words one by one, each but the first after a space, between the tokenizer's own tokens.
LabelledText encode_words(const LabelledLine& line, const std::vector<int>& classes, const Tokenizer& tokenizer,
                          size_t S) {
    const Vocabulary& v = tokenizer.vocabulary();
    LabelledText text;
    text.ids = v.before;
    text.targets.assign(text.ids.size(), NO_VALUE);
    for (size_t i = 0; i < line.words.size() && text.ids.size() + v.after.size() < S; i++) {
        const std::vector<int> ids = tokenizer.encode((i ? " " : "") + line.words[i], false);
        for (size_t k = 0; k < ids.size(); k++) text.targets.push_back(k ? NO_VALUE : classes[i]);
        text.ids.insert(text.ids.end(), ids.begin(), ids.end());
    }
    text.ids.resize(std::min(text.ids.size(), S - v.after.size()));
    text.targets.resize(text.ids.size());
    text.ids.insert(text.ids.end(), v.after.begin(), v.after.end());
    text.targets.resize(text.ids.size(), NO_VALUE);
    return text;
}
}    // namespace

static Status too_short(int S) {
    return fail(Exit::usage, "--seq-len %d: the tokenizer's own tokens leave no room for a text; expected more", S);
}
Result<std::vector<LabelledText>> encode_labels(const LabelledFile& file, const Config& c, const Tokenizer& tokenizer,
                                                int S) {
    const bool numbers = c.predicts_values();
    if (c.head != file.kind)
        return fail(Exit::usage, "%s: expected %s", file.lines[0].where.c_str(),
                    c.head == HeadKind::texts ? "the field label, a class of the text"
                                              : "the field labels, a class of each word");
    if (numbers != file.numbers && !(numbers && file.kind == HeadKind::texts))
        return fail(Exit::usage, "%s: label: expected one of the model's classes, found a number",
                    file.lines[0].where.c_str());
    std::map<std::string, int> index;
    for (size_t i = 0; i < c.classes.size(); i++) index[c.classes[i]] = int(i);
    auto encode = [&](const LabelledLine& line) -> Result<LabelledText> {
        std::vector<int> targets;
        for (const std::string& label : line.labels) {
            char* end = nullptr;
            const float number = strtof(label.c_str(), &end);
            if (numbers && (*end || end == label.c_str()))
                return fail(Exit::usage, "%s: label: expected a number, found \"%s\"", line.where.c_str(),
                            label.substr(0, 60).c_str());
            if (!numbers && !index.contains(label))
                return fail(Exit::usage, "%s: label: expected one of %s, found \"%s\"", line.where.c_str(),
                            join(c.classes, ", ").substr(0, 300).c_str(), label.substr(0, 60).c_str());
            targets.push_back(numbers ? std::bit_cast<int>(number) : index.at(label));
        }
        if (line.apart) {
            if (size_t(S) <= tokenizer.vocabulary().after.size()) return too_short(S);
            LabelledText text = encode_words(line, targets, tokenizer, size_t(S));
            if (text.ids.empty())
                return fail(Exit::input, "%s: text: expected a token at least, found none", line.where.c_str());
            if (text.ids.size() > size_t(S)) return too_short(S);
            return text;
        }
        const EncodedText e = line.has_pair ? tokenizer.encode_pair(line.words[0], line.pair, S)
                                            : tokenizer.encode_text(line.words[0], S);
        if (e.ids.empty())
            return fail(Exit::input, "%s: text: expected a token at least, found none", line.where.c_str());
        if (e.ids.size() > size_t(S)) return too_short(S);
        LabelledText text = {e.ids, std::vector<int>(e.ids.size(), NO_VALUE)};
        text.targets[0] = targets[0];
        const auto second = std::find(e.segments.begin(), e.segments.end(), 1);
        if (second != e.segments.end()) text.second = int(second - e.segments.begin());
        return text;
    };
    std::vector<Result<LabelledText>> encoded(file.lines.size(), Result<LabelledText>(Status{}));
    each_chunk(int64_t(encoded.size()), [&](int64_t i, int) { encoded[size_t(i)] = encode(file.lines[size_t(i)]); });
    std::vector<LabelledText> all;
    for (Result<LabelledText>& text : encoded) all.push_back(std::move(TRY(text)));
    return all;
}

// ---- scores -------------------------------------------------------------------------------------

LabelScores scores_of(const std::vector<int64_t>& counts, int K) {
    LabelScores s;
    std::vector<double> is(static_cast<size_t>(K)), guessed(is), right(is);
    for (int t = 0; t < K; t++)
        for (int g = 0; g < K; g++) {
            const double n = double(counts[size_t(t) * size_t(K) + size_t(g)]);
            is[size_t(t)] += n, guessed[size_t(g)] += n, right[size_t(t)] += t == g ? n : 0;
            s.targets += int64_t(n);
        }
    // Matthews' coefficient for K classes (Gorodkin 2004), 0 if a factor below the root is 0.
    const double n = double(s.targets);
    double all_right = 0, both = 0, of_is = 0, of_guessed = 0;
    int present = 0;
    for (size_t k = 0; k < size_t(K); k++) {
        const double f1 = is[k] + guessed[k] > 0 ? 2 * right[k] / (is[k] + guessed[k]) : 0;
        present += is[k] + guessed[k] > 0;
        s.macro_f1 += f1;
        if (K == 2 && k == 1) s.f1 = f1;
        all_right += right[k], both += is[k] * guessed[k], of_is += is[k] * is[k],
            of_guessed += guessed[k] * guessed[k];
    }
    s.accuracy = n > 0 ? all_right / n : 0;
    s.macro_f1 /= std::max(1, present);
    const double root = std::sqrt(n * n - of_is) * std::sqrt(n * n - of_guessed);
    s.matthews = root > 0 ? (all_right * n - both) / root : 0;
    return s;
}

namespace {
double correlation(const std::vector<double>& x, const std::vector<double>& y) {
    const double n = double(x.size());
    const double mx = std::accumulate(x.begin(), x.end(), 0.0) / n, my = std::accumulate(y.begin(), y.end(), 0.0) / n;
    double xx = 0, yy = 0, xy = 0;
    for (size_t i = 0; i < x.size(); i++) {
        xx += (x[i] - mx) * (x[i] - mx);
        yy += (y[i] - my) * (y[i] - my);
        xy += (x[i] - mx) * (y[i] - my);
    }
    return xx > 0 && yy > 0 ? xy / std::sqrt(xx) / std::sqrt(yy) : 0;
}
// Ranks from 1; equal values share the mean of theirs.
std::vector<double> ranks_of(const std::vector<double>& x) {
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] < x[b]; });
    std::vector<double> ranks(x.size());
    for (size_t i = 0, end; i < order.size(); i = end) {
        for (end = i + 1; end < order.size() && x[order[end]] == x[order[i]];) end++;
        for (size_t k = i; k < end; k++) ranks[order[k]] = double(i + 1 + end) / 2;
    }
    return ranks;
}
}    // namespace

LabelScores scores_of(const std::vector<double>& found, const std::vector<double>& expected) {
    LabelScores s;
    s.targets = int64_t(found.size());
    s.pearson = correlation(found, expected);
    s.spearman = correlation(ranks_of(found), ranks_of(expected));
    return s;
}

namespace {
// Calls visit(n, logits) for each position n of the last pass that has a target.
template <class Visit> void each_logits(Model& g, const std::vector<int>& targets, Visit visit) {
    const int N = int(targets.size()), width = g.c.padded_outputs();
    std::vector<char> raw(size_t(g.op.bytes(g.head, int64_t(g.head_rows) * width)));
    std::vector<float> logits(size_t(g.head_rows) * size_t(width));
    for (int n = 0; n < N; n += g.head_rows) {
        const int rows = std::min(g.head_rows, N - n);
        g.head_forward(g.head, g.op.at(g.head_input(), int64_t(n) * g.c.C), rows);
        g.op.download(raw.data(), g.head, g.op.bytes(g.head, int64_t(rows) * width));
        to_floats(logits.data(), raw.data(), g.op.activation, int64_t(rows) * width);
        for (int i = 0; i < rows; i++)
            if (targets[size_t(n + i)] != NO_VALUE) visit(n + i, &logits[size_t(i) * size_t(width)]);
    }
}
}    // namespace

LabelScores score_labels(Model& g, const std::vector<LabelledText>& texts) {
    const int K = g.c.outputs();
    const bool numbers = g.c.predicts_values();
    std::vector<size_t> order(texts.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return texts[a].ids.size() > texts[b].ids.size(); });
    std::vector<int64_t> counts(numbers ? 0 : size_t(K) * size_t(K));
    std::vector<double> found, expected;
    double loss = 0;
    for (size_t first = 0; first < order.size();) {
        const int S = int(texts[order[first]].ids.size());
        CHECK(S >= 1 && S <= g.plan.S, "a text of %d tokens", S);
        const int B = int(std::min(order.size() - first, size_t(g.plan.max_tokens() / S)));
        std::vector<int> tokens(size_t(B) * size_t(S)), targets(tokens.size(), NO_VALUE);
        Spans spans;
        for (int b = 0; b < B; b++) {
            const LabelledText& text = texts[order[first++]];
            std::copy(text.ids.begin(), text.ids.end(), &tokens[size_t(b) * size_t(S)]);
            std::copy(text.targets.begin(), text.targets.end(), &targets[size_t(b) * size_t(S)]);
            std::vector<Text> parts = {{.second = text.second}};
            if (int(text.ids.size()) < S) parts.push_back({int(text.ids.size())});
            spans.add(parts, S, g.c.mask_kind);
        }
        g.batch.upload(tokens.data(), targets.data(), B, S, &spans);
        g.forward();
        each_logits(g, targets, [&](int n, const float* z) {
            const int target = targets[size_t(n)];
            if (numbers) {
                found.push_back(double(z[0])), expected.push_back(double(std::bit_cast<float>(target)));
                loss += (found.back() - expected.back()) * (found.back() - expected.back());
                return;
            }
            const int best = int(std::max_element(z, z + K) - z);
            double sum = 0;
            for (int k = 0; k < K; k++) sum += std::exp(double(z[k]) - double(z[best]));
            loss += std::log(sum) + double(z[best]) - double(z[target]);
            counts[size_t(target) * size_t(K) + size_t(best)]++;
        });
    }
    LabelScores s = numbers ? scores_of(found, expected) : scores_of(counts, K);
    s.loss = loss / double(std::max<int64_t>(1, s.targets));
    return s;
}

void set_scores(Json& to, const LabelScores& s, const Config& c) {
    if (c.predicts_values()) {
        to.set("mse", s.loss), to.set("pearson", s.pearson), to.set("spearman", s.spearman);
        return;
    }
    to.set("accuracy", s.accuracy), to.set("macro_f1", s.macro_f1), to.set("matthews", s.matthews);
    if (c.outputs() == 2) to.set("f1", s.f1);
}
std::string scores_text(const LabelScores& s, const Config& c) {
    if (c.predicts_values()) return formatted("mse %.4f  pearson %.4f  spearman %.4f", s.loss, s.pearson, s.spearman);
    return formatted("accuracy %.4f  ", s.accuracy) + (c.outputs() == 2 ? formatted("f1 %.4f  ", s.f1) : "") +
           formatted("macro f1 %.4f  matthews %.4f", s.macro_f1, s.matthews);
}
