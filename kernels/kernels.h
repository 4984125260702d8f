// The public interface of kernels/: attention along one axis, on raw pointers.
//
// Contract of every function here (see kernels/README.md):
//   - nothing is allocated, synchronised or logged; workspace and stream come from the caller;
//   - a status is returned and never swallowed; a problem that no kernel covers is kUnsupported, and
//     the message names the shape and the limit;
//   - outputs are overwritten, never accumulated into; a null output is not computed;
//   - same inputs, same device: bit-identical results (one owner per output, fixed-order sums).
//
// The mathematics (softmax attention, Vaswani et al. 2017, eq. 1; along one axis of an image, Ho et
// al. 2019, section 3; relative position bias, Shaw et al. 2018 / Raffel et al. 2020), per line and head:
//   S[i,j] = scale * <q[i], k[j]> + bias[i - j + L - 1]          j > i is left out when causal
//   P      = softmax over j of S                                 row maximum m and sum l are kept apart
//   O[i]   = sum_j P[i,j] * keep[i,j] / (1 - p) * v[j]
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;  // the CUDA runtime's stream; cudaStream_t is a pointer to it

namespace axial::kernels {

enum class DType : std::uint8_t { kFloat64, kFloat32, kBFloat16, kFloat16 };

// How float32 products are formed: strict IEEE float32, or TF32 tensor cores (10-bit mantissa
// operands, float32 sums). Ignored by the other types and by the CPU.
enum class Math : std::uint8_t { kStrict, kTF32 };

enum class Code : std::uint8_t {
  kOk,
  kInvalid,      // the problem contradicts itself (negative extent, null input, p outside [0, 1))
  kUnsupported,  // well-formed, but outside what is instantiated
  kDevice,       // the device's runtime reported an error; the message quotes it
};

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  char message[240] = {};
  bool ok() const { return code == Code::kOk; }
};

// printf-style constructor of a failed status.
Status failure(Code code, const char* format, ...) __attribute__((format(printf, 2, 3)));

const char* name(DType dtype);           // "float64", "float32", "bfloat16", "float16"
std::size_t element_size(DType dtype);   // bytes
// Statistics, bias and bias gradients are float64 for kFloat64 and float32 for everything else.
std::size_t accumulator_size(DType dtype);

inline constexpr int kMaxOuter = 3;
inline constexpr std::int64_t kMaxHeadDim = 256;

// Which lines there are. A pass knows lines, not images: rows of [B, H, W, ...] are outer = {B, H},
// length = W; columns are outer = {B, W}, length = H. Lines are numbered with the last outer extent
// fastest. Any extent may be 0 (then nothing is done). Unused outer extents are 1.
struct Lines {
  std::int64_t outer[kMaxOuter] = {1, 1, 1};
  std::int64_t length = 0;  // L, tokens in a line
  std::int64_t count() const { return outer[0] * outer[1] * outer[2]; }
};

// A strided view [outer0, outer1, outer2, token, head, channel]; strides in elements, any sign and
// any value (0 for an expanded gradient). `data` needs the alignment of one element only.
template <class Pointer>
struct BasicView {
  Pointer data = nullptr;
  std::int64_t outer_stride[kMaxOuter] = {0, 0, 0};
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t channel_stride = 1;
};
using View = BasicView<void*>;
using ConstView = BasicView<const void*>;

// Dropout on the probabilities. Philox4x32-10 (Salmon et al. 2011), indexed by coordinates, never by
// thread, so that the forward, the backward, the CPU and any number of processes see one mask, which
// is never stored. One 8-bit draw per probability: p is rounded to the nearest n/256 (at least 1/256
// where p > 0), and the scale 1/(1-p) uses the rounded p. The exact scheme is in kernels/philox.h.
struct Dropout {
  double p = 0;                          // [0, 1); 0 switches dropout off
  const std::uint64_t* rng = nullptr;    // {seed, offset} in memory of the device that computes: a
                                         // captured graph draws anew when the caller advances offset
  std::uint64_t stream = 0;              // which layer and axis
  std::int64_t first_line = 0;           // global number of line 0, where processes share a batch
};

struct AttentionProblem {
  Lines lines;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;  // 1 .. kMaxHeadDim
  DType dtype = DType::kFloat32;
  Math math = Math::kStrict;
  double scale = 1;
  bool causal = false;
  const void* bias = nullptr;  // [heads, 2L-1] contiguous, accumulator type; null for none
  Dropout dropout;
  ConstView q, k, v;
};

// Row statistics, [lines, heads, L] contiguous, accumulator type. Both or neither may be null.
//   row_max = max_j S[i,j] * log2(e)          row_sum = sum_j 2^(S[i,j] * log2(e) - row_max)
// They are kept apart, not as one log-sum-exp, which would round for large logits. They are meant for
// the backward of the device that wrote them.
struct AttentionOutput {
  View o;
  void* row_max = nullptr;
  void* row_sum = nullptr;
};

// LayerNorm without its affine part (Ba et al. 2016, eq. 4) over the channels of x[tokens, dim], contiguous:
//   x_hat = (x - mean) / sqrt(var + eps)         statistics in the accumulator type, var around the mean
// On the CUDA side alone: on the CPU the library's operator serves.
struct NormProblem {
  std::int64_t tokens = 0;
  std::int64_t dim = 0;
  DType dtype = DType::kFloat32;
  double eps = 1e-5;
  const void* x = nullptr;
};

struct AttentionGradients {
  ConstView o;    // the forward's output
  ConstView d_o;  // gradient of o
  const void* row_max = nullptr;  // the forward's statistics; required
  const void* row_sum = nullptr;
  View dq, dk, dv;         // null data: not wanted, not computed
  void* d_bias = nullptr;  // [heads, 2L-1], accumulator type, summed over all lines in a fixed order
};

// Which code a problem runs on, for `axial info` and the benchmark table.
struct KernelChoice {
  char forward[64] = {};
  char backward[64] = {};
};

namespace cpu {

// The caller's thread pool: run(context, n, body, arg) calls body(arg, begin, end) over disjoint
// ranges that cover [0, n) and returns when all are done. The default runs on the calling thread.
struct Executor {
  void* context = nullptr;
  void (*run)(void* context, std::int64_t n, void (*body)(void* arg, std::int64_t begin, std::int64_t end),
              void* arg) = nullptr;
  int threads = 1;  // an upper bound of concurrent bodies; sizes the workspace
};

Status attention_forward(const AttentionProblem& problem, const AttentionOutput& output,
                         const Executor& executor = {});
// Bytes of scratch that attention_backward needs for these gradients (0 is possible).
std::size_t attention_backward_workspace(const AttentionProblem& problem, const AttentionGradients& gradients,
                                         const Executor& executor = {});
Status attention_backward(const AttentionProblem& problem, const AttentionGradients& gradients, void* workspace,
                          std::size_t workspace_bytes, const Executor& executor = {});
// keep[lines, heads, L, L] = 1 where dropout keeps the probability, else 0. For references and tests.
Status dropout_mask(const Lines& lines, std::int64_t heads, const Dropout& dropout, std::uint8_t* keep,
                    const Executor& executor = {});
Status choose(const AttentionProblem& problem, KernelChoice* choice);

}  // namespace cpu

// The same on the current CUDA device. All pointers are device memory. In a build without CUDA these
// return kUnsupported.
namespace cuda {

bool built();                // was the CUDA side compiled in?
const char* architectures(); // what it was compiled for, e.g. "sm_80 sm_90 compute_90"; "" without CUDA
// Can the compiled code run on the current device? If not the message names both sides.
Status usable();

Status attention_forward(const AttentionProblem& problem, const AttentionOutput& output, CUstream_st* stream);
std::size_t attention_backward_workspace(const AttentionProblem& problem, const AttentionGradients& gradients);
// `workspace` is aligned to 16 bytes.
Status attention_backward(const AttentionProblem& problem, const AttentionGradients& gradients, void* workspace,
                          std::size_t workspace_bytes, CUstream_st* stream);
Status dropout_mask(const Lines& lines, std::int64_t heads, const Dropout& dropout, std::uint8_t* keep,
                    CUstream_st* stream);
// x_hat[tokens, dim] is overwritten.
Status normalise(const NormProblem& problem, void* x_hat, CUstream_st* stream);
// dx = residual + rstd (g - mean(g) - x_hat mean(g x_hat)) with g = d_x_hat[tokens, dim]; the statistics are
// computed again from x. `residual` [tokens, dim] may be null (nothing is added). dx is overwritten and may be
// the memory of d_x_hat or of residual.
Status normalise_backward(const NormProblem& problem, const void* d_x_hat, const void* residual, void* dx,
                          CUstream_st* stream);
Status choose(const AttentionProblem& problem, KernelChoice* choice);

}  // namespace cuda

// The rounded probability that dropout really uses, and the factor on what it keeps.
struct DropoutRate {
  std::uint32_t threshold;  // a draw below this is dropped; of 256
  double p;                 // threshold / 256
  double scale;             // 1 / (1 - p)
};
DropoutRate dropout_rate(double p);

}  // namespace axial::kernels
