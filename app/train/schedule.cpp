#include "app/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace axial::app {

double learning_rate_factor(const OptimConfig& config, std::int64_t update, std::int64_t total) {
  const double warmup = std::floor(config.warmup * static_cast<double>(total));
  const double u = static_cast<double>(update);
  if (u < warmup) return (u + 1) / warmup;
  if (config.schedule == "constant") return 1;
  const double span = std::max(1.0, static_cast<double>(total) - warmup);
  const double t = std::min(1.0, (u - warmup) / span);
  const double shape = config.schedule == "cosine" ? 0.5 * (1 + std::cos(std::numbers::pi * t)) : 1 - t;
  return config.final_lr + (1 - config.final_lr) * shape;
}

}  // namespace axial::app
