// Cross-entropy of a batch of logits with its gradient, in one go: what a training step does between the network's
// forward and its backward.
//
//   p = softmax(z)      t = (1 - smoothing) (w e[label] + (1 - w) e[partner]) + smoothing / C
//   loss = sum over c of -t[c] log p[c]            d z = factor scale (p - t)
//
// (Label smoothing: Szegedy et al. 2016, section 7; pairs of labels: Zhang et al. 2018, "mixup".) A sample is a hit
// where the largest logit, the first of equals, is that of the label that weighs more. The contract of kernels.h holds
// here too; sums are in float32 (float64 for float64) within a sample, and in float64 over samples, in order.
#pragma once

#include "kernels/kernels.h"

namespace axial::kernels {

struct LossProblem {
  std::int64_t samples = 0;  // B
  std::int64_t classes = 0;  // C, 1 or more
  DType dtype = DType::kFloat32;
  const void* logits = nullptr;           // [B, C], contiguous
  const std::int64_t* labels = nullptr;   // [B], in [0, C): others poison the loss and the gradient with NaN
  const std::int64_t* partners = nullptr;  // [B], optional: none is a weight of 1
  const float* weights = nullptr;          // [B], of the labels; with partners
  double smoothing = 0;                    // [0, 1)
  double factor = 1;
  const float* scale = nullptr;  // one number in the device's memory; null: 1
};

struct LossOutput {
  double* sums = nullptr;       // [3]: loss, hits, samples; overwritten
  void* d_logits = nullptr;     // [B, C], type of the logits; optional
  double* per_sample = nullptr;  // workspace, [2 B]
};

namespace cpu {
Status softmax_loss(const LossProblem& problem, const LossOutput& output, const Executor& executor = {});
}
namespace cuda {
Status softmax_loss(const LossProblem& problem, const LossOutput& output, CUstream_st* stream);
}

}  // namespace axial::kernels
