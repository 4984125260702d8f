// Dropout on the probabilities: one mask for forward, backward and both devices, and the values under it.
#include <algorithm>
#include <cmath>

#include "tests/kernels/backend_test.h"

namespace axial::kernels::testing {
namespace {

class AttentionDropout : public BackendTest {};
AXIAL_ON_EVERY_BACKEND(AttentionDropout);

TEST_P(AttentionDropout, Case08_DropoutMasks) {
  Case c;
  c.outer[1] = 5;
  c.length = 37;
  c.heads = 3;
  c.dropout = 0.2;
  c.bias = true;
  std::string problem;
  const auto first = mask(c, backend_, problem);
  ASSERT_EQ(problem, "");
  EXPECT_EQ(first, mask(c, backend_, problem)) << "the same offset must give the same mask";
  EXPECT_EQ(first, mask(c, Backend{}, problem)) << "the CPU's mask";
  Case later = c;
  ++later.rng_offset;
  EXPECT_NE(first, mask(later, backend_, problem)) << "the next offset must give another mask";
  Case other = c;
  ++other.stream;
  EXPECT_NE(first, mask(other, backend_, problem)) << "another layer must have another mask";
  // Lines keep their masks where a batch is shared out.
  Case part = c;
  part.outer[1] = 2;
  part.first_line = 3;
  const auto second = mask(part, backend_, problem);
  EXPECT_TRUE(std::equal(second.begin(), second.end(), first.end() - static_cast<std::ptrdiff_t>(second.size())));
}

TEST_P(AttentionDropout, Case08_DropoutValues) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t length : {1, 16, 37, 100}) {
      for (const std::int64_t d : {16, 72, 200}) {
        Case c;
        c.outer[1] = 2;
        c.length = length;
        c.heads = 3;
        c.head_dim = d;
        c.dtype = dtype;
        c.dropout = 0.3;
        c.first_line = std::int64_t{1} << 33;  // the counter's high word
        c.causal = length == 37;
        c.seed = static_cast<std::uint64_t>(length + d);
        EXPECT_EQ(check(c, backend_), "");
      }
    }
  }
}

// The backward reads rng again: with the forward's offset the gradients are the forward's; with another one, the mask
// and so dv differ. (Which offset it reads is the caller's to keep.)
TEST_P(AttentionDropout, Case08_BackwardUsesTheForwardsMask) {
  Case c;
  c.outer[1] = 4;
  c.length = 20;
  c.dropout = 0.5;
  const Inputs in = make_inputs(c);
  const Outputs same = run(c, in, backend_);
  RunOptions advanced;
  advanced.before_backward = [](std::uint64_t* rng) { ++rng[1]; };
  const Outputs other = run(c, make_inputs(c), backend_, advanced);
  ASSERT_TRUE(same.status.ok() && other.status.ok());
  EXPECT_EQ(compare(c, backend_, same, reference(in.reference)), "");
  EXPECT_EQ(same.o, other.o);
  EXPECT_NE(same.dv, other.dv);
}

TEST_P(AttentionDropout, Case08_KeepRate) {
  for (const double p : {0.001, 0.1, 0.5, 0.999}) {
    Case c;
    c.outer[1] = 16;
    c.length = 64;
    c.heads = 8;
    c.head_dim = 1;
    c.dropout = p;
    std::string problem;
    const auto keep = mask(c, backend_, problem);
    ASSERT_EQ(problem, "");
    double kept = 0;
    for (const std::uint8_t value : keep) {
      ASSERT_LE(value, 1);
      kept += value;
    }
    const double n = static_cast<double>(keep.size()), q = 1 - dropout_rate(p).p;
    EXPECT_NEAR(kept / n, q, 5 * std::sqrt(q * (1 - q) / n)) << p;
  }
}

}  // namespace
}  // namespace axial::kernels::testing
