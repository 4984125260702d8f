// How a fused pass on the CPU is cut up, whatever the instruction set: groups of lines, and where everything lies in
// the workspace.
//
// A group is as many lines as a vector has lanes, one line a lane, so that vectors are full for every line length and
// head dimension, and attention needs neither transposes nor padding: each of its products multiplies vectors by
// vectors. Tiles of a group are channels first, [channel, token, lane]: with weights as scalars and tokens as columns
// the projections are plain matrix products. Sums over tokens (weight gradients) read one operand tokens first,
// [token, lane, channel].
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/work.h"
#include "kernels/pass_cpu.h"

namespace axial::kernels::cpu {

inline constexpr int kMaxPassLanes = 16;
inline constexpr std::int64_t kMaxPassDim = 512;
inline constexpr std::int64_t kMaxPassLines = std::int64_t{1} << 40;
// Of a thread in the backward. Beyond, tiles come from memory again and again, and composed passes are as fast.
inline constexpr std::int64_t kMaxPassScratch = std::int64_t{12} << 20;
inline constexpr std::int64_t kPassQueries = 8;  // of a head, whose scores are formed together
// Ranges of groups that sum weight gradients on their own. Fixed, so that sums do not depend on the number of
// threads.
inline constexpr std::int64_t kPassSlabs = 64;

// What an instruction set makes of a type.
struct PassTarget {
  int lanes = 1;  // lines of a group
  int rows = 4;   // of a block of packed weights
};

// Offsets and extents are in elements of the accumulator type; every region starts at a cache line.
struct PassPlan {
  int lanes = 1, rows = 4;
  bool backward = false;
  std::int64_t length = 0, dim = 0, heads = 0, head_dim = 0;
  std::int64_t groups = 0;  // of lines; the last one may have idle lanes
  std::int64_t parts = 0;   // consecutive groups, or slabs, that share a scratch: at most as many as threads
  std::int64_t slabs = 0;   // backward: consecutive groups that share their sums
  // Between rows of a channels-first tile: `length` vectors, and one more where that is even, so that a column of
  // rows does not fall into few sets of the cache.
  std::int64_t row = 0;
  std::int64_t width = 0;                   // of a row of channels in a tokens-first tile: dim rounded up to a vector
  std::int64_t dim_rows = 0, qkv_rows = 0;  // dim and 3 dim rounded up to blocks of rows

  // Once: weights packed in blocks of `rows` rows, [block, depth, rows], with the norm folded in.
  std::int64_t qkv_weight = 0;  // [3D, D]
  std::int64_t qkv_bias = 0;    // [3D]
  std::int64_t out_weight = 0;  // [D, D]
  std::int64_t out_bias = 0;    // [D]
  std::int64_t qkv_turned = 0;  // [D, 3D]    backward
  std::int64_t out_turned = 0;  // [D, D]     backward
  std::int64_t common = 0;      // of all

  // Once a part.
  std::int64_t hat = 0;  // [D, row] x_hat; in the forward then the branch's output
  std::int64_t qkv = 0;  // [3D, row] Q, K, V; O takes the place of Q, in the backward their gradients that of all
  std::int64_t p = 0;    // [queries, L, lanes] probabilities of a head; queries = kPassQueries, or L in the backward
  // [L, lanes] dropout factors of a query; or [D, lanes] of the branch's output, of a token
  std::int64_t keep = 0;
  std::int64_t inverse = 0;     // [kPassQueries, lanes] 1 / sum of a row of the softmax
  std::int64_t tile = 0;        // [lanes, width] one token of every line
  std::int64_t ds = 0;          // [L, L, lanes]    backward, as all below
  std::int64_t du = 0;          // [D, row] gradient of the branch, then of x_hat
  std::int64_t d_o = 0;         // [D, row] then O
  std::int64_t own = 0;         // [d, row] O, then dQ of a head
  std::int64_t rstd = 0;        // [L, lanes]
  std::int64_t hat_tokens = 0;  // [L, lanes, width]
  std::int64_t du_tokens = 0;   // [L, lanes, width]
  std::int64_t scratch = 0;     // of all

  // Once a slab: sums of gradients over its groups; those of biases lane by lane.
  std::int64_t d_qkv_weight = 0;  // [3D, width], before the norm is unfolded
  std::int64_t d_out_weight = 0;  // [D, width], transposed
  std::int64_t d_qkv_bias = 0;    // [3D, lanes]
  std::int64_t d_out_bias = 0;    // [D, lanes]
  std::int64_t d_bias = 0;        // [heads, 2L-1, lanes]
  std::int64_t slab = 0;          // of all

  std::size_t total_bytes = 0;  // of the workspace: common, parts, slabs
};

// That of the instruction set in use.
PassTarget current_pass_target(DType dtype);

PassPlan pass_plan(const PassProblem& problem, bool backward, int threads, const PassTarget& target);

// First group of a slab or part: evenly spread, so that halves of the slabs have halves of the groups.
inline std::int64_t spread(std::int64_t n, std::int64_t parts, std::int64_t index) { return n * index / parts; }

// The lines of a group.
struct PassGroup {
  std::int64_t first = 0;  // line
  int count = 0;           // lanes in use; idle lanes repeat the last line, and nothing of theirs is stored or summed
  LinePlace places[kMaxPassLanes];
};
PassGroup pass_group(const PassProblem& problem, const PassPlan& plan, std::int64_t group);

// Element offset of each lane's first token.
template <class Pointer>
void lane_offsets(const PassGroup& group, const BasicTokens<Pointer>& tokens, int lanes, std::int64_t* offsets) {
  for (int lane = 0; lane < lanes; ++lane) {
    const std::int64_t* at = group.places[lane].at;
    offsets[lane] = at[0] * tokens.outer_stride[0] + at[1] * tokens.outer_stride[1] + at[2] * tokens.outer_stride[2];
  }
}

bool empty(const PassProblem& problem);  // no token

// The caller's memory may have any alignment; validate_workspace has seen that it is there.
inline void* aligned_workspace(void* workspace) {
  if (workspace == nullptr) __builtin_unreachable();
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  return static_cast<char*>(workspace) + (round_up(address, std::uintptr_t{kWorkspaceAlignment}) - address);
}

// Those of a problem that is not float64.
inline PassWeightsOf<float> weights_of(const PassProblem& problem) {
  const PassWeights& w = problem.weights;
  return {w.norm_weight, w.norm_bias, w.qkv_weight, w.qkv_bias,
          w.out_weight,  w.out_bias,  w.bias,       problem.sample_scale};
}

// The checks of both directions: the problem, and what each reads and writes.
Status check_pass(const PassProblem& problem);
template <class T>
Status check_forward(const PassProblem& problem, const PassWeightsOf<T>& weights, const Tokens& y);
template <class T>
Status check_backward(const PassProblem& problem, const PassWeightsOf<T>& weights, const ConstTokens& dy,
                      const Tokens& dx, const PassGradientsOf<T>& gradients, bool* wanted);

}  // namespace axial::kernels::cpu
