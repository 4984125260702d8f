// The float64 reference of a pass against central finite differences and against itself; needs no GPU.
#include "tests/kernels/pass_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>

namespace axial::kernels::testing {
namespace {

constexpr std::int64_t kBatch = 2, kHeight = 3, kWidth = 4, kDim = 6;

struct Options {
  bool columns = false, causal = false, qkv_bias = false, bias = false, dropout = false, sample_scale = false;
  bool rotary = false, projection = false;
};

// A pass over the rows or columns of x[B, H, W, D].
PassReferenceInput image(const Options& options, std::int64_t heads = 2) {
  std::mt19937_64 generator(7);
  std::normal_distribution<double> normal;
  const auto values = [&](std::int64_t n, double mean, double deviation) {
    std::vector<double> result(static_cast<std::size_t>(n));
    for (double& value : result) value = mean + deviation * normal(generator);
    return result;
  };
  PassReferenceInput in;
  in.dim = kDim;
  in.heads = heads;
  in.eps = 1e-3;
  in.causal = options.causal;
  in.lines.outer[0] = kBatch;
  in.lines.outer[1] = options.columns ? kWidth : kHeight;
  in.lines.length = options.columns ? kHeight : kWidth;
  in.outer_stride[0] = kHeight * kWidth * kDim;
  in.outer_stride[1] = options.columns ? kDim : kWidth * kDim;
  in.token_stride = options.columns ? kWidth * kDim : kDim;
  in.x = values(kBatch * kHeight * kWidth * kDim, 0.5, 1);
  in.dy = values(kBatch * kHeight * kWidth * kDim, 0, 1);
  in.weights.norm_weight = values(kDim, 1, 0.3);
  in.weights.norm_bias = values(kDim, 0, 0.3);
  in.weights.qkv_weight = values(3 * kDim * kDim, 0, 0.7);
  in.weights.out_weight = values(kDim * kDim, 0, 0.7);
  in.weights.out_bias = values(kDim, 0, 0.3);
  if (options.qkv_bias) in.weights.qkv_bias = values(3 * kDim, 0, 0.5);
  if (options.bias) in.weights.bias = values(heads * (2 * in.lines.length - 1), 0, 1);
  if (options.sample_scale) in.sample_scale = {0.5, 2};
  if (options.dropout) {
    in.keep.resize(static_cast<std::size_t>(in.lines.count() * heads * in.lines.length * in.lines.length));
    for (std::uint8_t& keep : in.keep) keep = generator() % 4 != 0;
    in.keep_scale = 4.0 / 3;
  }
  if (options.rotary) {
    for (const double angle : values(in.lines.length * (kDim / heads / 2), 0, 2)) {
      in.rotary.push_back(std::cos(angle));
      in.rotary.push_back(std::sin(angle));
    }
  }
  if (options.projection) {
    in.projection_keep.resize(in.x.size());
    for (std::uint8_t& keep : in.projection_keep) keep = generator() % 3 != 0;
    in.projection_scale = 1.5;
  }
  return in;
}

double loss(const PassReferenceInput& in) {
  PassReferenceInput forward = in;
  forward.dy.clear();
  const std::vector<double> y = pass_reference(forward).y;
  return std::inner_product(y.begin(), y.end(), in.dy.begin(), 0.0);
}

// `values` are part of `in`; the loss is sum(y o dy).
void expect_differences(const PassReferenceInput& in, std::vector<double>& values,
                        const std::vector<double>& gradient, const char* what) {
  ASSERT_EQ(values.size(), gradient.size()) << what;
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    values[i] = value + kStep;
    const double above = loss(in);
    values[i] = value - kStep;
    const double below = loss(in);
    values[i] = value;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-6) << what << "[" << i << "]";
  }
}

TEST(PassReference, GradientsAreFiniteDifferences) {
  const Options options[] = {
      {},
      {.columns = true},
      {.causal = true, .qkv_bias = true},
      {.columns = true, .bias = true},
      {.dropout = true, .sample_scale = true},
      {.columns = true, .causal = true, .qkv_bias = true, .bias = true, .dropout = true, .sample_scale = true},
      {.sample_scale = true, .projection = true},
      {.columns = true, .causal = true, .rotary = true},
      {.qkv_bias = true, .bias = true, .dropout = true, .sample_scale = true, .rotary = true, .projection = true},
  };
  int count = 0;
  for (const Options& option : options) {
    SCOPED_TRACE(count);
    PassReferenceInput in = image(option, ++count % 3 + 1);
    const PassReferenceOutput out = pass_reference(in);
    expect_differences(in, in.x, out.dx, "x");
    for (const PassParameter& p : kPassParameters) {
      expect_differences(in, in.weights.*p.values, out.gradients.*p.values, p.name);
    }
  }
}

// The columns of an image are the rows of its transpose.
TEST(PassReference, ColumnsEqualTransposedRows) {
  const auto turned = [](const std::vector<double>& values) {
    std::vector<double> result(values.size());
    for (std::int64_t i = 0; i < kBatch * kHeight * kWidth * kDim; ++i) {
      const std::int64_t c = i % kDim, w = i / kDim % kWidth, h = i / kDim / kWidth % kHeight;
      const std::int64_t b = i / kDim / kWidth / kHeight;
      result[static_cast<std::size_t>(((b * kWidth + w) * kHeight + h) * kDim + c)] =
          values[static_cast<std::size_t>(i)];
    }
    return result;
  };
  const PassReferenceInput columns = image(
      {.columns = true, .causal = true, .bias = true, .dropout = true, .sample_scale = true, .rotary = true}, 3);
  PassReferenceInput rows = columns;
  rows.set_dense();
  rows.x = turned(columns.x);
  rows.dy = turned(columns.dy);
  const PassReferenceOutput a = pass_reference(columns), b = pass_reference(rows);
  EXPECT_EQ(turned(a.y), b.y);
  EXPECT_EQ(turned(a.dx), b.dx);
  for (const PassParameter& p : kPassParameters) EXPECT_EQ(a.gradients.*p.values, b.gradients.*p.values) << p.name;
}

// With W_out = 0 and b_out = 0 a pass is the identity; with W_qkv = 0 it adds one vector.
TEST(PassReference, TheResidual) {
  PassReferenceInput in = image({.sample_scale = true});
  in.weights.qkv_weight.assign(in.weights.qkv_weight.size(), 0);
  const PassReferenceOutput shifted = pass_reference(in);
  for (std::size_t i = 0; i < in.x.size(); ++i) {
    const double s = in.sample_scale[i / (in.x.size() / kBatch)];
    EXPECT_NEAR(shifted.y[i], in.x[i] + s * in.weights.out_bias[i % kDim], 1e-14);
  }
  EXPECT_EQ(shifted.dx, in.dy);
  in = image({.dropout = true});
  in.weights.out_weight.assign(in.weights.out_weight.size(), 0);
  in.weights.out_bias.assign(in.weights.out_bias.size(), 0);
  const PassReferenceOutput same = pass_reference(in);
  EXPECT_EQ(same.y, in.x);
  EXPECT_EQ(same.dx, in.dy);
}

// A token that is dropped whole keeps x, and its gradient is dy's alone.
TEST(PassReference, DroppedTokens) {
  PassReferenceInput in = image({});
  const PassReferenceOutput plain = pass_reference(in);
  in.projection_keep.assign(in.x.size(), 0);
  std::fill_n(in.projection_keep.begin(), kDim, 1);  // all but the first token of the first line
  in.projection_scale = 3;
  const PassReferenceOutput out = pass_reference(in);
  for (std::size_t i = 0; i < in.x.size(); ++i) {
    EXPECT_NEAR(out.y[i], in.x[i] + (i < kDim ? 3 * (plain.y[i] - in.x[i]) : 0), 1e-14);
    if (i >= kWidth * kDim) {
      EXPECT_EQ(out.dx[i], in.dy[i]);  // the other lines
    }
  }
}

// All tokens are alike, q = (1, 0) and k = (0, -1): the score of two is the sine of the angle from query to key.
TEST(PassReference, AnglesOfRotation) {
  PassReferenceInput in;
  in.dim = 2;
  in.heads = 1;
  in.lines.length = 2;
  in.set_dense();
  in.x = {1, 2, 3, 4};
  in.weights.norm_weight = {0, 0};
  in.weights.norm_bias = {1, 0};
  in.weights.qkv_weight = {1, 0, 0, 0, 0, 0, -1, 0, 1, 0, 1, 0};
  in.weights.out_weight = {1, 0, 0, 1};
  in.weights.out_bias = {0, 0};
  const double angle = 0.5;
  in.rotary = {1, 0, std::cos(angle), std::sin(angle)};
  const PassReferenceOutput out = pass_reference(in);
  const double score = std::sin(angle) / std::numbers::sqrt2;
  EXPECT_NEAR(out.top[0], score, 1e-15);  // the later key is ahead
  EXPECT_NEAR(out.gap[0], score, 1e-15);
  EXPECT_NEAR(out.top[1], 0, 1e-15);
  EXPECT_NEAR(out.gap[1], score, 1e-15);
  // Turned alike, they score as if nothing turned.
  in = image({.qkv_bias = true}, 1);
  const PassReferenceOutput plain = pass_reference(in);
  for (std::int64_t t = 0; t < in.lines.length; ++t) in.rotary.insert(in.rotary.end(), {0.6, 0.8, 0, 1, 0.8, -0.6});
  const PassReferenceOutput turned = pass_reference(in);
  for (std::size_t i = 0; i < in.x.size(); ++i) {
    EXPECT_NEAR(turned.y[i], plain.y[i], 1e-13);
    EXPECT_NEAR(turned.dx[i], plain.dx[i], 1e-13);
  }
}

// One key: its probability is one, whatever the scores; a dropped one leaves the output's bias.
TEST(PassReference, OneToken) {
  PassReferenceInput in = image({.qkv_bias = true});
  in.lines.outer[2] = in.lines.length;
  in.lines.length = 1;
  in.outer_stride[2] = in.token_stride;
  const PassReferenceOutput out = pass_reference(in);
  for (std::int64_t i = 0; i < 2 * kDim * kDim; ++i)
    EXPECT_EQ(out.gradients.qkv_weight[static_cast<std::size_t>(i)], 0);
  in.keep.assign(static_cast<std::size_t>(in.lines.count() * in.heads), 0);
  const PassReferenceOutput dropped = pass_reference(in);
  for (std::size_t i = 0; i < in.x.size(); ++i) {
    EXPECT_NEAR(dropped.y[i], in.x[i] + in.weights.out_bias[i % kDim], 1e-14);
  }
  EXPECT_EQ(dropped.dx, in.dy);
}

}  // namespace
}  // namespace axial::kernels::testing
