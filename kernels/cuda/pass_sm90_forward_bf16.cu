#include "kernels/cuda/pass_forward_launch.cuh"

namespace axial::kernels::cuda {
template Status launch_pass_forward<__nv_bfloat16>(const PassArguments&, std::int64_t, std::int64_t, bool,
                                                   const CardLimits&, cudaStream_t);
}  // namespace axial::kernels::cuda
