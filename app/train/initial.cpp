#include "app/train/initial.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "app/config/load.h"
#include "app/train/metadata.h"

#include "app/counted.h"

namespace axial::app {

namespace {

constexpr std::size_t kMostNames = 6;

bool ends_with(const std::string& text, const std::string& tail) {
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

// "5 start anew (a, b, c, ...)"
std::string listed(const std::vector<std::string>& names, const std::string& what) {
  std::string text = std::to_string(names.size()) + " " + what + " (";
  for (std::size_t i = 0; i < std::min(names.size(), kMostNames); ++i) text += (i ? ", " : "") + names[i];
  return text + (names.size() > kMostNames ? ", ...)" : ")");
}

// `table` with another number of entries along `dim`; undefined where that is not what differs.
at::Tensor stretched(const at::Tensor& table, const at::Tensor& like, std::int64_t dim, bool ends_on_ends) {
  if (table.dim() != like.dim() || table.numel() == 0) return {};
  for (std::int64_t d = 0; d < table.dim(); ++d) {
    if (d != dim && table.size(d) != like.size(d)) return {};
  }
  const std::int64_t length = like.size(dim);
  const at::Tensor lines = table.to(at::kFloat).movedim(dim, -1).reshape({1, -1, table.size(dim)});
  // One relative position alone is that of no offset: the middle one.
  const at::Tensor made = ends_on_ends && length == 1 ? lines.narrow(2, table.size(dim) / 2, 1)
                                                      : at::upsample_linear1d(lines, {length}, ends_on_ends);
  return made.reshape(like.movedim(dim, -1).sizes()).movedim(-1, dim).contiguous();
}

at::Tensor interpolated(const std::string& name, const at::Tensor& table, const at::Tensor& like) {
  if (name == "row_pos") return stretched(table, like, 0, false);
  if (name == "col_pos") return stretched(table, like, 1, false);
  if (ends_with(name, ".row_bias") || ends_with(name, ".col_bias")) return stretched(table, like, 1, true);
  for (const char* tail : {"_relative_q", "_relative_k", "_relative_v"}) {
    if (ends_with(name, tail)) return stretched(table, like, 0, true);
  }
  return {};
}

// The weights in a file: of a checkpoint the averages where it has them; or what axial export wrote.
struct Weights {
  std::string prefix;  // of their names
  bool averaged = false;
  std::vector<std::string> classes;
  std::optional<Config> config;  // of their model, where the file says it
};

// What fits by its shapes and yet is another function.
void check_meaning(const Config& there, const Config& here, const std::filesystem::path& path) {
  const std::string tail = "; weights of that model mean something else here (" + path.string() + ")";
  std::vector<std::string> changed = differing_keys(there, here);
  std::erase_if(changed, [&](const std::string& key) {
    if (key == "model.rotary_base") return !there.model.rotary || !here.model.rotary;
    return key != "model.heads" && key != "model.first_axis" && key != "model.rotary" &&
           key != "model.stem_activation" && key != "model.stem_stride";
  });
  if (!changed.empty()) throw CheckpointError(describe_changes(changed, there, here) + tail);
  const auto &a = there.model.depth, &b = here.model.depth;
  if (a.size() != b.size() || !std::equal(a.begin(), a.end() - 1, b.begin())) {
    throw CheckpointError(describe_changes({"model.depth"}, there, here) +
                          "; of several stages only the last one's may change (" + path.string() + ")");
  }
}

Weights weights_in(const SafetensorsFile& file, const std::filesystem::path& path) {
  const auto exported = file.metadata.find("axial.weights");
  if (exported == file.metadata.end()) {
    const CheckpointInfo info = checkpoint_info(file, path);
    return {info.has_ema ? "ema." : "model.", info.has_ema, info.spec.classes, info.config};
  }
  Weights weights{"", exported->second == "ema", Metadata(file, path, "axial.classes").texts(), std::nullopt};
  const auto config = file.metadata.find("axial.config");
  if (config == file.metadata.end()) return weights;
  try {
    weights.config = parse_config(config->second, path.string() + ": configuration");
  } catch (const ConfigError& e) {
    throw CheckpointError(e.what());
  }
  return weights;
}

}  // namespace

std::string load_initial(const std::filesystem::path& from, const Config& config, const ImageSpec& spec,
                         const NamedTensors& model) {
  const std::filesystem::path path = resolve_checkpoint(from);
  const SafetensorsFile file = read_safetensors(path);
  const Weights weights = weights_in(file, path);
  if (weights.config) check_meaning(*weights.config, config, path);
  const std::string& prefix = weights.prefix;
  const bool same_classes = weights.classes == spec.classes;

  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  std::vector<std::string> tables, absent, unused;
  bool new_head = false;
  for (const auto& [name, tensor] : model) {
    const auto found = file.tensors.find(prefix + name);
    if (name.compare(0, 5, "head.") == 0 && !same_classes) {
      new_head = true;
      continue;
    }
    if (found == file.tensors.end()) {
      absent.push_back(name);
      continue;
    }
    at::Tensor value = found->second;
    if (at::isFloatingType(value.scalar_type()) != at::isFloatingType(tensor.scalar_type())) {
      throw CheckpointError(path.string() + ": " + name + " is of type " + c10::toString(value.scalar_type()) +
                            " there, expected one like " + c10::toString(tensor.scalar_type()));
    }
    if (value.sizes() != tensor.sizes()) {
      value = interpolated(name, value, tensor);
      if (!value.defined()) {
        throw CheckpointError(path.string() + ": " + name + " is " + shape_text(found->second.sizes()) +
                              " there and " + shape_text(tensor.sizes()) +
                              " here; model.* must be as in that run, except for "
                              "the depth");
      }
      tables.push_back(name);
    }
    check_finite(path, name, value);
    copies.emplace_back(tensor, value);
  }
  for (const auto& entry : file.tensors) {
    if (entry.first.compare(0, prefix.size(), prefix) != 0) continue;
    const std::string name = entry.first.substr(prefix.size());
    if (std::none_of(model.begin(), model.end(), [&](const auto& own) { return own.first == name; }))
      unused.push_back(name);
  }
  if (copies.empty()) throw CheckpointError(path.string() + ": holds no weights of this model's names");

  at::NoGradGuard no_grad;
  for (auto& [to, value] : copies) to.copy_(value);
  std::string line = "initial weights from " + path.string() + ": " + counted(copies.size(), "tensor") + " loaded";
  if (weights.averaged) line += " (averages)";
  if (!tables.empty()) line += ", of them " + listed(tables, "interpolated");
  if (new_head) {
    line += "; the head starts anew (" + counted(spec.classes.size(), "class") + ", there " +
            std::to_string(weights.classes.size()) +
            (spec.classes.size() == weights.classes.size() ? " others)" : ")");
  }
  if (!absent.empty()) line += "; " + listed(absent, "not there, start anew");
  if (!unused.empty()) line += "; " + listed(unused, "there alone, skipped");
  return line;
}

}  // namespace axial::app
