// metrics.cpp - see metrics.h.
#include "metrics.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/console.h"
#include "base/file.h"

double unix_seconds() {
    using namespace std::chrono;
    return double(duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count()) / 1e3;
}

Status each_line(const std::string& path, int64_t longest,
                 const std::function<Status(std::string_view text, int64_t number, bool last)>& line) {
    constexpr size_t PIECE = 1 << 20;
    const std::string name = escape_control(path);
    Result<File> file = File::open(path);
    if (!file.ok()) return fail(file.status.code, "%s", escape_control(file.status.message).c_str());
    std::string text;                 // the file from the current line on
    size_t from = 0, searched = 0;    // the line's first byte; bytes of `text` without its newline
    int64_t number = 1, offset = 0;
    bool end = false;
    auto read_more = [&]() -> Status {
        text.erase(0, from);
        searched -= from;
        from = 0;
        const size_t had = text.size();
        text.resize(had + PIECE);
        ssize_t n = 0;
        do n = pread(file.value.fd(), &text[had], PIECE, offset);
        while (n < 0 && errno == EINTR);
        if (n < 0) return fail(Exit::io, "%s: reading stopped: %s", name.c_str(), strerror(errno));
        text.resize(had + size_t(n));
        offset += n;
        end = n == 0;
        return {};
    };
    for (;;) {
        const size_t newline = std::min(text.find('\n', searched), text.size());
        searched = newline;
        if (int64_t(newline - from) > longest)
            return fail(Exit::input, "%s:%lld: expected lines of at most %lld bytes, found a longer one", name.c_str(),
                        (long long)number, (long long)longest);
        if (newline + 1 >= text.size() && !end) {    // the line's end, or what follows, is unknown
            TRY(read_more());
            continue;
        }
        if (from == text.size()) return {};
        TRY(line(std::string_view(text).substr(from, newline - from), number++, newline + 1 >= text.size()));
        from = searched = std::min(newline + 1, text.size());
    }
}

double rounded_to(int digits, double x) { return strtod(formatted("%.*g", digits, x).c_str(), nullptr); }

double number_of(const nlohmann::json& row, const char* key, double otherwise) {
    const auto number = row.find(key);
    return number != row.end() && number->is_number() ? number->get<double>() : otherwise;
}
int64_t step_of(const nlohmann::json& row) {
    const double x = number_of(row, "step", -1);
    return x >= 0 && x <= 1e15 ? int64_t(x) : -1;
}

Status read_metrics(const std::string& run,
                    const std::function<Status(const nlohmann::json& object, const std::string& where)>& row) {
    constexpr int64_t LONGEST = 64 << 20;    // bytes: a row with a thousand samples
    std::error_code error;
    const std::string path = std::filesystem::is_directory(run, error) ? run + "/metrics.jsonl" : run;
    return each_line(path, LONGEST, [&](std::string_view line, int64_t number, bool last) -> Status {
        count_progress();    // other ranks wait meanwhile
        const std::string where = escape_control(path) + ":" + std::to_string(number);
        Result<nlohmann::json> object = json_parse(line, where, 4);
        if (object.ok() && !object.value.is_object())
            object.status = fail(Exit::input, "%s: expected a JSON object", where.c_str());
        if (object.ok()) return row(object.value, where);
        return last ? Status{} : object.status;
    });
}
