#include "app/train/build.h"

#include <algorithm>
#include <cstdint>
#include <thread>

#include <zlib.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>

#if defined(AXIAL_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

#include "app/config/load.h"
#include "app/train/checks.h"
#include "kernels/kernels.h"

namespace axial::app {

namespace {

data::DatasetOptions dataset_options(const Config& config) {
  data::DatasetOptions options;
  options.name = config.data.dataset;
  options.dir = config.data.dir;
  options.folder.channels = config.data.folder_channels;
  options.folder.height = config.data.folder_height;
  options.folder.width = config.data.folder_width;
  options.synthetic.train_size = config.data.synthetic_train;
  options.synthetic.test_size = config.data.synthetic_test;
  options.synthetic.channels = config.data.synthetic_channels;
  options.synthetic.height = config.data.synthetic_height;
  options.synthetic.width = config.data.synthetic_width;
  options.synthetic.classes = config.data.synthetic_classes;
  return options;
}

data::Dataset part(const data::Dataset& set, std::int64_t begin, std::int64_t end) {
  data::Dataset result = set;
  result.images = set.images.slice(0, begin, end);
  result.labels = set.labels.slice(0, begin, end);
  return result;
}

}  // namespace

namespace {

// Empty where the runtime sees a device, else what it says.
std::string visible_devices() {
#if defined(AXIAL_WITH_CUDA)
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return {};
  (void)cudaGetLastError();
  return std::string("no CUDA device is visible: ") + cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error);
#else
  return "no CUDA device is visible";
#endif
}

}  // namespace

std::string cuda_problem() {
  if (!kernels::cuda::built()) return "this axial was built without CUDA";
  if (const std::string found = visible_devices(); !found.empty()) {
    return found + " (built for " + kernels::cuda::architectures() +
           "; is there a driver, and does CUDA_VISIBLE_DEVICES name a device?)";
  }
  if (!at::hasCUDA()) return "libtorch's CUDA library is not loaded (was the program linked with --as-needed?)";
  return {};
}

std::string device_problem(at::Device device) {
  if (device.index() >= static_cast<int>(at::getNumGPUs())) {
    return "there are " + std::to_string(at::getNumGPUs()) + " CUDA devices, numbered from 0";
  }
  (void)at::empty({1}, at::TensorOptions(device));  // makes the context; a broken driver shows here
  const c10::DeviceGuard guard(device);
  const kernels::Status status = kernels::cuda::usable();
  return status.ok() ? std::string() : std::string(status.message);
}

at::Device select_device(const std::string& name, const std::string& option) {
  if (name == "cpu") return at::kCPU;
  std::string reason = cuda_problem();
  if (reason.empty()) {
    const at::Device device = name == "auto" || name == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(name);
    reason = device_problem(device);
    if (reason.empty()) return device;
  }
  if (name == "auto") return at::kCPU;
  throw DeviceError(option + name + ": " + reason + "; " + option + "cpu runs without a GPU");
}

void configure_libtorch(const TrainConfig& config, std::int64_t threads) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (config.threads > 0) threads = config.threads;
  at::set_num_threads(threads > 0 ? static_cast<int>(threads) : cores);
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  const bool tf32 = config.precision == "tf32";
  context.setAllowTF32CuBLAS(tf32);
  context.setAllowTF32CuDNN(tf32);
  // Denormals cost hundreds of cycles each on the CPU and carry nothing here.
  (void)context.setFlushDenormal(true);
}

at::ScalarType compute_type(const std::string& precision) {
  if (precision == "bfloat16") return at::kBFloat16;
  if (precision == "float16") return at::kHalf;
  return at::kFloat;
}

data::Dataset load_test(const Config& config) {
  check_folder(config);
  return data::load(dataset_options(config), data::Split::kTest);
}

DataSets load_data(const Config& config) {
  check_folder(config);
  DataSets sets;
  sets.train = data::load(dataset_options(config), data::Split::kTrain);
  sets.test = load_test(config);
  check_images(sets.test, image_spec(config, sets.train));
  sets.validation = sets.test;
  if (config.data.validation_fraction > 0) {
    // The last part of a fixed permutation is held out, whatever the seed: runs stay comparable.
    const std::int64_t n = sets.train.size();
    const auto held = static_cast<std::int64_t>(static_cast<double>(n) * config.data.validation_fraction);
    if (held < 1 || held >= n) {
      throw ConfigError("data.validation_fraction: " + std::to_string(config.data.validation_fraction) + " of " +
                        std::to_string(n) + " images leaves nothing to " + (held < 1 ? "validate" : "train") + " on");
    }
    const at::Tensor index = data::epoch_order(n, /*seed=*/0, /*epoch=*/0);
    data::Dataset shuffled = sets.train;
    shuffled.images = sets.train.images.index_select(0, index);
    shuffled.labels = sets.train.labels.index_select(0, index);
    sets.validation = part(shuffled, n - held, n);
    sets.train = part(shuffled, 0, n - held);
    sets.held_out = true;
  }
  if (config.data.train_limit > 0 && config.data.train_limit < sets.train.size()) {
    sets.train = part(sets.train, 0, config.data.train_limit);
  }
  check_batches(config, sets.train);
  return sets;
}

ImageSpec image_spec(const Config& config, const data::Dataset& set) {
  ImageSpec spec;
  spec.channels = set.images.size(1);
  spec.height = set.images.size(2);
  spec.width = set.images.size(3);
  spec.classes = set.classes;
  spec.mean = config.data.mean.empty() ? set.mean : config.data.mean;
  spec.std = config.data.std.empty() ? set.std : config.data.std;
  spec.train_images = set.size();
  const at::Tensor labels = set.labels.contiguous();
  spec.label_checksum = static_cast<std::uint32_t>(
      crc32_z(0, static_cast<const unsigned char*>(labels.const_data_ptr()), labels.nbytes()));
  const auto channels = static_cast<std::size_t>(spec.channels);
  if (spec.mean.size() != channels || spec.std.size() != channels) {
    throw ConfigError("data.mean, data.std: expected " + std::to_string(channels) + " numbers, one per channel of " +
                      set.name + "; found " + std::to_string(spec.mean.size()) + " and " +
                      std::to_string(spec.std.size()));
  }
  return spec;
}

AxialClassifierOptions classifier_options(const Config& config, const ImageSpec& spec) {
  const ModelConfig& m = config.model;
  AxialClassifierOptions o;
  o.channels = spec.channels;
  o.image_height = spec.height;
  o.image_width = spec.width;
  o.classes = static_cast<std::int64_t>(spec.classes.size());
  o.stem = m.stem == "patch" ? Stem::kPatch : Stem::kConv;
  o.patch_size = m.patch_size;
  o.stem_channels = m.stem_channels;
  o.stem_stride = m.stem_stride;
  o.stem_norm = m.stem_norm == "batch" ? StemNorm::kBatch : StemNorm::kNone;
  o.stem_activation = m.stem_activation == "relu"   ? Activation::kRelu
                      : m.stem_activation == "gelu" ? Activation::kGelu
                                                    : Activation::kNone;
  o.dim = m.dim;
  o.heads = m.heads;
  o.depth = m.depth;
  o.mlp_ratio = m.mlp_ratio;
  o.position = m.position;
  o.relative_bias = m.relative_bias;
  o.first = m.first_axis == "height" ? Axis::kColumn : Axis::kRow;
  o.attention_dropout = m.attention_dropout;
  o.drop_path = m.drop_path;
  o.head_dropout = m.head_dropout;
  o.backend = m.backend == "reference" ? Backend::kReference : Backend::kFused;
  return o;
}

data::BatchOptions batch_options(const Config& config, const ImageSpec& spec, bool training) {
  data::BatchOptions o;
  o.batch_size = training ? config.data.batch_size : config.data.eval_batch_size;
  o.shuffle = training;
  o.drop_last = training && config.data.drop_last;
  o.seed = config.train.seed;
  o.mean = spec.mean;
  o.std = spec.std;
  if (training) {
    o.augment.pad_crop = config.augment.pad_crop;
    o.augment.flip = config.augment.flip;
    o.augment.erase = config.augment.erase;
    o.augment.erase_min_area = config.augment.erase_area[0];
    o.augment.erase_max_area = config.augment.erase_area[1];
  }
  return o;
}

}  // namespace axial::app
