// What is decided at each update, on the device: whether loss and gradients are finite, what is skipped, when to
// stop, the loss scale; and the counters that follow. The host reads them when it needs them (watch.h).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "app/config/config.h"
#include "kernels/update.h"

namespace axial::app {

struct Progress;

// What the host reads of the device: the values of one update.
struct Readout {
  std::int64_t updates = 0, good_in_row = 0, skipped = 0;
  double loss_scale = 1;
  bool stopped = false;       // since an earlier update, or this one; nothing has changed from there on
  double norm = 0, loss = 0;  // of the latest update before the stop, and of the one that stopped
  double loss_sum = 0, hits = 0, samples = 0;  // of the epoch so far
};

// Of one update; scalars on the device, which the next one overwrites.
struct Verdict {
  at::Tensor good;     // bool: all is finite, and nothing was stopped
  at::Tensor skip;     // float32, 1 where it is not
  at::Tensor divisor;  // float32: what unscales and clips the gradients; undefined: nothing does
  at::Tensor factor;   // float64, of the learning rates
  at::Tensor average;  // float32: the weight of the average, 0 where the update is skipped
};

class Control {
 public:
  Control(const TrainConfig& train, double clip_norm, at::Device device);

  // Whether a run can go on after an update that is skipped, so that running statistics must be put back.
  bool may_skip() const { return skips_ || scales_; }
  bool scales() const { return scales_; }
  at::Tensor scale() const;                      // float64 [], float16's loss scale; else 1
  at::Tensor sums() const;                       // float64 [3], a view: the epoch's loss, correct, samples
  at::Tensor values() const { return values_; }  // float64 [kSlots], what read() takes apart

  // Decides on an update and moves every counter. norm: float64 [], of the gradients as they are, scaled by scale();
  // group_sums: float64 [3], loss, correct and samples of the update's batches. rates: float64 [n, 2], factor and
  // average's weight of updates to come, and row: int64 [1], the next one's, which is counted up.
  Verdict judge(const at::Tensor& norm, const at::Tensor& group_sums, const at::Tensor& rates, const at::Tensor& row);

  void load(const Progress& progress);  // everything but the sums
  static Readout read(const double* values);

  static constexpr int kSlots = kernels::kUpdateSlots;

 private:
  kernels::UpdateRules rules_;
  bool skips_, scales_;
  at::Tensor values_;
  Verdict verdict_;
};

}  // namespace axial::app
