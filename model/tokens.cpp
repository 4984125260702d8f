#include "model/tokens.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/tokens.h"
#include "model/bridge.h"
#include "model/launch.h"

namespace axial {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const void* data_or_null(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

std::optional<at::Tensor> optional_of(const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; }

// --- the stem --------------------------------------------------------------------------------------

// images[B, C, H, W] in channels-last order, in which pooling and convolutions are several times faster on the CPU
// and the tokens [B, H', W', D] of the last convolution come out contiguous. One channel is both orders at once;
// strides that say channels last keep libtorch from taking it for the other one.
at::Tensor channels_last(const at::Tensor& images) {
  const at::Tensor x = images.contiguous(at::MemoryFormat::ChannelsLast);
  const std::int64_t channels = x.size(1), width = x.size(3);
  return x.as_strided(x.sizes(), {x.size(2) * width * channels, 1, width * channels, channels});
}

at::Tensor composed_positions(const at::Tensor& x, const at::Tensor& row_pos, const at::Tensor& col_pos) {
  // In the wider of both types, in which their gradients are then summed over the samples.
  return (x + (row_pos + col_pos)).to(x.scalar_type());
}

at::Tensor composed_stem(const at::Tensor& images, const StemConvolution& c, const at::Tensor& row_pos,
                         const at::Tensor& col_pos) {
  const auto type = images.scalar_type();
  at::Tensor x = channels_last(images);  // [B, C, H, W]
  const auto missing = [&](std::int64_t out, std::int64_t size, std::int64_t kernel) {
    return std::max<std::int64_t>(0, (out - 1) * c.stride + kernel - 2 * c.padding - size);
  };
  const std::int64_t below = missing(c.out_height, x.size(2), c.weight.size(2)),
                     right = missing(c.out_width, x.size(3), c.weight.size(3));
  if (below != 0 || right != 0) x = at::constant_pad_nd(x, {0, right, 0, below});
  // On processors with AMX the 16-bit convolution of libtorch 2.11 leaves rubbish in the gradient of a kernel that is
  // larger than the map.
  const bool small = x.size(2) < c.weight.size(2) || x.size(3) < c.weight.size(3);
  const auto work = small && x.is_cpu() ? accumulate_type(type) : type;
  x = at::conv2d(x.to(work), c.weight.to(work).contiguous(at::MemoryFormat::ChannelsLast),
                 c.bias.defined() ? c.bias.to(work) : at::Tensor(), c.stride, c.padding);
  // [B, H', W', D]; no copy where the convolution kept the order
  x = x.permute({0, 2, 3, 1}).contiguous().to(type);
  return row_pos.defined() ? composed_positions(x, row_pos, col_pos) : x;
}

// Everything but the pointers.
kernels::StemProblem stem_problem(const at::Tensor& images, const StemConvolution& c) {
  kernels::StemProblem problem;
  problem.samples = images.size(0);
  problem.channels = images.size(1);
  problem.height = images.size(2);
  problem.width = images.size(3);
  problem.kernel = c.weight.size(2);
  problem.stride = c.stride;
  problem.padding = c.padding;
  problem.out_height = c.out_height;
  problem.out_width = c.out_width;
  problem.dim = c.weight.size(0);
  problem.dtype = kernel_type(images.scalar_type());
  return problem;
}

enum StemInput { kImages, kWeight, kBias, kRowPos, kColPos, kStemInputs };

class StemFunction : public torch::autograd::Function<StemFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& images_any, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& row_pos,
                            const std::optional<at::Tensor>& col_pos, const StemConvolution& geometry) {
    const c10::OptionalDeviceGuard guard(images_any.device());
    const auto type = images_any.scalar_type();
    const at::Tensor images = aligned_contiguous(images_any);
    const at::Tensor w = kernel_parameter(weight, type), b = kernel_parameter(bias.value_or(at::Tensor()), type),
                     row = kernel_parameter(row_pos.value_or(at::Tensor()), type),
                     col = kernel_parameter(col_pos.value_or(at::Tensor()), type);
    StemConvolution c = geometry;
    c.weight = weight;
    kernels::StemProblem problem = stem_problem(images, c);
    problem.images = images.const_data_ptr();
    problem.weight = w.const_data_ptr();
    problem.bias = data_or_null(b);
    problem.row_pos = data_or_null(row);
    problem.col_pos = data_or_null(col);
    at::Tensor y = at::empty({images.size(0), c.out_height, c.out_width, weight.size(0)}, images.options());
    check_status(kernels::cuda::stem(problem, y.mutable_data_ptr(), current_stream(y.device())), "stem");
    ctx->save_for_backward({images, weight, bias.value_or(at::Tensor()), row_pos.value_or(at::Tensor()),
                            col_pos.value_or(at::Tensor())});
    ctx->saved_data["geometry"] = std::vector<std::int64_t>{c.stride, c.padding, c.out_height, c.out_width};
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    variable_list inputs = ctx->get_saved_variables();
    const std::vector<std::int64_t> geometry = ctx->saved_data["geometry"].toIntVector();
    const StemConvolution c{inputs[kWeight], inputs[kBias], geometry[0], geometry[1], geometry[2], geometry[3]};
    const at::Tensor& images = inputs[kImages];
    const c10::OptionalDeviceGuard guard(images.device());
    variable_list gradients(kStemInputs + 1);  // one for each argument of forward
    if (at::GradMode::is_enabled()) {
      const at::Tensor y = composed_stem(images, c, inputs[kRowPos], inputs[kColPos]);
      const variable_list found = composed_gradients(y, incoming[0], inputs);
      std::copy(found.begin(), found.end(), gradients.begin());
      return gradients;
    }
    kernels::StemProblem problem = stem_problem(images, c);
    problem.images = images.const_data_ptr();
    const at::Tensor dy = aligned_contiguous(incoming[0].to(images.scalar_type()));
    kernels::StemGradients g;
    int input = 0;  // as needs_input_grad counts: what is undefined has no number
    const auto room = [&](StemInput which) -> void* {
      if (!inputs[which].defined()) return nullptr;
      if (!ctx->needs_input_grad(static_cast<std::size_t>(++input))) return nullptr;
      gradients[which] =
          at::empty(inputs[which].sizes(), images.options().dtype(accumulate_type(images.scalar_type())));
      return gradients[which].mutable_data_ptr();
    };
    g.weight = room(kWeight);
    g.bias = room(kBias);
    g.row_pos = room(kRowPos);
    g.col_pos = room(kColPos);
    const std::size_t bytes = kernels::cuda::stem_backward_workspace(problem, g);
    const at::Tensor workspace = workspace_on(images, bytes);
    check_status(kernels::cuda::stem_backward(problem, dy.const_data_ptr(), g, workspace.mutable_data_ptr(), bytes,
                                              current_stream(images.device())),
                 "stem backward");
    for (int which = kWeight; which < kStemInputs; ++which) {
      if (gradients[which].defined()) gradients[which] = gradients[which].to(inputs[which].scalar_type());
    }
    return gradients;
  }
};

// --- positions -------------------------------------------------------------------------------------

kernels::PositionsProblem positions_problem(const at::Tensor& x) {
  return {x.size(0), x.size(1), x.size(2), x.size(3), kernel_type(x.scalar_type())};
}

class PositionsFunction : public torch::autograd::Function<PositionsFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& row_pos,
                            const at::Tensor& col_pos) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const at::Tensor x = aligned_contiguous(x_any), row = kernel_parameter(row_pos, x.scalar_type()),
                     col = kernel_parameter(col_pos, x.scalar_type());
    at::Tensor y = at::empty_like(x);
    check_status(kernels::cuda::add_positions(positions_problem(x), x.const_data_ptr(), row.const_data_ptr(),
                                              col.const_data_ptr(), y.mutable_data_ptr(), current_stream(x.device())),
                 "positions");
    ctx->saved_data["row"] = row_pos.scalar_type();
    ctx->saved_data["col"] = col_pos.scalar_type();
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const auto row_type = ctx->saved_data["row"].toScalarType(), col_type = ctx->saved_data["col"].toScalarType();
    const bool wants_row = ctx->needs_input_grad(1), wants_col = ctx->needs_input_grad(2);
    const at::Tensor& g = incoming[0];
    variable_list gradients{g, {}, {}};
    if (!wants_row && !wants_col) return gradients;
    const c10::OptionalDeviceGuard guard(g.device());
    const auto sums = accumulate_type(g.scalar_type());
    if (at::GradMode::is_enabled()) {
      if (wants_row) gradients[1] = g.to(sums).sum(at::IntArrayRef{0, 2}).unsqueeze(1).to(row_type);
      if (wants_col) gradients[2] = g.to(sums).sum(at::IntArrayRef{0, 1}).unsqueeze(0).to(col_type);
      return gradients;
    }
    const at::Tensor dy = aligned_contiguous(g);
    const kernels::PositionsProblem problem = positions_problem(dy);
    at::Tensor row, col;
    if (wants_row) row = at::empty({dy.size(1), 1, dy.size(3)}, dy.options().dtype(sums));
    if (wants_col) col = at::empty({1, dy.size(2), dy.size(3)}, dy.options().dtype(sums));
    const std::size_t bytes = kernels::cuda::positions_backward_workspace(problem);
    const at::Tensor workspace = workspace_on(dy, bytes);
    check_status(
        kernels::cuda::positions_backward(problem, dy.const_data_ptr(), wants_row ? row.mutable_data_ptr() : nullptr,
                                          wants_col ? col.mutable_data_ptr() : nullptr, workspace.mutable_data_ptr(),
                                          bytes, current_stream(dy.device())),
        "positions backward");
    if (wants_row) gradients[1] = row.to(row_type);
    if (wants_col) gradients[2] = col.to(col_type);
    return gradients;
  }
};

// --- the mean --------------------------------------------------------------------------------------

// x [B, H, W, D].
kernels::PoolProblem pool_problem(const at::Tensor& x, double eps) {
  return {x.size(0), x.size(1) * x.size(2), x.size(3), kernel_type(x.scalar_type()), eps, nullptr};
}

// The mean of x_hat without its affine part, [B, D] in the accumulate type.
class PoolFunction : public torch::autograd::Function<PoolFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, double eps) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const at::Tensor x = aligned_contiguous(x_any);
    kernels::PoolProblem problem = pool_problem(x, eps);
    problem.x = x.const_data_ptr();
    at::Tensor mean = at::empty({x.size(0), x.size(3)}, x.options().dtype(accumulate_type(x.scalar_type())));
    const std::size_t bytes = kernels::cuda::pool_workspace(problem);
    const at::Tensor workspace = workspace_on(x, bytes);
    check_status(kernels::cuda::pool(problem, mean.mutable_data_ptr(), workspace.mutable_data_ptr(), bytes,
                                     current_stream(x.device())),
                 "pool");
    ctx->save_for_backward({x});
    ctx->saved_data["eps"] = eps;
    return mean;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const at::Tensor x = ctx->get_saved_variables()[0];
    const double eps = ctx->saved_data["eps"].toDouble();
    const c10::OptionalDeviceGuard guard(x.device());
    if (at::GradMode::is_enabled()) {
      const at::Tensor x_hat = at::layer_norm(x.to(accumulate_type(x.scalar_type())), {x.size(3)}, {}, {}, eps);
      return {composed_gradients(x_hat.mean({1, 2}), incoming[0], {x})[0], {}};
    }
    kernels::PoolProblem problem = pool_problem(x, eps);
    problem.x = x.const_data_ptr();
    const at::Tensor g = aligned_contiguous(incoming[0]);
    at::Tensor dx = at::empty_like(x);
    check_status(
        kernels::cuda::pool_backward(problem, g.const_data_ptr(), dx.mutable_data_ptr(), current_stream(x.device())),
        "pool backward");
    return {dx, {}};
  }
};

bool may_serve(const at::Tensor& t, Backend backend) {
  return backend == Backend::kFused && t.is_cuda() && t.numel() > 0;
}

}  // namespace

at::Tensor stem_convolution(const at::Tensor& images, const StemConvolution& c, const at::Tensor& row_pos,
                            const at::Tensor& col_pos, Backend backend) {
  const bool images_gradient = images.requires_grad() && at::GradMode::is_enabled();
  if (!may_serve(images, backend) || images_gradient || !supported(stem_problem(images, c)).ok()) {
    return composed_stem(images, c, row_pos, col_pos);
  }
  return StemFunction::apply(images, c.weight, optional_of(c.bias), optional_of(row_pos), optional_of(col_pos),
                             StemConvolution{{}, {}, c.stride, c.padding, c.out_height, c.out_width});
}

at::Tensor add_positions(const at::Tensor& x, const at::Tensor& row_pos, const at::Tensor& col_pos, Backend backend) {
  if (!may_serve(x, backend) || !supported(positions_problem(x)).ok()) return composed_positions(x, row_pos, col_pos);
  return PositionsFunction::apply(x, row_pos, col_pos);
}

at::Tensor normalised_mean(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps,
                           Backend backend) {
  const auto type = x.scalar_type(), sums = accumulate_type(type);
  if (!may_serve(x, backend) || !supported(pool_problem(x, eps)).ok()) {
    // In a 16-bit type libtorch's CPU would add the gradients of all tokens up in it.
    return at::layer_norm(x.to(sums), {x.size(3)}, weight.to(sums), bias.to(sums), eps).mean({1, 2}).to(type);
  }
  return at::addcmul(bias.to(sums), PoolFunction::apply(x, eps), weight.to(sums)).to(type);
}

}  // namespace axial
