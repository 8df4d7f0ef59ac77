// position_loss.cpp - see position_loss.h.
#include "position_loss.h"

#include <algorithm>

#include "base/console.h"
#include "base/file.h"
#include "base/table.h"
#include "files/picture.h"

void LossByPosition::add(int rows, const float* losses, const int* targets) {
    const size_t S = sums.size();
    for (size_t n = 0; n < size_t(rows) * S; n++)
        if (targets[n] >= 0) sums[n % S] += double(losses[n]), counts[n % S]++;
}
std::vector<PositionBin> LossByPosition::bins() const {
    std::vector<PositionBin> all;
    const int S = int(sums.size());
    for (int first = 1; first <= S; first = all.back().last + 1) {
        PositionBin bin{first, std::min(S, first + std::max(1, first / 8) - 1)};
        for (int s = bin.first - 1; s < bin.last; s++) bin.loss += sums[size_t(s)], bin.targets += counts[size_t(s)];
        bin.loss /= double(bin.targets);
        all.push_back(bin);
    }
    return all;
}

namespace {
Curve curve_of(const std::vector<PositionBin>& bins) {
    Curve curve;
    for (auto& bin : bins)
        if (std::isfinite(bin.loss)) curve.line.push_back({(bin.first + bin.last) / 2.0, bin.loss});
    curve.legend = "loss by position: not a number at any of them";
    if (curve.line.empty()) return curve;
    auto least = std::min_element(curve.line.begin(), curve.line.end(), [](auto& a, auto& b) { return a.y < b.y; });
    curve.legend = formatted("loss by position: first %.4g, last %.4g, lowest %.4g at %.0f", curve.line[0].y,
                             curve.line.back().y, least->y, least->x);
    return curve;
}
}    // namespace

Json positions_json(const std::vector<PositionBin>& bins) {
    Json all = Json::list();
    for (auto& bin : bins)
        all.add(Json::object("first", bin.first, "last", bin.last, "loss", bin.loss, "tokens", bin.targets));
    return all;
}
void print_positions(const std::vector<PositionBin>& bins) {
    const Curve curve = curve_of(bins);
    if (curve.line.empty()) puts(curve.legend.c_str());
    else print_curves({curve}, {.log_x = true});
}
Status write_positions_csv(const std::string& path, const std::vector<PositionBin>& bins) {
    std::string out = "first,last,tokens,loss\n";
    for (auto& bin : bins)
        out += csv_line({bin.first, bin.last, bin.targets, bin.targets ? Cell(bin.loss, "%.6f") : Cell()});
    return replace_file(path, out);
}
Status write_positions_picture(const std::string& path, const std::vector<PositionBin>& bins) {
    return write_curves(path, {"loss by position in the context", "position", "loss", true, {curve_of(bins)}});
}
