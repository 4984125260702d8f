#include "app/train/evaluate.h"

#include <ATen/ATen.h>

#include "kernels/loss.h"
#include "model/bridge.h"
#include "model/classifier.h"

namespace axial::app {

BatchLoss batch_loss(const at::Tensor& given, const data::Batch& batch, double label_smoothing, const at::Tensor& seed) {
  at::NoGradGuard no_grad;
  const at::Tensor logits = given.detach().contiguous();
  const c10::OptionalDeviceGuard guard(logits.device());
  kernels::LossProblem problem;
  problem.samples = logits.size(0);
  problem.classes = logits.size(1);
  problem.dtype = kernel_type(logits.scalar_type());
  problem.logits = logits.const_data_ptr();
  problem.labels = batch.labels.const_data_ptr<std::int64_t>();
  if (batch.weights.defined()) {
    problem.partners = batch.partner_labels.const_data_ptr<std::int64_t>();
    problem.weights = batch.weights.const_data_ptr<float>();
  }
  problem.smoothing = label_smoothing;
  BatchLoss loss;
  const at::TensorOptions doubles = logits.options().dtype(at::kDouble);
  loss.sums = at::empty({3}, doubles);
  const at::Tensor per_sample = at::empty({2 * problem.samples}, doubles);
  kernels::LossOutput output;
  output.sums = loss.sums.mutable_data_ptr<double>();
  output.per_sample = per_sample.mutable_data_ptr<double>();
  if (seed.defined()) {
    loss.d_logits = at::empty_like(logits);
    output.d_logits = loss.d_logits.mutable_data_ptr();
    problem.factor = 1 / static_cast<double>(problem.samples);
    problem.scale = seed.const_data_ptr<float>();
  }
  check_status(logits.is_cuda() ? kernels::cuda::softmax_loss(problem, output, current_stream(logits.device()))
                                : kernels::cpu::softmax_loss(problem, output, executor()),
               "loss");
  return loss;
}

Evaluation evaluate(AxialClassifierImpl& model, data::Batches& batches, const Views& views) {
  at::NoGradGuard no_grad;
  const bool training = model.is_training();
  model.eval();
  at::Tensor sums;
  for (std::int64_t i = 0; i < batches.per_epoch(); ++i) {
    const data::Batch batch = batches.get(0, i);
    const at::Tensor part = batch_loss(logits_of(model, batch.images, views), batch, 0).sums;
    sums = sums.defined() ? sums + part : part;
  }
  model.train(training);
  const at::Tensor host = sums.cpu();
  const double* s = host.const_data_ptr<double>();
  return {s[1] / s[2], s[0] / s[2], static_cast<std::int64_t>(s[2])};
}

}  // namespace axial::app
