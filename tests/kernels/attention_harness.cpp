#include "tests/kernels/attention_harness.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>
#include <thread>

#include "tests/kernels/device_buffers.h"

namespace axial::kernels::testing {
namespace {

bool poisoning() {
  const char* value = std::getenv("AXIAL_TEST_POISON");
  return value == nullptr || std::strcmp(value, "0") != 0;
}

template <class View>
View view_of(const Case& c, const Operand& operand, DeviceBuffers& device, bool fill) {
  View view;
  std::copy(operand.strides.outer_stride, operand.strides.outer_stride + kMaxOuter, view.outer_stride);
  view.token_stride = operand.strides.token_stride;
  view.head_stride = operand.strides.head_stride;
  view.channel_stride = operand.strides.channel_stride;
  auto* base = static_cast<std::uint8_t*>(device.put(operand.buffer, fill));
  view.data = base + operand.offset * static_cast<std::int64_t>(element_size(c.dtype));
  return view;
}

void append(Bytes& to, const std::shared_ptr<Bytes>& from) {
  if (from != nullptr) to.insert(to.end(), from->begin(), from->end());
}

struct ThreadExecutor {
  static void run(void* context, std::int64_t n, void (*body)(void*, std::int64_t, std::int64_t), void* arg) {
    const int threads = *static_cast<int*>(context);
    std::vector<std::thread> workers;
    std::int64_t begin = 0;
    for (int i = 0; i < threads && begin < n; ++i) {
      // Uneven on purpose: each takes more than its part, the last whatever is left.
      const std::int64_t end = i + 1 == threads ? n : std::min(n, begin + (n - begin) / (threads - i) + i % 3 + 1);
      workers.emplace_back([=] { body(arg, begin, end); });
      begin = end;
    }
    for (std::thread& worker : workers) worker.join();
  }
};

}  // namespace

std::string backend_name(Device device) { return device == Device::kCpu ? "cpu" : "cuda"; }

cpu::Executor executor_of(const Backend& backend) {
  static int counts[65];
  const int threads = std::clamp(backend.threads, 1, 64);
  counts[threads] = threads;
  if (threads == 1) return {};
  return {&counts[threads], &ThreadExecutor::run, threads};
}

namespace {

AttentionProblem problem_of(const Case& c, const Inputs& in, DeviceBuffers& device) {
  AttentionProblem problem;
  std::copy(c.outer, c.outer + kMaxOuter, problem.lines.outer);
  problem.lines.length = c.length;
  problem.heads = c.heads;
  problem.head_dim = c.head_dim;
  problem.dtype = c.dtype;
  problem.math = c.math;
  problem.scale = in.reference.scale;
  problem.causal = c.causal;
  problem.bias = device.put(in.bias);
  problem.dropout.p = c.dropout;
  problem.dropout.rng = c.dropout > 0 ? static_cast<const std::uint64_t*>(device.put(in.rng)) : nullptr;
  problem.dropout.stream = c.stream;
  problem.dropout.first_line = c.first_line;
  problem.q = view_of<ConstView>(c, in.q, device, true);
  problem.k = view_of<ConstView>(c, in.k, device, true);
  problem.v = view_of<ConstView>(c, in.v, device, true);
  return problem;
}

Status call_backward(const Backend& backend, const AttentionProblem& problem, const AttentionGradients& gradients,
                     DeviceBuffers& device, std::shared_ptr<Bytes>& workspace) {
  const bool on_cpu = backend.device == Device::kCpu;
  const cpu::Executor executor = executor_of(backend);
  const std::size_t bytes = on_cpu ? cpu::attention_backward_workspace(problem, gradients, executor)
                                   : cuda::attention_backward_workspace(problem, gradients);
  workspace = std::make_shared<Bytes>(bytes, kSentinel);
  void* scratch = bytes == 0 ? nullptr : device.put(workspace, poisoning());
  if (on_cpu) return cpu::attention_backward(problem, gradients, scratch, bytes, executor);
  return cuda::attention_backward(problem, gradients, scratch, bytes, nullptr);
}

}  // namespace

Outputs run(const Case& c, const Inputs& in, const Backend& backend, const RunOptions& options) {
  const bool on_cpu = backend.device == Device::kCpu;
  DeviceBuffers device(backend.device);
  Outputs out;
  Operand o = make_operands(c, c.output, 1)[0];
  std::vector<Operand> gradients = make_operands(c, c.gradients, 3);
  const std::int64_t rows = lines_of(c) * c.heads * c.length;
  const std::int64_t biases = std::max<std::int64_t>(c.heads * (2 * c.length - 1), 0);
  const std::size_t acc = accumulator_size(c.dtype);
  auto row_max = sentinel_buffer(rows + 2 * kMargin, acc), row_sum = sentinel_buffer(rows + 2 * kMargin, acc);
  auto d_bias = sentinel_buffer(biases + 2 * kMargin, acc);
  std::shared_ptr<Bytes> workspace;
  const auto inside = [&](const std::shared_ptr<Bytes>& buffer) -> void* {
    return static_cast<std::uint8_t*>(device.put(buffer, poisoning())) + kMargin * acc;
  };
  const bool statistics = options.statistics || options.backward;
  const AttentionProblem problem = problem_of(c, in, device);
  AttentionOutput output;
  output.o = view_of<View>(c, o, device, poisoning());
  if (statistics) {
    output.row_max = inside(row_max);
    output.row_sum = inside(row_sum);
  }
  out.status = on_cpu ? cpu::attention_forward(problem, output, executor_of(backend))
                      : cuda::attention_forward(problem, output, nullptr);
  const bool want_bias = c.bias && c.want_d_bias;
  if (out.status.ok() && options.backward) {
    if (options.before_backward) {
      options.before_backward(reinterpret_cast<std::uint64_t*>(in.rng->data()));
      device.refresh(in.rng);
    }
    AttentionGradients g;
    g.o = view_of<ConstView>(c, o, device, poisoning());
    g.d_o = view_of<ConstView>(c, in.d_o, device, true);
    g.row_max = output.row_max;
    g.row_sum = output.row_sum;
    if (c.want_dq) g.dq = view_of<View>(c, gradients[0], device, poisoning());
    if (c.want_dk) g.dk = view_of<View>(c, gradients[1], device, poisoning());
    if (c.want_dv) g.dv = view_of<View>(c, gradients[2], device, poisoning());
    if (want_bias) g.d_bias = inside(d_bias);
    out.status = call_backward(backend, problem, g, device, workspace);
  }
  const std::string error = device.fetch();
  if (!error.empty() && out.status.ok()) out.status = failure(Code::kDevice, "%.200s", error.c_str());
  if (!out.status.ok()) return out;

  out.o = dense(c, o);
  out.sentinels = check_sentinels(c, "o", {&o});
  append(out.bytes, o.buffer);
  if (statistics) {
    out.row_max = dense_accumulators(c, *row_max);
    out.row_sum = dense_accumulators(c, *row_sum);
    out.sentinels += check_accumulator_sentinels(c, "row_max", *row_max);
    out.sentinels += check_accumulator_sentinels(c, "row_sum", *row_sum);
    append(out.bytes, row_max);
    append(out.bytes, row_sum);
  }
  if (!options.backward) {
    if (!poisoning()) out.sentinels.clear();
    return out;
  }
  const bool wanted[3] = {c.want_dq, c.want_dk, c.want_dv};
  std::vector<double>* const results[3] = {&out.dq, &out.dk, &out.dv};
  const char* const names[3] = {"dq", "dk", "dv"};
  const bool packed = gradients[0].buffer == gradients[1].buffer;
  std::vector<const Operand*> sharing;
  for (int i = 0; i < 3; ++i) {
    if (wanted[i]) *results[i] = dense(c, gradients[i]);
    if (wanted[i] && packed) sharing.push_back(&gradients[i]);
    if (wanted[i] && !packed) out.sentinels += check_sentinels(c, names[i], {&gradients[i]});
    if (i == 0 || !packed) append(out.bytes, gradients[i].buffer);
  }
  if (packed) out.sentinels += check_sentinels(c, "packed gradients", sharing);
  if (want_bias) {
    out.d_bias = dense_accumulators(c, *d_bias);
    out.sentinels += check_accumulator_sentinels(c, "d_bias", *d_bias);
    append(out.bytes, d_bias);
  }
  if (!poisoning()) out.sentinels.clear();
  return out;
}

std::string compare(const char* what, const std::vector<double>& out, const std::vector<double>& expected,
                    const Tolerance& allowed) {
  std::ostringstream text;
  if (out.size() != expected.size()) {
    text << what << ": " << out.size() << " elements instead of " << expected.size() << "; ";
    return text.str();
  }
  double error = 0, norm = 0, product = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::isfinite(out[i]) != std::isfinite(expected[i]) || std::isnan(out[i]) != std::isnan(expected[i])) {
      text << what << "[" << i << "] is " << out[i] << " instead of " << expected[i] << "; ";
      return text.str();
    }
    if (!std::isfinite(out[i])) continue;
    const double difference = out[i] - expected[i];
    error += difference * difference;
    norm += expected[i] * expected[i];
    product += difference * expected[i];
  }
  const double n = static_cast<double>(out.size());
  const double floor = allowed.absolute * std::sqrt(n);
  if (std::sqrt(error) > std::max(allowed.relative * std::sqrt(norm), floor)) {
    text << what << ": relative error " << std::sqrt(error / norm) << ", allowed " << allowed.relative
         << ", root mean square " << std::sqrt(error / n) << ", allowed " << allowed.absolute << "; ";
  }
  // Meaningful over many different values that are not zero up to rounding: one rounding alone has a bias, and with
  // one channel whole columns of P round alike.
  constexpr std::size_t kManyValues = 1024;
  std::set<double> different;
  for (std::size_t i = 0; i < expected.size() && different.size() < kManyValues; ++i) different.insert(std::abs(expected[i]));
  // Few values have a bias by chance: errors of relative size r that know nothing of each other give r / sqrt(n).
  const double bias = std::max(allowed.bias, norm > 0 ? 5 * std::sqrt(error / norm / n) : 0);
  if (different.size() == kManyValues && norm > 16 * floor * floor && std::abs(product) > bias * norm) {
    text << what << ": bias " << product / norm << ", allowed " << bias << "; ";
  }
  return text.str();
}

std::string compare(const Case& c, const Backend& backend, const Outputs& out, const ReferenceOutput& expected) {
  const Tolerance forward = tolerance(c.dtype, c.math, backend.device, Quantity::kOutput);
  const Tolerance gradient = tolerance(c.dtype, c.math, backend.device, Quantity::kGradient);
  std::string text = compare("o", out.o, expected.o, forward);
  if (!out.row_max.empty()) {
    text += compare("row_max", out.row_max, expected.row_max, forward);
    text += compare("row_sum", out.row_sum, expected.row_sum, forward);
  }
  if (!out.dq.empty()) text += compare("dq", out.dq, expected.dq, gradient);
  if (!out.dk.empty()) text += compare("dk", out.dk, expected.dk, gradient);
  if (!out.dv.empty()) text += compare("dv", out.dv, expected.dv, gradient);
  if (!out.d_bias.empty()) text += compare("d_bias", out.d_bias, expected.d_bias, gradient);
  return text;
}

std::string check(const Case& c, const Backend& backend, const RunOptions& options) {
  const Inputs in = make_inputs(c);
  const Outputs out = run(c, in, backend, options);
  std::string problems = out.status.ok() ? "" : std::string("status: ") + out.status.message;
  if (out.status.ok()) problems = out.sentinels + compare(c, backend, out, reference(in.reference));
  return problems.empty() ? "" : problems + "[" + c.describe() + "]";
}

std::vector<std::uint8_t> mask(const Case& c, const Backend& backend, std::string& problem) {
  const Inputs in = make_inputs(c);
  DeviceBuffers device(backend.device);
  auto keep =
      std::make_shared<Bytes>(static_cast<std::size_t>(lines_of(c) * c.heads * c.length * c.length), kSentinel);
  const AttentionProblem p = problem_of(c, in, device);
  auto* to = static_cast<std::uint8_t*>(device.put(keep));
  const Status status = backend.device == Device::kCpu
                            ? cpu::dropout_mask(p.lines, p.heads, p.dropout, to, executor_of(backend))
                            : cuda::dropout_mask(p.lines, p.heads, p.dropout, to, nullptr);
  problem = status.ok() ? device.fetch() : status.message;
  return *keep;
}

}  // namespace axial::kernels::testing
