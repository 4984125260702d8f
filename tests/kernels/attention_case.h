// One attention problem of a test: what it is, how its tensors lie in memory, and its data.
//
// Every byte of a buffer that no view covers is 0xFF, a NaN in each of the four types: a read outside a view shows as
// NaN in a result, a write outside one as a changed sentinel.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "tests/kernels/attention_reference.h"

namespace axial::kernels::testing {

inline constexpr std::uint8_t kSentinel = 0xFF;
inline constexpr std::int64_t kMargin = 64;  // elements before and behind every view

// How [outer0, outer1, outer2, L, heads, d] lies in memory, slowest extent first.
enum class Layout {
  kContiguous,  // o0 o1 o2 L h d
  kQkvRows,     // o0 o1 o2 L 3 h d        q, k, v in one buffer
  kQkvColumns,  // o0 L o1 o2 3 h d        the same image, lines along the other axis
  kSliced,      // o0 o1 o2 L h 2d         the second half of each concatenated pair
  kHeadFirst,   // o0 o1 o2 h L d
  kTransposed,  // o0 o1 o2 h d L          channel stride L
  kReversed,    // contiguous, tokens backwards: a negative stride
  kExpanded,    // one element, all strides 0; for inputs only
};

struct Case {
  std::int64_t outer[kMaxOuter] = {1, 1, 1};
  std::int64_t length = 8;
  std::int64_t heads = 1;
  std::int64_t head_dim = 16;
  DType dtype = DType::kFloat32;
  Math math = Math::kStrict;
  bool causal = false;
  bool bias = false;
  double dropout = 0;
  std::uint64_t rng_seed = 0x1234, rng_offset = 5, stream = 3;
  std::int64_t first_line = 0;
  std::optional<double> scale;  // 1 / sqrt(d) where not given
  double gain = 1;              // standard deviation of q and k; v and d_o have 1
  Layout inputs = Layout::kQkvRows;
  Layout output = Layout::kContiguous;  // of o
  Layout d_o = Layout::kContiguous;
  Layout gradients = Layout::kQkvRows;  // of dq, dk, dv
  std::int64_t shift = 0;               // elements by which every buffer is misaligned
  bool want_dq = true, want_dk = true, want_dv = true, want_d_bias = true;
  std::uint64_t seed = 1;  // of the data

  std::string describe() const;
};

using Bytes = std::vector<std::uint8_t>;

// A strided tensor inside a buffer that it may share.
struct Operand {
  std::shared_ptr<Bytes> buffer;
  std::int64_t offset = 0;   // elements, to [0, 0, 0, 0, 0, 0]
  BasicView<void*> strides;  // its data stays null
};

// Inputs of a case as the kernel gets them, and the same numbers for the reference.
struct Inputs {
  Operand q, k, v, d_o;
  std::shared_ptr<Bytes> bias, rng;
  ReferenceInput reference;
};

Inputs make_inputs(const Case& c);
// Replaces the values of one input, dense [lines, L, heads, d]; they are rounded to the case's type.
void set_values(const Case& c, Operand& operand, const std::vector<double>& values, std::vector<double>& reference);

// A random problem over all options at once; fixed by its seed.
Case random_case(std::uint64_t seed);

std::int64_t lines_of(const Case& c);

// `elements` of sentinels.
std::shared_ptr<Bytes> sentinel_buffer(std::int64_t elements, std::size_t element_bytes);

// `count` operands of one layout: in one buffer where the layout packs q, k, v, else in one each.
std::vector<Operand> make_operands(const Case& c, Layout layout, int count);

// The values of an operand, [lines, L, heads, d].
std::vector<double> dense(const Case& c, const Operand& operand);
// The values of an array of statistics or biases between its margins.
std::vector<double> dense_accumulators(const Case& c, const Bytes& buffer);

// Empty, or which element outside all `operands` of one buffer is no sentinel any more.
std::string check_sentinels(const Case& c, const char* what, const std::vector<const Operand*>& operands);
std::string check_accumulator_sentinels(const Case& c, const char* what, const Bytes& buffer);

}  // namespace axial::kernels::testing
