// What fused passes refuse: the right code, and a message that names the shape or the argument.
#include <cmath>
#include <cstring>
#include <functional>

#include "tests/kernels/pass_harness.h"

namespace axial::kernels::testing {
namespace {

// A problem that runs, with every buffer; each test spoils it. (Should a check be missing, what is launched still
// finds real memory wherever the spoilt value allows it.)
class PassStatus : public PassTest {
 protected:
  using Change = std::function<void(PassRun&)>;

  PassStatus() {
    case_.dropout = 0.25;
    case_.qkv_bias = true;
    inputs_ = make_pass_inputs(case_);
  }

  static void expect(const Status& status, Code code, const std::vector<std::string>& words, const char* what) {
    EXPECT_EQ(static_cast<int>(status.code), static_cast<int>(code)) << what << ": " << status.message;
    for (const std::string& word : words) {
      EXPECT_NE(std::strstr(status.message, word.c_str()), nullptr)
          << what << " should say " << word << ": " << status.message;
    }
  }
  void forward_refuses(Code code, const std::vector<std::string>& words, const Change& change) {
    PassRun run(case_, inputs_);
    change(run);
    expect(run.forward(), code, words, "forward");
    EXPECT_TRUE(run.fetch().status.ok()) << "a refusal leaves no error pending";
  }
  void backward_refuses(Code code, const std::vector<std::string>& words, const Change& change) {
    PassRun run(case_, inputs_);
    change(run);
    expect(run.backward(), code, words, "backward");
    EXPECT_TRUE(run.fetch().status.ok()) << "a refusal leaves no error pending";
  }
  void both_refuse(Code code, const std::vector<std::string>& words, const Change& change) {
    forward_refuses(code, words, change);
    backward_refuses(code, words, change);
  }
  // choose_pass, the weights, forward and backward say the same, and name the shape.
  void all_lack(const std::vector<std::string>& words, const Change& change) {
    both_refuse(Code::kUnsupported, words, change);
    PassRun run(case_, inputs_);
    change(run);
    expect(run.pack(), Code::kUnsupported, words, "pack");
    KernelChoice choice;
    expect(cuda::choose_pass(run.problem, &choice), Code::kUnsupported, words, "choose");
    EXPECT_EQ(choice.forward[0], 0);
    EXPECT_EQ(choice.backward[0], 0);
  }

  PassCase case_;
  PassInputs inputs_;
};

TEST_F(PassStatus, UnsupportedProblemsNameTheirShape) {
  all_lack({"129", "D = 64", "4 heads", "bfloat16"}, [](PassRun& r) { r.problem.lines.length = 129; });
  all_lack({"D = 84", "4 heads"}, [](PassRun& r) { r.problem.dim = 84; });  // not in eights
  all_lack({"D = 120", "5 heads"}, [](PassRun& r) { r.problem.dim = 120, r.problem.heads = 5; });
  all_lack({"D = 256"}, [](PassRun& r) { r.problem.dim = 256; });
  all_lack({"D = 64", "5 heads"}, [](PassRun& r) { r.problem.heads = 5; });
  all_lack({"0 heads"}, [](PassRun& r) { r.problem.heads = 0; });
  all_lack({"float32", "128"}, [](PassRun& r) {
    r.problem.dtype = DType::kFloat32;
    r.problem.dim = 128;
  });
  all_lack({"portable"}, [](PassRun& r) { r.problem.portable = r.problem.float32_residual = true; });
  all_lack({"portable", "128"}, [](PassRun& r) {
    r.problem.portable = true;
    r.problem.dim = 128;
  });
  all_lack({"float64"}, [](PassRun& r) { r.problem.dtype = DType::kFloat64; });
  all_lack({"2^30"}, [](PassRun& r) { r.problem.lines.outer[0] = r.problem.lines.outer[1] = std::int64_t{1} << 16; });
}

// (outside the range of the type that a kernel counts in)
TEST_F(PassStatus, ExtentsPast32BitsAreUnsupported) {
  all_lack({"4294967312"}, [](PassRun& r) { r.problem.lines.length = (std::int64_t{1} << 32) + 16; });
  all_lack({"D = 4294967360"}, [](PassRun& r) { r.problem.dim = (std::int64_t{1} << 32) + 64; });
}

TEST_F(PassStatus, WhatHasNoBackwardSaysSo) {
  PassCase c = case_;
  c.portable = true;
  c.length = 64;
  const PassInputs in = make_pass_inputs(c);
  PassRun run(c, in);
  ASSERT_TRUE(run.chosen.ok()) << run.chosen.message;
  ASSERT_FALSE(run.backward_chosen());
  const Status status = run.backward();
  EXPECT_EQ(status.code, Code::kUnsupported);
  EXPECT_NE(std::strstr(status.message, "lines of 64"), nullptr) << status.message;
}

// A query of any problem comes back.
TEST_F(PassStatus, WorkspaceOfAnUnsupportedProblem) {
  for (const std::int64_t length : {128, 129, 1000}) {
    PassProblem problem;
    problem.lines.length = length;
    problem.dim = 96;
    problem.heads = 5;
    EXPECT_LT(cuda::pass_backward_workspace(problem), std::size_t{1} << 32);
    EXPECT_EQ(cuda::packed_bytes(problem), 0u);
  }
}

TEST_F(PassStatus, AChoiceIsOverwritten) {
  PassRun run(case_, inputs_);
  KernelChoice choice;
  ASSERT_TRUE(cuda::choose_pass(run.problem, &choice).ok());
  ASSERT_NE(choice.backward[0], 0);
  run.problem.lines.length = 64;
  run.problem.portable = true;
  ASSERT_TRUE(cuda::choose_pass(run.problem, &choice).ok());
  EXPECT_NE(choice.forward[0], 0);
  EXPECT_STREQ(choice.backward, "");
}

TEST_F(PassStatus, NullWeights) {
  const Change changes[] = {
      [](PassRun& r) { r.problem.weights.norm_weight = nullptr; },
      [](PassRun& r) { r.problem.weights.norm_bias = nullptr; },
      [](PassRun& r) { r.problem.weights.qkv_weight = nullptr; },
      [](PassRun& r) { r.problem.weights.out_weight = nullptr; },
      [](PassRun& r) { r.problem.weights.out_bias = nullptr; },
      [](PassRun& r) { r.packed = nullptr; },
  };
  for (const Change& change : changes) {
    PassRun run(case_, inputs_);
    change(run);
    expect(run.pack(), Code::kInvalid, {"null", "weight"}, "pack");
  }
  both_refuse(Code::kInvalid, {"packed"}, [](PassRun& r) { r.packed = nullptr; });
}

TEST_F(PassStatus, MisalignedTokens) {
  const auto shifted = [](const auto* data) { return static_cast<const std::uint8_t*>(data) + 2; };
  const auto shifted_output = [](void* data) { return static_cast<std::uint8_t*>(data) + 2; };
  both_refuse(Code::kInvalid, {"x", "16"}, [&](PassRun& r) { r.problem.x.data = shifted(r.problem.x.data); });
  both_refuse(Code::kInvalid, {"x", "16"}, [](PassRun& r) { r.problem.x.token_stride += 4; });
  both_refuse(Code::kInvalid, {"x", "16"}, [](PassRun& r) { r.problem.x.outer_stride[1] -= 1; });
  forward_refuses(Code::kInvalid, {"y", "16"}, [&](PassRun& r) { r.y.data = shifted_output(r.y.data); });
  forward_refuses(Code::kInvalid, {"y", "16"}, [](PassRun& r) { r.y.outer_stride[0] += 2; });
  backward_refuses(Code::kInvalid, {"dy", "16"}, [&](PassRun& r) { r.dy.data = shifted(r.dy.data); });
  backward_refuses(Code::kInvalid, {"dy", "16"}, [](PassRun& r) { r.dy.token_stride += 1; });
  backward_refuses(Code::kInvalid, {"dx", "16"}, [&](PassRun& r) { r.dx.data = shifted_output(r.dx.data); });
  backward_refuses(Code::kInvalid, {"dx", "16"}, [](PassRun& r) { r.dx.outer_stride[1] += 4; });
  both_refuse(Code::kInvalid, {"packed", "16"}, [&](PassRun& r) { r.packed = shifted_output(r.packed); });
}

TEST_F(PassStatus, NullTokens) {
  both_refuse(Code::kInvalid, {"x", "null"}, [](PassRun& r) { r.problem.x.data = nullptr; });
  forward_refuses(Code::kInvalid, {"y", "null"}, [](PassRun& r) { r.y.data = nullptr; });
  backward_refuses(Code::kInvalid, {"dy", "null"}, [](PassRun& r) { r.dy.data = nullptr; });
  backward_refuses(Code::kInvalid, {"dx", "null"}, [](PassRun& r) { r.dx.data = nullptr; });
}

TEST_F(PassStatus, ContradictoryProblems) {
  both_refuse(Code::kInvalid, {"extent"}, [](PassRun& r) { r.problem.lines.outer[1] = -1; });
  both_refuse(Code::kInvalid, {"extent"},
              [](PassRun& r) { r.problem.lines.outer[0] = r.problem.lines.outer[1] = -2; });
  both_refuse(Code::kInvalid, {"length"}, [](PassRun& r) { r.problem.lines.length = -3; });
  both_refuse(Code::kInvalid, {"eps"}, [](PassRun& r) { r.problem.eps = -1; });
  both_refuse(Code::kInvalid, {"eps"}, [](PassRun& r) { r.problem.eps = std::nan(""); });
  both_refuse(Code::kInvalid, {"dropout"}, [](PassRun& r) { r.problem.dropout.p = 1; });
  both_refuse(Code::kInvalid, {"dropout"}, [](PassRun& r) { r.problem.dropout.p = -0.5; });
  both_refuse(Code::kInvalid, {"dropout"}, [](PassRun& r) { r.problem.dropout.p = std::nan(""); });
  both_refuse(Code::kInvalid, {"rng"}, [](PassRun& r) { r.problem.dropout.rng = nullptr; });
  both_refuse(Code::kInvalid, {"projection dropout", "1.5"}, [](PassRun& r) { r.problem.projection.p = 1.5; });
  both_refuse(Code::kInvalid, {"projection dropout", "rng"}, [](PassRun& r) { r.problem.projection.p = 0.1; });
  both_refuse(Code::kInvalid, {"rotary", "pairs", "1"}, [](PassRun& r) {
    r.problem.heads = r.problem.dim;
    r.problem.rotary = r.problem.x.data;
  });
}

TEST_F(PassStatus, Workspace) {
  backward_refuses(Code::kInvalid, {"workspace", "null"}, [](PassRun& r) { r.workspace = nullptr; });
  backward_refuses(Code::kInvalid, {"workspace", "bytes"}, [](PassRun& r) { --r.workspace_bytes; });
}

// "Where one is wanted none may be null."
TEST_F(PassStatus, GradientsAreAllOrNone) {
  backward_refuses(Code::kInvalid, {"gradient"}, [](PassRun& r) { r.gradients.norm_weight = nullptr; });
  if (HasFailure()) return;  // nothing looks: what follows would write through a null pointer
  const Change changes[] = {
      [](PassRun& r) { r.gradients.norm_bias = nullptr; },
      [](PassRun& r) { r.gradients.qkv_weight = nullptr; },
      [](PassRun& r) { r.gradients.out_weight = nullptr; },
      [](PassRun& r) { r.gradients.out_bias = nullptr; },
  };
  for (const Change& change : changes) backward_refuses(Code::kInvalid, {"gradient"}, change);
}

TEST_F(PassStatus, UnwantedGradientsAreNotTouched) {
  PassRun run(case_, inputs_);
  run.poison();
  run.gradients = {};
  ASSERT_TRUE(run.pack().ok());
  const Status status = run.backward();
  EXPECT_TRUE(status.ok()) << status.message;
  const PassOutputs out = run.fetch();
  ASSERT_TRUE(out.status.ok()) << out.status.message;
  const PassOutputs all = run_pass(case_, inputs_);
  EXPECT_TRUE(out.dx == all.dx);
  for (const double value : out.gradients.qkv_weight) ASSERT_TRUE(std::isnan(value)) << "not wanted, not touched";
}

}  // namespace
}  // namespace axial::kernels::testing
