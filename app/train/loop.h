// The training loop's own class: trainer.cpp starts, ends and saves a run, epoch.cpp leads through an epoch, whose
// updates step.h makes.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "app/train/build.h"
#include "app/train/evaluate.h"
#include "app/train/recorder.h"
#include "app/train/state.h"
#include "app/train/step.h"
#include "app/train/trainer.h"
#include "app/train/watch.h"

namespace axial {
class Anomaly;
}

namespace axial::app {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Trainer {
 public:
  explicit Trainer(const TrainRequest& request);
  ~Trainer();
  TrainResult run();
  void dry_run();

 private:
  void log_header() const;
  void open_run(const std::filesystem::path& folder);
  void copy_best();
  bool has_best() const;
  void train_epoch();
  void tell_of_graph();
  void look(std::size_t left);
  void see(const Sighting& sighting);
  void end_epoch();
  void save_epoch(bool due);
  void report_progress(const Sighting& sighting);
  void note_time();
  void save(const std::filesystem::path& path);
  bool should_stop() const;
  bool passed_stop() const;  // --stop-after has been reached
  bool finished() const;
  Evaluation validate(data::Batches& batches);
  double seconds_left(const Moment& at, double rate) const;
  [[noreturn]] void fail_nonfinite(const std::string& where, const std::string& what, double value);
  std::string position_now() const;
  std::string first_culprit() const;

  const Clock::time_point made_ = Clock::now();  // what the time limit counts from
  const TrainRequest& request_;
  const Config& config_;
  at::Device device_;
  DataSets sets_;
  ImageSpec spec_;
  data::Batches train_batches_, validation_batches_;
  TrainingState state_;
  Step step_;
  std::unique_ptr<Anomaly> anomaly_;  // null: train.detect_anomaly is off
  std::string culprit_;               // what it found in the latest update, in words
  Watch watch_;
  std::unique_ptr<Recorder> recorder_;
  const RunDirectory* run_ = nullptr;  // the recorder's
  std::filesystem::path last_checkpoint_;
  std::string initial_;  // what was taken from train.init_from
  bool graph_told_ = false;
  bool unsaved_ = true;  // last.safetensors does not hold this state

  std::int64_t tried_ = 0;  // updates asked for, in all; skipped ones, too
  std::int64_t per_epoch_ = 0, updates_per_epoch_ = 0, stop_batch_ = -1;
  Clock::time_point started_;  // of this process's training; seconds_before_ is what earlier ones took
  double seconds_before_ = 0, epoch_began_ = 0;  // epoch_began_: of all that was trained
  std::int64_t images_before_ = 0, epoch_images_before_ = 0;
  double evaluating_ = 0, evaluation_ = 0;  // seconds of this process's evaluations, and of the latest one
  Clock::time_point last_report_;
};

}  // namespace axial::app
