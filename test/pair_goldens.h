// pair_goldens.h - tiny encoder-decoders with transformers' results (dev/golden_pairs.py). Include
// it after doctest.
#pragma once
#include "family_goldens.h"

struct PairGolden : Golden {
    static constexpr int NS = 17, LENGTH = 12;    // positions of a source, of a target
    explicit PairGolden(const std::string& name) : Golden("pairs/" + name) {}
    Plan plan(RunMode mode) const { return {.mode = mode, .B = B, .S = LENGTH, .source = NS}; }
    void run(Model& g, bool training) const {
        std::vector<int> target = tokens("target");
        for (int& t : target) t = t == -100 ? -1 : t;
        g.upload_pairs(tokens("source").data(), tokens("lengths").data(), NS, tokens().data(), target.data(), B,
                       LENGTH);
        g.forward(training);
    }
    void check_learning(Model& g, double tolerance, Recompute recompute = Recompute::none) const {
        Plan train = plan(RunMode::train);
        train.recompute = recompute;
        load(g, train);
        g.train.begin();
        run(g, true);
        std::vector<float> found(size_t(B * LENGTH * c.V));
        compute_logits_of_all(g, found);
        CHECK(relative_error(found.data(), expected.at("logits").data(), int64_t(found.size())) < tolerance);
        run(g, true);    // logits overwrite activations
        g.loss(true, 1 / float(g.pass.targets));
        g.backward();
        CHECK(g.mean_loss() == doctest::Approx(double(expected.at("loss")[0])).epsilon(tolerance));
        size_t compared = 0;
        for (const auto& [name, ours] : in_files(g, StateKind::gradients)) {
            CAPTURE(name);
            if (name == "final_logits_bias") continue;    // transformers does not train it
            const auto theirs = expected.find("grad." + name);
            REQUIRE(theirs != expected.end());
            REQUIRE(ours.size() == theirs->second.size());
            std::vector<float> mine = ours, exact = theirs->second;
            // transformers adds no gradients to the row of the padding token, Marian's start token.
            if (c.family->type == std::string("marian") && name == "model.shared.weight")
                for (int i = 0; i < c.C; i++)
                    mine[size_t(c.decoder_start * c.C + i)] = exact[size_t(c.decoder_start * c.C + i)] = 0;
            double size = 0;
            for (float x : exact) size = std::max(size, std::fabs(double(x)));
            if (size > 1e-6)    // keys' biases do not change softmax: their gradients are rounding errors
                CHECK(relative_error(mine.data(), exact.data(), int64_t(mine.size())) < 4 * tolerance);
            compared++;
        }
        CHECK(compared > 40);
    }
    void compute_logits_of_all(Model& g, std::vector<float>& to) const {
        std::vector<int> rows(size_t(B * LENGTH));
        for (size_t i = 0; i < rows.size(); i++) rows[i] = int(i);
        compute_logits(g, whole_batch(g), to.data(), rows);
    }
};
