// A random sweep with fixed seeds over all options at once: 160 problems, each on every backend.
#include "tests/kernels/backend_test.h"

namespace axial::kernels::testing {
namespace {

class AttentionSweep : public BackendTest {};
AXIAL_ON_EVERY_BACKEND(AttentionSweep);

TEST_P(AttentionSweep, RandomProblems) {
  for (std::uint64_t seed = 0; seed < 160; ++seed) EXPECT_EQ(check(random_case(seed), backend_), "");
}

}  // namespace
}  // namespace axial::kernels::testing
