// Accuracy and loss of a model over a data set.
#pragma once

#include <cstdint>

#include "app/train/views.h"
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

// The cross-entropy of a batch with label smoothing, where samples are mixed of both labels by their weights; a hit is
// of the label that counts at least half. Sums are over samples, so that a smaller last batch weighs what it holds.
struct BatchLoss {
  at::Tensor sums;      // float64 [3] on the device: losses, hits, samples
  at::Tensor d_logits;  // the gradient of `seed` times the mean loss, in the logits' type; undefined without a seed
};
// logits [n, classes] of any floating type, whose own gradients are the caller's business; seed: float32 [].
BatchLoss batch_loss(const at::Tensor& logits, const data::Batch& batch, double label_smoothing,
                     const at::Tensor& seed = {});

// In evaluation mode, without gradients; the model's mode is put back afterwards.
Evaluation evaluate(AxialClassifierImpl& model, data::Batches& batches, const Views& views);

}  // namespace axial::app
