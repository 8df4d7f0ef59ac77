// eval_command.cpp - see eval_command.h.
#include "eval_command.h"

#include <algorithm>

#include "base/countdown.h"
#include "base/file.h"
#include "data/encoders/sentence_pairs.h"
#include "files/picture.h"
#include "position_loss.h"
#include "files/json_write.h"
#include "bleu.h"
#include "labels.h"
#include "pairs.h"
#include "text_loss.h"

namespace {
Status check_files(const EvalOptions& o) {
    if (!o.csv.empty()) TRY(check_writable(o.csv, "--csv"));
    return o.picture.empty() ? Status{} : picture_check(o.picture);
}
Status print_evaluation(const EvalOptions& o, const LoadedModel& m, const Evaluation& e,
                        const std::vector<PositionBin>& bins, double seconds) {
    const bool known = e.bits_per_byte > 0;
    if (o.json) {
        Json found = Json::object("loss", e.loss, "perplexity", std::exp(e.loss), "bits_per_byte",
                                  known ? Json(e.bits_per_byte) : Json(), "tokens", e.tokens);
        set_decisions(found, e, m.model->c);
        if (!bins.empty()) found.set("by_position", positions_json(bins));
        found.print();
    } else {
        const std::string bits = known ? formatted("%.4f", e.bits_per_byte) : "unknown (--tokenizer)";
        printf("loss %.4f  perplexity %.2f  bits per byte %s  tokens %lld\n", e.loss, std::exp(e.loss), bits.c_str(),
               (long long)e.tokens);
        const bool next = m.model->c.predicts_next();
        if (e.decisions)
            printf("%s%s accuracy %.4f  f1 %.4f\n",
                   next ? formatted("next sentence loss %.4f  ", e.next_loss).c_str() : "",
                   next ? "next sentence" : "replaced tokens", e.accuracy, e.f1);
        if (!bins.empty()) print_positions(bins);
    }
    fprintf(stderr, "%s, %s tokens/s (%s)\n", human_time(seconds).c_str(),
            human_count(double(e.tokens) / seconds).c_str(), m.device.c_str());
    return {};
}
Status check_measured(const EvalOptions& o, const Evaluation& e) {
    if (e.tokens) return {};
    return fail(Exit::input,
                "%s: no token to measure: a text's first token is given, not predicted; expected a text "
                "of at least two tokens, or of one where the tokenizer puts its own before it",
                o.text.empty() ? o.data.c_str() : o.text.c_str());
}
// Refuses a loss that is not finite. It is called after the results are printed, because these may
// show where non-finite losses begin.
Status check_loss(const LoadedModel& m, double loss) {
    if (std::isfinite(loss)) return {};
    return fail(Exit::diverged,
                "%s: the loss is %g: the model's numbers have grown beyond what its activations hold; "
                "its training has diverged, or it was made for another type: try --dtype fp32",
                m.path.c_str(), loss);
}
Result<TextLines> open_text(const EvalOptions& o) {
    if (o.text == "-") note_typed_input();
    return TextLines::open(
        {.files = {o.text}, .field = o.field, .format = text_format(o.format), .longest = o.longest_line});
}
Result<Evaluation> eval_texts(const EvalOptions& o, LoadedModel& m, const Objective& objective) {
    TRY(check_tokenizer(m));
    TextLines file = TRY(open_text(o));
    TextEncoder encoder(m.tokenizer, beginning_of_text(m), o.special == "token");
    Evaluation all;
    int64_t chunks = 0;
    for (;;) {
        const std::vector<Line> lines = TRY(file.next(TEXT_GROUP));
        if (lines.empty()) break;
        std::vector<Evaluation> each = evaluate_texts(*m.model, m.tokenizer, encoder.encode(lines), objective, &chunks);
        for (size_t i = 0; i < each.size() && o.json; i++)
            Json::object("line", lines[i].number, "loss", each[i].loss, "tokens", each[i].tokens).print();
        each.push_back(all);
        all = combined(each);
    }
    encoder.note_special_tokens();
    return all;
}

Result<Evaluation> eval_shards(const EvalOptions& o, LoadedModel& m, Objective objective, LossByPosition& positions) {
    const int S = m.model->plan.S;
    LoaderConfig shards = {.pattern = o.data, .raw_u16 = o.raw_u16, .B = o.batch, .S = S, .max_tokens = o.eval_tokens};
    if (objective.paired)
        shards.pairs =
            std::make_shared<PairTemplate>(TRY(pair_template(m.tokenizer, objective.fraction, objective.seed)));
    Loader loader = TRY(open_shards(m, o.model_options, shards));
    if (objective.replaces) objective.drawn = std::make_shared<std::vector<int>>(TRY(tokens_of(loader.source(), S)));
    Countdown countdown{"eval", "windows"};
    auto each = [&](int rows, const float* losses, const int* targets) { positions.add(rows, losses, targets); };
    return evaluate(*m.model, loader, m.tokenizer, o.batch, S, std::ref(countdown), nullptr, objective, each);
}

// Returns the haystack's tokens from --data or --text. `longest`: length of the longest sequence in
// tokens.
Result<std::vector<int>> haystack(const EvalOptions& o, const LoadedModel& m, int longest) {
    const size_t MOST = std::max<size_t>(1 << 20, size_t(longest));
    std::vector<int> all;
    auto append = [&](const std::vector<int>& more) { all.insert(all.end(), more.begin(), more.end()); };
    if (!o.text.empty()) {
        TRY(check_tokenizer(m));
        TextLines file = TRY(open_text(o));
        for (bool more = true; more && all.size() < MOST;) {
            const std::vector<Line> lines = TRY(file.next(1 << 20));
            for (const Line& line : lines) append(m.tokenizer.encode(line.text + "\n", o.special == "token"));
            more = !lines.empty();
        }
    } else if (!o.data.empty()) {
        const int S = std::min(256, longest);
        Loader loader = TRY(open_shards(m, o.model_options, {.pattern = o.data, .raw_u16 = o.raw_u16, .B = 1, .S = S}));
        std::vector<int> tokens(static_cast<size_t>(S)), targets(tokens);
        for (int64_t n = 0; n < loader.samples() && all.size() < MOST; n++) {
            TRY(loader.next(tokens.data(), targets.data()));
            append(tokens);
        }
    }
    return all;
}
Status eval_needle(const EvalOptions& o) {
    LoadedModel m;
    TRY(load_model(m, o.model_options, o.device, true, [&](const Config& c, bool gpu) {
        const int longest = sequence_length(o.model_options, c, o.seq_len), rows = saturating_rows(gpu);
        return Capacity{o.batch, c.mask_kind == MaskKind::causal ? std::clamp(rows / o.batch, 1, longest) : longest};
    }));
    TRY(check_length(o.model_options, m.model->c, o.seq_len));
    TRY(check_generative(m));
    NeedleOptions n = o.needles;
    n.longest = sequence_length(o.model_options, m.model->c, o.seq_len);
    n.batch = o.batch;
    n.choices = ordinary_tokens(m.tokenizer, m.model->c.V);
    n.begin = beginning_of_text(m);
    n.haystack = TRY(haystack(o, m, n.longest));
    auto found = [&] {
        Countdown countdown{"needle"};
        return find_needles(*m.model, n, std::ref(countdown));
    };
    const std::vector<NeedleCell> cells = TRY(found());
    if (o.json) needle_json(cells).print();
    else print_needles(cells);
    if (!o.csv.empty()) TRY(write_needle_csv(o.csv, cells));
    if (!o.picture.empty()) TRY(write_needle_picture(o.picture, cells));
    double all = 0;
    for (const NeedleCell& cell : cells) all += cell.logprob;
    return check_loss(m, all);
}
// Loss, and the likeliest text of each source against its target.
Status eval_pairs(EvalOptions o) {
    LoadedModel m;
    o.model_options.gives_source = true;
    TRY(load_model(m, o.model_options, o.device, true, [&](const Config& c, bool) {
        const int S = o.seq_len ? o.seq_len : c.default_length();
        return Capacity{.B = o.batch ? o.batch : 8, .S = S, .source = o.source_len ? o.source_len : S};
    }));
    TRY(check_length(o.model_options, m.model->c, o.seq_len));
    TRY(check_tokenizer(m));
    Model& g = *m.model;
    if (o.source_len > g.c.T)
        return fail(Exit::usage, "--source-len %d: the model's context has %d positions", o.source_len, g.c.T);
    const int S = g.plan.S, source_S = g.plan.source, pad = std::max(0, m.tokenizer.vocabulary().pad);
    const auto file = TRY(PairsFile::read({.pattern = o.pairs,
                                           .flag = "--pairs",
                                           .target_texts = true,
                                           .source_S = source_S,
                                           .S = S,
                                           .vocab = g.c.V,
                                           .pad = pad},
                                          m.tokenizer));
    if (!file->note().empty()) Progress().note("note: --pairs: " + file->items() + file->note());
    const Seq2Seq seq2seq =
        TRY(Seq2Seq::make({.source_S = source_S, .S = S, .start = g.c.decoder_start, .pad = pad}, m.tokenizer));
    const double start = now_seconds();
    Loader loader = TRY(Loader::open(
        file, {.B = g.plan.B, .S = seq2seq.width(), .vocab = g.c.V, .shuffle = false, .group = Seq2Seq::GROUP}));
    const Evaluation e =
        TRY(evaluate(g, loader, m.tokenizer, g.plan.B, seq2seq.width(), {}, nullptr, upload_pairs(g, seq2seq)));
    const std::vector<std::string>& references = file->target_texts;
    GenerationOptions options;
    for (int64_t i = 0; i < file->samples(); i++) {
        options.prompts.push_back({g.c.decoder_start});
        options.sources.push_back(file->pair(i).source);
    }
    options.tokens = S - 1;
    options.batch = g.plan.B;
    options.sampling.temperature = 0;
    Countdown countdown = {"eval", "pairs"};
    options.progress = std::ref(countdown);
    const std::vector<std::string> texts = TRY(generate(g, m.tokenizer, options)).texts;
    countdown.progress.clear();
    const BleuScore score = bleu(texts, references, o.lowercase);
    if (o.json)
        Json::object("loss", e.loss, "perplexity", std::exp(e.loss), "targets", e.tokens, "pairs", file->samples(),
                     "bleu", score.score, "exact_match", exact_match(texts, references), "signature",
                     bleu_signature(o.lowercase))
            .print();
    else
        printf("loss %.4f  perplexity %.2f  exact match %.4f  %s\n", e.loss, std::exp(e.loss),
               exact_match(texts, references), bleu_text(score).c_str());
    fprintf(stderr, "%s for %s (%s)\n", human_time(now_seconds() - start).c_str(),
            counted(file->samples(), "pair").c_str(), m.device.c_str());
    return check_loss(m, e.loss);
}
Status eval_labels(EvalOptions o) {
    const LabelledFile file = TRY(read_labels(o.labels));
    LoadedModel m;
    o.model_options.head = HeadUse::classes;
    TRY(load_model(m, o.model_options, o.device, true, [&](const Config& c, bool) {
        return Capacity{o.batch, sequence_length(o.model_options, c, o.seq_len), true};
    }));
    TRY(check_length(o.model_options, m.model->c, o.seq_len));
    TRY(check_tokenizer(m));
    const Config& c = m.model->c;
    const double start = now_seconds();
    const LabelScores s = score_labels(*m.model, TRY(encode_labels(file, c, m.tokenizer, m.model->plan.S)));
    if (o.json) {
        Json found = Json::object("loss", s.loss, "targets", s.targets);
        set_scores(found, s, c);
        found.print();
    } else printf("loss %.4f  %s  targets %lld\n", s.loss, scores_text(s, c).c_str(), (long long)s.targets);
    fprintf(stderr, "%s, %s (%s)\n", human_time(now_seconds() - start).c_str(),
            counted(int64_t(file.lines.size()), "text").c_str(), m.device.c_str());
    return check_loss(m, s.loss);
}
Status eval_tasks(const EvalOptions& o) {
    TaskFlags flags = o.tasks;
    flags.json = o.json;
    flags.batch = was_given(o.given, "--batch") ? o.batch : 0;
    TRY(check_tasks(flags));
    LoadedModel m;
    auto context = [&](const Config& c) {
        const int longest = longest_context(o.model_options, c);
        return o.seq_len ? std::min(longest, o.seq_len) : longest;
    };
    TRY(load_model(m, o.model_options, o.device, true,
                   [&](const Config& c, bool gpu) { return task_capacity(c, gpu, context(c)); }));
    TRY(check_length(o.model_options, m.model->c, o.seq_len));
    flags.context = context(m.model->c);
    const double start = now_seconds();
    TRY(eval_tasks(m, flags));
    fprintf(stderr, "%s (%s)\n", human_time(now_seconds() - start).c_str(), m.device.c_str());
    return {};
}
}    // namespace

Status eval(const EvalOptions& o) {
    TRY(check_files(o));
    if (!o.tasks.tasks.empty()) return eval_tasks(o);
    if (o.needle) return eval_needle(o);
    if (!o.labels.empty()) return eval_labels(o);
    if (!o.pairs.empty()) return eval_pairs(o);
    LoadedModel m;
    ModelOptions model_options = o.model_options;
    model_options.head = HeadUse::shards;
    TRY(load_model(m, model_options, o.device, true, [&](const Config& c, bool) {
        return Capacity{o.batch, sequence_length(o.model_options, c, o.seq_len), o.documents};
    }));
    TRY(check_length(o.model_options, m.model->c, o.seq_len));
    const Objective objective =
        TRY(objective_of(m.model->c, m.tokenizer, o.documents, o.mask_fraction, Objective{}.seed));
    const double start = now_seconds();
    LossByPosition positions(m.model->plan.S);
    const Evaluation e = TRY(o.text.empty() ? eval_shards(o, m, objective, positions) : eval_texts(o, m, objective));
    TRY(check_measured(o, e));
    const std::vector<PositionBin> bins = o.by_position ? positions.bins() : std::vector<PositionBin>{};
    TRY(print_evaluation(o, m, e, bins, now_seconds() - start));
    if (!o.csv.empty()) TRY(write_positions_csv(o.csv, bins));
    if (!o.picture.empty()) TRY(write_positions_picture(o.picture, bins));
    return check_loss(m, e.loss);
}
