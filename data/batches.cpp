#include "data/batches.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include "data/augment.h"
#include "data/random.h"

namespace axial::data {
namespace {

[[noreturn]] void refuse(const Dataset& set, const std::string& what) {
  throw DataError((set.name.empty() ? "data set" : set.name) + ": " + what);
}

void check(const Dataset& set, const BatchOptions& options, at::ScalarType dtype) {
  if (!set.images.defined() || set.images.dim() != 4 || set.images.scalar_type() != at::kByte) {
    refuse(set, "images are not uint8 [N, channels, H, W]");
  }
  if (!set.labels.defined() || set.labels.dim() != 1 || set.labels.scalar_type() != at::kLong ||
      set.labels.size(0) != set.size()) {
    refuse(set, "labels are not int64 [" + std::to_string(set.size()) + "]");
  }
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kBFloat16 && dtype != at::kHalf) {
    refuse(set, std::string("pixels of type ") + c10::toString(dtype) + ", expected a floating-point type");
  }
  const std::size_t channels = static_cast<std::size_t>(set.images.size(1));
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
  const std::int64_t shorter = std::min(set.images.size(2), set.images.size(3));
  if (shorter < 1 || channels < 1) refuse(set, "images without pixels");
  // A shift by the whole image leaves nothing of it; the bound also keeps the draw within 32 bits.
  if (augment.pad_crop < 0 || (augment.pad_crop > 0 && augment.pad_crop >= shorter)) {
    refuse(set, "pad_crop " + std::to_string(augment.pad_crop) + ", expected 0 or more and less than the image (" +
                    std::to_string(set.images.size(2)) + " x " + std::to_string(set.images.size(3)) + ")");
  }
  if (!(augment.erase >= 0 && augment.erase <= 1)) {
    refuse(set, "erase " + std::to_string(augment.erase) + ", expected a probability");
  }
  if (!(augment.erase_min_area >= 0 && augment.erase_min_area <= augment.erase_max_area &&
        augment.erase_max_area <= 1)) {
    refuse(set, "erase areas " + std::to_string(augment.erase_min_area) + " to " +
                    std::to_string(augment.erase_max_area) + ", expected 0 <= min <= max <= 1");
  }
  const std::int64_t size = set.size();
  if (size == 0) refuse(set, "holds no samples");
  if (options.drop_last && size < options.batch_size) {
    refuse(set, std::to_string(size) + " samples give no batch of " + std::to_string(options.batch_size) +
                    " when a smaller last batch is dropped; lower the batch size or keep the last batch");
  }
}

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
    : name_(set.name), options_(std::move(options)), size_(set.size()) {
  if (options_.mean.empty() && options_.std.empty()) {
    options_.mean = set.mean;
    options_.std = set.std;
  }
  check(set, options_, dtype);
  images_ = set.images.contiguous().to(device);
  labels_ = set.labels.contiguous().to(device);
  table_ = normalisation_table(options_.mean, options_.std, dtype).to(device);
}

std::int64_t Batches::per_epoch() const {
  return options_.drop_last ? size_ / options_.batch_size : (size_ + options_.batch_size - 1) / options_.batch_size;
}

std::int64_t Batches::samples() const {
  return options_.drop_last ? size_ / options_.batch_size * options_.batch_size : size_;
}

Batch Batches::get(std::int64_t epoch, std::int64_t index) {
  if (index < 0 || index >= per_epoch()) {
    throw DataError(name_ + ": batch " + std::to_string(index) + " asked for, expected 0 to " +
                    std::to_string(per_epoch() - 1));
  }
  if (!order_.defined() || (options_.shuffle && order_epoch_ != epoch)) {
    // A new tensor each time: earlier batches hold slices of the old one.
    order_ = options_.shuffle ? epoch_order(size_, options_.seed, epoch) : at::arange(size_, at::kLong);
    order_epoch_ = epoch;
  }
  const std::int64_t first = index * options_.batch_size, n = std::min(options_.batch_size, size_ - first);
  Batch batch;
  batch.index = order_.narrow(0, first, n);
  const std::int64_t* samples = batch.index.const_data_ptr<std::int64_t>();

  std::vector<PixelMap> maps;
  if (options_.augment.any()) {
    const std::uint64_t key = stream_key(options_.seed, static_cast<std::uint64_t>(epoch), Stream::kAugment);
    maps.reserve(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      maps.push_back(draw_map(options_.augment, key, samples[i], images_.size(2), images_.size(3)));
    }
  }
  if (images_.is_cpu()) {
    batch.images = pixels_on_cpu(images_, table_, samples, n, maps);
    batch.labels = labels_.index_select(0, batch.index);
    return batch;
  }
  // Positions and maps travel in one copy, from pinned memory so that the host does not wait for the device.
  const std::int64_t words = n + 8 * static_cast<std::int64_t>(maps.size());
  at::Tensor host = at::empty({words}, at::TensorOptions(at::kLong).pinned_memory(images_.is_cuda()));
  std::int64_t* out = std::copy_n(samples, n, host.mutable_data_ptr<std::int64_t>());
  pack_maps(maps, out);
  const at::Tensor there = host.to(images_.device(), /*non_blocking=*/true), picked = there.narrow(0, 0, n);
  const at::Tensor rows = maps.empty() ? at::Tensor() : there.narrow(0, n, 8 * n).view({n, 8});
  batch.images = pixels_composed(images_, table_, picked, rows);
  batch.labels = labels_.index_select(0, picked);
  return batch;
}

}  // namespace axial::data
