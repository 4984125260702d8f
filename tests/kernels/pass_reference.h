// One axial pass (kernels/pass.h) in plain float64 loops, forward and hand-written backward: the definition that the
// fused kernels are held against. pass_reference_test holds it against finite differences.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/pass.h"

namespace axial::kernels::testing {

// The weights, or their gradients; shapes as in PassWeights. Empty: there is none.
struct PassParameters {
  std::vector<double> norm_weight, norm_bias, qkv_weight, qkv_bias, out_weight, out_bias, bias;
};

// The same array everywhere that it has a name.
struct PassParameter {
  const char* name;
  std::vector<double> PassParameters::*values;
  const float* PassWeights::*weight;
  float* PassGradients::*gradient;
};
inline constexpr PassParameter kPassParameters[] = {
    {"norm_weight", &PassParameters::norm_weight, &PassWeights::norm_weight, &PassGradients::norm_weight},
    {"norm_bias", &PassParameters::norm_bias, &PassWeights::norm_bias, &PassGradients::norm_bias},
    {"qkv_weight", &PassParameters::qkv_weight, &PassWeights::qkv_weight, &PassGradients::qkv_weight},
    {"qkv_bias", &PassParameters::qkv_bias, &PassWeights::qkv_bias, &PassGradients::qkv_bias},
    {"out_weight", &PassParameters::out_weight, &PassWeights::out_weight, &PassGradients::out_weight},
    {"out_bias", &PassParameters::out_bias, &PassWeights::out_bias, &PassGradients::out_bias},
    {"bias", &PassParameters::bias, &PassWeights::bias, &PassGradients::bias},
};
inline constexpr int kPassParameterCount = 7;

struct PassReferenceInput {
  Lines lines;
  std::int64_t dim = 0, heads = 0;
  double eps = 1e-5;
  bool causal = false;
  PassParameters weights;
  std::vector<double> sample_scale;  // [outer0]; empty: 1
  std::vector<std::uint8_t> keep;    // [lines, heads, L, L]; empty: no dropout
  double keep_scale = 1;             // 1 / (1 - p)
  std::vector<double> rotary;        // [L, d/2, 2] cosine and sine; empty: nothing turns
  // Of the branch's output, [lines, L, D], and its 1 / (1 - p); empty: no dropout.
  std::vector<std::uint8_t> projection_keep;
  double projection_scale = 1;
  // Where x, dy, y and dx lie, all alike: strides in elements of [outer0, outer1, outer2, token, channel], the
  // channels adjacent.
  std::int64_t outer_stride[kMaxOuter] = {0, 0, 0};
  std::int64_t token_stride = 0;
  std::vector<double> x, dy;  // empty dy: the forward alone

  void set_dense();  // strides of [lines, L, D]
};

struct PassReferenceOutput {
  std::vector<double> y, dx;  // as x
  PassParameters gradients;
  // Of each row of scores, [lines, heads, L]: the largest, and how far it is above the next (infinite for one key).
  std::vector<double> top, gap;
};

PassReferenceOutput pass_reference(const PassReferenceInput& input);

}  // namespace axial::kernels::testing
