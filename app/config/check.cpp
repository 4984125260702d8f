#include "app/config/check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <utility>

#include "app/config/load.h"
#include "app/config/schema.h"
#include "app/config/value.h"

namespace axial::app {
namespace {

constexpr std::int64_t kMaxHeadDim = 256;  // of the kernels
constexpr double kMostFloat16 = 65504;

class Checker {
 public:
  Checker(const Config& config, const std::function<std::string(const std::string&)>& set_at)
      : config_(config), set_at_(set_at) {}

  void run() const {
    stages();
    statistics();
    pair("augment.erase_area", config_.augment.erase_area);
    pair("augment.ratio", config_.augment.ratio);
    pictures();
    dropout();
    tiny();
    const OptimConfig& optim = config_.optim;
    if (optim.name == "sgd" && optim.nesterov && optim.momentum == 0)
      fail({"optim.nesterov", "optim.momentum"}, "Nesterov's momentum needs a momentum above 0");
  }

 private:
  // "first place where the user set one of these: key: what; key = value (place), ..."; of one alone "place: key:
  // what, found value"
  [[noreturn]] void fail(std::initializer_list<const char*> paths, const std::string& what) const {
    std::string where, blamed = *paths.begin(), values;
    for (const char* path : paths) {
      const std::string at = set_at_(path);
      if (where.empty() && !at.empty()) {
        where = at;
        blamed = path;
      }
      values += (values.empty() ? "" : ", ") + std::string(path) + " = " + print_value(*find_key(path), config_) +
                " (" + (at.empty() ? "default" : at) + ")";
    }
    if (paths.size() == 1) throw ConfigError(prefix(where) + blamed + ": " + what + found(blamed));
    throw ConfigError(prefix(where) + blamed + ": " + what + "; " + values);
  }

  static std::string prefix(const std::string& where) { return where.empty() ? "" : where + ": "; }
  std::string found(const std::string& path) const { return ", found " + print_value(*find_key(path), config_); }

  void stages() const {
    const ModelConfig& model = config_.model;
    if (model.heads.size() != model.dim.size() || model.depth.size() != model.dim.size()) {
      fail({"model.dim", "model.heads", "model.depth"},
           "expected one entry per stage in each of these lists, found " + std::to_string(model.dim.size()) + ", " +
               std::to_string(model.heads.size()) + " and " + std::to_string(model.depth.size()));
    }
    for (std::size_t i = 0; i < model.dim.size(); ++i) {
      const std::string stage = "stage " + std::to_string(i + 1) + ": ";
      if (model.dim[i] % model.heads[i] != 0) {
        fail({"model.heads", "model.dim"}, stage + "expected a divisor of dim " + std::to_string(model.dim[i]) +
                                               ", found " + std::to_string(model.heads[i]) + " heads");
      }
      if (model.dim[i] / model.heads[i] > kMaxHeadDim) {
        fail({"model.heads", "model.dim"}, stage + "expected at most " + std::to_string(kMaxHeadDim) +
                                               " channels a head, found " +
                                               std::to_string(model.dim[i] / model.heads[i]));
      }
      if (model.rotary && model.dim[i] / model.heads[i] % 2 != 0) {
        fail({"model.rotary", "model.heads", "model.dim"},
             stage + "turns pairs of channels, expected an even number of channels a head, found " +
                 std::to_string(model.dim[i] / model.heads[i]));
      }
      // as model/block.cpp rounds it
      if (std::llround(model.mlp_ratio * static_cast<double>(model.dim[i])) < 1) {
        fail({"model.mlp_ratio", "model.dim"}, stage + "the hidden width of the MLP rounds to 0");
      }
    }
  }

  void statistics() const {
    const DataConfig& data = config_.data;
    if (data.mean.size() != data.std.size()) {
      fail({"data.mean", "data.std"}, "expected as many entries in both, found " + std::to_string(data.mean.size()) +
                                          " and " + std::to_string(data.std.size()));
    }
    normalised();
    if (data.folder_channels == 2) fail({"data.folder_channels"}, "expected 1 (gray) or 3 (colour)");
    const auto channels = [&](const char* set, const char* path, std::int64_t count) {
      if (data.dataset == set && !data.mean.empty() && static_cast<std::int64_t>(data.mean.size()) != count) {
        fail({"data.mean", path}, "expected one entry per channel (" + std::to_string(count) + "), found " +
                                      std::to_string(data.mean.size()));
      }
    };
    channels("synthetic", "data.synthetic_channels", data.synthetic_channels);
    channels("image_folder", "data.folder_channels", data.folder_channels);
    channels("image_list", "data.folder_channels", data.folder_channels);
  }

  // Pixels, less the mean and divided by std, are numbers of the type that training computes in.
  void normalised() const {
    const DataConfig& data = config_.data;
    for (std::size_t i = 0; i < data.std.size(); ++i) {
      const double least = least_std(data.mean[i], config_.train.precision);
      if (data.std[i] >= least) continue;
      char bound[32];
      std::snprintf(bound, sizeof bound, "%.2g", 1.05 * least);  // rounded, it still is enough
      fail({"data.std", "data.mean", "train.precision"},
           "entry " + std::to_string(i + 1) + " makes pixels of numbers that " + config_.train.precision +
               " does not hold: expected at least " + bound);
    }
  }

  void pictures() const {
    const DataConfig& data = config_.data;
    const bool files = data.dataset == "image_folder" || data.dataset == "image_list";
    if (!config_.augment.scale.empty()) {
      if (config_.augment.scale.size() != 2)
        fail({"augment.scale"}, "expected the least and the greatest area, or [] for none");
      pair("augment.scale", config_.augment.scale);
      if (!files)
        fail({"augment.scale", "data.dataset"},
             "is for image_folder and image_list, whose files hold more than is seen");
    }
    if (data.dataset == "image_list" && data.train_list.empty()) {
      // What is not there is what is wrong; data.dataset says where it was asked for.
      const std::string at = set_at_("data.train_list");
      throw ConfigError(prefix(at.empty() ? set_at_("data.dataset") : at) +
                        "data.train_list: expected a CSV file of path,label for data.dataset = image_list" +
                        found("data.train_list"));
    }
    if (data.dataset == "image_list" && !data.dir.empty())
      fail({"data.dir", "data.dataset"}, "is not looked at by image_list, whose paths start at each list's folder");
    if (data.dataset != "image_list" && (!data.train_list.empty() || !data.test_list.empty()))
      fail({data.train_list.empty() ? "data.test_list" : "data.train_list", "data.dataset"},
           "is for the dataset image_list");
  }

  // What is out of reach of 8-bit draws (kernels::dropout_rate) would become several times as much, or less.
  void dropout() const {
    const ModelConfig& m = config_.model;
    const std::pair<const char*, double> keys[] = {{"model.attention_dropout", m.attention_dropout},
                                                   {"model.projection_dropout", m.projection_dropout},
                                                   {"model.drop_path", m.drop_path},
                                                   {"model.head_dropout", m.head_dropout}};
    for (const auto& [path, p] : keys) {
      if (p != 0 && (p < 1.0 / 256 || p > 255.0 / 256))
        fail({path}, "is drawn in steps of 1/256: expected 0, or 1/256 (0.00390625) to 255/256 (0.99609375)");
    }
  }

  // Training computes in float32, where so little is nothing: no factor, a division by nothing, a gradient cut to it.
  void tiny() const {
    const std::pair<const char*, double> keys[] = {{"model.layer_scale", config_.model.layer_scale},
                                                   {"optim.eps", config_.optim.eps},
                                                   {"optim.clip_norm", config_.optim.clip_norm}};
    for (const auto& [path, value] : keys) {
      if (value == 0 || value >= double{std::numeric_limits<float>::min()}) continue;
      const bool may_be_0 = !std::get<RealRange>(find_key(path)->limits.each).low_open;  // their ranges start at 0
      fail({path},
           std::string("is less than float32 holds: expected ") + (may_be_0 ? "0, or " : "") + "at least 1.2e-38");
    }
  }

  void pair(const char* path, const std::vector<double>& values) const {
    if (values[0] > values[1]) fail({path}, "expected the least value first and the greatest second");
  }

  const Config& config_;
  const std::function<std::string(const std::string&)>& set_at_;
};

}  // namespace

double least_std(double mean, const std::string& precision) {
  const double reach = std::max(std::abs(mean), std::abs(1 - mean));  // pixels are 0 to 1
  const double most = precision == "float16" ? kMostFloat16 : double{std::numeric_limits<float>::max()};
  return std::max(reach / most, double{std::numeric_limits<float>::min()});
}

void check_together(const Config& config, const std::function<std::string(const std::string& path)>& set_at) {
  Checker(config, set_at).run();
}

}  // namespace axial::app
