#include "app/results/runs.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/config/load.h"
#include "app/config/value.h"
#include "app/config/yaml_tree.h"
#include "app/run/run_directory.h"
#include "app/run/run_error.h"
#include "app/train/best.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;

constexpr double kMostEpochs = 1e6;  // as train.epochs has it

// A pipe in a file's place would be waited for; what is no file is as what is not there.
std::ifstream opened(const fs::path& path, std::ios::openmode at = std::ios::in) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) ? std::ifstream(path, std::ios::binary | at) : std::ifstream();
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  return fields;
}

// Numbers alone stand in metrics.csv, so that no field is quoted. A row cut in the middle (a run that writes, or was
// killed) is left out, and so is one whose epoch is none, which is said of the first of them.
void read_metrics(const fs::path& path, RunSummary& run) {
  std::error_code ignored;
  const bool there = fs::exists(fs::symlink_status(path, ignored));
  std::ifstream stream = opened(path);
  std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (there && (!stream.is_open() || stream.bad())) {
    run.metrics_readable = false;
    run.metrics_problem =
        path.string() + (fs::is_directory(path, ignored) ? ": is a folder, expected a file" : ": cannot be read");
    return;
  }
  text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> columns = split(line);
  for (std::size_t number = 2; std::getline(lines, line); ++number) {
    const std::vector<std::string> fields = split(line);
    const auto field = [&](const char* name) {
      const auto at = static_cast<std::size_t>(std::find(columns.begin(), columns.end(), name) - columns.begin());
      return at < fields.size() ? fields[at] : std::string();
    };
    const auto value = [&](const char* name) {
      double number = 0;
      bool overflow = false;
      const bool good = parse_real(field(name), &number, &overflow) && !overflow;
      return good ? number : std::numeric_limits<double>::quiet_NaN();
    };
    EpochMetrics row;
    row.epoch = value("epoch");
    row.lr = value("lr");
    row.train_loss = value("train_loss");
    row.train_top1 = value("train_top1");
    row.val_loss = value("val_loss");
    row.val_top1 = value("val_top1");
    row.images_per_second = value("images_per_second");
    row.seconds = value("seconds");
    const double before = run.epochs.empty() ? 0 : run.epochs.back().epoch;
    if (row.epoch > before && row.epoch <= kMostEpochs && row.epoch == std::floor(row.epoch)) {
      run.epochs.push_back(row);
    } else if (run.metrics_problem.empty()) {
      run.metrics_problem = path.string() + ": row " + std::to_string(number) + ": expected an epoch above " +
                            std::to_string(static_cast<long long>(before)) + ", found '" + excerpt(field("epoch")) +
                            "'; such rows are left out";
    }
  }
}

// "2026-11-29 23:25:38.586 info: text" -> "info: text", of the last line; of a long log only its end is read.
std::string last_line_of(const fs::path& path) {
  constexpr std::streamoff kEnd = 1 << 16;
  std::ifstream stream = opened(path, std::ios::ate);
  if (!stream.is_open()) return {};
  const std::streamoff size = stream.tellg();
  stream.seekg(std::max<std::streamoff>(0, size - kEnd));
  std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const std::size_t start = text.rfind('\n');
  if (start != std::string::npos) text.erase(0, start + 1);
  constexpr std::size_t kStamp = 24;
  return text.size() > kStamp && text[4] == '-' && text[13] == ':' ? text.substr(kStamp) : text;
}

// Asked for without waiting, shared, and given back at once: a run that starts meanwhile at worst is told to wait.
bool is_locked(const fs::path& folder) {
  const int file = ::open((folder / ".lock").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  const bool held = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return held;
}

double newest_write(const fs::path& folder) {
  double newest = 0;
  for (const char* name : {"train.log", "metrics.csv", "config.yaml", "checkpoints/last.safetensors"}) {
    struct stat info {};
    if (::stat((folder / name).c_str(), &info) != 0) continue;
    newest =
        std::max(newest, static_cast<double>(info.st_mtim.tv_sec) + 1e-9 * static_cast<double>(info.st_mtim.tv_nsec));
  }
  return newest;
}

// A run writes an epoch's row, and then its checkpoints.
bool holds_checkpoint(const fs::path& run) {
  std::error_code error;
  for (fs::directory_iterator it(run / "checkpoints", error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") return true;
  }
  return false;
}

bool starts_with(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

}  // namespace

std::string name_of(RunState state) {
  switch (state) {
    case RunState::kRunning:
      return "running";
    case RunState::kFinished:
      return "finished";
    case RunState::kStopped:
      return "stopped";
    case RunState::kFailed:
      break;
  }
  return "failed";
}

std::int64_t RunSummary::epochs_done() const {
  return epochs.empty() ? 0 : static_cast<std::int64_t>(epochs.back().epoch);
}

RunSummary read_run(const fs::path& path) {
  if (!is_run_folder(path)) throw RunError(path.string() + ": no run's folder (config.yaml and checkpoints in it)");
  RunSummary run;
  run.path = path;
  try {
    run.config = load_config({(path / "config.yaml").string()}, {});
  } catch (const ConfigError& error) {
    run.problem = error.what();
    run.config = load_config({}, {});
  }
  read_metrics(path / "metrics.csv", run);
  double best_top1 = -1, best_loss = std::numeric_limits<double>::infinity();
  for (const EpochMetrics& row : run.epochs) {
    if (!is_better(run.config.train, row.val_top1, row.val_loss, best_top1, best_loss)) continue;
    run.best_top1 = best_top1 = row.val_top1;
    best_loss = row.val_loss;
    run.best_epoch = static_cast<std::int64_t>(row.epoch);
  }
  run.last_line = last_line_of(path / "train.log");
  run.age_seconds = std::max(0.0, static_cast<double>(std::time(nullptr)) - newest_write(path));
  const bool said_stopped = starts_with(run.last_line, "info: stopped ");
  const bool said_best = starts_with(run.last_line, "info: best: ");  // what train says when it is done
  if (is_locked(path)) {
    run.state = RunState::kRunning;
  } else if (said_best || (run.problem.empty() && run.epochs_done() >= run.config.train.epochs &&
                           !starts_with(run.last_line, "error: ") && holds_checkpoint(path))) {
    run.state = RunState::kFinished;
  } else {
    run.state = said_stopped ? RunState::kStopped : RunState::kFailed;
  }
  return run;
}

std::vector<RunSummary> list_runs(const fs::path& root) {
  std::vector<RunSummary> runs;
  if (is_run_folder(root)) return {read_run(root)};
  std::error_code error;
  if (!fs::exists(root, error) && !error)
    throw RunError(root.string() + ": no such folder; axial train makes runs in runs/");
  fs::directory_iterator entry(root, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    // "runs/x" of "runs", and of "." plainly "x"
    if (is_run_folder(entry->path())) runs.push_back(read_run(entry->path().lexically_normal()));
  }
  if (error) throw RunError(root.string() + ": cannot be listed: " + error.message());
  std::sort(runs.begin(), runs.end(), [](const RunSummary& a, const RunSummary& b) {
    return a.age_seconds != b.age_seconds ? a.age_seconds < b.age_seconds : a.path > b.path;
  });
  return runs;
}

std::string age_text(double seconds) {
  const auto whole = [](double value) { return std::to_string(static_cast<long long>(value)); };
  if (seconds < 120) return whole(seconds) + " s";
  if (seconds < 2 * 3600) return whole(seconds / 60) + " min";
  if (seconds < 48 * 3600) return whole(seconds / 3600) + " h";
  return whole(seconds / 86400) + " d";
}

}  // namespace axial::app
