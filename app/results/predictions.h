// What a model says of a whole set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "app/results/scores.h"
#include "app/train/evaluate.h"

namespace axial::app {

struct SetPredictions {
  std::vector<Prediction> each;  // by position in the set
  Evaluation evaluation;         // as train reports it, to the last bit
};

// In evaluation mode, without gradients. Throws RunError, with `checkpoint` as the place, where an answer is not
// finite: such a model has no loss.
SetPredictions predict_set(AxialClassifierImpl& model, data::Batches& batches, const Views& views,
                           const std::string& checkpoint);

// The first row of logits [n, classes] that holds what is not finite; -1: none does.
std::int64_t first_not_finite(const at::Tensor& logits);
// Why: weights are finite (load_model).
inline constexpr const char* kOverflow =
    "the model's answer is not finite: its weights are numbers that its arithmetic overflows with";

// What logits [n, classes] say of labels [n], both on any device.
std::vector<Prediction> predictions_of(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace axial::app
