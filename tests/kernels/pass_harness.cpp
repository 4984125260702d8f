#include "tests/kernels/pass_harness.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels/features.h"

namespace axial::kernels::testing {
namespace {

bool poisoning() {
  const char* value = std::getenv("AXIAL_TEST_POISON");
  return value == nullptr || std::strcmp(value, "0") != 0;
}

template <class T>
T tokens_of(const PassCase& c, const Operand& operand, DeviceBuffers& device, bool fill) {
  T tokens;
  std::copy(operand.strides.outer_stride, operand.strides.outer_stride + kMaxOuter, tokens.outer_stride);
  tokens.token_stride = operand.strides.token_stride;
  tokens.data = static_cast<std::uint8_t*>(device.put(operand.buffer, fill)) +
                operand.offset * static_cast<std::int64_t>(element_size(c.stored()));
  return tokens;
}

std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] - b[i];
  return result;
}

// Gradients of the weights are float32 sums over all tokens: less noise than in one dx.
Tolerance parameter_tolerance(const PassCase& c) {
  Tolerance allowed = tolerance(c.dtype, c.math, Device::kCuda, Quantity::kGradient);
  if (c.dtype == DType::kBFloat16) allowed.relative = 2e-2;
  if (c.dtype == DType::kFloat16) allowed.relative = 2.5e-3;
  return allowed;
}

}  // namespace

PassRun::PassRun(const PassCase& c, const PassInputs& inputs)
    : case_(c), inputs_(inputs), y_(make_tokens(c, c.y)), dx_(make_tokens(c, c.dx)) {
  const auto floats = [&](const std::shared_ptr<Bytes>& array) {
    return array == nullptr ? nullptr : static_cast<const float*>(device_.put(array)) + c.shift;
  };
  problem.lines = c.lines();
  problem.dim = c.dim;
  problem.heads = c.heads;
  problem.dtype = c.dtype;
  problem.float32_residual = c.float32_residual;
  problem.math = c.math;
  problem.portable = c.portable;
  problem.eps = c.eps();
  problem.causal = c.causal;
  c.set_dropouts(&problem, static_cast<const std::uint64_t*>(device_.put(inputs.rng)));
  if (c.rotary) problem.rotary = static_cast<std::uint8_t*>(device_.put(inputs.rotary)) + rotary_offset(c);
  for (int i = 0; i < kPassParameterCount; ++i) {
    problem.weights.*kPassParameters[i].weight = floats(inputs.parameters[i]);
  }
  problem.sample_scale = floats(inputs.sample_scale);
  problem.x = tokens_of<ConstTokens>(c, inputs.x, device_, true);
  chosen = cuda::choose_pass(problem, &choice);
  if (!chosen.ok()) return;

  y = tokens_of<Tokens>(c, y_, device_, poisoning());
  packed_ = std::make_shared<Bytes>(cuda::packed_bytes(problem), kSentinel);
  packed = device_.put(packed_, poisoning());
  if (c.dropout > 0) {
    keep_ = std::make_shared<Bytes>(lines_of(c.tokens()) * c.heads * c.length * c.length, kSentinel);
    mask_ = static_cast<std::uint8_t*>(device_.put(keep_));
  }
  if (c.projection > 0) {
    projection_keep_ = std::make_shared<Bytes>(c.token_count() * c.dim, kSentinel);
    projection_mask_ = static_cast<std::uint8_t*>(device_.put(projection_keep_));
  }
  if (!backward_chosen()) return;
  dy = tokens_of<ConstTokens>(c, inputs.dy, device_, true);
  dx = tokens_of<Tokens>(c, dx_, device_, poisoning());
  for (int i = 0; i < kPassParameterCount; ++i) {
    const std::size_t count = (inputs.reference.weights.*kPassParameters[i].values).size();
    if (count == 0) continue;
    gradients_[i] = sentinel_buffer(static_cast<std::int64_t>(count) + 2 * kMargin + c.shift, sizeof(float));
    gradients.*kPassParameters[i].gradient =
        static_cast<float*>(device_.put(gradients_[i], poisoning())) + kMargin + c.shift;
  }
  workspace_bytes = cuda::pass_backward_workspace(problem);
  workspace_ = std::make_shared<Bytes>(workspace_bytes, kSentinel);
  workspace = device_.put(workspace_, poisoning());
}

Status PassRun::pack(CUstream_st* stream) { return cuda::pack_weights(problem, packed, stream); }

Status PassRun::forward(CUstream_st* stream) { return cuda::pass_forward(problem, packed, y, stream); }

Status PassRun::backward(CUstream_st* stream) {
  return cuda::pass_backward(problem, packed, dy, dx, gradients, workspace, workspace_bytes, stream);
}

Status PassRun::draw_masks(CUstream_st* stream) {
  Status status;
  if (keep_ != nullptr) {
    status = cuda::dropout_mask(problem.lines, problem.heads, problem.dropout, mask_, stream);
  }
  if (!status.ok() || projection_keep_ == nullptr) return status;
  return cuda::feature_mask(case_.token_count(), case_.dim, problem.projection, projection_mask_, stream);
}

std::vector<std::shared_ptr<Bytes>> PassRun::outputs() const {
  std::vector<std::shared_ptr<Bytes>> buffers = {y_.buffer};
  if (backward_chosen()) buffers.push_back(dx_.buffer);
  for (const auto& gradient : gradients_) {
    if (gradient != nullptr) buffers.push_back(gradient);
  }
  return buffers;
}

void PassRun::poison() {
  std::vector<std::shared_ptr<Bytes>> buffers = outputs();
  for (const auto& mask : {keep_, projection_keep_}) {
    if (mask != nullptr) buffers.push_back(mask);
  }
  for (const auto& buffer : buffers) {
    std::fill(buffer->begin(), buffer->end(), kSentinel);
    device_.refresh(buffer);
  }
}

PassOutputs PassRun::fetch() {
  PassOutputs out;
  const std::string error = device_.fetch();
  if (!error.empty()) {
    out.status = failure(Code::kDevice, "%.200s", error.c_str());
    return out;
  }
  const Case tokens = case_.tokens();
  out.y = dense(tokens, y_);
  out.sentinels = check_sentinels(tokens, "y", {&y_}) + check_sentinels(tokens, "x", {&inputs_.x});
  if (backward_chosen()) {
    out.dx = dense(tokens, dx_);
    out.sentinels += check_sentinels(tokens, "dx", {&dx_}) + check_sentinels(tokens, "dy", {&inputs_.dy});
  }
  for (int i = 0; i < kPassParameterCount; ++i) {
    if (gradients_[i] == nullptr) continue;
    const std::vector<double> values = dense_accumulators(tokens, *gradients_[i]);
    (out.gradients.*kPassParameters[i].values).assign(values.begin() + case_.shift, values.end());
    out.sentinels += check_accumulator_sentinels(tokens, kPassParameters[i].name, *gradients_[i]);
  }
  if (keep_ != nullptr) out.keep = *keep_;
  if (projection_keep_ != nullptr) out.projection_keep = case_.by_line(*projection_keep_);
  for (const auto& buffer : outputs()) out.bytes.insert(out.bytes.end(), buffer->begin(), buffer->end());
  if (!poisoning()) out.sentinels.clear();
  return out;
}

PassOutputs run_pass(const PassCase& c, const PassInputs& inputs) {
  PassRun run(c, inputs);
  Status status = run.chosen;
  if (status.ok()) status = run.draw_masks();
  if (status.ok()) status = run.pack();
  if (status.ok()) status = run.forward();
  if (status.ok() && run.backward_chosen()) status = run.backward();
  PassOutputs out;
  if (run.chosen.ok()) out = run.fetch();
  out.chosen = run.chosen.ok();
  if (!status.ok()) out.status = status;
  return out;
}

std::string compare_pass(const PassCase& c, const PassOutputs& out, const PassReferenceInput& input,
                         const PassReferenceOutput& expected, std::int64_t repeats) {
  // The first occurrence; the others are its copies.
  const auto first = [&](const std::vector<double>& values, const char* what, std::string& text) {
    const std::size_t n = values.size() / static_cast<std::size_t>(repeats);
    for (std::size_t i = n; i < values.size(); ++i) {
      if (values[i] == values[i - n]) continue;
      text += std::string(what) + ": line " + std::to_string(i / static_cast<std::size_t>(c.length * c.dim)) +
              " differs from the same line before; ";
      break;
    }
    return std::vector<double>(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n));
  };
  // The bias check is for errors that know nothing of each other. All channels of a token share a rounded
  // probability: it takes many of these, which are not alike (as those of one key are: 1 / (1 - p) as the type holds
  // it), and gradients that are not all the same.
  const bool many = input.lines.count() * c.heads * c.length * c.length >= 16384 && c.dy != TokenLayout::kExpanded &&
                    !(c.causal && c.dropout > 0);
  // All tokens share the rounded weights, D^2 errors a matrix: rounding them alone gives a bias of 0.0001 in the root
  // mean square at D = 64, 0.0003 at 32 and 0.0013 at 8.
  const double narrow = c.portable ? 1 : std::max(1.0, 64 / static_cast<double>(c.dim));
  const auto with_bias = [&](Tolerance allowed) {
    if (!many) allowed.bias = std::numeric_limits<double>::infinity();
    allowed.bias *= narrow;
    return allowed;
  };
  std::string text;
  const std::vector<double> y = first(out.y, "y", text);
  text += compare("y - x", difference(y, input.x), difference(expected.y, input.x),
                  with_bias(tolerance(c.dtype, c.math, Device::kCuda, Quantity::kOutput)));
  if (out.dx.empty()) return text;
  const std::vector<double> dx = first(out.dx, "dx", text);
  text += compare("dx - dy", difference(dx, input.dy), difference(expected.dx, input.dy),
                  with_bias(tolerance(c.dtype, c.math, Device::kCuda, Quantity::kGradient)));
  for (const PassParameter& p : kPassParameters) {
    std::vector<double> gradient = expected.gradients.*p.values;
    for (double& value : gradient) value *= static_cast<double>(repeats);
    // What goes through the scores alone (the relative bias, Q's and K's rows) cancels more: a row of their gradients
    // sums to zero.
    constexpr double kThroughScores = 1.5;
    Tolerance allowed = parameter_tolerance(c);
    if (narrow > 2) allowed.relative *= 1.5;  // of a few numbers, each of few terms
    if (p.values == &PassParameters::bias) allowed.relative *= kThroughScores;
    text += compare(p.name, out.gradients.*p.values, gradient, with_bias(allowed));
    if (p.values != &PassParameters::qkv_weight || c.length == 1) continue;
    // Those rows are small beside V's, too. (With one key they are zero but for what V's leave.)
    allowed.relative *= kThroughScores;
    allowed.bias = std::numeric_limits<double>::infinity();
    const char* const parts[] = {"qkv_weight, q", "qkv_weight, k", "qkv_weight, v"};
    for (int part = 0; part < 3; ++part) {
      const std::ptrdiff_t n = c.dim * c.dim, begin = part * n;
      const auto rows = [&](const std::vector<double>& all) {
        return std::vector<double>(all.begin() + begin, all.begin() + begin + n);
      };
      text += compare(parts[part], rows(out.gradients.qkv_weight), rows(gradient), allowed);
    }
  }
  return text;
}

namespace {

std::string report(const PassCase& c, const PassOutputs& out, PassReferenceInput& input, std::int64_t repeats) {
  std::string problems = out.status.ok() ? "" : std::string("status: ") + out.status.message;
  if (out.status.ok()) {
    input.keep = out.keep;
    input.projection_keep = out.projection_keep;
    if (out.dx.empty()) input.dy.clear();
    problems = out.sentinels + compare_pass(c, out, input, pass_reference(input), repeats);
  }
  return problems.empty() ? "" : problems + "[" + c.describe() + "]";
}

// Has the problem no kernel, and does the caller ask for why?
bool uncovered(const PassOutputs& out, std::string* unsupported) {
  if (unsupported == nullptr || out.chosen || out.status.code != Code::kUnsupported) return false;
  *unsupported = out.status.message;
  return true;
}

}  // namespace

std::string check_pass(const PassCase& c, std::string* unsupported) {
  PassInputs in = make_pass_inputs(c);
  const PassOutputs out = run_pass(c, in);
  if (uncovered(out, unsupported)) return "";
  return report(c, out, in.reference, 1);
}

std::string check_repeated_pass(const PassCase& c, const PassCase& base, std::string* unsupported) {
  PassInputs in = repeated_inputs(c, base);
  const PassOutputs out = run_pass(c, in);
  if (uncovered(out, unsupported)) return "";
  return report(c, out, in.reference, lines_of(c.tokens()) / lines_of(base.tokens()));
}

void LinePassTest::SetUp() {
  if (const char* reason = unavailable({Device::kCuda, 1})) GTEST_SKIP() << reason;
}

void PassTest::SetUp() {
  if (const char* reason = unavailable({Device::kCuda, 1})) GTEST_SKIP() << reason;
  PassProblem problem;
  problem.lines.length = 16;
  problem.dim = 64;
  problem.heads = 4;
  KernelChoice choice;
  if (const Status status = cuda::choose_pass(problem, &choice); status.code == Code::kUnsupported) {
    GTEST_SKIP() << status.message;
  }
  if (std::strstr(choice.forward, "wgmma") == nullptr) GTEST_SKIP() << "this card has no wgmma: " << choice.forward;
}

}  // namespace axial::kernels::testing
