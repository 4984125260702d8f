// The rule behind judge_update, for host and device.
#pragma once

#include <cmath>

#include "kernels/philox.h"
#include "kernels/update.h"

namespace axial::kernels {

AXIAL_HOST_DEVICE bool is_finite(double v) { return v - v == 0; }

AXIAL_HOST_DEVICE void apply_update_rule(const UpdateRules& rules, const UpdateState& s) {
  double* const v = s.values;
  const double scale = v[kLossScale], norm = *s.norm / scale, loss = s.group_sums[0] / s.group_sums[2];
  const bool live = !(rules.stops && v[kStopped] != 0), finite_loss = is_finite(loss);
  const bool good = live && finite_loss && is_finite(norm);
  *s.good = good ? 1 : 0;
  *s.skip = good ? 0.f : 1.f;
  double divisor = rules.scales ? scale : 1;
  if (rules.clip_norm > 0) {
    const double excess = (norm + 1e-6) / rules.clip_norm;
    divisor *= excess < 1 ? 1 : excess;  // NaN stays NaN
  }
  *s.divisor = static_cast<float>(divisor);
  if (s.rates != nullptr) {
    *s.factor = s.rates[2 * *s.row];
    *s.average = good ? static_cast<float>(s.rates[2 * *s.row + 1]) : 0.f;
    *s.row += good ? 1 : 0;
  }
  if (!live) return;
  v[kNorm] = norm;
  v[kLoss] = loss;
  const bool overflow = !good && rules.scales && finite_loss && scale > rules.min_scale;
  const bool skipped = !good && (overflow || !rules.stops);
  if (good) {
    v[kUpdates] += 1;
    v[kGoodInRow] += 1;
    if (rules.scales && v[kGoodInRow] >= rules.growth_interval && scale < rules.max_scale) {
      v[kLossScale] = 2 * scale;
      v[kGoodInRow] = 0;
    }
  } else {
    v[kGoodInRow] = 0;
    if (overflow) v[kLossScale] = scale / 2;
    if (skipped) {
      v[kSkipped] += 1;
    } else {
      v[kStopped] = 1;
    }
  }
  // A loss that was seen counts, whatever became of its gradients.
  if (good || (skipped && finite_loss)) {
    for (int i = 0; i < 3; ++i) v[kLossSum + i] += s.group_sums[i];
  }
}

}  // namespace axial::kernels
