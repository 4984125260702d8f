#include <filesystem>
#include <iostream>

#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/config/load.h"
#include "app/run/log.h"
#include "app/run/run_directory.h"
#include "app/run/run_error.h"
#include "app/train/state.h"
#include "app/train/trainer.h"

namespace axial::app {

namespace fs = std::filesystem;

namespace {

// Keys that a resumed run may change: they do not touch what the updates compute, except train.epochs, which
// changes the schedule from here on and is said aloud.
bool may_change_on_resume(const std::string& key) {
  for (const char* free : {"train.epochs", "train.device", "train.threads", "train.eval_every", "train.checkpoint_every",
                           "train.keep_last", "train.log_every", "train.on_nonfinite", "train.output", "train.tensorboard",
                           "data.dir", "data.eval_batch_size", "model.backend"}) {
    if (key == free) return true;
  }
  return false;
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

// The checkpoint to resume from and its run's folder.
std::pair<fs::path, fs::path> resume_paths(const TrainArguments& a) {
  fs::path from = a.resume_from;
  if (from.empty()) {
    from = !a.output.empty() ? fs::path(a.output) : newest_run(load_config(a.configs, a.overrides).train.output);
  }
  std::error_code ignored;
  if (fs::is_directory(from, ignored)) {
    const fs::path last = from / "checkpoints" / "last.safetensors";
    if (!fs::exists(last, ignored)) throw RunError(from.string() + ": no checkpoints/last.safetensors to resume from");
    return {last, from};
  }
  if (!fs::exists(from, ignored)) throw RunError(from.string() + ": no such file or folder to resume from");
  const fs::path folder = fs::absolute(from).parent_path();
  if (folder.filename() == "checkpoints") return {from, folder.parent_path()};
  if (a.output.empty()) throw RunError(from.string() + ": not in a run's checkpoints folder; name the run with --output DIR");
  return {from, a.output};
}

}  // namespace

int run_train(const TrainArguments& a) {
  if (a.resume && a.overwrite) throw ConfigError("command line: --resume and --overwrite exclude each other");
  if (a.overwrite && a.output.empty()) throw ConfigError("command line: --overwrite needs --output DIR");
  TrainRequest request;
  request.overwrite = a.overwrite;
  request.stop_after = a.stop_after;
  if (a.resume) {
    std::tie(request.checkpoint, request.run) = resume_paths(a);
    if (!a.output.empty()) request.run = a.output;
    const CheckpointInfo info = checkpoint_info(read_safetensors(request.checkpoint), request.checkpoint);
    request.config = override_config(info.config, a.configs, a.overrides);
    for (const std::string& key : differing_keys(info.config, request.config)) {
      if (!may_change_on_resume(key)) {
        throw ConfigError(key + ": differs from the run in " + request.checkpoint.string() +
                          ", and a resumed run cannot change it");
      }
      log::info("resuming with another " + key);
    }
  } else {
    request.config = load_config(a.configs, a.overrides);
    request.run = a.output;
  }
  if (a.dry_run) {
    dry_run(request.config);
    return 0;
  }
  if (request.run.empty()) request.run = new_run_path(request.config.train.output, request.config.data.dataset);
  const TrainResult result = train(request);
  if (result.nothing_to_do) {
    log::info(request.checkpoint.string() + ": the run is finished (" + std::to_string(result.epochs) +
              " epochs); nothing to do (raise train.epochs to go on)");
  }
  const nlohmann::ordered_json line = {{"top1", result.top1},
                                       {"loss", result.loss},
                                       {"epochs", result.epochs},
                                       {"images_per_second", result.images_per_second},
                                       {"train_seconds", result.train_seconds},
                                       {"run", request.run.string()}};
  std::cout << line.dump() << std::endl;
  return result.signal == 0 ? 0 : 128 + result.signal;
}

}  // namespace axial::app
