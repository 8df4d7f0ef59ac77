// metrics.cpp - see metrics.h.
#include "metrics.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/console.h"

double unix_seconds() {
    using namespace std::chrono;
    return double(duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count()) / 1e3;
}

Status read_metrics(const std::string& run,
                    const std::function<Status(const nlohmann::json& object, const std::string& where)>& row) {
    std::error_code error;
    std::string path = std::filesystem::is_directory(run, error) ? run + "/metrics.jsonl" : run;
    std::ifstream file(path, std::ios::binary);
    if (!file && errno == ENOENT)
        return fail(Exit::input, "%s: no such file or directory", escape_control(path).c_str());
    if (!file) return fail(Exit::input, "%s: cannot be opened: %s", escape_control(path).c_str(), strerror(errno));
    int64_t number = 0;
    for (std::string line; std::getline(file, line);) {
        number++;
        std::string where = escape_control(path) + ":" + std::to_string(number);
        Result<nlohmann::json> object = json_parse(line, where, 4);
        if (object.ok() && !object.value.is_object())
            object.status = fail(Exit::input, "%s: expected a JSON object", where.c_str());
        if (object.ok()) TRY(row(object.value, where));
        else if (file.peek() != EOF) return object.status;
    }
    if (file.bad()) return fail(Exit::io, "%s: reading stopped: %s", escape_control(path).c_str(), strerror(errno));
    return {};
}
