// config.h - what a model is: its sizes and kinds, one row per field.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "base/command.h"
#include "layers/ops.h"

struct Family;    // model/families.h
extern const Family GPT2;

// GPT-2: pre-LayerNorm, learned positions, GELU ffn, biases, tied head. A new kind needs a field here, its row in
// config.cpp, and its meaning in gpt.cpp. Defaults that follow from earlier fields are written so.
struct Config {
    int V = 50257;    // vocabulary
    int T = 1024;     // context: positions that wpe has
    int L = 12;       // blocks
    int NH = 12;      // query heads
    int C = 768;      // channels
    int F = 4 * C;    // ffn width
    float norm_eps = 1e-5f;
    int NKV = NH;                                   // key/value heads; query heads h share h / (NH / NKV)
    int HS = NH > 0 && C % NH == 0 ? C / NH : 0;    // head size; attention is NH * HS wide
    int window = 0;                                 // positions that a query sees, itself included; 0: no limit
    int activation = 0;                             // the ffn's: an index into its row's choices
    const Family* family = &GPT2;                   // its files use this family's names

    // Rows of wte in memory, the last ones zero: GEMMs want multiples of 128, small models cannot afford the waste.
    int Vp() const { return int(round_up(V, V < 1024 ? 16 : 128)); }
    Heads heads() const { return {NH, NKV, HS, window}; }
    Config plain() const { return {.V = V, .T = T, .L = L, .NH = NH, .C = C, .family = family}; }    // else defaults
    bool operator==(const Config&) const = default;
};

// One row per field. The rows drive flags, config.json both ways, range checks, messages and listings.
struct ConfigRow {
    enum Presence { required, usual, rare };    // in a config.json. rare: written and listed if not as in plain()
    typedef std::variant<int Config::*, float Config::*> Member;
    Member member;
    const char* name;          // "kv_heads"; null: never listed
    bool counted;              // people say "6 layers", but "context 256"
    const char* flag;          // option of train and bench; null: none
    // In config.json, in GPT-2's spelling and in Llama's: the first is read, all are written.
    std::vector<const char*> keys[2];
    const char* gguf;          // the key after the architecture's name; null: the architecture implies it
    double min, max;
    Presence presence;
    const char* help;          // the flag's
    // For a field with kinds: config.json's names of each value; the first one is written.
    std::vector<std::vector<std::string>> choices = {};
};
const std::vector<ConfigRow>& config_rows();    // in the order that config.json has them
double config_value(const Config& c, const ConfigRow& row);
void config_set(Config& c, const ConfigRow& row, double value);

Status config_check(const Config& c);                    // exit 2: which field is impossible, and why
Result<Config> config_named(const std::string& name);    // a family's preset, or dN. Exit 2
std::string config_names();                              // "gpt2, gpt2-medium, ..., dN": for help

// What flags ask for: a Config whose fields are 0 where a flag was not given.
Config config_nothing();
std::vector<Flag> config_flags(Config& asked);
// base with what is asked for. Fields that follow from others are computed again if those have changed.
Config config_with(const Config& base, const Config& asked);

// The fields to list: all but rare ones that are as in plain(). With `other`: those that differ from it.
std::vector<const ConfigRow*> config_listed(const Config& c, const Config* other = nullptr);
// The fields of c that its family's class in transformers has no place for.
std::vector<const ConfigRow*> config_beyond_class(const Config& c);
std::string config_text(const Config& c, const std::vector<const ConfigRow*>& rows);    // "context 64, 2 layers"
