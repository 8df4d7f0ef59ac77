// metrics.h - reads metrics.jsonl: one JSON object per step.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "files/json.h"

double unix_seconds();    // since 1970, to milliseconds: "time" of a row

// Calls line(text, number, whether it is the last) for each line of a regular file; numbers count
// from 1. Memory has one line and a piece of the file. Exit 3: no such file, not a regular one, or
// a line of more than `longest` bytes; 4: reading failed; or an error of `line`.
Status each_line(const std::string& path, int64_t longest,
                 const std::function<Status(std::string_view text, int64_t number, bool last)>& line);

int64_t step_of(const nlohmann::json& row);    // -1: none, or not in 0..1e15
// The row's number under `key`; `otherwise` if there is none.
double number_of(const nlohmann::json& row, const char* key, double otherwise = NAN);

double rounded_to(int digits, double x);    // nearest decimal with so many digits

// Calls row(object, "file:line") for each object. path: the file, or the run's directory. A last
// line that is invalid is ignored, because a killed run may leave one. Exit 3: the file cannot be
// opened or has another invalid line; 4: reading failed; or an error of `row`.
Status read_metrics(const std::string& path,
                    const std::function<Status(const nlohmann::json& object, const std::string& where)>& row);
