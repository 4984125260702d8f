// The learning-rate schedule: a pure function of the number of updates made, so that a resumed run gets the
// same rates to the last bit.
#pragma once

#include <cstdint>

#include "app/config/config.h"

namespace axial::app {

// Factor on the base learning rate for update number `update` (from 0) of `total`: linear warm-up over
// optim.warmup * total updates, then cosine (Loshchilov and Hutter 2017, without restarts), linear or constant
// towards optim.final_lr.
double learning_rate_factor(const OptimConfig& config, std::int64_t update, std::int64_t total);

}  // namespace axial::app
