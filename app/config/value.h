// Values of configuration keys: from YAML to a field and back.
#pragma once

#include <cstdint>
#include <string>

#include "app/config/schema.h"
#include "app/config/yaml_tree.h"

namespace axial::app {

// Sets the key's field. Returns "" or, with the field untouched, "expected ..., found ...".
std::string assign(const Key& key, const Node& value, Config& config);

// Numbers as people write them: decimal integers without leading zeros, reals with or without exponent;
// no hexadecimal, no infinity, no NaN, no spaces. False where the text is no such number.
bool parse_integer(const std::string& text, bool* negative, std::uint64_t* magnitude, bool* overflow);
bool parse_real(const std::string& text, double* value, bool* overflow);

std::string print_value(const Key& key, const Config& config);  // YAML that assign reads back exactly
std::string print_limits(const Key& key);                       // "an integer in 1..1048576"

}  // namespace axial::app
