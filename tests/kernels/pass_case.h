// One pass of a test: what it is, how its tokens lie in memory, and its data.
//
// Tokens are operands of attention_case.h with one head of D channels: the same layouts, and every byte that no view
// covers is a NaN. Arrays of float32 have exactly their size behind `shift` floats of NaN.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/pass.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/pass_reference.h"

namespace axial::kernels::testing {

// How [outer0, outer1, outer2, L, D] lies in memory, slowest extent first.
enum class TokenLayout {
  kRows,           // o0 o1 o2 L D
  kColumns,        // o0 L o1 o2 D        the same image, lines along the other axis
  kPaddedRows,     // o0 o1 o2 L 3 D      the first third of each token
  kPaddedColumns,  // o0 L o1 o2 3 D
  kSliced,         // o0 o1 o2 L 2 D      the second half of each concatenated pair
  kReversed,       // rows, tokens backwards: a negative stride
  kExpanded,       // one token, all strides 0; for dy only
};

// How the tokens are numbered for the dropout on the branch.
enum class TokenNumbers {
  kRows,     // o0 o1 o2 L
  kColumns,  // o0 L o1 o2
};

struct PassCase {
  std::int64_t outer[kMaxOuter] = {2, 3, 1};
  std::int64_t length = 16;
  std::int64_t dim = 64, heads = 4;
  DType dtype = DType::kBFloat16;
  bool float32_residual = false;  // of 16-bit types
  Math math = Math::kStrict;
  bool portable = false;
  bool causal = false, qkv_bias = false, bias = false, sample_scale = false;
  bool rotary = false;  // by angles without any pattern
  double dropout = 0;
  double projection = 0;  // dropout on the branch
  std::uint64_t rng_seed = 0x1234, rng_offset = 5, stream = 3;
  std::int64_t first_line = 0;
  TokenNumbers numbers = TokenNumbers::kRows;
  std::int64_t first_token = 0;
  // x is x_offset + x_gain times a normal number, eps is 1e-5 x_gain^2: LayerNorm does not notice the gain, but with
  // a small one the residual vanishes beside the branch.
  double x_offset = 0, x_gain = 1;
  double dy_gain = 1;
  double score_gain = 1;  // of Q and K; the scores have about its square
  double out_gain = 1.5;  // of the output projection
  TokenLayout x = TokenLayout::kRows, y = TokenLayout::kRows, dy = TokenLayout::kRows, dx = TokenLayout::kRows;
  std::int64_t shift = 0;        // floats before each array of weights and gradients
  std::int64_t token_shift = 0;  // elements by which x, y, dy and dx are misaligned; on the CPU
  std::uint64_t seed = 1;        // of the data

  std::string describe() const;
  Lines lines() const;
  double eps() const { return 1e-5 * x_gain * x_gain; }
  DType stored() const { return float32_residual ? DType::kFloat32 : dtype; }  // of x, y, dy and dx
  Case tokens() const;  // x, y, dy or dx as a tensor of attention_case.h
  std::int64_t token_count() const { return lines().count() * length; }
  // Both dropouts; rng: the random state, where it is wanted.
  void set_dropouts(PassProblem* problem, const std::uint64_t* rng) const;
  // keep[number - first_token, D], as features.h draws it, in the order of the reference.
  std::vector<std::uint8_t> by_line(const Bytes& keep) const;
};

// D and heads for which there are kernels.
struct PassWidth {
  std::int64_t dim, heads;
};
inline constexpr PassWidth kPassWidths[] = {{32, 2}, {32, 1}, {48, 3}, {48, 2}, {48, 1},  {64, 4},  {64, 2}, {64, 1},
                                            {96, 6}, {96, 4}, {96, 3}, {96, 2}, {128, 8}, {128, 4}, {128, 2},
                                            // Padded in both directions; those of 32, 48 and 96 in the backward.
                                            {8, 1}, {24, 2}, {40, 5}, {56, 4}, {64, 8}, {72, 3}, {80, 5}, {88, 4},
                                            {104, 2}, {112, 7}};

// Inputs of a case as the kernels get them, and the same numbers for the reference, which lacks the dropout masks.
struct PassInputs {
  Operand x, dy;
  std::shared_ptr<Bytes> parameters[kPassParameterCount], sample_scale, rotary, rng;
  PassReferenceInput reference;
};

PassInputs make_pass_inputs(const PassCase& c);
Operand make_tokens(const PassCase& c, TokenLayout layout);
// An array of float32 behind c.shift floats.
std::shared_ptr<Bytes> float_array(const PassCase& c, const std::vector<double>& values);
// Bytes before the rotary table in its buffer, which starts at a pair.
std::size_t rotary_offset(const PassCase& c);

// The lines of `base` over and over: `c` is `base` with more lines, without dropout; with a sample scale it has more
// samples. The reference stays that of `base`.
PassInputs repeated_inputs(const PassCase& c, const PassCase& base);

// Those of the kernels that work on a few lines at a time.
inline constexpr PassWidth kLineWidths[] = {{32, 2}, {48, 3}, {64, 4}, {64, 2}};

// A random problem over all options at once; fixed by its seed. The second: for the kernels that work on a few lines
// at a time, in all their types.
PassCase random_pass_case(std::uint64_t seed);
PassCase random_line_case(std::uint64_t seed);
// For the CPU: any D and heads, tokens anywhere.
PassCase random_cpu_pass_case(std::uint64_t seed);

}  // namespace axial::kernels::testing
