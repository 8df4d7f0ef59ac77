// optimizer.cpp - `flatgpt train`: the optimizer's row, its states' types, and groups of tensors.
#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

#include "layers/optimizer/muon.h"
#include "model/cost_table.h"
#include "train.h"

namespace {
const std::map<std::string, Element> STATE_TYPES = {
    {"fp32", Element::f32}, {"bf16", Element::bf16}, {"int8", Element::uint8}};

std::vector<std::string> split(const std::string& text, char by) {
    std::vector<std::string> parts;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, by);) parts.push_back(part);
    return parts;
}

// "int8" for all states, or "bf16,int8": m's and v's.
Result<std::array<Element, 2>> state_types(const std::string& text) {
    const std::vector<std::string> names = split(text, ',');
    std::array<Element, 2> types;
    for (size_t i = 0; i < types.size(); i++) {
        const auto type = STATE_TYPES.find(names.empty() ? "" : names[std::min(i, names.size() - 1)]);
        if (type == STATE_TYPES.end() || names.size() > types.size())
            return fail(Exit::usage, "--state-dtype %s: expected fp32, bf16 or int8, or two of them: m's, a comma, v's",
                        text.c_str());
        types[i] = type->second;
    }
    return types;
}

// "PATTERN:lr=0.5,decay=0"
Result<GroupRule> group_rule(const std::string& text) {
    const Status wrong =
        fail(Exit::usage,
             "--param-group %s: expected PATTERN:lr=FACTOR,decay=FACTOR or one of the two factors, such as "
             "*.mlp.*:lr=0.5",
             text.c_str());
    const size_t colon = text.rfind(':');
    if (colon == text.npos || colon == 0 || colon + 1 == text.size()) return wrong;
    GroupRule rule = {GroupRule::Which::named, text.substr(0, colon), {}, {}};
    for (const std::string& part : split(text.substr(colon + 1), ',')) {
        const size_t equals = part.find('=');
        if (equals == part.npos || (part.substr(0, equals) != "lr" && part.substr(0, equals) != "decay")) return wrong;
        char* end = nullptr;
        const float factor = strtof(part.c_str() + equals + 1, &end);
        if (equals + 1 == part.size() || *end || !(factor >= 0 && factor <= 1e6f)) return wrong;
        (part[0] == 'l' ? rule.lr : rule.decay) = factor;
    }
    return rule;
}

// Sets a parameter from its flag, or, if that is -1, both from the optimizer's row.
Status choose(Trainer& t, const std::string& flag, double* asked, float* to) {
    if (*asked < 0 && *asked != -1)
        return fail(Exit::usage, "--%s %g: expected a number that is not negative, or -1 for the optimizer's",
                    flag.c_str(), *asked);
    if (*asked < 0) {
        const std::string text = formatted("%.6g", double(*to));
        t.resolve(flag, "-1.0", text);
        *asked = strtod(text.c_str(), nullptr);
    }
    *to = float(*asked);
    return {};
}
}    // namespace

std::vector<Flag> optimizer_flags(TrainOptions& o) {
    std::string each;
    for (const Optimizer* row : optimizers())
        each += (each.empty() ? "" : "; ") + std::string(row->name) + ": " + row->help;
    const std::vector<std::string> muon = {"--optimizer muon or --optimizer normuon"};
    auto factor = [&](const char* name, double* to, const std::string& help) {
        return Flag{.name = name, .to = to, .help = help, .min = 0, .max = 1e6};
    };
    return {
        {.name = "--optimizer", .to = &o.optimizer, .help = each, .choices = optimizer_names()},
        {"--weight-decay", &o.weight_decay,
         "for matrices: the part of a weight that a step subtracts is this times the learning rate; -1: the "
         "optimizer's (0.1; 0.6 for lion and signum)",
         -1, 10},
        {"--cautious-decay", &o.cautious_decay, "a weight decays only in steps that move it towards 0 anyway"},
        {"--beta1", &o.beta1, "decay of the gradients' running mean; -1: the optimizer's (0.9; 0.95 for signum)", -1,
         0.9999999},
        {"--beta2", &o.beta2,
         "decay of the running mean of their squares (for lion of the mean that it keeps); -1: the optimizer's (0.95; "
         "0.99 for lion)",
         -1, 0.9999999},
        {.name = "--momentum",
         .to = &o.momentum,
         .help = "muon: decay of the running mean of the matrices' gradients",
         .min = 0,
         .max = 0.9999999,
         .needs = muon},
        {"--state-dtype", &o.state_dtype,
         "type of the optimizer's states: fp32, bf16 (rounded stochastically) or int8 (in blocks of 64 with a scale); "
         "two of them, such as bf16,int8, for m and v"},
        factor("--lr-embedding", &o.lr_embedding,
               "factor of the embeddings' learning rate (with a shared head, of both)"),
        factor("--lr-head", &o.lr_head, "factor of the learning rate of a head with weights of its own"),
        factor("--lr-scalars", &o.lr_scalars, "factor of the learning rate of norms and biases"),
        factor("--weight-decay-embedding", &o.decay_embedding, "factor of the embeddings' weight decay"),
        factor("--weight-decay-head", &o.decay_head, "factor of the head's weight decay"),
        factor("--weight-decay-scalars", &o.decay_scalars, "factor of the weight decay of norms and biases"),
        {"--mup-base", &o.mup_base,
         "the learning rate is meant for a model of this many channels: rates and initial weights of others follow "
         "(muP); 0: they do not depend on the width",
         0, 1 << 20},
        {"--clip-groups", &o.clip_groups,
         "--grad-clip is for the gradient norm of each group of tensors with equal factors, not for all together"},
        {.name = "--ema",
         .to = &o.ema,
         .help = "keep a running mean of the weights with this decay, and validate it, too; 0: none",
         .min = 0,
         .max = 0.9999999},
        {.name = "--average-tail",
         .to = &o.average_tail,
         .help = "keep the mean of the weights over this last part of the steps, and validate it, too; 0: none",
         .min = 0,
         .max = 1,
         .excludes = {"--ema"}},
        {"--param-group", &o.group_rules,
         "factors for some tensors, as PATTERN:lr=0.5,decay=0; several, separated by spaces, the last one that fits "
         "counts. Patterns as in --train-only"},
    };
}

Status Trainer::choose_optimizer() {
    const Optimizer& row = optimizer_named(o.optimizer);
    if (row.orthogonalizes && config.adapter.any())
        return fail(Exit::usage,
                    "--optimizer %s: it is for the matrices of a model that is trained whole; adapters "
                    "take adamw, lion or signum",
                    row.name);
    plan.optimizer = &row;
    plan.state_types = TRY(state_types(o.state_dtype));
    optimizer_params = row.defaults;
    TRY(choose(*this, "lr", &o.lr, &optimizer_params.lr));
    TRY(choose(*this, "weight-decay", &o.weight_decay, &optimizer_params.weight_decay));
    TRY(choose(*this, "beta1", &o.beta1, &optimizer_params.beta1));
    TRY(choose(*this, "beta2", &o.beta2, &optimizer_params.beta2));
    optimizer_params.momentum = float(o.momentum);
    optimizer_params.cautious = o.cautious_decay;
    plan.clip_groups = o.clip_groups;
    plan.average = o.ema > 0 || o.average_tail > 0;
    typedef GroupRule::Which Which;
    plan.groups = {{Which::embeddings, "", float(o.lr_embedding), float(o.decay_embedding)},
                   {Which::scalars, "", float(o.lr_scalars), float(o.decay_scalars)}};
    if (config.reads_wte() && (o.lr_head != 1 || o.decay_head != 1))
        return fail(Exit::usage,
                    "--lr-head, --weight-decay-head: the model's head has the embeddings' weights; give "
                    "--lr-embedding, --weight-decay-embedding");
    plan.mup_base = o.mup_base;
    if (o.mup_base && config.reads_wte())
        return fail(
            Exit::usage,
            "--mup-base: it needs a head with weights of its own, whose initial size and rate follow the width: "
            "--tied false");
    if (!config.reads_wte()) plan.groups.push_back({Which::head, "", float(o.lr_head), float(o.decay_head)});
    if (o.lora_plus != 1) plan.groups.push_back({Which::named, "*_b", float(o.lora_plus), {}});
    for (const std::string& rule : split(o.group_rules, ' '))
        if (!rule.empty()) plan.groups.push_back(TRY(group_rule(rule)));
    return param_groups(config, config_tensors(config), plan.groups, o.mup_base, row).status;
}

// Returns the fraction of (weights - average) by which a step changes the average; 0 before an
// average of the run's tail begins. The first step copies the weights, because an average that
// starts from zeros is biased to 0. An EMA is the even mean of its steps as long as 1 / (number of
// steps) is above 1 - decay.
float Trainer::average_rate(int64_t step) const {
    const double mean = 1 / double(state.averaged + 1);
    if (o.ema > 0) return float(std::max(1 - o.ema, mean));
    const int64_t first = o.steps - std::max<int64_t>(1, std::llround(o.average_tail * double(o.steps)));
    return o.average_tail > 0 && step >= first ? float(mean) : 0;
}

// What Newton-Schulz costs beside the passes, for the dry run.
std::string Trainer::optimizer_text() const {
    std::string text = plan.optimizer->help;
    if (!plan.optimizer->orthogonalizes) return text;
    // A step waits for the rank with the most work, with --zero 2 in each block.
    double flops = 0, longest = 0;
    std::map<int, std::vector<double>> of_rank;
    for (const BlockMatrix& m : block_matrices(config_tensors(config, plan.ranks), plan.ranks, plan.zero == 2)) {
        const double own = NEWTON_SCHULZ_STEPS * newton_schulz_flops(double(m.rows), double(m.cols));
        flops += own;
        std::vector<double>& work = of_rank[plan.zero == 2 ? m.bucket : 0];
        work.resize(size_t(plan.ranks));
        work[size_t(m.owner)] += own;
    }
    for (const auto& [bucket, work] : of_rank) longest += *std::ranges::max_element(work);
    const double passes = planned_flops() * double(o.total_batch);
    const double share = longest * plan.ranks / passes;
    text += formatted("; Newton-Schulz takes %s a step, %.3g %% of the passes' work", decimal(flops, "FLOP").c_str(),
                      100 * share);
    if (share > 0.5) text += ": too much. Muon needs about two thirds of AdamW's steps, so a larger --total-batch pays";
    return text;
}
