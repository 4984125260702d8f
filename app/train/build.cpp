#include "app/train/build.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <zlib.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>
#include <c10/core/DeviceGuard.h>

#if defined(AXIAL_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

#include "app/config/load.h"
#include "app/train/checks.h"
#include "kernels/kernels.h"

namespace axial::app {

namespace fs = std::filesystem;

namespace {

// Where decoded pictures are kept; XDG's rule: a relative value is ignored. Never in a folder that all users share,
// where somebody else could have put a file of that name.
fs::path cache_dir(const Config& config) {
  if (!config.data.cache_dir.empty()) return config.data.cache_dir;
  const auto folder = [](const char* variable) {
    const char* value = std::getenv(variable);
    return fs::path(value != nullptr ? value : "");
  };
  fs::path cache = folder("XDG_CACHE_HOME");
  if (!cache.is_absolute()) cache = folder("HOME") / ".cache";
  if (cache.is_absolute()) return cache / "axial" / "pictures";
  throw ConfigError(
      "data.cache_dir: neither XDG_CACHE_HOME nor HOME names a folder for data.cache=disk; name one, or choose "
      "another data.cache");
}

data::DatasetOptions dataset_options(const Config& config) {
  data::DatasetOptions options;
  options.name = config.data.dataset;
  options.dir = config.data.dir;
  ImageSpec wanted;
  wanted.channels = config.data.folder_channels;
  wanted.height = config.data.folder_height;
  wanted.width = config.data.folder_width;
  options.folder.picture = picture_options(config, wanted);
  options.folder.test_fraction = config.data.test_fraction;
  options.folder.train_list = config.data.train_list;
  options.folder.test_list = config.data.test_list;
  options.folder.list_outside = config.data.list_outside;
  options.synthetic.train_size = config.data.synthetic_train;
  options.synthetic.test_size = config.data.synthetic_test;
  options.synthetic.channels = config.data.synthetic_channels;
  options.synthetic.height = config.data.synthetic_height;
  options.synthetic.width = config.data.synthetic_width;
  options.synthetic.classes = config.data.synthetic_classes;
  return options;
}

data::Dataset part(const data::Dataset& set, std::int64_t begin, std::int64_t end) {
  return data::subset(set, at::arange(begin, end, at::kLong));
}

// Where the decoded images of all parts fit into data.cache_memory, they are decoded here and now; else each part may
// keep its share of them. What is cut out at random is decoded anew each time, and needs no room.
void keep_in_memory(const Config& config, DataSets& sets) {
  if (config.data.cache != "memory") return;
  std::vector<data::Dataset*> parts{&sets.test};
  if (sets.held_out) parts.push_back(&sets.validation);
  if (config.augment.scale.empty()) parts.push_back(&sets.train);
  std::erase_if(parts, [](const data::Dataset* set) { return set->pictures == nullptr; });
  double all = 0;
  for (const data::Dataset* set : parts) all += static_cast<double>(set->bytes());
  const double room = static_cast<double>(config.data.cache_memory) * (1 << 20);
  for (data::Dataset* set : parts) {
    if (all <= room) {
      data::decode(*set, config.data.workers);
    } else {
      set->cache_bytes = static_cast<std::int64_t>(static_cast<double>(set->bytes()) * (room / all));
    }
  }
}

}  // namespace

namespace {

constexpr const char* kNoDriver = "this machine has no NVIDIA driver";

// Empty where the runtime sees a device, else what it says.
std::string visible_devices() {
#if defined(AXIAL_WITH_CUDA)
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return {};
  (void)cudaGetLastError();
  // What the runtime calls insufficient is most often not there at all.
  int version = 0;
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&version) == cudaSuccess && version == 0)
    return kNoDriver;
  return std::string("no CUDA device is visible: ") + cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error);
#else
  return "no CUDA device is visible";
#endif
}

}  // namespace

std::string cuda_problem() {
  if (!kernels::cuda::built()) return "this axial was built without CUDA";
  if (const std::string found = visible_devices(); !found.empty()) {
    if (found == kNoDriver) return found + " (built for " + kernels::cuda::architectures() + ")";
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

data::Dataset load_test(const Config& config, const std::vector<std::string>& classes) {
  check_folder(config);
  data::DatasetOptions options = dataset_options(config);
  options.folder.classes = classes;
  return data::load(options, data::Split::kTest);
}

DataSets load_data(const Config& config) {
  check_folder(config);
  DataSets sets;
  sets.train = data::load(dataset_options(config), data::Split::kTrain);
  sets.test = load_test(config);
  check_images(sets.test, image_spec(config, sets.train));
  if (config.data.validation_fraction > 0) {
    // The last part of a fixed permutation is held out, whatever the seed: runs stay comparable.
    const std::int64_t n = sets.train.size();
    const auto held = static_cast<std::int64_t>(static_cast<double>(n) * config.data.validation_fraction);
    if (held < 1 || held >= n) {
      throw ConfigError("data.validation_fraction: " + std::to_string(config.data.validation_fraction) + " of " +
                        std::to_string(n) + " images leaves nothing to " + (held < 1 ? "validate" : "train") + " on");
    }
    const at::Tensor index = data::epoch_order(n, /*seed=*/0, /*epoch=*/0);
    sets.validation = data::subset(sets.train, index.slice(0, n - held, n));
    sets.train = data::subset(sets.train, index.slice(0, 0, n - held));
    sets.held_out = true;
  }
  if (config.data.train_limit > 0 && config.data.train_limit < sets.train.size()) {
    const bool in_order = config.data.dataset == "image_folder" && !sets.held_out;  // of class
    sets.train =
        in_order
            ? data::subset(
                  sets.train,
                  data::epoch_order(sets.train.size(), /*seed=*/0, /*epoch=*/0).slice(0, 0, config.data.train_limit))
            : part(sets.train, 0, config.data.train_limit);
  }
  check_batches(config, sets.train);
  check_memory(config, sets.train, sets.held_out ? sets.validation : sets.test, machine_memory());
  keep_in_memory(config, sets);
  if (!sets.held_out) sets.validation = sets.test;
  return sets;
}

ImageSpec image_spec(const Config& config, const data::Dataset& set) {
  ImageSpec spec;
  spec.channels = set.channels();
  spec.height = set.height();
  spec.width = set.width();
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
  o.mlp_conv = m.mlp_conv;
  o.position = m.position;
  o.relative_bias = m.relative_bias;
  o.position_sensitive = m.position_sensitive;
  o.rotary = m.rotary;
  o.rotary_base = m.rotary_base;
  o.layer_scale = m.layer_scale;
  o.first = m.first_axis == "height" ? Axis::kColumn : Axis::kRow;
  o.attention_dropout = m.attention_dropout;
  o.projection_dropout = m.projection_dropout;
  o.drop_path = m.drop_path;
  o.head_dropout = m.head_dropout;
  o.float32_residual = m.float32_residual;
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
    o.augment.trivial = config.augment.trivial;
    o.augment.flip = config.augment.flip;
    o.augment.alternate_flip = config.augment.alternate_flip;
    o.augment.erase = config.augment.erase;
    o.augment.erase_min_area = config.augment.erase_area[0];
    o.augment.erase_max_area = config.augment.erase_area[1];
    for (std::size_t i = 0; i < config.augment.scale.size(); ++i) o.augment.scale[i] = config.augment.scale[i];
    for (std::size_t i = 0; i < 2; ++i) o.augment.ratio[i] = config.augment.ratio[i];
    o.augment.mixup = config.augment.mixup;
    o.augment.cutmix = config.augment.cutmix;
    o.augment.mix_probability = config.augment.mix_probability;
  }
  o.loader.workers = config.data.workers;
  o.loader.prefetch = config.data.prefetch;
  o.loader.cache = config.data.cache == "memory" ? data::CacheKind::kMemory
                   : config.data.cache == "disk" ? data::CacheKind::kDisk
                                                 : data::CacheKind::kNone;
  // What is cut out at random is kept by nobody.
  if (o.augment.crops()) o.loader.cache = data::CacheKind::kNone;
  if (o.loader.cache == data::CacheKind::kDisk) o.loader.cache_dir = cache_dir(config);
  return o;
}

data::PictureOptions picture_options(const Config& config, const ImageSpec& spec) {
  data::PictureOptions o;
  o.channels = spec.channels;
  o.height = spec.height;
  o.width = spec.width;
  o.crop_pct = config.data.crop_pct;
  o.crop_mode = config.data.crop_mode == "squash"   ? data::CropMode::kSquash
                : config.data.crop_mode == "border" ? data::CropMode::kBorder
                                                    : data::CropMode::kCenter;
  return o;
}

}  // namespace axial::app
