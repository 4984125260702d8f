// Fused passes on the current CUDA device: the cases that kernels like these get wrong.
#include <algorithm>

#include "tests/kernels/pass_harness.h"

namespace axial::kernels::testing {
namespace {

class Pass : public PassTest {};

constexpr DType kPassTypes[] = {DType::kBFloat16, DType::kFloat16};

// The same kernels that the random sweep skips where they are missing.
TEST_F(Pass, EveryWidthHasItsKernels) {
  for (const PassWidth& width : kPassWidths) {
    for (const DType dtype : kPassTypes) {
      for (const std::int64_t length : {1, 16, 32, 128}) {
        PassProblem problem;
        problem.lines.length = length;
        problem.dim = width.dim;
        problem.heads = width.heads;
        problem.dtype = dtype;
        KernelChoice choice;
        const Status status = cuda::choose_pass(problem, &choice);
        EXPECT_TRUE(status.ok()) << status.message;
        EXPECT_NE(choice.forward[0], 0) << width.dim << " " << width.heads;
        EXPECT_NE(choice.backward[0], 0) << width.dim << " " << width.heads << " " << length;
        EXPECT_GT(cuda::packed_bytes(problem), 0u);
      }
    }
  }
}

// More tiles than a card holds at once, so that each block takes several: every line must equal, to the bit, the
// copies of it that other blocks and other rows of a tile compute.
TEST_F(Pass, ManyTiles) {
  for (const PassWidth& width : kPassWidths) {
    for (const std::int64_t length : {6, 16, 29, 64, 100}) {
      PassCase base;
      base.outer[0] = 7;
      base.outer[1] = 3;
      base.length = length;
      base.dim = width.dim;
      base.heads = width.heads;
      base.dtype = length % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
      base.causal = length == 16;
      base.qkv_bias = length != 64;
      base.sample_scale = length == 29;
      PassCase c = base;
      c.outer[0] *= 80000 / (21 * (length + 2)) + 1;
      c.x = c.y = c.dy = c.dx = length == 29 ? TokenLayout::kColumns : TokenLayout::kRows;
      EXPECT_EQ(check_repeated_pass(c, base), "");
    }
  }
}

// Scratch of the backward in three kernels holds 32 tiles a block: these are more, on cards of up to 136
// multiprocessors.
TEST_F(Pass, MoreTilesThanScratchHolds) {
  PassCase base;
  base.outer[0] = 11;
  base.outer[1] = 4;
  base.length = 128;  // a line is a tile
  base.dim = 128;
  base.heads = 8;
  PassCase c = base;
  c.outer[0] *= 50;
  EXPECT_EQ(check_repeated_pass(c, base), "");
}

// Grid y and z end at 65 535.
TEST_F(Pass, Case01_LineCounts) {
  for (const std::int64_t lines : {65535, 65536, 3 * 65536}) {
    for (const bool general : {false, true}) {
      PassCase base;
      base.outer[0] = lines % 5 == 0 ? 15 : 16;
      base.outer[1] = 1;
      base.length = general ? 4 : 2;
      base.causal = general;
      PassCase c = base;
      c.outer[0] = general ? lines : 1;
      c.outer[2] = general ? 1 : lines;
      EXPECT_EQ(check_repeated_pass(c, base), "");
    }
  }
}

TEST_F(Pass, Case04_StridedTokens) {
  for (const TokenLayout layout : {TokenLayout::kColumns, TokenLayout::kPaddedRows, TokenLayout::kPaddedColumns,
                                   TokenLayout::kSliced, TokenLayout::kReversed, TokenLayout::kExpanded}) {
    for (const std::int64_t length : {5, 24}) {
      PassCase c;
      c.outer[1] = 7;
      c.outer[2] = 2;
      c.length = length;
      const PassOutputs dense = run_pass(c, make_pass_inputs(c));
      for (int tensor = 0; tensor < 5; ++tensor) {
        PassCase strided = c;
        if (tensor == 0 || tensor == 4) strided.x = layout;
        if (tensor == 1 || tensor == 4) strided.y = layout;
        if (tensor == 2 || tensor == 4) strided.dy = layout;
        if (tensor == 3 || tensor == 4) strided.dx = layout;
        const bool expanded = layout == TokenLayout::kExpanded;
        if (expanded && tensor != 2) continue;
        EXPECT_EQ(check_pass(strided), "");
        if (expanded) continue;
        // Dense values are per line: equal seeds are the same lines, for columns the transposed image.
        const PassOutputs out = run_pass(strided, make_pass_inputs(strided));
        ASSERT_TRUE(dense.status.ok() && out.status.ok()) << dense.status.message << out.status.message;
        EXPECT_TRUE(out.y == dense.y) << strided.describe();
        EXPECT_TRUE(out.dx == dense.dx) << strided.describe();
      }
    }
  }
}

TEST_F(Pass, Case05_EmptyProblems) {
  for (int empty = 0; empty < 4; ++empty) {
    for (const double dropout : {0.0, 0.25}) {
      PassCase c;
      c.qkv_bias = true;
      c.dropout = dropout;
      if (empty < 3) c.outer[empty] = 0;
      if (empty == 3) c.length = 0;
      const PassOutputs out = run_pass(c, make_pass_inputs(c));
      ASSERT_TRUE(out.status.ok()) << out.status.message << " [" << c.describe() << "]";
      EXPECT_EQ(out.sentinels, "");
      EXPECT_TRUE(out.y.empty() && out.dx.empty());
      for (const PassParameter& p : kPassParameters) {
        for (const double value : out.gradients.*p.values)
          ASSERT_EQ(value, 0) << p.name << " [" << c.describe() << "]";
      }
      EXPECT_EQ(out.gradients.qkv_weight.size(), static_cast<std::size_t>(3 * c.dim * c.dim));
      // An unrelated call afterwards sees no pending error.
      EXPECT_EQ(check_pass(PassCase()), "");
    }
  }
}

// One key has probability one: Q and K have no gradient.
TEST_F(Pass, Case06_OneToken) {
  for (const DType dtype : kPassTypes) {
    PassCase c;
    c.outer[1] = 21;
    c.length = 1;
    c.dtype = dtype;
    c.qkv_bias = true;
    EXPECT_EQ(check_pass(c), "");
    const PassOutputs out = run_pass(c, make_pass_inputs(c));
    ASSERT_TRUE(out.status.ok()) << out.status.message;
    for (std::size_t i = 0; i < static_cast<std::size_t>(2 * c.dim * c.dim); ++i) {
      ASSERT_NEAR(out.gradients.qkv_weight[i], 0, 1e-3) << i;
    }
  }
}

TEST_F(Pass, Case09_TwiceIsBitIdentical) {
  for (const DType dtype : kPassTypes) {
    for (const bool general : {false, true}) {
      for (const std::int64_t length : {7, 32, 60}) {
        PassCase c;
        c.outer[0] = 16;
        c.outer[1] = 21 * 128 / length;  // several tiles a block
        c.length = length;
        c.dtype = dtype;
        c.qkv_bias = true;
        c.dropout = general ? 0.1 : 0;
        c.float32_residual = general && length == 60;
        const PassInputs in = make_pass_inputs(c);
        PassRun run(c, in);
        ASSERT_TRUE(run.chosen.ok() && run.backward_chosen()) << run.chosen.message;
        Bytes bytes;
        for (int i = 0; i < 2; ++i) {
          run.poison();
          for (const Status& status : {run.pack(), run.forward(), run.backward()})
            ASSERT_TRUE(status.ok()) << status.message;
          const PassOutputs out = run.fetch();
          ASSERT_TRUE(out.status.ok()) << out.status.message;
          if (i == 1) {
            EXPECT_TRUE(out.bytes == bytes) << c.describe();
          }
          bytes = out.bytes;
        }
        EXPECT_TRUE(run_pass(c, in).bytes == bytes) << "at other addresses: " << c.describe();
      }
    }
  }
}

TEST_F(Pass, ALineAloneIsTheSameLineInABatch) {
  for (const PassWidth& width : {PassWidth{64, 4}, PassWidth{64, 1}, PassWidth{96, 4}, PassWidth{128, 8}}) {
    for (const std::int64_t length : {3, 8, 16, 23, 50}) {
      PassCase c;
      c.outer[1] = 3;
      c.outer[2] = 2;
      c.length = length;
      c.dim = width.dim;
      c.heads = width.heads;
      c.dtype = length % 2 == 0 ? DType::kFloat16 : DType::kBFloat16;
      c.bias = length == 16;
      c.dropout = length == 23 ? 0.2 : 0;
      c.sample_scale = length == 8;
      c.first_line = 100;
      const PassInputs in = make_pass_inputs(c);
      const PassOutputs batch = run_pass(c, in);
      ASSERT_TRUE(batch.status.ok()) << batch.status.message;
      const std::ptrdiff_t line_elements = length * c.dim;
      for (std::int64_t line = 0; line < c.outer[0] * 6; ++line) {
        PassCase alone = c;
        alone.outer[0] = alone.outer[1] = alone.outer[2] = 1;
        alone.first_line = c.first_line + line;
        PassInputs one = make_pass_inputs(alone);
        const auto x = in.reference.x.begin() + line * line_elements;
        set_values(alone.tokens(), one.x, {x, x + line_elements}, one.reference.x);
        if (c.sample_scale)
          one.sample_scale = float_array(c, {in.reference.sample_scale[static_cast<std::size_t>(line / 6)]});
        const PassOutputs out = run_pass(alone, one);
        ASSERT_TRUE(out.status.ok()) << out.status.message;
        EXPECT_TRUE(std::equal(out.y.begin(), out.y.end(), batch.y.begin() + line * line_elements))
            << "line " << line << " [" << c.describe() << "]";
      }
    }
  }
}

// The mask is cuda::dropout_mask's, in every way that lines lie in a tile, and no other.
TEST_F(Pass, Case08_DropoutMasks) {
  for (const std::int64_t length : {1, 2, 3, 8, 16, 17, 40, 64, 128}) {
    for (const std::int64_t heads : {4, 2, 1}) {
      PassCase c;
      c.outer[1] = 5;
      c.length = length;
      c.heads = heads;
      c.dtype = length % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
      c.dropout = length % 3 == 0 ? 0.1 : 0.5;
      c.first_line = std::int64_t{1} << 33;  // the counter's high word
      EXPECT_EQ(check_pass(c), "");
      PassInputs in = make_pass_inputs(c);
      const PassOutputs out = run_pass(c, in);
      PassCase next = c;
      ++next.rng_offset;
      in.reference.keep = run_pass(next, make_pass_inputs(next)).keep;
      if (length == 1) continue;  // too few draws to differ for sure
      EXPECT_NE(compare_pass(c, out, in.reference, pass_reference(in.reference)), "") << c.describe();
    }
  }
}

// One option by itself, on every width and in every way that lines lie in a tile; skipped where some have no kernel.
template <class Option>
void check_alone(const Option& option) {
  std::string unsupported;
  for (const PassWidth& width : kPassWidths) {
    for (const std::int64_t length : {1, 3, 14, 16, 28, 32, 50, 64, 128}) {
      PassCase c;
      c.outer[1] = 5;
      c.outer[2] = 2;
      c.length = length;
      c.dim = width.dim;
      c.heads = width.heads;
      c.dtype = length % 4 == 0 ? DType::kBFloat16 : DType::kFloat16;
      c.x = c.y = c.dy = c.dx = length % 3 == 0 ? TokenLayout::kColumns : TokenLayout::kRows;
      option(c);
      EXPECT_EQ(check_pass(c, &unsupported), "");
    }
  }
  if (!unsupported.empty()) GTEST_SKIP() << "some have no kernel: " << unsupported;
}

TEST_F(Pass, BiasAlone) {
  check_alone([](PassCase& c) { c.bias = true; });
}
// Tokens far from zero, and layouts of their own where the plain kernels would take only one.
TEST_F(Pass, Float32ResidualAlone) {
  check_alone([](PassCase& c) {
    c.float32_residual = true;
    c.x_offset = c.length % 2 == 0 ? 0 : 100;
    if (c.length == 28) c.y = c.dx = TokenLayout::kPaddedRows;
  });
}
TEST_F(Pass, Float32ResidualAmongOthers) {
  check_alone([](PassCase& c) {
    c.float32_residual = c.sample_scale = c.rotary = c.bias = c.qkv_bias = true;
    c.projection = c.dropout = 0.25;
    c.causal = c.length % 2 == 0;
  });
}
TEST_F(Pass, RotaryAlone) {
  check_alone([](PassCase& c) { c.rotary = true; });
}
// The gradient of the keys' bias, which is zero where no key turns.
TEST_F(Pass, RotaryWithBiasOfTheProjections) {
  check_alone([](PassCase& c) { c.rotary = c.qkv_bias = true; });
}
TEST_F(Pass, ProjectionDropoutAlone) {
  check_alone([](PassCase& c) {
    c.projection = c.length % 2 == 0 ? 0.5 : 0.1;
    c.numbers = c.x == TokenLayout::kRows ? TokenNumbers::kRows : TokenNumbers::kColumns;
    c.first_token = (std::int64_t{1} << 33) - 100;  // the counter's high word
  });
}
// Stochastic depth and two kinds of dropout, each from draws of its own.
TEST_F(Pass, ProjectionDropoutAmongOthers) {
  check_alone([](PassCase& c) {
    c.projection = 0.25;
    c.dropout = 0.1;
    c.sample_scale = c.rotary = true;
  });
}

TEST_F(Pass, Case08_ProjectionMasksAreDrawn) {
  PassCase c;
  c.outer[1] = 5;
  c.projection = 0.1;
  PassInputs in = make_pass_inputs(c);
  const PassOutputs out = run_pass(c, in);
  if (out.status.code == Code::kUnsupported) GTEST_SKIP() << out.status.message;
  for (int change = 0; change < 3; ++change) {
    PassCase other = c;
    if (change == 0) ++other.rng_offset;
    if (change == 1) ++other.stream;
    if (change == 2) ++other.first_token;
    in.reference.projection_keep = run_pass(other, make_pass_inputs(other)).projection_keep;
    EXPECT_NE(compare_pass(c, out, in.reference, pass_reference(in.reference)), "") << change;
  }
}

TEST_F(Pass, ManyTilesTurn) {
  std::string unsupported;
  for (const PassWidth& width : kPassWidths) {
    for (const std::int64_t length : {6, 28, 64}) {
      PassCase base;
      base.outer[0] = 7;
      base.outer[1] = 3;
      base.length = length;
      base.dim = width.dim;
      base.heads = width.heads;
      base.rotary = true;
      PassCase c = base;
      c.outer[0] *= 80000 / (21 * (length + 2)) + 1;
      EXPECT_EQ(check_repeated_pass(c, base, &unsupported), "");
    }
  }
  if (!unsupported.empty()) GTEST_SKIP() << "some have no kernel: " << unsupported;
}

}  // namespace
}  // namespace axial::kernels::testing
