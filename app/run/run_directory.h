// A run directory: config.yaml, train.log, metrics.csv, a TensorBoard event file and checkpoints/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace axial::app {

// What a run writes into its folder, by name; whatever else lies there is somebody's.
bool is_run_file(const std::string& name);
bool is_event_file(const std::string& name);  // one of those: TensorBoard's
// A folder with a config.yaml that train wrote (metrics.csv or checkpoints beside it).
bool is_run_folder(const std::filesystem::path& path);

// Makes `path` (and checkpoints/ in it), makes sure that it can be written before anything starts, and keeps
// every other process from writing the same run for as long as it lives (flock on .lock; a killed process
// leaves no lock behind). An existing run (a folder with anything that a run writes) is refused unless
// kOverwrite, which removes what a run writes and nothing else, or kResume, which keeps it (and starts a run
// where none is: a checkpoint may be resumed into a folder of its own). What killed writers left goes in any
// case. Throws RunError with path and reason.
class RunDirectory {
 public:
  enum class Mode { kNew, kOverwrite, kResume };
  RunDirectory(std::filesystem::path path, Mode mode);
  // Throws what the constructor would, as far as that shows without leaving anything behind.
  static void check(const std::filesystem::path& path, Mode mode);
  // Can folders be made in `root`, which need not be there yet?
  static void check_root(const std::filesystem::path& root);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path last() const { return path_ / "checkpoints" / "last.safetensors"; }
  std::filesystem::path best() const { return path_ / "checkpoints" / "best.safetensors"; }
  std::filesystem::path epoch(std::int64_t number) const;  // checkpoints/epoch-0007.safetensors
  void write_config(const std::string& yaml) const;        // atomically
  // Removes epoch-*.safetensors but the last `count` up to `newest`, and those of `others`. What is newer is of a run
  // that went back to an older checkpoint, and stays until it is written anew.
  void keep_last(std::int64_t count, std::int64_t newest, const std::vector<std::int64_t>& others = {}) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const int> lock_;  // descriptor; the last copy closes it
};

// `root`/<dataset>-<date>-<time>[-2...]: a name that did not exist yet. The (empty) folder is made at once, so
// that two runs started in the same second get two. Throws RunError.
std::filesystem::path new_run_path(const std::filesystem::path& root, const std::string& dataset);

// metrics.csv: a header, then a row per record; opened to append. On resume, rows whose first column is `resume_at`
// or more and a row cut in the middle are removed first, so that the file reads as if the run had never stopped: that
// column counts what is in every row another number (epochs; of updates a whole epoch may be skipped). `from` is the
// file of the run that goes on here, where that is another one's. Throws RunError.
class MetricsCsv {
 public:
  MetricsCsv(std::filesystem::path path, const std::vector<std::string>& columns, std::int64_t resume_at = -1,
             const std::filesystem::path& from = {});
  void append(const std::vector<std::string>& row);  // flushed at once

 private:
  void replace(const std::string& text) const;

  std::filesystem::path path_;
  std::size_t columns_;
  std::string pending_;  // what the file shall hold before the next row, where it holds rows of later ones
};

// A TensorBoard event file (TFRecord framing with masked CRC-32C, Event protobufs with simple_value
// summaries), which TensorBoard's own reader opens. Every writer starts a file of its own; with `resume_step`
// it tells readers to forget what earlier files hold at or past that step. `from` is the folder of the run that goes
// on here, where that is another one: its files are copied. Throws RunError.
class EventWriter {
 public:
  explicit EventWriter(const std::filesystem::path& folder, std::int64_t resume_step = -1,
                       const std::filesystem::path& from = {});
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;
  void scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  void write(const std::string& event);
  std::filesystem::path path_;
  int file_ = -1;
};

struct RunError;  // std::runtime_error; defined in run_error.h

}  // namespace axial::app
