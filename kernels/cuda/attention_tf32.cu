#include "kernels/cuda/launch.cuh"

namespace axial::kernels::cuda {

template Status launch_forward<Tf32>(ForwardProblem problem, cudaStream_t stream);
template Status launch_backward<Tf32>(BackwardProblem problem, const BackwardPlan& plan, cudaStream_t stream);

}  // namespace axial::kernels::cuda
