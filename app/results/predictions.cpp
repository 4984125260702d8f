#include "app/results/predictions.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "app/run/run_error.h"
#include "data/batches.h"
#include "model/classifier.h"

namespace axial::app {

std::vector<Prediction> predictions_of(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor z = logits.to(at::kCPU, at::kDouble).contiguous(), y = labels.to(at::kCPU, at::kLong).contiguous();
  const at::Tensor probability = z.softmax(1), chosen = logits.argmax(1).cpu();  // as batch_loss chooses
  const std::int64_t classes = z.size(1);
  const double* scores = z.const_data_ptr<double>();
  const double* p = probability.const_data_ptr<double>();
  std::vector<Prediction> predictions;
  for (std::int64_t i = 0; i < z.size(0); ++i, scores += classes, p += classes) {
    Prediction one;
    one.label = y.const_data_ptr<std::int64_t>()[i];
    one.predicted = chosen.const_data_ptr<std::int64_t>()[i];
    one.confidence = p[one.predicted];
    one.label_probability = p[one.label];
    for (std::int64_t c = 0; c < classes; ++c) {
      if (scores[c] > scores[one.label] || (scores[c] == scores[one.label] && c < one.label)) one.rank += 1;
    }
    predictions.push_back(one);
  }
  return predictions;
}

std::int64_t first_not_finite(const at::Tensor& logits) {
  const at::Tensor good = at::isfinite(logits).all(1).cpu();
  const bool* row = good.const_data_ptr<bool>();
  const bool* end = row + good.numel();
  const bool* bad = std::find(row, end, false);
  return bad == end ? -1 : bad - row;
}

SetPredictions predict_set(AxialClassifierImpl& model, data::Batches& batches, const Views& views,
                           const std::string& checkpoint) {
  at::NoGradGuard no_grad;
  model.eval();
  SetPredictions result;
  at::Tensor sums;
  for (std::int64_t i = 0; i < batches.per_epoch(); ++i) {
    const data::Batch batch = batches.get(0, i);
    const at::Tensor logits = logits_of(model, batch.images, views).to(at::kFloat);
    if (const std::int64_t row = first_not_finite(logits); row >= 0) {
      throw RunError(checkpoint + ": the loss is not finite, from test image " +
                     std::to_string(batch.index[row].item<std::int64_t>()) + " on (batch " + std::to_string(i + 1) +
                     " of " + std::to_string(batches.per_epoch()) + "): " + kOverflow);
    }
    const at::Tensor part = batch_loss(logits, batch, 0).sums;
    sums = sums.defined() ? sums + part : part;
    const std::vector<Prediction> these = predictions_of(logits, batch.labels);
    result.each.insert(result.each.end(), these.begin(), these.end());
  }
  const at::Tensor host = sums.cpu();
  const double* s = host.const_data_ptr<double>();
  result.evaluation = {s[1] / s[2], s[0] / s[2], static_cast<std::int64_t>(s[2])};
  return result;
}

}  // namespace axial::app
