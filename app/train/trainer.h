// The training loop: batches, updates, validation, checkpoints, the progress line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>

#include "app/config/config.h"

namespace axial::app {

// Training cannot go on (a loss that is not finite, say): step, quantity and the last good checkpoint. Exit 1.
struct TrainError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct TrainRequest {
  Config config;
  std::filesystem::path run;         // the run's folder
  std::filesystem::path checkpoint;  // to resume from; empty: a new run
  bool overwrite = false;
  double stop_after = 0;             // epochs in all (fractions stop in mid-epoch); 0: to the end
};

struct TrainResult {
  double top1 = -1, loss = -1;  // of the test set, after the last complete epoch
  std::int64_t epochs = 0;      // complete ones, in all
  double images_per_second = 0, train_seconds = 0;
  bool finished = false;        // all of train.epochs are done
  bool nothing_to_do = false;   // the run had been finished before
  int signal = 0;               // SIGINT or SIGTERM, when that ended it; a checkpoint is written
};

TrainResult train(const TrainRequest& request);

// Checks everything and trains nothing: data, model, device, one forward and backward of one batch. Logs
// what a run would be.
void dry_run(const Config& config);

}  // namespace axial::app
