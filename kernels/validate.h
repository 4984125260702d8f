// Checks that both sides, CPU and CUDA, make before they start. Each message says what is wrong and where.
#pragma once

#include <initializer_list>

#include "kernels/kernels.h"
#include "kernels/loss.h"
#include "kernels/pass.h"
#include "kernels/update.h"

namespace axial::kernels {

// The longest line: a query's number is one 32-bit word of the dropout counter.
inline constexpr std::int64_t kMaxLength = (std::int64_t{1} << 31) - 1;

// Nothing to compute: no line, no head or no token. Such problems are valid with null data.
bool empty(const AttentionProblem& problem);

// Everything a forward and a backward share: extents, head dimension, types, dropout, the inputs q, k, v.
Status validate(const AttentionProblem& problem);
// The above, and what the forward writes.
Status validate(const AttentionProblem& problem, const AttentionOutput& output);
// The above, and what the backward reads. Any gradient may be null (not wanted).
Status validate(const AttentionProblem& problem, const AttentionGradients& gradients);
Status validate(const Lines& lines, std::int64_t heads, const Dropout& dropout, const std::uint8_t* keep);
// Of both fused passes: extents, eps, rates and the rotary embedding; that what is drawn has its random state.
Status check_pass_extents(const PassProblem& problem);
Status check_pass_random(const PassProblem& problem);
Status check_loss(const LossProblem& problem, const LossOutput& output);
Status check_update(const UpdateRules& rules, const UpdateState& state);
Status validate_workspace(const void* workspace, std::size_t bytes, std::size_t needed);
// Tensors that must be there and start at 16 bytes.
Status validate_operands(const char* what, std::initializer_list<const void*> operands);

}  // namespace axial::kernels
