#include "kernels/cuda/pass_split_launch.cuh"

namespace axial::kernels::cuda {
template Status launch_pass_split<__half>(PassSplitArguments, const PassBackwardPlan&, std::int64_t, std::int64_t,
                                          bool, cudaStream_t);
}  // namespace axial::kernels::cuda
