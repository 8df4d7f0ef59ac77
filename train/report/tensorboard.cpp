// tensorboard.cpp - see tensorboard.h.
#include "train/report/tensorboard.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/console.h"
#include "files/event_file.h"
#include "train/metrics.h"

namespace {
using nlohmann::json;

constexpr const char *PREFIX = "events.out.tfevents.", *SUFFIX = ".flatgpt";
constexpr double FLUSH_SECONDS = 5;
constexpr int64_t LATEST = 1'000'000'000'000'000;    // seconds that a file's name may state
constexpr int64_t LIST_STEPS = 100;                  // between steps whose lists are written

struct Values {
    std::vector<EventScalar> scalars;
    std::vector<EventText> texts;
};
// Adds a value under its tag. Items of lists and objects get tags of their own, tag/0 or tag/name.
void add_value(const std::string& tag, const json& value, Values& to) {
    if (value.is_number()) to.scalars.push_back({tag, value.get<float>()});
    if (value.is_string()) to.texts.push_back({tag, value.get<std::string>()});
    size_t i = 0;
    if (value.is_array())
        for (const json& item : value) add_value(tag + "/" + std::to_string(i++), item, to);
    if (value.is_object())
        for (const auto& [key, item] : value.items()) add_value(tag + "/" + key, item, to);
}
// TensorBoard groups tags by the part before the first slash: norms by their kind.
void add_norms(const json& norms, Values& to) {
    static const char* const KINDS[] = {"weight_norm/", "gradient_norm/", "update_norm/"};
    for (const auto& [tensor, values] : norms.items())
        for (size_t i = 0; i < 3 && values.is_array() && i < values.size(); i++)
            add_value(KINDS[i] + tensor, values[i], to);
}
void add_samples(const json& samples, Values& to) {
    size_t i = 0;
    for (const json& s : samples) {
        i++;
        if (!s.is_object()) continue;
        auto text = [&](const char* key) {
            return s.contains(key) && s[key].is_string() ? s[key].get<std::string>() : "";
        };
        to.texts.push_back({"sample/" + std::to_string(i), text("prompt") + text("text")});
    }
}
std::vector<std::filesystem::path> event_files(const std::string& dir) {
    std::vector<std::filesystem::path> found;
    std::error_code error;
    for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
        const std::string file = it->path().filename();
        if (file.starts_with(PREFIX) && file.ends_with(SUFFIX)) found.push_back(it->path());
    }
    return found;
}
}    // namespace

TensorBoard::~TensorBoard() {
    if (file) fclose(file);
}

Status TensorBoard::open(const std::string& run) {
    const std::string dir = run + "/tensorboard", temporary = dir + "/.new";
    std::error_code error;
    std::filesystem::create_directories(dir, error);
    name = temporary;
    unlink(temporary.c_str());    // a killed run's
    file = fopen(temporary.c_str(), "we");
    if (!file) return fail(Exit::io, "%s: cannot be written: %s", temporary.c_str(), strerror(errno));
    const std::vector<std::filesystem::path> old = event_files(dir);
    // A name with the time, as TensorFlow's, that is later than all there are.
    auto seconds = int64_t(unix_seconds());
    for (const auto& path : old) {
        const long long of_file = strtoll(path.filename().c_str() + strlen(PREFIX), nullptr, 10);
        seconds = std::max(seconds, std::min<int64_t>(of_file, LATEST) + 1);
    }
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    Status written = write(event_file_version(unix_seconds()) + event_restart(unix_seconds(), 0));
    if (written.ok()) written = read_metrics(run, [&](const json& row, const std::string&) { return add(row); });
    if (written.ok()) written = flush();
    const std::string final_name = dir + "/" + PREFIX + formatted("%010lld", (long long)seconds) + "." + host + "." +
                                   std::to_string(getpid()) + SUFFIX;
    if (written.ok() && rename(temporary.c_str(), final_name.c_str()) != 0)
        written =
            fail(Exit::io, "%s: cannot be renamed to %s: %s", temporary.c_str(), final_name.c_str(), strerror(errno));
    if (!written.ok()) {
        unlink(temporary.c_str());
        return written;
    }
    name = final_name;
    for (const auto& path : old) std::filesystem::remove(path, error);
    return {};
}

Status TensorBoard::write(const std::string& bytes) {
    if (fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size()) return {};
    return fail(Exit::io, "%s: cannot be written: %s", name.c_str(), strerror(errno));
}
Status TensorBoard::flush() {
    flushed = now_seconds();
    return fflush(file) == 0 ? Status{} : fail(Exit::io, "%s: cannot be written: %s", name.c_str(), strerror(errno));
}

Status TensorBoard::add(const json& row) {
    Values values;
    bool rare = false;    // validation or samples
    double time = unix_seconds();
    const int64_t step = std::max<int64_t>(0, step_of(row));
    // TensorBoard cannot load a tag for each layer and expert of each of many steps.
    const bool lists = row.contains("val_loss") || step % LIST_STEPS == 0;
    for (const auto& [key, value] : row.items()) {
        if (key == "step") continue;
        if (key == "time" && value.is_number()) time = value.get<double>();
        else if (key == "norms" && value.is_object()) add_norms(value, values);
        else if (key == "samples" && value.is_array()) add_samples(value, values);
        else if (lists || !value.is_array()) add_value(key, value, values);
        rare = rare || key.starts_with("val_") || key.starts_with("sample");
    }
    TRY(write(event_summary(time, step, values.scalars, values.texts)));
    return rare || now_seconds() - flushed > FLUSH_SECONDS ? flush() : Status{};
}
