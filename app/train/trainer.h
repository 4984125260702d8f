// The training loop: batches, updates, validation, checkpoints, the progress line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/run/run_directory.h"

namespace axial::app {

// Training cannot go on (a loss that is not finite, say): step, quantity and the last good checkpoint. Exit 1.
struct TrainError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct TrainRequest {
  Config config;
  std::filesystem::path run;         // the run's folder; empty: a new one under train.output, made when all is well
  std::filesystem::path checkpoint;  // to resume from; empty: a new run
  RunDirectory::Mode mode = RunDirectory::Mode::kNew;
  double stop_after = 0;             // epochs in all (fractions stop in mid-epoch); 0: to the end
  double time_limit = 0;             // minutes, from the start; 0: none. Then it stops as after stop_after
  std::int64_t threads = 0;          // where train.threads leaves them open: what the checkpoint was trained with
  std::vector<std::string> notes;    // for the log, once there is one
};

struct TrainResult {
  std::filesystem::path run;
  // Of the test set, after the last complete epoch; NaN: not evaluated yet.
  double top1 = std::numeric_limits<double>::quiet_NaN(), loss = top1;
  double best_top1 = top1;      // of the set that validates, NaN: none yet; checkpoints/best.safetensors
  std::int64_t best_epoch = 0;  // from 1
  std::int64_t epochs = 0;      // complete ones, in all
  double images_per_second = 0, train_seconds = 0;
  bool finished = false;        // all of train.epochs are done, or train.patience is at its end
  bool nothing_to_do = false;   // the run had been finished before
  int signal = 0;               // SIGINT or SIGTERM, when that ended it; a checkpoint is written
};

TrainResult train(const TrainRequest& request);

// Checks everything and trains nothing: run folder, data, model, device, checkpoint, one forward and backward of one
// batch. Logs what a run would be.
void dry_run(const TrainRequest& request);

}  // namespace axial::app
