// picture.h - pictures as files, .png or .svg: maps of colours, and curves. By libcairo, which is loaded when the first
// one is asked for: neither the build nor any other command needs it.
#pragma once
#include <string>
#include <vector>

#include "base/draw.h"

// Asked before the work that fills a picture. Exit 2: the name ends in neither .png nor .svg; 1: there is no libcairo;
// 2, 4: as of check_writable.
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
    int across = 1;    // maps side by side
    int size = 100;    // pixels of a map's longer side, at most, where a cell is larger than one
    std::vector<std::pair<double, std::string>> legend = {};    // a value's colour, and its name
};
Status write_heatmaps(const std::string& path, const HeatmapPicture& maps);    // exit 2, 4: as of replace_file

struct CurvePicture {
    std::string title, x_axis, y_axis;
    bool log_x = false;
    std::vector<Curve> curves;
};
Status write_curves(const std::string& path, const CurvePicture& picture);
