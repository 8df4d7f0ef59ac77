// model_defaults.cpp - defaults from a model's files, and the chat template.
#include "model_defaults.h"

#include <algorithm>

#include "base/file.h"

// ---- sampling -----------------------------------------------------------------------------------

std::vector<Flag> sampling_flags(Sampling& sampling) {
    return {{"--temperature", &sampling.temperature, "higher: more varied; 0: always the likeliest token", 0, 100},
            {.name = "--top-n-sigma",
             .to = &sampling.top_n_sigma,
             .help = "no token whose logit lies more than this many "
                     "standard deviations of all logits below the largest; 0: off",
             .min = 0,
             .max = 1e3,
             .level = Level::expert},
            {"--top-k", &sampling.top_k, "only the k likeliest tokens; 0: all", 0, 1e7},
            {.name = "--typical-p",
             .to = &sampling.typical_p,
             .help = "only the smallest set of this probability whose surprise (-log p) is "
                     "nearest to the entropy",
             .min = 1e-9,
             .max = 1,
             .level = Level::expert},
            {"--top-p", &sampling.top_p, "only the smallest set of likeliest tokens with this probability", 1e-9, 1},
            {"--min-p", &sampling.min_p, "no token below this fraction of the likeliest one's probability", 0, 1},
            {.name = "--mirostat",
             .to = &sampling.mirostat,
             .help = "instead of the five filters above: aim at this surprise for "
                     "each token, in bits (mirostat 2; usual: 5); 0: off",
             .min = 0,
             .max = 100,
             .excludes = {"--top-n-sigma, --top-k, --typical-p, --top-p, --min-p: mirostat replaces the other filters"
                          "",
                          "--temperature 0: temperature 0 does not sample"},
             .level = Level::expert},
            {.name = "--mirostat-rate",
             .to = &sampling.mirostat_rate,
             .help = "mirostat's learning rate",
             .min = 0,
             .max = 1,
             .needs = {"--mirostat"},
             .level = Level::expert}};
}
std::vector<Flag> penalty_flags(Penalties& p) {
    return {
        {"--logit-bias", &p.bias,
         "TOKEN_ID=VALUE or TEXT=VALUE: add to this token's logit; -inf: never "
         "this token"},
        {"--repetition-penalty", &p.repetition, "above 1: tokens seen so far, the prompt's too, become less likely",
         0.01, 100},
        {"--presence-penalty", &p.presence, "subtracted once from the logits of tokens generated so far (OpenAI's)",
         -100, 100},
        {"--frequency-penalty", &p.frequency, "subtracted from them for each time they were generated (OpenAI's)", -100,
         100},
        {"--penalty-last", &p.last, "the three penalties above count only the last N tokens; 0: all", 0, 1e9},
        {"--dry", &p.dry, "subtracted from a token that would extend a repetition (DRY; usual: 0.8); 0: off", 0, 100},
        {.name = "--dry-base",
         .to = &p.dry_base,
         .help = "factor on --dry for each token that the repetition exceeds --dry-length",
         .min = 1,
         .max = 100,
         .needs = {"--dry"}},
        {.name = "--dry-length",
         .to = &p.dry_length,
         .help = "shortest repetition that DRY counts, in tokens",
         .min = 1,
         .max = 1e6,
         .needs = {"--dry"}},
        {.name = "--dry-breakers",
         .to = &p.dry_breakers,
         .help = "texts that no repetition crosses; none: a "
                 "line's end, : \" and *",
         .needs = {"--dry"}}};
}
namespace {
const struct TruncationFlag {
    const char* name;
    double (*value)(const Sampling& sampling);
} TRUNCATION_FLAGS[] = {{"--top-n-sigma", [](const Sampling& sampling) { return sampling.top_n_sigma; }},
                        {"--top-k", [](const Sampling& sampling) { return double(sampling.top_k); }},
                        {"--typical-p", [](const Sampling& sampling) { return sampling.typical_p; }},
                        {"--top-p", [](const Sampling& sampling) { return sampling.top_p; }},
                        {"--min-p", [](const Sampling& sampling) { return sampling.min_p; }}};
}    // namespace
std::vector<std::string> truncation_flags(const Sampling& sampling) {
    std::vector<std::string> names;
    for (const TruncationFlag& n : TRUNCATION_FLAGS)
        if (n.value(sampling) != n.value({})) names.push_back(n.name);
    return names;
}
std::string apply_generation_defaults(const GenerationConfig& file, const std::vector<std::string>& given,
                                      Sampling* sampling, int* tokens) {
    std::string taken;
    auto take = [&](const char* name, const auto& from, auto* to) {
        if (!from || *to == *from || was_given(given, name)) return;
        *to = *from;
        taken += formatted("%s %s %g", taken.empty() ? "" : ",", name, double(*from));
    };
    std::optional<double> temperature = file.temperature;
    if (file.do_sample) temperature = *file.do_sample ? temperature.value_or(1) : 0;
    take("--temperature", temperature, &sampling->temperature);
    take("--top-k", file.top_k, &sampling->top_k);
    take("--top-p", file.top_p, &sampling->top_p);
    take("--min-p", file.min_p, &sampling->min_p);
    take("--typical-p", file.typical_p, &sampling->typical_p);
    take("--repetition-penalty", file.repetition_penalty, &sampling->penalties.repetition);
    take("--tokens", file.max_new_tokens, tokens);
    return taken;
}

// ---- the chat template --------------------------------------------------------------------------

namespace {
const char* const CHATML =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
// The id of a text that is a single token; else -1.
int one_token(const Tokenizer& tokenizer, const std::string& text) {
    const std::vector<int> ids = tokenizer.encode(text, true);
    return ids.size() == 1 ? ids[0] : -1;
}
}    // namespace

Result<ChatFormat> chat_format(const std::string& model, const std::string& named, const Tokenizer& tokenizer) {
    const Vocabulary& v = tokenizer.vocabulary();
    ChatFormat c{v.chat_template, model, {}, {}, v.ends, {}};
    if (named == "chatml") c.chat_template = CHATML, c.name = named;
    else if (!named.empty()) c.chat_template = TRY(read_file(named, 64 << 20)), c.name = named;
    if (c.chat_template.empty())
        return fail(Exit::usage,
                    "%s has no chat template (chat_template in tokenizer_config.json or in a GGUF, or "
                    "chat_template.jinja): it was not made for conversations. Give one: --template FILE, or --template "
                    "chatml; or continue a text with flatgpt sample",
                    model.c_str());
    if (v.bos >= 0) c.bos = v.name(v.bos);
    if (v.eos >= 0) c.eos = v.name(v.eos);
    c.ends.push_back(v.eos);
    c.ends.push_back(tokenizer.end_of_text());
    // The template contains the marker that ends a turn, even if no file lists it as an end token.
    for (const std::string_view marker : ANSWER_ENDS) {
        if (c.chat_template.find(marker) == std::string::npos) continue;
        const int id = one_token(tokenizer, std::string(marker));
        if (id >= 0) c.ends.push_back(id);
        else c.stop.emplace_back(marker);
    }
    std::sort(c.ends.begin(), c.ends.end());
    c.ends.erase(std::unique(c.ends.begin(), c.ends.end()), c.ends.end());
    std::erase(c.ends, -1);
    return c;
}
