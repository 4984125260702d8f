// What a run leaves in its folder besides checkpoints: configuration, log, metrics, TensorBoard events.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/run/run_directory.h"
#include "app/train/report.h"

namespace axial::app {

class Recorder {
 public:
  // Makes the folder and opens everything. Rows from resume_epoch on and TensorBoard's records from resume_step on
  // are void; -1: a new run. `from` is the folder of the run that goes on here, where that is another one: its rows
  // and records so far are taken along. Throws RunError.
  Recorder(const std::filesystem::path& folder, RunDirectory::Mode mode, const Config& config,
           std::int64_t resume_epoch, std::int64_t resume_step, const std::filesystem::path& from = {});
  // The log's file stays open for the error that may end the run; who ends it well closes it.

  const RunDirectory& run() const { return run_; }
  // Metrics are a by-product: where they cannot be written that is a warning, and costs no epoch.
  void epoch(const EpochReport& report);
  void progress(std::int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  RunDirectory run_;
  std::unique_ptr<MetricsCsv> csv_;
  std::unique_ptr<EventWriter> events_;  // null: off
};

}  // namespace axial::app
