#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "app/counted.h"
#include "app/run/log.h"
#include "app/train/freeze.h"
#include "app/train/loop.h"
#include "app/train/report.h"
#include "app/train/schedule.h"
#include "app/train/signals.h"
#include "model/anomaly.h"
#include "model/classifier.h"

namespace axial::app {

namespace {

double known(double value) { return value < 0 ? std::numeric_limits<double>::quiet_NaN() : value; }

}  // namespace

void Trainer::train_epoch() {
  Progress& p = state_.progress;
  train_mode(*state_.model);
  if (p.batch == 0) state_.control.sums().zero_();
  const auto next = [&] {
    data::Batch batch = train_batches_.get(p.epoch, p.batch);
    p.batch += 1;
    p.images += batch.labels.size(0);
    return batch;
  };
  while (p.batch < per_epoch_ && !should_stop()) {
    if (step_.needs_rates()) {
      look(0);
      step_.fill_rates(updates_per_epoch_ * config_.train.epochs);
    }
    {
      const AnomalyScope scope(anomaly_.get());
      step_.run(next, std::min(config_.train.accumulate, per_epoch_ - p.batch));
    }
    if (anomaly_) culprit_ = anomaly_->take();
    if (!graph_told_) tell_of_graph();
    unsaved_ = true;
    tried_ += 1;
    watch_.ask(state_.control.values(), {p.epoch, p.batch, tried_, p.images, p.batch >= per_epoch_});
    look(anomaly_ ? 0 : Watch::kMost - 1);
  }
  look(0);
}

void Trainer::tell_of_graph() {
  if (step_.replays()) {
    log::info("steps of full batches are replayed as CUDA graphs");
  } else if (!step_.graph_problem().empty()) {
    log::warning("train.cuda_graph: the training step cannot be recorded (" + step_.graph_problem() +
                 "); training goes on without");
  } else {
    return;
  }
  graph_told_ = true;
}

// Takes what has arrived of the updates, and waits until at most so many are on their way.
void Trainer::look(std::size_t left) {
  while (const auto sighting = watch_.take(watch_.coming() > left)) see(*sighting);
}

void Trainer::see(const Sighting& sighting) {
  const Moment& at = sighting.moment;
  const Readout& r = sighting.readout;
  const bool skipped = r.skipped > state_.progress.skipped, overflow = r.loss_scale < state_.progress.loss_scale;
  state_.note(r);
  const std::string where = position(at.epoch, at.batch, config_.train.epochs, per_epoch_);
  if (r.stopped) {
    if (!std::isfinite(r.loss)) fail_nonfinite(where, "training loss", r.loss);
    fail_nonfinite(where, "gradient norm", r.norm);
  }
  if (skipped) {
    log::warning(where + ": " + (std::isfinite(r.loss) ? "a gradient" : "the loss") + " is not finite" +
                 first_culprit() + "; update skipped" +
                 (overflow ? ", loss scale now " + std::to_string(static_cast<long long>(r.loss_scale)) : ""));
  }
  report_progress(sighting);
}

// What train.detect_anomaly found, as a part of a sentence.
std::string Trainer::first_culprit() const { return culprit_.empty() ? "" : " (first in " + culprit_ + ")"; }

void Trainer::fail_nonfinite(const std::string& where, const std::string& what, double value) {
  log::progress_done();
  const std::string way_back = last_checkpoint_.empty() ? std::string("no checkpoint was written yet")
                                                        : "the last checkpoint is " + last_checkpoint_.string();
  throw TrainError(where + " (" + counted(state_.progress.updates, "update") + " made): the " + what + " is " +
                   (std::isnan(value) ? "nan" : std::to_string(value)) + first_culprit() +
                   "; stopped, nothing of it was written; " + way_back +
                   " (lower optim.lr or set train.on_nonfinite=skip)");
}

Evaluation Trainer::validate(data::Batches& batches) {
  std::optional<SwapGuard> average;
  if (state_.ema) average.emplace(state_.tensors, state_.ema->tensors());
  const Clock::time_point began = Clock::now();
  const Evaluation result = evaluate(*state_.model, batches, views_of(config_.train.eval_tta));
  evaluation_ = seconds_since(began);
  evaluating_ += evaluation_;
  return result;
}

// Of training at `rate` images a second, and of the evaluations that are still to come.
double Trainer::seconds_left(const Moment& at, double rate) const {
  if (rate <= 0) return 0;
  const std::int64_t epochs = config_.train.epochs, every = config_.train.eval_every;
  // An epoch's last batch may not be full.
  const std::int64_t batch = config_.data.batch_size, in_epoch = std::min(per_epoch_ * batch, sets_.train.size());
  const std::int64_t images = (epochs - at.epoch) * in_epoch - std::min(at.batch * batch, in_epoch);
  const std::int64_t evaluations = epochs / every - at.epoch / every + (epochs % every != 0 ? 1 : 0);
  // Before the first one: an image is looked at about three times as fast as it is trained on.
  const double each = evaluation_ > 0 ? evaluation_ : static_cast<double>(sets_.validation.size()) / (3 * rate);
  return static_cast<double>(images) / rate + static_cast<double>(evaluations) * each;
}

// Of an update that the device has made, which is a few behind what was asked of it.
void Trainer::report_progress(const Sighting& sighting) {
  const Moment& at = sighting.moment;
  const Readout& r = sighting.readout;
  const bool due = at.tried % config_.train.log_every == 0 || at.ends_epoch;
  const bool redraw = log::is_terminal() && seconds_since(last_report_) >= 0.1;
  if (!due && !redraw) return;
  last_report_ = Clock::now();
  const double elapsed = seconds_since(started_) - evaluating_;
  const double rate = elapsed > 0 ? static_cast<double>(at.images - images_before_) / elapsed : 0;
  const double factor = learning_rate_factor(config_.optim, std::max<std::int64_t>(0, r.updates - 1),
                                             updates_per_epoch_ * config_.train.epochs);
  const double loss = r.loss_sum / r.samples;
  const std::string line =
      progress_line({at.epoch, config_.train.epochs, at.batch, per_epoch_, loss, r.hits / r.samples,
                     config_.optim.lr * factor, rate, seconds_left(at, rate), device_memory(device_)});
  if (log::is_terminal()) {
    log::progress(line);
  } else {
    log::info(line);
  }
  if (due) recorder_->progress(r.updates, {{"train/loss", loss}, {"train/lr", config_.optim.lr * factor}});
}

void Trainer::end_epoch() {
  Progress& p = state_.progress;
  const at::Tensor sums = state_.control.sums().cpu();
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
      fail_nonfinite(position_now(), sets_.held_out ? "validation loss" : "test loss", e.loss);
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
  note_time();
  report.best_top1 = known(p.best_top1);
  report.seconds = p.train_seconds;
  report.epoch_seconds = p.epoch_seconds;
  report.images_per_second = static_cast<double>(p.images - epoch_images_before_) / std::max(1e-9, p.epoch_seconds);
  epoch_began_ = p.train_seconds;
  epoch_images_before_ = p.images;
  recorder_->epoch(report);
  log::progress_done();
  log::info(report.line(config_.train.epochs, sets_.held_out, config_.train.eval_metric == "loss"));
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
  if (config_.train.keep_last > 0 || config_.train.keep_best > 0)
    run_->keep_last(config_.train.keep_last, p.epoch, best);
}

}  // namespace axial::app
