// Between the convolutions of a stem, on maps in channels-last order: max pooling, and batch normalisation with its
// activation.
//
// The contract of kernels.h holds here too; tensors, accumulator type, workspaces and `supported` are as in tokens.h.
#pragma once

#include "kernels/tokens.h"

namespace axial::kernels {

// The greatest value of each 3 x 3 window, stride 2, with padding 1 that never wins: [B, H, W, C] -> [B, H', W', C],
// H' = (H + 1) / 2, W' = (W + 1) / 2. Among equals the first wins, in the order of rows and columns; NaN wins always.
struct MaxPoolProblem {
  std::int64_t samples = 0;            // B
  std::int64_t height = 0, width = 0;  // H, W
  std::int64_t channels = 0;           // C, a multiple of 8 up to kMaxTokenDim
  DType dtype = DType::kFloat32;
};
Status supported(const MaxPoolProblem& problem);

// Batch normalisation in training (Ioffe and Szegedy 2015) over the rows of x [N, C], and the rectifier where wanted:
//   y = relu((x - mean) / sqrt(var + eps) * weight + bias)
// with the mean and the (biased) variance of each channel over all rows.
struct BatchNormProblem {
  std::int64_t rows = 0;      // N, 2 or more
  std::int64_t channels = 0;  // C, a multiple of 8 up to kMaxTokenDim
  DType dtype = DType::kFloat32;
  double eps = 1e-5;
  bool relu = false;
  const void* x = nullptr;  // [N, C]
  // In the accumulator type, [C]:
  const void* weight = nullptr;
  const void* bias = nullptr;
};
Status supported(const BatchNormProblem& problem);

// Updated in place: running = (1 - momentum) running + momentum batch, the variance unbiased. [C], accumulator type.
struct RunningStatistics {
  void* mean = nullptr;
  void* var = nullptr;
  double momentum = 0.1;
};

namespace cuda {

// y [B, H', W', C]; winner [B, H', W', C]: 3 i + j of the value that won; null: not wanted.
Status max_pool(const MaxPoolProblem& problem, const void* x, void* y, std::uint8_t* winner, CUstream_st* stream);
// dx [B, H, W, C] is overwritten.
Status max_pool_backward(const MaxPoolProblem& problem, const void* dy, const std::uint8_t* winner, void* dx,
                         CUstream_st* stream);

// Enough for either direction.
std::size_t batch_norm_workspace(const BatchNormProblem& problem);
// statistics [2, C], accumulator type: mean and 1 / sqrt(var + eps), for the backward.
Status batch_norm(const BatchNormProblem& problem, const RunningStatistics& running, void* y, void* statistics,
                  void* workspace, std::size_t workspace_bytes, CUstream_st* stream);
// gradients [2, C], accumulator type: of bias and of weight. dx [N, C] may be null: not wanted.
Status batch_norm_backward(const BatchNormProblem& problem, const void* statistics, const void* dy, void* dx,
                           void* gradients, void* workspace, std::size_t workspace_bytes, CUstream_st* stream);

}  // namespace cuda

}  // namespace axial::kernels
