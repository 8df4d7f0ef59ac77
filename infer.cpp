// infer.cpp - `flatgpt sample`, `flatgpt chat` and `flatgpt eval`.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "base/command.h"
#include "base/console.h"
#include "base/file.h"
#include "files/json.h"
#include "model/device.h"
#include "infer/generate.h"
#include "infer/model_files.h"
#include "infer/talk.h"

extern "C" [[gnu::weak]] int malloc_trim(size_t) noexcept;    // glibc gives freed memory back; null in others

namespace {
struct Opened {
    std::string path, device;
    Tokenizer tokenizer;
    bool own_tokenizer = false;    // the model's files hold it
    GenerationConfig generation;
    int64_t documents = -1;    // documents in the training data that begin with end-of-text; -1: unknown
    std::unique_ptr<Model> g;
};

// Takes the checkpoint's tokenizer, else the one of --tokenizer; refuses a different one: its ids mean other text.
Status choose_tokenizer(Opened& m, const ModelSource& source, const std::string& name, const Tokenizer& named) {
    m.tokenizer = TRY(checkpoint_tokenizer(source));
    m.own_tokenizer = m.tokenizer.vocab_size() > 0;
    if (name.empty()) return {};
    if (m.own_tokenizer && named.fingerprint() != m.tokenizer.fingerprint())
        return fail(Exit::usage, "--tokenizer %s (%d tokens) is not the one of %s (%d tokens); leave it out",
                    name.c_str(), named.vocab_size(), m.path.c_str(), m.tokenizer.vocab_size());
    if (!m.own_tokenizer) m.tokenizer = named;
    return {};
}

// Which of a run's checkpoints was taken: "runs/a/step_00000300 (the last; the best by validation is step 200, 4.19:
// --checkpoint best)".
std::string taken_text(const std::string& run, const std::string& dir, TrainState state, const std::string& which) {
    const std::vector<std::string> dirs = checkpoint_list(run);
    // The newest checkpoint knows which one is the best, an older one only which was.
    if (Result<TrainState> newest = checkpoint_state(dirs.back()); newest.ok()) state = newest.value;
    const int64_t step = checkpoint_step(dir), last = checkpoint_step(dirs.back());
    std::string text = which == "best" ? "the best by validation" : which == "last" ? "the last" : "as asked";
    const std::string best = state.best_step >= 0 ? formatted(", %.4g", state.best_loss) : "";
    const bool kept = std::any_of(dirs.begin(), dirs.end(),
                                  [&](auto& d) { return checkpoint_step(d) == state.best_step; });
    if (which == "best") text += best;
    else if (!best.empty() && state.best_step == step) text += ", and the best by validation" + best;
    else if (!best.empty() && kept)
        text += "; the best by validation is step " + std::to_string(state.best_step) + best + ": --checkpoint best";
    if (which != "last" && last != step) text += "; the last is step " + std::to_string(last);
    return dir + " (" + text + ")";
}

struct Source {
    std::string model, checkpoint = "last", tokenizer;    // as the flags name them
};
struct Room { int B, S; };

// Opens a run's checkpoint or a model. room(its shape, on a GPU) says for how many sequences and positions.
// Reads only what a forward pass needs, and parses the tokenizer while the weights are read. as_trained: --dtype auto
// means the run's own type, if this device has it.
Status open_model(Opened& m, const Source& source, DeviceOptions device, bool as_trained,
                  const std::function<Room(const Config& c, bool gpu)>& room) {
    Device opened = TRY(open_device(device, false));
    const Tokenizer named = TRY(source.tokenizer.empty() ? Tokenizer() : Tokenizer::load(source.tokenizer));
    TrainState state;
    auto load = [&](const ModelSource& found) -> Status {
        TRY(checkpoint_verify_frame(found));
        const std::string& dir = m.path = found.path;
        const Config config = TRY(checkpoint_config(found));
        if (access((dir + "/state.json").c_str(), F_OK) == 0) {
            state = TRY(checkpoint_state(dir));
            m.documents = state.documents;
        }
        if (!opened.model) {    // an earlier attempt has used the model: open the device again
            m.g.reset();
            opened = TRY(open_device(device, false));
        }
        DeviceOptions wanted = device;
        if (as_trained && device.dtype == "auto" && !state.dtype.empty()) wanted.dtype = state.dtype;
        if (wanted.dtype != "auto" && wanted.dtype != dtype_name(opened.dtype))
            if (Result<Device> other = open_device(wanted, false); other.ok()) opened = other.take();
        m.device = opened.text;
        m.g = std::move(opened.model);
        Status chosen;
        auto choose = [&] {
            chosen = choose_tokenizer(m, found, source.tokenizer, named);
            if (malloc_trim) malloc_trim(0);
        };
        // Parsing needs about 10 times the file's size. It runs in parallel only if that is under 5 % of the weights.
        std::error_code none;
        const int64_t element = opened.dtype == Dtype::bf16 ? 2 : 4;
        const int64_t parsed = 10 * int64_t(std::filesystem::file_size(dir + "/tokenizer.json", none));
        std::thread beside;
        if (none || parsed > config_parameters(config) * element / 20) choose();
        else beside = std::thread(choose);
        const Room size = room(config, opened.gpu);
        Status s = m.g->allocate(config, {Use::infer, size.B, std::min(size.S, config.T)});
        if (s.ok()) s = checkpoint_weights(found, *m.g, true);
        if (beside.joinable()) beside.join();
        return s.ok() ? chosen : s;
    };
    std::string path = source.model;
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    std::vector<std::string> damaged;
    const Status found = checkpoint_find(path, &damaged, source.checkpoint, load).status;
    for (const std::string& why : damaged) Progress().note("passed over: " + why);
    TRY(found);
    if (m.path != path) Progress().note(escape_control(taken_text(path, m.path, state, source.checkpoint)));
    return {};
}
// The model's tokenizer is there and fits the model.
Status has_tokenizer(const Opened& m) {
    if (m.tokenizer.vocab_size() == 0)
        return fail(Exit::input, "%s holds no tokenizer; give --tokenizer%s a tokenizer.json of %d tokens",
                    m.path.c_str(), m.g->c.V >= Tokenizer::gpt2().vocab_size() ? " gpt2 or" : "", m.g->c.V);
    if (m.tokenizer.vocab_size() > m.g->c.V)
        return fail(Exit::input, "the tokenizer has %d tokens, the model %d", m.tokenizer.vocab_size(), m.g->c.V);
    return {};
}
// The defaults of the model's own generation_config.json, said once.
Status own_defaults(Opened& m, const std::vector<std::string>& given, Sampling* sampling, int* tokens) {
    m.generation = TRY(checkpoint_generation(m.path));
    const std::string taken = take_defaults(m.generation, given, sampling, tokens);
    if (!taken.empty()) Progress().note("note: the model's generation_config.json sets" + taken);
    return {};
}
template <class T> void append(std::vector<T>& to, const std::vector<T>& more) {
    to.insert(to.end(), more.begin(), more.end());
}

// ---- sample ---------------------------------------------------------------------------------------------------------

struct SampleOptions {
    Source source;
    std::vector<std::string> prompt;
    std::string prompt_file, prompts_file;
    std::vector<std::string> stop;
    int tokens = 200, num = 1;
    int64_t seed = 1;
    bool ignore_end = false, no_echo = false, json = false;
    Sampling sampling;
    CacheChoice cache;
    DeviceOptions device;
    std::vector<std::string> given;    // names of the options that were set
};

Result<std::string> read_input(const std::string& path) {
    if (path != "-") return read_file(path, 1 << 30);
    note_typed_input();
    std::string typed(std::istreambuf_iterator<char>(std::cin), {});
    if (typed.ends_with('\n')) typed.pop_back();    // the end of a command's output, not of the prompt
    return typed;
}
Result<std::vector<std::string>> read_prompts(const SampleOptions& o) {
    if (!o.prompt.empty() + !o.prompt_file.empty() + !o.prompts_file.empty() > 1)
        return fail(Exit::usage, "--prompt, --prompt-file and --prompts: only one of them");
    if (!o.prompt_file.empty()) return std::vector<std::string>{TRY(read_input(o.prompt_file))};
    if (o.prompts_file.empty()) return o.prompt.empty() ? std::vector<std::string>{""} : o.prompt;
    std::vector<std::string> lines;
    std::istringstream text(TRY(read_input(o.prompts_file)));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    if (lines.empty())
        return fail(Exit::input, "%s: expected a prompt in each line, found none", o.prompts_file.c_str());
    return lines;
}

Status sample(SampleOptions o) {
    const std::vector<std::string> prompts = TRY(read_prompts(o));
    const int64_t all = int64_t(prompts.size()) * o.num;
    if (all > 4096) return fail(Exit::usage, "--num %d of %zu prompts: at most 4096 in all", o.num, prompts.size());
    size_t longest_prompt = 0;
    for (const std::string& prompt : prompts) longest_prompt = std::max(longest_prompt, prompt.size());
    Opened m;
    TRY(open_model(m, o.source, o.device, false, [&](const Config& c, bool gpu) {
        // Prompts are fed in pieces of so many rows, which fill the device. A context that runs full is fed again.
        const int rows = gpu ? 8192 : 512;
        const int64_t fed = int64_t(longest_prompt) + 2;    // no more tokens than bytes, but for BOS and a mark
        const int64_t longest = fed + o.tokens > c.T ? std::max<int64_t>(fed, c.T / 2) : fed;
        return Room{int(all), int(std::min<int64_t>(longest, std::max<int64_t>(1, rows / all)))};
    }));
    TRY(has_tokenizer(m));
    TRY(own_defaults(m, o.given, &o.sampling, &o.tokens));

    Generation what;
    for (const std::string& prompt : prompts) {
        what.prompts.push_back(m.tokenizer.encode_prompt(prompt));
        if (what.prompts.back().empty()) what.prompts.back() = beginning_of_text(m.tokenizer, m.documents);
    }
    what.num = o.num, what.tokens = o.tokens, what.sampling = o.sampling, what.stop = o.stop, what.cache = o.cache;
    what.sampling.seed = uint64_t(o.seed);
    what.end_of_text = !o.ignore_end;
    if (!o.ignore_end) append(what.stop, m.generation.stop);
    const bool terminal = isatty(STDOUT_FILENO), stream = all == 1 && !o.json;
    auto put = [&](std::string_view text) {
        std::string safe = terminal ? escape_control(text) : std::string(text);
        return fwrite(safe.data(), 1, safe.size(), stdout) == safe.size() && fflush(stdout) == 0;
    };
    // Notes never interrupt the text: early ones come before it, the others wait for its end.
    std::vector<std::string> notes;
    bool begun = false;
    auto echo = [&](size_t i) { return o.no_echo ? std::string() : prompts[i / size_t(o.num)]; };
    auto say = [](const std::string& text) { Progress().note("note: " + text); };
    const Sampling any, &how = o.sampling;
    if (how.temperature == 0 && (how.top_k != any.top_k || how.top_p != any.top_p || how.min_p != any.min_p))
        say("--temperature 0 always takes the likeliest token: --top-k, --top-p and --min-p change nothing");
    what.note = [&](const std::string& text) { begun ? notes.push_back(text) : say(text); };
    auto begin = [&] { return std::exchange(begun, true) || put(echo(0)); };
    if (stream) what.text = [&](int, std::string_view text) { return begin() && put(text); };
    const double start = now_seconds();
    const Generated out = TRY(generate(*m.g, m.tokenizer, what));
    const double seconds = now_seconds() - start;
    for (size_t i = 0; !stream && i < out.texts.size(); i++) {
        const std::string& text = out.texts[i];
        const std::string& prompt = prompts[i / size_t(o.num)];
        std::string line = o.json ? "{\"sample\":" + std::to_string(i % size_t(o.num)) + ",\"prompt\":" +
                                        json_string(prompt) + ",\"text\":" + json_string(text) + "}"
                                  : (i ? "\n--- " : "--- ") + std::to_string(i + 1) + " ---\n" + echo(i) + text;
        if (o.json ? printf("%s\n", line.c_str()) < 0 : !put(line + "\n"))
            return fail(Exit::io, "the output was closed");
    }
    if (stream && (!begin() || !put("\n"))) return fail(Exit::io, "the output was closed");
    for (const std::string& text : notes) say(text);
    fprintf(stderr, "%s in %s, %.1f tokens/s (%s)\n", counted(out.tokens, "token").c_str(),
            human_time(seconds).c_str(), double(out.tokens) / seconds, m.device.c_str());
    return {};
}

// ---- chat ----------------------------------------------------------------------------------------------------------

struct ChatFlags {
    Source source;
    std::string look;    // --template
    bool json = false;
    ChatOptions chat;
    DeviceOptions device;
    std::vector<std::string> given;
};

Status chat(ChatFlags o) {
    Opened m;
    TRY(open_model(m, o.source, o.device, false, [&](const Config& c, bool gpu) {
        return Room{1, std::min(c.T, gpu ? 8192 : 512)};
    }));
    TRY(has_tokenizer(m));
    const ChatFormat format = TRY(chat_format(m.path, o.look, m.tokenizer));
    Result<ChatTemplate> look = ChatTemplate::parse(format.chat_template);
    if (!look.ok()) return fail(look.status.code, "%s: %s", format.name.c_str(), look.status.message.c_str());
    TRY(own_defaults(m, o.given, &o.chat.sampling, &o.chat.tokens));
    ChatOptions& c = o.chat;
    c.ends = format.ends, c.bos = format.bos, c.eos = format.eos;
    append(c.stop, m.generation.stop);
    append(c.stop, format.stop);
    Chat session(*m.g, m.tokenizer, look.take(), c);
    TRY(session.open());
    if (isatty(STDIN_FILENO))
        Progress().note(formatted("%s, %s parameters, a context of %d tokens (%s); /help for help, Ctrl-D ends",
                                  escape_control(m.path).c_str(),
                                  human_count(double(config_parameters(m.g->c))).c_str(),
                                  session.options.context, m.device.c_str()));
    return talk(session, o.json);
}

// ---- eval -----------------------------------------------------------------------------------------------------------

struct EvalOptions {
    Source source;
    std::string data;
    int batch = 8, seq_len = 0;
    int64_t eval_tokens = 0;
    bool raw_u16 = false, json = false;
    DeviceOptions device;
};

Status eval(const EvalOptions& o) {
    Opened m;
    TRY(open_model(m, o.source, o.device, true, [&](const Config& c, bool) {
        return Room{o.batch, o.seq_len ? o.seq_len : c.usual_length()};
    }));
    if (o.seq_len > m.g->c.T)
        return fail(Exit::usage, "--seq-len %d: the model's context has %d positions", o.seq_len, m.g->c.T);
    LoaderConfig config;
    config.pattern = o.data, config.raw_u16 = o.raw_u16, config.B = o.batch, config.S = m.g->plan.S,
    config.vocab = m.g->c.V;
    config.shuffle = false, config.most_tokens = o.eval_tokens;
    Loader loader = TRY(Loader::open(config));
    const std::string own = checkpoint_tokenizer_file(m.path);
    TRY(shards_match(loader.shards(), m.tokenizer, m.g->c.V,
                     m.own_tokenizer ? TokenizerSource{own, "tokenize the text again with that one"}
                                     : TokenizerSource{"--tokenizer " + o.source.tokenizer,
                                                       "give the one that it was made with"}));
    const double start = now_seconds();
    Progress progress;
    auto show = [&](int64_t done, int64_t windows) {
        progress.line(evaluation_progress("eval", done, windows, now_seconds() - start));
    };
    const Evaluation e = TRY(evaluate(*m.g, loader, m.tokenizer, o.batch, m.g->plan.S, show));
    progress.clear();
    const double seconds = now_seconds() - start;
    const bool known = e.bits_per_byte > 0;
    if (o.json) {
        printf("{\"loss\":%s,\"perplexity\":%s,\"bits_per_byte\":%s,\"tokens\":%lld}\n", json_number(e.loss).c_str(),
               json_number(std::exp(e.loss)).c_str(), known ? json_number(e.bits_per_byte).c_str() : "null",
               (long long)e.tokens);
    } else {
        const std::string bits = known ? formatted("%.4f", e.bits_per_byte) : "unknown (--tokenizer)";
        printf("loss %.4f  perplexity %.2f  bits per byte %s  tokens %lld\n", e.loss, std::exp(e.loss), bits.c_str(),
               (long long)e.tokens);
    }
    fprintf(stderr, "%s, %s tokens/s (%s)\n", human_time(seconds).c_str(),
            human_count(double(e.tokens) / seconds).c_str(), m.device.c_str());
    return {};
}

const char* const MODEL_HELP = "a run (see --checkpoint), a checkpoint, a Hugging Face directory or a GGUF file";
FlagGroup choice_of_tokens(Sampling& s, const std::vector<Flag>& more) {
    FlagGroup group{"Choice of tokens (defaults: generation_config.json)", sampling_flags(s)};
    append(group.rows, more);
    return group;
}
}    // namespace

Command sample_command() {
    auto o = std::make_shared<SampleOptions>();
    Command c{"sample", "Continue a prompt with a trained model.",
              "flatgpt sample runs/a --prompt \"It is a truth\" --tokens 200 --temperature 0.8 --top-k 50 --seed 1"};
    c.flags = flag_groups({
        {"Common",
         {{"MODEL", &o->source.model, MODEL_HELP, 0, 0, {}, true},
          {"--checkpoint", &o->source.checkpoint, "of a run: best (lowest validation loss), last, or a step"},
          {"--prompt", &o->prompt, "text to continue, or several of them; none: begin a new document", 0, 0, {}, false,
           'p'},
          {"--prompt-file", &o->prompt_file, "read the prompt from a file; -: from standard input, without the newline "
           "at its end"},
          {"--prompts", &o->prompts_file, "read a prompt from each line of a file; -: of standard input"},
          {"--tokens", &o->tokens, "most new tokens per sample", 1, 1e9, {}, false, 'n'},
          {"--num", &o->num, "number of samples of each prompt; all are computed together", 1, 4096},
          {"--seed", &o->seed, "the same seed and options give the same text", 0, 9e18},
          {"--no-echo", &o->no_echo, "print only the new text, without the prompt"},
          {"--json", &o->json, "one JSON object per sample on standard output"},
          {"--tokenizer", &o->source.tokenizer, "gpt2 or a tokenizer's file, where the MODEL holds none"}}},
        choice_of_tokens(o->sampling,
         {{"--stop", &o->stop, "end a sample before this text"},
          {"--ignore-end", &o->ignore_end, "go on past <|endoftext|>"}}),
        {"Cache of keys and values", cache_flags(o->cache)},
        {"Device", device_flags(o->device, "bf16 on a GPU, else fp32")},
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
         {{"MODEL", &o->source.model, MODEL_HELP, 0, 0, {}, true},
          {"--checkpoint", &o->source.checkpoint, "of a run: best (lowest validation loss), last, or a step"},
          {"--system", &chat_options.system, "what the model is told before the conversation"},
          {"--tokens", &chat_options.tokens, "most tokens of an answer; 0: what the context holds", 0, 1e9, {}, false,
           'n'},
          {"--context", &chat_options.context,
           "tokens of the conversation that are kept; 0: the model's context, at most 8192", 0, 1 << 24},
          {"--seed", &chat_options.seed, "the same seed, options and lines give the same answers", 0, 9e18},
          {"--json", &o->json, "each answer as a JSON message on a line of its own"},
          {"--cache-dtype", &chat_options.cache_type, "type of cached keys and values; auto: as activations are", 0, 0,
           {"auto", "fp32", "bf16", "fp8", "int8"}},
          {"--verbose", &chat_options.stats, "after each answer its number of tokens and times"},
          {"--template", &o->look, "a file with a chat template (Jinja) instead of the model's, or chatml"},
          {"--tokenizer", &o->source.tokenizer, "gpt2 or a tokenizer's file, where the MODEL holds none"}}},
        choice_of_tokens(chat_options.sampling,
         {{"--stop", &chat_options.stop, "end an answer before this text"}}),
        {"Device", device_flags(o->device, "bf16 on a GPU, else fp32")},
    });
    c.given = &o->given;
    c.run = [o] { return chat(*o); };
    return c;
}

Command eval_command() {
    auto o = std::make_shared<EvalOptions>();
    Command c{"eval", "Measure a model's loss, perplexity and bits per byte over token shards.",
              "flatgpt eval runs/a --data 'tokens/austen_val_*.bin' --json"};
    c.flags = flag_groups({
        {"Common",
         {{"MODEL", &o->source.model, MODEL_HELP, 0, 0, {}, true},
          {"--checkpoint", &o->source.checkpoint, "of a run: best (lowest validation loss), last, or a step"},
          {"--data", &o->data, "shards: a path, a glob pattern, or several separated by commas", 0, 0, {}, true},
          {"--batch", &o->batch, "sequences per forward pass", 1, 65536},
          {"--seq-len", &o->seq_len, "tokens per sequence; 0: the model's context, at most 2048", 0, 1 << 20},
          {"--eval-tokens", &o->eval_tokens,
           "tokens to evaluate, spread evenly over the shards; 0: all, every whole window once", 0, 1e15},
          {"--raw-u16", &o->raw_u16, "the files are headerless uint16 tokens (nanoGPT's)"},
          {"--tokenizer", &o->source.tokenizer, "gpt2 or a tokenizer's file, for bits per byte, where MODEL has none"},
          {"--json", &o->json, "one JSON object on standard output"}}},
        {"Device", device_flags(o->device, "as the run was trained, else bf16 on a GPU and fp32 on a CPU")},
    });
    c.run = [o] { return eval(*o); };
    return c;
}
