#include <ctime>
#include <filesystem>
#include <map>

#include "app/commands/commands.h"
#include "app/commands/option_checks.h"
#include "app/commands/result.h"
#include "app/config/load.h"
#include "app/results/page.h"
#include "app/results/run_results.h"
#include "app/run/log.h"
#include "app/run/output_file.h"
#include "app/train/checks.h"

namespace axial::app {
namespace {

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm local = {};
  ::localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &local);
  return text;
}

// The last part of a path, which may end with a slash.
std::string leaf(const std::filesystem::path& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

// Folders' names, or whole paths where two are called the same.
void name_runs(std::vector<ReportedRun>& runs) {
  std::map<std::string, int> count;
  for (const ReportedRun& run : runs) count[leaf(run.summary.path)] += 1;
  for (ReportedRun& run : runs) {
    const std::string name = leaf(run.summary.path);
    run.name = count[name] > 1 ? run.summary.path.string() : name;
  }
}

}  // namespace

int run_report(const ReportArguments& a) {
  std::vector<std::string> folders, overrides;
  for (const std::string& argument : a.runs) (is_override(argument) ? overrides : folders).push_back(argument);
  if (folders.empty()) throw ConfigError("command line: run: expected the folders of one or more runs");
  std::vector<ReportedRun> runs;
  runs.reserve(folders.size());
  for (const std::string& folder : folders) runs.push_back({"", read_run(folder), {}});
  name_runs(runs);
  for (const ReportedRun& run : runs) {
    if (!run.summary.problem.empty()) log::warning(run.summary.problem);
    if (!run.summary.metrics_problem.empty()) log::warning(run.summary.metrics_problem);
  }
  const OutputFile file(a.output);
  for (const ReportedRun& run : runs) check_result(file, run.summary.config);
  check_ending(a.output, ".html");
  Json evaluated = Json::array();
  for (ReportedRun& run : runs) {
    log::info("evaluating " + run.summary.path.string());
    run.results = run_results(run.summary.path, a.device, overrides);
    if (!run.results.problem.empty()) log::warning(run.name + " is not evaluated: " + run.results.problem);
    evaluated.push_back({{"run", run.summary.path.string()},
                         {"top1", run.results.problem.empty() ? rounded(run.results.scores.top1, 6) : Json()}});
  }
  const std::string page = report_page(runs, now());
  file.write(page);
  print_result({{"report", a.output}, {"bytes", page.size()}, {"runs", evaluated}});
  return 0;
}

}  // namespace axial::app
