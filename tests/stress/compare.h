// Whether two runs are the same run. Knows no libtorch: the process that forks must start no threads.
#pragma once

#include <filesystem>
#include <string>

namespace axial::stress {

// "" or the first difference: weights, averages, optimiser, random streams (to the bit) and progress of the last
// checkpoints, and the rows of metrics.csv; times apart.
std::string difference(const std::filesystem::path& run, const std::filesystem::path& other);

// Epochs done, of a checkpoint that is complete; -1 where the file is none.
long long epochs_done(const std::filesystem::path& checkpoint);

}  // namespace axial::stress
