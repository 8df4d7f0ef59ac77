// source_target.cpp - an encoder-decoder learns targets from sources: pairs (`train --pairs`), or
// corrupted texts (`--objective span-corruption` or `infilling`).
#include "infer/eval/pairs.h"
#include "model/cost_table.h"
#include "model/families/families.h"
#include "train/train.h"

std::vector<std::string> with_shard_objectives(std::vector<std::string> flags) {
    for (const char* name : {"prefix", "mlm", "mlm-nsp", "replaced-tokens", "span-corruption", "infilling"})
        flags.push_back(std::string("--objective ") + name);
    return flags;
}

FlagGroup pair_flags(TrainOptions& o) {
    const std::vector<std::string> corrupts = {"--objective span-corruption or --objective infilling"},
                                   learns_pairs = {"--pairs, --objective span-corruption or --objective infilling"};
    return {"Encoder-decoders",
            {},
            {{.name = "--pairs",
              .to = &o.pairs,
              .help = "pairs of texts to learn, by an encoder-decoder such as T5: JSON lines with source and target; "
                      "--seq-len limits each of the two",
              .excludes = with_shard_objectives(
                  {"--data", "--val", "--chat", "--prefer", "--prompts", "--labels", "--raw-u16"})},
             {.name = "--pairs-val",
              .to = &o.pairs_val,
              .help = "pairs for validation, given in the same way",
              .needs = {"--pairs"}},
             {.name = "--source-len",
              .to = &o.source_len,
              .help = "tokens of a source, at most; 0: --seq-len, which then limits sources and targets",
              .min = 0,
              .max = 1 << 24,
              .needs = learns_pairs},
             {.name = "--corrupted",
              .to = &o.corrupted,
              .help = "share of a text's tokens that are to be found; 0: 0.15, infilling 0.3",
              .min = 0,
              .max = 0.9,
              .needs = corrupts},
             {.name = "--span-length",
              .to = &o.span_length,
              .help = "tokens of a corrupted span, on average",
              .min = 1,
              .max = 100,
              .needs = corrupts}}};
}

namespace {
class PairLoss : public SomeTokensLoss {
  public:
    using SomeTokensLoss::SomeTokensLoss;
    int64_t begin(int64_t, int64_t sequences) override {
        return t.seq2seq.targets(sequences, t.data.targets(sequences));
    }
    bool upload(int64_t first, int* S) override {
        const Seq2SeqBatch b =
            t.seq2seq.batch(first, t.tokens.data(), t.targets.data(), t.texts, t.o.batch, !t.needs_padding());
        upload_batch(*t.device.model, b);
        *S = b.S;
        return true;
    }
    Result<double> validate(const Show& show) override {
        const Seq2Seq fixed = TRY(t.seq2seq_of(Seq2SeqOptions{}.seed));    // the same draws at each validation
        return TRY(evaluate(*t.device.model, t.val, t.tokenizer, t.o.batch, fixed.width(), show,
                            t.ranks.coordinator.get(), upload_pairs(*t.device.model, fixed)))
            .loss;
    }
};
}    // namespace

std::unique_ptr<StepLoss> pair_loss(Trainer& t) { return std::make_unique<PairLoss>(t); }
std::string pairs_text(const Trainer& t) {
    const std::string drawn = t.seq2seq.summary();
    return drawn + (drawn.empty() ? "a target for each source" : "") +
           formatted(", token %d before a target", t.config.decoder_start);
}

Status Trainer::choose_source_target() {
    if (!config.encoder_layers)
        return fail(Exit::usage,
                    "%s: expected an encoder-decoder (--from, --model t5:d4 or --encoder-layers N), found a model "
                    "of type %s without an encoder",
                    pairs_flag().c_str(), config.family->type);
    if (!tokenizer.vocab_size())
        return fail(Exit::usage, "%s: the run has no tokenizer; give --tokenizer", pairs_flag().c_str());
    for (auto [given, flag] : {std::pair{samples(), o.sample_every ? "--sample-every" : "--sample-prompts"},
                               {!o.eval_tasks.empty(), "--eval-tasks"},
                               {!o.teacher.empty(), "--teacher"},
                               {o.documents, "--documents"},
                               {o.pack, "--pack"},
                               {o.recipe != "none", "--recipe"}})
        if (given) return fail(Exit::usage, "%s, %s: expected one of them", pairs_flag().c_str(), flag);
    if (o.source_len > config.T)
        return fail(Exit::usage, "--source-len %d: the model's context has %d positions", o.source_len, config.T);
    return tokenizer.fits(config.V, Exit::usage, "");
}
std::string Trainer::pairs_flag() const {
    return o.pairs.empty() ? "--objective " + std::string(task->name) : "--pairs";
}

int Trainer::target_positions() const { return config.encoder_layers ? seq2seq.target_length() : o.seq_len; }
double Trainer::planned_flops() const {
    const int S = target_positions();
    return training_flops(device.model->op, config, S, plan.weighted, plan.source) * S / o.seq_len;
}
int Trainer::source_length() const { return o.source_len ? o.source_len : o.seq_len; }
// The token of a full stop, which ends sentences; -1: the tokenizer has none.
static int full_stop(const Tokenizer& tokenizer) {
    const std::vector<int> ids = tokenizer.encode("a.", false);
    return !ids.empty() && tokenizer.token(ids.back()) == "." ? ids.back() : -1;
}
Result<Seq2Seq> Trainer::seq2seq_of(uint64_t seed) const {
    return Seq2Seq::make({.kind = task->pair,
                          .source_S = source_length(),
                          .S = o.seq_len,
                          .start = config.decoder_start,
                          .pad = std::max(0, tokenizer.vocabulary().pad),
                          .density = o.corrupted,
                          .mean_span = o.span_length,
                          .sentence_end = full_stop(tokenizer),
                          .seed = seed},
                         tokenizer);
}
Result<std::shared_ptr<LineSource>> Trainer::read_source_target(const std::string& pattern, const std::string& flag) {
    return std::shared_ptr<LineSource>(TRY(PairsFile::read({.pattern = pattern,
                                                            .flag = flag,
                                                            .advice = "a larger --seq-len or --source-len keeps more, "
                                                                      "--too-long drop leaves them out",
                                                            .drop = o.too_long == "drop",
                                                            .source_S = source_length(),
                                                            .S = o.seq_len,
                                                            .vocab = config.V,
                                                            .pad = std::max(0, tokenizer.vocabulary().pad)},
                                                           tokenizer)));
}
