// test_prefer.cpp - losses on preferences, their gradients; lines of pairs; the reference's file.
#include "train/preference.h"

#include "files/json_write.h"
#include "test.h"
#include "train/pairs.h"
#include "train/reference.h"

#include "model_checks.h"

namespace {
PreferenceParams params_of(const PreferenceRow& row, double smoothing = 0) { return {row.beta, smoothing, 0.7}; }

std::string error_of(const std::string& line) {
    const Result<PairLine> pair = pair_parse(line, "f.jsonl:7");
    if (pair.ok()) return "";
    CHECK(pair.status.code == Exit::input);
    CHECK_MESSAGE(pair.status.message.starts_with("f.jsonl:7: "), pair.status.message);
    return pair.status.message.substr(strlen("f.jsonl:7: "));
}
PairLine parsed(const std::string& line) {
    const Result<PairLine> pair = pair_parse(line, "f:1");
    REQUIRE_MESSAGE(pair.ok(), pair.status.message);
    return pair.value;
}
Tokenizer chatml_bytes() {
    return Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
}
std::shared_ptr<const Pairs> read(const std::string& text, PairOptions o, Status* error = nullptr,
                                  bool with_template = true) {
    const std::string dir = temporary_directory();
    write_file(dir + "/p.jsonl", text);
    const Tokenizer tokenizer = chatml_bytes();
    const ChatFormat format = chat_format("", "chatml", tokenizer).take();
    const ChatEncoder encoder(tokenizer, ChatTemplate::parse(format.chat_template).take(), format,
                              ChatEncoder::TRAINING_DATE);
    o.pattern = dir + "/p.jsonl";
    o.flag = "--prefer";
    o.vocab = tokenizer.vocab_size();
    const Result<std::shared_ptr<Pairs>> all = Pairs::read(o, tokenizer, with_template ? &encoder : nullptr);
    if (error) *error = all.status;
    else REQUIRE_MESSAGE(all.ok(), all.status.message);
    return all.value;
}
std::string texts(const std::string& prompt, const std::string& chosen, const std::string& rejected) {
    return Json::object("prompt", prompt, "chosen", chosen, "rejected", rejected).text() + "\n";
}

// Pairs of sequences of random tokens; the answers begin behind a prompt of three.
struct ToyPairs {
    static constexpr int B = 4, S = 7;
    std::vector<int> in, out;
    std::vector<AnswerScore> reference;
    explicit ToyPairs(const Config& c) : in(toy_tokens(B * S, c.V, 1)), out(toy_tokens(B * S, c.V, 2)) {
        for (int b = 0; b < B; b++) {
            for (int s : {0, 1, b == 1 ? 6 : 2}) out[size_t(b * S + s)] = -1;
            // Above the answers' scores, so that kto-paired's estimates of the KL are 0.
            reference.push_back({0, -0.5 - 0.2 * b, 0});
        }
    }
    // The mean loss of the pairs whose answers have these log-probabilities of each token.
    double loss(const PreferenceRow& row, const PreferenceParams& p, const std::vector<double>& logps,
                std::vector<float>* weights = nullptr, std::vector<float>* terms = nullptr) const {
        std::vector<AnswerScore> answers = reference;
        for (int n = 0; n < B * S; n++) {
            answers[size_t(n / S)].score += out[size_t(n)] < 0 ? 0 : logps[size_t(n)];
            answers[size_t(n / S)].tokens += out[size_t(n)] >= 0;
        }
        double sum = 0;
        for (size_t k = 0; k < B; k += 2) {
            for (size_t i : {k, k + 1}) answers[i].reference *= row.reference;
            const PairLoss pair = pair_loss(row, p, answers[k], answers[k + 1]);
            sum += pair.terms.loss;
            if (!weights) continue;
            terms->push_back(float(pair.terms.loss));
            weights->insert(weights->end(), S, float(-pair.terms.dchosen));
            weights->insert(weights->end(), S, float(-pair.terms.drejected));
        }
        return sum / (B / 2);
    }
};
std::vector<double> logps_in_double(Model& g, const ToyPairs& pairs) {
    const int N = ToyPairs::B * ToyPairs::S;
    g.train.begin();
    g.batch.upload(pairs.in.data(), pairs.out.data(), ToyPairs::B, ToyPairs::S);
    g.forward(true);
    g.loss(false, 0);
    REQUIRE(g.head_rows >= N);
    const Logits how = g.c.logits_of();
    std::vector<double> all(static_cast<size_t>(N));
    for (int n = 0; n < N; n++) {
        const double* l = typed<double>(g, g.head) + n * g.c.Vp();
        auto logit = [&](int v) {
            const double x = double(how.scale) * l[v], cap = double(how.cap);
            return cap != 0 ? cap * std::tanh(x / cap) : x;
        };
        double z = 0;
        for (int v = 0; v < g.c.V; v++) z += std::exp(logit(v));
        if (pairs.out[size_t(n)] >= 0) all[size_t(n)] = logit(pairs.out[size_t(n)]) - std::log(z);
    }
    return all;
}
// Compares the derivative along a random direction of each tensor with central differences.
void check_direction(Model& g, const ToyPairs& pairs, const PreferenceRow& row, double smoothing) {
    const PreferenceParams p = params_of(row, smoothing);
    auto loss = [&] {
        const double mean = pairs.loss(row, p, logps_in_double(g, pairs));
        return mean + routing_loss(g);
    };
    std::vector<float> weights, terms;
    const double mean = pairs.loss(row, p, logps_in_double(g, pairs), &weights, &terms);
    g.weighted_loss(weights.data(), terms.data(), int(terms.size()), float(2.0 / ToyPairs::B));
    g.backward();
    double sum;
    g.op.download(&sum, g.step.loss, sizeof sum);
    CHECK(sum / (ToyPairs::B / 2) == doctest::Approx(mean).epsilon(1e-6));
    double *w = typed<double>(g, g.store.params), *dw = typed<double>(g, g.store.grads);
    const std::vector<double> grad(dw, dw + g.store.flat);
    for (const Tensor& t : g.tensors) {
        const int64_t n = t.file_rows * t.cols;
        double analytic = 0, size = 0;
        std::vector<double> saved(w + t.offset, w + t.offset + n), d(static_cast<size_t>(n));
        for (int64_t k = 0; k < n; k++) {
            d[size_t(k)] = double(philox_normal(11, uint64_t(t.offset), uint64_t(k)));
            analytic += d[size_t(k)] * grad[size_t(t.offset + k)];
            size += std::pow(grad[size_t(t.offset + k)], 2);
        }
        double ends[2];
        for (int i : {0, 1}) {
            for (int64_t k = 0; k < n; k++) w[t.offset + k] = saved[size_t(k)] + (i ? -1e-6 : 1e-6) * d[size_t(k)];
            ends[i] = loss();
        }
        std::copy(saved.begin(), saved.end(), w + t.offset);
        const double numeric = (ends[0] - ends[1]) / 2e-6;
        INFO(std::string(row.name) << ", tensor at " << t.offset << ": " << analytic << " and " << numeric);
        CHECK(std::fabs(analytic - numeric) < 1e-4 * std::max(std::sqrt(size), 1e-2));
    }
}
}    // namespace

TEST_CASE("prefer: derivatives of every loss by both scores equal central differences") {
    // Log-probabilities less the reference's, with all signs.
    for (const PreferenceRow& row : PREFERENCES)
        for (double smoothing : {0.0, 0.3})
            for (auto [c, r] : {std::pair{-2.0, -0.5}, {1.0, -21.5}, {6.5, 5.5}, {-390.0, 8.25}}) {
                CAPTURE(std::string(row.name));
                const PreferenceParams p = params_of(row, smoothing);
                const double of_chosen = row.reference ? -10 : -24, of_rejected = row.reference ? -8.5 : -24;
                const double by_chosen = row.normalises ? 7 : 1, by_rejected = row.normalises ? 4 : 1;
                auto at = [&](double dc, double dr) {
                    return pair_loss(row, p, {c + of_chosen + dc, row.reference ? of_chosen : 0, 7},
                                     {r + of_rejected + dr, row.reference ? of_rejected : 0, 4});
                };
                auto loss = [&](double dc, double dr) {
                    if (row.name != std::string("kto-paired")) return at(dc, dr).terms.loss;
                    // The estimates of the KL, max(0, ...), are constants.
                    auto s = [](double x) { return 1 / (1 + std::exp(-x)); };
                    return (2 - s(p.beta * (c + dc - std::max(0.0, r))) - s(p.beta * (std::max(0.0, c) - r - dr))) / 2;
                };
                const double h = 1e-5;
                const PairLoss pair = at(0, 0);
                CHECK(pair.terms.loss == doctest::Approx(loss(0, 0)));
                auto same = [](double a, double b) { return std::fabs(a - b) < 1e-6 * std::max(1e-3, std::fabs(b)); };
                CHECK(same(pair.terms.dchosen, (loss(h, 0) - loss(-h, 0)) / (2 * h)));
                CHECK(same(pair.terms.drejected, (loss(0, h) - loss(0, -h)) / (2 * h)));
                // Rewards with a reference are of whole answers.
                const double unit_chosen = row.reference ? 1 : by_chosen,
                             unit_rejected = row.reference ? 1 : by_rejected;
                const double base = row.reference ? 0 : -24;
                CHECK(pair.reward_chosen == doctest::Approx(p.beta * (c + base) / unit_chosen));
                CHECK(pair.reward_rejected == doctest::Approx(p.beta * (r + base) / unit_rejected));
                CHECK(pair.logp_chosen == doctest::Approx((c + of_chosen) / unit_chosen));
                CHECK(pair.logp_rejected == doctest::Approx((r + of_rejected) / unit_rejected));
            }
}

TEST_CASE("prefer: losses by hand, and at the ends of their ranges") {
    auto loss = [](const char* name, double c, double r, PreferenceParams p) {
        return preference_named(name).terms(c, r, p).loss;
    };
    CHECK(loss("dpo", 3, 1, {0.5, 0, 0}) == doctest::Approx(std::log1p(std::exp(-1.0))));
    CHECK(loss("dpo", 3, 1, {0.5, 0.25, 0}) == doctest::Approx(std::log1p(std::exp(-1.0)) + 0.25));
    CHECK(loss("dpo", -4000, 4000, {1, 0, 0}) == 8000);
    CHECK(loss("ipo", 3, 1, {0.5, 0, 0}) == doctest::Approx(1));
    CHECK(loss("kto-paired", 0, 0, {1, 0, 0}) == doctest::Approx(0.5));
    CHECK(loss("simpo", -1, -2, {2, 0, 2}) == doctest::Approx(std::log(2)));
    // Probabilities of 1/2 and 1/3: odds of 1 and 1/2.
    CHECK(loss("orpo", -std::log(2), -std::log(3), {0.5, 0, 0}) == doctest::Approx(std::log(2) + 0.5 * std::log(1.5)));
    for (const PreferenceRow& row : PREFERENCES)
        for (auto [c, r] : {std::pair{0.0, 0.0}, {0.0, -5000.0}, {-5000.0, 0.0}, {-1e-12, -1e-12}}) {
            const PairTerms t = row.terms(c, r, params_of(row));
            CHECK((std::isfinite(t.loss) && std::isfinite(t.dchosen) && std::isfinite(t.drejected)));
        }
}

TEST_CASE("prefer: gradients of every loss and kind of model equal central differences") {
    for (const Config& base : {TOY, GROUPED}) {
        std::vector<Kind> kinds = kind_configs(base);
        kinds.push_back({"plain", base});
        for (const Kind& kind : kinds) {
            CAPTURE(std::string(kind.name));
            const ToyPairs pairs(kind.c);
            Model g(reference_ops());
            toy_model(g, kind.c,
                      {.mode = RunMode::train,
                       .B = ToyPairs::B,
                       .S = ToyPairs::S,
                       .balance = 0.3f,
                       .router_z_loss = 0.05f,
                       .weighted = true});
            for (const PreferenceRow& row : PREFERENCES)
                check_direction(g, pairs, row, row.name == std::string("dpo") ? 0.2 : 0);
        }
    }
}

TEST_CASE("prefer: lines of texts and of messages") {
    const PairLine text = parsed(texts("Once", " upon", " more"));
    CHECK((text.prompt == "Once" && text.chosen == " upon" && text.rejected == " more"));
    CHECK(text.chosen_chat.messages.empty());
    const std::string q = R"({"role": "user", "content": "q"})", a = R"({"role": "assistant", "content": "a"})",
                      b = R"({"role": "assistant", "content": "b"})";
    auto line = [](const std::string& prompt, const std::string& chosen, const std::string& rejected) {
        return "{" + (prompt.empty() ? "" : "\"prompt\": " + prompt + ", ") + "\"chosen\": [" + chosen +
               "], \"rejected\": [" + rejected + "]}";
    };
    const std::vector<ChatMessage> chosen = {{"user", "q"}, {"assistant", "a"}};
    for (const std::string& same :
         {line("[" + q + "]", a, b), line("", q + "," + a, q + "," + b), line("\"q\"", q + "," + a, q + "," + b),
          line("[" + q + "]", q + "," + a, q + "," + b), line("null", q + "," + a, q + "," + b)}) {
        const PairLine pair = parsed(same);
        CHECK(pair.chosen_chat.messages == chosen);
        CHECK(pair.rejected_chat.messages.back().content == "b");
        CHECK((pair.chosen_chat.first == 1 && pair.rejected_chat.first == 1));
    }
    // Two equal conversations are one prompt with the same answer.
    CHECK(parsed(line("", q + "," + a, q + "," + a)).chosen_chat.first == 1);
    // The prompt is what both begin with, also after an answer.
    CHECK(parsed(line("", q + "," + a + "," + q + "," + a, q + "," + a + "," + q + "," + b)).chosen_chat.first == 3);
    CHECK(parsed(R"({"tools": [{"z": 1}], "chosen": [)" + q + "," + a + R"(], "rejected": [)" + q + "," + b + "]}")
              .rejected_chat.tools == R"([{"z":1}])");

    CHECK(error_of("3") == "expected a JSON object");
    CHECK(
        error_of(R"({"prompt": "q", "completion": "a"})") ==
        "chosen: expected a text or a list of messages, found nothing; the line's fields: \"prompt\", \"completion\"");
    CHECK(contains(error_of(R"({"prompt": "q", "chosen": "a", "rejected": 3})"),
                   "rejected: expected a text or a list of messages, found 3"));
    CHECK(error_of(R"({"chosen": "a", "rejected": "b"})") == "prompt: expected a string, found nothing");
    CHECK(error_of(texts("q", " \n", "b")) == "chosen: expected an answer, found none");
    CHECK(error_of(texts("q", "a", "")) == "rejected: expected an answer, found none");
    CHECK(contains(error_of(R"({"chosen": "a", "rejected": [)" + b + "]}"), "rejected: expected a text, as chosen"));
    CHECK(error_of(line("[" + q + "]", a, q + "," + b)) == "");
    const std::string listed = R"({"role": "user", "content": [{"type": "text", "text": "q"}]})";
    CHECK(error_of(line("[" + q + "]", a, listed + "," + b)) == "");
    CHECK(contains(error_of(line("[" + q + "]", a, R"({"role": "user", "content": "other"},)" + b)),
                   "rejected: message 1: expected an assistant's message, or the prompt's messages first, found role "
                   "\"user\""));
    CHECK(contains(error_of(line("\"other\"", q + "," + a, q + "," + b)), "prompt: expected the content of the last"));
    CHECK(contains(error_of(line("3", q + "," + a, q + "," + b)), "prompt: expected a text or a list of messages"));
    CHECK(error_of(line("", q + "," + a, q)) == "rejected: role: expected an assistant's message to learn, found none");
    CHECK(contains(error_of(line("", q + R"(,{"role": "assistant", "content": " "})", q + "," + b)),
                   "chosen: message 2: content: expected an answer, found none"));
    CHECK(contains(error_of(line("", R"({"role": "robot", "content": ""})", b)), "chosen: message 1: role: expected"));
}

TEST_CASE("prefer: a sample is both answers behind their prompt, and only the answers are targets") {
    const std::string chat =
        R"({"prompt": [{"role": "user", "content": "Q"}], "chosen": [{"role": "assistant", "content":
        "yes"}], "rejected": [{"role": "assistant", "content": "no"}]})" +
        std::string("\n");
    std::string one_line = chat;
    one_line.erase(std::remove(one_line.begin(), one_line.end() - 1, '\n'), one_line.end() - 1);
    const int S = 64;
    const auto all = read(texts("ab", "cde", "x") + one_line, {.S = S, .pad = 0});
    REQUIRE(all->samples() == 2);
    const Tokenizer tokenizer = chatml_bytes();
    std::vector<int> tokens(2 * S), targets(2 * S);
    std::vector<Text> parts;
    auto learnt = [&](int row) {
        std::vector<int> ids;
        for (int s = 0; s < S; s++)
            if (targets[size_t(row * S + s)] >= 0) ids.push_back(targets[size_t(row * S + s)]);
        return tokenizer.decode(ids);
    };
    REQUIRE(all->read(0, tokens.data(), targets.data(), &parts).ok());
    CHECK(tokenizer.decode({tokens.begin(), tokens.begin() + 5}) == "abcde");
    CHECK(tokenizer.decode({tokens.begin() + S, tokens.begin() + S + 3}) == "abx");
    CHECK((learnt(0) == "cde<|endoftext|>" && learnt(1) == "x<|endoftext|>"));
    CHECK((targets[1] == tokens[2] && targets[0] == -1));
    CHECK(all->targets(0) == 4 + 2);
    REQUIRE(all->read(1, tokens.data(), targets.data(), &parts).ok());
    CHECK((learnt(0) == "yes<|im_end|>\n" && learnt(1) == "no<|im_end|>\n"));
    // The fingerprint depends on tokens, targets and length.
    const uint64_t before = all->fingerprint();
    CHECK(read(texts("ab", "cde", "y") + one_line, {.S = S})->fingerprint() != before);
    CHECK(read(texts("ab", "cde", "cx"), {.S = S})->fingerprint() !=
          read(texts("abc", "de", "x"), {.S = S})->fingerprint());
    CHECK(read(texts("ab", "cde", "x") + one_line, {.S = S + 1})->fingerprint() != before);
    Status error;
    read(texts("ab", "cde", "x") + one_line, {.S = S}, &error, false);
    CHECK(error.code == Exit::input);
    CHECK(contains(error.message, "p.jsonl:2: chosen: messages need a chat template"));
}

TEST_CASE("prefer: what is too long is cut or left out, equal answers are left out, and all is counted") {
    const std::string text = texts("prompt", "a", "b") + texts("a longer prompt", "a", "b") +
                             texts("prompt", "answer one", "answer two") + texts("prompt", "a", "a");
    for (const bool drop : {false, true}) {
        const auto all = read(text, {.drop = drop, .S = 12});
        const Pairs::Counts& n = all->counts;
        CHECK(n.lines == 4);
        CHECK(n.equal == (drop ? 1 : 2));    // cut, "answer one" and "answer two" are the same
        CHECK(all->samples() == 1);
        CHECK(n.cut == (drop ? 0 : 4));
        CHECK(n.dropped == (drop ? 2 : 0));
        CHECK(n.untrained == (drop ? 0 : 1));
        CHECK(contains(all->note(), drop ? "; 1 pair left out, as both" : "; 2 pairs left out, as both answers are"));
    }
    const auto whole = read(text, {.S = 100});
    CHECK(whole->samples() == 3);
    CHECK(whole->longest() == 16);
    CHECK(whole->note() == "; 1 pair left out, as both answers are the same");
    Status error;
    read(texts("prompt", "a", "a"), {.S = 100}, &error);
    CHECK(contains(error.message, "expected pairs of answers, found 1 line; 1 pair left out"));
}

TEST_CASE("prefer: the reference's file is read back, and each damaged byte is found") {
    const std::string path = temporary_directory() + "/reference.bin";
    const ReferenceScores scores = {7, 9, {-1.5, -2.25, -1e-300, -7}, {-3, -4}};
    REQUIRE(reference_write(path, scores).ok());
    const ReferenceScores again = reference_read(path).take();
    CHECK((again.data == 7 && again.validation == 9));
    CHECK((again.of_data == scores.of_data && again.of_validation == scores.of_validation));
    const std::string bytes = read_file(path);
    for (size_t i = 0; i < bytes.size(); i++) {
        std::string damaged = bytes;
        damaged[i] = char(damaged[i] ^ 4);
        write_file(path, damaged);
        const Status s = reference_read(path).status;
        CHECK(s.code == Exit::input);
        CHECK(contains(s.message, path));
    }
    for (size_t n = 0; n < bytes.size(); n++) {
        write_file(path, bytes.substr(0, n));
        CHECK(reference_read(path).status.code == Exit::input);
    }
}
