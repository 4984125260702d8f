// A random sweep with fixed seeds over all options at once: 160 problems, each on every backend.
#include <gtest/gtest.h>

#include "tests/kernels/attention_harness.h"

namespace axial::kernels::testing {
namespace {

class AttentionSweep : public ::testing::TestWithParam<Device> {};

INSTANTIATE_TEST_SUITE_P(Backends, AttentionSweep, ::testing::Values(Device::kCpu, Device::kCuda),
                         [](const auto& info) { return backend_name(info.param); });

TEST_P(AttentionSweep, RandomProblems) {
  const Backend backend{GetParam(), 2};
  if (const char* reason = unavailable(backend)) GTEST_SKIP() << reason;
  for (std::uint64_t seed = 0; seed < 160; ++seed) EXPECT_EQ(check(random_case(seed), backend), "");
}

}  // namespace
}  // namespace axial::kernels::testing
