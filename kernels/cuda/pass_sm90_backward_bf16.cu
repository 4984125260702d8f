#include "kernels/cuda/pass_backward_launch.cuh"

namespace axial::kernels::cuda {
template Status launch_pass_backward<__nv_bfloat16>(const PassBackwardArguments&, const PassBackwardPlan&,
                                                    std::int64_t, std::int64_t, bool, cudaStream_t);
}  // namespace axial::kernels::cuda
