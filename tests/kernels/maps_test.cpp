// The kernels of maps.h against plain loops in float64. Outputs and workspaces are NaN before a call and lie between
// sentinels.
#include "kernels/maps.h"

#include <cmath>
#include <limits>

#include "tests/kernels/arrays.h"
#include "tests/kernels/backend_test.h"

namespace axial::kernels::testing {
namespace {

class MapKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* reason = unavailable({Device::kCuda, 1})) GTEST_SKIP() << reason;
  }

  void pool_matches(DType dtype, std::int64_t samples, std::int64_t height, std::int64_t width,
                    std::int64_t channels) {
    SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(samples) + " x " + std::to_string(height) + " x " +
                 std::to_string(width) + " x " + std::to_string(channels));
    std::mt19937_64 generator(static_cast<std::uint64_t>(samples * 7919 + height * 31 + width * 3 + channels));
    const std::int64_t rows = (height + 1) / 2, columns = (width + 1) / 2;
    Array x(dtype, samples * height * width * channels), y(dtype, samples * rows * columns * channels);
    Array dy(dtype, samples * rows * columns * channels), dx(dtype, samples * height * width * channels);
    Values values = x.randomise(generator);
    for (double& v : values) v = std::round(2 * v) / 2;  // many equals
    if (values.size() > 100) values[37] = std::numeric_limits<double>::quiet_NaN();
    values[0] = -std::numeric_limits<double>::infinity();
    x.set(values);
    const Values slopes = dy.randomise(generator);
    Values expected(slopes.size()), gradient(values.size(), 0.0);
    for (std::size_t o = 0; o < expected.size(); ++o) {
      const auto i = static_cast<std::int64_t>(o);
      const std::int64_t c = i % channels, w = i / channels % columns, h = i / channels / columns % rows,
                         b = i / channels / columns / rows;
      std::size_t best = 0;
      bool any = false;
      for (std::int64_t v = 2 * h - 1; v <= 2 * h + 1; ++v) {
        for (std::int64_t u = 2 * w - 1; u <= 2 * w + 1; ++u) {
          if (v < 0 || v >= height || u < 0 || u >= width) continue;
          const auto at = static_cast<std::size_t>(((b * height + v) * width + u) * channels + c);
          if (any && !(values[at] > values[best] || std::isnan(values[at]))) continue;
          best = at;
          any = true;
        }
      }
      expected[o] = values[best];
      gradient[best] += slopes[o];
    }
    DeviceBuffers device(Device::kCuda);
    const MaxPoolProblem problem{samples, height, width, channels, dtype};
    const auto winner = poisoned(expected.size());
    auto* const winners = static_cast<std::uint8_t*>(device.put(winner));
    Array alone(dtype, samples * rows * columns * channels);
    ASSERT_TRUE(cuda::max_pool(problem, x.on(device), y.on(device), winners, nullptr).ok());
    ASSERT_TRUE(cuda::max_pool(problem, x.on(device), alone.on(device), nullptr, nullptr).ok());
    ASSERT_TRUE(cuda::max_pool_backward(problem, dy.on(device), winners, dx.on(device), nullptr).ok());
    ASSERT_EQ(device.fetch(), "");
    const Values got = y.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i])))
          << i << ": " << got[i] << " instead of " << expected[i];
    }
    EXPECT_EQ(*alone.operand.buffer, *y.operand.buffer);
    EXPECT_EQ(compare("dx", dx.values(), gradient, allowed(dtype)), "");
    for (const Array* a : {&x, &y, &dy, &dx}) EXPECT_EQ(a->sentinels(), "");
  }

  void norm_matches(DType dtype, std::int64_t rows, std::int64_t channels, double mean, bool relu) {
    SCOPED_TRACE(std::string(name(dtype)) + " batch norm " + std::to_string(rows) + " x " + std::to_string(channels) +
                 (relu ? " relu" : "") + " mean " + std::to_string(mean));
    std::mt19937_64 generator(static_cast<std::uint64_t>(rows * 7919 + channels));
    const DType sums = accumulator(dtype);
    Array x(dtype, rows * channels), y(dtype, rows * channels), dy(dtype, rows * channels),
        dx(dtype, rows * channels);
    Array weight(sums, channels), bias(sums, channels), statistics(sums, 2 * channels), gradients(sums, 2 * channels);
    Array running_mean(sums, channels), running_var(sums, channels), only(sums, 2 * channels);
    const Values xs = x.randomise(generator, 1, mean), slopes = dy.randomise(generator);
    const Values w = weight.randomise(generator, 0.5, 1), b = bias.randomise(generator, 0.5);
    const Values before_mean = running_mean.randomise(generator),
                 before_var = running_var.randomise(generator, 0.1, 1);
    const double n = static_cast<double>(rows), eps = 1e-5, momentum = 0.3;
    const auto width = static_cast<std::size_t>(channels);
    Values expected(xs.size()), gradient(xs.size()), stats(2 * width), sums_expected(2 * width, 0.0), m(width),
        v(width);
    for (std::size_t c = 0; c < width; ++c) {
      double center = 0, var = 0;
      for (std::size_t i = c; i < xs.size(); i += width) center += xs[i] / n;
      for (std::size_t i = c; i < xs.size(); i += width) var += (xs[i] - center) * (xs[i] - center) / n;
      const double rstd = 1 / std::sqrt(var + eps);
      stats[c] = center, stats[width + c] = rstd;
      m[c] = before_mean[c] + momentum * (center - before_mean[c]);
      v[c] = before_var[c] + momentum * (var * n / (n - 1) - before_var[c]);
      const auto slope = [&](std::size_t i) {
        const double z = (xs[i] - center) * rstd * w[c] + b[c];
        expected[i] = relu ? std::max(z, 0.0) : z;
        return relu && z <= 0 ? 0.0 : slopes[i];
      };
      for (std::size_t i = c; i < xs.size(); i += width) {
        sums_expected[c] += slope(i);
        sums_expected[width + c] += slope(i) * (xs[i] - center) * rstd;
      }
      for (std::size_t i = c; i < xs.size(); i += width) {
        const double x_hat = (xs[i] - center) * rstd;
        gradient[i] = w[c] * rstd * (slope(i) - sums_expected[c] / n - x_hat * sums_expected[width + c] / n);
      }
    }
    DeviceBuffers device(Device::kCuda);
    BatchNormProblem problem{rows, channels, dtype, eps, relu, x.on(device), weight.on(device), bias.on(device)};
    const std::size_t bytes = cuda::batch_norm_workspace(problem);
    const RunningStatistics running{running_mean.on(device), running_var.on(device), momentum};
    ASSERT_EQ(std::string(cuda::batch_norm(problem, running, y.on(device), statistics.on(device),
                                           device.put(poisoned(bytes)), bytes, nullptr)
                              .message),
              "");
    const auto backward = [&](void* to, void* of) {
      return cuda::batch_norm_backward(problem, statistics.on(device), dy.on(device), to, of,
                                       device.put(poisoned(bytes)), bytes, nullptr);
    };
    ASSERT_TRUE(backward(dx.on(device), gradients.on(device)).ok());
    ASSERT_TRUE(backward(nullptr, only.on(device)).ok());
    ASSERT_EQ(device.fetch(), "");
    EXPECT_EQ(compare("y", y.values(), expected, allowed(dtype)), "");
    EXPECT_EQ(compare("statistics", statistics.values(), stats, allowed(sums)), "");
    EXPECT_EQ(compare("running mean", running_mean.values(), m, allowed(sums)), "");
    EXPECT_EQ(compare("running var", running_var.values(), v, allowed(sums)), "");
    EXPECT_EQ(compare("gradients", gradients.values(), sums_expected, allowed(sums)), "");
    EXPECT_EQ(compare("dx", dx.values(), gradient, allowed(dtype)), "");
    EXPECT_EQ(*only.operand.buffer, *gradients.operand.buffer);
    for (const Array* a : {&x, &y, &dy, &dx, &statistics, &gradients, &running_mean, &running_var})
      EXPECT_EQ(a->sentinels(), "");
  }
};

TEST_F(MapKernels, MaxPoolMatchesFloat64) {
  for (const DType dtype : kTypes) {
    pool_matches(dtype, 1, 1, 1, 8);
    pool_matches(dtype, 3, 28, 28, 64);
    pool_matches(dtype, 2, 7, 10, 24);
    pool_matches(dtype, 5, 2, 1, 136);
    pool_matches(dtype, 2, 1, 9, 1024);
    pool_matches(dtype, 40, 5, 4, 16);
  }
}

TEST_F(MapKernels, BatchNormMatchesFloat64) {
  for (const DType dtype : kTypes) {
    for (const bool relu : {false, true}) {
      norm_matches(dtype, 5, 24, 0, relu);
      norm_matches(dtype, 3000, 64, 3, relu);
      norm_matches(dtype, 25000, 8, -1, relu);
      norm_matches(dtype, 77, 1024, 0.5, relu);
      norm_matches(dtype, 700, 136, 0.5, relu);
    }
    norm_matches(dtype, 1000, 40, 50, false);  // a variance that must not cancel
  }
}

TEST(Maps, WhatIsNotCoveredIsNamed) {
  const auto expect = [](const Status& status, Code code, const char* part) {
    EXPECT_EQ(status.code, code) << status.message;
    EXPECT_NE(std::string(status.message).find(part), std::string::npos) << status.message;
  };
  EXPECT_TRUE(supported(MaxPoolProblem{2, 5, 5, 8, DType::kFloat32}).ok());
  expect(supported(MaxPoolProblem{2, 5, 5, 12, DType::kFloat32}), Code::kUnsupported, "max_pool: 12 channels");
  expect(supported(MaxPoolProblem{2, 0, 5, 8, DType::kFloat32}), Code::kInvalid, "0 x 5");
  EXPECT_TRUE(supported(BatchNormProblem{2, 8, DType::kFloat32}).ok());
  expect(supported(BatchNormProblem{1, 8, DType::kFloat32}), Code::kInvalid, "1 rows");
  expect(supported(BatchNormProblem{9, 1032, DType::kFloat32}), Code::kUnsupported, "batch_norm: 1032 channels");
}

}  // namespace
}  // namespace axial::kernels::testing
