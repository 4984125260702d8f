#include "app/results/looks.h"

#include <ATen/ATen.h>

#include "app/results/picture.h"
#include "app/train/build.h"
#include "data/image.h"
#include "model/attention_map.h"
#include "model/classifier.h"

namespace axial::app {

at::Tensor file_image(const std::string& path, const CheckpointInfo& info, std::int64_t factor) {
  data::PictureOptions options = picture_options(info.config, info.spec);
  options.height *= factor;
  options.width *= factor;
  return data::read_image(path, options);
}

Look look_at(LoadedModel& loaded, const at::Tensor& image, const at::Tensor& shown) {
  const at::NoGradGuard no_grad;
  const ImageSpec& spec = loaded.info.spec;
  const at::Tensor mean = at::tensor(spec.mean, at::kFloat).view({-1, 1, 1});
  const at::Tensor std = at::tensor(spec.std, at::kFloat).view({-1, 1, 1});
  const at::Tensor pixels = ((image.to(at::kFloat) / 255 - mean) / std)
                                .unsqueeze(0)
                                .to(loaded.device, compute_type(loaded.info.config.train.precision));
  const AttentionMaps maps = attention_rollout(*loaded.model, pixels);
  Look look;
  look.logits = logits_of(*loaded.model, pixels, loaded.views)[0].to(at::kCPU, at::kFloat);
  look.picture = as_rgb(shown);
  // A patch stem pads pictures up to whole patches: its map covers the padding, too.
  const auto [rows, columns] = loaded.model->grid();
  const ModelConfig& model = loaded.info.config.model;
  std::int64_t height = 0, width = 0;
  if (model.stem == "patch") {
    height = rows * model.patch_size * shown.size(1) / spec.height;
    width = columns * model.patch_size * shown.size(2) / spec.width;
  }
  const auto draw = [&](const at::Tensor& map, double* peak) {
    *peak = (map[0].max() / map[0].mean()).item<double>();
    return with_heat(look.picture, map[0], height, width);
  };
  look.both = draw(maps.both, &look.both_peak);
  look.rows = draw(maps.rows, &look.rows_peak);
  look.columns = draw(maps.columns, &look.columns_peak);
  return look;
}

}  // namespace axial::app
