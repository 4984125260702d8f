#include "kernels/loss.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/convert.h"
#include "kernels/validate.h"

namespace axial::kernels {

Status check_loss(const LossProblem& q, const LossOutput& out) {
  if (q.samples < 0 || q.classes < 1 || q.classes > kMaxLength || !(q.smoothing >= 0 && q.smoothing < 1)) {
    return failure(Code::kInvalid, "loss: %lld samples, %lld classes, smoothing %g", static_cast<long long>(q.samples),
                   static_cast<long long>(q.classes), q.smoothing);
  }
  if ((q.samples > 0 && (q.logits == nullptr || q.labels == nullptr || out.per_sample == nullptr)) ||
      out.sums == nullptr || (q.partners == nullptr) != (q.weights == nullptr)) {
    return failure(Code::kInvalid, "loss: logits, labels, sums or workspace are null, or partners without weights");
  }
  return {};
}

namespace cpu {
namespace {

struct Job {
  const LossProblem& problem;
  const LossOutput& output;
};

struct Float32 {
  using Stored = float;
  using Sum = float;
  static Sum load(Stored v) { return v; }
  static Stored store(Sum v) { return v; }
};
struct Float64 {
  using Stored = double;
  using Sum = double;
  static Sum load(Stored v) { return v; }
  static Stored store(Sum v) { return v; }
};
struct BFloat16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored v) { return bfloat16_to_float(v); }
  static Stored store(Sum v) { return float_to_bfloat16(v); }
};
struct Float16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored v) { return float16_to_float(v); }
  static Stored store(Sum v) { return float_to_float16(v); }
};

template <class Type>
void one_sample(const LossProblem& q, const LossOutput& out, std::int64_t sample) {
  using A = typename Type::Sum;
  const std::int64_t classes = q.classes;
  const auto* z = static_cast<const typename Type::Stored*>(q.logits) + sample * classes;
  A largest = Type::load(z[0]), plain = 0, sum = 0;
  std::int64_t place = 0;
  for (std::int64_t c = 0; c < classes; ++c) {
    const A v = Type::load(z[c]);
    if (v > largest || (std::isnan(v) && !std::isnan(largest))) {  // a NaN is larger than anything, so that it shows
      largest = v;
      place = c;
    }
    plain += v;
  }
  for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(Type::load(z[c]) - largest);
  const bool pairs = q.partners != nullptr;
  const std::int64_t label = q.labels[sample], partner = pairs ? q.partners[sample] : label;
  const bool valid = label >= 0 && label < classes && partner >= 0 && partner < classes;
  const A weight = pairs ? static_cast<A>(q.weights[sample]) : A{1}, smoothing = static_cast<A>(q.smoothing);
  const A first = (1 - smoothing) * weight, second = (1 - smoothing) * (1 - weight),
          each = smoothing / static_cast<A>(classes), log_sum = std::log(sum) + largest;
  A loss = std::numeric_limits<A>::quiet_NaN();
  if (valid) {
    loss = first * (log_sum - Type::load(z[label])) + (pairs ? second * (log_sum - Type::load(z[partner])) : 0);
    if (smoothing > 0) loss += smoothing * (log_sum - plain / static_cast<A>(classes));
  }
  out.per_sample[2 * sample] = static_cast<double>(loss);
  out.per_sample[2 * sample + 1] = place == (weight >= A{0.5} ? label : partner) ? 1 : 0;
  if (out.d_logits == nullptr) return;
  auto* d = static_cast<typename Type::Stored*>(out.d_logits) + sample * classes;
  const A scale = static_cast<A>(q.factor) * (q.scale != nullptr ? static_cast<A>(*q.scale) : A{1});
  for (std::int64_t c = 0; c < classes; ++c) {
    const A target = each + (c == label ? first : A{0}) + (pairs && c == partner ? second : A{0});
    const A g = std::exp(Type::load(z[c]) - largest) / sum - target;
    d[c] = Type::store(valid ? scale * g : std::numeric_limits<A>::quiet_NaN());
  }
}

template <class Type>
void samples_of(void* arg, std::int64_t begin, std::int64_t end) {
  const Job& job = *static_cast<const Job*>(arg);
  for (std::int64_t i = begin; i < end; ++i) one_sample<Type>(job.problem, job.output, i);
}

}  // namespace

Status softmax_loss(const LossProblem& problem, const LossOutput& output, const Executor& executor) {
  const Status status = check_loss(problem, output);
  if (!status.ok()) return status;
  Job job{problem, output};
  const auto body = problem.dtype == DType::kFloat64    ? samples_of<Float64>
                    : problem.dtype == DType::kFloat32  ? samples_of<Float32>
                    : problem.dtype == DType::kBFloat16 ? samples_of<BFloat16>
                                                        : samples_of<Float16>;
  if (executor.run != nullptr && problem.samples > 1) {
    executor.run(executor.context, problem.samples, body, &job);
  } else {
    body(&job, 0, problem.samples);
  }
  double sums[3] = {0, 0, static_cast<double>(problem.samples)};
  for (std::int64_t i = 0; i < problem.samples; ++i) {
    sums[0] += output.per_sample[2 * i];
    sums[1] += output.per_sample[2 * i + 1];
  }
  for (int i = 0; i < 3; ++i) output.sums[i] = sums[i];
  return {};
}

}  // namespace cpu

}  // namespace axial::kernels
