#include "app/train/report.h"

#include <charconv>
#include <cstdio>

#include <c10/core/CachingDeviceAllocator.h>

#include "app/counted.h"
#include "app/run/log.h"
#include "app/train/views.h"

namespace axial::app {

namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

// The shortest text that reads back to the same double.
std::string exact(double value) {
  if (std::isnan(value)) return "";
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

constexpr std::int64_t kFewShare = 20;  // leaving out more than one image in so many is worth a warning

std::string join(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const auto v : values) text += (text.empty() ? "" : ",") + std::to_string(v);
  return text;
}

}  // namespace

std::string duration(double seconds) {
  if (seconds < 9.95) return format("%.1f s", std::max(0.0, seconds));
  const auto s = static_cast<long long>(std::llround(seconds));
  if (s < 60) return format("%lld s", s);
  if (s < 3600) return format("%lld:%02lld", s / 60, s % 60);
  return format("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
}

std::int64_t device_memory(at::Device device) {
  if (!device.is_cuda()) return 0;
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return stats.reserved_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

void log_notes(const data::Dataset& set) {
  for (const std::string& note : set.notes) log::warning(set.name + ": " + note);
}

std::string position(std::int64_t epochs_done, std::int64_t batch, std::int64_t epochs, std::int64_t batches) {
  if (epochs_done == 0 && batch == 0) return "before the first batch";
  const auto of_all = [&](std::int64_t epoch) { return std::to_string(epoch) + "/" + std::to_string(epochs); };
  if (batch == 0) return "after epoch " + of_all(epochs_done);
  return "within epoch " + of_all(epochs_done + 1) + ", after batch " + std::to_string(batch) +
         (batches > 0 ? "/" + std::to_string(batches) : "");
}

void log_run_header(const RunHeader& h) {
  const auto [rows, columns] = h.grid;
  const ModelConfig& m = h.config.model;
  const std::string held_out =
      h.sets.held_out ? format(", %lld held-out", static_cast<long long>(h.sets.validation.size())) : "";
  log::info(format("data: %s, %lld training%s and %lld test images of %lldx%lldx%lld, %s",
                   h.config.data.dataset.c_str(), static_cast<long long>(h.sets.train.size()), held_out.c_str(),
                   static_cast<long long>(h.sets.test.size()), static_cast<long long>(h.spec.channels),
                   static_cast<long long>(h.spec.height), static_cast<long long>(h.spec.width),
                   counted(h.spec.classes.size(), "class").c_str()));
  log::info(format("model: %lldx%lld tokens, dim %s, heads %s, depth %s, %lld parameters, backend %s",
                   static_cast<long long>(rows), static_cast<long long>(columns), join(m.dim).c_str(),
                   join(m.heads).c_str(), join(m.depth).c_str(), static_cast<long long>(h.parameters),
                   m.backend.c_str()));
  if (h.trained < h.parameters) {
    log::info(format("train.freeze: %lld parameters are trained, %lld stay as they are",
                     static_cast<long long>(h.trained), static_cast<long long>(h.parameters - h.trained)));
  }
  log::info("train: " + h.config.optim.name + " on " + h.device.str() + " in " + h.config.train.precision + ", " +
            counted(h.config.train.epochs, "epoch") + " of " + counted(h.batches, "batch") + " of " +
            std::to_string(h.config.data.batch_size) + " (" + counted(h.updates, "update") +
            (h.config.train.epochs == 1 ? ")" : " each)"));
  if (m.float32_residual && h.config.train.precision.find("16") == std::string::npos) {
    log::warning("model.float32_residual: without effect in " + h.config.train.precision +
              ", which rounds no tokens to 16 bits; meant for train.precision=bfloat16 or float16");
  }
  if (const std::string views = describe_views(h.config.train.eval_tta); !views.empty())
    log::info("evaluation: " + views);
  log_notes(h.sets.train);
  if (!h.sets.test.notes.empty() && h.sets.test.notes != h.sets.train.notes) log_notes(h.sets.test);
  const std::int64_t unused = h.sets.train.size() - h.batches * h.config.data.batch_size;
  if (unused <= 0) return;
  const std::string text =
      std::to_string(unused) + " of " + std::to_string(h.sets.train.size()) +
      " training images are left out of each epoch (others each time): the last batch is not full";
  if (unused * kFewShare <= h.sets.train.size()) {
    log::info(text);
  } else {
    log::warning(text + "; set data.drop_last=false or another data.batch_size");
  }
}

std::string progress_line(const ProgressLine& p) {
  std::string line =
      format("epoch %lld/%lld  batch %lld/%lld  loss %.4f  top1 %.2f %%  ETA %s  %.0f images/s",
             static_cast<long long>(p.epoch) + 1, static_cast<long long>(p.epochs), static_cast<long long>(p.batch),
             static_cast<long long>(p.batches), p.loss, 100 * p.top1, duration(p.seconds_left).c_str(), p.rate);
  if (p.memory > 0) line += format("  GPU %.1f GiB", static_cast<double>(p.memory) / (1 << 30));
  return line + format("  lr %.2e", p.lr);
}

std::vector<std::string> EpochReport::csv_columns() {
  return {"epoch",    "step",     "lr",        "train_loss",        "train_top1",
          "val_loss", "val_top1", "best_top1", "images_per_second", "seconds"};
}

std::vector<std::string> EpochReport::csv_row() const {
  return {std::to_string(epoch), std::to_string(step), exact(lr),        exact(train_loss),        exact(train_top1),
          exact(val_loss),       exact(val_top1),      exact(best_top1), exact(images_per_second), exact(seconds)};
}

std::vector<std::pair<std::string, double>> EpochReport::scalars() const {
  std::vector<std::pair<std::string, double>> values = {{"epoch/train_loss", train_loss},
                                                        {"epoch/train_top1", train_top1},
                                                        {"epoch/lr", lr},
                                                        {"epoch/images_per_second", images_per_second}};
  if (!std::isnan(val_top1)) {
    values.emplace_back("epoch/val_loss", val_loss);
    values.emplace_back("epoch/val_top1", val_top1);
  }
  return values;
}

std::string EpochReport::line(std::int64_t epochs, bool held_out, bool by_loss) const {
  std::string text = format("epoch %lld/%lld done: train loss %.4f, top1 %.2f %%", static_cast<long long>(epoch),
                            static_cast<long long>(epochs), train_loss, 100 * train_top1);
  if (!std::isnan(val_top1)) {
    text += format("; %s loss %.4f, top1 %.2f %%", held_out ? "validation" : "test", val_loss, 100 * val_top1);
    if (!std::isnan(best_top1))
      text += format(by_loss ? " (best by loss %.2f %%)" : " (best %.2f %%)", 100 * best_top1);
  }
  return text + format("; %.0f images/s, epoch %s, run %s", images_per_second, duration(epoch_seconds).c_str(),
                       duration(seconds).c_str());
}

}  // namespace axial::app
