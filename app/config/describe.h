// The keys as text, from the table that parses them: for the terminal, and for configs/README.md.
#pragma once

#include <cstddef>
#include <string>

#include "app/config/config.h"

namespace axial::app {

// Every key with its value in `config`, type and range, unit, default and meaning, in lines of at most
// kDescriptionWidth columns. `only`: the keys whose path starts with that.
inline constexpr std::size_t kDescriptionWidth = 80;
std::string describe_keys(const Config& config, const std::string& only = "");

// Lines of at most `width` columns, broken between words: the first after `head`, the others under its end. Ends with a
// line end.
std::string wrap(const std::string& text, const std::string& head, std::size_t width = kDescriptionWidth);

// One key at length ("optim.lr", or "lr" where one key alone is called that), or all keys of a section ("optim").
// Throws ConfigError with the nearest legal name.
std::string explain(const std::string& name, const Config& config);

// All keys in tables of Markdown, a heading and a table for each section.
std::string keys_as_markdown();

}  // namespace axial::app
