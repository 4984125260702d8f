#include "app/train/trainer.h"

#include <cmath>
#include <cstdio>
#include <iostream>
#include <limits>
#include <memory>

#include <ATen/ATen.h>

#include "app/config/load.h"
#include "app/run/log.h"
#include "app/train/best.h"
#include "app/train/checks.h"
#include "app/train/freeze.h"
#include "app/train/initial.h"
#include "app/train/loop.h"
#include "app/train/report.h"
#include "app/train/self_check.h"
#include "app/train/signals.h"
#include "app/train/summary.h"
#include "model/anomaly.h"
#include "model/classifier.h"

namespace axial::app {

namespace {

double known(double value) { return value < 0 ? std::numeric_limits<double>::quiet_NaN() : value; }

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

Trainer::Trainer(const TrainRequest& request)
    : request_(request),
      config_(request.config),
      device_(
          (configure_libtorch(request.config.train, request.threads), select_device(request.config.train.device))),
      sets_(load_data(request.config)),
      spec_(image_spec(request.config, sets_.train)),
      train_batches_(sets_.train, batch_options(config_, spec_, true), device_,
                     compute_type(config_.train.precision)),
      validation_batches_(sets_.validation, batch_options(config_, spec_, false), device_,
                          compute_type(config_.train.precision)),
      state_(config_, spec_, device_),
      step_(config_, state_, device_),
      watch_(device_) {
  if (config_.train.detect_anomaly) anomaly_ = std::make_unique<Anomaly>(*state_.model);
  check_norm(config_, state_.model->grid(), sets_.train.size());
  check_output(config_, request.run.empty() ? std::filesystem::path(config_.train.output) : request.run);
  if (request.mode == RunDirectory::Mode::kOverwrite) check_replaced(config_, request.run);
  per_epoch_ = train_batches_.per_epoch();
  updates_per_epoch_ = ceil_div(per_epoch_, config_.train.accumulate);
  if (request.stop_after > 0)
    stop_batch_ = std::max(1LL, std::llround(request.stop_after * static_cast<double>(per_epoch_)));
  if (!request.checkpoint.empty()) {
    const SafetensorsFile file = read_safetensors(request.checkpoint);
    const CheckpointInfo info = checkpoint_info(file, request.checkpoint);
    check_same_data(info.spec, spec_, request.checkpoint);
    restore(state_, file, info, request.checkpoint);
    if (state_.progress.batch > per_epoch_) {
      throw CheckpointError(request.checkpoint.string() + ": stands after batch " +
                            std::to_string(state_.progress.batch) + " of an epoch, which here has " +
                            std::to_string(per_epoch_));
    }
    last_checkpoint_ = request.checkpoint;
    unsaved_ = false;
  } else if (!config_.train.init_from.empty()) {
    try {
      initial_ = load_initial(config_.train.init_from, config_, spec_, state_.tensors);
    } catch (const CheckpointError& e) {
      throw CheckpointError(std::string("train.init_from: ") + e.what());
    }
    if (state_.ema) state_.ema = std::make_unique<Ema>(config_.train.ema_decay, state_.tensors);
  }
}

Trainer::~Trainer() = default;

bool Trainer::should_stop() const {
  if (SignalGuard::caught() != 0) return true;
  if (request_.time_limit > 0 && seconds_since(made_) >= 60 * request_.time_limit) return true;
  return passed_stop();
}

bool Trainer::passed_stop() const {
  return stop_batch_ >= 0 && state_.progress.epoch * per_epoch_ + state_.progress.batch >= stop_batch_;
}

bool Trainer::finished() const {
  return state_.progress.epoch >= config_.train.epochs || out_of_patience(state_.progress, config_.train);
}

std::string Trainer::position_now() const {
  return position(state_.progress.epoch, state_.progress.batch, config_.train.epochs, per_epoch_);
}

void Trainer::open_run(const std::filesystem::path& folder) {
  const bool resumed = !request_.checkpoint.empty();
  const Progress& p = state_.progress;
  std::filesystem::path before;  // the folder of the run that goes on here, where there is one
  if (resumed && request_.mode == RunDirectory::Mode::kNew) {
    const std::filesystem::path folder = std::filesystem::absolute(request_.checkpoint).parent_path();
    if (folder.filename() == "checkpoints") before = folder.parent_path();
  }
  const bool replaces = request_.mode == RunDirectory::Mode::kOverwrite && is_run_folder(folder);
  recorder_ = std::make_unique<Recorder>(folder, request_.mode, config_, resumed ? p.epoch + 1 : -1,
                                         resumed ? p.updates + 1 : -1, before);
  run_ = &recorder_->run();
  log_header();
  log::info((resumed ? "resuming run " : "run ") + run_->path().string() +
            (resumed ? " " + position_now() + ", from " + request_.checkpoint.string() : ""));
  if (replaces) log::info("--overwrite: it replaces the run that was there");
  if (passed_stop()) {
    char epochs[32];
    std::snprintf(epochs, sizeof epochs, "%g", request_.stop_after);
    log::info(std::string("--stop-after ") + epochs +
              ": the run has come that far already (epochs count from its start); nothing is trained");
  }
  for (const std::string& note : request_.notes) log::info(note);
  if (!initial_.empty()) log::info(initial_);
  if (resumed && request_.mode == RunDirectory::Mode::kNew) copy_best();
  if (resumed && p.best_epoch > 0 && !has_best()) {
    log::warning(run_->best().string() + ": the checkpoint of the best epoch so far, " +
                 std::to_string(p.best_epoch) + ", is not there" +
                 (std::filesystem::exists(run_->best())
                      ? " (another one is); name the checkpoint to axial eval and "
                        "axial predict until an epoch is better"
                      : "; axial eval and axial predict take last.safetensors until "
                        "an epoch is better"));
  }
}

// Is the checkpoint of the best epoch there, and not that of another one (of rows that are trained anew, say)?
bool Trainer::has_best() const {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(run_->best(), ignored)) return false;
  try {
    const SafetensorsFile file = read_safetensors(run_->best());
    return checkpoint_info(file, run_->best()).progress.best_epoch == state_.progress.best_epoch;
  } catch (const CheckpointError&) {
    return false;
  }
}

// A run that goes on in a folder of its own takes along the best checkpoint so far, where that lies beside the one it
// starts from.
void Trainer::copy_best() {
  const std::filesystem::path best = request_.checkpoint.parent_path() / run_->best().filename();
  std::error_code ignored;
  if (state_.progress.best_epoch == 0 || !std::filesystem::exists(best, ignored)) return;
  const SafetensorsFile file = read_safetensors(best);
  if (checkpoint_info(file, best).progress.best_epoch == state_.progress.best_epoch)
    write_safetensors(run_->best(), file);
}

void Trainer::log_header() const {
  std::int64_t parameters = 0, trained = 0;
  for (const auto& p : state_.model->parameters()) {
    parameters += p.numel();
    if (p.requires_grad()) trained += p.numel();
  }
  log_run_header(
      {config_, spec_, parameters, trained, state_.model->grid(), device_, sets_, per_epoch_, updates_per_epoch_});
}

TrainResult Trainer::run() {
  const OwnStream stream(device_);
  Progress& p = state_.progress;
  TrainResult result;
  result.run = request_.run;
  if (!request_.checkpoint.empty() && finished()) {
    result.nothing_to_do = true;
  } else {
    const std::string checked = self_check(config_, state_.model->grid(), device_);
    // Only now: what could be wrong with data, model and device has been seen, and leaves no empty folder behind.
    const SignalGuard signals;  // from here on a signal leaves a run that can go on
    if (result.run.empty()) result.run = new_run_path(config_.train.output, config_.data.dataset);
    open_run(result.run);
    if (!checked.empty()) log::info(checked);
    const std::int64_t began = tried_ = p.updates + p.skipped;
    seconds_before_ = p.train_seconds;
    epoch_began_ = p.train_seconds - p.epoch_seconds;
    images_before_ = p.images;
    epoch_images_before_ = p.images - p.batch * config_.data.batch_size;
    started_ = last_report_ = Clock::now();
    while (!finished() && !should_stop()) {
      train_epoch();
      if (p.batch >= per_epoch_) end_epoch();
    }
    log::progress_done();
    note_time();
    result.signal = SignalGuard::caught();
    if (unsaved_) save(run_->last());
    if (!finished()) {
      // Where nothing was trained there may be a newer one in the folder.
      const bool as_it_was = !request_.checkpoint.empty() && p.updates + p.skipped == began;
      log::info("stopped " + position_now() +
                "; continue with: axial train --resume=" + (as_it_was ? request_.checkpoint : run_->path()).string());
    } else if (p.best_epoch > 0) {
      char best[96];
      std::snprintf(best, sizeof best, "best: epoch %lld, top1 %.2f %% of the %s",
                    static_cast<long long>(p.best_epoch), 100 * p.best_top1, chosen_by(config_).c_str());
      log::info(std::string(best) +
                (has_best() ? " in checkpoints/best.safetensors, which axial eval and axial predict take"
                            : ", whose checkpoint is not there: name one to axial eval and axial predict"));
    }
  }
  result.finished = finished();
  result.epochs = p.epoch;
  result.train_seconds = p.train_seconds;
  result.images_per_second = p.train_seconds > 0 ? static_cast<double>(p.images) / p.train_seconds : 0;
  result.top1 = known(p.last_top1);
  result.loss = known(p.last_loss);
  result.best_top1 = known(p.best_top1);
  result.best_epoch = p.best_epoch;
  if (sets_.held_out && !result.finished) {
    result.top1 = result.loss = std::numeric_limits<double>::quiet_NaN();  // the test set was not looked at yet
  } else if (sets_.held_out) {
    data::Batches test(sets_.test, batch_options(config_, spec_, false), device_, compute_type(config_.train.precision));
    const Evaluation e = validate(test);
    result.top1 = e.top1;
    result.loss = e.loss;
  }
  log::close_file();
  return result;
}

void Trainer::note_time() {
  Progress& p = state_.progress;
  p.train_seconds = seconds_before_ + seconds_since(started_);
  p.epoch_seconds = p.train_seconds - epoch_began_;
}

void Trainer::save(const std::filesystem::path& path) {
  look(0);
  note_time();
  write_safetensors(path, to_checkpoint(state_, config_, spec_));
  last_checkpoint_ = path;
  if (path == run_->last()) unsaved_ = false;
}

void Trainer::dry_run() {
  log_header();
  for (const std::string& note : request_.notes) log::info(note);
  if (!initial_.empty()) log::info(initial_);
  std::cout << summary_table(model_parts(*state_.model));
  if (finished()) {
    log::info(request_.checkpoint.string() + ": the run is finished; there would be nothing to do");
    return;
  }
  if (const std::string checked = self_check(config_, state_.model->grid(), device_); !checked.empty())
    log::info(checked);
  train_mode(*state_.model);
  const data::Batch batch = train_batches_.get(state_.progress.epoch, 0);
  const MemoryMeter meter;
  const at::Tensor logits = state_.model->forward(batch.images, RandomState{state_.rng, 0}).to(at::kFloat);
  const at::Tensor loss = at::cross_entropy_loss(logits, batch.labels);
  const std::int64_t kept = meter.now();
  loss.backward();
  std::int64_t weights = 0;
  for (const auto& entry : state_.tensors) weights += static_cast<std::int64_t>(entry.second.nbytes());
  for (const auto& entry : state_.optimizer.state()) weights += static_cast<std::int64_t>(entry.second.nbytes());
  if (state_.ema) {
    for (const auto& entry : state_.ema->tensors()) weights += static_cast<std::int64_t>(entry.second.nbytes());
  }
  std::cout << "memory: " << size_text(static_cast<double>(weights)) << " of weights and optimiser; a batch of "
            << batch.labels.size(0) << " keeps " << size_text(static_cast<double>(kept))
            << " of activations for the backward, and takes " << size_text(static_cast<double>(meter.peak()))
            << " at most with its gradients\n";
  log::info("one batch forward and backward: loss " + std::to_string(loss.item<double>()) +
            "; nothing was trained or written");
}

TrainResult train(const TrainRequest& request) { return Trainer(request).run(); }

void dry_run(const TrainRequest& request) { Trainer(request).dry_run(); }

}  // namespace axial::app
