// Attention along lines in plain float64 loops: the definition that every kernel is held against.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace axial::kernels::testing {

// Everything a kernel is given, dense and in float64. Shapes: q, k, v, d_o [lines, L, heads, d]; bias [heads, 2L-1].
struct ReferenceInput {
  std::int64_t lines = 0, length = 0, heads = 0, head_dim = 0;
  double scale = 1;
  bool causal = false;
  double dropout = 0;
  std::uint64_t seed = 0, offset = 0, stream = 0;
  std::int64_t first_line = 0;
  std::vector<double> q, k, v, d_o;
  std::vector<double> bias;  // empty for none
};

struct ReferenceOutput {
  std::vector<double> o;                 // [lines, L, heads, d]
  std::vector<double> row_max, row_sum;  // [lines, heads, L], in base-2 units as kernels.h defines them
  std::vector<double> dq, dk, dv;        // [lines, L, heads, d]; empty without d_o
  std::vector<double> d_bias;            // [heads, 2L-1]; empty without bias or d_o
};

ReferenceOutput reference(const ReferenceInput& input);

}  // namespace axial::kernels::testing
