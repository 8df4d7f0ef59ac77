// shards.cpp - the shards of `flatgpt train`: --data, --val, the sources of a mixture, repetition.
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <map>

#include "data/encoders/sentence_pairs.h"
#include "train/notes.h"
#include "train.h"

namespace {
// Refuses --val if it has some of --data's shards (exit 2). Two shards are equal if they are one
// file, or copies with the same set.id and set.index. If --val has all of them, *same is set and
// the status is ok, because such a run checks that a model can memorise.
Status check_disjoint(const std::vector<Shard>& train, const std::vector<Shard>& val, bool* same) {
    std::map<std::array<uint64_t, 3>, const Shard*> known;
    auto keys = [](const Shard& s) {
        struct stat info {};
        std::vector<std::array<uint64_t, 3>> all;
        if (stat(s.path.c_str(), &info) == 0) all.push_back({0, info.st_dev, info.st_ino});
        if (s.set.id) all.push_back({1, s.set.id, uint64_t(s.set.index)});
        return all;
    };
    for (const Shard& s : train)
        for (const auto& key : keys(s)) known[key] = &s;
    std::map<const Shard*, const Shard*> both;    // shard of --data; shard of --val
    for (const Shard& s : val)
        for (const auto& key : keys(s))
            if (const auto there = known.find(key); there != known.end()) both.emplace(there->second, &s);
    *same = both.size() == train.size();
    if (both.empty() || *same) return {};
    const auto& [one, other] = *both.begin();
    return fail(Exit::usage,
                "--val: expected shards that are not trained on, found %s, %s%s; give --data "
                "the training shards alone (a pattern such as 'x_train_*.bin')",
                other->path.c_str(), one->path == other->path ? "which is one of --data's" : "which is --data's ",
                one->path == other->path ? "" : one->path.c_str());
}

// Token that begins the documents of --pack; -1 without it.
Result<int> packed_by(bool pack, const Tokenizer& tokenizer) {
    const int begin = pack ? document_begin(tokenizer) : -1;
    if (pack && begin < 0)
        return fail(Exit::usage,
                    "--pack: the tokenizer has no token that parts documents; give --tokenizer one that has "
                    "<|endoftext|>, EOS or BOS");
    return begin;
}
}    // namespace

Status Trainer::open_shards() {
    const bool theirs = !start.empty() && (resuming || o.tokenizer.empty());    // tokenizer comes with the weights
    const TokenizerSource tokenizer_source = {
        theirs                ? start + "'s"
        : o.tokenizer.empty() ? "gpt2, the default"
                              : "--tokenizer " + o.tokenizer,
        theirs ? "tokenize the text again with that one, " + checkpoint_tokenizer_file(start)
               : "give --tokenizer the tokenizer.json that it was made with, or tokenize the text again"};
    LoaderConfig l = loader_config();
    l.pattern = o.data;
    l.raw_u16 = o.raw_u16;
    l.weighted = true;
    l.begin = TRY(packed_by(o.pack, tokenizer));
    if (config.predicts_next())
        l.pairs = std::make_shared<PairTemplate>(TRY(pair_template(tokenizer, objective.fraction, l.seed)));
    if (!o.data.empty()) {
        data = TRY(Loader::open(l));
        TRY(check_shard_tokenizer(data.shards(), tokenizer, config.V, tokenizer_source));
    }
    if (!o.val.empty()) {
        l.pattern = o.val;
        l.shuffle = false;
        l.max_tokens = o.eval_tokens;
        l.weighted = false;
        l.begin = -1;     // the loss of packed and other runs can then be compared
        if (l.pairs) {    // as `flatgpt eval` draws them
            l.pairs =
                std::make_shared<PairTemplate>(TRY(pair_template(tokenizer, objective.fraction, Objective{}.seed)));
        }
        val = TRY(Loader::open(l));
        bool same = false;
        if (!o.data.empty()) TRY(check_disjoint(data.shards(), val.shards(), &same));
        if (same) progress.note("note: --val has all shards of --data: its loss says nothing about text that is new");
        TRY(check_shard_tokenizer(val.shards(), tokenizer, config.V, tokenizer_source));
    }
    if (objective.replaces && !o.data.empty())
        objective.drawn = std::make_shared<std::vector<int>>(TRY(tokens_of(data.source(), o.seq_len)));
    if (!o.data.empty()) note_lines(progress, "note: ", data.source().note());
    return {};
}

// ---- epochs -------------------------------------------------------------------------------------

int64_t Trainer::samples_before(int64_t step) const {
    return int64_t(std::min(batches.tokens_before(step) / (double(o.seq_len) * sequences()), 4e18));
}

std::vector<double> Trainer::epochs_of(int64_t samples) const {
    std::vector<double> all;
    const std::vector<SamplePart> parts = data.source().parts();
    for (const int64_t n : data.drawn(samples)) all.push_back(double(n) / double(parts[all.size()].samples));
    return all;
}

std::string Trainer::mixture_text(int64_t samples, const char* indent) const {
    const std::vector<SamplePart> parts = data.source().parts();
    if (parts.size() == 1) return "";
    const std::vector<int64_t> drawn = data.drawn(samples);
    const std::vector<double> shares = data.shares(), epochs = epochs_of(samples);
    std::string all;
    for (size_t k = 0; k < parts.size(); k++)
        all += formatted("%s%5.1f %% (%.1f %% drawn)  %s: %s tokens read of %s, %.2f epochs\n", indent, 100 * shares[k],
                         100 * double(drawn[k]) / double(std::max<int64_t>(1, samples)), parts[k].name.c_str(),
                         human_count(double(drawn[k]) * o.seq_len).c_str(),
                         human_count(double(parts[k].tokens)).c_str(), epochs[k]);
    return all;
}

// Repeated data is worth nearly as much as new data up to 4 epochs, half as much at the 16th,
// nothing at the 40th (Muennighoff et al. 2023). Of a mixture, the source read most often counts.
void Trainer::warn_of_repetition() {
    const int64_t samples = samples_before(o.steps);
    const std::vector<double> all = epochs_of(samples);
    if (!o.dry_run) note_lines(progress, "to read: ", mixture_text(samples, ""));
    const auto most = std::max_element(all.begin(), all.end());
    const SamplePart part = data.source().parts()[size_t(most - all.begin())];
    const double epochs = *most, parameters = double(config_parameters(config)), unique = double(pass_tokens());
    const double of_part = double(part.samples) * sequences() * o.seq_len;
    const bool large = start.empty() && parameters > unique && epochs > 4;
    if ((epochs <= 16 && !large) || o.patience > 0) return;    // patience ends the run in time
    progress.note("warning: the run reads " + (all.size() == 1 ? "its data" : part.name) + " " + human_count(epochs) +
                  " times (" + human_count(of_part) + " tokens" +
                  (large ? ", fewer than the model's " + human_count(parameters) + " parameters" : "") +
                  "): it will be learnt by heart; --patience, fewer steps" + (large ? ", a smaller model" : "") +
                  " or more text would help");
}
