// pairs_file.cpp - see pairs_file.h.
#include "data/seq2seq/pairs_file.h"

#include <algorithm>

#include "base/console.h"
#include "files/json.h"

constexpr int JSON_DEPTH = 64;    // fields that are ignored nest so deep

Result<SourceTarget> source_target_parse(std::string_view line, const std::string& where) {
    const nlohmann::json j = TRY(json_parse(line, where, JSON_DEPTH));
    if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", where.c_str());
    const JsonFields fields{j, where};
    SourceTarget pair;
    TRY(fields.get("source", &pair.source));
    TRY(fields.get("target", &pair.target));
    return pair;
}

Result<std::shared_ptr<PairsFile>> PairsFile::read(const PairsFileOptions& options, const Tokenizer& tokenizer) {
    const PairsFileOptions& o = options;
    CHECK(o.source_S > 0 && o.S > 0 && o.vocab > 0);
    size_t around = 0;
    seq2seq_encode(tokenizer, "", 0, &around);
    if (around == 0) return fail(Exit::usage, "%s: expected a tokenizer with an end token (EOS)", o.flag.c_str());
    if (const int limit = std::min(o.source_S, o.S); size_t(limit) <= around)
        return fail(Exit::usage, "--seq-len %d: expected at least %zu, as the tokenizer puts %zu tokens around a text",
                    limit, around + 1, around);
    auto encode = [&](const Segment& line) -> Result<Encoded> {
        SourceTarget pair = TRY(source_target_parse(line.text, line.where));
        Encoded e;
        e.ids.source = seq2seq_encode(tokenizer, pair.source, o.source_S, &e.source_length);
        e.ids.target = seq2seq_encode(tokenizer, pair.target, o.S, &e.target_length);
        if (o.target_texts) e.target = std::move(pair.target);
        return e;
    };
    auto all = std::make_shared<PairsFile>();
    all->o = o;
    TRY(each_json_line(o.pattern, encode, [&](const Segment&, Encoded e) { all->add(std::move(e)); }));
    if (all->samples() == 0)
        return fail(Exit::input, "%s %s: expected pairs of a source and a target, found %s%s", o.flag.c_str(),
                    o.pattern.c_str(), counted(all->counts.lines, "line").c_str(), all->note().c_str());
    return all;
}

void PairsFile::add(Encoded e) {
    const SequencePair& p = e.ids;
    counts.lines++;
    const int64_t lost_source = int64_t(e.source_length - p.source.size()),
                  lost_target = int64_t(e.target_length - p.target.size());
    if (o.drop && lost_source + lost_target > 0) {
        counts.dropped++;
        return;
    }
    counts.cut_sources += lost_source > 0, counts.cut_targets += lost_target > 0;
    counts.cut_tokens += lost_source + lost_target;
    if (o.target_texts) target_texts.push_back(std::move(e.target));
    for (const std::vector<int>* sequence : {&p.source, &p.target}) {
        for (int id : *sequence) CHECK(id >= 0 && id < o.vocab, "token %d of %d", id, o.vocab);
        begins.push_back(int64_t(ids.size()));
        ids.insert(ids.end(), sequence->begin(), sequence->end());
    }
}

int PairsFile::length_of(int64_t i) const {
    const size_t next = size_t(i) + 1;
    return int((next < begins.size() ? begins[next] : tokens()) - begins[size_t(i)]);
}
int64_t PairsFile::length(int64_t sample) const {
    return int64_t(length_of(2 * sample)) << 32 | length_of(2 * sample + 1);
}
SequencePair PairsFile::pair(int64_t i) const {
    const auto source = ids.begin() + begins[size_t(2 * i)], target = source + length_of(2 * i);
    return {{source, target}, {target, target + length_of(2 * i + 1)}};
}
int PairsFile::longest() const {
    int most = 0;
    for (int64_t i = 0; i < int64_t(begins.size()); i++) most = std::max(most, length_of(i));
    return most;
}
void PairsFile::shorten(int length) {
    CHECK(longest() <= length, "%d", longest());
    o.source_S = o.S = length;
}

Status PairsFile::read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const {
    const SequencePair p = pair(sample);
    const int width = std::max(o.source_S, o.S), source = int(p.source.size()), target = int(p.target.size());
    CHECK(source > 0 && source <= o.source_S && target > 0 && target <= o.S, "%d and %d tokens", source, target);
    std::fill(std::copy(p.source.begin(), p.source.end(), tokens), tokens + width, o.pad);
    std::fill(std::copy(p.target.begin(), p.target.end(), targets), targets + width, -1);
    *texts = {Text{}};
    if (source < width) texts->push_back({source});
    return {};
}

uint64_t PairsFile::fingerprint() const {
    uint64_t h = fnv1a_words(FNV_OFFSET_BASIS, ids.data(), int64_t(ids.size() * sizeof ids[0]));
    h = fnv1a_words(h, begins.data(), int64_t(begins.size() * sizeof begins[0]));
    const int64_t shape[] = {o.source_S, o.S};
    return fnv1a_words(h, shape, sizeof shape);
}

std::string PairsFile::items() const { return counted(samples(), "pair"); }
std::string PairsFile::text() const {
    int64_t learnt = 0;
    for (int64_t i = 0; i < samples(); i++) learnt += targets(i);
    return formatted("%s tokens in %s, %s of targets; sources up to %d, targets up to %d",
                     human_count(double(tokens())).c_str(), items().c_str(), human_count(double(learnt)).c_str(),
                     o.source_S, o.S);
}
std::string PairsFile::note() const {
    std::string all;
    if (counts.cut_sources + counts.cut_targets)
        all += formatted("; %s cut to %d tokens and %s to %d (%s; %s)", counted(counts.cut_sources, "source").c_str(),
                         o.source_S, counted(counts.cut_targets, "target").c_str(), o.S,
                         counted(counts.cut_tokens, "token").c_str(), o.advice.c_str());
    if (counts.dropped)
        all += formatted("; %s left out, with a source of more than %d tokens or a target of more than %d",
                         counted(counts.dropped, "pair").c_str(), o.source_S, o.S);
    return all;
}
