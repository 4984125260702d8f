// What stands before and behind the blocks of a network: pixels from bytes, tokens from pixels, positions added to
// tokens, and the mean of normalised tokens.
//
// The contract of kernels.h holds here too. Tensors are contiguous and start at 16 bytes. Sums are float32, float64
// for float64 ("accumulator type"). `supported` says, of extents and types alone, whether the kernels cover a
// problem; workspaces are aligned to 16 bytes, and their size depends on the problem, never on the device.
#pragma once

#include "kernels/kernels.h"

namespace axial::kernels {

inline constexpr std::int64_t kMaxTokenDim = 1024;
inline constexpr std::int64_t kMaxTaps = 64;

// The mean over a sample's tokens of LayerNorm without its affine part (which commutes with the mean):
//   out[b, c] = 1/T sum over t of x_hat[b, t, c]         x_hat as in NormProblem, never stored
struct PoolProblem {
  std::int64_t samples = 0;  // B
  std::int64_t tokens = 0;   // T, of a sample, 1 or more
  std::int64_t dim = 0;      // D, a multiple of 8 up to kMaxTokenDim
  DType dtype = DType::kFloat32;
  double eps = 1e-5;
  const void* x = nullptr;  // [B, T, D]
};
Status supported(const PoolProblem& problem);

// Learned positions: y[b, h, w] = x[b, h, w] + (row_pos[h] + col_pos[w]), rounded once.
struct PositionsProblem {
  std::int64_t samples = 0;            // B
  std::int64_t height = 0, width = 0;  // H, W
  std::int64_t dim = 0;                // D, a multiple of 8 up to kMaxTokenDim
  DType dtype = DType::kFloat32;
};
Status supported(const PositionsProblem& problem);

// A convolution with few taps, from an image in channels-first order to tokens:
//   y[b, h, w, d] = bias[d] + row_pos[h, d] + col_pos[w, d]
//                 + sum over c, i, j of image[b, c, stride h - padding + i, stride w - padding + j] weight[d, c, i,
//                 j]
// The image is 0 outside, so that out_height and out_width are free. Weights are rounded to the problem's type, sums
// are not.
struct StemProblem {
  std::int64_t samples = 0;                          // B
  std::int64_t channels = 0;                         // C
  std::int64_t height = 0, width = 0;                // of the image
  std::int64_t kernel = 0, stride = 0, padding = 0;  // kernel^2 C is at most kMaxTaps
  std::int64_t out_height = 0, out_width = 0;        // H', W'
  std::int64_t dim = 0;                              // D, a multiple of 8 up to kMaxTokenDim
  DType dtype = DType::kFloat32;
  const void* images = nullptr;  // [B, C, height, width]
  // In the accumulator type:
  const void* weight = nullptr;   // [D, C, kernel, kernel]; the backward does not read it
  const void* bias = nullptr;     // [D], optional
  const void* row_pos = nullptr;  // [H', D] and col_pos [W', D], both or neither
  const void* col_pos = nullptr;
};
Status supported(const StemProblem& problem);

// In the accumulator type, overwritten; null: not wanted.
struct StemGradients {
  void* weight = nullptr;   // [D, C, kernel, kernel]
  void* bias = nullptr;     // [D]
  void* row_pos = nullptr;  // [H', D]
  void* col_pos = nullptr;  // [W', D]
};

// Output pixel (y, x) is table[channel][byte] of input row y + dy and column (flip ? width - 1 - x : x) + dx, or of
// byte 0 where that lies outside; then 0 within the box. Values are copied, and computed with where samples are mixed.
struct PixelsProblem {
  std::int64_t count = 0;  // n, samples of the batch
  std::int64_t channels = 0, height = 0, width = 0;
  DType dtype = DType::kFloat32;
  const std::uint8_t* images = nullptr;   // [N, C, H, W]; any alignment
  const void* table = nullptr;            // [C, 256]
  const std::int64_t* samples = nullptr;  // [n], each in [0, N)
  // [n, 8]: dy, dx, flip, box_y, box_x, box_y + box_h, box_x + box_w, 0; null: pixels as they are.
  const std::int64_t* rows = nullptr;
  // [n, 6]: p, the bits of a float32 w, y, x, end_y, end_x; null: no mixing. Where the box holds pixels, those in it are
  // sample p's of the batch; else pixels are w * own + (1 - w) * p's, in float32 (of float64: float64) with each
  // operation rounded.
  const std::int64_t* mixes = nullptr;
};
Status supported(const PixelsProblem& problem);

// On the CUDA side alone: on the CPU the library's operators serve, and data/ for pixels.
namespace cuda {

std::size_t pool_workspace(const PoolProblem& problem);
Status pool(const PoolProblem& problem, void* out, void* workspace, std::size_t workspace_bytes,
            CUstream_st* stream);  // out [B, D], accumulator type
// dx[B, T, D] from g[B, D] (accumulator type), the gradient of `out`; the statistics are computed again from x.
Status pool_backward(const PoolProblem& problem, const void* g, void* dx, CUstream_st* stream);

// x, y [B, H, W, D]; row_pos [H, D] and col_pos [W, D] in the accumulator type. y may be the memory of x.
Status add_positions(const PositionsProblem& problem, const void* x, const void* row_pos, const void* col_pos,
                     void* y, CUstream_st* stream);
std::size_t positions_backward_workspace(const PositionsProblem& problem);
// d_row[H, D] and d_col[W, D], accumulator type, the sums of dy [B, H, W, D]; null: not wanted.
Status positions_backward(const PositionsProblem& problem, const void* dy, void* d_row, void* d_col, void* workspace,
                          std::size_t workspace_bytes, CUstream_st* stream);

Status stem(const StemProblem& problem, void* y, CUstream_st* stream);  // y [B, H', W', D]
std::size_t stem_backward_workspace(const StemProblem& problem, const StemGradients& gradients);
Status stem_backward(const StemProblem& problem, const void* dy, const StemGradients& gradients, void* workspace,
                     std::size_t workspace_bytes, CUstream_st* stream);

Status pixels(const PixelsProblem& problem, void* out, CUstream_st* stream);  // out [n, C, H, W]

}  // namespace cuda

}  // namespace axial::kernels
