#include "model/bridge.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#if AXIAL_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace axial {

kernels::DType kernel_type(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return kernels::DType::kFloat64;
    case at::kFloat:
      return kernels::DType::kFloat32;
    case at::kBFloat16:
      return kernels::DType::kBFloat16;
    case at::kHalf:
      return kernels::DType::kFloat16;
    default:
      TORCH_CHECK(false, "attention runs in float64, float32, bfloat16 or float16, not in ", type);
  }
}

at::ScalarType accumulate_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

at::ScalarType product_type(const at::Tensor& x, at::ScalarType arithmetic) {
  return x.scalar_type() == at::kFloat && arithmetic != at::ScalarType::Undefined ? arithmetic : x.scalar_type();
}

void check_arithmetic(const at::Tensor& x, at::ScalarType arithmetic, const char* what) {
  if (arithmetic == at::ScalarType::Undefined) return;
  TORCH_CHECK(arithmetic == at::kBFloat16 || arithmetic == at::kHalf, what,
              ": arithmetic beside a float32 residual stream is bfloat16 or float16, is ", arithmetic);
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, what, ": ", arithmetic,
              " arithmetic beside a residual stream of its own needs x in float32, is ", x.scalar_type());
}

void check_status(const kernels::Status& status, const char* what) {
  TORCH_CHECK(status.ok(), what, ": ", status.message);
}

kernels::cpu::Executor executor() {
  kernels::cpu::Executor pool;
  pool.threads = at::get_num_threads();
  pool.run = [](void*, std::int64_t n, void (*body)(void*, std::int64_t, std::int64_t), void* arg) {
    at::parallel_for(0, n, 1, [&](std::int64_t begin, std::int64_t end) { body(arg, begin, end); });
  };
  return pool;
}

CUstream_st* current_stream([[maybe_unused]] at::Device device) {
#if AXIAL_WITH_CUDA
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
#else
  TORCH_CHECK(false, "this build of axial has no CUDA side, but a tensor is on ", device);
#endif
}

kernels::Math math_mode(at::ScalarType type, at::Device device) {
  const bool tf32 = type == at::kFloat && device.is_cuda() && at::globalContext().allowTF32CuBLAS();
  return tf32 ? kernels::Math::kTF32 : kernels::Math::kStrict;
}

at::Tensor aligned_contiguous(const at::Tensor& t) {
  at::Tensor result = t.contiguous();
  if (result.numel() > 0 && reinterpret_cast<std::uintptr_t>(result.const_data_ptr()) % 16 != 0)
    result = result.clone();
  return result;
}

at::Tensor kernel_parameter(const at::Tensor& t, at::ScalarType type) {
  return t.defined() ? aligned_contiguous(t.detach().to(accumulate_type(type))) : at::Tensor();
}

at::Tensor workspace_on(const at::Tensor& t, std::size_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, t.options().dtype(at::kByte));
}

kernels::Lines lines_of(std::int64_t batch, std::int64_t height, std::int64_t width, Axis axis) {
  kernels::Lines lines;
  lines.outer[0] = batch;
  lines.outer[1] = axis == Axis::kRow ? height : width;
  lines.length = axis == Axis::kRow ? width : height;
  return lines;
}

std::int64_t lines_per_sample(const kernels::Lines& lines) { return lines.outer[1] * lines.outer[2]; }

namespace {

template <class Pointer>
kernels::BasicView<Pointer> strided(Pointer data, const at::Tensor& t, Axis axis) {
  kernels::BasicView<Pointer> v;
  const bool row = axis == Axis::kRow;
  v.data = data;
  v.outer_stride[0] = t.stride(0);
  v.outer_stride[1] = t.stride(row ? 1 : 2);
  v.token_stride = t.stride(row ? 2 : 1);
  v.head_stride = t.stride(3);
  v.channel_stride = t.stride(4);
  return v;
}

}  // namespace

kernels::ConstView const_view(const at::Tensor& t, Axis axis) {
  return t.defined() ? strided(t.const_data_ptr(), t, axis) : kernels::ConstView{};
}

kernels::View view(const at::Tensor& t, Axis axis) {
  return t.defined() ? strided(t.mutable_data_ptr(), t, axis) : kernels::View{};
}

}  // namespace axial
