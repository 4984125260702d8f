#include "app/train/step.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "app/train/evaluate.h"
#include "app/train/schedule.h"
#include "model/classifier.h"

namespace axial::app {

namespace {

constexpr std::int64_t kRates = 4096;
// Steps of each kind before it is recorded: libraries choose algorithms and take workspace in them.
constexpr std::int64_t kEagerRuns = 3;
// What a step reads of a batch.
constexpr at::Tensor data::Batch::*kInputs[] = {&data::Batch::images, &data::Batch::labels,
                                                &data::Batch::partner_labels, &data::Batch::weights};

[[maybe_unused]] std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

OwnStream::OwnStream(at::Device device) {
  if (!device.is_cuda()) return;
  const c10::impl::VirtualGuardImpl gpu(device.type());
  gpu.getStream(device).synchronize();  // what was made so far is there for the new stream
  guard_.emplace(gpu.getStreamFromGlobalPool(device));
}

OwnStream::~OwnStream() {
  if (!guard_) return;
  try {
    guard_->current_stream().synchronize();
  } catch (const std::exception&) {  // a broken device has been reported by whoever used it
  }
}

Step::Step(const Config& config, TrainingState& state, at::Device device)
    : config_(config),
      state_(state),
      device_(device),
      rates_(at::zeros({kRates, 2}, at::TensorOptions(device).dtype(at::kDouble))),
      row_(at::zeros({1}, at::TensorOptions(device).dtype(at::kLong))),
      seed_(at::ones({}, at::TensorOptions(device).dtype(at::kFloat))),
      group_sums_(at::zeros({3}, at::TensorOptions(device).dtype(at::kDouble))) {
  if (state.control.may_skip()) {
    for (const auto& item : state.model->named_buffers(true)) {
      statistics_.push_back(item.value());
      statistics_before_.push_back(item.value().clone());
    }
  }
#if defined(AXIAL_WITH_CUDA)
  graphs_ = config.train.cuda_graph && device.is_cuda() && !config.train.detect_anomaly;
#endif
}

bool Step::replays() const { return recorded_[config_.train.accumulate == 1 ? kWhole : kFinish] != nullptr; }

void Step::fill_rates(std::int64_t updates) {
  const at::Tensor table = at::empty({kRates, 2}, at::kDouble);
  double* at_row = table.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < kRates; ++i, at_row += 2) {
    at_row[0] = learning_rate_factor(config_.optim, state_.progress.updates + i, updates);
    at_row[1] = state_.ema ? state_.ema->weight(state_.ema->updates + i) : 0;
  }
  rates_.copy_(table);
  row_.zero_();
  rates_left_ = kRates;
}

void Step::run(const std::function<data::Batch()>& next, std::int64_t micro_batches) {
  if (state_.control.scales()) {
    at::NoGradGuard no_grad;
    seed_.copy_(state_.control.scale().div(static_cast<double>(micro_batches)));
  } else if (micro_batches != seed_batches_) {
    seed_.fill_(1 / static_cast<double>(micro_batches));
    seed_batches_ = micro_batches;
  }
  rates_left_ -= 1;
  const bool whole = config_.train.accumulate == 1;
  data::Batch batch;
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    batch = next();
    done(Part::kData);
    const bool full = batch.labels.size(0) == config_.data.batch_size, first = m == 0;
    const bool replayed = launch(whole   ? kWhole
                                 : first ? kFirst
                                         : kNext,
                                 batch, full && (first || gradients_recorded_),
                                 [&](const data::Batch& given) {
                                   if (first) begin();
                                   forward_backward(given, first);
                                   if (whole) finish();
                                 });
    if (first) gradients_recorded_ = replayed;
  }
  if (!whole) launch(kFinish, batch, gradients_recorded_, [&](const data::Batch&) { finish(); });
  done(Part::kUpdate);
}

// Whether it was replayed.
bool Step::launch(Piece piece, const data::Batch& batch, bool may_replay, const Body& body) {
  const bool first = piece == kWhole || piece == kFirst;
  const bool ready = recorded_[piece] || runs_[piece] >= kEagerRuns;
  if (!graphs_ || !may_replay || !ready || (!recorded_[piece] && !record(piece, batch, body))) {
    runs_[piece] += 1;
    body(batch);
    return false;
  }
  if (piece != kFinish) {
    at::NoGradGuard no_grad;
    for (const auto part : kInputs) {
      if ((batch.*part).defined()) (inputs_.*part).copy_(batch.*part);
    }
  }
  if (first && !gradients_recorded_) {  // a step that was not replayed came in between
    const auto parameters = state_.model->parameters(true);
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients_[i];
  }
  recorded_[piece]->replay();
  return true;
}

// Nothing has run afterwards, and where it fails nothing is lost: the caller runs the piece.
bool Step::record([[maybe_unused]] Piece piece, [[maybe_unused]] const data::Batch& batch,
                  [[maybe_unused]] const Body& body) {
#if defined(AXIAL_WITH_CUDA)
  try {
    if (!recorder_) {
      for (const auto part : kInputs) {
        if ((batch.*part).defined()) inputs_.*part = at::empty_like(batch.*part);
      }
      // The graphs have memory of their own: what earlier steps kept would be held a second time.
      state_.optimizer.zero_grad();
      c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
      at::getDeviceAllocator(device_.type())->emptyCache();
      recorder_ = make_graph_recorder(device_);
    }
    recorded_[piece] = recorder_->record([&] { body(inputs_); });
    if (piece == kWhole || piece == kFirst) {
      gradients_.clear();
      for (const at::Tensor& parameter : state_.model->parameters(true)) gradients_.push_back(parameter.grad());
      gradients_recorded_ = true;
    }
    return true;
  } catch (const c10::Error& e) {
    graph_problem_ = first_line(e.what_without_backtrace());
  } catch (const std::exception& e) {
    graph_problem_ = first_line(e.what());
  }
  graphs_ = false;
  // What was recorded goes, except for gradients that this update may have begun with.
  recorded_ = {};
  gradients_.clear();
  inputs_ = {};
#endif
  return false;
}

void Step::begin() {
  at::NoGradGuard no_grad;
  state_.optimizer.zero_grad();
  for (std::size_t i = 0; i < statistics_.size(); ++i) statistics_before_[i].copy_(statistics_[i]);
}

void Step::forward_backward(const data::Batch& batch, bool first) {
  // The pass keeps what it was given for its backward: the counter advances in another tensor.
  const RandomState random{state_.rng.clone(), 0};
  {
    at::NoGradGuard no_grad;
    state_.rng.select(0, 1).add_(1);
  }
  const at::Tensor logits = state_.model->forward(batch.images, random);
  const BatchLoss loss = batch_loss(logits, batch, config_.train.label_smoothing, seed_);
  done(Part::kForward);
  logits.backward(loss.d_logits);
  if (first) {
    group_sums_.copy_(loss.sums);
  } else {
    group_sums_.add_(loss.sums);
  }
  done(Part::kBackward);
}

void Step::finish() {
  at::NoGradGuard no_grad;
  const Verdict verdict = state_.control.judge(state_.optimizer.gradient_norm(), group_sums_, rates_, row_);
  state_.optimizer.step({verdict.factor, verdict.divisor, verdict.skip});
  for (std::size_t i = 0; i < statistics_.size(); ++i)
    statistics_[i].copy_(at::where(verdict.good, statistics_[i], statistics_before_[i]));
  if (state_.ema) state_.ema->update(state_.tensors, verdict.average);
}

}  // namespace axial::app
