// The fused MLP (kernels/mlp.h) on the current CUDA device against plain loops in float64.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>

#include "kernels/features.h"
#include "kernels/mlp.h"
#include "tests/kernels/attention_harness.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/device_buffers.h"

namespace axial::kernels::testing {
namespace {

constexpr int kParameterCount = 6;
constexpr const char* kNames[kParameterCount] = {"norm_weight", "norm_bias",   "up_weight",
                                                 "up_bias",     "down_weight", "down_bias"};
constexpr const float* MlpWeights::*kWeights[kParameterCount] = {
    &MlpWeights::norm_weight, &MlpWeights::norm_bias,   &MlpWeights::up_weight,
    &MlpWeights::up_bias,     &MlpWeights::down_weight, &MlpWeights::down_bias};
constexpr float* MlpGradients::*kGradients[kParameterCount] = {
    &MlpGradients::norm_weight, &MlpGradients::norm_bias,   &MlpGradients::up_weight,
    &MlpGradients::up_bias,     &MlpGradients::down_weight, &MlpGradients::down_bias};

struct MlpCase {
  std::int64_t tokens = 300, dim = 64, hidden = 128;
  DType dtype = DType::kBFloat16;
  bool float32_residual = false;
  std::int64_t tokens_per_sample = 0;  // 0: no sample scale
  // x is `gain` times a normal number and eps 1e-5 gain^2: with a small gain the residual vanishes beside the branch.
  double gain = 1;
  double up_gain = 1;  // of u's deviation
  double dy_gain = 1;  // float16 ends at 65504, and gradients through a small x are large
  bool in_place = false;  // dx over dy
  double offset = 0.3;    // of x, in gains
  double dropout = 0;     // of the output
  std::uint64_t seed = 1;

  std::string describe() const {
    return std::to_string(tokens) + " tokens, D " + std::to_string(dim) + ", hidden " + std::to_string(hidden) +
           ", " + name(dtype) + (float32_residual ? ", float32 residual" : "") + ", tokens a sample " +
           std::to_string(tokens_per_sample) + ", gain " + std::to_string(gain) + ", up gain " +
           std::to_string(up_gain) + ", dropout " + std::to_string(dropout) + (in_place ? ", in place" : "") +
           ", seed " + std::to_string(seed);
  }
};

struct Numbers {
  std::vector<double> x, dy, scale, parameters[kParameterCount];
  std::vector<std::uint8_t> keep;  // [tokens, D]; empty: no dropout
};

struct Results {
  std::vector<double> y, dx, gradients[kParameterCount];
};

double phi(double u) { return std::exp(-u * u / 2) / std::sqrt(2 * std::numbers::pi); }
double distribution(double u) { return 0.5 * std::erfc(-u / std::numbers::sqrt2); }

Results reference(const MlpCase& c, const Numbers& in) {
  const auto d = static_cast<std::size_t>(c.dim), hidden = static_cast<std::size_t>(c.hidden);
  const std::vector<double>&gamma = in.parameters[0], &beta = in.parameters[1], &up = in.parameters[2],
                     &up_bias = in.parameters[3], &down = in.parameters[4], &down_bias = in.parameters[5];
  Results r;
  r.y.resize(in.x.size());
  r.dx.resize(in.x.size());
  for (int i = 0; i < kParameterCount; ++i) r.gradients[i].assign(in.parameters[i].size(), 0);
  std::vector<double> x_hat(d), z(d), dz(d), u(hidden), h(hidden), du(hidden), dv(d);
  for (std::size_t t = 0; t < static_cast<std::size_t>(c.tokens); ++t) {
    const double *x = &in.x[t * d], *dy = &in.dy[t * d];
    const double sample = in.scale.empty() ? 1 : in.scale[t / static_cast<std::size_t>(c.tokens_per_sample)];
    const auto scale = [&](std::size_t i) {  // of a channel of the branch
      return in.keep.empty() ? sample : in.keep[t * d + i] == 0 ? 0 : sample * dropout_rate(c.dropout).scale;
    };
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < d; ++i) mean += x[i] / static_cast<double>(d);
    for (std::size_t i = 0; i < d; ++i) variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(d);
    const double rstd = 1 / std::sqrt(variance + 1e-5 * c.gain * c.gain);
    for (std::size_t i = 0; i < d; ++i) {
      x_hat[i] = (x[i] - mean) * rstd;
      z[i] = x_hat[i] * gamma[i] + beta[i];
      dv[i] = scale(i) * dy[i];
      dz[i] = 0;
      r.y[t * d + i] = x[i] + scale(i) * down_bias[i];
      r.gradients[5][i] += dv[i];
    }
    for (std::size_t j = 0; j < hidden; ++j) {
      u[j] = up_bias[j];
      for (std::size_t i = 0; i < d; ++i) u[j] += up[j * d + i] * z[i];
      h[j] = u[j] * distribution(u[j]);
      double dh = 0;
      for (std::size_t i = 0; i < d; ++i) {
        r.y[t * d + i] += scale(i) * down[i * hidden + j] * h[j];
        dh += down[i * hidden + j] * dv[i];
        r.gradients[4][i * hidden + j] += dv[i] * h[j];
      }
      du[j] = dh * (distribution(u[j]) + u[j] * phi(u[j]));
      r.gradients[3][j] += du[j];
      for (std::size_t i = 0; i < d; ++i) {
        r.gradients[2][j * d + i] += du[j] * z[i];
        dz[i] += du[j] * up[j * d + i];
      }
    }
    double mean_g = 0, mean_gx = 0;
    for (std::size_t i = 0; i < d; ++i) {
      r.gradients[0][i] += dz[i] * x_hat[i];
      r.gradients[1][i] += dz[i];
      dz[i] *= gamma[i];
      mean_g += dz[i] / static_cast<double>(d);
      mean_gx += dz[i] * x_hat[i] / static_cast<double>(d);
    }
    for (std::size_t i = 0; i < d; ++i) r.dx[t * d + i] = dy[i] + rstd * (dz[i] - mean_g - x_hat[i] * mean_gx);
  }
  return r;
}

// The case on the device: every tensor inside NaN, every buffer of exactly its size.
class MlpRun {
 public:
  explicit MlpRun(const MlpCase& c) : case_(c) {
    std::mt19937_64 generator(c.seed * 7919 + static_cast<std::uint64_t>(c.tokens * 31 + c.dim * 7 + c.hidden));
    const auto normals = [&](std::int64_t n, double mean, double deviation) {
      std::normal_distribution<double> normal(mean, deviation);
      std::vector<double> values(static_cast<std::size_t>(n));
      for (double& value : values) value = static_cast<float>(normal(generator));
      return values;
    };
    tokens_.outer[0] = c.tokens;
    tokens_.length = 1;
    tokens_.head_dim = c.dim;
    tokens_.dtype = c.float32_residual ? DType::kFloat32 : c.dtype;
    operands_ = make_operands(tokens_, Layout::kContiguous, 4);
    set_values(tokens_, operands_[0], normals(c.tokens * c.dim, c.offset * c.gain, c.gain), in.x);
    set_values(tokens_, operands_[1], normals(c.tokens * c.dim, 0, c.dy_gain), in.dy);
    if (c.tokens_per_sample > 0) {
      in.scale = normals((c.tokens + c.tokens_per_sample - 1) / c.tokens_per_sample, 1, 0.5);
      if (in.scale.size() > 1) in.scale[0] = 0;  // a dropped branch
    }
    const double width = static_cast<double>(c.dim);
    in.parameters[0] = normals(c.dim, 1, 0.2);
    in.parameters[1] = normals(c.dim, 0, 0.3);
    in.parameters[2] = normals(c.hidden * c.dim, 0, c.up_gain / std::sqrt(width));
    in.parameters[3] = normals(c.hidden, 0, 0.3);
    in.parameters[4] = normals(c.hidden * c.dim, 0, 1 / std::sqrt(static_cast<double>(c.hidden)));
    in.parameters[5] = normals(c.dim, 0, 0.3);

    problem.tokens = c.tokens;
    problem.dim = c.dim;
    problem.hidden = c.hidden;
    problem.dtype = c.dtype;
    problem.float32_residual = c.float32_residual;
    problem.eps = 1e-5 * c.gain * c.gain;
    for (int i = 0; i < kParameterCount; ++i) problem.weights.*kWeights[i] = floats(in.parameters[i]);
    if (!in.scale.empty()) problem.sample_scale = floats(in.scale);
    problem.tokens_per_sample = std::max<std::int64_t>(c.tokens_per_sample, 1);
    problem.x = address(0);
    if (c.dropout > 0) {
      const std::uint64_t rng[2] = {c.seed, 5};
      auto state = std::make_shared<Bytes>(sizeof(rng));
      std::memcpy(state->data(), rng, sizeof(rng));
      problem.dropout.p = c.dropout;
      problem.dropout.rng = static_cast<const std::uint64_t*>(device_.put(state));
      problem.dropout.stream = std::uint64_t{1} << 32;
      problem.dropout.first_line = (std::int64_t{1} << 33) - 100;  // the counter's high word
      keep_ = std::make_shared<Bytes>(static_cast<std::size_t>(c.tokens * c.dim), kSentinel);
    }
    packed_ = sentinels(cuda::mlp_packed_bytes(problem));
    workspace_ = sentinels(cuda::mlp_backward_workspace(problem));
    for (int i = 0; i < kParameterCount; ++i) {
      gradients_[i] = sentinel_buffer(static_cast<std::int64_t>(in.parameters[i].size()) + 2 * kMargin, sizeof(float));
      gradients.*kGradients[i] = static_cast<float*>(device_.put(gradients_[i])) + kMargin;
    }
  }

  Status run(CUstream_st* stream = nullptr) {
    Status status = cuda::pack_mlp(problem, device_.put(packed_), stream);
    if (status.ok()) status = cuda::mlp_forward(problem, device_.put(packed_), address(2), stream);
    if (status.ok() && keep_ != nullptr) {
      status = cuda::feature_mask(case_.tokens, case_.dim, problem.dropout,
                                  static_cast<std::uint8_t*>(device_.put(keep_)), stream);
    }
    return status.ok() ? backward(gradients, stream) : status;
  }
  Status backward(const MlpGradients& wanted, CUstream_st* stream = nullptr) {
    return cuda::mlp_backward(problem, device_.put(packed_), address(1), address(case_.in_place ? 1 : 3), wanted,
                              device_.put(workspace_), workspace_->size(), stream);
  }

  // Empty, or what went wrong.
  std::string fetch(Results* out) {
    if (std::string error = device_.fetch(); !error.empty()) return error;
    if (keep_ != nullptr) in.keep = *keep_;
    out->y = dense(tokens_, operands_[2]);
    out->dx = dense(tokens_, operands_[case_.in_place ? 1 : 3]);
    std::string text;
    for (const Operand& operand : operands_) text += check_sentinels(tokens_, "tokens", {&operand});
    for (int i = 0; i < kParameterCount; ++i) {
      out->gradients[i] = dense_accumulators(tokens_, *gradients_[i]);
      text += check_accumulator_sentinels(tokens_, kNames[i], *gradients_[i]);
    }
    return text;
  }

  MlpProblem problem;
  MlpGradients gradients;
  Numbers in;

 private:
  char* address(int operand) {
    const Operand& o = operands_[static_cast<std::size_t>(operand)];
    return static_cast<char*>(device_.put(o.buffer)) +
           o.offset * static_cast<std::int64_t>(element_size(tokens_.dtype));
  }
  std::shared_ptr<Bytes> sentinels(std::size_t bytes) { return std::make_shared<Bytes>(bytes, kSentinel); }
  const float* floats(const std::vector<double>& values) {
    auto bytes = std::make_shared<Bytes>(values.size() * sizeof(float));
    auto* out = reinterpret_cast<float*>(bytes->data());
    for (std::size_t i = 0; i < values.size(); ++i) out[i] = static_cast<float>(values[i]);
    return static_cast<const float*>(device_.put(bytes));
  }

  MlpCase case_;
  Case tokens_;
  DeviceBuffers device_{Device::kCuda};
  std::vector<Operand> operands_;  // x, dy, y, dx
  std::shared_ptr<Bytes> packed_, workspace_, gradients_[kParameterCount], keep_;
};

std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] - b[i];
  return result;
}

std::string check(const MlpCase& c) {
  MlpRun run(c);
  if (const Status status = run.run(); !status.ok()) return std::string(status.message) + " [" + c.describe() + "]";
  Results out;
  std::string text = run.fetch(&out);
  const Results expected = reference(c, run.in);
  const auto allowed = [&](Quantity quantity) {
    Tolerance t = tolerance(c.dtype, Math::kStrict, Device::kCuda, quantity);
    // Errors that know nothing of each other: it takes many.
    if (c.tokens * c.dim < 16384) t.bias = std::numeric_limits<double>::infinity();
    return t;
  };
  text += compare("y - x", difference(out.y, run.in.x), difference(expected.y, run.in.x), allowed(Quantity::kOutput));
  text += compare("dx - dy", difference(out.dx, run.in.dy), difference(expected.dx, run.in.dy),
                  allowed(Quantity::kGradient));
  for (int i = 0; i < kParameterCount; ++i) {
    Tolerance t = allowed(Quantity::kGradient);
    t.relative = c.dtype == DType::kBFloat16 ? 2e-2 : 2.5e-3;
    text += compare(kNames[i], out.gradients[i], expected.gradients[i], t);
  }
  return text.empty() ? "" : text + "[" + c.describe() + "]";
}

class Mlp : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* reason = unavailable({Device::kCuda, 1})) GTEST_SKIP() << reason;
    MlpProblem problem;
    problem.dim = 64;
    problem.hidden = 128;
    KernelChoice choice;
    if (const Status status = cuda::choose_mlp(problem, &choice); status.code == Code::kUnsupported) {
      GTEST_SKIP() << status.message;
    }
  }
};

TEST_F(Mlp, MatchesFloat64) {
  struct Width {
    std::int64_t dim, hidden;
  };
  for (const Width& w : {Width{32, 64}, {32, 128}, {32, 96}, {48, 96}, {48, 192}, {64, 64}, {64, 128}, {64, 100},
                         {64, 192}, {64, 256}, {96, 192}, {96, 256}, {128, 64}, {128, 128}, {128, 256}, {128, 7}}) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const std::int64_t tokens : {1, 63, 64, 400}) {
        MlpCase c;
        c.tokens = tokens;
        c.dim = w.dim;
        c.hidden = w.hidden;
        c.dtype = dtype;
        c.tokens_per_sample = tokens == 63 ? 10 : 0;
        c.in_place = tokens == 64;
        EXPECT_EQ(check(c), "");
        c.dropout = 0.3;
        EXPECT_EQ(check(c), "");
        c.float32_residual = true;
        EXPECT_EQ(check(c), "");
        c.dropout = 0;
        c.offset = tokens == 400 ? 50 : 0.3;
        EXPECT_EQ(check(c), "");
      }
    }
  }
}

// More tiles than a card holds at once.
TEST_F(Mlp, ManyTiles) {
  for (const std::int64_t dim : {64, 128}) {
    for (const std::int64_t tokens_per_sample : {0, 49}) {
      MlpCase c;
      c.tokens = 40000 + 17;
      c.dim = dim;
      c.hidden = 2 * dim;
      c.tokens_per_sample = tokens_per_sample;
      EXPECT_EQ(check(c), "");
      if (dim != 64) continue;  // the reference takes its time
      c.dropout = 0.1;
      c.float32_residual = tokens_per_sample == 0;
      EXPECT_EQ(check(c), "");
    }
  }
}

// The residual does not hide the branch, and pre-activations of many sizes meet GELU.
TEST_F(Mlp, GainsAndLargeActivations) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const double up_gain : {0.1, 1.0, 4.0, 60.0}) {
      MlpCase c;
      c.dtype = dtype;
      c.up_gain = up_gain;
      c.gain = 0x1p-12;
      if (dtype == DType::kFloat16) c.dy_gain = 0x1p-7;
      EXPECT_EQ(check(c), "");
    }
  }
}

TEST_F(Mlp, SameBitsEveryTimeAndDxAlone) {
  MlpCase c;
  c.tokens = 20000;
  MlpRun first(c), second(c);
  ASSERT_TRUE(first.run().ok());
  ASSERT_TRUE(second.run().ok());
  Results a, b;
  EXPECT_EQ(first.fetch(&a), "");
  EXPECT_EQ(second.fetch(&b), "");
  EXPECT_TRUE(a.y == b.y && a.dx == b.dx);
  for (int i = 0; i < kParameterCount; ++i) EXPECT_TRUE(a.gradients[i] == b.gradients[i]) << kNames[i];
  ASSERT_TRUE(second.backward({}).ok());  // without the weights' gradients
  EXPECT_EQ(second.fetch(&b), "");
  EXPECT_EQ(compare("dx", b.dx, a.dx, {5e-3, 0, 1e-3}), "");
}

TEST_F(Mlp, NoTokensLeaveZeroGradients) {
  MlpCase c;
  c.tokens = 0;
  MlpRun run(c);
  ASSERT_TRUE(run.run().ok());
  Results out;
  EXPECT_EQ(run.fetch(&out), "");
  for (int i = 0; i < kParameterCount; ++i) {
    EXPECT_FALSE(out.gradients[i].empty());
    EXPECT_TRUE(std::all_of(out.gradients[i].begin(), out.gradients[i].end(), [](double v) { return v == 0; }));
  }
}

TEST_F(Mlp, RefusalsNameWhatIsWrong) {
  MlpRun run({});
  const auto says = [](const Status& status, Code code, const char* words) {
    EXPECT_EQ(status.code, code) << status.message;
    EXPECT_NE(std::string(status.message).find(words), std::string::npos) << status.message;
  };
  KernelChoice choice;
  MlpProblem p = run.problem;
  p.dim = 72;
  says(cuda::choose_mlp(p, &choice), Code::kUnsupported, "D = 72");
  p = run.problem;
  p.hidden = 4096;
  says(cuda::choose_mlp(p, &choice), Code::kUnsupported, "4096 hidden");
  p = run.problem;
  p.dtype = DType::kFloat32;
  says(cuda::choose_mlp(p, &choice), Code::kUnsupported, "float32");
  p = run.problem;
  p.tokens = -1;
  says(cuda::choose_mlp(p, &choice), Code::kInvalid, "-1 tokens");
  p = run.problem;
  p.dropout.p = 1;
  says(cuda::choose_mlp(p, &choice), Code::kInvalid, "dropout p is 1");
  run.problem.dropout.p = 0.5;
  says(run.backward(run.gradients), Code::kInvalid, "rng is null");
  run.problem.dropout.p = 0;
  MlpGradients some = run.gradients;
  some.up_bias = nullptr;
  says(run.backward(some), Code::kInvalid, "up_bias");
  run.problem.x = static_cast<const char*>(run.problem.x) + 2;
  says(run.backward(run.gradients), Code::kInvalid, "x is null or not aligned");
}

}  // namespace
}  // namespace axial::kernels::testing
