// Which epoch of a run is its best one: the rule of training, and of who reads metrics.csv afterwards.
#pragma once

#include <string>

#include "app/config/config.h"

namespace axial::app {

// An evaluation against the best one before it, by train.eval_metric. Accuracies of few images are often the same:
// the loss then says which is better. Of equals the first one stays, and a loss that is not finite is never better.
bool is_better(const TrainConfig& config, double top1, double loss, double best_top1, double best_loss);

// Whose accuracy that is: "held-out images" (data.validation_fraction) or "test set"; and where accuracy is not what
// chose it: ", by loss".
std::string chosen_by(const Config& config);

}  // namespace axial::app
