#include "app/train/summary.h"

#include <cmath>
#include <cstdio>

#include "model/classifier.h"

namespace axial::app {

namespace {

double stem_operations(const AxialClassifierOptions& o) {
  if (o.stem == Stem::kPatch) {
    const auto up = [&](std::int64_t size) { return (size + o.patch_size - 1) / o.patch_size; };
    return 2.0 * static_cast<double>(up(o.image_height) * up(o.image_width)) *
           static_cast<double>(o.patch_size * o.patch_size * o.channels * o.dim[0]);
  }
  double sum = 0;
  std::int64_t height = o.image_height, width = o.image_width, in = o.channels;
  const auto convolution = [&](std::int64_t out) {
    sum += 2.0 * 9 * static_cast<double>(in * out) * static_cast<double>(height * width);
    in = out;
  };
  const auto shrink = [&](std::int64_t stride) {
    height = (height - 1) / stride + 1;
    width = (width - 1) / stride + 1;
  };
  for (const std::int64_t channels : o.stem_channels) {
    convolution(channels);
    shrink(2);
  }
  shrink(o.stem_stride);
  convolution(o.dim[0]);
  return sum;
}

// Two passes and the MLP.
double block_operations(const AxialClassifierOptions& o, const ModelPart& part) {
  const double tokens = static_cast<double>(part.rows * part.columns), d = static_cast<double>(part.channels);
  const double hidden = std::round(o.mlp_ratio * d);
  const double passes = 2 * (2 * tokens * d * 3 * d + 2 * tokens * d * d) +
                        4 * tokens * d * static_cast<double>(part.rows + part.columns);
  // Three relative terms, each a product like that with the keys.
  const double relative = o.position_sensitive ? 6 * tokens * d * static_cast<double>(part.rows + part.columns) : 0;
  const double convolution = o.mlp_conv ? 2 * 9 * tokens * hidden : 0;
  return passes + relative + 4 * tokens * d * hidden + convolution;
}

// Where in model_parts a parameter is counted: stem, position tables (where there are any), stages, head.
std::size_t part_of(const std::string& name, const AxialClassifierOptions& o) {
  const std::vector<std::int64_t>& depth = o.depth;
  const std::size_t first = o.position ? 2 : 1;  // of the stages
  const auto number_after = [&](const char* prefix) -> std::int64_t {
    const std::size_t from = std::string(prefix).size();
    return name.compare(0, from, prefix) == 0 ? std::stoll(name.substr(from)) : -1;
  };
  if (name == "row_pos" || name == "col_pos") return 1;
  if (const std::int64_t merge = number_after("merges."); merge >= 0)
    return first + static_cast<std::size_t>(merge) + 1;
  if (std::int64_t block = number_after("blocks."); block >= 0) {
    std::size_t stage = 0;
    while (block >= depth[stage]) block -= depth[stage++];
    return first + stage;
  }
  return name.compare(0, 5, "norm.") == 0 || name.compare(0, 5, "head.") == 0 ? first + depth.size() : 0;
}

std::string short_number(double value) {
  const char* unit = "";
  for (const char* next : {"k", "M", "G", "T"}) {
    if (value < 9999.5) break;
    value /= 1000;
    unit = next;
  }
  char text[32];
  std::snprintf(text, sizeof text, value < 100 && *unit ? "%.1f %s" : "%.0f %s", value, unit);
  std::string result = text;
  if (result.back() == ' ') result.pop_back();
  return result;
}

}  // namespace

std::vector<ModelPart> model_parts(const AxialClassifierImpl& model) {
  const AxialClassifierOptions& o = model.options();
  std::vector<ModelPart> parts;
  auto [rows, columns] = model.grid();
  ModelPart stem{"stem", rows, columns, o.dim[0]};
  stem.operations = stem_operations(o);
  parts.push_back(stem);
  if (o.position) parts.push_back({"position", rows, columns, o.dim[0]});
  for (std::size_t stage = 0; stage < o.dim.size(); ++stage) {
    ModelPart part{"stage " + std::to_string(stage + 1), rows, columns, o.dim[stage]};
    if (stage > 0) {
      part.rows = rows = (rows + 1) / 2;
      part.columns = columns = (columns + 1) / 2;
      part.operations = 2.0 * static_cast<double>(rows * columns * 4 * o.dim[stage - 1] * o.dim[stage]);
    }
    part.operations += static_cast<double>(o.depth[stage]) * block_operations(o, part);
    parts.push_back(part);
  }
  ModelPart head{"head", 1, 1, o.classes};
  head.operations = 2.0 * static_cast<double>(o.dim.back() * o.classes);
  parts.push_back(head);
  for (const auto& item : model.named_parameters(true)) {
    ModelPart& part = parts[part_of(item.key(), o)];
    part.parameters += item.value().numel();
    if (item.value().requires_grad()) part.trained += item.value().numel();
  }
  return parts;
}

std::string summary_table(const std::vector<ModelPart>& parts) {
  std::string text;
  const auto line = [&](const std::string& name, const std::string& tokens, const std::string& channels,
                        std::int64_t parameters, std::int64_t trained, const std::string& operations) {
    char row[160];
    std::snprintf(row, sizeof row, "%-8s %9s %9s %12lld %12lld %12s\n", name.c_str(), tokens.c_str(),
                  channels.c_str(), static_cast<long long>(parameters), static_cast<long long>(trained),
                  operations.c_str());
    text += row;
  };
  char header[160];
  std::snprintf(header, sizeof header, "%-8s %9s %9s %12s %12s %12s\n", "part", "tokens", "channels", "parameters",
                "trained", "operations");
  text += header;
  ModelPart sum;
  for (const ModelPart& part : parts) {
    line(part.name, std::to_string(part.rows) + "x" + std::to_string(part.columns), std::to_string(part.channels),
         part.parameters, part.trained, short_number(part.operations));
    sum.parameters += part.parameters;
    sum.trained += part.trained;
    sum.operations += part.operations;
  }
  line("all", "", "", sum.parameters, sum.trained, short_number(sum.operations));
  return text +
         "operations: of matrix products, an image's forward pass; a training step takes three times as many\n";
}

void MemoryMeter::Counts::reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) {
  const std::int64_t value = now.fetch_add(size) + size;
  std::int64_t most = peak.load();
  while (value > most && !peak.compare_exchange_weak(most, value)) {
  }
}

MemoryMeter::MemoryMeter()
    : counts_(std::make_shared<Counts>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counts_) {}

std::string size_text(double bytes) {
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1023.5) break;
    bytes /= 1024;
    unit = next;
  }
  char text[32];
  std::snprintf(text, sizeof text, bytes < 100 && unit[0] != 'B' ? "%.1f %s" : "%.0f %s", bytes, unit);
  return text;
}

}  // namespace axial::app
