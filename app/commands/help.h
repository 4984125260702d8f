// What --help prints: CLI11's description of a command in lines of at most kHelpWidth columns.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

namespace axial::app {

inline constexpr std::size_t kHelpWidth = 80;

// For a program and its commands. Footers: paragraphs are wrapped; lines that start with a blank (examples) stay.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace axial::app
