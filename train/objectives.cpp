// objectives.cpp - the table of objectives, and the loss of tokens.
#include "train/objectives.h"

#include "data/samples.h"
#include "model/cost_table.h"
#include "train/labels.h"
#include "train/preference_loss.h"
#include "train/reward/loss.h"
#include "train/train.h"

int64_t TokenLoss::begin(int64_t first, int64_t sequences) {
    return t.objective.targets(first, sequences, t.o.seq_len, t.data.targets(sequences));
}
void TokenLoss::batch(int, int S, int64_t terms) {
    if (Model* teacher = t.teacher.model.get()) {
        teacher->batch.upload(t.tokens.data(), t.targets.data(), t.o.batch, S,
                              t.objective.is_plain_causal() ? nullptr : &t.spans);
        teacher->forward();
        t.device.model->teacher = teacher;
    }
    t.device.model->loss(true, float(1.0 / double(terms)));
    t.device.model->teacher = nullptr;    // validation measures the loss on tokens
}
double TokenLoss::of_guess() const {
    const int choices = t.config.predicts_values() ? 2 : t.config.V;    // replaced or not
    return t.teacher.model ? double(INFINITY) : std::log(double(choices));
}
Status TokenLoss::add_memory(std::vector<MemoryRow>& rows, int B) const {
    if (!t.o.teacher.empty()) add_model(rows, "the teacher", TRY(t.teacher_memory(B)));
    return {};
}
Result<double> TokenLoss::validate(const Show& show) {
    Objective fixed = t.objective;    // random draws as in `flatgpt eval`
    fixed.seed = Objective{}.seed;
    if (fixed.replaces && !drawn)
        drawn = std::make_shared<std::vector<int>>(TRY(tokens_of(t.val.source(), t.o.seq_len)));
    fixed.drawn = drawn;
    validation = TRY(
        evaluate(*t.device.model, t.val, t.tokenizer, t.o.batch, t.o.seq_len, show, t.ranks.coordinator.get(), fixed));
    return validation.loss + validation.next_loss;
}
void TokenLoss::add_validation(Json& row) const { set_decisions(row, validation, t.config, "val_"); }

void NextSentenceLoss::batch(int, int, int64_t terms) {
    const double pairs = double(t.batches.step_tokens(t.issued) / t.o.seq_len);
    t.device.model->loss(true, float(1 / double(terms)), 0, float(1 / pairs));
}
void NextSentenceLoss::end() {
    next_loss = t.device.model->train.next_loss / double(t.batches.step_tokens(t.state.step) / t.o.seq_len);
}
std::string NextSentenceLoss::text() const { return formatted("  next sentence %.4f", next_loss); }
void NextSentenceLoss::add_metrics(Json& row) const { row.set("next_sentence_loss", next_loss); }
void SomeTokensLoss::add_metrics(Json& row) const { row.set("targets", t.sizes[(t.state.step - 1) % 2].terms); }

namespace {
template <class Loss> std::unique_ptr<StepLoss> make(Trainer& t) { return std::make_unique<Loss>(t); }

std::string documents_text(const Trainer& t) {
    return t.o.documents ? formatted(", documents apart: token %d begins one", t.objective.begin) : "";
}
std::string causal_text(const Trainer& t) { return t.o.documents ? "causal" + documents_text(t) : ""; }
std::string prefix_text(const Trainer&) { return "prefix"; }
std::string mlm_text(const Trainer& t) {
    return formatted("mlm, %g %% of the tokens are targets, token %d masks", 100 * t.o.mask_fraction,
                     t.objective.mask) +
           documents_text(t);
}
std::string next_sentence_text(const Trainer& t) { return mlm_text(t) + "; and whether a text follows another"; }
std::string replaced_text(const Trainer& t) {
    return formatted("replaced-tokens, %g %% of the tokens are replaced", 100 * t.o.mask_fraction) + documents_text(t);
}
std::string chat_text(const Trainer& t) {
    return formatted("causal, on %s%s", train_on_named(t.o.train_on).text, t.o.pack ? ", conversations apart" : "");
}

constexpr const char *SHARDS = "names, or with other weights, --pack or --seq-len",
                     *CHATS =
                         "gives now: with another file, --chat-template, --train-on, --pack, --too-long or "
                         "--seq-len",
                     *PAIRS = "gives now: with another file, --chat-template, --too-long or --seq-len",
                     *SOURCES = "gives now: with another file, --too-long or --seq-len",
                     *LABELS = "gives now: with another file or --seq-len",
                     *PROMPTS = "gives now: with another file, --chat-template, --answer-tokens or --seq-len";

constexpr ObjectiveRow shards(const char* name, MaskKind mask_kind, std::string (*text)(const Trainer&)) {
    return {.name = name,
            .mask_kind = mask_kind,
            .flag = "--data",
            .files = &TrainOptions::data,
            .val_files = &TrainOptions::val,
            .noun = "shards",
            .settings = SHARDS,
            .sequences = 1,
            .weighted = false,
            .choose = &Trainer::no_work,
            .read = nullptr,
            .open = &Trainer::open_shards,
            .preview = &Trainer::no_preview,
            .text = text,
            .loss = make<TokenLoss>};
}
constexpr ObjectiveRow corrupted(const char* name, Seq2SeqKind kind) {
    ObjectiveRow row = shards(name, MaskKind::causal, pairs_text);
    row.pair = kind;
    row.choose = &Trainer::choose_source_target;
    row.loss = pair_loss;
    return row;
}
constexpr ObjectiveRow next_sentence() {
    ObjectiveRow row = shards("mlm-nsp", MaskKind::all, next_sentence_text);
    row.next_sentence = true;
    row.loss = make<NextSentenceLoss>;
    return row;
}
constexpr ObjectiveRow replaced() {
    ObjectiveRow row = shards("replaced-tokens", MaskKind::all, replaced_text);
    row.head = HeadKind::replaced;
    return row;
}
const ObjectiveRow OBJECTIVES[] = {
    shards("causal", MaskKind::causal, causal_text),
    corrupted("span-corruption", Seq2SeqKind::span_corruption),
    corrupted("infilling", Seq2SeqKind::infilling),
    shards("prefix", MaskKind::prefix, prefix_text),
    shards("mlm", MaskKind::all, mlm_text),
    next_sentence(),
    replaced(),
    {.name = "chat",
     .mask_kind = MaskKind::causal,
     .flag = "--chat",
     .files = &TrainOptions::chat,
     .val_files = &TrainOptions::chat_val,
     .noun = "conversations",
     .settings = CHATS,
     .sequences = 1,
     .weighted = false,
     .choose = &Trainer::choose_chat_template,
     .read = &Trainer::read_conversations,
     .open = &Trainer::open_lines,
     .preview = &Trainer::preview_conversations,
     .text = chat_text,
     .loss = make<SomeTokensLoss>},
    {.name = "labels",
     .mask_kind = MaskKind::all,
     .flag = "--labels",
     .files = &TrainOptions::labels,
     .val_files = &TrainOptions::labels_val,
     .noun = "texts",
     .settings = LABELS,
     .sequences = 1,
     .weighted = false,
     .choose = &Trainer::no_work,
     .read = &Trainer::read_labels_file,
     .open = &Trainer::open_lines,
     .preview = &Trainer::no_preview,
     .text = labels_text,
     .loss = make<LabelLoss>},
    {.name = "pairs",
     .mask_kind = MaskKind::causal,
     .flag = "--pairs",
     .files = &TrainOptions::pairs,
     .val_files = &TrainOptions::pairs_val,
     .noun = "pairs",
     .settings = SOURCES,
     .sequences = 1,
     .weighted = false,
     .choose = &Trainer::choose_source_target,
     .read = &Trainer::read_source_target,
     .open = &Trainer::open_lines,
     .preview = &Trainer::no_preview,
     .text = pairs_text,
     .loss = pair_loss},
    {.name = "preference",
     .mask_kind = MaskKind::causal,
     .flag = "--prefer",
     .files = &TrainOptions::prefer,
     .val_files = &TrainOptions::prefer_val,
     .noun = "pairs",
     .settings = PAIRS,
     .sequences = 2,
     .weighted = true,
     .choose = &Trainer::choose_preference,
     .read = &Trainer::read_pairs,
     .open = &Trainer::open_lines,
     .preview = &Trainer::preview_pairs,
     .text = preference_text,
     .loss = make<PreferenceLoss>},
    {.name = "reward",
     .mask_kind = MaskKind::causal,
     .flag = "--prompts",
     .files = &TrainOptions::prompts,
     .val_files = &TrainOptions::prompts_val,
     .noun = "prompts",
     .settings = PROMPTS,
     .sequences = 0,
     .weighted = true,
     .choose = &Trainer::choose_reward,
     .read = &Trainer::read_prompts,
     .open = &Trainer::open_lines,
     .preview = &Trainer::preview_prompts,
     .text = reward_text,
     .loss = make<RewardLoss>},
};
}    // namespace

const ObjectiveRow& objective_row(const TrainOptions& o, const Config& c) {
    for (const ObjectiveRow& row : OBJECTIVES)
        if (row.read && !(o.*row.files).empty()) return row;
    for (const ObjectiveRow& row : OBJECTIVES)
        if (o.objective == row.name) return row;
    for (const ObjectiveRow& row : OBJECTIVES)
        if (row.mask_kind == c.mask_kind && row.head == c.head && row.next_sentence == c.predicts_next()) return row;
    CHECK(false, "mask kind %d, head %d", int(c.mask_kind), int(c.head));
}
