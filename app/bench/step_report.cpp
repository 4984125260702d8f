#include <cstdio>

#include <torch/version.h>

#include "app/bench/step.h"
#include "app/counted.h"
#include "app/version.h"

namespace axial::app::bench {

namespace {

template <class... Values>
std::string format(const char* pattern, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string list(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t v : values) text += (text.empty() ? "" : ",") + std::to_string(v);
  return text;
}

double rate(const StepTimes& t) { return 1e3 * static_cast<double>(t.images) / t.step->median; }

}  // namespace

std::string step_table(const std::vector<StepTimes>& all, const Config& config, const Machine& machine, int repeats) {
  std::string text = format("%-9s %-6s %9s %5s %10s %9s  %s\n", "backend", "step", "ms", "+-%", "images/s", "MiB",
                            "data, forward, backward, update");
  for (const StepTimes& t : all) {
    text += format("%-9s %-6s ", t.backend.c_str(), t.graph ? "graph" : "eager");
    if (!t.step) {
      text += t.problem + "\n";
      continue;
    }
    const std::string memory =
        t.peak_bytes ? format("%.0f", static_cast<double>(*t.peak_bytes) / (1 << 20)) : std::string("-");
    text += format("%9.3f %5.1f %10.0f %9s ", t.step->median, t.step->spread_percent(), rate(t), memory.c_str());
    double sum = 0;
    for (const auto& part : t.parts) sum += part.second;
    for (const auto& part : t.parts) text += format(" %.3f (%.0f %%)", part.second, 100 * part.second / sum);
    text += t.parts.empty() ? " -\n" : "\n";
  }
  const Traits& traits = machine.traits();
  text += "\n" + traits.name + ", libtorch " + TORCH_VERSION + ", axial " + kVersion + "\n";
  text +=
      format("%s in %s, dim %s, depth %s, %s of %s a step, made up in the set's shape.\n", config.optim.name.c_str(),
             config.train.precision.c_str(), list(config.model.dim).c_str(), list(config.model.depth).c_str(),
             counted(config.train.accumulate, "batch").c_str(), counted(config.data.batch_size, "image").c_str());
  text += format("Medians of %s after a warm-up, by %s; +-%%: half the span of the middle 80 %%.\n",
                 counted(repeats, "step").c_str(), machine.device().is_cuda() ? "device events" : "the steady clock");
  return text + (machine.device().is_cuda()
                     ? "step: eager from the host, graph a replayed CUDA graph. MiB: the most that libtorch had "
                       "allocated. Parts: of "
                       "eager steps.\n"
                     : format("On %s: no graphs, memory not counted.\n", counted(traits.threads, "thread").c_str()));
}

nlohmann::ordered_json step_json(const std::vector<StepTimes>& all, const Config& config, const Machine& machine,
                                 int repeats, const std::string& date) {
  using nlohmann::ordered_json;
  ordered_json results = ordered_json::array();
  for (const StepTimes& t : all) {
    ordered_json result = {{"backend", t.backend}, {"graph", t.graph}, {"images", t.images}};
    if (t.step) {
      result["median_ms"] = t.step->median;
      result["p10_ms"] = t.step->p10;
      result["p90_ms"] = t.step->p90;
      result["min_ms"] = t.step->least;
      result["images_per_second"] = rate(t);
      ordered_json parts = ordered_json::object();
      for (const auto& [name, ms] : t.parts) parts[name + "_ms"] = ms;
      result["parts"] = t.parts.empty() ? ordered_json(nullptr) : parts;
    } else {
      result["problem"] = t.problem;
    }
    result["peak_bytes"] = t.peak_bytes ? ordered_json(*t.peak_bytes) : ordered_json(nullptr);
    results.push_back(result);
  }
  const Traits& traits = machine.traits();
  return {{"axial", kVersion},
          {"libtorch", TORCH_VERSION},
          {"date", date},
          {"device", {{"name", traits.name}, {"device", machine.device().str()}, {"threads", traits.threads}}},
          {"precision", config.train.precision},
          {"optimizer", config.optim.name},
          {"repeats", repeats},
          {"results", results}};
}

}  // namespace axial::app::bench
