#include "data/batches.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include "data/augment.h"
#include "data/mix.h"
#include "data/random.h"
#include "data/trivial.h"

namespace axial::data {
namespace {

[[noreturn]] void refuse(const Dataset& set, const std::string& what) {
  throw DataError((set.name.empty() ? "data set" : set.name) + ": " + what);
}

void check(const Dataset& set, const BatchOptions& options, at::ScalarType dtype) {
  if (!set.pictures && (!set.images.defined() || set.images.dim() != 4 || set.images.scalar_type() != at::kByte)) {
    refuse(set, "images are not uint8 [N, channels, H, W]");
  }
  const std::int64_t count =
      set.pictures ? static_cast<std::int64_t>(set.pictures->files.size()) : set.images.size(0);
  if (!set.labels.defined() || set.labels.dim() != 1 || set.labels.scalar_type() != at::kLong ||
      set.labels.size(0) != count) {
    refuse(set, "labels are not int64 [" + std::to_string(count) + "]");
  }
  if (options.augment.crops() && !set.pictures)
    refuse(set, "a random part of each picture needs pictures that are not decoded yet");
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kBFloat16 && dtype != at::kHalf) {
    refuse(set, std::string("pixels of type ") + c10::toString(dtype) + ", expected a floating-point type");
  }
  const std::size_t channels = static_cast<std::size_t>(set.channels());
  if (options.mean.size() != channels || options.std.size() != channels) {
    refuse(set, "mean of " + std::to_string(options.mean.size()) + " and std of " +
                    std::to_string(options.std.size()) + " values, expected " + std::to_string(channels) +
                    ", one for each channel");
  }
  for (const double value : options.std) {
    if (!(value > 0)) refuse(set, "std " + std::to_string(value) + ", expected a number above 0");
  }
  if (options.batch_size < 1) {
    refuse(set, "batch size " + std::to_string(options.batch_size) + ", expected 1 or more");
  }
  const AugmentOptions& augment = options.augment;
  const std::int64_t shorter = std::min(set.height(), set.width());
  if (shorter < 1 || channels < 1) refuse(set, "images without pixels");
  // A shift by the whole image leaves nothing of it; the bound also keeps the draw within 32 bits.
  if (augment.pad_crop < 0 || (augment.pad_crop > 0 && augment.pad_crop >= shorter)) {
    refuse(set, "pad_crop " + std::to_string(augment.pad_crop) + ", expected 0 or more and less than the image (" +
                    std::to_string(set.height()) + " x " + std::to_string(set.width()) + ")");
  }
  if (!(augment.erase >= 0 && augment.erase <= 1)) {
    refuse(set, "erase " + std::to_string(augment.erase) + ", expected a probability");
  }
  if (!(augment.erase_min_area >= 0 && augment.erase_min_area <= augment.erase_max_area &&
        augment.erase_max_area <= 1)) {
    refuse(set, "erase areas " + std::to_string(augment.erase_min_area) + " to " +
                    std::to_string(augment.erase_max_area) + ", expected 0 <= min <= max <= 1");
  }
  if (!(augment.mixup >= 0 && augment.cutmix >= 0 && augment.mix_probability >= 0 && augment.mix_probability <= 1)) {
    refuse(set, "mixup " + std::to_string(augment.mixup) + ", cutmix " + std::to_string(augment.cutmix) +
                    " with probability " + std::to_string(augment.mix_probability) +
                    ", expected 0 or more and a probability");
  }
  if (augment.trivial && set.channels() > kernels::kTrivialChannels) {
    refuse(set, "images of " + std::to_string(set.channels()) + " channels, and TrivialAugment takes at most " +
                    std::to_string(kernels::kTrivialChannels));
  }
  const std::int64_t size = set.size();
  if (size == 0) refuse(set, "holds no samples");
  if (options.drop_last && size < options.batch_size) {
    refuse(set, std::to_string(size) + " samples give no batch of " + std::to_string(options.batch_size) +
                    " when a smaller last batch is dropped; lower the batch size or keep the last batch");
  }
}

// What an epoch's augmentation does to samples of the set.
struct Draws {
  const BatchOptions& options;
  std::int64_t epoch, height, width;
  std::uint64_t key = stream_key(options.seed, static_cast<std::uint64_t>(epoch), Stream::kAugment);

  PixelMap map(std::int64_t sample) const {
    PixelMap map = draw_map(options.augment, key, sample, height, width);
    if (options.augment.alternate_flip) map.flip = alternates(options.seed, epoch, sample);
    return map;
  }
  void operations(const std::int64_t* samples, std::int64_t n, std::int64_t* out) const {
    for (std::int64_t i = 0; i < n; ++i, out += kernels::kTrivialColumns)
      draw_trivial(key, samples[i], height, width, out);
  }
  // The batch's first is mixed with its last, as in timm: which samples these are is random already.
  Mix mix(const std::int64_t* samples, std::int64_t i, std::int64_t n) const {
    Mix mix = draw_mix(options.augment, key, samples[i], height, width);
    mix.partner = n - 1 - i;
    return mix;
  }
};

// Fisher-Yates.
void shuffle(std::int64_t* order, std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  const std::uint64_t key = stream_key(seed, static_cast<std::uint64_t>(epoch), Stream::kOrder);
  for (std::int64_t i = size - 1; i > 0; --i) {
    const kernels::Philox4 words = draw(key, static_cast<std::uint64_t>(i), 0);
    // 64 bits times (i + 1), of which the upper half: uniform in [0, i] up to 2^-64 i.
    const std::uint64_t high = std::uint64_t{words.x[1]} << 32 | words.x[0], n = static_cast<std::uint64_t>(i) + 1;
    __extension__ typedef unsigned __int128 Wide;
    std::swap(order[i], order[static_cast<std::int64_t>(static_cast<std::uint64_t>(Wide{high} * n >> 64))]);
  }
}

}  // namespace

at::Tensor epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  at::Tensor order = at::arange(size, at::kLong);
  shuffle(order.mutable_data_ptr<std::int64_t>(), size, seed, epoch);
  return order;
}

Batches::Batches(const Dataset& set, BatchOptions options, at::Device device, at::ScalarType dtype)
    : name_(set.name), device_(device), options_(std::move(options)), size_(set.size()) {
  if (options_.mean.empty() && options_.std.empty()) {
    options_.mean = set.mean;
    options_.std = set.std;
  }
  check(set, options_, dtype);
  channels_ = set.channels();
  height_ = set.height();
  width_ = set.width();
  if (set.pictures) {
    options_.loader.cache_bytes = set.cache_bytes;
    loader_ = std::make_unique<Loader>(set.pictures, options_.loader);
  } else {
    images_ = set.images.contiguous().to(device);
  }
  labels_ = set.labels.contiguous().to(device);
  table_ = normalisation_table(options_.mean, options_.std, dtype).to(device);
}

std::int64_t Batches::per_epoch() const {
  return options_.drop_last ? size_ / options_.batch_size : (size_ + options_.batch_size - 1) / options_.batch_size;
}

std::int64_t Batches::samples() const {
  return options_.drop_last ? size_ / options_.batch_size * options_.batch_size : size_;
}

at::Tensor Batches::samples_of(std::int64_t epoch, std::int64_t index) {
  if (!order_.defined() || (options_.shuffle && order_epoch_ != epoch)) {
    // A new tensor each time: earlier batches hold slices of the old one.
    order_ = options_.shuffle ? epoch_order(size_, options_.seed, epoch) : at::arange(size_, at::kLong);
    order_epoch_ = epoch;
  }
  const std::int64_t first = index * options_.batch_size;
  return order_.narrow(0, first, std::min(options_.batch_size, size_ - first));
}

Batches::Coming Batches::start(std::int64_t epoch, std::int64_t index) {
  Coming coming{epoch, index, samples_of(epoch, index), {}, 0};
  const std::int64_t n = coming.samples.size(0), *samples = coming.samples.const_data_ptr<std::int64_t>();
  if (!spare_.empty() && spare_.back().size(0) == n) {
    coming.images = spare_.back();
    spare_.pop_back();
  } else {
    coming.images =
        at::empty({n, channels_, height_, width_}, at::TensorOptions(at::kByte).pinned_memory(device_.is_cuda()));
  }
  Loader::Job job;
  job.samples.assign(samples, samples + n);
  if (options_.augment.crops()) {
    const std::uint64_t key = stream_key(options_.seed, static_cast<std::uint64_t>(epoch), Stream::kCrop);
    for (const std::int64_t sample : job.samples) {
      const double *scale = options_.augment.scale, *ratio = options_.augment.ratio;
      job.crops.push_back({key, static_cast<std::uint64_t>(sample), {scale[0], scale[1]}, {ratio[0], ratio[1]}});
    }
  }
  job.out = coming.images.mutable_data_ptr<std::uint8_t>();
  job.owner = std::make_shared<at::Tensor>(coming.images);
  coming.ticket = loader_->start(std::move(job));
  return coming;
}

// The batch's pictures, uint8 [n, C, H, W] on the CPU. The batches that come next, in the next epoch too where the
// order is a new one, are started before it is waited for.
at::Tensor Batches::decoded(std::int64_t epoch, std::int64_t index) {
  if (coming_.empty() || coming_.front().epoch != epoch || coming_.front().index != index) {
    for (const Coming& unwanted : coming_) loader_->drop(unwanted.ticket);
    coming_.clear();
    coming_.push_back(start(epoch, index));
  }
  while (static_cast<std::int64_t>(coming_.size()) <= options_.loader.prefetch) {
    const Coming& last = coming_.back();
    const bool ends = last.index + 1 == per_epoch();
    if (ends && !options_.shuffle) break;
    coming_.push_back(ends ? start(last.epoch + 1, 0) : start(last.epoch, last.index + 1));
  }
  const Coming wanted = coming_.front();
  coming_.pop_front();
  loader_->finish(wanted.ticket);
  return wanted.images;
}

Batch Batches::get(std::int64_t epoch, std::int64_t index) {
  if (index < 0 || index >= per_epoch()) {
    throw DataError(name_ + ": batch " + std::to_string(index) + " asked for, expected 0 to " +
                    std::to_string(per_epoch() - 1));
  }
  Batch batch;
  batch.index = samples_of(epoch, index);
  const at::Tensor images = loader_ ? decoded(epoch, index) : images_;
  if (device_.is_cpu()) {
    make_on_cpu(images, epoch, batch);
    if (loader_ && batch.index.size(0) == options_.batch_size) spare_.push_back(images);
  } else {
    make_on_device(images, epoch, batch);
  }
  return batch;
}

void Batches::make_on_cpu(const at::Tensor& images, std::int64_t epoch, Batch& batch) const {
  const std::int64_t n = batch.index.size(0), *samples = batch.index.const_data_ptr<std::int64_t>();
  const Draws draws{options_, epoch, height_, width_};
  // Where the pixels are: the whole set, or this batch's alone, whose positions count from 0.
  at::Tensor pictures = images, positions = loader_ ? at::arange(n, at::kLong) : batch.index;
  if (options_.augment.trivial) {
    const at::Tensor rows = at::empty({n, kernels::kTrivialColumns}, at::kLong);
    draws.operations(samples, n, rows.mutable_data_ptr<std::int64_t>());
    pictures = trivial_images(pictures, positions, rows);
    positions = at::arange(n, at::kLong);
  }
  std::vector<PixelMap> maps;
  maps.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; options_.augment.any() && i < n; ++i) maps.push_back(draws.map(samples[i]));
  batch.images = pixels_on_cpu(pictures, table_, positions.const_data_ptr<std::int64_t>(), n, maps);
  batch.labels = labels_.index_select(0, batch.index);
  if (!options_.augment.mixes()) return;
  std::vector<Mix> mixes;
  mixes.reserve(static_cast<std::size_t>(n));
  batch.weights = at::empty({n}, at::kFloat);
  float* weights = batch.weights.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < n; ++i) {
    mixes.push_back(draws.mix(samples, i, n));
    weights[i] = mixes.back().weight;
  }
  batch.images = mix_on_cpu(batch.images, mixes);
  batch.partner_labels = batch.labels.flip(0);
}

void Batches::make_on_device(const at::Tensor& images, std::int64_t epoch, Batch& batch) const {
  const std::int64_t n = batch.index.size(0), *samples = batch.index.const_data_ptr<std::int64_t>();
  const bool augmented = options_.augment.any(), mixed = options_.augment.mixes(), trivial = options_.augment.trivial;
  const Draws draws{options_, epoch, height_, width_};
  // Everything travels in one copy, from pinned memory so that the host does not wait for the device.
  std::int64_t words = 0;
  const auto part = [&](bool wanted, std::int64_t size) { return std::exchange(words, words + (wanted ? size : 0)); };
  const bool counted = loader_ || trivial;  // pixels of this batch alone, at positions from 0
  const std::int64_t at_samples = part(true, n), at_positions = part(counted, n);
  const std::int64_t at_operations = part(trivial, kernels::kTrivialColumns * n);
  const std::int64_t at_maps = part(augmented, kPackedColumns * n), at_mixes = part(mixed, kMixColumns * n);
  const std::int64_t at_weights = part(mixed, (n + 1) / 2);  // float32, two a word
  const at::Tensor host = at::empty({words}, at::TensorOptions(at::kLong).pinned_memory(device_.is_cuda()));
  std::int64_t* const out = host.mutable_data_ptr<std::int64_t>();
  std::copy_n(samples, n, out + at_samples);
  if (counted) std::iota(out + at_positions, out + at_positions + n, std::int64_t{0});
  if (trivial) draws.operations(samples, n, out + at_operations);
  for (std::int64_t i = 0; augmented && i < n; ++i)
    pack_map(draws.map(samples[i]), out + at_maps + i * kPackedColumns);
  for (std::int64_t i = 0; mixed && i < n; ++i) {
    const Mix mix = draws.mix(samples, i, n);
    pack_mix(mix, out + at_mixes + i * kMixColumns);
    std::memcpy(reinterpret_cast<char*>(out + at_weights) + i * std::int64_t{sizeof(float)}, &mix.weight,
                sizeof(float));
  }
  const at::Tensor there = host.to(device_, /*non_blocking=*/true);
  const auto table = [&](bool wanted, std::int64_t first, std::int64_t columns) {
    return wanted ? there.narrow(0, first, n * columns).view({n, columns}) : at::Tensor();
  };
  const at::Tensor which = there.narrow(0, at_samples, n),
                   first_n = there.narrow(0, counted ? at_positions : at_samples, n);
  at::Tensor pictures = images.to(device_, /*non_blocking=*/true);
  if (trivial) {
    pictures =
        trivial_images(pictures, loader_ ? first_n : which, table(true, at_operations, kernels::kTrivialColumns));
  }
  batch.images = pixels_on_device(pictures, table_, first_n, table(augmented, at_maps, kPackedColumns),
                                  table(mixed, at_mixes, kMixColumns));
  batch.labels = labels_.index_select(0, which);
  if (!mixed) return;
  batch.partner_labels = batch.labels.flip(0);
  batch.weights = there.narrow(0, at_weights, (n + 1) / 2).view(at::kFloat).narrow(0, 0, n);
}

}  // namespace axial::data
