// What only the CPU core promises: results that do not depend on threads, every instruction set that it is compiled
// for, any workspace alignment, exact 16-bit rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "kernels/cpu/convert.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/instruction_set.h"

namespace axial::kernels::testing {
namespace {

TEST(Cpu, ResultsDoNotDependOnThreads) {
  for (const std::int64_t length : {7, 64, 150}) {
    for (const DType dtype : kTypes) {
      Case c;
      c.outer[0] = 3;
      c.outer[1] = 23;  // more lines than slabs of d_bias
      c.length = length;
      c.heads = 3;
      c.head_dim = 20;
      c.dtype = dtype;
      c.bias = true;
      c.dropout = 0.25;
      const Inputs in = make_inputs(c);
      const Outputs one = run(c, in, {Device::kCpu, 1});
      ASSERT_TRUE(one.status.ok()) << one.status.message;
      for (const int threads : {2, 3, 64}) {
        const Outputs other = run(c, in, {Device::kCpu, threads});
        ASSERT_TRUE(other.status.ok()) << other.status.message;
        EXPECT_TRUE(one.bytes == other.bytes) << threads << " threads, " << c.describe();
      }
    }
  }
}

TEST(Cpu, EveryInstructionSet) {
  std::set<std::string> names;
  for_instruction_sets([&] {
    KernelChoice choice;
    AttentionProblem problem;
    problem.head_dim = 1;
    ASSERT_TRUE(cpu::choose(problem, &choice).ok());
    names.insert(choice.forward);
    for (std::uint64_t seed = 200; seed < 225; ++seed) {
      EXPECT_EQ(check(random_case(seed), {Device::kCpu, 1}), "") << choice.forward;
    }
  });
  RecordProperty("instruction_sets", static_cast<int>(names.size()));
  EXPECT_GE(names.size(), 1u);
}

TEST(Cpu, TF32IsIgnored) {
  Case c;
  c.length = 20;
  const Outputs strict = run(c, make_inputs(c), {});
  c.math = Math::kTF32;
  EXPECT_TRUE(strict.bytes == run(c, make_inputs(c), {}).bytes);
}

// The problem of a run, written out: two lines too long for one tile, with every gradient.
struct Plain {
  std::vector<float> qkv = std::vector<float>(2 * 100 * 3 * 8), o = std::vector<float>(2 * 100 * 8), bias, d_bias;
  std::vector<float> row_max = std::vector<float>(200), row_sum = std::vector<float>(200), gradients = qkv;
  AttentionProblem problem;
  AttentionOutput output;
  AttentionGradients wanted;

  Plain() : bias(199), d_bias(199) {
    for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] = std::sin(static_cast<float>(i));
    problem.lines.outer[0] = 2;
    problem.lines.length = 100;
    problem.heads = 1;
    problem.head_dim = 8;
    problem.bias = bias.data();
    const auto place = [](auto& view, auto* data, std::int64_t width) {
      view.data = data;
      view.outer_stride[0] = 100 * width;
      view.token_stride = width;
    };
    place(problem.q, qkv.data(), 24);
    place(problem.k, qkv.data() + 8, 24);
    place(problem.v, qkv.data() + 16, 24);
    place(output.o, o.data(), 8);
    output.row_max = row_max.data();
    output.row_sum = row_sum.data();
    place(wanted.o, o.data(), 8);
    place(wanted.d_o, qkv.data() + 8, 24);
    wanted.row_max = row_max.data();
    wanted.row_sum = row_sum.data();
    place(wanted.dq, gradients.data(), 24);
    place(wanted.dk, gradients.data() + 8, 24);
    place(wanted.dv, gradients.data() + 16, 24);
    wanted.d_bias = d_bias.data();
  }
};

TEST(Cpu, WorkspaceOfAnyAlignment) {
  Plain plain;
  ASSERT_TRUE(cpu::attention_forward(plain.problem, plain.output).ok());
  const std::size_t bytes = cpu::attention_backward_workspace(plain.problem, plain.wanted);
  ASSERT_GT(bytes, 0u);
  std::vector<float> first;
  for (std::size_t shift = 0; shift < 70; shift += 3) {
    std::vector<std::uint8_t> memory(bytes + shift, 0xFF);  // exact: the sanitizers see a byte too many
    ASSERT_TRUE(cpu::attention_backward(plain.problem, plain.wanted, memory.data() + shift, bytes).ok());
    if (first.empty()) first = plain.gradients;
    EXPECT_EQ(first, plain.gradients);
  }
}

TEST(Cpu, WorkspaceTooSmallIsRefused) {
  Plain plain;
  ASSERT_TRUE(cpu::attention_forward(plain.problem, plain.output).ok());
  const std::size_t bytes = cpu::attention_backward_workspace(plain.problem, plain.wanted);
  std::vector<std::uint8_t> memory(bytes);
  EXPECT_EQ(cpu::attention_backward(plain.problem, plain.wanted, memory.data(), bytes - 1).code, Code::kInvalid);
  EXPECT_EQ(cpu::attention_backward(plain.problem, plain.wanted, nullptr, 0).code, Code::kInvalid);
}

TEST(Cpu, ShortLinesNeedNoWorkspace) {
  Plain plain;
  plain.problem.lines.length = 32;
  plain.problem.bias = nullptr;
  plain.wanted.d_bias = nullptr;
  EXPECT_EQ(cpu::attention_backward_workspace(plain.problem, plain.wanted), 0u);
  ASSERT_TRUE(cpu::attention_forward(plain.problem, plain.output).ok());
  EXPECT_TRUE(cpu::attention_backward(plain.problem, plain.wanted, nullptr, 0).ok());
}

// Logits near 3e5 that float32 holds exactly, one apart: the softmax is that of their differences. (A maximum or a
// log-sum-exp rounded to float32 would be off by up to 0.03 here.)
TEST(Cpu, LargeLogitsKeepTheirDifferences) {
  for (const std::int64_t length : {5, 100}) {
    Case c;
    c.length = length;
    c.head_dim = 2;
    c.scale = 1;
    Inputs in = make_inputs(c);
    std::vector<double> q(in.reference.q.size()), k(q.size());
    for (std::size_t i = 0; i < q.size(); i += 2) {
      q[i] = i % 4 == 0 ? 600 : -600;
      k[i] = 500;
      q[i + 1] = 1;
      k[i + 1] = static_cast<double>(i / 2 % 7);
    }
    set_values(c, in.q, q, in.reference.q);
    set_values(c, in.k, k, in.reference.k);
    const Outputs out = run(c, in, {});
    ASSERT_TRUE(out.status.ok()) << out.status.message;
    const ReferenceOutput expected = reference(in.reference);
    const Tolerance allowed = tolerance(c.dtype, c.math, Device::kCpu, Quantity::kGradient);
    // Without multiply-add in hardware the products round.
    std::string problems = compare("o", out.o, expected.o, allowed);
    // Not dq: its sum of dS times keys of 500 cancels exactly, so any rounding of dS shows.
    problems += compare("dk", out.dk, expected.dk, allowed) + compare("dv", out.dv, expected.dv, allowed);
    KernelChoice choice;
    AttentionProblem any;
    any.head_dim = 1;
    ASSERT_TRUE(cpu::choose(any, &choice).ok());
    if (std::strstr(choice.forward, "AVX") == nullptr) GTEST_SKIP() << choice.forward;
    EXPECT_EQ(problems, "") << length;
  }
}

// With equal scores of two keys o = (v0 + v1) / 2 exactly, in float32: what is stored is its nearest 16-bit
// neighbour, for every first value and a spread of second ones; one key alone stores v itself.
TEST(Cpu, StoresRoundToNearestEven) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const bool bfloat = dtype == DType::kBFloat16;
    const auto widen = [&](std::uint16_t bits) { return bfloat ? bfloat16_to_float(bits) : float16_to_float(bits); };
    for (const std::int64_t length : {1, 2}) {
      std::vector<std::uint16_t> zero(2 * 65536), v(zero.size()), o(zero.size());
      for (std::size_t i = 0; i < 65536; ++i) {
        v[i] = static_cast<std::uint16_t>(i);
        v[65536 + i] = static_cast<std::uint16_t>(i ^ (i * 40503 >> 9 & 0x3ff));
      }
      AttentionProblem problem;
      problem.lines.outer[0] = 256;
      problem.lines.length = length;
      problem.heads = 1;
      problem.head_dim = 256;
      problem.dtype = dtype;
      const auto place = [](auto& view, auto* data) {
        view.data = data;
        view.outer_stride[0] = 256;
        view.token_stride = 65536;
      };
      place(problem.q, zero.data());
      place(problem.k, zero.data());
      place(problem.v, v.data());
      AttentionOutput output;
      place(output.o, o.data());
      ASSERT_TRUE(cpu::attention_forward(problem, output).ok());
      for (std::size_t i = 0; i < 65536; ++i) {
        const float a = widen(v[i]), b = widen(v[65536 + i]);
        const float exact = length == 1 ? a : (a + b) * 0.5f;
        const std::uint16_t expected = bfloat ? float_to_bfloat16(exact) : float_to_float16(exact);
        if (exact == 0) {
          ASSERT_EQ(widen(o[i]), 0.0f) << i;  // a sum that starts at +0 loses the sign
        } else if (std::isnan(exact)) {
          ASSERT_TRUE(std::isnan(widen(o[i]))) << i;
        } else {
          ASSERT_EQ(o[i], expected) << name(dtype) << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace axial::kernels::testing
