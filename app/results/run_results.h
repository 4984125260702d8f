// A run's best checkpoint on its test set, as `axial report` shows it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/results/page.h"

namespace axial::app {

// What stands in the way (no checkpoint yet, a data set that is not here) is `problem`; the caller says it.
RunResults run_results(const std::filesystem::path& run, const std::string& device,
                       const std::vector<std::string>& overrides);

}  // namespace axial::app
