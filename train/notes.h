// notes.h - notes for people that have several lines.
#pragma once
#include <sstream>
#include <string>

#include "base/console.h"

// Prints each line of a text as a note of its own, behind `before`.
inline void note_lines(Progress& progress, const std::string& before, const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) progress.note(before + line);
}
