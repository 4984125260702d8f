// From a problem to a launch, on the host. The launchers of each policy are compiled in a file of their own
// (attention_bf16.cu and so on), so that the kernels build in parallel.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/shapes.cuh"
#include "kernels/kernels.h"

namespace axial::kernels::cuda {

inline constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1;  // of grid x; y and z end at 65 535

// kDevice with the runtime's own words; `what` was being done.
inline Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());  // reported here, so it is not pending any more
  return failure(Code::kDevice, "%s: %s", what, cudaGetErrorString(error));
}

// Opt-in to shared memory is per kernel and device, and the caller may change devices: asked for every time.
inline Status opt_in(const void* function, std::size_t shared, const char* what) {
  if (shared <= (48 << 10)) return {};
  return check(
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), what);
}

template <class Parameters>
Status launch(void (*kernel)(Parameters), const Parameters& parameters, std::int64_t blocks, int threads,
              std::size_t shared, cudaStream_t stream, const char* what) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  const Status status = opt_in(function, shared, what);
  if (!status.ok()) return status;
  void* arguments[] = {const_cast<Parameters*>(&parameters)};
  return check(cudaLaunchKernel(function, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)),
                                arguments, shared, stream),
               what);
}

// As launch, but the kernel may start while the one before it in the stream ends (programmatic dependent launch, from
// compute capability 9.0 on): it must call await_previous() before it touches memory that others write or read; what
// the kernel before the one in front left is complete only where the one in front waited before it called
// release_next().
template <class Parameters>
Status launch_early(void (*kernel)(Parameters), const Parameters& parameters, std::int64_t blocks, int threads,
                    std::size_t shared, cudaStream_t stream, const char* what) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  const Status status = opt_in(function, shared, what);
  if (!status.ok()) return status;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  void* arguments[] = {const_cast<Parameters*>(&parameters)};
  return check(cudaLaunchKernelExC(&config, function, arguments), what);
}

// How a backward is spread over blocks. It depends on the problem alone, never on the device, so that sums
// over lines (d_bias) have one order.
struct BackwardPlan {
  int block_warps = 0;
  int warps = 0;                // of a unit
  int tiles = 0;                // row tiles of a unit
  int split = 1;                // blocks that share a set of units
  std::int64_t sets = 0;        // sets of units, a set being one block's teams
  std::int64_t set_blocks = 0;  // blocks / split
  std::int64_t slots = 0;       // with d_bias: teams that keep a head; slabs = slots * split
};

// One policy's launchers; defined in launch.cuh. They fill in what depends on the instantiation.
template <class E>
Status launch_forward(ForwardProblem problem, cudaStream_t stream);
template <class E>
Status launch_backward(BackwardProblem problem, const BackwardPlan& plan, cudaStream_t stream);

}  // namespace axial::kernels::cuda
