// config.h - what a model is: its sizes and kinds, one row per field.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "base/command.h"
#include "layers/ops.h"

struct Family;    // model/families.h
extern const Family GPT2;

// GPT-2: pre-LayerNorm, learned positions, GELU ffn, biases, tied head. A further kind is a field here, its row in
// config.cpp and what it means in gpt.cpp. The defaults say what follows from the fields before them.
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
    int activation = 0;                             // of the ffn: a choice of its row
    const Family* family = &GPT2;                   // whose names its files have

    // Rows of wte in memory, the last ones zero: GEMMs like multiples of 128, a small model does not like the waste.
    int Vp() const { return int(round_up(V, V < 1024 ? 16 : 128)); }
    Heads heads() const { return {NH, NKV, HS, window}; }
    Config plain() const { return {V, T, L, NH, C}; }    // these sizes, all other fields as they follow
    bool operator==(const Config&) const = default;
};

// One row per field. The rows drive flags, config.json both ways, range checks, messages and listings.
struct ConfigRow {
    enum Presence { required, usual, rare };    // in a config.json. rare: written and listed where it is not plain
    typedef std::variant<int Config::*, float Config::*> Member;
    Member member;
    const char* name;          // "kv_heads"; null: never listed
    bool counted;              // people say "6 layers", but "context 256"
    const char* flag;          // of train and bench; null: none
    // In config.json, in GPT-2's spelling and in Llama's: the first is read, all are written.
    std::vector<const char*> keys[2];
    const char* gguf;          // the key after the architecture's name; null: the architecture implies it
    double min, max;
    Presence presence;
    const char* help;          // the flag's
    // Of a kind: what config.json calls each value, the name that is written first.
    std::vector<std::vector<std::string>> choices = {};
};
const std::vector<ConfigRow>& config_rows();    // in the order that config.json has them
double config_value(const Config& c, const ConfigRow& row);
void config_set(Config& c, const ConfigRow& row, double value);

Status config_check(const Config& c);                    // exit 2: which field is impossible, and why
Result<Config> config_named(const std::string& name);    // a family's preset, or dN. Exit 2
std::string config_names();                              // "gpt2, gpt2-medium, ..., dN": for help

// What flags ask for: a Config whose fields are 0 where nothing is asked.
Config config_nothing();
std::vector<Flag> config_flags(Config& asked);
// base, with what is asked for. Fields that follow from others do so again where these have changed.
Config config_with(const Config& base, const Config& asked);

// The fields that a listing names: not a rare one that is as it follows from the others. With `other` those that differ.
std::vector<const ConfigRow*> config_listed(const Config& c, const Config* other = nullptr);
std::string config_text(const Config& c, const std::vector<const ConfigRow*>& rows);    // "context 64, 2 layers"
