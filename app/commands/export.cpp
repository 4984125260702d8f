#include <filesystem>

#include "app/checkpoint/safetensors.h"
#include "app/commands/commands.h"
#include "app/commands/option_checks.h"
#include "app/commands/result.h"
#include "app/config/load.h"
#include "app/run/log.h"
#include "app/run/output_file.h"
#include "app/run/run_error.h"
#include "app/train/checks.h"
#include "app/train/state.h"
#include "model/classifier.h"

namespace axial::app {

int run_export(const ExportArguments& a) {
  const std::filesystem::path path = resolve_checkpoint(a.checkpoint);
  const OutputFile target(a.output, {path});
  const SafetensorsFile file = read_safetensors(path);
  const CheckpointInfo info = checkpoint_info(file, path);
  check_result(target, info.config);
  check_ending(a.output, ".safetensors");
  if (a.weights == "ema" && !info.has_ema) {
    throw RunError(path.string() + ": holds no averaged weights (train.ema_decay was 0); export --weights model");
  }
  const std::string weights = a.weights == "auto" ? (info.has_ema ? "ema" : "model") : a.weights;
  // Checked as evaluation would: names, shapes and types are those of the configuration's model.
  const AxialClassifier model(classifier_options(info.config, info.spec));
  const NamedTensors tensors = named_tensors(*model);
  load_into(file, path, weights + ".", tensors);

  SafetensorsFile out;
  std::int64_t elements = 0, parameters = 0;
  std::size_t bytes = 0;
  for (const auto& parameter : model->parameters()) parameters += parameter.numel();
  for (const auto& [name, tensor] : tensors) {
    out.tensors[name] = tensor.detach().contiguous();
    elements += tensor.numel();
    bytes += tensor.nbytes();
  }
  out.metadata["format"] = "pt";
  out.metadata["axial.weights"] = weights;
  for (const char* key : {"axial.version", "axial.config", "axial.classes", "axial.image", "axial.epoch"}) {
    out.metadata[key] = file.metadata.at(key);
  }
  write_safetensors(target.path(), out);
  print_result({{"file", a.output},
                {"weights", weights},
                {"tensors", out.tensors.size()},
                {"parameters", parameters},
                {"elements", elements},
                {"tensor_bytes", bytes},
                {"file_bytes", std::filesystem::file_size(target.path())},
                {"checkpoint", path.string()}});
  return 0;
}

}  // namespace axial::app
