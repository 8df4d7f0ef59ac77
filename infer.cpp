// infer.cpp - `flatgpt sample`, `flatgpt chat` and `flatgpt eval`.
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>

#include "base/command.h"
#include "base/countdown.h"
#include "base/file.h"
#include "data/documents/special_flag.h"
#include "data/seq2seq/seq2seq.h"
#include "files/json_write.h"
#include "infer/decode/beam.h"
#include "infer/decode/logprobs.h"
#include "infer/eval/eval_command.h"
#include "infer/sampling/grammar_files.h"
#include "infer/chat/interactive.h"
#include "infer/eval/text_loss.h"

namespace {
template <class T> void append(std::vector<T>& to, const std::vector<T>& more) {
    to.insert(to.end(), more.begin(), more.end());
}

// Returns the options that say how the lines of the file given by `option` are read. unit: what a
// line holds, for the help texts.
FlagGroup line_flags(const char* heading, const std::string& option, const std::string& unit, std::string& field,
                     std::string& format, int& longest) {
    return {heading,
            {},
            {{.name = "--field",
              .to = &field,
              .help = "the key of JSON, or the column of CSV and Parquet, that holds the " + unit +
                      " (none: text); if given, the file is no plain text",
              .needs = {option},
              .excludes = {"--format text: a text has no fields"}},
             {.name = "--format",
              .to = &format,
              .help = "what the file is; auto: JSON lines where its name ends in .jsonl or .ndjson, .json by "
                      "content, .csv, .tsv, Parquet, else a " +
                      unit + " on each line",
              .choices = TEXT_FORMATS,
              .needs = {option}},
             {.name = "--longest-line",
              .to = &longest,
              .help = "MiB: a longer line is refused",
              .min = 1,
              .max = 1024,
              .needs = {option}}}};
}
// Checks options that depend on the model's generation_config.json, which may set a penalty or
// temperature 0.
Status check_choices(const std::vector<std::string>& given, const Sampling& sampling) {
    const Penalties& p = sampling.penalties;
    if (was_given(given, "--penalty-last") && p.repetition == 1 && p.presence == 0 && p.frequency == 0)
        return fail(Exit::usage,
                    "--penalty-last needs --repetition-penalty, --presence-penalty or "
                    "--frequency-penalty");
    if (sampling.mirostat > 0 && sampling.temperature == 0)
        return fail(Exit::usage,
                    "--mirostat: the model's generation_config.json asks for --temperature 0, which "
                    "always takes the likeliest token; give another --temperature");
    return {};
}

// ---- sample -------------------------------------------------------------------------------------

struct SampleOptions {
    ModelOptions model_options;
    std::vector<std::string> prompt, source;
    std::string prompt_file, prompts_file, field, format = "auto", special = "token";
    int longest_line = 32;
    std::vector<std::string> stop;
    int tokens = 200, num = 1, batch = 0, logprobs = 0;
    BeamSearch search = {0, 1};    // 0 beams: sampling
    Speculation speculation;
    int64_t seed = 1;
    bool ignore_end = false, no_echo = false, json = false;
    Sampling sampling;
    GrammarFiles form;
    CacheFlags cache;
    DeviceOptions device;
    std::vector<std::string> given;    // names of the options that were set
};

Result<std::string> read_input(const std::string& path) {
    constexpr size_t MOST = 32 << 20;    // encoding takes about 20 bytes of memory per byte
    if (path != "-") return read_file(path, MOST);
    note_typed_input();
    std::string typed(MOST + 1, '\0');
    std::cin.read(typed.data(), std::streamsize(typed.size()));
    typed.resize(size_t(std::cin.gcount()));
    if (typed.size() > MOST)
        return fail(Exit::input, "stdin: expected a prompt of at most %s, found more", human_bytes(MOST).c_str());
    if (typed.ends_with('\n')) typed.pop_back();    // from the command that printed it, not the prompt
    return typed;
}
Result<std::vector<std::string>> read_prompts(const SampleOptions& o) {
    if (!o.prompt_file.empty()) return std::vector<std::string>{TRY(read_input(o.prompt_file))};
    if (o.prompts_file.empty()) return o.prompt.empty() ? std::vector<std::string>{""} : o.prompt;
    if (o.prompts_file == "-") note_typed_input();
    std::vector<std::string> prompts;
    for (Line& line : TRY(read_lines({.files = {o.prompts_file},
                      .field = o.field,
                      .format = text_format(o.format),
                      .longest = o.longest_line})))
        prompts.push_back(std::move(line.text));
    return prompts;
}

// A learned position table keeps its length, so a shorter --context (0: not given) shortens the
// cache.
Status shorten(CacheFlags& cache, const Config& c, int context) {
    if (c.position != Position::learned || !context || context >= c.T) return {};
    if (cache.positions > context)
        return fail(Exit::usage, "--cache %d, --context %d: a cache is no longer than the context", cache.positions,
                    context);
    if (c.mask_kind != MaskKind::causal)
        return fail(Exit::usage, "--context %d: the model's prompts attend in both directions; leave it out", context);
    if (!cache.positions) cache.positions = context;
    return {};
}

// A sample as printed to standard output.
std::string shown(const SampleOptions& o, const Sample& sample, const std::string& prompt, const Tokenizer& tokenizer) {
    if (!o.json)
        return formatted("%s--- %d ---\n", sample.number ? "\n" : "", sample.number + 1) + (o.no_echo ? "" : prompt) +
               sample.text + "\n";
    Json line = Json::object("number", sample.number / o.num + 1, "sample", sample.number % o.num, "prompt", prompt,
                             "text", sample.text, "finish_reason", sample.finish_reason);
    if (o.speculation.any()) line.set("tokens", sample.tokens, "drafted", sample.drafted, "accepted", sample.accepted);
    if (o.search.beams) line.set("score", sample.score);
    else if (!sample.logprobs.empty()) line.set("logprobs", logprobs_json(sample, tokenizer));
    return line.text() + "\n";
}

// Generates and prints samples: a single sample as it is generated, several samples in order.
Status write_samples(const SampleOptions& o, const LoadedModel& m, GenerationOptions options,
                     const std::vector<std::string>& prompts) {
    const int64_t all = int64_t(prompts.size()) * o.num;
    const bool terminal = isatty(STDOUT_FILENO), stream = all == 1 && !o.json;
    auto put = [&](std::string_view text) {
        std::string safe = terminal ? escape_control(text) : std::string(text);
        return fwrite(safe.data(), 1, safe.size(), stdout) == safe.size() && fflush(stdout) == 0;
    };
    // Notes never interrupt the text. Those before its first part are printed at once, those after
    // it when the text has ended.
    std::vector<std::string> notes;
    bool begun = false;
    int64_t cut = 0;    // texts cut off by --tokens
    auto notify = [](const std::string& text) { Progress().note("note: " + text); };
    const std::vector<std::string> truncations = truncation_flags(o.sampling);
    if (o.sampling.temperature == 0 && !truncations.empty() && !o.search.beams)
        notify("--temperature 0 always takes the likeliest token and ignores " + join(truncations, ", "));
    options.note = [&](const std::string& text) { begun ? notes.push_back(text) : notify(text); };
    auto begin = [&] { return std::exchange(begun, true) || put(o.no_echo ? "" : prompts[0]); };
    Countdown countdown = {"sample", "samples"};
    if (stream) options.text = [&](int, std::string_view text) { return begin() && put(text); };
    else
        options.each = [&](const Sample& sample) {
            if (terminal) countdown.progress.clear();
            cut += sample.finish_reason == std::string("length");
            return begun = true, put(shown(o, sample, prompts[size_t(sample.number / o.num)], m.tokenizer));
        };
    if (all > options.batch) options.progress = std::ref(countdown);
    const double start = now_seconds();
    const GenerationResult out = TRY(o.search.beams ? beam_search(*m.model, m.tokenizer, options, o.search)
                                                    : generate(*m.model, m.tokenizer, options));
    const double seconds = now_seconds() - start;
    countdown.progress.clear();
    for (size_t i = 0; i < out.scores.size() && !stream; i++)
        if (!options.each({.number = int(i),
                           .text = out.texts[i],
                           .score = out.scores[i],
                           .finish_reason = out.finish_reasons[i]}))
            return output_failed();
    if (stream && (!begin() || !put("\n"))) return output_failed();
    for (const std::string& text : notes) notify(text);
    if (stream) cut = out.finish_reasons[0] == std::string("length");
    if (cut && o.sampling.grammar)
        notify(counted(cut, "text") + " of " + std::to_string(all) + (cut > 1 ? " are" : " is") + " cut off after " +
               counted(o.tokens, "token") + ", before the grammar's end; more --tokens let texts end");
    fprintf(stderr, "%s in %s, %.1f tokens/s%s (%s)\n", counted(out.tokens, "token").c_str(),
            human_time(seconds).c_str(), double(out.tokens) / seconds,
            drafts_text(o.speculation, out.drafted, out.accepted).c_str(), m.device.c_str());
    return {};
}

// tokens: names of special tokens in the prompt become these tokens, as transformers encodes it.
std::vector<int> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt, bool tokens) {
    if (tokens) return tokenizer.encode_prompt(prompt);
    std::vector<int> ids = tokenizer.vocabulary().before;
    append(ids, tokenizer.encode(prompt));
    return ids;
}

// Encodes the sources, of which an encoder-decoder writes texts.
Status add_sources(const SampleOptions& o, const LoadedModel& m, GenerationOptions& options) {
    for (const std::string& text : o.source) {
        if (text.empty()) return fail(Exit::usage, "--source: expected a text, found an empty one");
        const int most = m.model->plan.source;
        size_t length = 0;
        options.sources.push_back(seq2seq_encode(m.tokenizer, text, most, &length, o.special == "token"));
        options.prompts.push_back({m.model->c.decoder_start});
        if (length > size_t(most))
            Progress().note(formatted("note: the source has %zu tokens: only %d are read", length, most));
    }
    return {};
}

Status sample(SampleOptions o) {
    o.sampling.grammar = TRY(read_grammar(o.form));
    if (o.search.beams && o.num > o.search.beams)
        return fail(Exit::usage, "--num %d, --beams %d: no more texts than beams", o.num, o.search.beams);
    const bool by_source = !o.source.empty();
    const std::vector<std::string> prompts = by_source ? o.source : TRY(read_prompts(o));
    const int64_t all = int64_t(prompts.size()) * o.num;
    if (all >= INT32_MAX) return fail(Exit::usage, "--num %d of %zu prompts: too many", o.num, prompts.size());
    size_t longest_prompt = 0;
    for (const std::string& prompt : prompts) longest_prompt = std::max(longest_prompt, prompt.size());
    const int64_t prompt_tokens = int64_t(longest_prompt) + 2;    // one token per byte; BOS, prefix mark
    int count = 0;                                                // sequences at once
    LoadedModel m, draft;
    o.model_options.gives_source = by_source;
    TRY(load_model(m, o.model_options, o.device, false, [&](const Config& c, bool gpu) {
        if (by_source) {
            count = o.search.beams ? 2 * o.search.beams
                                   : int(std::min<int64_t>(all, o.batch ? o.batch
                                                                : gpu   ? 64
                                                                        : 16));
            return Capacity{.B = count, .S = 1, .source = c.T, .sources = 1};
        }
        // Prompts are prefilled in chunks of `rows` tokens, counted over all sequences. If the
        // context can become full, its last half may be prefilled again, so `longest` includes that
        // length.
        const int rows = saturating_rows(gpu);
        count = o.search.beams ? o.search.beams : int(std::min<int64_t>(all, o.batch ? o.batch : gpu ? 64 : 16));
        const int64_t longest = prompt_tokens + o.tokens > c.T ? std::max<int64_t>(prompt_tokens, c.T / 2)
                                                               : prompt_tokens;
        const bool chunked = c.mask_kind == MaskKind::causal;    // else a prompt's tokens attend to later ones
        const int64_t S = std::min<int64_t>(longest, chunked ? std::max(1, rows / count) : c.T);
        return Capacity{count, int(std::max<int64_t>(S, 1 + o.speculation.most()))};
    }));
    TRY(check_generative(m));
    TRY(check_tokenizer(m));
    TRY(load_generation_defaults(m, o.given, &o.sampling, &o.tokens));
    TRY(check_choices(o.given, o.sampling));
    if (const std::string& path = o.speculation.path; !path.empty())
        TRY(load_draft_model(draft, m, o.model_options, o.device, path, count, prompt_tokens));

    GenerationOptions options;
    for (const std::string& prompt : prompts) {
        if (by_source) break;
        options.prompts.push_back(encode_prompt(m.tokenizer, prompt, o.special == "token"));
        if (options.prompts.back().empty()) options.prompts.back() = beginning_of_text(m);
    }
    options.num = o.num;
    options.tokens = o.tokens;
    options.sampling = o.sampling;
    options.stop = o.stop;
    options.cache = o.cache;
    o.speculation.draft = draft.model.get();
    options.batch = count;
    options.speculation = o.speculation;
    TRY(shorten(options.cache, m.model->c, o.model_options.context_extension.context));
    options.sampling.seed = uint64_t(o.seed);
    options.end_of_text = !o.ignore_end;
    options.logprobs = o.logprobs;
    if (!o.ignore_end) append(options.stop, m.generation.stop);
    if (!by_source) return write_samples(o, m, std::move(options), prompts);
    TRY(add_sources(o, m, options));
    return write_samples(o, m, std::move(options), o.json ? prompts : std::vector<std::string>(prompts.size()));
}

// ---- chat ---------------------------------------------------------------------------------------

struct ChatFlags {
    ModelOptions model_options;
    std::string chat_template;    // --template
    bool json = false;
    ChatOptions chat;
    GrammarFiles form;
    DeviceOptions device;
    std::vector<std::string> given;
};

Status chat(ChatFlags o) {
    o.chat.sampling.grammar = TRY(read_grammar(o.form));
    LoadedModel m, draft;
    TRY(load_model(m, o.model_options, o.device, false, [&](const Config& c, bool gpu) {
        return Capacity{1, c.mask_kind == MaskKind::causal ? std::min(c.T, saturating_rows(gpu)) : c.T};
    }));
    TRY(check_generative(m));
    TRY(check_tokenizer(m));
    const ChatFormat format = TRY(chat_format(m.path, o.chat_template, m.tokenizer));
    Result<ChatTemplate> chat_template = ChatTemplate::parse(format.chat_template);
    if (!chat_template.ok())
        return fail(chat_template.status.code, "%s: %s", format.name.c_str(), chat_template.status.message.c_str());
    TRY(load_generation_defaults(m, o.given, &o.chat.sampling, &o.chat.tokens));
    TRY(check_choices(o.given, o.chat.sampling));
    ChatOptions& c = o.chat;
    c.ends = format.ends;
    c.bos = format.bos;
    c.eos = format.eos;
    append(c.stop, m.generation.stop);
    append(c.stop, format.stop);
    if (const std::string& path = c.speculation.path; !path.empty())
        TRY(load_draft_model(draft, m, o.model_options, o.device, path, 1, m.model->c.T));
    c.speculation.draft = draft.model.get();
    Chat session(*m.model, m.tokenizer, chat_template.take(), c);
    TRY(session.open());
    if (isatty(STDIN_FILENO))
        Progress().note(formatted("%s, %s parameters, a context of %d tokens (%s); /help for help, Ctrl-D ends",
                                  escape_control(m.path).c_str(),
                                  human_count(double(config_parameters(m.model->c))).c_str(), session.options.context,
                                  m.device.c_str()));
    return run_interactive(session, o.json);
}

constexpr const char* DRAFTS = "Drafts: the model verifies several tokens at once";
constexpr const char* PENALTIES = "Biases and penalties, in this order, before the choice";
FlagGroup choice_of_tokens(Sampling& sampling, const std::vector<Flag>& more) {
    FlagGroup group{"Choice of tokens, in order (defaults: generation_config.json)", sampling_flags(sampling)};
    append(group.rows, more);
    return group;
}
std::vector<Flag> beam_flags(SampleOptions& o) {
    std::vector<std::string> others = {"--grammar", "--json-schema", "--logprobs", "--stop",
                                       "--seed",    "--batch",       "--lookup",   "--draft"};
    for (const Flag& f : sampling_flags(o.sampling)) others.push_back(f.name);
    for (const Flag& f : penalty_flags(o.sampling.penalties)) others.push_back(f.name);
    return {{.name = "--beams",
             .to = &o.search.beams,
             .help = "search for the likeliest text: each step keeps the N "
                     "likeliest beginnings; the best text is printed, or the --num best; 0: no search",
             .min = 0,
             .max = 4096,
             .excludes = {join(others, ", ") + ": beams are the likeliest texts by the model's own probabilities"}},
            {.name = "--length-penalty",
             .to = &o.search.length_penalty,
             .help = "a text's score is its "
                     "log-probability, divided by its length to this power: above 0 favours long texts",
             .min = -100,
             .max = 100,
             .needs = {"--beams"}}};
}
}    // namespace

Command sample_command() {
    auto o = std::make_shared<SampleOptions>();
    Command c{"sample", "Continue a prompt with a trained model.",
              "flatgpt sample runs/a --prompt \"It is a truth\" --tokens 200 --temperature 0.8 --top-k 50 --seed 1"};
    c.flags = flag_groups({
        {"Common",
         {{"MODEL", &o->model_options.model, MODEL_HELP, 0, 0, {}, true},
          {"--checkpoint", &o->model_options.checkpoint, "of a run: best (lowest validation loss), last, or a step"},
          adapter_flag(o->model_options),
          {.name = "--prompt",
           .to = &o->prompt,
           .help = "text to continue, or several of them; none: begin a new "
                   "document",
           .letter = 'p',
           .excludes = {"--prompt-file, --prompts"}},
          {.name = "--source",
           .to = &o->source,
           .help = "for encoder-decoders such as T5: the text that is read, or several of them",
           .excludes = {"--prompt, --prompt-file, --prompts", "--draft, --lookup: an encoder-decoder has no drafts"}},
          {.name = "--prompt-file",
           .to = &o->prompt_file,
           .help = "read the prompt from a file; -: from standard "
                   "input, without the newline at its end",
           .excludes = {"--prompts"}},
          {"--prompts", &o->prompts_file,
           "read a prompt from each line of a file that is not blank, or of JSON lines; "
           "-: of standard input"},
          {"--tokens", &o->tokens, "most new tokens per sample", 1, 1e9, {}, false, 'n'},
          {"--num", &o->num, "number of samples of each prompt", 1, 1e6},
          {"--batch",
           &o->batch,
           "most samples that are computed together; when one ends, the next one takes its "
           "place. Changes memory and speed, and on a CPU no text; auto: 16, on a GPU 64",
           0,
           4096,
           {"auto"}},
          {"--seed", &o->seed, "the same seed and options give the same text", 0, 9e18},
          {"--no-echo", &o->no_echo, "print only the new text, without the prompt"},
          {"--json", &o->json, "one JSON object per sample on standard output"},
          {"--tokenizer", &o->model_options.tokenizer, "gpt2 or a tokenizer's file, where the MODEL holds none"}},
         {special_flag(&o->special, "a prompt"),
          {.name = "--logprobs",
           .to = &o->logprobs,
           .help = "the log-probability of each generated token, and of the N "
                   "likeliest there; of the model's logits, before penalties, temperature and all else; 0: none",
           .min = 0,
           .max = 1e6,
           .needs = {"--json"}}}},
        line_flags("Lines of prompts", "--prompts", "prompt", o->field, o->format, o->longest_line),
        choice_of_tokens(o->sampling, {{"--stop", &o->stop, "end a sample before this text"},
                                       {.name = "--ignore-end",
                                        .to = &o->ignore_end,
                                        .help = "go on past <|endoftext|>",
                                        .excludes = {"--grammar, --json-schema: a text ends where its grammar ends"},
                                        .level = Level::expert}}),
        {PENALTIES, {}, penalty_flags(o->sampling.penalties)},
        grammar_flags(o->form),
        {"Beam search, instead of a choice of tokens", {}, beam_flags(*o)},
        {DRAFTS, {}, speculation_flags(o->speculation)},
        {"Cache of keys and values", {}, cache_flags(o->cache)},
        {"Context", context_extension_flags(o->model_options.context_extension)},
        {"Device",
         inference_flags(o->device, o->model_options, "bf16 on a GPU, as the file has them on a CPU"),
         {trace_flag(o->model_options.trace, "of every pass: --tokens limits them")}},
    });
    c.given = &o->given;
    c.run = [o] { return sample(*o); };
    return c;
}

Command chat_command() {
    auto o = std::make_shared<ChatFlags>();
    Command c{"chat", "Talk with a model that was made for conversations.",
              "flatgpt chat SmolLM2-135M-Instruct --system \"Answer in one sentence.\""};
    ChatOptions& chat_options = o->chat;
    c.flags = flag_groups({
        {"Common",
         {{"MODEL", &o->model_options.model, MODEL_HELP, 0, 0, {}, true},
          {"--checkpoint", &o->model_options.checkpoint, "of a run: best (lowest validation loss), last, or a step"},
          adapter_flag(o->model_options),
          {"--system", &chat_options.system, "the system prompt: text before the conversation"},
          {"--tokens",
           &chat_options.tokens,
           "most tokens of an answer; 0: until the context is full",
           0,
           1e9,
           {},
           false,
           'n'},
          {"--context", &chat_options.context,
           "tokens of the conversation that are kept; 0: the model's context, at most 8192", 0, 1 << 24},
          {"--seed", &chat_options.seed, "the same seed, options and lines give the same answers", 0, 9e18},
          {"--json", &o->json, "each answer as a JSON message on a line of its own"},
          {"--cache-dtype",
           &chat_options.cache_type,
           "type of cached keys and values; auto: the activations' type",
           0,
           0,
           {"auto", "fp32", "bf16", "fp8", "int8"}},
          {"--verbose", &chat_options.stats, "after each answer its number of tokens and times"},
          {"--template", &o->chat_template, "a file with a chat template (Jinja) instead of the model's, or chatml"},
          {"--tokenizer", &o->model_options.tokenizer, "gpt2 or a tokenizer's file, where the MODEL holds none"}}},
        choice_of_tokens(chat_options.sampling, {{"--stop", &chat_options.stop, "end an answer before this text"}}),
        {PENALTIES, {}, penalty_flags(chat_options.sampling.penalties)},
        grammar_flags(o->form),
        {DRAFTS, {}, speculation_flags(chat_options.speculation)},
        {"Device", inference_flags(o->device, o->model_options, "bf16 on a GPU, as the file has them on a CPU")},
    });
    c.given = &o->given;
    c.run = [o] { return chat(*o); };
    return c;
}

static const char* const NEEDLE = "--needle: it measures no loss";
static Flag special_of_texts(EvalOptions& o) {
    Flag flag = special_flag(&o.special, "a text");
    flag.needs = {"--text"};
    return flag;
}
Command eval_command() {
    auto o = std::make_shared<EvalOptions>();
    Command c{"eval",
              "Measure a model: loss, perplexity and bits per byte over token shards or texts, or published "
              "evaluations.",
              "flatgpt eval runs/a --data 'tokens/austen_val_*.bin' --json"};
    c.flags = flag_groups({
        {"Common",
         {{"MODEL", &o->model_options.model, MODEL_HELP, 0, 0, {}, true},
          {"--checkpoint", &o->model_options.checkpoint, "of a run: best (lowest validation loss), last, or a step"},
          adapter_flag(o->model_options),
          {.name = "--data",
           .to = &o->data,
           .help = "shards: a path, a glob pattern, or several separated by commas",
           .excludes = {"--text", "--labels", "--pairs"},
           .required_unless = {"--text", "--labels", "--pairs", "--needle", "--task"}},
          {"--text", &o->text,
           "instead of shards: a file with a text on each line, or JSON lines; each is measured by "
           "itself, with --json also reported"},
          {.name = "--labels",
           .to = &o->labels,
           .help = "of a classifier: JSON lines as of train --labels; accuracy, F1 and others",
           .excludes = {"--text", "--task", NEEDLE}},
          {.name = "--pairs",
           .to = &o->pairs,
           .help = "of an encoder-decoder: JSON lines with source and target; loss, BLEU and exact match",
           .excludes = {"--text", "--task", "--labels", NEEDLE}},
          {.name = "--source-len",
           .to = &o->source_len,
           .help = "tokens of a source, at most; 0: --seq-len",
           .min = 0,
           .needs = {"--pairs"}},
          {.name = "--lowercase", .to = &o->lowercase, .help = "BLEU of the texts in lower case", .needs = {"--pairs"}},
          {.name = "--documents",
           .to = &o->documents,
           .help = "positions see only their own document, as in train "
                   "--documents",
           .needs = {"--data"},
           .excludes = {NEEDLE}},
          {"--batch", &o->batch, "sequences per forward pass; with --task most items at a time, if given", 1, 65536},
          {"--seq-len", &o->seq_len,
           "tokens per sequence; 0: the model's context, at most 2048; with --task all of the context", 0, 1 << 20},
          {.name = "--eval-tokens",
           .to = &o->eval_tokens,
           .help = "tokens to evaluate, spread evenly over the shards; "
                   "0: all, every whole window once",
           .min = 0,
           .max = 1e15,
           .needs = {"--data"},
           .excludes = {NEEDLE}},
          {.name = "--raw-u16",
           .to = &o->raw_u16,
           .help = "the files are headerless uint16 tokens (nanoGPT's)",
           .needs = {"--data"}},
          {"--tokenizer", &o->model_options.tokenizer,
           "gpt2 or a tokenizer's file, for bits per byte, where MODEL has none"},
          {"--json", &o->json, "one JSON object on standard output"}},
         {{.name = "--mask-fraction",
           .to = &o->mask_fraction,
           .help = "of a model with --objective mlm: the part of "
                   "the tokens to be guessed",
           .min = 0.001,
           .max = 1,
           .excludes = {NEEDLE}},
          special_of_texts(*o)}},
        line_flags("Lines of texts", "--text", "text", o->field, o->format, o->longest_line),
        task_flags(o->tasks),
        {"By position, and needles",
         {{.name = "--by-position",
           .to = &o->by_position,
           .help = "also the loss by the position in the context, as a "
                   "curve",
           .needs = {"--data"},
           .excludes = {NEEDLE,
                        "--documents: a position's place in its document is not "
                        "its place in the window"}},
          {"--needle", &o->needle,
           "instead: a key and a value of random tokens are hidden in --data's or --text's "
           "text, or in random tokens; is the value found when the key comes again?"},
          {.name = "--csv",
           .to = &o->csv,
           .help = "a CSV file for the losses, or for the needles found",
           .needs = {"--by-position or --needle"}},
          {.name = "--picture",
           .to = &o->picture,
           .help = "a .png or .svg file for the curve or heat map",
           .needs = {"--by-position or --needle"}}},
         {{.name = "--depths",
           .to = &o->needles.depths,
           .help = "depths of the needle, from the sequence's beginning "
                   "to its end",
           .min = 1,
           .max = 1000,
           .needs = {"--needle"}},
          {.name = "--lengths",
           .to = &o->needles.lengths,
           .help = "lengths of the sequence, up to --seq-len",
           .min = 1,
           .max = 1000,
           .needs = {"--needle"}},
          {.name = "--trials",
           .to = &o->needles.trials,
           .help = "needles for each length and depth",
           .min = 1,
           .max = 1e6,
           .needs = {"--needle"}},
          {.name = "--seed",
           .to = &o->needles.seed,
           .help = "seed that needles and random tokens are drawn by",
           .min = 0,
           .max = 9e18,
           .needs = {"--needle"}}}},
        {"Context", context_extension_flags(o->model_options.context_extension)},
        {"Device",
         inference_flags(o->device, o->model_options,
                         "as the run was trained, else bf16 on a GPU and as the file has them on a CPU"),
         {trace_flag(o->model_options.trace, "of every pass: --eval-tokens limits them")}},
    });
    c.given = &o->given;
    c.run = [o] { return eval(*o); };
    return c;
}
