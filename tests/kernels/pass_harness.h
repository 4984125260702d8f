// Runs one pass on the current CUDA device with every output inside a buffer of NaN, and holds it against the float64
// reference. Buffers are as in attention_harness.h: allocated exactly, each by its own cudaMalloc; outputs, packed
// weights and workspace NaN before the call, or as allocated with AXIAL_TEST_POISON=0.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/attention_harness.h"
#include "tests/kernels/device_buffers.h"
#include "tests/kernels/pass_case.h"

namespace axial::kernels::testing {

struct PassOutputs {
  bool chosen = false;                        // does choose_pass know a kernel?
  Status status;                              // of the first call that failed
  std::vector<double> y, dx;                  // dense [lines, L, D]; dx is empty without a backward
  PassParameters gradients;                   // as wide as the weights
  std::vector<std::uint8_t> keep;             // [lines, heads, L, L]; empty without dropout
  std::vector<std::uint8_t> projection_keep;  // [lines, L, D]; likewise
  std::string sentinels;                      // empty, or what was written where it should not be
  Bytes bytes;                                // all output buffers, for bit-exact comparison
};

// A problem on the current device. Everything is allocated at once, so that calls can be captured.
class PassRun {
 public:
  PassRun(const PassCase& c, const PassInputs& inputs);

  bool backward_chosen() const { return choice.backward[0] != 0; }
  Status pack(CUstream_st* stream = nullptr);
  Status forward(CUstream_st* stream = nullptr);
  Status backward(CUstream_st* stream = nullptr);
  // cuda::dropout_mask and cuda::feature_mask of the problem's own Dropouts; nothing without dropout.
  Status draw_masks(CUstream_st* stream = nullptr);
  // Outputs and masks are NaN again.
  void poison();
  PassOutputs fetch();

  Status chosen;  // what choose_pass said
  KernelChoice choice;
  PassProblem problem;
  Tokens y, dx;
  ConstTokens dy;
  PassGradients gradients;
  void* packed = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;

 private:
  std::vector<std::shared_ptr<Bytes>> outputs() const;

  const PassCase case_;
  const PassInputs& inputs_;
  DeviceBuffers device_{Device::kCuda};
  Operand y_, dx_;
  std::shared_ptr<Bytes> gradients_[kPassParameterCount], keep_, projection_keep_, packed_, workspace_;
  std::uint8_t *mask_ = nullptr, *projection_mask_ = nullptr;
};

// pack, forward, the backward where there is one, and the masks.
PassOutputs run_pass(const PassCase& c, const PassInputs& inputs);

// One line a difference, empty where all is well. `repeats`: how often the reference's lines occur in `out`; y and dx
// must repeat to the bit.
std::string compare_pass(const PassCase& c, const PassOutputs& out, const PassReferenceInput& input,
                         const PassReferenceOutput& expected, std::int64_t repeats = 1);

// make_pass_inputs, run_pass, pass_reference, compare_pass; statuses and sentinels too. Where choose_pass says that
// there is no kernel, `unsupported` gets its message if it is given.
std::string check_pass(const PassCase& c, std::string* unsupported = nullptr);
// The same for repeated_inputs.
std::string check_repeated_pass(const PassCase& c, const PassCase& base, std::string* unsupported = nullptr);

// The fixture of tests of what runs on any card.
class LinePassTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

// The fixture of tests that run Hopper's passes: they are skipped, with the reason, where there are none.
class PassTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

}  // namespace axial::kernels::testing
