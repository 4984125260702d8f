#include "kernels/cuda/launch.cuh"

namespace axial::kernels::cuda {

template Status launch_forward<Fp16>(ForwardProblem problem, cudaStream_t stream);
template Status launch_backward<Fp16>(BackwardProblem problem, const BackwardPlan& plan, cudaStream_t stream);

}  // namespace axial::kernels::cuda
