// Accuracy and loss of a model over a data set.
#pragma once

#include <cstdint>

#include "data/batches.h"

namespace axial {
class AxialClassifierImpl;
}

namespace axial::app {

struct Evaluation {
  double top1 = 0;  // fraction
  double loss = 0;  // mean cross-entropy without label smoothing, nats
  std::int64_t samples = 0;
};

// What training minimises: the mean cross-entropy with label smoothing; where samples are mixed, of both labels by
// their weights. logits [n, classes] -> [], differentiable.
at::Tensor batch_loss(const at::Tensor& logits, const data::Batch& batch, double label_smoothing);

// The labels that count at least half, int64 [n].
at::Tensor heavier_labels(const data::Batch& batch);

// Loss and hits of one batch: float64 [3] on the device: sum of losses, correct, samples. Sums are over
// samples, so that a smaller last batch weighs what it holds.
at::Tensor batch_sums(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& mean_loss);

// In evaluation mode, without gradients; the model's mode is put back afterwards.
Evaluation evaluate(AxialClassifierImpl& model, data::Batches& batches);

}  // namespace axial::app
