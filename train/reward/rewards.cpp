// rewards.cpp - see rewards.h.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "train/reward/rewards.h"

#include <pcre2.h>

#include "base/command.h"
#include "base/file.h"
#include "files/json.h"
#include "infer/sampling/grammar.h"
#include "infer/sampling/json_schema.h"

std::string trimmed(const std::string& text) {
    constexpr const char* WHITE = " \t\r\n\f\v";
    const size_t from = text.find_first_not_of(WHITE);
    return from == std::string::npos ? "" : text.substr(from, text.find_last_not_of(WHITE) + 1 - from);
}

namespace {
typedef std::vector<SampledAnswer> Answers;
// A reward of 1 for answers that pass a test, else of 0.
template <class Test> Reward passes(const Test& test) {
    return [test](const Answers& answers) -> Result<std::vector<double>> {
        std::vector<double> all;
        for (const SampledAnswer& a : answers) all.push_back(test(a) ? 1 : 0);
        return all;
    };
}

Result<Reward> exact(const std::string&, double) {
    return passes([](const SampledAnswer& a) { return trimmed(a.text) == trimmed(a.line->expected); });
}

// PCRE2's syntax. A match that exceeds the steps counts as none, so that no answer can stop a run.
Result<Reward> regex(const std::string& pattern, double) {
    constexpr uint32_t MOST_STEPS = 10'000'000;
    int error = 0;
    PCRE2_SIZE at = 0;
    const std::shared_ptr<pcre2_code> code(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr),
        pcre2_code_free);
    if (!code) {
        PCRE2_UCHAR what[128] = "";
        pcre2_get_error_message(error, what, sizeof what);
        return fail(Exit::usage, "--reward regex:%s: byte %zu of the regular expression: %s", pattern.c_str(),
                    size_t(at), reinterpret_cast<const char*>(what));
    }
    const std::shared_ptr<pcre2_match_context> limits(pcre2_match_context_create(nullptr), pcre2_match_context_free);
    pcre2_set_match_limit(limits.get(), MOST_STEPS);
    const std::shared_ptr<pcre2_match_data> match(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
    return passes([code, limits, match](const SampledAnswer& a) {
        return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(a.text.data()), a.text.size(), 0, 0, match.get(),
                           limits.get()) >= 0;
    });
}

// The grammar of `sample --json-schema`: members come in the order of the schema's properties.
Result<Reward> json_schema(const std::string& path, double) {
    const std::string schema = TRY(read_file(path, int64_t(1) << 24));
    const std::string rules = TRY(json_schema_grammar(schema, path));
    const std::shared_ptr<const Grammar> grammar = TRY(Grammar::parse(rules, path));
    return passes([machine = std::make_shared<GrammarMachine>(grammar)](const SampledAnswer& a) {
        const std::string text = trimmed(a.text);
        constexpr size_t MOST_STATES = 1 << 16;
        if (machine->size() > MOST_STATES) machine->forget_all_but(machine->start());
        int state = machine->start();
        for (size_t i = 0; i < text.size() && state != GrammarMachine::DEAD; i++)
            state = machine->step(state, static_cast<unsigned char>(text[i]));
        return machine->may_end(state) && json_parse(text, "the answer", 512).ok();
    });
}
}    // namespace

const RewardRow REWARDS[4] = {
    {"exact", "exact", true, exact},
    {"regex:RE", "regex:", false, regex},
    {"json-schema:FILE", "json-schema:", false, json_schema},
    {"./COMMAND", "", false, reward_command},
};
std::string reward_forms() {
    std::vector<std::string> forms;
    for (const RewardRow& row : REWARDS) forms.push_back(row.form);
    return join(forms, ", ");
}

Result<const RewardRow*> reward_row(const std::string& value) {
    for (const RewardRow& row : REWARDS) {
        const std::string prefix = row.prefix;
        const bool command = prefix.empty(), alone = !command && prefix.back() != ':';
        if (alone     ? value == prefix
            : command ? value.substr(0, value.find(' ')).find('/') != std::string::npos
                      : value.starts_with(prefix) && value.size() > prefix.size())
            return &row;
    }
    return fail(Exit::usage, "--reward %s: expected one of %s; a command's path has a slash", value.c_str(),
                reward_forms().c_str());
}
Result<Reward> reward_open(const std::string& value, double timeout) {
    const RewardRow& row = *TRY(reward_row(value));
    return row.make(value.substr(std::string(row.prefix).size()), timeout);
}
