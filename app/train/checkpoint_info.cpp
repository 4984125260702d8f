// A checkpoint's metadata, held to what a run can come to before anything is made of it.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "app/config/check.h"
#include "app/config/load.h"
#include "app/train/metadata.h"
#include "app/train/state.h"
#include "model/elements.h"

namespace axial::app {

namespace {

constexpr std::int64_t kMostEpochs = 1'000'000;  // as train.epochs has it
constexpr double kMostSeconds = 1e10;            // three hundred years
constexpr double kMostLoss = 1e300;
constexpr std::int64_t kMostExtent = 1 << 16;  // far more than any set has
constexpr double kMostMean = 1000;             // as data.mean and data.std have it

double real_or(const Metadata& m, const std::string& field, double low, double high, double other) {
  return m.has(field) ? m.real(field, low, high) : other;
}

// An epoch has at most so many batches.
std::int64_t most_batches(const CheckpointInfo& info) {
  const std::int64_t size = info.config.data.batch_size;
  return info.spec.train_images > 0 ? (info.spec.train_images + size - 1) / size : kMostCounted;
}

Progress progress_of(const Metadata& m, const CheckpointInfo& info) {
  Progress p;
  p.epoch = m.integer("epoch", 0, kMostEpochs);
  p.batch = m.integer("batch", 0, most_batches(info));
  p.updates = m.integer("updates", 0, kMostCounted);
  p.skipped = m.integer("skipped", 0, kMostCounted);
  p.good_in_row = m.integer("good_in_row", 0, kMostCounted);
  p.loss_scale = m.real("loss_scale", 0x1p-10, 0x1p24);  // as kernels/update.h has it
  p.best_top1 = m.real("best_top1", -1, 1);
  p.best_epoch = m.integer("best_epoch", 0, p.epoch);
  // Not in the checkpoints of axial's first days: best_loss, stale, top, epoch_seconds.
  p.best_loss = real_or(m, "best_loss", 0, kMostLoss, p.best_loss);
  if (m.has("stale")) p.stale = m.integer("stale", 0, kMostEpochs);
  if (m.has("top")) p.top = m.pairs("top", 1, p.epoch);
  p.train_seconds = m.real("train_seconds", 0, kMostSeconds);
  p.epoch_seconds = real_or(m, "epoch_seconds", 0, kMostSeconds, 0);
  p.images = m.integer("images", 0, kMostCounted);
  p.last_top1 = m.real("last_top1", -1, 1);
  // JSON has no NaN: a loss that was not finite was written as null.
  p.last_loss = real_or(m, "last_loss", -1, kMostLoss, std::numeric_limits<double>::quiet_NaN());
  return p;
}

void read_image(const Metadata& m, CheckpointInfo& info) {
  ImageSpec& spec = info.spec;
  spec.channels = m.integer("channels", 1, kMostExtent);
  spec.height = m.integer("height", 1, kMostExtent);
  spec.width = m.integer("width", 1, kMostExtent);
  const auto channels = static_cast<std::size_t>(spec.channels);
  spec.mean = m.reals("mean", channels, -kMostMean, kMostMean);
  double least = 0;
  for (const double mean : spec.mean) least = std::max(least, least_std(mean, info.config.train.precision));
  spec.std = m.reals("std", channels, least, kMostMean);
  // Not in the checkpoints of axial's first days.
  if (m.has("train_images")) spec.train_images = m.integer("train_images", 0, kMostCounted);
  if (m.has("label_checksum")) {
    spec.label_checksum =
        static_cast<std::uint32_t>(m.integer("label_checksum", 0, std::numeric_limits<std::uint32_t>::max()));
  }
}

// A model of a size that the file does not hold is never made: a few words of metadata would take all the memory
// there is. Of a small one load_into names the tensors that differ.
void check_size(const CheckpointInfo& info, const SafetensorsFile& file, const std::filesystem::path& path) {
  constexpr double kSmall = 1 << 24;
  double held = 0;
  for (const auto& [name, tensor] : file.tensors) {
    if (name.compare(0, 6, "model.") == 0) held += static_cast<double>(tensor.numel());
  }
  const double described = element_count(classifier_options(info.config, info.spec));
  if (described <= std::max(held, kSmall)) return;
  const auto text = [](double count) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.0f", count);
    return std::string(digits);
  };
  throw CheckpointError(path.string() + ": does not fit: its configuration describes a model of " + text(described) +
                        " numbers, and it holds " + text(held) + " under model.");
}

}  // namespace

CheckpointInfo checkpoint_info(const SafetensorsFile& file, const std::filesystem::path& path) {
  const auto text = [&](const std::string& key) -> const std::string& {
    const auto found = file.metadata.find(key);
    if (found == file.metadata.end()) {
      throw CheckpointError(path.string() + ": not a checkpoint of axial train: the metadata has no " + key);
    }
    return found->second;
  };
  const std::string& format = text("axial.format");
  if (format != std::to_string(kCheckpointFormat)) {
    throw CheckpointError(path.string() + ": checkpoint format " + format + ", this axial reads format " +
                          std::to_string(kCheckpointFormat));
  }
  const auto json = [&](const std::string& key) {
    (void)text(key);
    return Metadata(file, path, key);
  };
  CheckpointInfo info;
  info.version = text("axial.version");
  try {
    info.config = parse_config(text("axial.config"), path.string() + ": configuration");
  } catch (const ConfigError& e) {
    throw CheckpointError(e.what());
  }
  info.spec.classes = json("axial.classes").texts();
  read_image(json("axial.image"), info);
  if (file.metadata.count("axial.threads") != 0) info.threads = json("axial.threads").integer(0, 4096);
  info.progress = progress_of(json("axial.progress"), info);
  info.ema_updates = json("axial.ema_updates").integer(0, kMostCounted);
  check_size(info, file, path);
  info.has_ema = std::any_of(file.tensors.begin(), file.tensors.end(),
                             [](const auto& entry) { return entry.first.compare(0, 4, "ema.") == 0; });
  return info;
}

}  // namespace axial::app
