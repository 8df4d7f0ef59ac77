// reference.h - the reference's scores of preference pairs, kept in the run's directory.
//
// The starting weights are the reference, and training changes them. So their scores are computed
// once, before the first step, and a resumed run reads them again.
#pragma once
#include <string>
#include <vector>

#include "base/common.h"

struct ReferenceScores {
    uint64_t data = 0, validation = 0;    // fingerprints of the pairs; 0: no validation
    // Scores of the chosen and the rejected answer of each pair, in the order of the files.
    std::vector<double> of_data, of_validation;
};
constexpr const char* REFERENCE_FILE = "reference.bin";    // in the run's directory
Status reference_write(const std::string& path, const ReferenceScores& scores);
// Exit 3: the file is missing or damaged.
Result<ReferenceScores> reference_read(const std::string& path);
