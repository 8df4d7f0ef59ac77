// tensor_check.cpp - see tensor_check.h.
#include "checkpoint/tensor_check.h"

#include <mutex>
#include <set>

static std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text;
    for (int64_t d : shape) text += (text.empty() ? "" : ", ") + std::to_string(d);
    return "(" + text + ")";
}

Status check_tensors(const std::string& location, const std::vector<ExpectedTensor>& wanted,
                     const std::map<std::string, std::vector<int64_t>>& held, const char* as,
                     const std::function<bool(const std::string& key)>& allowed) {
    std::set<std::string> known;
    for (const ExpectedTensor& w : wanted) {
        const std::string expected = shape_text(w.shape);
        auto it = held.find(w.key);
        if (it == held.end())
            return fail(Exit::input, "%s: tensor \"%s\" %s: not found%s", location.c_str(), w.name.c_str(),
                        expected.c_str(), as);
        if (it->second != w.shape)
            return fail(Exit::input, "%s: tensor \"%s\": expected shape %s, found %s", location.c_str(), w.name.c_str(),
                        expected.c_str(), shape_text(it->second).c_str());
        known.insert(w.key);
    }
    for (auto& [key, shape] : held)
        if (!known.contains(key) && !(allowed && allowed(key)))
            return fail(Exit::input, "%s: tensor \"%s\" %s is no part of this model", location.c_str(), key.c_str(),
                        shape_text(shape).c_str());
    return {};
}

Status not_finite(const std::string& location, const std::string& tensor) {
    return fail(Exit::input,
                "%s: tensor \"%s\": expected finite numbers, found NaN or infinity: the file is damaged, "
                "or the training that made it has diverged; take an earlier checkpoint or fetch the file again",
                location.c_str(), tensor.c_str());
}

void FirstFailure::add(const Status& s, int64_t file, int64_t at) {
    if (s.ok()) return;
    const std::pair<int64_t, int64_t> here = {file, at};
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    if (first.ok() || here < location) first = s, location = here;
}
