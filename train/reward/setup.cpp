// setup.cpp - `flatgpt train --prompts`: the reward, the chat template, if there is one, the
// prompts, and a preview of sampled answers.
#include <algorithm>

#include "checkpoint/adapter_files.h"
#include "train/reward/loss.h"
#include "train/train.h"

Status Trainer::choose_reward() {
    reward = TRY(reward_open(o.reward, o.reward_timeout));
    if (o.answer_tokens >= o.seq_len)
        return fail(Exit::usage, "--answer-tokens %d: expected less than --seq-len %d, which holds the prompt, too",
                    o.answer_tokens, o.seq_len);
    const bool none = tokenizer.vocabulary().chat_template.empty() && o.chat_template.empty();
    return none ? check_chat_model() : choose_chat_template();
}

Result<std::shared_ptr<LineSource>> Trainer::read_prompts(const std::string& pattern, const std::string& flag) {
    const PromptOptions options = {.pattern = pattern,
                                   .flag = flag,
                                   .needs_answer = TRY(reward_row(o.reward))->needs_answer,
                                   .answer_tokens = o.answer_tokens,
                                   .S = o.seq_len,
                                   .vocab = config.V,
                                   .pad = std::max(0, tokenizer.vocabulary().pad)};
    const ChatEncoder* encoder = chat_encoder ? &*chat_encoder : nullptr;
    return std::shared_ptr<LineSource>(TRY(Prompts::read(options, tokenizer, encoder)));
}

// Samples the first prompts' answers with the starting weights, as the first step would.
Status Trainer::preview_prompts() const {
    const Prompts& all = static_cast<const Prompts&>(*source);
    Model& g = *device.model;
    Plan infer = {.mode = RunMode::infer, .B = o.batch, .S = o.seq_len};
    infer.stored = plan.stored;
    TRY(g.allocate(config, infer));
    TRY(checkpoint_weights(start, g));
    if (config.adapter.any() && !is_adapter(start)) g.store.init(config, uint64_t(o.seed), true);
    std::vector<const PromptLine*> lines;
    for (int64_t i = 0; i < std::min<int64_t>(o.preview, all.samples()); i++) lines.push_back(&all.line(i));
    const auto& rewarded = static_cast<const RewardLoss&>(*loss);
    const std::vector<RewardLoss::Rollout> answers =
        TRY(rewarded.sample(lines, o.group, o.temperature, uint64_t(o.seed), 0));
    for (size_t i = 0; i < answers.size(); i++) {
        const RewardLoss::Rollout& r = answers[i];
        if (i % size_t(o.group) == 0)
            printf("--- prompt %zu: %s ---\n%s\n", i / size_t(o.group) + 1,
                   counted(int64_t(r.line->ids.size()), "token").c_str(),
                   escape_control(tokenizer.decode(r.line->ids)).c_str());
        printf("--- answer %zu: %s%s, reward %g ---\n%s\n", i % size_t(o.group) + 1,
               counted(int64_t(r.ids.size()), "token").c_str(), r.cut ? " (cut)" : "", r.reward,
               escape_control(r.text).c_str());
    }
    printf("prompts        %lld, %s\n", (long long)all.samples(), counted(all.tokens(), "token").c_str());
    printf("steps          %lld of %lld prompts, %d answers to each\n", (long long)o.steps,
           (long long)(o.total_batch / o.seq_len / o.group), o.group);
    return fflush(stdout) == 0 ? Status{} : output_failed();
}
