#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "app/commands/commands.h"
#include "app/commands/result.h"
#include "app/config/load.h"
#include "app/config/schema.h"
#include "app/config/value.h"
#include "app/counted.h"
#include "app/run/log.h"
#include "app/run/run_directory.h"
#include "app/run/run_error.h"
#include "app/train/state.h"
#include "app/train/trainer.h"

namespace axial::app {

namespace fs = std::filesystem;

namespace {

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

fs::path newest_run(const fs::path& root) {
  fs::path newest;
  fs::file_time_type newest_time;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    const fs::path last = entry.path() / "checkpoints" / "last.safetensors";
    const auto time = fs::last_write_time(last, ignored);
    if (ignored || (!newest.empty() && time <= newest_time)) continue;
    newest = entry.path();
    newest_time = time;
  }
  if (newest.empty()) throw RunError(root.string() + ": no run with a checkpoint to resume (name one: --resume=DIR)");
  return newest;
}

// Of a run that was killed before its first last.safetensors, whose disk was full, or whose last one is damaged: what
// there is instead of it.
std::string other_checkpoint(const fs::path& checkpoints, const fs::path& damaged = {}) {
  if (checkpoints.filename() != "checkpoints") return "";  // a file that lies anywhere: its neighbours are others'
  fs::path newest;
  fs::file_time_type newest_time;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoints, ignored)) {
    const auto time = fs::last_write_time(entry.path(), ignored);
    if (entry.path().extension() != ".safetensors" || (!newest.empty() && time <= newest_time)) continue;
    if (entry.path().filename() == damaged.filename()) continue;
    newest = entry.path();
    newest_time = time;
  }
  return newest.empty() ? "" : "; there is --resume=" + newest.string();
}

// The checkpoint to resume from and its run's folder.
std::pair<fs::path, fs::path> resume_paths(const TrainArguments& a) {
  fs::path from = a.resume_from;
  if (from.empty()) {
    from = !a.output.empty() ? fs::path(a.output) : newest_run(load_config(a.configs, a.overrides).train.output);
  }
  std::error_code ignored;
  if (fs::is_directory(from, ignored)) {
    const fs::path last = from / "checkpoints" / "last.safetensors";
    if (is_there(last)) return {last, from};
    throw RunError(from.string() + ": no checkpoints/last.safetensors to resume from" +
                   other_checkpoint(from / "checkpoints"));
  }
  if (!is_there(from)) throw RunError(from.string() + ": no such file or folder to resume from");
  const fs::path folder = fs::absolute(from).parent_path();
  if (folder.filename() == "checkpoints") return {from, folder.parent_path()};
  if (a.output.empty())
    throw RunError(from.string() + ": not in a run's checkpoints folder; name the run with --output DIR");
  return {from, a.output};
}

// A relative path means something in the folder where the run was started, and nothing later.
void make_paths_absolute(Config& config) {
  const auto make = [&](const char* key, const std::string& value) {
    const fs::path path = value;
    if (path.empty() || path.is_absolute()) return;
    fs::path whole = fs::absolute(path).lexically_normal();
    if (!whole.has_filename()) whole = whole.parent_path();
    config = override_config(config, {}, {std::string(key) + "=" + whole.string()});  // checked as any text is
  };
  make("data.dir", std::string(config.data.dir));
  make("data.train_list", std::string(config.data.train_list));
  make("data.test_list", std::string(config.data.test_list));
  make("data.cache_dir", std::string(config.data.cache_dir));
  make("train.init_from", std::string(config.train.init_from));
}

std::string change_note(const std::string& path, const Config& before, const Config& after) {
  const Key& key = *find_key(path);
  std::string note =
      "resuming with " + path + " = " + print_value(key, after) + " (was " + print_value(key, before) + ")";
  if (path == "train.epochs") {
    note += ": the learning rate follows the schedule of " + print_value(key, after) + " epochs from here on";
  }
  if (path == "train.threads" || path == "train.device" || path == "model.backend") {
    note += ": results may differ from the uninterrupted run's in rounding";
  }
  return note;
}

CheckpointInfo info_to_resume(const fs::path& checkpoint) {
  try {
    return checkpoint_info(read_safetensors(checkpoint), checkpoint);
  } catch (const CheckpointError& error) {
    throw CheckpointError(error.what() + other_checkpoint(checkpoint.parent_path(), checkpoint));
  }
}

void prepare_resume(const TrainArguments& a, TrainRequest& request) {
  fs::path own;
  std::tie(request.checkpoint, own) = resume_paths(a);
  request.run = a.output.empty() ? own : fs::path(a.output);
  // Another run's folder is not this one's to write in.
  std::error_code ignored;
  const bool same = request.run == own || fs::equivalent(request.run, own, ignored);
  const bool in_own = same && fs::absolute(request.checkpoint).parent_path().filename() == "checkpoints";
  request.mode = in_own ? RunDirectory::Mode::kResume : RunDirectory::Mode::kNew;
  CheckpointInfo info = info_to_resume(request.checkpoint);
  request.threads = info.threads;
  request.config = override_config(info.config, a.configs, a.overrides);
  make_paths_absolute(info.config);
  make_paths_absolute(request.config);
  std::vector<std::string> fixed;
  for (const std::string& key : differing_keys(info.config, request.config)) {
    if (!find_key(key)->may_change_on_resume) fixed.push_back(key);
    request.notes.push_back(change_note(key, info.config, request.config));
  }
  const std::int64_t epochs = request.config.train.epochs, before = info.config.train.epochs;
  if (fixed.empty() && epochs < info.progress.epoch && epochs != before) {
    throw ConfigError("train.epochs: is " + std::to_string(epochs) + ", and the run has " +
                      counted(info.progress.epoch, "epoch") + " behind it of " + std::to_string(before) + " (" +
                      request.checkpoint.string() + ")");
  }
  if (fixed.empty()) return;
  throw ConfigError(describe_changes(fixed, info.config, request.config) + ": a resumed run stays as it is in " +
                    request.checkpoint.string() + " (axial config --keys marks what may change on resume)");
}

// A launcher that starts several processes would get as many complete runs, each on its own.
void check_one_process() {
  const char* size = std::getenv("WORLD_SIZE");
  if (size == nullptr || std::atoi(size) <= 1) return;
  throw ConfigError(std::string("WORLD_SIZE=") + size +
                    ": axial train runs in one process; start it without torchrun, " + "or unset WORLD_SIZE");
}

}  // namespace

int run_train(const TrainArguments& a) {
  if (a.resume && a.overwrite) throw ConfigError("command line: --resume and --overwrite exclude each other");
  if (a.overwrite && a.output.empty()) throw ConfigError("command line: --overwrite needs --output DIR");
  check_one_process();
  TrainRequest request;
  request.stop_after = a.stop_after;
  request.time_limit = a.time_limit;
  if (a.resume) {
    prepare_resume(a, request);
  } else {
    request.config = load_config(a.configs, a.overrides);
    make_paths_absolute(request.config);
    request.run = a.output;
    if (a.overwrite) request.mode = RunDirectory::Mode::kOverwrite;
  }
  if (request.run.empty()) {  // its name is chosen later; where it goes shows now
    RunDirectory::check_root(request.config.train.output);
  } else {
    RunDirectory::check(request.run, request.mode);
  }
  if (a.dry_run) {
    dry_run(request);
    return 0;
  }
  const TrainResult result = train(request);
  if (result.nothing_to_do) {
    log::info(request.checkpoint.string() + ": the run is finished (" + counted(result.epochs, "epoch") +
              "); nothing to do (raise train.epochs, or train.patience where it ended the run, to go on)");
  }
  Json line = {{"top1", rounded(result.top1, 6)},
               {"loss", rounded(result.loss, 4)},
               {"epochs", result.epochs},
               {"best_top1", rounded(result.best_top1, 6)},
               {"best_epoch", result.best_epoch > 0 ? Json(result.best_epoch) : Json()},
               {"images_per_second", rounded(result.images_per_second, 1)},
               {"train_seconds", rounded(result.train_seconds, 1)},
               {"run", result.run.string()}};
  if (request.config.train.eval_tta != "none") line["eval_tta"] = request.config.train.eval_tta;
  print_result(line);
  return result.signal == 0 ? 0 : 128 + result.signal;
}

}  // namespace axial::app
