// test_adapters.cpp - frozen parameters and low-rank adapters: gradients, memory, updates.
#include "test.h"

#include "model/cost_table.h"
#include "model_checks.h"

namespace {
const Config GROUPED_SPLIT = split_config(GROUPED);

Config trained(Config c, std::vector<std::string> patterns) {
    c.trained = std::move(patterns);
    return c;
}
// Gradients of the tensors that `c` trains equal those of a model that trains all.
void check_frozen(const Config& c) {
    Config all = c;
    all.trained.clear();
    const int B = 2, S = 7;
    const Posed asked(c, B, S);
    const Plan plan = {RunMode::train, B, S};
    Model some(reference_ops()), whole(reference_ops());
    toy_model(some, c, plan);
    toy_model(whole, all, plan);
    REQUIRE(some.tensors.size() == whole.tensors.size());
    CHECK(train_pass(some, asked.in, asked.out, B, S) == train_pass(whole, asked.in, asked.out, B, S));
    int64_t trained = 0;
    for (size_t i = 0; i < some.tensors.size(); i++) {
        const Tensor &t = some.tensors[i], &same = whole.tensors[i];
        CHECK((t.offset >= some.store.flat) == t.frozen);
        if (t.frozen) continue;
        trained++;
        std::vector<float> got(size_t(t.size())), expected(got);
        some.read(StateKind::gradients, t.offset, t.size(), got.data());
        whole.read(StateKind::gradients, same.offset, t.size(), expected.data());
        INFO(t.name);
        CHECK(got == expected);
    }
    CHECK(trained > 0);
    CHECK(trained < int64_t(some.tensors.size()));
}
}    // namespace

TEST_CASE("adapters: gradients of what is trained equal those of a model that trains all") {
    for (const char* pattern : {"*w", "*b", "0.*", "1.*", "*.qkv?", "*.ln*", "lnf?", "wte", "wpe", "*.fc2w"}) {
        INFO(pattern);
        check_frozen(trained(TOY, {pattern}));
    }
    check_frozen(trained(GROUPED_SPLIT, {"*.fc?", "lnfw"}));
    for (const Kind& kind : kind_configs(TOY)) {
        INFO(kind.name);
        for (const char* pattern : {"1.*", "0.*w", "*te", "[01].*"}) check_frozen(trained(kind.c, {pattern}));
        if (kind.c.position == Position::t5) check_frozen(trained(kind.c, {"relw"}));
        if (!kind.c.tied) check_frozen(trained(kind.c, {"head*"}));
        if (kind.c.experts) check_frozen(trained(kind.c, {"*expert_*", "*router*"}));
    }
}

TEST_CASE("adapters: gradients in double, every kind") {
    check_gradients(adapted(TOY));
    check_gradients(adapted(TOY, 0.3f));
    check_gradients(adapted(GROUPED_SPLIT));
    check_gradients(adapted(GROUPED_SPLIT), {}, 0.2f);
    for (const Kind& kind : kind_configs(TOY)) {
        INFO(kind.name);
        check_gradients(adapted(kind.c));
    }
    for (const Kind& kind : kind_configs(GROUPED)) {
        INFO(kind.name);
        check_gradients(adapted(kind.c, 0.2f));
    }
}

TEST_CASE("adapters: the CPU's gradients are the reference's") {
    Config grouped = {.V = 101, .T = 40, .L = 2, .NH = 4, .C = 48, .NKV = 2, .HS = 20, .window = 11};
    grouped.F = 4 * grouped.C;
    for (const Config& c : {adapted({101, 40, 2, 3, 48}), adapted(split_config(grouped)), adapted(grouped, 0.25f),
                            trained({101, 40, 2, 3, 48}, {"*w"}), trained(grouped, {"*b", "*.projw"})})
        check_cpu_model(c, 3);
    for (const Kind& kind : kind_configs({101, 40, 2, 3, 48})) {
        INFO(kind.name);
        const bool kink = kind.c.activation == Act::relu || kind.c.activation == Act::relu2;
        check_cpu_model(adapted(kind.c), kink ? 8 : 5);
    }
}
