#include <algorithm>
#include <cmath>
#include <iostream>

#include "app/commands/commands.h"
#include "app/commands/result.h"
#include "app/config/load.h"
#include "app/results/runs.h"
#include "app/results/text.h"
#include "app/run/log.h"
#include "app/train/best.h"

namespace axial::app {
namespace {

Json as_json(const RunSummary& run) {
  const EpochMetrics* last = run.epochs.empty() ? nullptr : &run.epochs.back();
  const auto of_last = [&](double EpochMetrics::*field, int decimals) {
    return last == nullptr ? Json() : rounded(last->*field, decimals);
  };
  Json line = {{"run", run.path.string()},
               {"state", name_of(run.state)},
               {"epochs", run.metrics_readable ? Json(run.epochs_done()) : Json()},
               {"of", run.problem.empty() ? Json(run.config.train.epochs) : Json()},
               {"best_top1", rounded(run.best_top1, 6)},
               {"best_of", run.problem.empty() ? Json(chosen_by(run.config)) : Json()},
               {"best_epoch", run.best_epoch > 0 ? Json(run.best_epoch) : Json()},
               {"train_loss", of_last(&EpochMetrics::train_loss, 4)},
               {"val_loss", of_last(&EpochMetrics::val_loss, 4)},
               {"train_seconds", of_last(&EpochMetrics::seconds, 1)},
               {"dataset", run.problem.empty() ? Json(run.config.data.dataset) : Json()},
               {"age_seconds", rounded(run.age_seconds, 0)},
               {"last_line", run.last_line}};
  if (run.config.train.eval_tta != "none") line["eval_tta"] = run.config.train.eval_tta;
  return line;
}

void print_table(const std::vector<RunSummary>& runs) {
  std::vector<std::vector<std::string>> rows = {
      {"run", "state", "epochs", "best top1", "of", "at", "data set", "age"}};
  for (const RunSummary& run : runs) {
    const std::string& tta = run.config.train.eval_tta;  // one is not to be compared with others
    const std::string views = tta == "none" ? "" : " (" + tta + ")";
    const std::string of = run.problem.empty() ? "/" + std::to_string(run.config.train.epochs) : "";
    rows.push_back({plain_text(run.path.string()), name_of(run.state),
                    run.metrics_readable ? std::to_string(run.epochs_done()) + of : "unreadable",
                    percent_text(run.best_top1) + views, run.problem.empty() ? chosen_by(run.config) : "-",
                    run.best_epoch > 0 ? std::to_string(run.best_epoch) : "-",
                    run.problem.empty() ? run.config.data.dataset : "-", age_text(run.age_seconds)});
  }
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += (i > 0 ? "  " : "") + padded(row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << '\n';
  }
}

}  // namespace

int run_runs(const RunsArguments& a) {
  const std::string root = a.folder.empty() ? load_config({}, {}).train.output : a.folder;
  const std::vector<RunSummary> runs = list_runs(root);
  for (const RunSummary& run : runs) {
    if (!run.problem.empty()) log::warning(run.problem);
    if (!run.metrics_problem.empty()) log::warning(run.metrics_problem);
  }
  if (a.json) {
    Json all = Json::array();
    for (const RunSummary& run : runs) all.push_back(as_json(run));
    print_result(all);
  } else if (runs.empty()) {
    log::info(root + ": no runs in it");
  } else {
    print_table(runs);
  }
  std::cout << std::flush;
  return 0;
}

}  // namespace axial::app
