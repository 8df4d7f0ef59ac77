// metrics.h - reading metrics.jsonl: one JSON object a step.
#pragma once
#include <functional>
#include <string>

#include "files/json.h"

// Each object to `row`, with file and line. path: the file, or the run that holds it. A last line that is no JSON is
// what a killed run leaves, and passed over. Exit 3, 4; or what row returns.
Status read_metrics(const std::string& path,
                    const std::function<Status(const nlohmann::json& object, const std::string& where)>& row);
