// Attention kernels on every backend against the float64 reference: the cases that kernels like these get wrong.
#include <cmath>
#include <cstring>

#include "tests/kernels/backend_test.h"

namespace axial::kernels::testing {
namespace {

class Attention : public BackendTest {};
AXIAL_ON_EVERY_BACKEND(Attention);

// Grid y and z end at 65 535.
TEST_P(Attention, Case01_LineCounts) {
  for (const std::int64_t lines : {65535, 65536, 3 * 65536}) {
    for (const bool bias : {false, true}) {
      if (bias && lines > 65536) continue;  // the reference takes long, and lines are no axis of d_bias
      Case c;
      c.outer[0] = lines % 3 == 0 ? 3 : 1;
      c.outer[1] = lines / c.outer[0];
      c.length = 4;
      c.head_dim = 8;
      c.bias = bias;
      c.dtype = bias ? DType::kBFloat16 : DType::kFloat32;
      EXPECT_EQ(check(c, backend_), "");
    }
  }
}

TEST_P(Attention, Case02_HeadDimsAndLengths) {
  int count = 0;
  for (const std::int64_t d : {1, 3, 20, 63, 72, 104, 256}) {
    for (const std::int64_t length : {1, 7, 33, 65, 129}) {
      for (const DType dtype : kTypes) {
        Case c;
        c.outer[1] = 2;
        c.length = length;
        c.heads = 2;
        c.head_dim = d;
        c.dtype = dtype;
        c.bias = ++count % 2 == 0;
        c.causal = count % 3 == 0;
        c.seed = static_cast<std::uint64_t>(count);
        EXPECT_EQ(check(c, backend_), "");
      }
    }
  }
}

// The values of an aligned copy, to the bit.
TEST_P(Attention, Case03_OddElementOffset) {
  for (const DType dtype : kTypes) {
    for (const Layout layout : {Layout::kContiguous, Layout::kQkvRows, Layout::kTransposed}) {
      Case c;
      c.outer[1] = 3;
      c.length = 19;
      c.heads = 3;
      c.head_dim = 24;
      c.dtype = dtype;
      c.inputs = c.gradients = c.output = layout;
      const Outputs aligned = run(c, make_inputs(c), backend_);
      c.shift = 1;
      EXPECT_EQ(check(c, backend_), "");
      const Outputs shifted = run(c, make_inputs(c), backend_);
      ASSERT_TRUE(aligned.status.ok()) << aligned.status.message;
      ASSERT_TRUE(shifted.status.ok()) << shifted.status.message;
      EXPECT_EQ(aligned.o, shifted.o) << c.describe();
      EXPECT_EQ(aligned.dq, shifted.dq) << c.describe();
      EXPECT_EQ(aligned.dk, shifted.dk) << c.describe();
      EXPECT_EQ(aligned.dv, shifted.dv) << c.describe();
    }
  }
}

TEST_P(Attention, Case04_StridedIncomingGradient) {
  for (const DType dtype : kTypes) {
    Case c;
    c.outer[1] = 3;
    c.length = 21;
    c.heads = 2;
    c.head_dim = 16;
    c.dtype = dtype;
    for (const Layout layout : {Layout::kSliced, Layout::kTransposed, Layout::kHeadFirst, Layout::kReversed,
                                Layout::kQkvColumns, Layout::kExpanded}) {
      Case dense = c;
      c.d_o = layout;
      EXPECT_EQ(check(c, backend_), "");
      if (layout == Layout::kExpanded) {
        // The gradients of a contiguous tensor that repeats the one element.
        const Inputs expanded = make_inputs(c);
        Inputs contiguous = make_inputs(dense);
        set_values(dense, contiguous.d_o, expanded.reference.d_o, contiguous.reference.d_o);
        const Outputs a = run(c, expanded, backend_), b = run(dense, contiguous, backend_);
        ASSERT_TRUE(a.status.ok()) << a.status.message;
        EXPECT_EQ(a.bytes, b.bytes) << c.describe();
      }
      c.d_o = dense.d_o;
    }
  }
}

TEST_P(Attention, Case05_EmptyProblems) {
  for (int empty = 0; empty < 5; ++empty) {
    Case c;
    c.bias = true;
    c.heads = 2;
    c.length = 5;
    if (empty < 3) c.outer[empty] = 0;
    if (empty == 3) c.length = 0;
    if (empty == 4) c.heads = 0;
    const Outputs out = run(c, make_inputs(c), backend_);
    ASSERT_TRUE(out.status.ok()) << out.status.message;
    EXPECT_EQ(out.sentinels, "");
    EXPECT_TRUE(out.o.empty());
    for (const double value : out.d_bias) EXPECT_EQ(value, 0) << empty;
    EXPECT_EQ(out.d_bias.size(), empty < 3 ? 18u : 0u);
    // An unrelated call afterwards sees no pending error.
    EXPECT_EQ(check(Case(), backend_), "");
  }
}

TEST_P(Attention, Case06_Float16OneToken) {
  for (const bool bias : {false, true}) {
    for (const double dropout : {0.0, 0.3}) {
      Case c;
      c.length = 1;
      c.heads = 4;
      c.dtype = DType::kFloat16;
      c.bias = bias;
      c.dropout = dropout;
      const Inputs in = make_inputs(c);
      const Outputs out = run(c, in, backend_);
      ASSERT_TRUE(out.status.ok()) << out.status.message;
      for (const double value : out.dq) EXPECT_EQ(value, 0);
      for (const double value : out.dk) EXPECT_EQ(value, 0);
      for (const double value : out.d_bias) EXPECT_EQ(value, 0);
      if (dropout == 0) {
        EXPECT_EQ(out.dv, in.reference.d_o);
      }
      EXPECT_EQ(check(c, backend_), "");
    }
  }
}

TEST_P(Attention, Case06_Float16LongLine) {
  Case c;
  c.length = 1024;
  c.head_dim = 128;
  c.dtype = DType::kFloat16;
  EXPECT_EQ(check(c, backend_), "");
}

TEST_P(Attention, Case09_BackwardTwiceIsBitIdentical) {
  Case c;
  c.outer[1] = 3;
  c.length = 1024;
  c.heads = 2;
  c.head_dim = 32;
  c.dtype = DType::kBFloat16;
  c.bias = true;
  c.dropout = 0.1;
  const Inputs in = make_inputs(c);
  const Outputs first = run(c, in, backend_), second = run(c, in, backend_);
  ASSERT_TRUE(first.status.ok()) << first.status.message;
  EXPECT_TRUE(first.bytes == second.bytes);
}

// The column pass is the row pass of the transposed image.
TEST_P(Attention, Case10_ColumnsEqualTransposedRows) {
  for (const auto& [height, width] : {std::pair<int, int>{2, 3}, {3, 2}, {7, 12}, {40, 9}}) {
    Case columns;
    columns.outer[1] = width;
    columns.length = height;
    columns.heads = 2;
    columns.head_dim = 8;
    columns.inputs = columns.output = columns.d_o = columns.gradients = Layout::kQkvColumns;
    Case rows = columns;
    rows.inputs = rows.output = rows.d_o = rows.gradients = Layout::kQkvRows;
    // Dense values are per line, so equal seeds are the transposed image.
    const Outputs a = run(columns, make_inputs(columns), backend_), b = run(rows, make_inputs(rows), backend_);
    ASSERT_TRUE(a.status.ok() && b.status.ok());
    EXPECT_EQ(a.sentinels + b.sentinels, "");
    EXPECT_EQ(a.o, b.o);
    EXPECT_EQ(a.dq, b.dq);
    EXPECT_EQ(a.dk, b.dk);
    EXPECT_EQ(a.dv, b.dv);
    EXPECT_EQ(check(columns, backend_), "");
  }
}

TEST_P(Attention, Case12_UnwantedGradients) {
  for (int wanted = 0; wanted < 16; ++wanted) {
    for (const std::int64_t length : {9, 70}) {
      for (const Layout gradients : {Layout::kQkvRows, Layout::kContiguous}) {
        Case c;
        c.outer[1] = 3;
        c.length = length;
        c.heads = 2;
        c.bias = true;
        c.want_dq = wanted & 1;
        c.want_dk = wanted & 2;
        c.want_dv = wanted & 4;
        c.want_d_bias = wanted & 8;
        c.gradients = gradients;
        const Inputs in = make_inputs(c);
        const Outputs out = run(c, in, backend_);
        ASSERT_TRUE(out.status.ok()) << out.status.message;
        EXPECT_EQ(out.sentinels + compare(c, backend_, out, reference(in.reference)), "") << c.describe();
      }
    }
  }
}

TEST_P(Attention, WithoutStatistics) {
  Case c;
  c.length = 40;
  RunOptions options;
  options.backward = options.statistics = false;
  EXPECT_EQ(check(c, backend_, options), "");
}

TEST_P(Attention, TF32) {
  for (const std::int64_t d : {8, 16, 32, 64, 128}) {
    for (const std::int64_t length : {16, 32, 50, 128}) {
      Case c;
      c.outer[1] = 4;
      c.length = length;
      c.heads = 2;
      c.head_dim = d;
      c.math = Math::kTF32;
      EXPECT_EQ(check(c, backend_), "");
    }
  }
}

// Logits of up to 3e5: nothing overflows, and rows and columns keep their mass. With v = 1 every output is 1; the sum
// of dv over keys is the sum of d_o over queries.
TEST_P(Attention, LargeLogitsKeepTheirMass) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t length : {12, 32, 150}) {
      Case c;
      c.outer[1] = 4;
      c.length = length;
      c.heads = 2;
      c.dtype = dtype;
      c.gain = 250;  // d = 16: scores of 250^2 standard deviation
      Inputs in = make_inputs(c);
      set_values(c, in.v, std::vector<double>(in.reference.v.size(), 1), in.reference.v);
      const Outputs out = run(c, in, backend_);
      ASSERT_TRUE(out.status.ok()) << out.status.message;
      double largest = 0;
      for (const double value : out.row_max) largest = std::max(largest, std::abs(value));
      EXPECT_GT(largest, 2e5);
      const double slack = dtype == DType::kFloat64 ? 1e-12 : dtype == DType::kFloat32 ? 1e-5 : 1e-2;
      for (const double value : out.o) ASSERT_NEAR(value, 1, slack) << c.describe();
      for (const auto* gradient : {&out.dq, &out.dk}) {
        for (const double value : *gradient) ASSERT_TRUE(std::isfinite(value)) << c.describe();
      }
      const std::size_t row = static_cast<std::size_t>(c.heads * c.head_dim);
      for (std::size_t line = 0; line < 4; ++line) {
        for (std::size_t x = 0; x < row; ++x) {
          double given = 0, got = 0, scale = 0;
          for (std::size_t t = 0; t < static_cast<std::size_t>(length); ++t) {
            const std::size_t at = (line * static_cast<std::size_t>(length) + t) * row + x;
            given += in.reference.d_o[at];
            got += out.dv[at];
            scale += std::abs(in.reference.d_o[at]);
          }
          ASSERT_NEAR(got, given, slack * scale) << c.describe();
        }
      }
    }
  }
}

// Biases of -inf hide keys, also where a whole tile of keys is hidden first.
TEST_P(Attention, InfiniteBiasHidesKeys) {
  for (const std::int64_t length : {10, 150}) {
    Case c;
    c.length = length;
    c.bias = true;
    Inputs in = make_inputs(c);
    // Only keys at and right behind the query remain: i - j in {-1, 0}.
    for (std::int64_t r = 0; r < 2 * length - 1; ++r) {
      if (r == length - 1 || r == length - 2) continue;
      const float hidden = -INFINITY;
      std::memcpy(in.bias->data() + r * 4, &hidden, 4);
      in.reference.bias[static_cast<std::size_t>(r)] = hidden;
    }
    const Outputs out = run(c, in, backend_);
    ASSERT_TRUE(out.status.ok()) << out.status.message;
    EXPECT_EQ(compare(c, backend_, out, reference(in.reference)), "") << c.describe();
  }
}

// A NaN stays in the rows that it reaches, and reaches them.
TEST_P(Attention, NaNStaysInItsRow) {
  Case c;
  c.outer[1] = 2;
  c.length = 70;
  Inputs in = make_inputs(c);
  std::vector<double> q = in.reference.q;
  q[5 * 16 + 3] = std::nan("");
  set_values(c, in.q, q, in.reference.q);
  RunOptions forward;
  forward.backward = false;
  const Outputs out = run(c, in, backend_, forward);
  ASSERT_TRUE(out.status.ok());
  for (std::size_t i = 0; i < out.o.size(); ++i) EXPECT_EQ(std::isnan(out.o[i]), i / 16 == 5) << i;
}

// The sum of dS over a row is 0, so d_bias sums to 0 over its distances; and it does not depend on how lines are
// shared.
TEST_P(Attention, BiasGradientOverManyLines) {
  for (const std::int64_t length : {7, 28, 80}) {
    for (const DType dtype : kTypes) {
      Case c;
      c.outer[0] = 9;
      c.outer[1] = 23;
      c.length = length;
      c.heads = 2;
      c.head_dim = 4;
      c.dtype = dtype;
      c.bias = true;
      EXPECT_EQ(check(c, backend_), "");
    }
  }
}

}  // namespace
}  // namespace axial::kernels::testing
