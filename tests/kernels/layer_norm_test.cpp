// The normalisation kernels against plain loops in float64: every type, odd sizes and addresses, in place.

#include <cmath>
#include <random>

#include "tests/kernels/attention_case.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/device_buffers.h"
#include "tests/kernels/tolerance.h"

namespace axial::kernels::testing {
namespace {

struct Reference {
  std::vector<double> x_hat, dx;
};

Reference reference(const std::vector<double>& x, const std::vector<double>& g, const std::vector<double>& residual,
                    std::int64_t dim, double eps) {
  Reference r{std::vector<double>(x.size()), std::vector<double>(x.size())};
  for (std::size_t t = 0; t < x.size(); t += static_cast<std::size_t>(dim)) {
    double mean = 0, variance = 0, mean_g = 0, mean_gx = 0;
    const auto n = static_cast<std::size_t>(dim);
    for (std::size_t i = t; i < t + n; ++i) mean += x[i] / static_cast<double>(dim);
    for (std::size_t i = t; i < t + n; ++i) variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(dim);
    const double rstd = 1 / std::sqrt(variance + eps);
    for (std::size_t i = t; i < t + n; ++i) {
      r.x_hat[i] = (x[i] - mean) * rstd;
      mean_g += g[i] / static_cast<double>(dim);
      mean_gx += g[i] * r.x_hat[i] / static_cast<double>(dim);
    }
    for (std::size_t i = t; i < t + n; ++i) r.dx[i] = residual[i] + rstd * (g[i] - mean_g - r.x_hat[i] * mean_gx);
  }
  return r;
}

std::vector<double> random_values(std::size_t count, std::uint64_t seed, double mean) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(mean, 1);
  std::vector<double> values(count);
  for (double& v : values) v = normal(generator);
  return values;
}

class LayerNorm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* reason = unavailable({Device::kCuda, 1})) GTEST_SKIP() << reason;
  }

  // x, d_x_hat, residual, x_hat, dx as [tokens, dim] between sentinels, `shift` elements off alignment.
  void check(DType dtype, std::int64_t tokens, std::int64_t dim, std::int64_t shift, bool in_place) {
    Case c;
    c.outer[0] = tokens;
    c.length = 1;
    c.head_dim = dim;
    c.dtype = dtype;
    c.shift = shift;
    SCOPED_TRACE(std::string(name(dtype)) + " tokens " + std::to_string(tokens) + " dim " + std::to_string(dim) + " shift " +
                 std::to_string(shift) + (in_place ? " in place" : ""));
    const auto count = static_cast<std::size_t>(tokens * dim);
    std::vector<Operand> in = make_operands(c, Layout::kContiguous, 3), out = make_operands(c, Layout::kContiguous, 2);
    std::vector<double> x, g, residual;
    const auto seed = static_cast<std::uint64_t>(tokens * 1000 + dim);
    set_values(c, in[0], random_values(count, seed, 0.5), x);
    set_values(c, in[1], random_values(count, seed + 1, 0), g);
    set_values(c, in[2], random_values(count, seed + 2, 0), residual);
    const double eps = 1e-5;
    const Reference expected = reference(x, g, residual, dim, eps);

    DeviceBuffers device(Device::kCuda);
    const auto address = [&](const Operand& operand) {
      return static_cast<char*>(device.put(operand.buffer)) + operand.offset * static_cast<std::int64_t>(element_size(dtype));
    };
    NormProblem problem;
    problem.tokens = tokens;
    problem.dim = dim;
    problem.dtype = dtype;
    problem.eps = eps;
    problem.x = address(in[0]);
    ASSERT_TRUE(cuda::normalise(problem, address(out[0]), nullptr).ok());
    const Operand& dx = in_place ? in[1] : out[1];
    ASSERT_TRUE(cuda::normalise_backward(problem, address(in[1]), address(in[2]), address(dx), nullptr).ok());
    ASSERT_EQ(device.fetch(), "");
    const Tolerance allowed = tolerance(dtype, Math::kStrict, Device::kCuda, Quantity::kOutput);
    EXPECT_EQ(compare("x_hat", dense(c, out[0]), expected.x_hat, allowed), "");
    EXPECT_EQ(compare("dx", dense(c, dx), expected.dx, allowed), "");
    for (const Operand* operand : {&in[0], &in[1], &in[2], &out[0], &out[1]}) {
      EXPECT_EQ(check_sentinels(c, "tensor", {operand}), "");
    }
  }
};

TEST_F(LayerNorm, MatchesFloat64) {
  for (const DType dtype : kTypes) {
    // (with two channels dx is zero but for rounding)
    for (const std::int64_t dim : {3, 8, 20, 64, 72, 96, 128, 200, 256, 520, 1000, 3000}) {
      for (const std::int64_t tokens : {1, 7, 300}) {
        check(dtype, tokens, dim, 0, false);
        check(dtype, tokens, dim, 1, true);
      }
    }
  }
}

TEST_F(LayerNorm, OneChannelIsZeroAndNothingIsNotTouched) {
  check(DType::kFloat32, 5, 1, 0, false);
  NormProblem nothing;
  nothing.dim = 64;
  EXPECT_TRUE(cuda::normalise(nothing, nullptr, nullptr).ok());
  EXPECT_TRUE(cuda::normalise_backward(nothing, nullptr, nullptr, nullptr, nullptr).ok());
  nothing.tokens = 1;
  EXPECT_EQ(cuda::normalise(nothing, nullptr, nullptr).code, Code::kInvalid);
  nothing.dim = 0;
  EXPECT_EQ(cuda::normalise(nothing, nullptr, nullptr).code, Code::kInvalid);
}

}  // namespace
}  // namespace axial::kernels::testing
