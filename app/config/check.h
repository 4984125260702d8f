// What no single key can promise: values that must fit each other.
#pragma once

#include <functional>
#include <string>

#include "app/config/config.h"

namespace axial::app {

// `set_at` gives where a key was set ("file:line", "command line") or "" where it has its default.
// Throws ConfigError naming the keys, their values and where they were set.
void check_together(const Config& config, const std::function<std::string(const std::string& path)>& set_at);

// The least data.std beside this data.mean with which normalised pixels are numbers of what train.precision computes
// in.
double least_std(double mean, const std::string& precision);

}  // namespace axial::app
