#include "kernels/cuda/pass_line_launch.cuh"

namespace axial::kernels::cuda {

template Status launch_line_forward<Fp32>(const LineArguments& arguments, const LinePlan& plan, std::int64_t dim,
                                          std::int64_t heads, cudaStream_t stream);

}  // namespace axial::kernels::cuda
