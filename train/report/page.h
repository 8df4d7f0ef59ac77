// page.h - runs as one HTML page that needs no network: page.html with page.css, chart.js, page.js
// and the runs as JSON in it.
#pragma once
#include <string>
#include <vector>

#include "train/report/run_data.h"

struct PageContent {
    std::string title;
    std::vector<nlohmann::ordered_json> runs = {};        // RunData::json
    std::vector<nlohmann::ordered_json> sections = {};    // page_section
    int refresh = 0;                                      // seconds after which the page reloads itself; 0: never
};
std::string page_html(const PageContent& content);
// A section of the page from a file: a picture (.svg, .png), or JSON objects as tables (.json, also
// one object a line). Exit 2: other names; 3: the file is no such thing, or larger than 4 MiB.
Result<nlohmann::ordered_json> page_section(const std::string& path);
// Reads a run's metrics, its run.toml if there is one, and its state. path: a run, or a file of
// metrics. Exit 3, 4: errors of read_metrics and RunData::add; or the run has no rows yet.
Status read_run(const std::string& path, RunData* run);
// Adds the settings of a run.toml.
Status add_settings(const std::string& toml, const std::string& name, RunData* run);
// Buckets of each metric such that the page of this many runs stays small.
size_t page_buckets(size_t runs);
