#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <ATen/ATen.h>

#include "app/run/log.h"
#include "app/train/freeze.h"
#include "app/train/loop.h"
#include "app/train/report.h"
#include "app/train/schedule.h"
#include "app/train/signals.h"
#include "model/classifier.h"

namespace axial::app {

namespace {

double known(double value) { return value < 0 ? std::numeric_limits<double>::quiet_NaN() : value; }

// float16's loss scale: halved where a gradient overflows, doubled after this many good updates.
constexpr std::int64_t kScaleGrowthInterval = 2000;
constexpr double kMaxScale = 1 << 24;
constexpr double kMinScale = 1.0 / (1 << 10);

}  // namespace

void Trainer::train_epoch() {
  Progress& p = state_.progress;
  train_mode(*state_.model);
  if (p.batch == 0) state_.sums.zero_();
  const std::int64_t accumulate = config_.train.accumulate;
  while (p.batch < per_epoch_ && !should_stop()) {
    const std::int64_t micro_batches = std::min(accumulate, per_epoch_ - p.batch);
    const bool may_skip = config_.train.on_nonfinite == "skip" || config_.train.precision == "float16";
    buffers_before_.clear();
    if (may_skip) {
      for (const auto& entry : buffers_) buffers_before_.push_back(entry.second.clone());
    }
    group_sums_ = at::zeros_like(state_.sums);
    state_.optimizer.zero_grad();
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      forward_backward(train_batches_.get(p.epoch, p.batch), micro_batches);
      p.batch += 1;
    }
    unsaved_ = true;
    update();
    report_progress(p.batch >= per_epoch_);
  }
}

void Trainer::forward_backward(const data::Batch& batch, std::int64_t micro_batches) {
  // The pass keeps what it was given for its backward: the counter advances in another tensor.
  const RandomState random{state_.rng.clone(), 0};
  {
    at::NoGradGuard no_grad;
    state_.rng.select(0, 1).add_(1);
  }
  const at::Tensor logits = state_.model->forward(batch.images, random).to(at::kFloat);
  const at::Tensor loss =
      at::cross_entropy_loss(logits, batch.labels, {}, at::Reduction::Mean, -100, config_.train.label_smoothing);
  (loss * (state_.progress.loss_scale / static_cast<double>(micro_batches))).backward();
  group_sums_ += batch_sums(logits, batch.labels, loss);
  state_.progress.images += batch.labels.size(0);
}

void Trainer::update() {
  Progress& p = state_.progress;
  const double norm = state_.optimizer.clip(config_.optim.clip_norm, p.loss_scale);
  if (!std::isfinite(norm)) {
    at::NoGradGuard no_grad;
    const bool finite_loss = std::isfinite(group_sums_.select(0, 0).item<double>());
    const bool overflow = config_.train.precision == "float16" && finite_loss && p.loss_scale > kMinScale;
    if (!overflow && config_.train.on_nonfinite != "skip") {
      const double loss = (group_sums_.select(0, 0) / group_sums_.select(0, 2)).item<double>();
      if (!std::isfinite(loss)) fail_nonfinite("training loss", loss);
      fail_nonfinite("gradient norm", norm);
    }
    for (std::size_t i = 0; i < buffers_before_.size(); ++i) buffers_[i].second.copy_(buffers_before_[i]);
    p.skipped += 1;
    p.good_in_row = 0;
    if (overflow) p.loss_scale /= 2;
    if (finite_loss) state_.sums += group_sums_;
    log::warning(position_now() + ": " + (finite_loss ? "a gradient" : "the loss") +
                 " is not finite; update skipped" +
                 (overflow ? ", loss scale now " + std::to_string(static_cast<long long>(p.loss_scale)) : ""));
    return;
  }
  const std::int64_t total = updates_per_epoch_ * config_.train.epochs;
  state_.optimizer.step(learning_rate_factor(config_.optim, p.updates, total));
  state_.sums += group_sums_;
  p.updates += 1;
  p.good_in_row += 1;
  if (config_.train.precision == "float16" && p.good_in_row >= kScaleGrowthInterval && p.loss_scale < kMaxScale) {
    p.loss_scale *= 2;
    p.good_in_row = 0;
  }
  if (state_.ema) state_.ema->update(state_.tensors);
}

void Trainer::fail_nonfinite(const std::string& what, double value) {
  log::progress_done();
  const std::string way_back = last_checkpoint_.empty() ? std::string("no checkpoint was written yet")
                                                        : "the last checkpoint is " + last_checkpoint_.string();
  throw TrainError(position_now() + " (" + std::to_string(state_.progress.updates) + " updates made): the " + what +
                   " is " + std::to_string(value) + "; stopped, nothing of it was written; " + way_back +
                   " (lower optim.lr or set train.on_nonfinite=skip)");
}

Evaluation Trainer::validate(data::Batches& batches) {
  std::optional<SwapGuard> average;
  if (state_.ema) average.emplace(state_.tensors, state_.ema->tensors());
  return evaluate(*state_.model, batches);
}

void Trainer::report_progress(bool end_of_epoch) {
  Progress& p = state_.progress;
  const bool due = p.updates % config_.train.log_every == 0 || end_of_epoch;
  const bool redraw = log::is_terminal() && seconds_since(last_report_) >= 0.1;
  if (!due && !redraw) return;
  last_report_ = Clock::now();
  const double elapsed = seconds_since(started_);
  const double rate = elapsed > 0 ? static_cast<double>(p.images - images_before_) / elapsed : 0;
  const std::int64_t total = config_.train.epochs * per_epoch_, done = p.epoch * per_epoch_ + p.batch;
  const double left = rate > 0 ? static_cast<double>((total - done) * config_.data.batch_size) / rate : 0;
  const at::Tensor sums = state_.sums.cpu();
  const double* s = sums.const_data_ptr<double>();
  const double factor = learning_rate_factor(config_.optim, std::max<std::int64_t>(0, p.updates - 1),
                                             updates_per_epoch_ * config_.train.epochs);
  const std::string line =
      progress_line({p.epoch, config_.train.epochs, p.batch, per_epoch_, s[0] / s[2], s[1] / s[2],
                     config_.optim.lr * factor, rate, left, device_memory(device_)});
  if (log::is_terminal()) {
    log::progress(line);
  } else {
    log::info(line);
  }
  if (due) recorder_->progress(p.updates, {{"train/loss", s[0] / s[2]}, {"train/lr", config_.optim.lr * factor}});
}

void Trainer::end_epoch() {
  Progress& p = state_.progress;
  const at::Tensor sums = state_.sums.cpu();
  const double* s = sums.const_data_ptr<double>();
  const std::int64_t finished = p.epoch + 1;
  bool last = finished == config_.train.epochs;
  const bool stopping = should_stop();  // by --stop-after or a signal: this state is the one to keep
  const bool evaluates = last || finished % config_.train.eval_every == 0;
  const double factor = learning_rate_factor(config_.optim, std::max<std::int64_t>(0, p.updates - 1),
                                             updates_per_epoch_ * config_.train.epochs);
  bool improved = false;
  EpochReport report;
  report.epoch = finished;
  report.step = p.updates;
  report.lr = config_.optim.lr * factor;
  report.train_loss = s[0] / s[2];
  report.train_top1 = s[1] / s[2];
  if (evaluates) {
    const Evaluation e = validate(validation_batches_);
    // Before anything is written: checkpoints stay those of sound weights.
    if (!std::isfinite(e.loss) && config_.train.on_nonfinite == "stop") {
      fail_nonfinite(sets_.held_out ? "validation loss" : "test loss", e.loss);
    }
    p.last_top1 = e.top1;
    p.last_loss = e.loss;
    report.val_loss = e.loss;
    report.val_top1 = e.top1;
    improved = note_evaluation(p, config_.train, finished, e.top1, e.loss);
  }
  p.epoch = finished;
  p.batch = 0;
  unsaved_ = true;
  p.train_seconds = seconds_before_ + seconds_since(started_);
  report.best_top1 = known(p.best_top1);
  report.seconds = p.train_seconds;
  report.images_per_second =
      static_cast<double>(p.images - images_before_) / std::max(1e-9, p.train_seconds - seconds_before_);
  recorder_->epoch(report);
  log::progress_done();
  log::info(report.line(config_.train.epochs, sets_.held_out));
  if (improved) save(run_->best());
  if (!last && out_of_patience(p, config_.train)) {
    last = true;
    log::info("ends early: " + std::to_string(p.stale) + " evaluations brought no better " +
              config_.train.eval_metric + " than epoch " + std::to_string(p.best_epoch) + "'s (train.patience)");
  }
  const bool due = last || stopping || finished % config_.train.checkpoint_every == 0;
  save_epoch(due);
  if (due) save(run_->last());
}

// The checkpoint of the epoch that ended, where it is one of those that are kept.
void Trainer::save_epoch(bool due) {
  const Progress& p = state_.progress;
  std::vector<std::int64_t> best;
  for (const auto& [epoch, value] : p.top) best.push_back(epoch);
  const bool among_best = std::find(best.begin(), best.end(), p.epoch) != best.end();
  if (among_best || (due && config_.train.keep_last > 0)) save(run_->epoch(p.epoch));
  if (config_.train.keep_last > 0 || config_.train.keep_best > 0) run_->keep_last(config_.train.keep_last, best);
}

}  // namespace axial::app
