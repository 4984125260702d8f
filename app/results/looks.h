// What a trained model sees, and where it looks, as pictures.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "app/train/state.h"

namespace axial::app {

// A file brought to the size that the model sees, or to `factor` times that, as training did: uint8 [channels, height,
// width].
at::Tensor file_image(const std::string& path, const CheckpointInfo& info, std::int64_t factor = 1);

struct Look {
  at::Tensor picture;                                     // uint8 [3, h, w], enlarged
  at::Tensor both, rows, columns;                         // the same with the maps over it
  double both_peak = 0, rows_peak = 0, columns_peak = 0;  // greatest value as a multiple of the mean
  at::Tensor logits;                                      // float32 [classes], CPU
};

// image: uint8 [channels, height, width], as the model's set has it. `shown`: uint8 [channels, h, w], the same part
// of the picture in the resolution to draw it in.
Look look_at(LoadedModel& loaded, const at::Tensor& image, const at::Tensor& shown);

}  // namespace axial::app
