// test_optimizers.cpp - optimizers as table rows, from which steps, memory and files follow.
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "test.h"
#include "checkpoint/reader.h"
#include "family_goldens.h"
#include "toy_checkpoint.h"
#include "toy_model.h"

namespace {
const Config TOY = {.V = 37, .T = 9, .L = 2, .NH = 2, .C = 12, .F = 20};
const OptimizerParams PARAMS = {
    .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-6f, .weight_decay = 0.1f, .momentum = 0.8f};

// A model whose gradients are set, not computed.
struct Toy {
    Model g{reference_ops()};
    std::vector<double> gradients;
    explicit Toy(const Optimizer& o, Plan plan = {}) {
        plan.mode = RunMode::train;
        plan.S = 4;
        plan.optimizer = &o;
        toy_model(g, TOY, plan);
        gradients.resize(size_t(g.store.flat));
    }
    double* params() { return typed<double>(g, g.store.params); }
    const float* state(size_t i) const { return static_cast<const float*>(g.store.states[i].p); }
    Step step(uint64_t seed, Limits limits = {}, OptimizerParams params = PARAMS) {
        g.train.begin();
        for (size_t i = 0; i < gradients.size(); i++) gradients[i] = double(philox_normal(seed, 1, i));
        std::copy(gradients.begin(), gradients.end(), typed<double>(g, g.store.grads));
        g.train.update(params, limits, 1);
        return g.train.finish();
    }
};
}    // namespace

TEST_CASE("optimizers: Signum moves every weight by the rate, and decays matrices; Lion looks ahead") {
    for (const Optimizer* o : {&SIGNUM, &LION}) {
        Toy toy(*o);
        const int64_t n = toy.g.store.flat;
        std::vector<double> w(toy.params(), toy.params() + n), momentum(static_cast<size_t>(n));
        for (uint64_t seed : {1, 2, 3}) {
            toy.step(seed);
            for (const Tensor& t : toy.g.tensors)
                for (int64_t i = t.offset; i < t.offset + t.size(); i++) {
                    const double g = toy.gradients[size_t(i)], b1 = double(PARAMS.beta1), b2 = double(PARAMS.beta2);
                    double& m = momentum[size_t(i)];
                    const double ahead = b1 * m + (1 - b1) * g;
                    m = float(o == &LION ? b2 * m + (1 - b2) * g : ahead);
                    w[size_t(i)] -= double(PARAMS.lr) * ((ahead > 0 ? 1 : -1) + (t.decay ? 0.1 * w[size_t(i)] : 0));
                    REQUIRE(toy.params()[i] == doctest::Approx(w[size_t(i)]).epsilon(1e-7));
                    REQUIRE(toy.state(0)[i] == doctest::Approx(m).epsilon(1e-6));
                }
        }
    }
}

// The numbers of dev/golden_optimizers.py: weights (step 0) or gradients of a tensor.
static double golden_number(size_t tensor, int step, int64_t i) {
    const double x = std::sin(12.9898 * double(i + 1) + 78.233 * double(tensor + 1) + 37.719 * step) * 43758.5453;
    return x - std::floor(x) - 0.5;
}
template <class T> void check_golden(const Ops<T>& op, const Optimizer& o, double limit) {
    static const Arrays golden = arrays_of("test/golden/optimizers.safetensors");
    const Config c = {.V = 17, .T = 5, .L = 1, .NH = 2, .C = 12, .F = 20};
    Model g(op);
    REQUIRE(g.allocate(c, {.mode = RunMode::train, .B = 1, .S = 4, .optimizer = &o}).ok());
    T *weights = typed<T>(g, g.store.params), *gradients = typed<T>(g, g.store.grads);
    OptimizerParams params = PARAMS;
    params.momentum = 0.9f;
    for (int step = 0; step <= 20; step++) {
        g.train.begin();
        for (size_t k = 0; k < g.tensors.size(); k++) {
            const Tensor& t = g.tensors[k];
            for (int64_t i = 0; i < t.file_rows * t.cols; i++)
                (step ? gradients : weights)[t.offset + i] = T(golden_number(k, step, i));
        }
        if (step == 0) continue;
        g.train.update(params, {}, 1);
        (void)g.train.finish();
        for (const Tensor& t : g.tensors) {
            if (step > 1 && step < 20) break;
            const std::vector<float>& expected = golden.at(formatted("%s.%d.%s", o.name, step, t.name.c_str()));
            CAPTURE(o.name);
            CAPTURE(step);
            CAPTURE(t.name);
            REQUIRE(int64_t(expected.size()) == t.file_rows * t.cols);
            const std::vector<float> got(weights + t.offset, weights + t.offset + expected.size());
            CHECK(relative_error(got.data(), expected.data(), int64_t(got.size())) < limit);
        }
    }
}
TEST_CASE("optimizers: 1 and 20 steps equal those of torch.optim and of the authors' formulas") {
    for (const Optimizer* o : optimizers()) {
        check_golden(reference_ops(), *o, 1e-6);
        check_golden(cpu_ops<float>(), *o, 2e-6);
    }
}

// Checks that rows [first, first + rows) of t moved by orthonormal rows or columns, times 0.2 times
// the longer side's root and the rate. exact: their norm is that of such a matrix.
static void check_orthogonal_move(Toy& toy, const std::vector<double>& before, const Tensor& t, int64_t first,
                                  int64_t rows, bool exact) {
    std::vector<double> moved;
    double square = 0;
    for (int64_t i = t.offset + first * t.cols; i < t.offset + (first + rows) * t.cols; i++) {
        moved.push_back((before[size_t(i)] * (1 - 0.1 * double(PARAMS.lr)) - toy.params()[i]) / double(PARAMS.lr) /
                        0.2);
        square += moved.back() * moved.back();
    }
    const double mean = square / double(moved.size());    // 1, where all singular values are equal
    CAPTURE(t.name);
    if (exact) CHECK(mean == doctest::Approx(1).epsilon(1e-3));
    else CHECK((mean > 0.6 * 0.6 && mean < 1.25 * 1.25));
}

TEST_CASE("optimizers: Muon's matrices move by orthogonal ones, query, key and value each; others by AdamW's step") {
    for (const Optimizer* o : {&MUON, &NORMUON}) {
        Toy toy(*o), adamw(ADAMW);
        const std::vector<double> before(toy.params(), toy.params() + toy.g.store.flat);
        toy.step(1), adamw.step(1);
        int matrices = 0;
        for (const Tensor& t : toy.g.tensors) {
            if (is_block_matrix(t)) {
                int64_t first = 0;
                for (int64_t rows : t.parts) {
                    check_orthogonal_move(toy, before, t, first, rows, o == &NORMUON);
                    first += rows, matrices++;
                }
                continue;
            }
            for (int64_t i = t.offset; i < t.offset + t.size(); i++)
                REQUIRE(toy.params()[i] == doctest::Approx(adamw.params()[i]).epsilon(1e-9));
        }
        CHECK(matrices == 2 * (3 + 3));
    }
    Toy toy(NORMUON);
    toy.step(1);
    const std::vector<Tensor> rows = state_tensors(toy.g.tensors, NORMUON, StateSize::row);
    CHECK(rows.size() == 2 * 4);
    for (const Tensor& t : rows)
        for (int64_t i = t.offset; i < t.offset + t.rows; i++) CHECK(toy.state(2)[i] > 0);
    CHECK(toy.g.store.state_elements(2) >= 2 * (3 * 12 + 12 + 20 + 12));
}

TEST_CASE("optimizers: work on matrices is divided evenly, and each matrix has one owner") {
    const Config c = {.V = 999, .T = 64, .L = 4, .NH = 4, .C = 256, .F = 1024};
    for (bool by_bucket : {false, true})
        for (int ranks : {1, 2, 3, 4, 8}) {
            std::map<std::pair<int, int>, double> load;
            double all = 0;
            for (const BlockMatrix& m : block_matrices(config_tensors(c, ranks), ranks, by_bucket)) {
                REQUIRE((m.owner >= 0 && m.owner < ranks));
                const double work = double(m.rows) * double(m.cols);
                load[{by_bucket ? m.bucket : 0, m.owner}] += work;
                all += work;
            }
            double most = 0;
            for (auto& [key, work] : load) most = std::max(most, work);
            const double even = all / ranks / (by_bucket ? 4 : 1);
            // A block has six matrices, and the two of the ffn are two thirds of its elements.
            CHECK(most <= even + 256 * 1024);
        }
}

TEST_CASE("optimizers: groups of tensors have their own rates and decays") {
    typedef GroupRule::Which Which;
    Plan plan;
    plan.groups = {{Which::embeddings, "", 3, 0},
                   {Which::scalars, "", 2, 5},
                   {Which::named, "*.fc*w", 0.5f, {}},
                   {Which::named, "1.fcw", {}, 0}};
    Toy toy(ADAMW, plan), plain(ADAMW);
    const std::vector<double> before(toy.params(), toy.params() + toy.g.store.flat);
    toy.step(1), plain.step(1);
    for (const Tensor& t : toy.g.tensors) {
        const bool embedding = t.bucket == 0 && !t.vector, ffn = t.name.find(".fc") != t.name.npos && !t.vector;
        const double rate = embedding ? 3 : t.vector ? 2 : ffn ? 0.5 : 1;
        const double decay = embedding || t.name == "1.fcw" ? 0 : t.vector ? 5 : 1;
        CAPTURE(t.name);
        for (int64_t i = t.offset; i < t.offset + t.size(); i++) {
            const double own = double(PARAMS.lr), w = before[size_t(i)];
            const double adam = w - plain.params()[i] - own * (t.decay ? 0.1 * w : 0);
            REQUIRE(toy.params()[i] == doctest::Approx(w - rate * (adam + own * 0.1 * decay * w)).epsilon(1e-6));
        }
    }
    const std::vector<Tensor> tensors = config_tensors(TOY);
    const Status none = param_groups(TOY, tensors, {{Which::named, "no.such", 1, {}}}, 0, ADAMW).status;
    CHECK(none.code == Exit::usage);
    CHECK(none.message.find("no.such") != none.message.npos);
    std::vector<GroupRule> many;
    for (int i = 0; i < 20; i++) many.push_back({Which::named, tensors[size_t(i)].name, float(i + 2), {}});
    CHECK(param_groups(TOY, tensors, many, 0, ADAMW).status.code == Exit::usage);
}

TEST_CASE("optimizers: each group's gradient norm is clipped by itself") {
    Plan plan;
    plan.clip_groups = true;
    plan.groups = {{GroupRule::Which::embeddings, "", 2, {}}};
    Toy toy(ADAMW, plan);
    const Step s = toy.step(1, {.clip = 5});
    CHECK(s.scale == 1);
    std::map<uint8_t, double> squares;
    double all = 0;
    for (size_t k = 0; k < toy.g.tensors.size(); k++) {
        const Tensor& t = toy.g.tensors[k];
        for (int64_t i = t.offset; i < t.offset + t.size(); i++) {
            const double square = toy.gradients[size_t(i)] * toy.gradients[size_t(i)];
            squares[toy.g.store.group_factors.of_tensor[k]] += square;
            all += square;
        }
    }
    CHECK(squares.size() == 3);    // embeddings, matrices, vectors
    CHECK(s.norm == doctest::Approx(std::sqrt(all)));
    for (size_t k = 0; k < toy.g.tensors.size(); k++) {
        const Tensor& t = toy.g.tensors[k];
        const double norm = std::sqrt(squares[toy.g.store.group_factors.of_tensor[k]]);
        CHECK(norm > 5);
        for (int64_t i = t.offset; i < t.offset + t.size(); i++)
            REQUIRE(toy.state(0)[i] == doctest::Approx(0.1 * 5 / norm * toy.gradients[size_t(i)]).epsilon(1e-5));
    }
}

TEST_CASE("optimizers: the weights' average is kept, used, saved, and the weights come back to the bit") {
    Plan plan;
    plan.average = true;
    Toy toy(MUON, plan);
    const int64_t n = toy.g.store.flat;
    std::vector<double> average(static_cast<size_t>(n)), weights(average);
    OptimizerParams params = PARAMS;
    for (uint64_t step = 1; step <= 4; step++) {
        params.average_rate = step == 1 ? 0 : 1 / float(step - 1);    // the mean of steps 2 to 4
        toy.step(step, {}, params);
        for (size_t i = 0; i < average.size(); i++) average[i] += step > 1 ? toy.params()[i] / 3 : 0;
    }
    weights.assign(toy.params(), toy.params() + n);
    toy.g.store.use_average();
    for (size_t i = 0; i < average.size(); i++) REQUIRE(toy.params()[i] == doctest::Approx(average[i]).epsilon(1e-6));
    toy.g.store.restore();
    CHECK(std::equal(weights.begin(), weights.end(), toy.params()));
    const std::string run = temporary_directory();
    REQUIRE(checkpoint_write(run, toy.g, Tokenizer(), toy_state(1, 1)).ok());
    const std::string dir = checkpoint_list(run).back();
    const auto reader = average_reader(ModelSource(dir), TOY);
    REQUIRE_MESSAGE(reader.ok(), reader.status.message);
    for (const Tensor& t : toy.g.tensors) {
        std::vector<float> x(size_t(t.file_rows * t.cols));
        REQUIRE(reader.value.read(t, 0, int64_t(x.size()), x.data()).ok());
        for (size_t i = 0; i < x.size(); i++)
            REQUIRE(double(x[i]) == doctest::Approx(average[size_t(t.offset) + i]).epsilon(1e-6));
    }
    Toy without(MUON);
    const std::string other = temporary_directory();
    REQUIRE(checkpoint_write(other, without.g, Tokenizer(), toy_state(1, 1)).ok());
    const Status none = average_reader(ModelSource(checkpoint_list(other).back()), TOY).status;
    CHECK(none.code == Exit::usage);
    CHECK(none.message.find("--ema") != none.message.npos);
}
TEST_CASE("optimizers: an average beside bf16 weights, with and without fp32 copies") {
    for (bool master : {true, false}) {
        Model g(cpu_ops<bf16>());
        Plan plan = {.mode = RunMode::train, .B = 1, .S = 4, .master = master};
        plan.average = true;
        REQUIRE(g.allocate(TOY, plan).ok());
        g.init(3);
        OptimizerParams params = PARAMS;
        params.average_rate = 0.5f;
        const uint64_t before = g.store.hash();
        g.train.begin();
        fill_normal(typed<float>(g, g.store.grads), g.store.flat, 5);
        g.train.update(params, {}, 1);
        (void)g.train.finish();
        const uint64_t after = g.store.hash();
        const std::vector<float> weights = flat_part(g, StateKind::weights);
        g.store.use_average();
        CHECK(g.store.hash() != after);
        g.store.restore();
        CHECK(g.store.hash() == after);
        CHECK(after != before);
        const auto* average = static_cast<const float*>(g.store.states.back().p);
        for (const Tensor& t : g.tensors)
            for (int64_t i = 0; i < t.size(); i++)
                if (master) REQUIRE(average[t.offset + i] == 0.5f * typed<float>(g, g.store.master)[t.offset + i]);
    }
}

TEST_CASE("optimizers: small states take the memory of their types, train alike, and resume to the bit") {
    const auto run = [](Element m, Element v, const Optimizer& o) {
        Plan plan;
        plan.state_types = {m, v};
        auto toy = std::make_unique<Toy>(o, plan);
        for (uint64_t seed = 1; seed <= 20; seed++) toy->step(seed);
        return toy;
    };
    for (const Optimizer* o : {&ADAMW, &NORMUON, &LION}) {
        const auto exact = run(Element::f32, Element::f32, *o);
        for (auto [m, v] : {std::pair{Element::bf16, Element::bf16},
                            {Element::uint8, Element::uint8},
                            {Element::bf16, Element::uint8}}) {
            const auto small = run(m, v, *o);
            double apart = 0, moved = 0;
            for (const Tensor& t : small->g.tensors)
                for (int64_t i = t.offset; i < t.offset + t.size(); i++)
                    apart += std::pow(small->params()[i] - exact->params()[i], 2),
                        moved += std::pow(exact->params()[i], 2);
            CHECK(apart > 0);
            CHECK(apart < 0.01 * moved);
            const std::string dir = temporary_directory();
            REQUIRE(checkpoint_write(dir, small->g, Tokenizer(), toy_state(20, 1)).ok());
            Plan plan;
            plan.state_types = {m, v};
            Toy again(*o, plan);
            REQUIRE(checkpoint_optimizer(checkpoint_list(dir).back(), again.g).ok());
            for (const SavedState& state : optimizer_states(again.g))
                for (const Tensor& t : state.tensors) {
                    const int64_t n = t.file_rows * t.cols;
                    std::vector<float> x(static_cast<size_t>(n)), y(x);
                    small->g.read(state.part, t.offset, n, x.data());
                    again.g.read(state.part, t.offset, n, y.data());
                    CHECK(same_bits(x, y));
                }
            Toy other(*o);
            if (m == Element::uint8)
                CHECK(checkpoint_optimizer(checkpoint_list(dir).back(), other.g).code == Exit::usage);
        }
    }
}

TEST_CASE("optimizers: a step over its limits changes neither weights nor states") {
    for (const Optimizer* o : optimizers()) {
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
    auto bytes = [&](const Optimizer& o, Element type = Element::f32) {
        Model g(cpu_ops<float>());
        Plan plan = {.mode = RunMode::train, .B = 1, .S = 16, .optimizer = &o};
        plan.state_types = {type, type};
        REQUIRE(g.allocate(c, plan).ok());
        for (const MemoryRow& r : g.memory)
            if (!strcmp(r.purpose, "optimizer state")) return double(r.bytes);
        return 0.0;
    };
    const double P = double(config_flat_size(c)), matrices = 4.0 * (4 * 256 * 256 + 2 * 256 * 1024);
    const double work = 4.0 * (2 * 256 * 1024 + 3 * 256 * 256);
    CHECK(bytes(ADAMW) == doctest::Approx(8 * P + P / 64).epsilon(1e-3));
    CHECK(bytes(ADAMW, Element::bf16) == doctest::Approx(4 * P + P / 64).epsilon(1e-3));
    CHECK(bytes(ADAMW, Element::uint8) == doctest::Approx(2 * P + 9 * P / 64).epsilon(1e-3));
    CHECK(bytes(SIGNUM) == doctest::Approx(4 * P + P / 64).epsilon(1e-3));
    CHECK(bytes(MUON) == doctest::Approx(8 * P - 4 * matrices + work + P / 64).epsilon(1e-3));
    const double rows = 4 * (3 * 256 + 256 + 1024 + 256);
    CHECK(bytes(NORMUON) - bytes(MUON) == doctest::Approx(4 * rows).epsilon(0.1));
}

TEST_CASE("optimizers: a checkpoint holds the row's states by name, and another optimizer refuses them") {
    Toy toy(SIGNUM);
    toy.step(1);
    const std::string run = temporary_directory();
    REQUIRE(checkpoint_write(run, toy.g, Tokenizer(), toy_state(1, 1)).ok());
    const std::string dir = checkpoint_list(run).back();
    Toy again(SIGNUM);
    REQUIRE(checkpoint_optimizer(dir, again.g).ok());
    for (const Tensor& t : again.g.tensors)
        CHECK(std::equal(toy.state(0) + t.offset, toy.state(0) + t.offset + t.file_rows * t.cols,
                         again.state(0) + t.offset));
    Toy other(ADAMW);
    const Status refused = checkpoint_optimizer(dir, other.g);
    CHECK(refused.code == Exit::usage);
    CHECK(refused.message.find("the states m, the run's has m, v") != std::string::npos);
}

TEST_CASE("optimizers: rows have unique names, and state names that files can hold") {
    std::set<std::string> names;
    for (const Optimizer* o : optimizers()) {
        CHECK(names.insert(o->name).second);
        CHECK(&optimizer_named(o->name) == o);
        CHECK(o->defaults.lr > 0);
        std::set<std::string> states;
        for (const OptimizerState& s : o->states) {
            CHECK(states.insert(s.name).second);
            CHECK(std::string(s.name).find('.') == std::string::npos);
        }
    }
    CHECK(names.count("adamw"));
}
