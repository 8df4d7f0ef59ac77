// picture.h - pictures as .png or .svg files: heatmaps and curves. Drawn by libcairo, which is
// loaded for the first picture: neither the build nor any other command needs it.
#pragma once
#include <string>
#include <vector>

#include "base/draw.h"

// Called before the work that produces a picture. Exit 2: the name ends in neither .png nor .svg;
// 1: no libcairo; 2, 4: errors of check_writable.
Status picture_check(const std::string& path);

struct HeatmapPanel {
    std::string title;
    int rows, columns;
    std::vector<double> values;    // (rows,columns): 0 is dark violet, 1 is yellow, NaN grey
    std::vector<std::string> row_names = {}, column_names = {}, texts = {};    // UTF-8; texts: in cells, where they fit
};
struct HeatmapPicture {
    std::string title, row_axis = {}, column_axis = {};    // "query", "key"
    std::vector<HeatmapPanel> maps = {};
    int across = 1;    // panels side by side
    int size = 100;    // maximum pixels of a panel's longer side, at least one per cell
    std::vector<std::pair<double, std::string>> legend = {};    // value shown as a colour, and its label
};
Status write_heatmaps(const std::string& path, const HeatmapPicture& maps);    // exit 2, 4: errors of replace_file

struct CurvePicture {
    std::string title, x_axis, y_axis;
    bool log_x = false;
    std::vector<Curve> curves;
};
Status write_curves(const std::string& path, const CurvePicture& picture);
