// Between libtorch and kernels/: types, strided views, the thread pool, the current stream, errors.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/kernels.h"
#include "model/options.h"

namespace axial {

kernels::DType kernel_type(at::ScalarType type);  // an error for types that no kernel knows
// The type of statistics, biases and sums: float64 for float64, else float32.
at::ScalarType accumulate_type(at::ScalarType type);
// The type of the products on x: that of x, or a 16-bit one beside float32 (PassOptions::arithmetic). Float64, in
// which references are computed, stays float64.
at::ScalarType product_type(const at::Tensor& x, at::ScalarType arithmetic);
// An error, "<what>: ...", unless product_type knows it for x.
void check_arithmetic(const at::Tensor& x, at::ScalarType arithmetic, const char* what);

// A failed status becomes a c10::Error, "<what>: <message>".
void check_status(const kernels::Status& status, const char* what);

// The kernels' CPU code runs on libtorch's intra-op threads.
kernels::cpu::Executor executor();

// The current stream of a CUDA device; an error in a build without CUDA.
CUstream_st* current_stream(at::Device device);

// How float32 products are formed on `device`: TF32 where libtorch's own GEMMs may use it.
kernels::Math math_mode(at::ScalarType type, at::Device device);

// t as the kernels like it, contiguous from a 16-byte boundary: what starts elsewhere is copied once, so that results
// do not depend on where a tensor lies.
at::Tensor aligned_contiguous(const at::Tensor& t);

// A parameter as the kernels read it beside tensors of `type`: in the accumulate type, contiguous and aligned.
// Undefined stays undefined.
at::Tensor kernel_parameter(const at::Tensor& t, at::ScalarType type);
// Bytes for a kernel to work in, on the device of t.
at::Tensor workspace_on(const at::Tensor& t, std::size_t bytes);

// The lines of x[B, H, W, ...] along an axis: rows {B, H} of W tokens, columns {B, W} of H tokens.
kernels::Lines lines_of(std::int64_t batch, std::int64_t height, std::int64_t width, Axis axis);
std::int64_t lines_per_sample(const kernels::Lines& lines);

// t[B, H, W, h, d] with any strides, seen along an axis; an undefined t is a null view.
kernels::ConstView const_view(const at::Tensor& t, Axis axis);
kernels::View view(const at::Tensor& t, Axis axis);

}  // namespace axial
