#include <charconv>
#include <ctime>
#include <iostream>
#include <optional>
#include <tuple>
#include <utility>

#include "app/bench/cases.h"
#include "app/bench/decoding.h"
#include "app/bench/floor.h"
#include "app/bench/machine.h"
#include "app/bench/measure.h"
#include "app/bench/report.h"
#include "app/bench/step.h"
#include "app/commands/commands.h"
#include "app/config/load.h"
#include "app/run/output_file.h"
#include "app/train/build.h"

namespace axial::app {

namespace {

constexpr std::int64_t kMostPixels = 4096;  // as data.folder_height
constexpr int kRepeatsOnCuda = 50, kRepeatsOnCpu = 10;

std::vector<Backend> parse_backend(const std::string& text) {
  if (text == "fused") return {Backend::kFused};
  if (text == "reference") return {Backend::kReference};
  if (text == "both") return {Backend::kFused, Backend::kReference};
  throw ConfigError("command line: --backend: " + text + ": expected fused, reference or both");
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// "HEIGHT,WIDTH"
std::pair<std::int64_t, std::int64_t> parse_size(const std::string& text) {
  std::int64_t size[2] = {0, 0};
  const char *at = text.data(), *const end = at + text.size();
  for (int i = 0; i < 2; ++i) {
    const auto [next, error] = std::from_chars(at, end, size[i]);
    const bool good = error == std::errc() && size[i] >= 1 && size[i] <= kMostPixels &&
                      (i == 0 ? next != end && *next == ',' : next == end);
    if (!good) throw ConfigError("command line: --size: expected HEIGHT,WIDTH, found " + text);
    at = next + 1;
  }
  return {size[0], size[1]};
}

int run_decoding(const BenchArguments& a) {
  if (!a.shapes.empty() || !a.dtypes.empty())
    throw ConfigError("command line: --data: is about images; --shapes and --dtype are not");
  bench::DecodingOptions options;
  options.data = a.data;
  if (!a.size.empty()) std::tie(options.height, options.width) = parse_size(a.size);
  options.workers = a.workers;
  if (a.repeats > 0) options.repeats = a.repeats;
  std::optional<OutputFile> json;
  if (!a.json.empty()) json.emplace(a.json);
  const bench::Decoding d = bench::measure_decoding(options);
  const std::string processor = bench::make_machine(at::kCPU)->traits().name;
  std::cout << bench::decoding_table(d, processor) << std::flush;
  if (json) json->write(bench::decoding_json(d, processor, now()).dump(1) + "\n");
  return 0;
}

// The device of the configuration, where the command line names none.
int run_step(const BenchArguments& a) {
  if (!a.shapes.empty() || !a.dtypes.empty())
    throw ConfigError(
        "command line: --step: takes the shape and type of a configuration; --shapes and --dtype are not");
  std::vector<std::string> backends;
  for (const Backend backend : parse_backend(a.backend))
    backends.push_back(backend == Backend::kFused ? "fused" : "reference");
  const Config config = load_config(a.configs, a.overrides);
  configure_libtorch(config.train);
  const at::Device device =
      a.device == "auto" ? select_device(config.train.device) : select_device(a.device, "--device ");
  std::optional<OutputFile> json;
  if (!a.json.empty()) json.emplace(a.json);
  const auto machine = bench::make_machine(device);
  const int repeats = a.repeats > 0 ? a.repeats : device.is_cuda() ? kRepeatsOnCuda : kRepeatsOnCpu;
  const auto all = bench::measure_steps(*machine, config, backends, repeats);
  std::cout << bench::step_table(all, config, *machine, repeats) << std::flush;
  if (json) json->write(bench::step_json(all, config, *machine, repeats, now()).dump(1) + "\n");
  return 0;
}

}  // namespace

int run_bench(const BenchArguments& a) {
  if (a.step && !a.data.empty()) throw ConfigError("command line: --step and --data exclude each other");
  if (!a.step && !a.configs.empty()) throw ConfigError("command line: -c goes with --step");
  if (!a.step && !a.overrides.empty())
    throw ConfigError("command line: " + a.overrides.front() + ": overrides go with --step");
  if (!a.data.empty()) return run_decoding(a);
  if (!a.size.empty() || a.workers > 0) throw ConfigError("command line: --size and --workers go with --data");
  if (a.step) return run_step(a);
  // Everything that can be wrong with the command line shows before anything is measured.
  const std::vector<Backend> backends = parse_backend(a.backend);
  if (a.device == "cpu") (void)bench::parse_types(a.dtypes, false);
  (void)bench::parse_shapes(a.shapes);
  (void)bench::parse_types(a.dtypes, true);
  configure_libtorch(load_config({}, {}).train);  // as training runs: threads, deterministic operators
  const at::Device device = select_device(a.device, "--device ");
  const bool cuda = device.is_cuda();
  const auto shapes = bench::parse_shapes(a.shapes.empty() ? bench::default_shapes(cuda) : a.shapes);
  const auto types = bench::parse_types(a.dtypes.empty() ? bench::default_types(cuda) : a.dtypes, cuda);
  std::optional<OutputFile> json;
  if (!a.json.empty()) json.emplace(a.json);

  const auto machine = bench::make_machine(device);
  bench::Run run;
  run.machine = machine.get();
  run.repeats = a.repeats > 0 ? a.repeats : cuda ? kRepeatsOnCuda : kRepeatsOnCpu;
  run.date = now();
  if (cuda) run.rates = bench::measure_rates(*machine, types);

  const bench::Report report(run, shapes);
  std::cout << report.header() << std::flush;
  std::vector<bench::Measurement> all;
  for (const bench::Shape& shape : shapes) {
    for (const bench::Type& type : types) {
      std::vector<bench::Measurement> side_by_side;
      side_by_side.reserve(backends.size());
      for (const Backend backend : backends) {
        side_by_side.push_back(bench::measure(*machine, shape, type, backend, run.repeats));
      }
      std::cout << report.rows(side_by_side) << std::flush;
      all.insert(all.end(), side_by_side.begin(), side_by_side.end());
    }
  }
  std::cout << report.footer(all) << std::flush;
  if (json) json->write(report.json(all).dump(1) + "\n");
  return 0;
}

}  // namespace axial::app
