#include "kernels/cuda/launch.cuh"

namespace axial::kernels::cuda {

template Status launch_forward<Bf16>(ForwardProblem problem, cudaStream_t stream);
template Status launch_backward<Bf16>(BackwardProblem problem, const BackwardPlan& plan, cudaStream_t stream);

}  // namespace axial::kernels::cuda
