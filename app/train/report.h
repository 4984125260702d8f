// What a run says while it trains: header, progress line, epoch line, metrics row.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/train/build.h"

namespace axial::app {

struct RunHeader {
  const Config& config;
  const ImageSpec& spec;
  std::int64_t parameters, trained;            // of the model; of them, those that are not frozen
  std::pair<std::int64_t, std::int64_t> grid;  // its tokens: rows, columns
  at::Device device;
  const DataSets& sets;
  std::int64_t batches, updates;  // an epoch
};
void log_run_header(const RunHeader& header);

// What a user should know of the files that a set was read from, as warnings.
void log_notes(const data::Dataset& set);

// Where a run stands, counted from 1 as the progress line counts: "after epoch 2/12", "within epoch 3/12, after batch
// 44/64", "before the first batch". `epochs` are complete, `batch` batches of the next are done; batches 0: unknown.
std::string position(std::int64_t epochs_done, std::int64_t batch, std::int64_t epochs, std::int64_t batches = 0);

struct ProgressLine {
  std::int64_t epoch, epochs, batch, batches;
  double loss, top1, lr, rate, seconds_left;
  std::int64_t memory;  // bytes that libtorch holds on the device; 0: not known
};
// What a narrow terminal cuts off stands last.
std::string progress_line(const ProgressLine& p);

// Bytes that libtorch has taken on a GPU; 0 on the CPU.
std::int64_t device_memory(at::Device device);

// A duration for people: 4.2 s, 42 s, 3:07, 1:02:03.
std::string duration(double seconds);

struct EpochReport {
  std::int64_t epoch = 0, step = 0;
  double lr = 0, train_loss = 0, train_top1 = 0;
  double val_loss = std::numeric_limits<double>::quiet_NaN(), val_top1 = val_loss;  // NaN: not evaluated
  double best_top1 = val_loss;                                                      // NaN: none yet
  double images_per_second = 0;                                                     // of the epoch
  double epoch_seconds = 0, seconds = 0;  // of the epoch with its evaluation, and of the run so far

  static std::vector<std::string> csv_columns();
  std::vector<std::string> csv_row() const;  // in that order; empty where unknown
  std::vector<std::pair<std::string, double>> scalars() const;
  // held_out: else it is the test set that validates; by_loss: what the best one is chosen by.
  std::string line(std::int64_t epochs, bool held_out, bool by_loss = false) const;
};

}  // namespace axial::app
