// Times one layer (a row pass and a column pass) of one shape and type on one backend.
#pragma once

#include <optional>
#include <string>

#include "app/bench/cases.h"
#include "app/bench/machine.h"
#include "app/bench/statistics.h"
#include "model/options.h"

namespace axial::app::bench {

struct Times {
  Timing eager;
  std::optional<Timing> replay;     // one replay of the captured call
  std::optional<Timing> amortised;  // a replay among many, back to back
  std::string graph_problem;        // why the two are missing on a device that has graphs
  double fastest() const;           // the least median of the three, ms
};

struct Measurement {
  Shape shape;
  Type type;
  Backend backend = Backend::kFused;
  std::string kernel;                      // which code ran
  std::int64_t buffers = 0;                // sets of inputs and outputs that the calls went round
  std::optional<Times> forward, both;      // without gradients; forward and backward
  std::optional<std::int64_t> peak_bytes;  // what a forward and backward adds
  std::string problem;                     // why the rest is missing: the case did not fit into memory
};

Measurement measure(Machine& machine, const Shape& shape, const Type& type, Backend backend, int repeats);

}  // namespace axial::app::bench
