#include "app/train/best.h"

#include <cmath>

namespace axial::app {

bool is_better(const TrainConfig& config, double top1, double loss, double best_top1, double best_loss) {
  if (!std::isfinite(loss)) return false;
  const bool lower = loss < best_loss;
  if (config.eval_metric == "loss") return lower;
  return top1 > best_top1 || (top1 == best_top1 && lower);
}

std::string chosen_by(const Config& config) {
  return std::string(config.data.validation_fraction > 0 ? "held-out images" : "test set") +
         (config.train.eval_metric == "loss" ? ", by loss" : "");
}

}  // namespace axial::app
