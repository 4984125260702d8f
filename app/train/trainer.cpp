#include "app/train/trainer.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>

#include <ATen/ATen.h>

#include "app/config/load.h"
#include "app/run/log.h"
#include "app/train/build.h"
#include "app/train/checks.h"
#include "app/train/evaluate.h"
#include "app/train/recorder.h"
#include "app/train/report.h"
#include "app/train/schedule.h"
#include "app/train/signals.h"
#include "app/train/state.h"
#include "model/classifier.h"

namespace axial::app {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double known(double value) { return value < 0 ? std::numeric_limits<double>::quiet_NaN() : value; }

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// float16's loss scale: halved where a gradient overflows, doubled after this many good updates.
constexpr std::int64_t kScaleGrowthInterval = 2000;
constexpr double kMaxScale = 1 << 24;
constexpr double kMinScale = 1.0 / (1 << 10);

class Trainer {
 public:
  explicit Trainer(const TrainRequest& request);
  TrainResult run();
  void dry_run();

 private:
  void log_header() const;
  void open_run(const std::filesystem::path& folder);
  void copy_best();
  void train_epoch();
  void update();
  void forward_backward(const data::Batch& batch, std::int64_t micro_batches);
  void end_epoch();
  void report_progress(bool end_of_epoch);
  void save(const std::filesystem::path& path);
  bool should_stop() const;
  Evaluation validate(data::Batches& batches);
  [[noreturn]] void fail_nonfinite(const std::string& what, double value);
  std::string position_now() const;

  const TrainRequest& request_;
  const Config& config_;
  at::Device device_;
  DataSets sets_;
  ImageSpec spec_;
  data::Batches train_batches_, validation_batches_;
  TrainingState state_;
  std::unique_ptr<Recorder> recorder_;
  const RunDirectory* run_ = nullptr;  // the recorder's
  std::filesystem::path last_checkpoint_;
  bool unsaved_ = true;  // last.safetensors does not hold this state

  std::int64_t per_epoch_ = 0, updates_per_epoch_ = 0, stop_batch_ = -1;
  NamedTensors buffers_;        // running statistics, which a skipped update must not keep
  std::vector<at::Tensor> buffers_before_;
  at::Tensor group_sums_;       // float64 [3] of the micro-batches since the last update
  Clock::time_point started_;   // of this process's training; seconds_before_ is what earlier ones took
  double seconds_before_ = 0;
  std::int64_t images_before_ = 0;
  Clock::time_point last_report_;
};

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
      state_(config_, spec_, device_) {
  check_norm(config_, state_.model->grid(), sets_.train.size());
  per_epoch_ = train_batches_.per_epoch();
  updates_per_epoch_ = ceil_div(per_epoch_, config_.train.accumulate);
  if (request.stop_after > 0)
    stop_batch_ = std::max(1LL, std::llround(request.stop_after * static_cast<double>(per_epoch_)));
  for (const auto& item : state_.model->named_buffers(true)) buffers_.emplace_back(item.key(), item.value());
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
  }
}

bool Trainer::should_stop() const {
  if (SignalGuard::caught() != 0) return true;
  return stop_batch_ >= 0 && state_.progress.epoch * per_epoch_ + state_.progress.batch >= stop_batch_;
}

std::string Trainer::position_now() const {
  return position(state_.progress.epoch, state_.progress.batch, config_.train.epochs, per_epoch_);
}

void Trainer::log_header() const {
  std::int64_t parameters = 0;
  for (const auto& p : state_.model->parameters()) parameters += p.numel();
  log_run_header({config_, spec_, parameters, state_.model->grid(), device_, sets_, per_epoch_, updates_per_epoch_});
}

void Trainer::open_run(const std::filesystem::path& folder) {
  const bool resumed = !request_.checkpoint.empty();
  recorder_ = std::make_unique<Recorder>(folder, request_.mode, config_, resumed ? state_.progress.updates + 1 : -1);
  run_ = &recorder_->run();
  log_header();
  log::info((resumed ? "resuming run " : "run ") + run_->path().string() +
            (resumed ? " " + position_now() + ", from " + request_.checkpoint.string() : ""));
  for (const std::string& note : request_.notes) log::info(note);
  if (resumed && request_.mode == RunDirectory::Mode::kNew) copy_best();
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

TrainResult Trainer::run() {
  Progress& p = state_.progress;
  TrainResult result;
  result.run = request_.run;
  if (!request_.checkpoint.empty() && p.epoch >= config_.train.epochs) {
    result.nothing_to_do = true;
  } else {
    // Only now: what could be wrong with data, model and device has been seen, and leaves no empty folder behind.
    if (result.run.empty()) result.run = new_run_path(config_.train.output, config_.data.dataset);
    open_run(result.run);
    seconds_before_ = p.train_seconds;
    images_before_ = p.images;
    const SignalGuard signals;
    started_ = last_report_ = Clock::now();
    while (p.epoch < config_.train.epochs && !should_stop()) {
      train_epoch();
      if (p.batch >= per_epoch_) end_epoch();
    }
    log::progress_done();
    p.train_seconds = seconds_before_ + seconds_since(started_);
    result.signal = SignalGuard::caught();
    if (unsaved_) save(run_->last());
    if (p.epoch < config_.train.epochs) {
      log::info("stopped " + position_now() + "; continue with: axial train --resume=" + run_->path().string());
    } else if (p.best_epoch > 0) {
      char best[64];
      std::snprintf(best, sizeof best, "best: epoch %lld, top1 %.2f %%", static_cast<long long>(p.best_epoch),
                    100 * p.best_top1);
      log::info(std::string(best) + " in checkpoints/best.safetensors, which axial eval and axial predict take");
    }
  }
  result.finished = p.epoch >= config_.train.epochs;
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
    data::Batches test(sets_.test, batch_options(config_, spec_, false), device_,
                       compute_type(config_.train.precision));
    const Evaluation e = validate(test);
    result.top1 = e.top1;
    result.loss = e.loss;
  }
  log::close_file();
  return result;
}

void Trainer::train_epoch() {
  Progress& p = state_.progress;
  state_.model->train();
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
  const std::string line = progress_line({p.epoch, config_.train.epochs, p.batch, per_epoch_, s[0] / s[2],
                                          s[1] / s[2], config_.optim.lr * factor, rate, left});
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
  const bool last = finished == config_.train.epochs;
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
    // A loss that is not finite never becomes the best; comparison with NaN is false.
    improved = std::isfinite(e.loss) && e.top1 > p.best_top1;
    if (improved) {
      p.best_top1 = e.top1;
      p.best_epoch = finished;
    }
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
  if (last || stopping || finished % config_.train.checkpoint_every == 0) {
    if (config_.train.keep_last > 0) {
      save(run_->epoch(finished));
      run_->keep_last(config_.train.keep_last);
    }
    save(run_->last());
  }
}

void Trainer::save(const std::filesystem::path& path) {
  write_safetensors(path, to_checkpoint(state_, config_, spec_));
  last_checkpoint_ = path;
  if (path == run_->last()) unsaved_ = false;
}

void Trainer::dry_run() {
  log_header();
  for (const std::string& note : request_.notes) log::info(note);
  if (state_.progress.epoch >= config_.train.epochs) {
    log::info(request_.checkpoint.string() + ": the run is finished; there would be nothing to do");
    return;
  }
  const data::Batch batch = train_batches_.get(state_.progress.epoch, 0);
  const at::Tensor logits = state_.model->forward(batch.images, RandomState{state_.rng, 0}).to(at::kFloat);
  const at::Tensor loss = at::cross_entropy_loss(logits, batch.labels);
  loss.backward();
  log::info("one batch forward and backward: loss " + std::to_string(loss.item<double>()) +
            "; nothing was trained or written");
}

}  // namespace

TrainResult train(const TrainRequest& request) { return Trainer(request).run(); }

void dry_run(const TrainRequest& request) { Trainer(request).dry_run(); }

}  // namespace axial::app
