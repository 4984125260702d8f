// Everything that a run carries from update to update, and its checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "app/checkpoint/safetensors.h"
#include "app/config/config.h"
#include "app/train/build.h"
#include "app/train/control.h"
#include "app/train/optimizer.h"
#include "app/train/views.h"

// torch::nn costs a source seconds to compile: who calls the model includes model/classifier.h, who passes it on
// does not.
namespace torch::nn {
class Module;
}
namespace axial {
class AxialClassifierImpl;
}

namespace axial::app {

// Where a run stands: `epoch` epochs are complete, and `batch` batches of the next one. What is said of it counts
// from 1 (position in report.h).
struct Progress {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;
  std::int64_t updates = 0;      // optimiser steps made: what the schedule follows
  std::int64_t skipped = 0;      // updates left out because a gradient was not finite
  std::int64_t good_in_row = 0;  // updates since the last change of the loss scale
  double loss_scale = 1;
  double best_top1 = -1;  // validation accuracy of the best epoch so far; -1: none yet
  double best_loss = std::numeric_limits<double>::infinity();  // its loss
  std::int64_t best_epoch = 0;
  std::int64_t stale = 0;  // evaluations since then: what train.patience counts
  std::vector<std::pair<std::int64_t, double>>
      top;  // epoch and value of those that train.keep_best keeps, best first
  double train_seconds = 0, epoch_seconds = 0;  // in all, and of the epoch that is under way
  std::int64_t images = 0;       // trained on so far
  double last_top1 = -1, last_loss = -1;  // of the latest validation; -1: none yet
};

// An evaluation after epoch `epoch`: whether it is the best by train.eval_metric, which is noted. One that is not
// finite never is.
bool note_evaluation(Progress& progress, const TrainConfig& config, std::int64_t epoch, double top1, double loss);
// train.patience is at its end.
bool out_of_patience(const Progress& progress, const TrainConfig& config);

// Parameters and buffers by name, in a fixed order.
NamedTensors named_tensors(const torch::nn::Module& module);

// An exponential moving average of parameters and buffers (Polyak and Juditsky 1992); the decay warms up as
// min(decay, (1 + n) / (10 + n)) over its n updates. Integer buffers are copied.
class Ema {
 public:
  Ema(double decay, const NamedTensors& model);
  // The weight of the model in update `n`, counted from 0.
  double weight(std::int64_t n) const;
  // weight: float32 [] on the model's device; 0 leaves the average as it is. Counts nothing.
  void update(const NamedTensors& model, const at::Tensor& weight);
  const NamedTensors& tensors() const { return tensors_; }
  std::int64_t updates = 0;

 private:
  double decay_;
  NamedTensors tensors_;
};

// Puts the values of `with` into `model` for as long as it lives (evaluation of the average).
class SwapGuard {
 public:
  SwapGuard(const NamedTensors& model, const NamedTensors& with);
  ~SwapGuard();
  SwapGuard(const SwapGuard&) = delete;
  SwapGuard& operator=(const SwapGuard&) = delete;

 private:
  NamedTensors model_, saved_;
};

struct TrainingState {
  TrainingState(const Config& config, const ImageSpec& spec, at::Device device);

  std::shared_ptr<AxialClassifierImpl> model;
  NamedTensors tensors;      // of the model: parameters and buffers
  Optimizer optimizer;
  std::unique_ptr<Ema> ema;  // null: off
  at::Tensor rng;            // int64 [2] {seed, offset}, on the device
  Control control;           // counters and sums, on the device
  // As the host last read it of the device (note): updates, skipped, good_in_row and loss_scale follow.
  Progress progress;
  void note(const Readout& readout);
};

inline constexpr std::int64_t kCheckpointFormat = 1;

// A checkpoint's metadata, read and checked.
struct CheckpointInfo {
  std::string version;  // of the axial that wrote it
  Config config;
  ImageSpec spec;
  Progress progress;
  std::int64_t ema_updates = 0;
  std::int64_t threads = 0;  // CPU threads that it was trained with, on which the last bits depend; 0: not known
  bool has_ema = false;
};

SafetensorsFile to_checkpoint(const TrainingState& state, const Config& config, const ImageSpec& spec);
// Throws CheckpointError where the metadata is not what to_checkpoint writes.
CheckpointInfo checkpoint_info(const SafetensorsFile& file, const std::filesystem::path& path);
// Model, averages, optimiser, random streams and progress; all checked before anything changes.
void restore(TrainingState& state, const SafetensorsFile& file, const CheckpointInfo& info,
             const std::filesystem::path& path);

// Throws CheckpointError where a weight is not a finite number.
void check_finite(const std::filesystem::path& path, const std::string& name, const at::Tensor& value);

// A model for evaluation: the averaged weights where the checkpoint has them.
struct LoadedModel {
  CheckpointInfo info;
  std::shared_ptr<AxialClassifierImpl> model;
  at::Device device = at::kCPU;
  Views views;  // of each image: logits_of answers
};
// Says so where an image is seen from several views.
LoadedModel load_model(const std::filesystem::path& checkpoint, const std::string& device_name,
                       const std::vector<std::string>& overrides);

// A run's folder stands for its best checkpoint (its last one where there is no best yet).
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

}  // namespace axial::app
