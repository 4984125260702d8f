// What a training step decides about an update of the weights: whether all is finite, how gradients are unscaled and
// clipped, the loss scale of float16 (Micikevicius et al. 2018), the counters that follow. One call, on the device that
// trains, so that nobody waits for it and a captured graph holds it.
#pragma once

#include "kernels/kernels.h"

namespace axial::kernels {

// Slots of UpdateState::values, float64.
enum UpdateSlot {
  kUpdates,    // made so far
  kGoodInRow,  // since the last change of the loss scale
  kSkipped,    // left out because a gradient or the loss was not finite
  kStopped,    // 1: since an earlier update; nothing changes any more
  kLossScale,
  kNorm,  // of the gradients of the latest update before the stop, or of the one that stopped, after unscaling
  kLoss,  // the mean loss of that update
  kLossSum,
  kHits,
  kSamples,  // with the two before: sums over the epoch
  kUpdateSlots
};

struct UpdateRules {
  bool stops = true;      // at the first update that is not finite; else it is skipped
  bool scales = false;    // the loss was multiplied by the loss scale: an overflow is skipped and halves it
  double clip_norm = 0;   // gradients of a larger norm are brought to it; 0: never
  double min_scale = 1.0 / (1 << 10), max_scale = 1 << 24;
  double growth_interval = 2000;  // good updates after which the scale is doubled
};

// All in memory of the device that computes.
struct UpdateState {
  double* values = nullptr;            // [kUpdateSlots]
  const double* norm = nullptr;        // of the gradients as they are, scaled by the loss scale
  const double* group_sums = nullptr;  // [3]: loss, hits and samples of the update's batches
  // What the schedule says of updates to come, [updates, 2]: factor of the learning rates, weight of the average; and
  // which of them is the next, which is counted up. Both or neither.
  const double* rates = nullptr;
  std::int64_t* row = nullptr;
  // Written:
  std::uint8_t* good = nullptr;  // 1: all is finite, and nothing was stopped
  float* skip = nullptr;         // 1 - good
  float* divisor = nullptr;      // what unscales and clips the gradients
  double* factor = nullptr;      // of the learning rates; with `rates`
  float* average = nullptr;      // weight of the average, 0 where nothing is to move; with `rates`
};

namespace cpu {
Status judge_update(const UpdateRules& rules, const UpdateState& state);
}
namespace cuda {
Status judge_update(const UpdateRules& rules, const UpdateState& state, CUstream_st* stream);
}

}  // namespace axial::kernels
