// What run folders say of themselves, from their small files alone: config.yaml, metrics.csv, train.log, .lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "app/config/config.h"

namespace axial::app {

// A row of metrics.csv; NaN where a field is empty.
struct EpochMetrics {
  double epoch = 0, lr = 0, train_loss = 0, train_top1 = 0, val_loss = 0, val_top1 = 0, images_per_second = 0,
         seconds = 0;
};

enum class RunState {
  kRunning,   // a process holds the run's lock
  kFinished,  // all of its epochs are done
  kStopped,   // by a signal, --stop-after or --time-limit, as its log says last
  kFailed     // an error, or a death without a word
};
std::string name_of(RunState state);

struct RunSummary {
  std::filesystem::path path;
  Config config;
  std::string problem;  // why config.yaml could not be read; the configuration is then the default one
  std::string metrics_problem;   // what of metrics.csv could not be read
  bool metrics_readable = true;  // else nothing of it was
  RunState state = RunState::kFailed;
  std::string last_line;  // of train.log, without its time
  std::vector<EpochMetrics> epochs;
  double best_top1 = std::numeric_limits<double>::quiet_NaN();  // of the set that validates; NaN: not evaluated
  std::int64_t best_epoch = 0;
  double age_seconds = 0;  // since it last wrote

  std::int64_t epochs_done() const;
};

// Throws RunError where `path` is no run's folder (is_run_folder).
RunSummary read_run(const std::filesystem::path& path);
// `root` itself where it is a run, else the runs in it; newest first. Throws RunError where it cannot be listed.
std::vector<RunSummary> list_runs(const std::filesystem::path& root);

// "42 s", "7 min", "3 h", "5 d".
std::string age_text(double seconds);

}  // namespace axial::app
