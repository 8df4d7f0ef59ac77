// picture.h - heatmaps and curves. .svg files are written here; for .png files librsvg renders the
// SVG. librsvg is loaded for the first .png, so nothing else needs it.
#pragma once
#include <string>
#include <vector>

#include "base/draw.h"

// Checks, before the work that produces a picture, that it can be written. Exit 2: the name ends in
// neither .png nor .svg; 1: librsvg, needed for a .png, is missing; 2, 4: errors of check_writable.
Status picture_check(const std::string& path, const char* flag = "--picture");

struct HeatmapPanel : Heatmap {    // 0 is dark violet, 1 is yellow, NaN grey; texts only where they fit
    std::string title = {};
};
struct HeatmapPicture {
    std::string title, row_axis = {}, column_axis = {};    // "query", "key"
    std::vector<HeatmapPanel> maps = {};
    int across = 1;    // panels side by side
    int size = 100;    // maximum pixels of a panel's longer side, at least one per cell
    HeatmapLegend legend = {};
};
Status write_heatmaps(const std::string& path, const HeatmapPicture& maps);    // exit 2, 4: errors of replace_file

struct CurvePicture {
    std::string title, x_axis, y_axis;
    bool log_x = false;
    std::vector<Curve> curves;
};
Status write_curves(const std::string& path, const CurvePicture& picture);

std::string base64(const std::string& data);                     // RFC 4648, with padding
bool base64_decode(std::string_view text, std::string& data);    // false: no base64
