#include "app/train/evaluate.h"

#include <ATen/ATen.h>

#include "model/classifier.h"

namespace axial::app {

at::Tensor batch_loss(const at::Tensor& logits, const data::Batch& batch, double label_smoothing) {
  const auto loss = [&](const at::Tensor& target) {
    return at::cross_entropy_loss(logits, target, {}, at::Reduction::Mean, -100, label_smoothing);
  };
  if (!batch.weights.defined()) return loss(batch.labels);
  // Of probabilities, [n, classes]: linear in them.
  const at::Tensor classes = at::arange(logits.size(1), batch.labels.options()).view({1, -1});
  const at::Tensor weights = batch.weights.to(logits.scalar_type()).view({-1, 1});
  const at::Tensor own = classes.eq(batch.labels.view({-1, 1})).mul(weights);
  const at::Tensor partners = classes.eq(batch.partner_labels.view({-1, 1})).mul(at::rsub(weights, 1));
  return loss(own.add(partners));
}

at::Tensor heavier_labels(const data::Batch& batch) {
  if (!batch.weights.defined()) return batch.labels;
  return at::where(batch.weights.ge(0.5), batch.labels, batch.partner_labels);
}

at::Tensor batch_sums(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& mean_loss) {
  at::NoGradGuard no_grad;
  const auto n = static_cast<double>(labels.size(0));
  const at::Tensor correct = logits.argmax(1).eq(labels).sum().to(at::kDouble);
  return at::stack({mean_loss.detach().to(at::kDouble) * n, correct,
                    at::full({}, n, at::TensorOptions(logits.device()).dtype(at::kDouble))});
}

Evaluation evaluate(AxialClassifierImpl& model, data::Batches& batches) {
  at::NoGradGuard no_grad;
  const bool training = model.is_training();
  model.eval();
  at::Tensor sums;
  for (std::int64_t i = 0; i < batches.per_epoch(); ++i) {
    const data::Batch batch = batches.get(0, i);
    const at::Tensor logits = model.forward(batch.images).to(at::kFloat);
    const at::Tensor loss = at::cross_entropy_loss(logits, batch.labels);
    const at::Tensor part = batch_sums(logits, batch.labels, loss);
    sums = sums.defined() ? sums + part : part;
  }
  model.train(training);
  const at::Tensor host = sums.cpu();
  const double* s = host.const_data_ptr<double>();
  return {s[1] / s[2], s[0] / s[2], static_cast<std::int64_t>(s[2])};
}

}  // namespace axial::app
