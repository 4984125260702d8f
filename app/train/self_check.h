// Before a run: do the kernels of this build compute on this device what they should?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/train/build.h"
#include "model/gradcheck.h"

namespace axial::app {

// A block of each stage of the model, on as many images as make a few thousand tokens. grid: rows and columns of
// tokens behind the stem.
std::vector<BlockCase> self_check_cases(const Config& config, std::pair<std::int64_t, std::int64_t> grid);

// Runs them, forward and backward, against the reference backend in float64, where train.self_check wants that.
// Throws TrainError for the first value beyond the tolerances of model/tolerance.h: a miscompiled build, or one that
// does not match the device. planted: an error added to one value, to see that it is caught.
// Returns what the log says of it; "" where nothing was run.
std::string self_check(const Config& config, std::pair<std::int64_t, std::int64_t> grid, at::Device device,
                       double planted = 0);

}  // namespace axial::app
