// `axial bench --step`: the training step of a configuration, on images of its set's shape that are made up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/bench/machine.h"
#include "app/bench/statistics.h"
#include "app/config/config.h"

namespace axial::app::bench {

// One way to run the step.
struct StepTimes {
  std::string backend;  // as model.backend
  bool graph = false;   // replayed as a CUDA graph
  std::optional<Timing> step;
  std::int64_t images = 0;                 // a step
  std::optional<std::int64_t> peak_bytes;  // weights, optimiser, images and all
  // Median ms of data, forward, backward and update, of steps that are not replayed.
  std::vector<std::pair<std::string, double>> parts;
  std::string problem;  // why the times are missing
};

// Of config on a machine of its device, `repeats` steps after a warm-up. backends: fused, reference.
std::vector<StepTimes> measure_steps(Machine& machine, const Config& config, const std::vector<std::string>& backends,
                                     int repeats);

std::string step_table(const std::vector<StepTimes>& all, const Config& config, const Machine& machine, int repeats);
nlohmann::ordered_json step_json(const std::vector<StepTimes>& all, const Config& config, const Machine& machine,
                                 int repeats, const std::string& date);

}  // namespace axial::app::bench
