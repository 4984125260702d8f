// What belongs to neither device: types, the rounded dropout probability, and that contradictory problems are
// refused, by both devices and with the same words.
#include <cmath>
#include <cstring>
#include <functional>

#include "kernels/validate.h"
#include "tests/kernels/backend_test.h"

namespace axial::kernels::testing {
namespace {

TEST(Kernels, Types) {
  EXPECT_STREQ(name(DType::kFloat64), "float64");
  EXPECT_STREQ(name(DType::kFloat32), "float32");
  EXPECT_STREQ(name(DType::kBFloat16), "bfloat16");
  EXPECT_STREQ(name(DType::kFloat16), "float16");
  EXPECT_EQ(element_size(DType::kFloat64), 8u);
  EXPECT_EQ(element_size(DType::kFloat32), 4u);
  EXPECT_EQ(element_size(DType::kBFloat16), 2u);
  EXPECT_EQ(element_size(DType::kFloat16), 2u);
  EXPECT_EQ(accumulator_size(DType::kFloat64), 8u);
  EXPECT_EQ(accumulator_size(DType::kFloat16), 4u);
}

TEST(Kernels, DropoutRate) {
  EXPECT_EQ(dropout_rate(0).threshold, 0u);
  EXPECT_EQ(dropout_rate(0).scale, 1);
  EXPECT_EQ(dropout_rate(1e-9).threshold, 1u);
  EXPECT_EQ(dropout_rate(0.1).threshold, 26u);  // 25.6
  EXPECT_EQ(dropout_rate(0.5).threshold, 128u);
  EXPECT_EQ(dropout_rate(0.5).scale, 2);
  EXPECT_EQ(dropout_rate(0.999).threshold, 255u);
  EXPECT_TRUE(std::isfinite(dropout_rate(0.99999).scale));
}

TEST(Kernels, FailureFormatsAndCuts) {
  const Status status = failure(Code::kUnsupported, "length %d", 7);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code, Code::kUnsupported);
  EXPECT_STREQ(status.message, "length 7");
  const Status cut = failure(Code::kInvalid, "%s", std::string(1000, 'x').c_str());
  EXPECT_EQ(std::strlen(cut.message), sizeof(cut.message) - 1);
}

// A valid problem of one line of 4 tokens, with pointers that must never be followed.
struct Calls {
  AttentionProblem problem;
  AttentionOutput output;
  AttentionGradients gradients;

  Calls() {
    static double memory[1024];
    void* p = memory;
    problem.lines.length = 4;
    problem.heads = 1;
    problem.head_dim = 8;
    problem.q.data = problem.k.data = problem.v.data = p;
    output.o.data = p;
    gradients.o.data = gradients.d_o.data = p;
    gradients.row_max = gradients.row_sum = p;
  }
};

class Statuses : public BackendTest {
 protected:
  Status forward(const Calls& calls) {
    return GetParam() == Device::kCpu ? cpu::attention_forward(calls.problem, calls.output)
                                      : cuda::attention_forward(calls.problem, calls.output, nullptr);
  }
  Status backward(const Calls& calls) {
    return GetParam() == Device::kCpu ? cpu::attention_backward(calls.problem, calls.gradients, nullptr, 0)
                                      : cuda::attention_backward(calls.problem, calls.gradients, nullptr, 0, nullptr);
  }
  // Both refuse what `change` makes of a valid problem, and say `word`.
  void expect_invalid(const char* word, const std::function<void(Calls&)>& change) {
    Calls calls;
    change(calls);
    for (const Status& status : {forward(calls), backward(calls)}) {
      EXPECT_EQ(status.code, Code::kInvalid) << word;
      EXPECT_NE(std::strstr(status.message, word), nullptr) << status.message << " should say " << word;
    }
  }
};

AXIAL_ON_EVERY_BACKEND(Statuses);

TEST_P(Statuses, ContradictoryProblems) {
  expect_invalid("head_dim", [](Calls& c) { c.problem.head_dim = 0; });
  expect_invalid("head_dim", [](Calls& c) { c.problem.head_dim = 257; });
  expect_invalid("outer extent 1", [](Calls& c) { c.problem.lines.outer[1] = -1; });
  expect_invalid("length", [](Calls& c) { c.problem.lines.length = -2; });
  expect_invalid("heads", [](Calls& c) { c.problem.heads = -1; });
  expect_invalid("overflow", [](Calls& c) { c.problem.lines.outer[0] = c.problem.lines.outer[1] = 1ll << 40; });
  expect_invalid("dtype", [](Calls& c) { c.problem.dtype = static_cast<DType>(9); });
  expect_invalid("dropout", [](Calls& c) { c.problem.dropout.p = 1; });
  expect_invalid("dropout", [](Calls& c) { c.problem.dropout.p = -0.1; });
  expect_invalid("dropout", [](Calls& c) { c.problem.dropout.p = std::nan(""); });
  expect_invalid("rng", [](Calls& c) { c.problem.dropout.p = 0.5; });
  expect_invalid("scale", [](Calls& c) { c.problem.scale = INFINITY; });
  expect_invalid("q is null", [](Calls& c) { c.problem.q.data = nullptr; });
  expect_invalid("k is null", [](Calls& c) { c.problem.k.data = nullptr; });
  expect_invalid("v is null", [](Calls& c) { c.problem.v.data = nullptr; });
  expect_invalid("o is null", [](Calls& c) { c.output.o.data = nullptr, c.gradients.o.data = nullptr; });
}

TEST_P(Statuses, MissingStatisticsAndGradients) {
  Calls half;
  half.output.row_max = half.output.o.data;
  EXPECT_EQ(forward(half).code, Code::kInvalid);
  Calls no_gradient;
  no_gradient.gradients.d_o.data = nullptr;
  EXPECT_NE(std::strstr(backward(no_gradient).message, "d_o"), nullptr);
  Calls no_statistics;
  no_statistics.gradients.row_sum = nullptr;
  EXPECT_NE(std::strstr(backward(no_statistics).message, "row_sum"), nullptr);
  Calls no_bias;
  no_bias.gradients.d_bias = no_bias.output.o.data;
  EXPECT_NE(std::strstr(backward(no_bias).message, "d_bias"), nullptr);
}

TEST_P(Statuses, TooLongALineIsUnsupported) {
  Calls calls;
  calls.problem.lines.length = kMaxLength + 1;
  EXPECT_EQ(forward(calls).code, Code::kUnsupported);
  EXPECT_EQ(backward(calls).code, Code::kUnsupported);
}

TEST_P(Statuses, EmptyProblemsNeedNoPointers) {
  AttentionProblem problem;
  problem.head_dim = 8;
  problem.heads = 2;
  problem.lines.length = 4;
  problem.lines.outer[0] = 0;
  Calls calls;
  calls.problem = problem;
  calls.output = {};
  calls.gradients = {};
  EXPECT_TRUE(forward(calls).ok()) << forward(calls).message;
  EXPECT_TRUE(backward(calls).ok()) << backward(calls).message;
}

TEST(Kernels, ABuildWithoutCudaSaysSo) {
  if (cuda::built()) GTEST_SKIP() << "built with CUDA";
  Calls calls;
  EXPECT_STREQ(cuda::architectures(), "");
  EXPECT_EQ(cuda::usable().code, Code::kUnsupported);
  EXPECT_EQ(cuda::attention_forward(calls.problem, calls.output, nullptr).code, Code::kUnsupported);
  EXPECT_EQ(cuda::attention_backward(calls.problem, calls.gradients, nullptr, 0, nullptr).code, Code::kUnsupported);
}

// What `axial info` prints.
TEST(Kernels, ChoiceIsNamed) {
  Calls calls;
  KernelChoice choice;
  ASSERT_TRUE(cpu::choose(calls.problem, &choice).ok());
  EXPECT_EQ(std::string(choice.forward).substr(0, 4), "cpu ");
  EXPECT_NE(std::string(choice.forward).find("one tile"), std::string::npos);
  EXPECT_EQ(std::string(choice.backward).substr(0, 4), "cpu ");
  calls.problem.lines.length = 1000;
  ASSERT_TRUE(cpu::choose(calls.problem, &choice).ok());
  EXPECT_NE(std::string(choice.forward).find("online"), std::string::npos);
  EXPECT_EQ(cpu::choose(calls.problem, nullptr).code, Code::kInvalid);
}

}  // namespace
}  // namespace axial::kernels::testing
