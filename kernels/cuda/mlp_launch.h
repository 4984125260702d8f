// From a fused MLP to its kernels, on the host. The kernels of each type are compiled in a file of their own.
#pragma once

#include "kernels/cuda/mlp_shapes.cuh"
#include "kernels/cuda/pass_launch.h"
#include "kernels/mlp.h"

namespace axial::kernels::cuda {

// The widths that there are kernels for, in every type; any number of hidden channels whose weights fit a block's
// shared memory. Others go through the library's products.
template <class V, class Body>
bool for_mlp_shape(std::int64_t dim, Body&& body) {
  if (dim == 32) return body(MlpShape<V, 32>{}), true;
  if (dim == 48) return body(MlpShape<V, 48>{}), true;
  if (dim == 64) return body(MlpShape<V, 64>{}), true;
  if (dim == 96) return body(MlpShape<V, 96>{}), true;
  if (dim == 128) return body(MlpShape<V, 128>{}), true;
  return false;
}

template <class Arguments>
bool general(const Arguments& arguments) {
  return arguments.stream || arguments.dropout.threshold != 0;
}

// The grid of a backward is part of its result: every block sums over its own rows.
struct MlpPlan {
  int groups = 0;      // warpgroups of a forward block; 0: it does not fit
  int hidden = 0;      // padded
  bool fused = false;  // dx and the weights' gradients in one kernel
  int stages = 0;      // of the kernel that computes dx alone; 0: it does not fit
  int part = 0;        // hidden channels whose gradients a block keeps
  int parts = 1;
  std::int64_t blocks = 0;  // that leave slabs
  int slab = 0;             // floats
};

template <class V>
Status launch_mlp_forward(const MlpArguments& arguments, const MlpPlan& plan, std::int64_t dim,
                          const CardLimits& card, cudaStream_t stream);
// arguments.slabs null: dx alone.
template <class V>
Status launch_mlp_backward(MlpBackwardArguments arguments, const MlpPlan& plan, std::int64_t dim,
                           const CardLimits& card, cudaStream_t stream);

// The gradients of the weights from the blocks' slabs, added in a fixed order; totals: parts x slab floats.
Status finish_mlp(const MlpProblem& problem, const MlpPlan& plan, const float* slabs, float* totals,
                  const MlpGradients& gradients, cudaStream_t stream);
// Of up to kMaxMlpsTogether problems of one dim, hidden and dtype.
inline constexpr int kMaxMlpsTogether = 16;
Status pack_mlp_weights(const MlpProblem* problems, void* const* packed, int count, cudaStream_t stream);

}  // namespace axial::kernels::cuda
