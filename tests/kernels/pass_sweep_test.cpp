// A random sweep with fixed seeds over all options of a fused pass at once, in shards that can run apart: the forward
// of every problem, and the backward of those that have one.
#include "tests/kernels/pass_harness.h"

namespace axial::kernels::testing {
namespace {

constexpr std::uint64_t kShard = 50, kShards = 8;

class PassSweep : public PassTest, public ::testing::WithParamInterface<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds, PassSweep, ::testing::Range(std::uint64_t{0}, kShard* kShards, kShard),
                         [](const auto& info) {
                           return std::to_string(info.param) + "To" + std::to_string(info.param + kShard - 1);
                         });

void sweep(std::uint64_t first, PassCase (*random_case)(std::uint64_t)) {
  std::uint64_t skipped = 0;
  std::string reason;
  for (std::uint64_t seed = first; seed < first + kShard; ++seed) {
    std::string unsupported;
    EXPECT_EQ(check_pass(random_case(seed), &unsupported), "");
    if (unsupported.empty()) continue;
    ++skipped;
    reason = unsupported;
  }
  if (skipped > 0) GTEST_SKIP() << skipped << " of " << kShard << " problems have no kernel: " << reason;
}

TEST_P(PassSweep, RandomProblems) { sweep(GetParam(), random_pass_case); }

class LinePassSweep : public LinePassTest, public ::testing::WithParamInterface<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds, LinePassSweep, ::testing::Range(std::uint64_t{0}, kShard* kShards, kShard),
                         [](const auto& info) {
                           return std::to_string(info.param) + "To" + std::to_string(info.param + kShard - 1);
                         });

TEST_P(LinePassSweep, RandomProblems) { sweep(GetParam(), random_line_case); }

}  // namespace
}  // namespace axial::kernels::testing
