// flags.cpp - the flags of `flatgpt train`.
#include <memory>

#include "checkpoint/gguf.h"
#include "train/gpu_plan.h"
#include "train/preference.h"
#include "train/reward/policy.h"
#include "train/sweep.h"
#include "train.h"

// ---- the rows, in the order of --help -----------------------------------------------------------

namespace {
std::vector<Flag> schedule_flags(TrainOptions& o) {
    return {
        {.name = "--lr-schedule",
         .to = &o.lr_schedule,
         .help =
             "how the learning rate falls after the warm-up (wsd: only over the last part of the steps, by 1 - sqrt)",
         .choices = {"cosine", "linear", "constant", "wsd"}},
        {"--final-lr-frac", &o.final_lr_frac,
         "the last step's learning rate as a fraction of --lr; with 0 the last step changes no weight", 0, 1},
        {.name = "--decay-part",
         .to = &o.decay_part,
         .help = "the part of the steps in which the rate falls",
         .min = 0,
         .max = 1,
         .needs = {"--lr-schedule wsd"}},
        {.name = "--decay-from",
         .to = &o.decay_from,
         .help = "begin a new run that goes on with everything from this checkpoint of another one, and lets the rate "
                 "fall, as wsd does, from the one that it had there over the steps that remain"},
        {.name = "--decay-steps",
         .to = &o.decay_steps,
         .help = "steps of the decay, instead of a total in --steps; 0: up to --steps",
         .min = 0,
         .max = 99999999,
         .needs = {"--decay-from"}},
        {.name = "--batch-warmup",
         .to = &o.batch_warmup,
         .help = "steps over which the number of accumulated batches grows from 1 to that of --total-batch",
         .min = 0,
         .max = 1e6,
         .excludes = {"--prompts"}},
        {.name = "--noise-scale",
         .to = &o.noise_scale,
         .help = "measure the critical batch, in targets (tokens that are learnt): much larger batches save few steps, "
                 "much smaller ones little "
                 "work. It needs two batches in a step, or two ranks",
         .excludes = {"--prefer", "--prompts"}},
        {"--dropout", &o.dropout,
         "the part of the embeddings, of attention's probabilities and of what each branch "
         "adds to the residual that a step sets to 0 (GPT-2: 0.1); never in validation or samples",
         0, 0.99},
        {"--attention-dropout", &o.attention_dropout,
         "the same for attention's probabilities alone; -1: as --dropout "
         "says",
         -1, 0.99},
        {.name = "--z-loss",
         .to = &o.z_loss,
         .help = "factor of a loss that keeps the logits' log-sum-exp small, its square for each target (PaLM: 1e-4); "
                 "the losses that are shown leave it out",
         .min = 0,
         .max = 100,
         .excludes = {"--prefer", "--prompts", "--teacher", "--objective replaced-tokens"}},
        {.name = "--label-smoothing",
         .to = &o.label_smoothing,
         .help = "the share of a target's probability that all tokens get evenly; the losses that are shown are those "
                 "without. With --prefer-loss dpo: the share of pairs whose answers are expected to be swapped",
         .min = 0,
         .max = 0.499,
         .excludes = {"--prefer-loss ipo", "--prefer-loss kto-paired", "--prefer-loss orpo", "--prefer-loss simpo",
                      "--prompts", "--teacher", "--objective replaced-tokens"}},
        {"--balance-loss", &o.balance_loss,
         "with --experts: factor of the loss that keeps them in even use (for each "
         "layer and sequence, 1 where they are)",
         0, 100},
        {"--router-z-loss", &o.router_z_loss,
         "with --experts: factor of the loss that keeps the router's logits small "
         "(the mean square of their log-sum-exp)",
         0, 100},
        {"--grad-clip", &o.grad_clip, "largest global gradient norm; 0: no clipping", 0, 1e9},
        {"--skip-loss-z", &o.skip_loss_z,
         "skip an update whose loss is this many standard deviations above the "
         "last 128; 0: never",
         0, 1e9},
        {"--skip-norm-z", &o.skip_norm_z, "the same for the gradient norm", 0, 1e9},
    };
}
std::vector<Flag> model_flags(TrainOptions& o) {
    std::vector<Flag> flags = config_flags(o.shape);
    flags.insert(flags.begin(), {"--context", &o.context,
                                 "most positions of a sequence: of a new model, or with "
                                 "--from more than it has, unless its positions are learned (--rope-scaling slows "
                                 "those that turn); 0: the model's",
                                 0, 1 << 20});
    return flags;
}
FlagGroup chat_flags(TrainOptions& o) {
    const std::vector<std::string> chat = {"--chat"}, read = {"--chat, --prefer or --pairs"},
                                   any = {"--chat, --prefer or --prompts"};
    return {"Conversations",
            {},
            {
                {.name = "--chat-template",
                 .to = &o.chat_template,
                 .help = "a file with a chat template (Jinja), or chatml, for a model without one; the run keeps it",
                 .needs = any},
                {.name = "--preview",
                 .to = &o.preview,
                 .help = "print this many conversations or pairs, with what is learnt in colour, and counts, or "
                         "prompts, with sampled answers and rewards; then stop",
                 .min = 0,
                 .max = 1e9,
                 .needs = any,
                 .excludes = {"--dry-run"}},
                {.name = "--chat-val",
                 .to = &o.chat_val,
                 .help = "conversations for validation, given in the same way",
                 .needs = chat},
                {.name = "--train-on",
                 .to = &o.train_on,
                 .help = "tokens that are learnt: of all answers, of a conversation's last one, or all tokens",
                 .choices = {"assistant", "last", "all"},
                 .needs = chat},
                {.name = "--too-long",
                 .to = &o.too_long,
                 .help = "a conversation or pair longer than --seq-len is cut, or left out",
                 .choices = {"cut", "drop"},
                 .needs = read},
            }};
}
FlagGroup preference_flags(TrainOptions& o) {
    const std::vector<std::string> prefer = {"--prefer"};
    return {"Preferences",
            {},
            {
                {.name = "--prefer-val",
                 .to = &o.prefer_val,
                 .help = "pairs for validation, given in the same way",
                 .needs = prefer},
                {.name = "--prefer-loss",
                 .to = &o.prefer_loss,
                 .help = "the loss of a pair: dpo, ipo and kto-paired compare with the starting weights, whose scores "
                         "are computed once and kept in the run; orpo and simpo compare with nothing",
                 .choices = preference_names(),
                 .needs = prefer},
                {.name = "--beta",
                 .to = &o.beta,
                 .help = "factor of the rewards; orpo: of the odds ratio's loss. 0: the loss's usual one, 2 for simpo, "
                         "0.1 for the others",
                 .min = 0,
                 .max = 1e6,
                 .needs = prefer},
                {.name = "--gamma",
                 .to = &o.gamma,
                 .help = "simpo: the margin that the rewards should have",
                 .min = 0,
                 .max = 1e6,
                 .needs = {"--prefer-loss simpo"}},
            }};
}
FlagGroup reward_flags(TrainOptions& o) {
    const std::vector<std::string> prompts = {"--prompts"};
    auto number = [&](const char* name, auto* to, const char* help, double min, double max) {
        return Flag{.name = name, .to = to, .help = help, .min = min, .max = max, .needs = prompts};
    };
    return {
        "Rewards",
        {},
        {
            {.name = "--reward",
             .to = &o.reward,
             .help = "how an answer is rewarded: " + reward_forms() +
                     ". exact: 1 if it equals the line's answer; regex: 1 if RE is found in it; json-schema: 1 if it "
                     "is valid JSON; a command reads a JSON line with prompt and answer and writes a number",
             .needs = prompts},
            {.name = "--prompts-val",
             .to = &o.prompts_val,
             .help = "prompts for validation, each answered once, with the likeliest tokens",
             .needs = prompts},
            number("--group", &o.group, "answers to a prompt, whose rewards are compared", 2, 4096),
            number("--answer-tokens", &o.answer_tokens, "most tokens of an answer", 1, 1 << 20),
            number("--temperature", &o.temperature, "of sampling", 0.01, 100),
            number("--updates", &o.updates, "updates on the answers of a step", 1, 1000),
            {.name = "--advantage",
             .to = &o.advantage,
             .help = "an answer's reward less its group's mean, divided by the group's deviation, or not (mean: Dr. "
                     "GRPO)",
             .choices = {"normalised", "mean"},
             .needs = prompts},
            {.name = "--loss-norm",
             .to = &o.loss_norm,
             .help = "the step's loss is the mean over answers of each one's mean over tokens; the mean over all "
                     "tokens (DAPO); or a sum divided by answers and --answer-tokens (constant: Dr. GRPO)",
             .choices = loss_norm_names(),
             .needs = prompts},
            number("--clip", &o.clip, "ratios of probabilities are clipped below 1 less this", 0, 1),
            number("--clip-high", &o.clip_high, "and above 1 plus this (DAPO: 0.28); 0: as --clip", 0, 1e6),
            number("--kl", &o.kl, "factor of the divergence from the starting weights, which are then held, too", 0,
                   1e6),
            number("--reward-timeout", &o.reward_timeout, "seconds in which a command must write its next number", 0.01,
                   1e6),
        }};
}
std::vector<FlagGroup> run_flags(TrainOptions& o) {
    return {
        {"Common",
         {
             {.name = "--data",
              .to = &o.data,
              .help = "training shards, from `flatgpt tokenize`: a path, a glob pattern, "
                      "or several separated by commas; with weights, a mixture: 'a_*.bin=0.7,b_*.bin=0.3'",
              .required_unless = {"--chat", "--prefer", "--prompts", "--labels", "--pairs", "--dry-run"}},
             {"--val", &o.val, "validation shards, given in the same way"},
             {.name = "--chat",
              .to = &o.chat,
              .help = "conversations to fine-tune on instead: JSON lines with messages (or prompt and "
                      "completion, or ShareGPT's conversations), written by the model's chat template; "
                      "--preview 3 shows what is learnt",
              .excludes = with_shard_objectives({"--data", "--val", "--documents", "--raw-u16"})},
             {.name = "--prefer",
              .to = &o.prefer,
              .help = "pairs of answers to learn from instead: JSON lines with prompt, chosen and rejected, as texts "
                      "or as messages; with --prefer-loss dpo or another",
              .needs = {"--from"},
              .excludes = with_shard_objectives({"--data", "--val", "--chat", "--pack", "--documents", "--raw-u16"})},
             {.name = "--prompts",
              .to = &o.prompts,
              .help = "prompts to learn from instead, by rewards of sampled answers (GRPO): JSON lines with prompt, as "
                      "text or as messages, and what --reward needs",
              .needs = {"--from", "--reward"},
              .excludes = with_shard_objectives({"--data", "--val", "--chat", "--prefer", "--pack", "--documents",
                                                 "--raw-u16", "--resize-vocab", "--too-long drop"})},
             {"--tokenizer", &o.tokenizer,
              "gpt2, or a tokenizer.json, tokenizer.model or GGUF file; none: the "
              "checkpoint's, else gpt2"},
             {.name = "--out",
              .to = &o.out,
              .help = "the run's directory: checkpoints, metrics.jsonl, run.toml",
              .letter = 'o',
              .required_unless = {"--dry-run", "--preview"}},
             {"--model", &o.model,
              config_names() + ", or a directory or a GGUF file whose shape to take; none: that of "
                               "--from, else gpt2"},
             {"--from", &o.from,
              "fine-tune: start from these weights, of a run, a checkpoint, a Hugging Face directory or "
              "a GGUF file"},
             {"--resume", &o.resume,
              "auto: go on from the newest whole checkpoint in --out, if there is one; no: start "
              "afresh; or the directory of a checkpoint to go on from"},
             {"--batch", &o.batch, "sequences per forward pass; auto: as many as fit the memory", 0, 65536, {"auto"}},
             {"--seq-len", &o.seq_len,
              "tokens per sequence, and without --context a new model's context; 0: the model's, "
              "at most 2048, and without --pack or --total-batch no more than the longest conversation or text",
              0, 1 << 20},
             {"--steps", &o.steps, "updates in total; 0: one pass over the data, or --epochs", 0, 99999999},
             {.name = "--epochs",
              .to = &o.epochs,
              .help = "passes over the data, instead of --steps; 0: one",
              .min = 0,
              .max = 1e6,
              .excludes = {"--steps"}},
             {"--lr", &o.lr, "peak learning rate; -1: the optimizer's (6e-4; 1e-4 for lion and signum)", -1, 10},
         },
         {
             {.name = "--set",
              .to = &o.set,
              .help = "a sweep: one run for each value of an option, as in --set lr=1e-4,3e-4,1e-3, or for each "
                      "combination of several, in --out/lr=1e-4 and so on; a value cannot contain a comma. The "
                      "ranks of a launcher share the runs. A table of their "
                      "losses comes at the end, and is in --out/sweep.json. The same command goes on with a sweep "
                      "that was stopped",
              .excludes = {"--dry-run", "--preview", "--trace", "--ranks", "--rank", "--master"}},
             {.name = "--recipe",
              .to = &o.recipe,
              .help =
                  "fill in optimizer, batch, steps, rate and its schedule from the model's size and --tokens, where "
                  "they are not given, and say why: compute-optimal",
              .choices = {"none", "compute-optimal"},
              .excludes = {"--prefer", "--prompts", "--lora-rank", "--decay-from"}},
             {.name = "--tokens",
              .to = &o.tokens,
              .help = "tokens to train on in all; 0: 20 for each parameter",
              .min = 0,
              .max = 1e18,
              .needs = {"--recipe"}},
             {.name = "--init",
              .to = &o.init,
              .help = "new weights are meant, in the shape of that directory or GGUF file "
                      "and with its tokenizer",
              .needs = {"--model"},
              .excludes = {"--from"}},
             {.name = "--zero-init",
              .to = &o.zero_init,
              .help = "the output matrices of attention and of the feed-forward part begin at 0, so that a new model's "
                      "blocks pass on what they get",
              .excludes = {"--from"}},
             {.name = "--resize-vocab",
              .to = &o.resize_vocab,
              .help = "a vocabulary of --vocab's size, else the "
                      "tokenizer's; rows are cut, or added as the mean of the others",
              .needs = {"--from"}},
         }},
        {"Distillation",
         {},
         {{.name = "--teacher",
           .to = &o.teacher,
           .help = "learn this model's probabilities, too: a run, a directory or a GGUF file with the same tokenizer",
           .excludes = {"--prefer", "--prompts", "--objective mlm-nsp", "--objective replaced-tokens"}},
          {.name = "--distill-mix",
           .to = &o.distill_mix,
           .help = "weight of the loss on the teacher's probabilities; the loss on tokens has the rest",
           .min = 0,
           .max = 1,
           .needs = {"--teacher"}},
          {.name = "--distill-temperature",
           .to = &o.distill_temperature,
           .help = "divides both models' logits",
           .min = 0.01,
           .max = 100,
           .needs = {"--teacher"}}}},
        {"Training a part",
         {
             {.name = "--lora-rank",
              .to = &o.lora_rank,
              .help = "train low-rank adapters (LoRA) of this rank beside the frozen weights of --from, and save "
                      "them alone, in PEFT's format; 0: train the weights",
              .min = 0,
              .max = 1024,
              .excludes = {"--resize-vocab", "--init", "--optimizer muon", "--optimizer normuon"}},
         },
         {
             {.name = "--train-only",
              .to = &o.train_only,
              .help = "patterns of the tensors to train, such as \"11.*,lnf?\" or, by a file's names, "
                      "\"*.mlp.*\"; everything else stays as it is",
              .excludes = {"--lora-rank"}},
             {.name = "--lora-alpha",
              .to = &o.lora_alpha,
              .help = "the adapters' factor is alpha / rank; 0: twice the rank",
              .min = 0,
              .max = 1e6,
              .needs = {"--lora-rank"}},
             {.name = "--lora-targets",
              .to = &o.lora_targets,
              .help = "matrices with adapters: all of the blocks, attention, or names such as qkv,proj,fc,fc2, "
                      "cross_q,cross_kv,cross_proj (of an encoder-decoder), or the file's: q_proj,v_proj",
              .needs = {"--lora-rank"}},
             {.name = "--quantize",
              .to = &o.quantize,
              .help = "on a CPU: the frozen weights in fewer bits (QLoRA), the types of convert; none: as the file "
                      "has them, or as --dtype says",
              .choices = quantize_types(),
              .needs = {"--lora-rank"},
              .excludes = {"--dtype"}},
             {.name = "--lora-dropout",
              .to = &o.lora_dropout,
              .help = "dropout of the adapters' inputs; -1: that of --from's adapters, else 0",
              .min = -1,
              .max = 0.99},
             {.name = "--lora-plus",
              .to = &o.lora_plus,
              .help = "the learning rate of the adapters' second matrix is this many times --lr (LoRA+: 16)",
              .min = 0,
              .max = 1000},
             {.name = "--lora-rank-stabilised",
              .to = &o.lora_rank_stabilised,
              .help = "the factor is alpha / sqrt(rank) (rsLoRA)",
              .needs = {"--lora-rank"}},
             {.name = "--lora-dora",
              .to = &o.lora_dora,
              .help = "learn the norm of each row of the matrices, and its direction by the adapters (DoRA)",
              .needs = {"--lora-rank"}},
         }},
        {"Model", {}, model_flags(o)},
        {"Data",
         {
             {"--total-batch", &o.total_batch,
              "tokens per update, a multiple of batch x seq-len x ranks (gradients "
              "accumulate); 0: exactly that",
              0, 1e12},
             {"--seed", &o.seed, "seed of the initial weights, the data order and the samples", 0, 9e18},
         },
         {
             {"--objective",
              &o.objective,
              "what is learnt: the next token (causal); the next one after a prefix whose tokens all see each other, "
              "of 1 to seq-len - 1 tokens (prefix); masked tokens, from both sides (mlm: a model that does not write "
              "text), and by BERT also whether a text follows another (mlm-nsp); by ELECTRA's discriminator, which "
              "tokens were replaced (replaced-tokens); by an encoder-decoder, spans of a text that are missing in its "
              "source (span-corruption: T5's, infilling: BART's). auto: the model's, causal in a new one",
              0,
              0,
              {"auto", "causal", "prefix", "mlm", "mlm-nsp", "replaced-tokens", "span-corruption", "infilling"}},
             {"--mask-fraction", &o.mask_fraction,
              "mlm: the part of a sequence's tokens that are to be guessed: 80 % of "
              "them are masked, 10 % another token, 10 % left. replaced-tokens: the part that is replaced",
              0.001, 1},
             {"--mask-token", &o.mask_token,
              "mlm: the token that masks; -1: the model's, the tokenizer's <mask> or [MASK], "
              "else one more row of the vocabulary",
              -1, 1 << 24},
             {"--documents", &o.documents,
              "positions see only their own document; one begins at BOS, or at end-of-text "
              "where the tokenizer has no BOS. Positions of a table count from the document's start"},
             {.name = "--pack",
              .to = &o.pack,
              .help = "sequences are filled with whole texts, by best fit. --chat: several conversations, each apart "
                      "from the others; else one, padded. --data: each sequence begins with a document, and one that "
                      "does not fit is cropped (a note says how much); else windows that begin anywhere",
              .needs = {"--data or --chat"}},
             {"--raw-u16", &o.raw_u16, "the shards are headerless uint16 tokens (nanoGPT's)"},
         }},
        chat_flags(o),
        preference_flags(o),
        reward_flags(o),
        {"Schedule",
         {
             {"--warmup", &o.warmup,
              "steps of linear warm-up, or below 1 a part of the steps; -1: a tenth, 700 steps at most", -1, 1e12},
         },
         schedule_flags(o)},
        {"Optimizer", {}, optimizer_flags(o)},
        {"Validation and samples",
         {
             {.name = "--eval-every",
              .to = &o.eval_every,
              .help = "steps between validations; 0: only at the end",
              .min = 0,
              .max = 1e12,
              .needs = {"--val, --chat-val, --prefer-val, --prompts-val, --labels-val, --pairs-val or --eval-tasks"}},
             {"--sample-every", &o.sample_every, "steps between samples; 0: none", 0, 1e12},
         },
         {
             {.name = "--eval-tokens",
              .to = &o.eval_tokens,
              .help = "tokens per validation, spread evenly over the shards, "
                      "the same each time; 0: all",
              .min = 0,
              .max = 1e12,
              .needs = {"--val, --chat-val, --prefer-val, --prompts-val or --pairs-val"}},
             {"--eval-tasks", &o.eval_tasks,
              "evaluations at each validation, as in eval --task: 'hellaswag=FILE,arc_easy=FILE'"},
             {.name = "--eval-limit",
              .to = &o.eval_limit,
              .help = "only the first items of each of --eval-tasks, in mmlu of each subject; 0: all",
              .min = 0,
              .max = 1e12,
              .needs = {"--eval-tasks"}},
             {.name = "--patience",
              .to = &o.patience,
              .help = "stop after this many validations without a lower loss; 0: "
                      "never",
              .min = 0,
              .max = 1e6,
              .needs = {"--eval-every"}},
             {.name = "--sample-prompt",
              .to = &o.sample_prompt,
              .help = "text that a sample continues; none: begin a new "
                      "document",
              .needs = {"--sample-every"}},
             {.name = "--sample-prompts",
              .to = &o.sample_prompts,
              .help = "a file with a prompt on each line: all are continued, by --sample-every, else with each "
                      "validation and at the end; training waits meanwhile",
              .excludes = {"--sample-prompt"}},
             {.name = "--sample-tokens",
              .to = &o.sample_tokens,
              .help = "tokens per sample",
              .min = 1,
              .max = 1e6,
              .needs = {"--sample-every or --sample-prompts"}},
         }},
        label_flags(o),
        pair_flags(o),
        report_flags(o),
        {"Checkpoints",
         {
             {"--save-minutes", &o.save_minutes, "minutes between checkpoints; 0: never by time", 0, 1e6},
         },
         {
             {"--save-every", &o.save_every, "steps between checkpoints; 0: never by steps", 0, 1e12},
             {.name = "--async-save",
              .to = &o.async_save,
              .help = "a thread writes checkpoints during the next steps, from a copy, if memory has room for one",
              .level = Level::expert},
             {"--keep", &o.keep, "checkpoints to keep; 0: all", 0, 1e6},
             {"--keep-best", &o.keep_best, "with validation: also keep the checkpoint with the lowest validation loss"},
         }}};
}
std::vector<FlagGroup> machine_flags(TrainOptions& o) {
    return {{"Ranks",
             {},
             {
                 {"--rank", &o.comm.rank, "this process's number among --ranks; -1: from mpirun, srun or torchrun", -1,
                  1e6},
                 {"--ranks", &o.comm.ranks, "number of processes, each with a device; 0: from the launcher", 0, 1e6},
                 {"--local-rank", &o.comm.local_rank, "this process's number on its machine; -1: from the launcher", -1,
                  1e5},
                 {"--master", &o.comm.master, "HOST:PORT where rank 0 meets the others; none: from the launcher"},
                 {"--timeout", &o.comm.timeout,
                  "seconds for all ranks to come together, and after which one that is silent, or "
                  "makes no progress, ends the run",
                  1, 1e6},
                 {"--zero", &o.zero,
                  "what is divided among the ranks instead of held by each: 0 nothing, 1 the optimizer's "
                  "state, 2 also the gradients",
                  0, 2},
                 {.name = "--cp",
                  .to = &o.cp,
                  .help = "context parallel: this many ranks share each sequence, T / N positions each, for sequences "
                          "too long for one; keys and values pass around them. 1: each rank has whole sequences",
                  .min = 1,
                  .max = 1024,
                  .excludes = with_shard_objectives({"--chat", "--prefer", "--prompts", "--labels", "--pairs",
                                                     "--teacher", "--dropout", "--attention-dropout", "--lora-dropout",
                                                     "--noise-scale", "--eval-tasks", "--set"})},
                 {.name = "--reduce-dtype",
                  .to = &o.reduce_dtype,
                  .help = "type in which gradients travel between ranks",
                  .choices = {"fp32", "bf16"}},
             }},
            {"Device and memory", device_flags(o.device, "bf16 on a GPU and where the CPU multiplies it, else fp32")},
            {"Device and memory",
             {},
             {
                 {.name = "--recompute",
                  .to = &o.recompute,
                  .help = "save memory: what the backward pass computes again instead of storing it: "
                          "nothing; norms and GELU (cheap); whole blocks",
                  .choices = {"none", "cheap", "blocks"}},
                 {"--stochastic-rounding", &o.stochastic_rounding,
                  "in bf16: keep no fp32 copy of the weights, round their "
                  "updates stochastically"},
                 trace_flag(o.trace, "the first step's, of rank 0", {"--dry-run"}),
             }},
            {"Planning",
             {
                 {"--dry-run", &o.dry_run,
                  "print parameters, memory, tokens and FLOPs per step, with --ranks also what they "
                  "would send; then stop"},
             },
             {
                 {.name = "--table",
                  .to = &o.table,
                  .help = "also parameters, FLOPs, bytes and FLOPs per byte by part (products, scores, norms, head), "
                          "and the scores that are not stored",
                  .needs = {"--dry-run"}},
                 {.name = "--gpu",
                  .to = &o.gpu,
                  .help = "the GPU to plan for, here or not: " + gpu_names(),
                  .needs = {"--dry-run"},
                  .excludes = {"--device cpu"}},
                 {.name = "--node-ranks",
                  .to = &o.node_ranks,
                  .help = "ranks per machine; 0: 8 on GPUs, 1 on CPUs",
                  .min = 0,
                  .max = 1e6,
                  .needs = {"--dry-run"}},
                 {.name = "--bandwidth",
                  .to = &o.bandwidth,
                  .help = "GB/s from a rank to other machines; 0: 50 on GPUs, 1.25 "
                          "on CPUs (400 and 10 Gb/s)",
                  .min = 0,
                  .max = 1e6,
                  .needs = {"--dry-run"}},
                 {.name = "--tflops",
                  .to = &o.tflops,
                  .help = "TFLOP/s of a rank; 0: 45 % of a GPU's peak, 60 % of the peak "
                          "measured on this CPU",
                  .min = 0,
                  .max = 1e6,
                  .needs = {"--dry-run"}},
             }}};
}
}    // namespace

Command train_command() {
    auto o = std::make_shared<TrainOptions>();
    Command c{"train",
              "Train a GPT on token shards, conversations, preferences or rewards, from scratch or from a checkpoint.",
              "flatgpt train --data 'tokens/austen_train_*.bin' --val 'tokens/austen_val_*.bin' --tokenizer tok.json "
              "--model d6 --out runs/a --batch 8 --seq-len 256 --steps 500 --lr 1e-3"};
    c.flags = flag_groups(run_flags(*o));
    const std::vector<Flag> machine = flag_groups(machine_flags(*o));
    c.flags.insert(c.flags.end(), machine.begin(), machine.end());
    c.resolved = &o->resolved;
    c.given = &o->given;
    c.retired = {"eval-batches"};
    c.run = [o] {
        if (!o->gpu.empty()) TRY(gpu_named(o->gpu).status);
        if (!o->set.empty()) return sweep(o->set, o->out, o->resolved, o->given, o->comm);
        Trainer t;
        t.o = *o;
        return t.run();
    };
    return c;
}
