#include "app/train/control.h"

#include <limits>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "app/train/state.h"

namespace axial::app {

namespace {

// float16's loss scale: halved where a gradient overflows, doubled after this many good updates.
constexpr double kScaleGrowthInterval = 2000;
constexpr double kMaxScale = 1 << 24;
constexpr double kMinScale = 1.0 / (1 << 10);

}  // namespace

Control::Control(const TrainConfig& train, double clip_norm, at::Device device)
    : stops_(train.on_nonfinite != "skip"),
      skips_(!stops_),
      scales_(train.precision == "float16"),
      clip_norm_(clip_norm),
      values_(at::zeros({kSlots}, at::TensorOptions(device).dtype(at::kDouble))) {
  slot(kScale).fill_(1);
}

at::Tensor Control::slot(Slot slot) const { return values_.select(0, slot); }
at::Tensor Control::scale() const { return slot(kScale); }
at::Tensor Control::sums() const { return values_.narrow(0, kSums, 3); }

Verdict Control::judge(const at::Tensor& norm, const at::Tensor& group_sums) {
  at::NoGradGuard no_grad;
  Verdict verdict;
  // The norm after unscaling, and the mean loss. An overflow shows as infinity either way.
  const at::Tensor measured =
      at::stack({norm, group_sums.select(0, 0)}).div_(at::stack({scale(), group_sums.select(0, 2)}));
  const at::Tensor finite = measured.abs().le(std::numeric_limits<double>::max());  // bool [2]; false for NaN
  at::Tensor good = finite.all(), live;
  if (stops_) {
    live = slot(kStopped).eq(0);
    good = good.logical_and(live);
  }
  verdict.good = good;
  const at::Tensor bad = good.logical_not();
  verdict.skip = bad.to(at::kFloat);
  if (clip_norm_ > 0) {
    const at::Tensor excess = measured.select(0, 0).add(1e-6).div_(clip_norm_).clamp_min_(1);
    verdict.divisor = (scales_ ? excess.mul_(scale()) : excess).to(at::kFloat);
  } else if (scales_) {
    verdict.divisor = scale().to(at::kFloat);
  }
  at::Tensor latest = values_.narrow(0, kNorm, 2);
  latest.copy_(stops_ ? at::where(live, measured, latest) : measured);

  if (!may_skip()) {
    values_.narrow(0, kUpdates, 2).add_(good);  // kGoodInRow, too
    slot(kStopped).copy_(bad);                  // stays: nothing is good after it
    sums().add_(group_sums.masked_fill(bad, 0));
    return verdict;
  }
  slot(kUpdates).add_(good);
  slot(kGoodInRow).add_(1).mul_(good);
  const at::Tensor finite_loss = finite.select(0, 1);
  at::Tensor skipped = bad;
  if (scales_) {
    at::Tensor overflow = bad.logical_and(finite_loss).logical_and(slot(kScale).gt(kMinScale));
    if (stops_) overflow = overflow.logical_and(live);
    const at::Tensor grows = slot(kGoodInRow).ge(kScaleGrowthInterval).logical_and(slot(kScale).lt(kMaxScale));
    slot(kScale).mul_(overflow.to(at::kDouble).mul_(-0.5).add_(1)).mul_(grows.to(at::kDouble).add_(1));
    slot(kGoodInRow).mul_(grows.logical_not());
    if (stops_) {
      slot(kStopped).copy_(bad.logical_and(overflow.logical_not()));  // stays: no overflow after it
      skipped = overflow;
    }
  }
  slot(kSkipped).add_(skipped);
  // A loss that was seen counts, whatever became of its gradients.
  const at::Tensor counts = good.logical_or(skipped.logical_and(finite_loss));
  sums().add_(group_sums.masked_fill(counts.logical_not(), 0));
  return verdict;
}

void Control::load(const Progress& p) {
  at::NoGradGuard no_grad;
  const at::Tensor values = at::tensor({static_cast<double>(p.updates), static_cast<double>(p.good_in_row),
                                        static_cast<double>(p.skipped), 0.0, p.loss_scale, 0.0, 0.0},
                                       at::kDouble);
  values_.narrow(0, 0, kSums).copy_(values);
}

Readout Control::read(const double* v) {
  Readout r;
  r.updates = static_cast<std::int64_t>(v[kUpdates]);
  r.good_in_row = static_cast<std::int64_t>(v[kGoodInRow]);
  r.skipped = static_cast<std::int64_t>(v[kSkipped]);
  r.loss_scale = v[kScale];
  r.stopped = v[kStopped] != 0;
  r.norm = v[kNorm];
  r.loss = v[kLoss];
  r.loss_sum = v[kSums];
  r.hits = v[kSums + 1];
  r.samples = v[kSums + 2];
  return r;
}

}  // namespace axial::app
