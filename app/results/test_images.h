// Test images that are asked for by number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "app/train/state.h"
#include "data/dataset.h"

namespace axial::app {

// The number that `input` is, where no file has that name: which is said where one has, since it may surprise.
std::optional<std::int64_t> test_index(const std::string& input);

class TestImages {
 public:
  explicit TestImages(const CheckpointInfo& info) : info_(info) {}
  // uint8 [channels, height, width]. The set is loaded, and checked against the model's, when the first is asked for.
  // Throws data::DataError.
  at::Tensor get(std::int64_t index);

 private:
  const CheckpointInfo& info_;
  data::Dataset test_;
};

}  // namespace axial::app
