// test_optimizers.cpp - optimizers as table rows, from which steps, memory and files follow.
#include <cstring>
#include <set>

#include "test.h"
#include "toy_checkpoint.h"
#include "toy_model.h"
#include "toy_optimizers.h"

namespace {
const Config TOY = {.V = 37, .T = 9, .L = 2, .NH = 2, .C = 12, .F = 20};
const OptimizerParams PARAMS = {.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-6f, .weight_decay = 0.1f};

// A model whose gradients are set, not computed.
struct Toy {
    Model g{reference_ops()};
    std::vector<double> gradients;
    explicit Toy(const Optimizer& o) {
        toy_model(g, TOY, {.mode = RunMode::train, .B = 1, .S = 4, .optimizer = &o});
        gradients.resize(size_t(g.store.flat));
    }
    double* params() { return typed<double>(g, g.store.params); }
    const float* state(size_t i) const { return reinterpret_cast<const float*>(g.store.states[i]); }
    Step step(uint64_t seed, Limits limits = {}) {
        g.train.begin();
        for (size_t i = 0; i < gradients.size(); i++) gradients[i] = double(philox_normal(seed, 1, i));
        std::copy(gradients.begin(), gradients.end(), typed<double>(g, g.store.grads));
        g.train.update(PARAMS, limits, 1);
        return g.train.finish();
    }
};
}    // namespace

TEST_CASE("optimizers: signSGD with momentum moves every weight by the rate, and decays matrices") {
    Toy toy(SIGN_SGD);
    const int64_t n = toy.g.store.flat;
    std::vector<double> w(toy.params(), toy.params() + n), momentum(static_cast<size_t>(n));
    for (uint64_t seed : {1, 2, 3}) {
        toy.step(seed);
        for (const Tensor& t : toy.g.tensors)
            for (int64_t i = t.offset; i < t.offset + t.size(); i++) {
                double& m = momentum[size_t(i)];
                m = float(double(PARAMS.beta1) * m + double(1 - PARAMS.beta1) * toy.gradients[size_t(i)]);
                w[size_t(i)] -= double(PARAMS.lr) * ((m > 0 ? 1 : -1) + (t.decay ? 0.1 * w[size_t(i)] : 0));
                REQUIRE(toy.params()[i] == doctest::Approx(w[size_t(i)]).epsilon(1e-7));
                REQUIRE(toy.state(0)[i] == doctest::Approx(m).epsilon(1e-6));
            }
    }
}

TEST_CASE("optimizers: whole matrices are transformed, each with its own rows' states; vectors are not") {
    Toy toy(NORMED_ROWS);
    const std::vector<double> before(toy.params(), toy.params() + toy.g.store.flat);
    toy.step(1);
    size_t matrices = 0;
    for (const Tensor& t : toy.g.tensors) {
        double square = 0, expected = 0;
        for (int64_t i = t.offset; i < t.offset + t.size(); i++) {
            const double old = before[size_t(i)], decay = t.decay ? 0.1 * old : 0;
            const double moved = (old - toy.params()[i]) / double(PARAMS.lr) - decay;
            square += moved * moved;
            expected += std::pow(double(1 - PARAMS.beta1) * toy.gradients[size_t(i)], 2);
        }
        const bool is_matrix = !t.vector && t.bucket > 0;
        matrices += is_matrix;
        CAPTURE(t.name);
        CHECK(std::sqrt(square) == doctest::Approx(is_matrix ? 1 : std::sqrt(expected)).epsilon(1e-3));
    }
    CHECK(matrices == 2 * 4);
    const std::vector<Tensor> rows = state_tensors(toy.g.tensors, StateSize::row);
    CHECK(rows.size() == matrices);
    for (const Tensor& t : rows)
        for (int64_t i = t.offset; i < t.offset + t.rows; i++) CHECK(toy.state(1)[i] > 0);
    CHECK(toy.g.store.state_elements(1) >= 2 * (3 * 12 + 12 + 20 + 12));
}

TEST_CASE("optimizers: a step over its limits changes neither weights nor states") {
    for (const Optimizer* o : {&ADAMW, &SIGN_SGD, &NORMED_ROWS}) {
        Toy toy(*o);
        toy.step(1);
        const std::vector<double> w(toy.params(), toy.params() + toy.g.store.flat);
        std::vector<std::vector<float>> states;
        for (size_t i = 0; i < o->states.size(); i++)
            states.emplace_back(toy.state(i), toy.state(i) + toy.g.store.state_elements(i));
        CHECK(toy.step(2, {.norm = 1e-3}).skipped == 1);
        CHECK(std::equal(w.begin(), w.end(), toy.params()));
        for (size_t i = 0; i < states.size(); i++) CHECK(std::equal(states[i].begin(), states[i].end(), toy.state(i)));
    }
}

TEST_CASE("optimizers: memory is that of the row's states") {
    const Config c = {.V = 999, .T = 64, .L = 4, .NH = 4, .C = 256, .F = 1024};
    auto bytes = [&](const Optimizer& o) {
        Model g(cpu_ops<float>());
        REQUIRE(g.allocate(c, {.mode = RunMode::train, .B = 1, .S = 16, .optimizer = &o}).ok());
        for (const MemoryRow& r : g.memory)
            if (!strcmp(r.purpose, "optimizer state")) return double(r.bytes);
        return 0.0;
    };
    const double P = double(config_flat_size(c));
    CHECK(bytes(ADAMW) == doctest::Approx(8 * P + P / 64).epsilon(1e-3));
    CHECK(bytes(SIGN_SGD) == doctest::Approx(4 * P + P / 64).epsilon(1e-3));
    const double rows = 4 * (3 * 256 + 256 + 1024 + 256);
    CHECK(bytes(NORMED_ROWS) - bytes(SIGN_SGD) == doctest::Approx(4 * rows).epsilon(0.1));
}

TEST_CASE("optimizers: a checkpoint holds the row's states by name, and another optimizer refuses them") {
    Toy toy(SIGN_SGD);
    toy.step(1);
    const std::string run = temporary_directory();
    REQUIRE(checkpoint_write(run, toy.g, Tokenizer(), toy_state(1, 1)).ok());
    const std::string dir = checkpoint_list(run).back();
    Toy again(SIGN_SGD);
    REQUIRE(checkpoint_optimizer(dir, again.g).ok());
    for (const Tensor& t : again.g.tensors)
        CHECK(std::equal(toy.state(0) + t.offset, toy.state(0) + t.offset + t.file_rows * t.cols,
                         again.state(0) + t.offset));
    Toy other(ADAMW);
    const Status refused = checkpoint_optimizer(dir, other.g);
    CHECK(refused.code == Exit::input);
    CHECK(refused.message.find("\"m.") != std::string::npos);
}

TEST_CASE("optimizers: rows have unique names, and state names that files can hold") {
    std::set<std::string> names;
    for (const Optimizer* o : optimizers()) {
        CHECK(names.insert(o->name).second);
        CHECK(!o->matrix == !o->direction);
        std::set<std::string> states;
        for (const OptimizerState& s : o->states) {
            CHECK(states.insert(s.name).second);
            CHECK(std::string(s.name).find('.') == std::string::npos);
        }
    }
    CHECK(names.count("adamw"));
}
