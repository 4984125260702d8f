// What the attention loops share that does not depend on the instruction set: tile extents, addresses, and how units
// of work are handed to the executor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace axial::kernels::cpu {

// All scratch tiles hold this many elements and live on the stack of the thread that computes: 16 KiB each in
// float32, 32 KiB in float64; the backward has twelve of them.
inline constexpr int kTileElements = 4096;
inline constexpr int kMaxTile = 64;

// Queries and keys in one tile. A multiple of 16, because dropout draws come sixteen keys at a time.
inline int tile_extent(std::int64_t head_dim) { return head_dim <= 64 ? kMaxTile : head_dim <= 128 ? 32 : 16; }

template <class T>
constexpr T round_up(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A line's outer coordinates, and those of the line after it (its own where it is the last).
struct LinePlace {
  std::int64_t at[kMaxOuter];
  std::int64_t next[kMaxOuter];
};

inline LinePlace place_of(const Lines& lines, std::int64_t line) {
  LinePlace place;
  place.at[2] = line % lines.outer[2];
  place.at[1] = line / lines.outer[2] % lines.outer[1];
  place.at[0] = line / lines.outer[2] / lines.outer[1];
  std::copy(place.at, place.at + kMaxOuter, place.next);
  for (int axis = kMaxOuter - 1; axis >= 0; --axis) {
    if (++place.next[axis] < lines.outer[axis]) return place;
    place.next[axis] = 0;
  }
  std::copy(place.at, place.at + kMaxOuter, place.next);
  return place;
}

// Element offset of (line, head), token 0, channel 0.
template <class Pointer>
std::int64_t unit_offset(const LinePlace& place, const BasicView<Pointer>& view, std::int64_t head) {
  return place.at[0] * view.outer_stride[0] + place.at[1] * view.outer_stride[1] +
         place.at[2] * view.outer_stride[2] + head * view.head_stride;
}

// From a line to the next one, in elements.
template <class Pointer>
std::int64_t next_line(const LinePlace& place, const BasicView<Pointer>& view) {
  return (place.next[0] - place.at[0]) * view.outer_stride[0] + (place.next[1] - place.at[1]) * view.outer_stride[1] +
         (place.next[2] - place.at[2]) * view.outer_stride[2];
}

// The dropout of a problem, read once per call.
struct DropoutState {
  bool on = false;
  std::uint64_t key = 0;
  std::uint32_t threshold = 0;
  double scale = 1;
};

// Scores to exponents of two: with t = raw * prescale + bias where `prescaled`, else t = raw, the exponent is
// t * factor. The product is not rounded before the row maximum is subtracted (fused multiply-add), so that large
// logits that float32 holds exactly keep their differences. `factor` is never negative: the maximum stays one.
struct Exponent {
  bool prescaled = false;
  double prescale = 1;
  double factor = 1;
};

inline Exponent exponent_of(const AttentionProblem& problem) {
  constexpr double kLog2E = 1.44269504088896340736;
  if (problem.bias != nullptr || problem.scale <= 0) return {true, problem.scale, kLog2E};
  return {false, 1, problem.scale * kLog2E};
}

DropoutState dropout_state(const Dropout& dropout);

// Calls body(begin, end) over disjoint ranges covering [0, n) on the executor's threads.
template <class Body>
void execute(const Executor& executor, std::int64_t n, const Body& body) {
  if (n <= 0) return;
  if (executor.run == nullptr || n == 1) {
    body(std::int64_t{0}, n);
    return;
  }
  const auto call = [](void* arg, std::int64_t begin, std::int64_t end) {
    (*static_cast<const Body*>(arg))(begin, end);
  };
  executor.run(executor.context, n, call, const_cast<void*>(static_cast<const void*>(&body)));
}

// The first of part `index` of n things in `parts` nearly equal, consecutive parts.
inline std::int64_t share(std::int64_t n, std::int64_t parts, std::int64_t index) {
  return index * (n / parts) + std::min(index, n % parts);
}

// Line ranges that sum d_bias on their own. Fixed, so that the sum does not depend on the number of threads.
inline constexpr std::int64_t kBiasSlabs = 64;
inline constexpr std::size_t kWorkspaceAlignment = 64;

// One backward call, after validation. A slab is a range of lines that sums its own d_bias; without d_bias it is one
// line. A task is a slab and a group of heads: one owner per output. Workspace, in order: per slab d_bias [heads,
// 2L-1]; per slab, where a line is one tile, dS summed over its lines [heads, L, padded L]; per chunk of tasks, where
// a line takes several tiles, scratch: dQ [padded L, padded d] and delta [L].
struct BackwardPlan {
  std::int64_t slabs = 0;
  std::int64_t groups = 0;  // of heads: as many as heads, or 1
  std::int64_t tasks = 0;   // slabs * groups
  std::int64_t chunks = 0;  // consecutive tasks that share a scratch; = tasks where none is needed
  std::size_t slab_bytes = 0, sum_bytes = 0, scratch_bytes = 0;  // of one
  std::size_t total_bytes = 0;
};

BackwardPlan backward_plan(const AttentionProblem& problem, const AttentionGradients& gradients, int threads);

}  // namespace axial::kernels::cpu
