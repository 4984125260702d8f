#include "app/train/state.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "app/config/load.h"
#include "app/config/schema.h"
#include "app/config/yaml_tree.h"
#include "app/run/log.h"
#include "app/train/best.h"
#include "app/train/checks.h"
#include "app/train/freeze.h"
#include "app/version.h"
#include "model/classifier.h"

namespace axial::app {

using nlohmann::json;

NamedTensors named_tensors(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& item : module.named_parameters(true)) result.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers(true)) result.emplace_back(item.key(), item.value());
  return result;
}

namespace {

NamedTensors trained_parameters(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& item : module.named_parameters(true)) {
    if (item.value().requires_grad()) result.emplace_back(item.key(), item.value());
  }
  return result;
}

std::shared_ptr<AxialClassifierImpl> make_model(const Config& config, const ImageSpec& spec, at::Device device) {
  // Initial weights are drawn on the CPU, so that they do not depend on the device.
  const AxialClassifierOptions options = classifier_options(config, spec);
  check_model(options, machine_memory());
  torch::manual_seed(config.train.seed);
  auto model = std::make_shared<AxialClassifierImpl>(options);
  model->to(device);
  freeze(*model, config.train.freeze);
  return model;
}

}  // namespace

bool note_evaluation(Progress& p, const TrainConfig& config, std::int64_t epoch, double top1, double loss) {
  const double value = config.eval_metric == "loss" ? -loss : top1;  // the higher the better
  const bool improved = is_better(config, top1, loss, p.best_top1, p.best_loss);
  p.stale = improved ? 0 : p.stale + 1;
  if (improved) {
    p.best_top1 = top1;
    p.best_loss = loss;
    p.best_epoch = epoch;
  }
  // The best one goes before those that are as accurate, and else the earlier before the later.
  if (std::isfinite(loss) && std::isfinite(value))
    p.top.emplace(improved ? p.top.begin() : p.top.end(), epoch, value);
  std::stable_sort(p.top.begin(), p.top.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  if (p.top.size() > static_cast<std::size_t>(config.keep_best))
    p.top.resize(static_cast<std::size_t>(config.keep_best));
  return improved;
}

bool out_of_patience(const Progress& p, const TrainConfig& config) {
  return config.patience > 0 && p.stale >= config.patience;
}

Ema::Ema(double decay, const NamedTensors& model) : decay_(decay) {
  for (const auto& [name, tensor] : model) tensors_.emplace_back(name, tensor.detach().clone());
}

double Ema::weight(std::int64_t n) const {
  const auto count = static_cast<double>(n);
  return 1 - std::min(decay_, (1 + count) / (10 + count));
}

void Ema::update(const NamedTensors& model, const at::Tensor& weight) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> averages, values;
  for (std::size_t i = 0; i < model.size(); ++i) {
    if (tensors_[i].second.is_floating_point()) {
      averages.push_back(tensors_[i].second);
      values.push_back(model[i].second.detach());
    } else {
      tensors_[i].second.copy_(model[i].second);
    }
  }
  // _foreach_lerp_ takes no weight from the device.
  const std::vector<at::Tensor> change = at::_foreach_sub(values, averages);
  at::_foreach_mul_(change, weight);
  at::_foreach_add_(averages, change);
}

SwapGuard::SwapGuard(const NamedTensors& model, const NamedTensors& with) : model_(model) {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < model.size(); ++i) {
    saved_.emplace_back(model[i].first, model[i].second.detach().clone());
    at::Tensor(model[i].second).copy_(with[i].second);
  }
}

SwapGuard::~SwapGuard() {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < model_.size(); ++i) model_[i].second.copy_(saved_[i].second);
}

TrainingState::TrainingState(const Config& config, const ImageSpec& spec, at::Device device)
    : model(make_model(config, spec, device)),
      tensors(named_tensors(*model)),
      optimizer(config.optim, trained_parameters(*model), config.model.depth),
      rng(at::tensor({static_cast<std::int64_t>(config.train.seed), std::int64_t{0}}, at::kLong).to(device)),
      control(config.train, config.optim.clip_norm, device) {
  if (config.train.ema_decay > 0) ema = std::make_unique<Ema>(config.train.ema_decay, tensors);
  if (config.train.precision == "float16") progress.loss_scale = config.train.loss_scale;
  control.load(progress);
}

void TrainingState::note(const Readout& r) {
  if (ema) ema->updates += r.updates - progress.updates;
  progress.updates = r.updates;
  progress.skipped = r.skipped;
  progress.good_in_row = r.good_in_row;
  progress.loss_scale = r.loss_scale;
}

namespace {

json progress_json(const Progress& p) {
  return {{"epoch", p.epoch},
          {"batch", p.batch},
          {"updates", p.updates},
          {"skipped", p.skipped},
          {"good_in_row", p.good_in_row},
          {"loss_scale", p.loss_scale},
          {"best_top1", p.best_top1},
          {"best_loss", std::isfinite(p.best_loss) ? json(p.best_loss) : json()},
          {"best_epoch", p.best_epoch},
          {"stale", p.stale},
          {"top", p.top},
          {"train_seconds", p.train_seconds},
          {"epoch_seconds", p.epoch_seconds},
          {"images", p.images},
          {"last_top1", p.last_top1},
          {"last_loss", p.last_loss}};
}

void put(SafetensorsFile& file, const std::string& prefix, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) file.tensors[prefix + name] = tensor.detach().to(at::kCPU).contiguous();
}

}  // namespace

SafetensorsFile to_checkpoint(const TrainingState& state, const Config& config, const ImageSpec& spec) {
  SafetensorsFile file;
  put(file, "model.", state.tensors);
  if (state.ema) put(file, "ema.", state.ema->tensors());
  put(file, "optimizer.", state.optimizer.state());
  file.tensors["rng.state"] = state.rng.cpu();
  file.tensors["metrics.sums"] = state.control.sums().cpu();
  auto& m = file.metadata;
  m["format"] = "pt";  // what other readers of the format look for
  m["axial.format"] = std::to_string(kCheckpointFormat);
  m["axial.version"] = kVersion;
  m["axial.epoch"] = std::to_string(state.progress.epoch);
  m["axial.step"] = std::to_string(state.progress.updates);
  m["axial.best_top1"] = json(state.progress.best_top1).dump();
  m["axial.config"] = to_yaml(config);
  m["axial.classes"] = json(spec.classes).dump();
  m["axial.image"] = json{{"channels", spec.channels},
                          {"height", spec.height},
                          {"width", spec.width},
                          {"mean", spec.mean},
                          {"std", spec.std},
                          {"train_images", spec.train_images},
                          {"label_checksum", spec.label_checksum}}
                         .dump();
  m["axial.threads"] = std::to_string(at::get_num_threads());
  m["axial.progress"] = progress_json(state.progress).dump();
  m["axial.ema_updates"] = std::to_string(state.ema ? state.ema->updates : 0);
  return file;
}

void restore(TrainingState& state, const SafetensorsFile& file, const CheckpointInfo& info,
             const std::filesystem::path& path) {
  // One call, so that everything is checked before anything changes.
  NamedTensors targets;
  auto add = [&](const std::string& prefix, const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) targets.emplace_back(prefix + name, tensor);
  };
  add("model.", state.tensors);
  if (state.ema) add("ema.", state.ema->tensors());
  add("optimizer.", state.optimizer.state());
  targets.emplace_back("rng.state", state.rng);
  targets.emplace_back("metrics.sums", state.control.sums());
  load_into(file, path, "", targets);
  for (const auto& [name, tensor] : targets) {
    // Training itself finds weights that are no numbers, at its first step; of these it would make such weights.
    if (!name.starts_with("optimizer.") || !at::isFloatingType(tensor.scalar_type()) || tensor.numel() == 0) continue;
    const bool square = name.find(".exp_avg_sq.") != std::string::npos || name.find(".step.") != std::string::npos;
    bool good = at::isfinite(tensor).all().item<bool>();
    if (square) good = good && tensor.ge(0).all().item<bool>();
    if (!good) {
      throw CheckpointError(path.string() + ": " + name + " holds a value that is not finite" +
                            (square ? " or below zero" : "") + "; training cannot go on from it");
    }
  }
  state.progress = info.progress;
  state.control.load(info.progress);
  if (state.ema) state.ema->updates = info.ema_updates;
}

std::filesystem::path resolve_checkpoint(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::file_type type = std::filesystem::status(path, ignored).type();
  if (type == std::filesystem::file_type::not_found)
    throw CheckpointError(path.string() + ": no such file or folder");
  if (type != std::filesystem::file_type::directory) return path;
  for (const char* name : {"best.safetensors", "last.safetensors"}) {
    std::filesystem::path candidate = path / "checkpoints" / name;
    if (std::filesystem::exists(candidate, ignored)) return candidate;
  }
  throw CheckpointError(path.string() +
                        ": a folder without checkpoints/best.safetensors or checkpoints/last.safetensors");
}

void check_finite(const std::filesystem::path& path, const std::string& name, const at::Tensor& value) {
  if (!at::isFloatingType(value.scalar_type()) || at::isfinite(value).all().item<bool>()) return;
  throw CheckpointError(path.string() + ": " + name +
                        " holds a value that is not finite; a model with it answers nothing");
}

LoadedModel load_model(const std::filesystem::path& given, const std::string& device_name,
                       const std::vector<std::string>& overrides) {
  const auto path = resolve_checkpoint(given);
  const SafetensorsFile file = read_safetensors(path);
  LoadedModel loaded;
  loaded.info = checkpoint_info(file, path);
  for (const std::string& override : overrides) {
    if (override.find('=') == std::string::npos)
      throw ConfigError("command line: " + excerpt(override) + ": expected key=value, such as data.dir=/data");
  }
  std::vector<std::string> all = overrides;
  if (!device_name.empty()) all.push_back("train.device=" + device_name);
  const Config trained = loaded.info.config;
  loaded.info.config = override_config(trained, {}, all);
  std::vector<std::string> fixed = differing_keys(trained, loaded.info.config);
  std::erase_if(fixed, [](const std::string& key) { return find_key(key)->may_change_on_eval; });
  if (!fixed.empty()) {
    throw ConfigError(describe_changes(fixed, trained, loaded.info.config) +
                      ": a trained model is taken as it is in " + path.string() +
                      " (axial config --explain KEY says whether a key may change here)");
  }
  configure_libtorch(loaded.info.config.train);
  loaded.device = select_device(loaded.info.config.train.device, device_name.empty() ? "train.device=" : "--device ");
  loaded.model = std::make_shared<AxialClassifierImpl>(classifier_options(loaded.info.config, loaded.info.spec));
  const NamedTensors tensors = named_tensors(*loaded.model);
  load_into(file, path, loaded.info.has_ema ? "ema." : "model.", tensors);
  for (const auto& [name, tensor] : tensors) check_finite(path, name, tensor);
  loaded.model->to(loaded.device);
  loaded.model->eval();
  loaded.views = views_of(loaded.info.config.train.eval_tta);
  if (loaded.views.size() > 1) log::info(describe_views(loaded.info.config.train.eval_tta));
  return loaded;
}

}  // namespace axial::app
