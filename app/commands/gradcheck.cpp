#include <cstdio>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/config/load.h"
#include "app/run/log.h"
#include "app/run/output_file.h"
#include "app/run/run_error.h"
#include "app/train/build.h"
#include "model/gradcheck.h"

namespace axial::app {

namespace {

// One line: "ok    pass row [2, 3, 4, 8] h=2   d qkv_weight   finite differences   3.1e-11 (limit 1e-07)".
void print(const GradcheckResult& r) {
  char line[320];
  std::snprintf(line, sizeof line, "%-5s %-58s %-16s %-20s %9.2e  limit %.0e", r.passed ? "ok" : "WRONG",
                r.name.c_str(), r.quantity.c_str(), r.method.c_str(), r.max_error, r.tolerance);
  std::cout << line << '\n';
}

}  // namespace

int run_gradcheck(const GradcheckArguments& a) {
  GradcheckOptions options;
  options.seed = a.seed;
  if (a.plant_error) options.planted_error = 1e-3;
  // What is wrong is always shown; what is right on demand, else its name passes by.
  options.progress = [&](const GradcheckResult& r) {
    if (a.verbose || !r.passed) {
      log::progress_done();
      print(r);
    } else {
      log::progress(r.name);
    }
  };
  configure_libtorch(load_config({}, {}).train);
  const at::Device device = select_device(a.device, "--device ");
  std::optional<OutputFile> table;
  if (!a.json.empty()) table.emplace(a.json);
  const std::vector<GradcheckResult> results = gradcheck(device, options);
  log::progress_done();

  std::size_t failed = 0;
  std::map<std::string, std::size_t> cases;
  std::map<std::string, double> worst;  // largest share of its limit, by method
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const GradcheckResult& r : results) {
    failed += r.passed ? 0 : 1;
    cases[r.name] += 1;
    double& share = worst[r.method];
    share = r.max_error >= 0 ? std::max(share, r.max_error / r.tolerance) : std::numeric_limits<double>::infinity();
    rows.push_back({{"case", r.name},
                    {"quantity", r.quantity},
                    {"method", r.method},
                    {"max_error", r.max_error},
                    {"tolerance", r.tolerance},
                    {"passed", r.passed}});
  }
  if (table) {
    const nlohmann::ordered_json document = {{"device", device.str()},
                                             {"cases", cases.size()},
                                             {"checks", results.size()},
                                             {"failed", failed},
                                             {"results", rows}};
    table->write(document.dump(1) + "\n");
  }
  for (const auto& [method, share] : worst) {
    char line[160];
    std::snprintf(line, sizeof line, "%-20s largest error %.3g of its limit", method.c_str(), share);
    std::cout << line << '\n';
  }
  std::cout << device.str() << ": " << cases.size() << " cases, " << results.size() << " checks, " << failed
            << " wrong" << std::endl;
  if (results.empty() || failed > 0) {
    log::error("gradient check: " + std::to_string(failed) + " of " + std::to_string(results.size()) +
               " checks are wrong");
    return 1;
  }
  return 0;
}

}  // namespace axial::app
