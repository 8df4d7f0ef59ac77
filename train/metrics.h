// metrics.h - reads metrics.jsonl: one JSON object per step.
#pragma once
#include <functional>
#include <string>

#include "files/json.h"

double unix_seconds();    // since 1970, to milliseconds: "time" of a row

// Calls row(object, "file:line") for each object. path: the file, or the run's directory. A last
// line that is invalid is ignored, because a killed run may leave one. Exit 3: the file cannot be
// opened or has another invalid line; 4: reading failed; or an error of `row`.
Status read_metrics(const std::string& path,
                    const std::function<Status(const nlohmann::json& object, const std::string& where)>& row);
