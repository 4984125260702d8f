#include "tests/kernels/pass_cpu_harness.h"

#include <algorithm>

#include "kernels/features.h"

namespace axial::kernels::testing {
namespace {

// kPassParameters in float64.
struct WideParameter {
  const double* cpu::PassWeightsOf<double>::*weight;
  double* cpu::PassGradientsOf<double>::*gradient;
};
using Weights64 = cpu::PassWeightsOf<double>;
using Gradients64 = cpu::PassGradientsOf<double>;
constexpr WideParameter kWide[] = {{&Weights64::norm_weight, &Gradients64::norm_weight},
                                   {&Weights64::norm_bias, &Gradients64::norm_bias},
                                   {&Weights64::qkv_weight, &Gradients64::qkv_weight},
                                   {&Weights64::qkv_bias, &Gradients64::qkv_bias},
                                   {&Weights64::out_weight, &Gradients64::out_weight},
                                   {&Weights64::out_bias, &Gradients64::out_bias},
                                   {&Weights64::bias, &Gradients64::bias}};

}  // namespace

template <class T>
T CpuPass::tokens(const Operand& operand) const {
  T t;
  std::copy(operand.strides.outer_stride, operand.strides.outer_stride + kMaxOuter, t.outer_stride);
  t.token_stride = operand.strides.token_stride;
  t.data = operand.buffer->data() + operand.offset * static_cast<std::int64_t>(element_size(case_.dtype));
  return t;
}

CpuPass::CpuPass(const PassCase& c, const PassInputs& in, int threads)
    : executor(executor_of({Device::kCpu, threads})), case_(c), inputs_(in) {
  const auto floats = [&](const std::shared_ptr<Bytes>& array) {
    return array == nullptr ? nullptr : reinterpret_cast<const float*>(array->data()) + c.shift;
  };
  problem.lines = c.lines();
  problem.dim = c.dim;
  problem.heads = c.heads;
  problem.dtype = c.dtype;
  problem.eps = static_cast<float>(c.eps());  // as the reference has it
  problem.causal = c.causal;
  c.set_dropouts(&problem, reinterpret_cast<const std::uint64_t*>(in.rng->data()));
  if (c.rotary) problem.rotary = in.rotary->data() + rotary_offset(c);
  problem.sample_scale = floats(in.sample_scale);
  if (!in.reference.sample_scale.empty()) weights64.sample_scale = in.reference.sample_scale.data();
  problem.x = tokens<ConstTokens>(in.x);
  dy = tokens<ConstTokens>(in.dy);
  y = tokens<Tokens>(y_ = make_tokens(c, c.y));
  dx = tokens<Tokens>(dx_ = make_tokens(c, c.dx));
  for (int i = 0; i < kPassParameterCount; ++i) {
    problem.weights.*kPassParameters[i].weight = floats(in.parameters[i]);
    const std::vector<double>& values = in.reference.weights.*kPassParameters[i].values;
    if (values.empty()) continue;
    weights64.*kWide[i].weight = values.data();
    gradients_[i] =
        sentinel_buffer(static_cast<std::int64_t>(values.size()) + 2 * kMargin + c.shift, accumulator_size(c.dtype));
    gradients.*kPassParameters[i].gradient = reinterpret_cast<float*>(gradients_[i]->data()) + kMargin + c.shift;
    gradients64.*kWide[i].gradient = reinterpret_cast<double*>(gradients_[i]->data()) + kMargin + c.shift;
  }
}

Status CpuPass::forward(std::size_t shift) {
  const std::size_t bytes = cpu::pass_forward_workspace(problem, executor);
  Bytes memory(bytes + shift, kSentinel);
  if (wide()) return cpu::pass_forward(problem, weights64, y, memory.data() + shift, bytes, executor);
  return cpu::pass_forward(problem, y, memory.data() + shift, bytes, executor);
}

Status CpuPass::backward(std::size_t shift) {
  const std::size_t bytes = cpu::pass_backward_workspace(problem, executor);
  Bytes memory(bytes + shift, kSentinel);
  if (wide()) {
    return cpu::pass_backward(problem, weights64, dy, dx, gradients64, memory.data() + shift, bytes, executor);
  }
  return cpu::pass_backward(problem, dy, dx, gradients, memory.data() + shift, bytes, executor);
}

PassOutputs CpuPass::fetch() {
  PassOutputs out;
  out.chosen = true;
  const Case t = case_.tokens();
  out.y = dense(t, y_);
  out.dx = dense(t, dx_);
  out.sentinels = check_sentinels(t, "y", {&y_}) + check_sentinels(t, "x", {&inputs_.x}) +
                  check_sentinels(t, "dx", {&dx_}) + check_sentinels(t, "dy", {&inputs_.dy});
  out.bytes = *y_.buffer;
  out.bytes.insert(out.bytes.end(), dx_.buffer->begin(), dx_.buffer->end());
  for (int i = 0; i < kPassParameterCount; ++i) {
    if (gradients_[i] == nullptr) continue;
    const std::vector<double> values = dense_accumulators(t, *gradients_[i]);
    (out.gradients.*kPassParameters[i].values).assign(values.begin() + case_.shift, values.end());
    out.sentinels += check_accumulator_sentinels(t, kPassParameters[i].name, *gradients_[i]);
    out.bytes.insert(out.bytes.end(), gradients_[i]->begin(), gradients_[i]->end());
  }
  if (case_.dropout > 0) {
    out.keep.resize(static_cast<std::size_t>(lines_of(t) * case_.heads * case_.length * case_.length));
    out.status = cpu::dropout_mask(problem.lines, problem.heads, problem.dropout, out.keep.data());
  }
  if (case_.projection > 0 && out.status.ok()) {
    Bytes keep(static_cast<std::size_t>(case_.token_count() * case_.dim));
    out.status = cpu::feature_mask(case_.token_count(), case_.dim, problem.projection, keep.data());
    out.projection_keep = case_.by_line(keep);
  }
  return out;
}

PassOutputs run_cpu(const PassCase& c, const PassInputs& in, int threads, std::size_t shift) {
  CpuPass pass(c, in, threads);
  Status status = pass.forward(shift);
  if (status.ok()) status = pass.backward(shift);
  PassOutputs out = pass.fetch();
  if (!status.ok()) out.status = status;
  return out;
}

std::string check_cpu(const PassCase& c) {
  PassInputs in = make_pass_inputs(c);
  const PassOutputs out = run_cpu(c, in);
  std::string problems = out.status.ok() ? out.sentinels : std::string("status: ") + out.status.message;
  if (out.status.ok()) {
    in.reference.keep = out.keep;
    in.reference.projection_keep = out.projection_keep;
    problems += compare_pass(c, out, in.reference, pass_reference(in.reference));
  }
  return problems.empty() ? "" : problems + "[" + c.describe() + "]";
}

}  // namespace axial::kernels::testing
