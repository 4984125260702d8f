#include "kernels/cuda/mlp_backward_launch.cuh"

namespace axial::kernels::cuda {
template Status launch_mlp_backward<__half>(MlpBackwardArguments, const MlpPlan&, std::int64_t, const CardLimits&,
                                                  cudaStream_t);

}  // namespace axial::kernels::cuda
