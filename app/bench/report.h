// What `axial bench` says: an aligned table as the cases finish, how it was made under it, and the same as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/bench/floor.h"
#include "app/bench/machine.h"
#include "app/bench/measure.h"

namespace axial::app::bench {

struct Run {
  const Machine* machine = nullptr;
  std::optional<Rates> rates;  // of a GPU
  int repeats = 0;
  std::string date;  // UTC, YYYY-MM-DDTHH:MM:SSZ
};

class Report {
 public:
  Report(Run run, const std::vector<Shape>& shapes);

  // The table's parts, each with its line ends. `backends`: one case on each of its backends.
  std::string header() const;
  std::string rows(const std::vector<Measurement>& backends) const;
  std::string footer(const std::vector<Measurement>& all) const;

  nlohmann::ordered_json json(const std::vector<Measurement>& all) const;

 private:
  std::optional<Floor> floor(const Measurement& m, Direction direction) const;

  Run run_;
  int shape_width_ = 5;
};

}  // namespace axial::app::bench
