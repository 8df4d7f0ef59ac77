// labels.cpp - see labels.h.
#include "train/labels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/families/families.h"

// ---- samples ------------------------------------------------------------------------------------

LabelSource::LabelSource(std::vector<LabelledText> all, int length, int padding, std::string what)
    : texts(std::move(all)), S(length), pad(padding), classes(std::move(what)) {
    for (const LabelledText& text : texts) all_tokens += int64_t(text.ids.size());
}
int LabelSource::longest() const {
    size_t most = 1;
    for (const LabelledText& text : texts) most = std::max(most, text.ids.size());
    return int(most);
}
int64_t LabelSource::targets(int64_t sample) const {
    const std::vector<int>& all = texts[size_t(sample)].targets;
    return int64_t(all.size()) - std::count(all.begin(), all.end(), NO_VALUE);
}
uint64_t LabelSource::fingerprint() const {
    uint64_t h = FNV_OFFSET_BASIS;
    for (const LabelledText& text : texts) {
        const int shape[] = {int(text.ids.size()), text.second};
        h = fnv1a_words(h, shape, sizeof shape);
        for (const std::vector<int>* x : {&text.ids, &text.targets})
            h = fnv1a_words(h, x->data(), int64_t(x->size() * sizeof(int)));
    }
    return fnv1a_words(h, &S, sizeof S);
}
Status LabelSource::read(int64_t sample, int* tokens, int* targets, std::vector<Text>* parts) const {
    const LabelledText& text = texts[size_t(sample)];
    const int n = int(text.ids.size());
    CHECK(n <= S, "%d tokens in a sample of %d", n, S);
    *parts = {{.second = text.second}};
    if (n < S) parts->push_back({n});
    std::fill(std::copy(text.ids.begin(), text.ids.end(), tokens), tokens + S, pad);
    std::fill(std::copy(text.targets.begin(), text.targets.end(), targets), targets + S, NO_VALUE);
    return {};
}

// ---- options and model --------------------------------------------------------------------------

FlagGroup label_flags(TrainOptions& o) {
    return {"Classifiers",
            {},
            {{.name = "--labels",
              .to = &o.labels,
              .help = "texts with classes or numbers to learn, by a classifier's head on an encoder such as BERT: JSON "
                      "lines with text, maybe pair, and label; or with text, a list of words, and their labels",
              .excludes = with_shard_objectives({"--data", "--val", "--chat", "--prefer", "--prompts", "--pack",
                                                 "--documents", "--raw-u16", "--teacher", "--sample-every",
                                                 "--sample-prompts", "--objective causal", "--resize-vocab"})},
             {.name = "--labels-val",
              .to = &o.labels_val,
              .help = "texts with labels for validation, given in the same way",
              .needs = {"--labels"}}}};
}

// Gives the model the head and the classes that the labels need, unless it has them.
Status Trainer::choose_head() {
    if (config.encoder_layers && objective_row(o).loss != pair_loss)
        return fail(Exit::usage,
                    "the model is an encoder-decoder (%s): expected --pairs, or --data with --objective "
                    "span-corruption or infilling",
                    config.family->type);
    if (o.labels.empty()) return choose_shards_head();
    const std::vector<Family::Head>& heads = config.family->heads;
    if (heads.empty())
        return fail(Exit::usage, "--labels: expected a model such as BERT (--from, or --model bert:d4), found %s",
                    config.family->type);
    if (!tokenizer.vocab_size()) return fail(Exit::usage, "--labels: the run has no tokenizer; give --tokenizer");
    if (resuming) return {};
    labelled = std::make_shared<const LabelledFile>(TRY(read_labels(o.labels)));
    const LabelledFile& file = *labelled;
    const std::vector<std::string>& has = config.classes;
    auto known = [&](const std::string& name) { return std::ranges::find(has, name) != has.end(); };
    const bool fits = config.head == file.kind && (file.numbers || std::ranges::all_of(file.classes, known)) &&
                      (has.size() == 1) == (file.classes.size() == 1);
    if (fits) return {};
    if (file.classes.size() == 1 && !file.numbers)
        return fail(Exit::usage, "--labels %s: expected at least two classes, found one, %s", o.labels.c_str(),
                    file.classes[0].c_str());
    config.head = file.kind, config.classes = file.classes;
    config.next_sentence = false;
    CHECK(set_head(), "%s has no head of classes", config.family->type);
    return {};
}
// Sets the fields of the class that has config.head. Returns false if the family has none.
bool Trainer::set_head() {
    const Family::Head* head = config.family->head_of(config);
    if (!head) return false;
    config.next_sentence = head->next_sentence;
    config.transform = head->transform, config.transform_act = head->act.value_or(config.activation);
    new_head = !start.empty();
    return true;
}
// Gives the model the head that its objective on shards needs, unless it has it.
Status Trainer::choose_shards_head() {
    const bool predicts = config.head == HeadKind::tokens || config.head == HeadKind::replaced;
    if (!predicts)
        return fail(Exit::usage,
                    "%s predicts no tokens; expected a language model, or --labels, which gives it a "
                    "classifier's head",
                    start.empty() ? o.model.c_str() : start.c_str());
    const ObjectiveRow& row = objective_row(o, config);
    if (config.head == row.head && config.predicts_next() == row.next_sentence) return {};
    const bool drops = config.head == row.head && !row.next_sentence;    // the head of pairs alone
    config.head = row.head, config.next_sentence = row.next_sentence;
    if (o.resize_vocab)
        return fail(Exit::usage, "--objective %s, --resize-vocab: the model gets a new head; do one after the other",
                    row.name);
    const bool there = !resuming && set_head();
    new_head &= !drops;
    if (there) return {};
    return fail(Exit::usage, "--objective %s: %s; expected a model such as %s", row.name,
                resuming ? "the run that goes on has another one"
                         : (std::string(config.family->type) + " has no such head").c_str(),
                row.next_sentence ? "BERT (--model bert:d4)" : "ELECTRA (--model electra:d4)");
}
Result<std::shared_ptr<LineSource>> Trainer::read_labels_file(const std::string& pattern, const std::string&) {
    std::shared_ptr<const LabelledFile> file = pattern == o.labels ? std::exchange(labelled, nullptr) : nullptr;
    if (!file) file = std::make_shared<const LabelledFile>(TRY(read_labels(pattern)));
    const std::string what = config.predicts_values() ? "numbers" : formatted("%zu classes", config.classes.size());
    return std::shared_ptr<LineSource>(
        std::make_shared<LabelSource>(TRY(encode_labels(*file, config, tokenizer, o.seq_len)), o.seq_len,
                                      std::max(0, tokenizer.vocabulary().pad), what));
}

// Takes all tensors that the model at the start has, too, under the names of its file; the others,
// the new head's, begin with random weights. Of BERT's files some have a pooler and others none.
Status Trainer::load_below_head() {
    Model& g = *device.model;
    g.init(uint64_t(o.seed));
    Config body = config;
    body.head = config.predicts_next() ? HeadKind::tokens : HeadKind::none;
    body.classes = {};
    Status s;
    for (const bool pooler : {true, false}) {
        body.next_sentence = pooler && config.predicts_next();
        const Family::Head* base = body.family->head_of(body);
        body.transform = (pooler || body.head == HeadKind::tokens) && base ? base->transform : HeadTransform::none;
        Model old(cpu_ops<float>());
        TRY(old.allocate(body, {.mode = RunMode::infer, .spans = true}));
        s = checkpoint_weights(start, old);
        if (!s.ok()) continue;
        std::map<std::string, const Tensor*> held;
        for (const Tensor& t : old.tensors) held[bare_name(t.pieces[0].name, *body.family)] = &t;
        for (const Tensor& to : g.tensors) {
            const auto from = held.find(bare_name(to.pieces[0].name, *config.family));
            if (from == held.end() || from->second->size() != to.size()) continue;
            std::vector<float> x(size_t(to.size()));
            old.read(StateKind::weights, from->second->offset, to.size(), x.data());
            g.write(StateKind::weights, to.offset, to.size(), x.data());
        }
        return {};
    }
    return s;
}

// ---- loss ---------------------------------------------------------------------------------------

double LabelLoss::of_guess() const {
    return t.config.predicts_values() ? double(INFINITY) : std::log(double(t.config.outputs()));
}
// Every rank scores all texts, because the scores need all guesses. Rank 0's loss counts, as a GPU
// may choose other algorithms on another rank.
Result<double> LabelLoss::validate(const Show&) {
    scores = score_labels(*t.device.model, static_cast<const LabelSource&>(*t.val_source).texts);
    if (!t.ranks.coordinator) return scores.loss;
    const std::string first =
        t.ranks.coordinator->broadcast({reinterpret_cast<const char*>(&scores.loss), sizeof scores.loss});
    memcpy(&scores.loss, first.data(), sizeof scores.loss);
    return scores.loss;
}
std::string labels_text(const Trainer& t) {
    return (t.config.predicts_values() ? "a number" : "classes " + join(t.config.classes, ", ").substr(0, 200)) +
           (t.config.head == HeadKind::texts ? " of each text" : " of each word");
}
