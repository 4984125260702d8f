#include "app/train/control.h"

#include <ATen/ATen.h>
#include <ATen/DeviceGuard.h>
#include <ATen/core/grad_mode.h>

#include "app/train/state.h"
#include "model/bridge.h"

namespace axial::app {

Control::Control(const TrainConfig& train, double clip_norm, at::Device device)
    : skips_(train.on_nonfinite == "skip"),
      scales_(train.precision == "float16"),
      values_(at::zeros({kSlots}, at::TensorOptions(device).dtype(at::kDouble))) {
  rules_.stops = !skips_;
  rules_.scales = scales_;
  rules_.clip_norm = clip_norm;
  scale().fill_(1);
  const auto scalar = [&](at::ScalarType type) { return at::zeros({}, at::TensorOptions(device).dtype(type)); };
  verdict_ = {scalar(at::kBool), scalar(at::kFloat), scalar(at::kFloat), scalar(at::kDouble), scalar(at::kFloat)};
}

at::Tensor Control::scale() const { return values_.select(0, kernels::kLossScale); }
at::Tensor Control::sums() const { return values_.narrow(0, kernels::kLossSum, 3); }

Verdict Control::judge(const at::Tensor& norm, const at::Tensor& group_sums, const at::Tensor& rates,
                       const at::Tensor& row) {
  kernels::UpdateState state;
  state.values = values_.mutable_data_ptr<double>();
  state.norm = norm.const_data_ptr<double>();
  state.group_sums = group_sums.const_data_ptr<double>();
  state.rates = rates.const_data_ptr<double>();
  state.row = row.mutable_data_ptr<std::int64_t>();
  state.good = reinterpret_cast<std::uint8_t*>(verdict_.good.mutable_data_ptr<bool>());
  state.skip = verdict_.skip.mutable_data_ptr<float>();
  state.divisor = verdict_.divisor.mutable_data_ptr<float>();
  state.factor = verdict_.factor.mutable_data_ptr<double>();
  state.average = verdict_.average.mutable_data_ptr<float>();
  const c10::OptionalDeviceGuard guard(values_.device());
  check_status(values_.is_cuda() ? kernels::cuda::judge_update(rules_, state, current_stream(values_.device()))
                                 : kernels::cpu::judge_update(rules_, state),
               "update");
  Verdict verdict = verdict_;
  if (rules_.clip_norm <= 0 && !scales_) verdict.divisor = at::Tensor();
  return verdict;
}

void Control::load(const Progress& p) {
  at::NoGradGuard no_grad;
  const at::Tensor values = at::tensor({static_cast<double>(p.updates), static_cast<double>(p.good_in_row),
                                        static_cast<double>(p.skipped), 0.0, p.loss_scale, 0.0, 0.0},
                                       at::kDouble);
  values_.narrow(0, 0, kernels::kLossSum).copy_(values);
}

Readout Control::read(const double* v) {
  Readout r;
  r.updates = static_cast<std::int64_t>(v[kernels::kUpdates]);
  r.good_in_row = static_cast<std::int64_t>(v[kernels::kGoodInRow]);
  r.skipped = static_cast<std::int64_t>(v[kernels::kSkipped]);
  r.loss_scale = v[kernels::kLossScale];
  r.stopped = v[kernels::kStopped] != 0;
  r.norm = v[kernels::kNorm];
  r.loss = v[kernels::kLoss];
  r.loss_sum = v[kernels::kLossSum];
  r.hits = v[kernels::kHits];
  r.samples = v[kernels::kSamples];
  return r;
}

}  // namespace axial::app
