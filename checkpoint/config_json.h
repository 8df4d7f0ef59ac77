// config_json.h - shared by config_json.cpp, config_layers.cpp and nanochat.cpp.
#pragma once
#include "files/json.h"
#include "model/families/families.h"

// Converts x to the double with x's shortest decimal form: 1e-05, not 9.999999747378752e-06.
double json_shortest(float x);

nlohmann::json ids_json(const std::vector<int>& ids);    // null, one id or a list

// Parse and write the fields of config.json that differ by layer: windows, layers with RoPE, and
// its frequencies. Call the parsers after the family's keys were read into *c and its other fields
// set by family_defaults(). Exit 3.
Status layers_parse(const JsonFields& f, Config* c);
Status rope_parse(const JsonFields& f, Config* c);
void layers_json(const Config& c, nlohmann::ordered_json* j);
void rope_json(const Config& c, nlohmann::ordered_json* j);
// Writes the fields of c that say which layers have no window: those with global[l] set, L marks.
// Exit 3: no fields can express this. key: where the marks were read from, for the message.
Status window_pattern(const JsonFields& f, const char* key, const std::vector<bool>& global, Config* c);
