// What a model says of a whole set.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "app/results/scores.h"
#include "app/train/evaluate.h"

namespace axial::app {

struct SetPredictions {
  std::vector<Prediction> each;  // by position in the set
  Evaluation evaluation;         // as train reports it, to the last bit
};

// In evaluation mode, without gradients.
SetPredictions predict_set(AxialClassifierImpl& model, data::Batches& batches, const Views& views);

// What logits [n, classes] say of labels [n], both on any device.
std::vector<Prediction> predictions_of(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace axial::app
