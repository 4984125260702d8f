#include "model/rotary.h"

#include <cmath>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "model/bridge.h"

namespace axial {

at::Tensor rotary_table(std::int64_t length, std::int64_t head_dim, double base, const at::TensorOptions& options) {
  TORCH_CHECK(head_dim > 0 && head_dim % 2 == 0,
              "rotary embedding: turns pairs of channels, so the head dimension must be even, is ", head_dim);
  TORCH_CHECK(base > 1, "rotary embedding: base must be above 1, is ", base);
  const at::TensorOptions wide = options.dtype(at::kDouble);
  const double step = -2 * std::log(base) / static_cast<double>(head_dim);
  const at::Tensor frequency = at::arange(head_dim / 2, wide).mul_(step).exp_();  // [d/2]
  const at::Tensor angle = at::arange(length, wide).unsqueeze(1) * frequency;     // [L, d/2]
  return at::stack({angle.cos(), angle.sin()}, -1).to(options);                   // [L, d/2, 2]
}

void rotate_(const at::Tensor& t, const at::Tensor& table, Axis axis, bool back) {
  const std::int64_t length = table.size(0), heads = t.size(3), pairs = table.size(1);
  // Points as complex numbers, whose product turns them. One row of the table for all heads of a token: long loops.
  at::Tensor turns = at::view_as_complex(table);  // [L, d/2]
  if (back) turns = at::conj_physical(turns);
  turns = turns.unsqueeze(1).expand({length, heads, pairs}).reshape({length, heads * pairs});
  if (axis == Axis::kColumn) turns = turns.unsqueeze(1);  // [L, 1, n d/2]
  const auto turn = [&](const at::Tensor& numbers) {
    const std::int64_t batch = t.size(0), height = t.size(1), width = t.size(2);
    at::view_as_complex(numbers.view({batch, height, width, heads * pairs, 2})).mul_(turns);
  };
  if (t.scalar_type() == table.scalar_type()) {
    turn(t);
  } else {  // there are no complex numbers of 16 bits
    const at::Tensor wide = t.to(table.scalar_type());
    turn(wide);
    t.copy_(wide);
  }
}

at::Tensor RotaryTable::get(std::int64_t length, std::int64_t head_dim, double base,
                            const at::TensorOptions& options) {
  const std::lock_guard lock(mutex_);
  if (!table_.defined() || table_.size(0) != length || table_.size(1) * 2 != head_dim || base_ != base ||
      table_.device() != options.device() || table_.dtype() != options.dtype()) {
    const c10::InferenceMode normal(false);  // whoever asks first: a later step keeps it for its backward
    const at::NoGradGuard no_grad;
    table_ = rotary_table(length, head_dim, base, options);
    base_ = base;
  }
  return table_;
}

}  // namespace axial
