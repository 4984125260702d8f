#include "app/train/recorder.h"

#include "app/config/load.h"
#include "app/run/log.h"
#include "app/run/run_error.h"

namespace axial::app {

namespace {

template <class F>
void or_warn(F write) {
  try {
    write();
  } catch (const RunError& e) {
    log::warning(e.what());
  }
}

}  // namespace

Recorder::Recorder(const std::filesystem::path& folder, RunDirectory::Mode mode, const Config& config,
                   std::int64_t resume_epoch, std::int64_t resume_step, const std::filesystem::path& from)
    : run_(folder, mode) {
  log::open_file(run_.path() / "train.log");
  // What it refuses leaves the configuration of the run that was.
  csv_ = std::make_unique<MetricsCsv>(run_.path() / "metrics.csv", EpochReport::csv_columns(), resume_epoch,
                                      from.empty() ? from : from / "metrics.csv");
  run_.write_config(to_yaml(config));
  if (config.train.tensorboard) events_ = std::make_unique<EventWriter>(run_.path(), resume_step, from);
}

void Recorder::epoch(const EpochReport& report) {
  or_warn([&] { csv_->append(report.csv_row()); });
  progress(report.step, report.scalars());
}

void Recorder::progress(std::int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  if (events_) or_warn([&] { events_->scalars(step, values); });
}

}  // namespace axial::app
