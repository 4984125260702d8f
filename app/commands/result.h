// Result lines: one line of JSON on standard output.
#pragma once

#include <nlohmann/json.hpp>

namespace axial::app {

using Json = nlohmann::ordered_json;

// To so many decimals, as people read it; null where there is no such number (NaN, infinity).
Json rounded(double value, int decimals);

// What is not UTF-8 in it (a path may be anything) is replaced, not refused.
void print_result(const Json& line);

}  // namespace axial::app
