#include "model/maps.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/maps.h"
#include "model/bridge.h"
#include "model/launch.h"

namespace axial {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor channels_first(const at::Tensor& x) { return x.permute({0, 3, 1, 2}); }  // a view
at::Tensor channels_last(const at::Tensor& x) { return x.permute({0, 2, 3, 1}).contiguous(); }

bool may_serve(const at::Tensor& x, Backend backend) {
  return backend == Backend::kFused && x.is_cuda() && x.numel() > 0;
}

// --- max pooling -----------------------------------------------------------------------------------

kernels::MaxPoolProblem pool_problem(at::IntArrayRef sizes, at::ScalarType type) {
  return {sizes[0], sizes[1], sizes[2], sizes[3], kernel_type(type)};
}

// dx [B, H, W, C] from dy and the winners of each window, of operators that can be differentiated.
at::Tensor composed_unpool(const at::Tensor& dy, const at::Tensor& winner, std::int64_t height, std::int64_t width) {
  const std::int64_t rows = dy.size(1), columns = dy.size(2);
  const at::Tensor padded = at::zeros({dy.size(0), 2 * rows + 1, 2 * columns + 1, dy.size(3)}, dy.options());
  for (std::int64_t i = 0; i < 9; ++i) {
    padded.slice(1, i / 3, i / 3 + 2 * rows - 1, 2)
        .slice(2, i % 3, i % 3 + 2 * columns - 1, 2)
        .add_(dy * (winner == i));
  }
  return padded.slice(1, 1, height + 1).slice(2, 1, width + 1);
}

class MaxPoolFunction : public torch::autograd::Function<MaxPoolFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, bool save) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const at::Tensor x = aligned_contiguous(x_any);
    const std::vector<std::int64_t> out{x.size(0), (x.size(1) + 1) / 2, (x.size(2) + 1) / 2, x.size(3)};
    at::Tensor y = at::empty(out, x.options());
    const at::Tensor winner = save ? at::empty(out, x.options().dtype(at::kByte)) : at::Tensor();
    check_status(
        kernels::cuda::max_pool(pool_problem(x.sizes(), x.scalar_type()), x.const_data_ptr(), y.mutable_data_ptr(),
                                save ? winner.mutable_data_ptr<std::uint8_t>() : nullptr, current_stream(x.device())),
        "max_pool");
    if (save) {  // x itself is not needed
      ctx->save_for_backward({winner});
      ctx->saved_data["sizes"] = x.sizes().vec();
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const at::Tensor winner = ctx->get_saved_variables()[0];
    const std::vector<std::int64_t> sizes = ctx->saved_data["sizes"].toIntVector();
    const c10::OptionalDeviceGuard guard(winner.device());
    if (at::GradMode::is_enabled()) return {composed_unpool(incoming[0], winner, sizes[1], sizes[2]), {}};
    const at::Tensor dy = aligned_contiguous(incoming[0]);
    at::Tensor dx = at::empty(sizes, dy.options());
    check_status(kernels::cuda::max_pool_backward(pool_problem(sizes, dy.scalar_type()), dy.const_data_ptr(),
                                                  winner.const_data_ptr<std::uint8_t>(), dx.mutable_data_ptr(),
                                                  current_stream(dy.device())),
                 "max_pool backward");
    return {dx, {}};
  }
};

// --- batch normalisation ---------------------------------------------------------------------------

// libtorch mixes 16-bit x with float32 parameters by itself; float64 beside float32 goes through copies.
at::Tensor composed_batch_norm(const at::Tensor& x, const BatchNorm& norm, Activation activation) {
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : norm.running_mean.scalar_type();
  const at::Tensor mean = norm.running_mean.to(type), var = norm.running_var.to(type);
  const at::Tensor y = at::batch_norm(channels_first(x), norm.weight.to(type), norm.bias.to(type), mean, var,
                                      norm.training, norm.momentum, norm.eps, /*cudnn_enabled=*/true);
  if (norm.training && type != norm.running_mean.scalar_type()) {
    const at::NoGradGuard no_grad;
    norm.running_mean.copy_(mean);
    norm.running_var.copy_(var);
  }
  return channels_last(activate(y, activation));
}

// x [B, H, W, C].
kernels::BatchNormProblem norm_problem(const at::Tensor& x, double eps, bool relu) {
  kernels::BatchNormProblem problem;
  problem.rows = x.size(0) * x.size(1) * x.size(2);
  problem.channels = x.size(3);
  problem.dtype = kernel_type(x.scalar_type());
  problem.eps = eps;
  problem.relu = relu;
  return problem;
}

class BatchNormFunction : public torch::autograd::Function<BatchNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& weight,
                            const at::Tensor& bias, const BatchNorm& norm, bool relu) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const at::Tensor x = aligned_contiguous(x_any), w = kernel_parameter(weight, x.scalar_type()),
                     b = kernel_parameter(bias, x.scalar_type());
    kernels::BatchNormProblem problem = norm_problem(x, norm.eps, relu);
    problem.x = x.const_data_ptr();
    problem.weight = w.const_data_ptr();
    problem.bias = b.const_data_ptr();
    const kernels::RunningStatistics running{norm.running_mean.mutable_data_ptr(),
                                             norm.running_var.mutable_data_ptr(), norm.momentum};
    at::Tensor y = at::empty_like(x);
    const at::Tensor statistics = at::empty({2, x.size(3)}, w.options());
    const std::size_t bytes = kernels::cuda::batch_norm_workspace(problem);
    const at::Tensor workspace = workspace_on(x, bytes);
    check_status(kernels::cuda::batch_norm(problem, running, y.mutable_data_ptr(), statistics.mutable_data_ptr(),
                                           workspace.mutable_data_ptr(), bytes, current_stream(x.device())),
                 "batch_norm");
    // As an in-place operator would: whoever saved them is told.
    norm.running_mean.unsafeGetTensorImpl()->bump_version();
    norm.running_var.unsafeGetTensorImpl()->bump_version();
    ctx->save_for_backward({x, weight, bias, statistics});
    ctx->saved_data["eps"] = norm.eps;
    ctx->saved_data["relu"] = relu;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2], &statistics = saved[3];
    const double eps = ctx->saved_data["eps"].toDouble();
    const bool relu = ctx->saved_data["relu"].toBool();
    const c10::OptionalDeviceGuard guard(x.device());
    if (at::GradMode::is_enabled()) {
      const auto sums = accumulate_type(x.scalar_type());
      const at::Tensor z =
          at::batch_norm(channels_first(x), weight.to(sums), bias.to(sums), {}, {}, true, 0, eps, false);
      const at::Tensor y = channels_last(relu ? at::relu(z) : z);
      variable_list gradients = composed_gradients(y, incoming[0], {x, weight, bias});
      gradients.resize(5);
      return gradients;
    }
    const at::Tensor w = kernel_parameter(weight, x.scalar_type()), b = kernel_parameter(bias, x.scalar_type());
    kernels::BatchNormProblem problem = norm_problem(x, eps, relu);
    problem.x = x.const_data_ptr();
    problem.weight = w.const_data_ptr();
    problem.bias = b.const_data_ptr();
    const at::Tensor dy = aligned_contiguous(incoming[0]);
    const at::Tensor dx = ctx->needs_input_grad(0) ? at::empty_like(x) : at::Tensor();
    const at::Tensor sums = at::empty_like(statistics);  // of bias and of weight
    const std::size_t bytes = kernels::cuda::batch_norm_workspace(problem);
    const at::Tensor workspace = workspace_on(x, bytes);
    check_status(
        kernels::cuda::batch_norm_backward(problem, statistics.const_data_ptr(), dy.const_data_ptr(),
                                           dx.defined() ? dx.mutable_data_ptr() : nullptr, sums.mutable_data_ptr(),
                                           workspace.mutable_data_ptr(), bytes, current_stream(x.device())),
        "batch_norm backward");
    return {dx, sums.select(0, 1).to(weight.scalar_type()), sums.select(0, 0).to(bias.scalar_type()), {}, {}};
  }
};

// The kernel updates the running statistics where they are.
bool in_place(const at::Tensor& running, at::ScalarType sums) {
  return running.defined() && running.scalar_type() == sums && running.is_contiguous();
}

}  // namespace

at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kNone:
      return x;
  }
  TORCH_CHECK(false, "stem: unknown activation ", static_cast<int>(activation));
}

at::Tensor max_pool(const at::Tensor& x, Backend backend) {
  if (!may_serve(x, backend) || !supported(pool_problem(x.sizes(), x.scalar_type())).ok()) {
    return channels_last(at::max_pool2d(channels_first(x), 3, 2, 1));
  }
  return MaxPoolFunction::apply(x, x.requires_grad() && at::GradMode::is_enabled());
}

at::Tensor batch_norm(const at::Tensor& x, const BatchNorm& norm, Activation activation, Backend backend) {
  const bool relu = activation == Activation::kRelu;
  const auto sums = accumulate_type(x.scalar_type());
  if (!may_serve(x, backend) || !norm.training || !in_place(norm.running_mean, sums) ||
      !in_place(norm.running_var, sums) || !supported(norm_problem(x, norm.eps, relu)).ok()) {
    return composed_batch_norm(x, norm, activation);
  }
  const at::Tensor y = BatchNormFunction::apply(x, norm.weight, norm.bias, norm, relu);
  return relu ? y : activate(y, activation);
}

}  // namespace axial
