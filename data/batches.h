// Batches: which samples, in which order, and what augmentation does to their pixels. Everything random
// is a function of (seed, epoch, sample), never of thread, process or history, so that a resumed run and
// any number of processes see the same pixels.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/dataset.h"
#include "data/loader.h"

namespace axial::data {

struct AugmentOptions {
  std::int64_t pad_crop = 0;  // pixels of black padding on each side before a random crop to the old size
  bool trivial = false;       // one operation of TrivialAugment Wide on the bytes, before all others but random parts
  bool flip = false;          // horizontal, probability 1/2
  // Instead: each sample in every other epoch, one half in even ones and the rest in odd ones (Jordan 2024).
  bool alternate_flip = false;
  double erase = 0;  // probability of setting one rectangle to the mean pixel (Zhong et al. 2017)
  double erase_min_area = 0.02, erase_max_area = 0.33;  // of the image; aspect ratio in [0.3, 3.3]
  // Random resized crop (RandomCrop in picture.h), of sets of image files alone; least and greatest, scale 0: off.
  double scale[2] = {0, 0}, ratio[2] = {0.75, 4.0 / 3};
  bool crops() const { return scale[1] > 0; }
  // Mixing with another sample of the batch, each sample with its own draws (timm's mode elem): of mixup (Zhang et
  // al. 2018) and CutMix (Yun et al. 2019) the parameter of Beta(alpha, alpha), 0: off; with both on, either with
  // probability 1/2. Others stay as they are with probability 1 - mix_probability.
  double mixup = 0, cutmix = 0, mix_probability = 1;
  bool any() const { return pad_crop > 0 || flip || alternate_flip || erase > 0; }
  bool mixes() const { return (mixup > 0 || cutmix > 0) && mix_probability > 0; }
};

struct BatchOptions {
  std::int64_t batch_size = 128;
  bool shuffle = true;
  bool drop_last = true;  // a last batch smaller than batch_size is left out
  std::uint64_t seed = 0;
  AugmentOptions augment;
  std::vector<double> mean, std;  // per channel, both empty: the set's own; pixel p becomes (p/255 - mean) / std
  LoaderOptions loader = {};      // of a set whose pictures are not decoded yet
};

struct Batch {
  at::Tensor images;  // [n, channels, H, W] normalised, in the type asked for, on the set's device
  at::Tensor labels;  // int64 [n]
  at::Tensor index;   // int64 [n] positions in the data set (CPU)
  // Where samples are mixed, else undefined: the label of the one that each was mixed with, int64 [n], and what its
  // own counts, float32 [n]; the partner's counts the rest.
  at::Tensor partner_labels, weights;
};

// A permutation of [0, size), int64 on the CPU, from (seed, epoch) alone.
at::Tensor epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

class Batches {
 public:
  // A set in memory is moved to `device` once; of one in files, threads decode the batches that follow the one that
  // was asked for last. Throws DataError where no batch comes out (10 images, batch 32, drop_last), naming both
  // numbers.
  Batches(const Dataset& set, BatchOptions options, at::Device device, at::ScalarType dtype);

  std::int64_t per_epoch() const;                     // batches in an epoch
  std::int64_t samples() const;                       // samples in an epoch (after drop_last)
  Batch get(std::int64_t epoch, std::int64_t index);  // batch `index` of epoch `epoch`, both from 0

 private:
  // A batch whose pictures are being decoded.
  struct Coming {
    std::int64_t epoch = 0, index = 0;
    at::Tensor samples;  // int64 [n], CPU
    at::Tensor images;   // uint8 [n, C, H, W], CPU
    Loader::Ticket ticket = 0;
  };
  at::Tensor samples_of(std::int64_t epoch, std::int64_t index);  // int64 [n], CPU
  Coming start(std::int64_t epoch, std::int64_t index);
  at::Tensor decoded(std::int64_t epoch, std::int64_t index);
  void make_on_cpu(const at::Tensor& images, std::int64_t epoch, Batch& batch) const;
  void make_on_device(const at::Tensor& images, std::int64_t epoch, Batch& batch) const;

  std::string name_;
  at::Device device_;
  at::Tensor images_, labels_;  // the whole set, on its device; images_ undefined where loader_ makes them
  std::int64_t channels_ = 0, height_ = 0, width_ = 0;
  std::deque<Coming> coming_;
  std::vector<at::Tensor> spare_;  // uint8 buffers of earlier batches: new memory costs its first touch
  std::unique_ptr<Loader> loader_;
  BatchOptions options_;
  at::Tensor table_;  // normalised value of every byte, [channels, 256]
  std::int64_t size_ = 0;
  std::int64_t order_epoch_ = -1;  // the epoch that order_ belongs to
  at::Tensor order_;               // int64 [N], CPU
};

}  // namespace axial::data
