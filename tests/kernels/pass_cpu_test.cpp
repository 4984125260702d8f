// The fused pass on the CPU against the float64 reference: every instruction set, all options, layouts and types; and
// what only the CPU promises: any alignment, the same bits for any number of threads.
#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "tests/kernels/instruction_set.h"
#include "tests/kernels/pass_cpu_harness.h"

namespace axial::kernels::testing {
namespace {

PassCase float_case(std::int64_t length) {
  PassCase c;
  c.dtype = DType::kFloat32;
  c.length = length;
  c.outer[0] = 3;
  c.outer[1] = 7;
  return c;
}

constexpr DType kAllTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr std::uint64_t kShard = 50, kShards = 6;

class CpuPassSweep : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, CpuPassSweep, ::testing::Range(std::uint64_t{0}, kShard* kShards, kShard),
                         [](const auto& info) {
                           return std::to_string(info.param) + "To" + std::to_string(info.param + kShard - 1);
                         });
TEST_P(CpuPassSweep, RandomProblems) {
  for (std::uint64_t seed = GetParam(); seed < GetParam() + kShard; ++seed) {
    EXPECT_EQ(check_cpu(random_cpu_pass_case(seed)), "");
  }
}

TEST(CpuPass, EveryInstructionSet) {
  std::set<std::string> names;
  for_instruction_sets([&] {
    const PassCase c = float_case(28);
    const PassInputs in = make_pass_inputs(c);
    KernelChoice choice;
    ASSERT_TRUE(cpu::choose_pass(CpuPass(c, in).problem, &choice).ok());
    names.insert(choice.forward);
    for (std::uint64_t seed = 1000; seed < 1040; ++seed) {
      EXPECT_EQ(check_cpu(random_cpu_pass_case(seed)), "") << choice.forward;
    }
  });
  RecordProperty("instruction_sets", static_cast<int>(names.size()));
  EXPECT_GE(names.size(), 1u);
}

TEST(CpuPass, ResultsDoNotDependOnThreads) {
  for (const DType dtype : kAllTypes) {
    PassCase c = float_case(9);
    c.dtype = dtype;
    c.outer[0] = 5;
    c.outer[1] = 211;  // more groups than slabs
    c.bias = c.qkv_bias = c.sample_scale = c.rotary = true;
    c.dropout = c.projection = 0.25;
    const PassInputs in = make_pass_inputs(c);
    const PassOutputs one = run_cpu(c, in);
    ASSERT_TRUE(one.status.ok()) << one.status.message;
    EXPECT_TRUE(one.bytes == run_cpu(c, in).bytes) << "twice, " << c.describe();
    for (const int threads : {2, 3, 64}) {
      const PassOutputs other = run_cpu(c, in, threads);
      ASSERT_TRUE(other.status.ok()) << other.status.message;
      EXPECT_TRUE(one.bytes == other.bytes) << threads << " threads, " << c.describe();
    }
  }
}

// By themselves, on every width that any kernel knows and on some that none does.
TEST(CpuPass, RotaryAndProjectionDropoutAlone) {
  std::vector<PassWidth> widths(std::begin(kPassWidths), std::end(kPassWidths));
  widths.insert(widths.end(), {{4, 2}, {6, 3}, {42, 3}, {200, 2}});
  for (const PassWidth& width : widths) {
    for (const std::int64_t length : {1, 6, 15, 32}) {
      PassCase c = float_case(length);
      c.dtype = kAllTypes[length % 4];
      c.dim = width.dim;
      c.heads = width.heads;
      c.rotary = true;
      EXPECT_EQ(check_cpu(c), "");
      c.qkv_bias = true;  // the gradient of the keys' part, which is zero where no key turns
      EXPECT_EQ(check_cpu(c), "");
      c.rotary = c.qkv_bias = false;
      c.projection = 0.3;
      c.numbers = length == 15 ? TokenNumbers::kColumns : TokenNumbers::kRows;
      c.first_token = (std::int64_t{1} << 33) - 100;  // the counter's high word
      EXPECT_EQ(check_cpu(c), "");
    }
  }
}

TEST(CpuPass, Case08_ProjectionMasksAreDrawn) {
  PassCase c = float_case(16);
  c.projection = 0.1;
  PassInputs in = make_pass_inputs(c);
  const PassOutputs out = run_cpu(c, in);
  for (int change = 0; change < 4; ++change) {
    PassCase other = c;
    if (change == 0) ++other.rng_offset;
    if (change == 1) ++other.stream;
    if (change == 2) ++other.first_token;
    if (change == 3) other.numbers = TokenNumbers::kColumns;
    in.reference.projection_keep = run_cpu(other, make_pass_inputs(other)).projection_keep;
    EXPECT_NE(compare_pass(c, out, in.reference, pass_reference(in.reference)), "") << change;
  }
}

// More groups of lines than slabs, so that each sums several.
TEST(CpuPass, ManyLines) {
  PassCase c = float_case(5);
  c.outer[0] = 9;
  c.outer[1] = 67;
  c.outer[2] = 2;
  c.dim = 24;
  c.heads = 2;
  c.bias = true;
  c.x = c.y = c.dx = c.dy = TokenLayout::kColumns;
  EXPECT_EQ(check_cpu(c), "");
}

// Lines fill no vector, one and a bit more.
TEST(CpuPass, LineCounts) {
  for (const std::int64_t lines : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33}) {
    PassCase c = float_case(6);
    c.outer[0] = lines;
    c.outer[1] = 1;
    c.sample_scale = true;
    EXPECT_EQ(check_cpu(c), "");
  }
}

TEST(CpuPass, Case06_OneToken) {
  for (const bool bias : {false, true}) {
    PassCase c = float_case(1);
    c.qkv_bias = c.bias = bias;
    EXPECT_EQ(check_cpu(c), "");
    const PassInputs in = make_pass_inputs(c);
    const PassOutputs out = run_cpu(c, in);
    // A softmax over one key is constant: what rounding leaves would be no gradient.
    for (const double value : out.gradients.bias) EXPECT_EQ(value, 0);
    for (std::int64_t i = 0; i < 2 * c.dim * c.dim; ++i) ASSERT_EQ(out.gradients.qkv_weight[i], 0) << i;
  }
}

TEST(CpuPass, EveryLengthUpTo20) {
  for (std::int64_t length = 1; length <= 20; ++length) {
    PassCase c = float_case(length);
    c.causal = length % 2 == 0;
    c.bias = length % 3 == 0;
    c.dropout = length % 5 == 0 ? 0.3 : 0;
    EXPECT_EQ(check_cpu(c), "");
  }
}

TEST(CpuPass, Case04_StridedAndMisalignedTokens) {
  for (const TokenLayout layout : {TokenLayout::kColumns, TokenLayout::kPaddedRows, TokenLayout::kPaddedColumns,
                                   TokenLayout::kSliced, TokenLayout::kReversed, TokenLayout::kExpanded}) {
    for (const DType dtype : kAllTypes) {
      PassCase c = float_case(11);
      c.dtype = dtype;
      c.outer[2] = 2;
      c.dim = 21;  // no multiple of anything
      c.heads = 3;
      c.token_shift = 3;
      c.shift = 1;
      c.dy = layout;
      if (layout != TokenLayout::kExpanded) c.x = c.y = c.dx = layout;
      EXPECT_EQ(check_cpu(c), "");
    }
  }
}

TEST(CpuPass, Case05_EmptyProblems) {
  for (int empty = 0; empty < 4; ++empty) {
    PassCase c = float_case(16);
    c.qkv_bias = c.bias = true;
    if (empty < 3) c.outer[empty] = 0;
    if (empty == 3) c.length = 0;
    const PassOutputs out = run_cpu(c, make_pass_inputs(c));
    ASSERT_TRUE(out.status.ok()) << out.status.message << " [" << c.describe() << "]";
    EXPECT_EQ(out.sentinels, "");
    for (const PassParameter& p : kPassParameters) {
      for (const double value : out.gradients.*p.values) ASSERT_EQ(value, 0) << p.name << " [" << c.describe() << "]";
    }
  }
}

TEST(CpuPass, GradientInPlace) {
  PassCase c = float_case(7);
  const PassInputs in = make_pass_inputs(c);
  const PassOutputs apart = run_cpu(c, in);
  CpuPass pass(c, in);
  // dx is the memory of a copy of dy.
  std::memcpy(pass.dx.data, pass.dy.data, static_cast<std::size_t>(3 * 7 * 7 * c.dim) * sizeof(float));
  pass.dy.data = pass.dx.data;
  ASSERT_TRUE(pass.backward().ok());
  EXPECT_EQ(pass.fetch().dx, apart.dx);
}

// dx alone: no gradient is touched, and dx is the same.
TEST(CpuPass, UnwantedGradientsAreNotTouched) {
  PassCase c = float_case(28);
  const PassInputs in = make_pass_inputs(c);
  CpuPass pass(c, in);
  pass.gradients = {};
  ASSERT_TRUE(pass.backward().ok());
  const PassOutputs out = pass.fetch();
  EXPECT_TRUE(out.dx == run_cpu(c, in).dx);
  for (const double value : out.gradients.qkv_weight) ASSERT_TRUE(std::isnan(value));
}

TEST(CpuPass, WorkspaceOfAnyAlignment) {
  PassCase c = float_case(10);
  c.bias = c.rotary = true;
  c.dropout = c.projection = 0.1;
  const PassInputs in = make_pass_inputs(c);
  const PassOutputs first = run_cpu(c, in);
  for (std::size_t shift = 1; shift < 70; shift += 7) EXPECT_TRUE(first.bytes == run_cpu(c, in, 1, shift).bytes);
}

// Logits of hundreds and of 2e5: nothing overflows.
TEST(CpuPass, LargeLogitsStayFinite) {
  for (const double gain : {8.0, 250.0}) {
    PassCase c = float_case(17);
    c.score_gain = gain;
    const PassOutputs out = run_cpu(c, make_pass_inputs(c));
    ASSERT_TRUE(out.status.ok()) << out.status.message;
    for (const std::vector<double>* values : {&out.y, &out.dx}) {
      EXPECT_TRUE(std::all_of(values->begin(), values->end(), [](double v) { return std::isfinite(v); }));
    }
  }
}

TEST(CpuPass, WhatIsRefusedNamesTheReason) {
  using Change = std::function<void(CpuPass&)>;
  const auto refused = [](Code code, const std::vector<std::string>& words, const Change& change) {
    PassCase c = float_case(16);
    c.dropout = 0.25;
    c.qkv_bias = true;
    const PassInputs in = make_pass_inputs(c);
    CpuPass pass(c, in);
    change(pass);
    for (const Status& status : {pass.forward(), pass.backward()}) {
      EXPECT_EQ(static_cast<int>(status.code), static_cast<int>(code)) << status.message;
      for (const std::string& word : words) {
        EXPECT_NE(std::strstr(status.message, word.c_str()), nullptr) << word << ": " << status.message;
      }
    }
    if (code != Code::kUnsupported) return;
    KernelChoice choice;
    EXPECT_EQ(static_cast<int>(cpu::choose_pass(pass.problem, &choice).code), static_cast<int>(code));
    EXPECT_EQ(choice.forward[0], 0);
  };
  refused(Code::kUnsupported, {"129", "D = 64", "4 heads", "float32"},
          [](CpuPass& p) { p.problem.lines.length = 129; });
  // Vectors of 16 lanes need 36 MiB, those of 8 half of it.
  if (hwy::SupportedTargets() & (HWY_AVX2 | HWY_AVX3)) {
    refused(Code::kUnsupported, {"MiB"}, [](CpuPass& p) {
      p.problem.dim = 512;
      p.problem.lines.length = 128;
    });
  }
  refused(Code::kUnsupported, {"D = 516"}, [](CpuPass& p) { p.problem.dim = 516; });
  refused(Code::kUnsupported, {"5 heads"}, [](CpuPass& p) { p.problem.heads = 5; });
  refused(Code::kUnsupported, {"0 heads"}, [](CpuPass& p) { p.problem.heads = 0; });
  // With the weights of another type.
  refused(Code::kInvalid, {"float64", "4-byte"}, [](CpuPass& p) { p.problem.dtype = DType::kFloat64; });
  refused(Code::kInvalid, {"float32 residual", "float32"}, [](CpuPass& p) { p.problem.float32_residual = true; });
  refused(Code::kUnsupported, {"float32 residual"}, [](CpuPass& p) {
    p.problem.dtype = DType::kBFloat16;
    p.problem.float32_residual = true;
  });
  refused(Code::kInvalid, {"extent", "-1"}, [](CpuPass& p) { p.problem.lines.outer[1] = -1; });
  refused(Code::kInvalid, {"length", "-3"}, [](CpuPass& p) { p.problem.lines.length = -3; });
  refused(Code::kInvalid, {"eps"}, [](CpuPass& p) { p.problem.eps = -1; });
  refused(Code::kInvalid, {"dropout", "1.5"}, [](CpuPass& p) { p.problem.dropout.p = 1.5; });
  refused(Code::kInvalid, {"rng"}, [](CpuPass& p) { p.problem.dropout.rng = nullptr; });
  refused(Code::kInvalid, {"projection dropout", "rng"}, [](CpuPass& p) { p.problem.projection.p = 0.1; });
  refused(Code::kInvalid, {"projection dropout", "1.5"}, [](CpuPass& p) { p.problem.projection.p = 1.5; });
  refused(Code::kInvalid, {"rotary", "pairs", "1"}, [](CpuPass& p) {
    p.problem.heads = p.problem.dim;
    p.problem.rotary = p.problem.x.data;
  });
  refused(Code::kInvalid, {"norm_bias"}, [](CpuPass& p) { p.problem.weights.norm_bias = nullptr; });
  refused(Code::kInvalid, {"x is null"}, [](CpuPass& p) { p.problem.x.data = nullptr; });
  refused(Code::kInvalid, {"is null"}, [](CpuPass& p) { p.y.data = p.dx.data = nullptr; });

  PassCase c = float_case(16);
  const PassInputs in = make_pass_inputs(c);
  CpuPass pass(c, in);
  const std::size_t bytes = cpu::pass_forward_workspace(pass.problem);
  Bytes memory(bytes);
  EXPECT_EQ(cpu::pass_forward(pass.problem, pass.y, memory.data(), bytes - 1).code, Code::kInvalid);
  EXPECT_EQ(cpu::pass_forward(pass.problem, pass.y, nullptr, 0).code, Code::kInvalid);
  pass.gradients.out_bias = nullptr;
  EXPECT_EQ(pass.backward().code, Code::kInvalid);
}

}  // namespace
}  // namespace axial::kernels::testing
