#include "check.h"

#include <map>
#include <mutex>

#include "base/philox.h"
#include "base/pool.h"

// The first numbers of each stream are kept: every check draws the same ones, for every table.
Numbers random_normal(int64_t n, uint64_t stream, double scale) {
    constexpr int64_t PIECE = 1 << 14, MOST = 1 << 22;
    static std::map<uint64_t, std::vector<float>> streams;
    static std::mutex one_at_a_time;
    const std::lock_guard hold(one_at_a_time);
    std::vector<float>& kept = streams[stream];
    const int64_t before = int64_t(kept.size()), known = std::max(before, std::min(n, MOST));
    kept.resize(size_t(known));
    Numbers x(static_cast<size_t>(n));
    each_chunk(ceil_div(n, PIECE), [&](int64_t chunk, int) {
        for (int64_t i = chunk * PIECE; i < std::min(n, (chunk + 1) * PIECE); i++) {
            const float drawn = i < before ? kept[size_t(i)] : philox_normal(99, stream, uint64_t(i));
            if (i >= before && i < known) kept[size_t(i)] = drawn;
            x[size_t(i)] = scale * double(drawn);
        }
    });
    return x;
}
std::vector<int> random_tokens(int64_t n, int V, uint64_t stream) {
    std::vector<int> t(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) t[size_t(i)] = int(philox(98, stream, uint64_t(i)).v[0] % uint32_t(V));
    return t;
}

Check::Check(const char* operation, const std::vector<Size>& sizes, const std::string& more) : op(operation) {
    for (const Size& x : sizes) shape += std::string(shape.empty() ? "" : " ") + x.name + "=" + std::to_string(x.value);
    shape += more;
}
void Check::note(const char* what, double error, bool half) {
    if (!(error <= worst)) worst = error, output = what;
    outputs.push_back({what, error, half, {}});
}

double Check::error_over_limit(const Numbers& got, const Numbers& expected, double limit, double floor) {
    if (got.size() != expected.size()) return INFINITY;
    if (got.empty()) return 0;
    double square = 0, error = 0, worst = 0;
    for (size_t i = 0; i < got.size(); i++)
        square += expected[i] * expected[i], error += (got[i] - expected[i]) * (got[i] - expected[i]);
    const double rms = std::fmax(std::sqrt(square / double(got.size())), floor) + 1e-30;
    for (size_t i = 0; i < got.size(); i++) {
        const double e = std::fabs(got[i] - expected[i]) / std::fmax(std::fabs(expected[i]), rms);
        if (!(e <= worst)) worst = e;
    }
    const double whole = std::sqrt(error / double(got.size())) / rms / limit, element = worst / (8 * limit);
    // NaN becomes infinity. All comparisons with NaN are false, so the error of a later output
    // would replace it in `worst`.
    return std::isnan(whole) || std::isnan(element) ? INFINITY : std::fmax(whole, element);
}
