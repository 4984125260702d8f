#include "kernels/cuda/mlp_forward_launch.cuh"

namespace axial::kernels::cuda {
template Status launch_mlp_forward<__nv_bfloat16>(const MlpArguments&, const MlpPlan&, std::int64_t, const CardLimits&,
                                                 cudaStream_t);

}  // namespace axial::kernels::cuda
