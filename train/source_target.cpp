// source_target.cpp - `flatgpt train --pairs`: an encoder-decoder learns targets from sources.
#include "infer/eval/pairs.h"
#include "model/families/families.h"
#include "train/train.h"

#include <cmath>

FlagGroup pair_flags(TrainOptions& o) {
    return {"Encoder-decoders",
            {},
            {{.name = "--pairs",
              .to = &o.pairs,
              .help = "pairs of texts to learn, by an encoder-decoder such as T5: JSON lines with source and target; "
                      "--seq-len limits each of the two",
              .excludes = {"--data", "--val", "--chat", "--prefer", "--prompts", "--labels", "--pack", "--documents",
                           "--raw-u16", "--objective prefix", "--objective mlm", "--teacher", "--eval-tasks",
                           "--sample-every", "--sample-prompts", "--lora-rank", "--recipe"}},
             {.name = "--pairs-val",
              .to = &o.pairs_val,
              .help = "pairs for validation, given in the same way",
              .needs = {"--pairs"}}}};
}

namespace {
Seq2SeqOptions options_of(const Trainer& t) {
    return {.source_S = t.o.seq_len,
            .S = t.o.seq_len,
            .start = t.config.decoder_start,
            .pad = std::max(0, t.tokenizer.vocabulary().pad)};
}
class PairLoss : public StepLoss {
  public:
    explicit PairLoss(Trainer& trainer) : t(trainer) {}
    Status prepare() override {
        seq2seq = TRY(Seq2Seq::make(options_of(t), t.tokenizer));
        return {};
    }
    int64_t begin(int64_t, int64_t sequences) override { return seq2seq.targets(sequences, t.data.targets(sequences)); }
    bool upload(int64_t first, int* S) override {
        const Seq2SeqBatch b =
            seq2seq.batch(first, t.tokens.data(), t.targets.data(), t.texts, t.o.batch, !t.needs_padding());
        upload_batch(*t.device.model, b);
        *S = b.S;
        return true;
    }
    void batch(int, int, int64_t terms) override { t.device.model->loss(true, float(1.0 / double(terms))); }
    double of_guess() const override { return std::log(double(t.config.V)); }
    // Every rank measures all pairs.
    Result<double> validate(const Show&) override {
        const auto& file = static_cast<const PairsFile&>(*t.val_source);
        const int64_t most = t.o.eval_tokens ? std::max<int64_t>(1, t.o.eval_tokens / t.o.seq_len) : file.samples();
        return pairs_loss(*t.device.model, file, seq2seq, most).loss;
    }
    void add_metrics(Json& row) const override { row.set("targets", t.sizes[(t.state.step - 1) % 2].terms); }

  private:
    Trainer& t;
    Seq2Seq seq2seq;
};
}    // namespace

std::unique_ptr<StepLoss> pair_loss(Trainer& t) { return std::make_unique<PairLoss>(t); }
std::string pairs_text(const Trainer& t) {
    return formatted("a target for each source, token %d before it", t.config.decoder_start);
}

Status Trainer::choose_source_target() {
    if (!config.encoder_layers)
        return fail(Exit::usage,
                    "--pairs: expected an encoder-decoder (--from, --model t5:d4 or --encoder-layers N), found a model "
                    "of type %s without an encoder",
                    config.family->type);
    if (!tokenizer.vocab_size()) return fail(Exit::usage, "--pairs: the run has no tokenizer; give --tokenizer");
    return tokenizer.fits(config.V, Exit::usage, "");
}
Result<std::shared_ptr<LineSource>> Trainer::read_source_target(const std::string& pattern, const std::string& flag) {
    return std::shared_ptr<LineSource>(TRY(PairsFile::read({.pattern = pattern,
                                                            .flag = flag,
                                                            .drop = o.too_long == "drop",
                                                            .source_S = o.seq_len,
                                                            .S = o.seq_len,
                                                            .vocab = config.V,
                                                            .pad = std::max(0, tokenizer.vocabulary().pad)},
                                                           tokenizer)));
}
