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
  const AxialClassifierImpl& model;
  at::Device device;
  std::int64_t train_images, validation_images;
  bool held_out;
  std::int64_t batches, updates;  // an epoch
};
void log_run_header(const RunHeader& header);

struct ProgressLine {
  std::int64_t epoch, epochs, batch, batches;
  double loss, top1, lr, rate, seconds_left;
};
std::string progress_line(const ProgressLine& p);

// A duration for people: 42 s, 3:07, 1:02:03.
std::string duration(double seconds);

struct EpochReport {
  std::int64_t epoch = 0, step = 0;
  double lr = 0, train_loss = 0, train_top1 = 0;
  double val_loss = std::numeric_limits<double>::quiet_NaN(), val_top1 = val_loss;  // NaN: not evaluated
  double best_top1 = -1, images_per_second = 0, seconds = 0;

  std::vector<std::string> csv_row() const;  // in the order of metrics.csv's header; empty where unknown
  std::vector<std::pair<std::string, double>> scalars() const;
  std::string line(std::int64_t epochs) const;
};

}  // namespace axial::app
