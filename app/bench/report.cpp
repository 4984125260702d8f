#include "app/bench/report.h"

#include <algorithm>
#include <cstdio>

#include <torch/version.h>

#include "app/version.h"

namespace axial::app::bench {

namespace {

constexpr Direction kDirections[] = {Direction::kForward, Direction::kForwardBackward};

const char* name(Backend backend) { return backend == Backend::kFused ? "fused" : "reference"; }
const char* name(Direction direction) { return direction == Direction::kForward ? "fwd" : "fwd+bwd"; }

const std::optional<Times>& times_of(const Measurement& m, Direction direction) {
  return direction == Direction::kForward ? m.forward : m.both;
}

template <class... Values>
std::string format(const char* pattern, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string cell(const std::optional<double>& value, const char* pattern) {
  return value ? format(pattern, *value) : "-";
}

std::optional<double> median(const std::optional<Timing>& timing) {
  return timing ? std::optional(timing->median) : std::nullopt;
}
std::optional<double> spread(const std::optional<Timing>& timing) {
  return timing ? std::optional(timing->spread_percent()) : std::nullopt;
}

nlohmann::ordered_json to_json(const std::optional<Timing>& t) {
  if (!t) return nullptr;
  return {{"median_ms", t->median}, {"p10_ms", t->p10}, {"p90_ms", t->p90}, {"min_ms", t->least}};
}

}  // namespace

Report::Report(Run run, const std::vector<Shape>& shapes) : run_(std::move(run)) {
  for (const Shape& shape : shapes) shape_width_ = std::max(shape_width_, static_cast<int>(shape.name.size()));
}

std::optional<Floor> Report::floor(const Measurement& m, Direction direction) const {
  if (!run_.rates) return {};
  return floor_of(m.shape, m.type, *run_.rates, direction);
}

std::string Report::header() const {
  return format("%-*s %-8s %-9s %-7s %9s %5s %9s %5s %9s %9s %-6s %8s %6s %8s  %s\n", shape_width_, "shape", "type",
                "backend", "pass", "eager ms", "+-%", "replay ms", "+-%", "amortised", "floor ms", "by", "x floor",
                "x ref", "MiB", "kernel");
}

std::string Report::rows(const std::vector<Measurement>& backends) const {
  std::string text;
  for (const Direction direction : kDirections) {
    std::optional<double> reference;
    for (const Measurement& m : backends) {
      const auto& times = times_of(m, direction);
      if (m.backend == Backend::kReference && times) reference = times->fastest();
    }
    for (const Measurement& m : backends) {
      const auto& times = times_of(m, direction);
      text += format("%-*s %-8s %-9s %-7s ", shape_width_, m.shape.name.c_str(), m.type.name.c_str(), name(m.backend),
                     name(direction));
      if (!times) {
        text += m.problem + "\n";
        continue;
      }
      const auto floor = this->floor(m, direction);
      std::optional<double> to_floor, to_reference, mebibytes;
      if (floor) to_floor = times->fastest() / floor->ms;
      if (reference && m.backend == Backend::kFused) to_reference = *reference / times->fastest();
      if (direction == Direction::kForwardBackward && m.peak_bytes) {
        mebibytes = static_cast<double>(*m.peak_bytes) / (1 << 20);
      }
      const std::string replay = times->graph_problem.empty() ? cell(median(times->replay), "%.4f") : "failed";
      text += format(
          "%9.4f %5.1f %9s %5s %9s %9s %-6s %8s %6s %8s  ", times->eager.median, times->eager.spread_percent(),
          replay.c_str(), cell(spread(times->replay), "%.1f").c_str(), cell(median(times->amortised), "%.4f").c_str(),
          cell(floor ? std::optional(floor->ms) : std::nullopt, "%.4f").c_str(), floor ? floor->bound.c_str() : "-",
          cell(to_floor, "%.2f").c_str(), cell(to_reference, "%.2f").c_str(), cell(mebibytes, "%.1f").c_str());
      text += m.kernel + "\n";
    }
  }
  return text;
}

std::string Report::footer(const std::vector<Measurement>& all) const {
  const Traits& traits = run_.machine->traits();
  std::string text;
  for (const Measurement& m : all) {
    for (const Direction direction : kDirections) {
      const auto& times = times_of(m, direction);
      if (times && !times->graph_problem.empty()) {
        text += m.shape.name + " " + m.type.name + " " + name(m.backend) + " " + name(direction) +
                ": no graph: " + times->graph_problem + "\n";
      }
    }
  }
  text += "\n" + traits.name + ", libtorch " + TORCH_VERSION + ", axial " + kVersion + ", " + run_.date + "\n";
  text += format(
      "One layer: a row pass and a column pass. Medians of %d calls after a warm-up; +-%%: half the span of the "
      "middle 80 %%.\npass: fwd the forward alone, fwd+bwd with the backward. eager: calls one by one from the host. "
      "kernel: "
      "what ran, forward / backward.\nInputs and results rotate over twice the last cache (%zu MiB), or 128 sets "
      "where "
      "they are "
      "small.\n",
      run_.repeats, traits.cache_bytes >> 20);
  const bool avx3 = std::any_of(all.begin(), all.end(),
                                [](const Measurement& m) { return m.kernel.find("AVX3") != std::string::npos; });
  if (avx3) text += "AVX3 is what Highway calls AVX-512.\n";
  if (!run_.rates) {
    return text + format(
                      "On %d threads, by the steady clock; x ref: times as fast as the reference. What needs a GPU "
                      "is -: graphs (replay, amortised), the floor, and MiB.\n",
                      traits.threads);
  }
  const Rates& rates = *run_.rates;
  text +=
      "By device events. replay: one replay of a CUDA graph; amortised: among many, back to back.\n"
      "x floor, x ref: the fastest of the three against the floor and against the reference's. MiB: what a forward "
      "and "
      "backward adds.\n";
  text += format(
      "Floor: the longest of bytes, operations, exponentials (by: which), for each pass and direction, at\n"
      "  %.2f TB/s: a device copy of %lld MiB, measured\n",
      1e-12 * rates.copy_bytes, static_cast<long long>(kCopyBytes >> 20));
  for (const auto& [type, rate] : rates.matrix) {
    text += format("  %.1f TFLOP/s in %s: a library product of %lld cubed, measured\n", 1e-12 * rate, type.c_str(),
                   static_cast<long long>(kMatrixSize));
  }
  return text + format("  %.2f T exponentials/s: 16 a clock on %d multiprocessors at %.0f MHz, stated\n",
                       1e-12 * rates.exponentials, traits.multiprocessors, 1e-6 * traits.clock_hz);
}

nlohmann::ordered_json Report::json(const std::vector<Measurement>& all) const {
  using nlohmann::ordered_json;
  const Traits& traits = run_.machine->traits();
  ordered_json device = {
      {"name", traits.name}, {"device", run_.machine->device().str()}, {"cache_bytes", traits.cache_bytes}};
  ordered_json rates = nullptr;
  if (run_.rates) {
    device["multiprocessors"] = traits.multiprocessors;
    device["clock_hz"] = traits.clock_hz;
    rates = {{"copy_bytes_per_second", run_.rates->copy_bytes},
             {"matrix_operations_per_second", run_.rates->matrix},
             {"exponentials_per_second", run_.rates->exponentials}};
  } else {
    device["threads"] = traits.threads;
  }
  ordered_json results = ordered_json::array();
  for (const Measurement& m : all) {
    const Shape& s = m.shape;
    ordered_json result = {{"shape", s.name},      {"sizes", {s.batch, s.height, s.width, s.dim, s.heads}},
                           {"dtype", m.type.name}, {"backend", name(m.backend)},
                           {"kernel", m.kernel},   {"buffers", m.buffers}};
    for (const Direction direction : kDirections) {
      const auto& times = times_of(m, direction);
      ordered_json& entry = result[direction == Direction::kForward ? "forward" : "forward_backward"];
      if (!times) continue;  // null
      entry["eager"] = to_json(times->eager);
      entry["replay"] = to_json(times->replay);
      entry["amortised"] = to_json(times->amortised);
      if (!times->graph_problem.empty()) entry["graph_problem"] = times->graph_problem;
      entry["fastest_ms"] = times->fastest();
      if (const auto floor = this->floor(m, direction)) {
        entry["floor_ms"] = floor->ms;
        entry["floor_by"] = floor->bound;
        entry["to_floor"] = times->fastest() / floor->ms;
      }
    }
    result["peak_bytes"] = m.peak_bytes ? ordered_json(*m.peak_bytes) : ordered_json(nullptr);
    if (!m.problem.empty()) result["problem"] = m.problem;
    results.push_back(result);
  }
  return {{"axial", kVersion}, {"libtorch", TORCH_VERSION}, {"date", run_.date},
          {"device", device},  {"repeats", run_.repeats},   {"rates", rates},
          {"results", results}};
}

}  // namespace axial::app::bench
