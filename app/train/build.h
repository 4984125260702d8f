// From a Config to the things that train: device, data, model.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "app/config/config.h"
#include "data/batches.h"
#include "data/dataset.h"
#include "model/options.h"

namespace axial::app {

// The machine cannot do what was asked for; one line that names what was built and what was found.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Empty where CUDA can be used, else why not, in one line.
std::string cuda_problem();

// Empty where this CUDA device can be used, else why not. CUDA itself has no problem (cuda_problem).
std::string device_problem(at::Device device);

// auto, cpu, cuda, cuda:N -> a device that was seen to work. `option`: how the user wrote it, for the error and its
// way out. Throws DeviceError.
at::Device select_device(const std::string& name, const std::string& option = "train.device=");

// Threads, determinism and matrix precision of libtorch, for the whole process. `threads`: where train.threads leaves
// the number open; 0: one for each core.
void configure_libtorch(const TrainConfig& config, std::int64_t threads = 0);

at::ScalarType compute_type(const std::string& precision);  // float32 for float32 and tf32

// Training, validation and test sets. With data.validation_fraction = 0 the validation set is the test set. Throws
// ConfigError where the configuration does not fit what was read: no batch comes out, say.
struct DataSets {
  data::Dataset train, validation, test;
  bool held_out = false;
};
DataSets load_data(const Config& config);
// The test set alone, as evaluation needs it. `classes`: a trained model's, which are then the set's; the training
// images need not be there.
data::Dataset load_test(const Config& config, const std::vector<std::string>& classes = {});

// What a model must know of the images it was trained on; stored in its checkpoints.
struct ImageSpec {
  std::int64_t channels = 1, height = 1, width = 1;
  std::vector<std::string> classes;
  std::vector<double> mean, std;  // per channel: of the configuration, else of the set
  // Of the training set, so that a resumed run notices another one; 0: not known.
  std::int64_t train_images = 0;
  std::uint32_t label_checksum = 0;
};
ImageSpec image_spec(const Config& config, const data::Dataset& set);

AxialClassifierOptions classifier_options(const Config& config, const ImageSpec& spec);
data::BatchOptions batch_options(const Config& config, const ImageSpec& spec, bool training);
// How a picture file becomes an image of the model's.
data::PictureOptions picture_options(const Config& config, const ImageSpec& spec);

}  // namespace axial::app
