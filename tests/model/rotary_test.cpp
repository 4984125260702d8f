// The table of a rotary embedding and what turns by it, against the definition written out.
#include "model/rotary.h"

#include <cmath>

#include "model/reference.h"
#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

class RotaryTest : public OnDevice {};

TEST_P(RotaryTest, TurnsPairsOfChannelsByTheDefinition) {
  constexpr std::int64_t kHeads = 3, kDim = 8;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      SCOPED_TRACE(::testing::Message() << toString(type) << (axis == Axis::kRow ? " row" : " column"));
      const at::Tensor table = rotary_table(axis == Axis::kRow ? 5 : 3, kDim, 50, options(wide));
      EXPECT_EQ(table.scalar_type(), wide);
      // A part of a wider buffer, as q and k lie beside v.
      at::Tensor buffer = torch::randn({2, 3, 5, kHeads + 1, kDim}).to(options(type));
      const at::Tensor before = buffer.cpu().to(at::kDouble);
      at::Tensor expected = before.clone();
      auto from = before.accessor<double, 5>();
      auto to = expected.accessor<double, 5>();
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t y = 0; y < 3; ++y) {
          for (std::int64_t x = 0; x < 5; ++x) {
            for (std::int64_t h = 0; h < kHeads; ++h) {
              for (std::int64_t i = 0; i < kDim / 2; ++i) {
                const auto position = static_cast<double>(axis == Axis::kRow ? x : y);
                const double angle = position * std::pow(50.0, -2.0 * static_cast<double>(i) / kDim);
                const double a = from[b][y][x][h][2 * i], c = from[b][y][x][h][2 * i + 1];
                to[b][y][x][h][2 * i] = a * std::cos(angle) - c * std::sin(angle);
                to[b][y][x][h][2 * i + 1] = a * std::sin(angle) + c * std::cos(angle);
              }
            }
          }
        }
      }
      const double allowed = tolerance(type, false, Quantity::kBranch);
      rotate_(buffer.narrow(3, 0, kHeads), table, axis, false);
      EXPECT_LE(relative_error(buffer.cpu(), expected), allowed);
      EXPECT_TRUE(at::equal(buffer.select(3, kHeads).cpu().to(at::kDouble), before.select(3, kHeads)));
      rotate_(buffer.narrow(3, 0, kHeads), table, axis, true);
      EXPECT_LE(relative_error(buffer.cpu(), before), allowed);
    }
  }
}

// Of tokens that are all alike, who attends to whom depends on the distance alone, and does depend on it.
TEST_P(RotaryTest, ScoresDependOnTheDistance) {
  const PassParameters p = pass_parameters(8, 2, 0, options(at::kDouble));
  const at::Tensor x = torch::randn({8}, options(at::kDouble)).expand({1, 1, 9, 8});
  PassOptions pass;
  pass.heads = 2;
  pass.rotary = rotary_table(9, 4, 100, options(at::kDouble));
  const at::Tensor scores = reference_pass_probabilities(x, p, pass).detach().log()[0][0];  // [h, L, L]
  const at::Tensor next = scores.diagonal(1, 1, 2) - scores.diagonal(0, 1, 2).slice(1, 0, 8);
  EXPECT_LE((next - next.select(1, 0).unsqueeze(1)).abs().max().item<double>(), 1e-12);
  EXPECT_GT((scores.select(1, 0) - scores.select(1, 0).select(1, 0).unsqueeze(1)).abs().max().item<double>(), 1e-2);
}

TEST_P(RotaryTest, ATableIsKeptUntilAnotherIsAskedFor) {
  RotaryTable cache;
  const at::TensorOptions exact = at::empty({0}, options(at::kFloat)).options();  // with the number of the device
  const at::Tensor first = cache.get(7, 8, 100, exact);
  EXPECT_TRUE(cache.get(7, 8, 100, exact).is_same(first));
  EXPECT_TRUE(at::equal(first, rotary_table(7, 8, 100, options(at::kFloat))));
  EXPECT_TRUE(at::equal(cache.get(6, 8, 100, options(at::kFloat)), first.slice(0, 0, 6)));
  EXPECT_EQ(cache.get(6, 4, 100, options(at::kFloat)).size(1), 2);
  EXPECT_EQ(cache.get(6, 4, 100, options(at::kDouble)).scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(cache.get(6, 4, 10, options(at::kDouble)), rotary_table(6, 4, 10, options(at::kDouble))));
  RotaryTable other;
  {
    const c10::InferenceMode inference;
    other.get(7, 8, 100, options(at::kFloat));
  }
  EXPECT_FALSE(other.get(7, 8, 100, options(at::kFloat)).is_inference()) << "a backward could not keep it";
}

TEST(Rotary, WhatCannotBeTurnedIsNamed) {
  EXPECT_TRUE(contains(error_of([] { rotary_table(4, 5, 100, at::kFloat); }), "must be even, is 5"));
  EXPECT_TRUE(contains(error_of([] { rotary_table(4, 6, 1, at::kFloat); }), "base must be above 1, is 1"));
}

AXIAL_ON_DEVICES(RotaryTest);

}  // namespace
}  // namespace axial
