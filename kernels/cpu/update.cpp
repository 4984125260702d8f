#include "kernels/update_rule.h"
#include "kernels/validate.h"

namespace axial::kernels {

Status check_update(const UpdateRules& rules, const UpdateState& s) {
  if (!(rules.clip_norm >= 0)) return failure(Code::kInvalid, "update: clip_norm is %g", rules.clip_norm);
  if (s.values == nullptr || s.norm == nullptr || s.group_sums == nullptr || s.good == nullptr || s.skip == nullptr ||
      s.divisor == nullptr) {
    return failure(Code::kInvalid, "update: a pointer of its state is null");
  }
  if (s.rates != nullptr && (s.row == nullptr || s.factor == nullptr || s.average == nullptr)) {
    return failure(Code::kInvalid, "update: rates come with a row, and places for factor and average");
  }
  return {};
}

namespace cpu {

Status judge_update(const UpdateRules& rules, const UpdateState& state) {
  const Status status = check_update(rules, state);
  if (status.ok()) apply_update_rule(rules, state);
  return status;
}

}  // namespace cpu

}  // namespace axial::kernels
