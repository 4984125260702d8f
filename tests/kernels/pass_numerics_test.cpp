// Fused passes on values that strain the arithmetic: large offsets of x, large scores, a residual that vanishes.
#include <algorithm>
#include <cmath>

#include "tests/kernels/pass_harness.h"

namespace axial::kernels::testing {
namespace {

class PassNumerics : public PassTest {};

constexpr DType kPassTypes[] = {DType::kBFloat16, DType::kFloat16};

// A large common offset leaves LayerNorm no digits to lose: x is rounded to steps of 0.5 (float16) or 4 (bfloat16).
TEST_F(PassNumerics, LayerNormOfALargeOffset) {
  for (const DType dtype : kPassTypes) {
    for (const std::int64_t dim : {64, 128}) {
      PassCase c;
      c.length = 20;
      c.dim = dim;
      c.dtype = dtype;
      c.x_offset = 1000;
      c.x_gain = dtype == DType::kFloat16 ? 1 : 16;
      // The branch must not drown in the roundings of y.
      c.out_gain = 500;
      EXPECT_EQ(check_pass(c), "");
    }
  }
}

// Scores of hundreds, where softmax without its maximum ends for some rows and not for others, and of up to 3e5:
// nothing overflows, and where one key is clearly ahead the output is its value.
TEST_F(PassNumerics, LargeLogitsPickTheirKey) {
  struct Size {
    double gain, top, gap, share;  // share: of tokens that are clear, at least
  };
  for (const auto& [gain, top, gap, share] : {Size{250, 2e5, 1e4, 0.1}, Size{8, 100, 30, 0.01}}) {
    for (const DType dtype : kPassTypes) {
      for (const std::int64_t heads : {1, 2, 4}) {
        for (const std::int64_t length : {7, 12, 16, 28, 32, 64, 100}) {
          PassCase c;
          c.outer[1] = 31;
          c.length = length;
          c.heads = heads;
          c.dtype = dtype;
          c.causal = length == 16;
          c.score_gain = gain;
          c.dy_gain = 0x1p-6;  // where two keys tie, their weights of 30 carry a gradient of 1 beyond float16
          const PassInputs in = make_pass_inputs(c);
          const PassOutputs out = run_pass(c, in);
          ASSERT_TRUE(out.status.ok()) << out.status.message;
          EXPECT_EQ(out.sentinels, "");
          for (const std::vector<double>* values : {&out.y, &out.dx}) {
            for (const double value : *values) ASSERT_TRUE(std::isfinite(value)) << c.describe();
          }
          for (const PassParameter& p : kPassParameters) {
            for (const double value : out.gradients.*p.values) ASSERT_TRUE(std::isfinite(value)) << p.name;
          }
          PassReferenceInput forward = in.reference;
          forward.dy.clear();
          const PassReferenceOutput expected = pass_reference(forward);
          EXPECT_GT(*std::max_element(expected.top.begin(), expected.top.end()), top) << c.describe();
          const double allowed = 4 * tolerance(dtype, Math::kStrict, Device::kCuda, Quantity::kOutput).relative;
          std::int64_t clear_tokens = 0;
          const std::int64_t tokens = lines_of(c.tokens()) * length;
          for (std::int64_t token = 0; token < tokens; ++token) {
            bool clear = true;
            for (std::int64_t h = 0; h < heads; ++h) {
              const std::int64_t row = (token / length * heads + h) * length + token % length;
              clear = clear && expected.gap[static_cast<std::size_t>(row)] > gap;
            }
            if (!clear) continue;
            ++clear_tokens;
            double error = 0, norm = 0;
            for (std::int64_t i = token * c.dim; i < (token + 1) * c.dim; ++i) {
              const auto at = static_cast<std::size_t>(i);
              error += (out.y[at] - expected.y[at]) * (out.y[at] - expected.y[at]);
              norm += (expected.y[at] - forward.x[at]) * (expected.y[at] - forward.x[at]);
            }
            ASSERT_LE(std::sqrt(error), allowed * std::sqrt(norm))
                << "token " << token << " [" << c.describe() << "]";
          }
          EXPECT_GT(static_cast<double>(clear_tokens), share * static_cast<double>(tokens)) << c.describe();
        }
      }
    }
  }
}

}  // namespace
}  // namespace axial::kernels::testing
