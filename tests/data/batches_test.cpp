// Order, slicing, normalisation and errors of batches.
#include "data/batches.h"

#include <functional>

#include <ATen/ATen.h>

#include "image_files.h"
#include "support.h"

namespace axial::data::test {
namespace {

// n images of 2 x 3 x 4 whose every pixel tells its sample; label = sample % 7.
Dataset numbered(std::int64_t n) {
  Dataset set;
  set.name = "numbered";
  set.images = at::arange(n, at::kByte).view({n, 1, 1, 1}).expand({n, 2, 3, 4}).contiguous();
  set.labels = at::arange(n, at::kLong).remainder(7);
  set.classes.resize(7);
  set.mean = {0.0, 0.0};
  set.std = {1.0, 1.0};
  return set;
}

BatchOptions sized(std::int64_t batch_size, bool shuffle, bool drop_last, std::uint64_t seed = 0) {
  BatchOptions options;
  options.batch_size = batch_size;
  options.shuffle = shuffle;
  options.drop_last = drop_last;
  options.seed = seed;
  return options;
}

at::Tensor order_of(Batches& batches, std::int64_t epoch) {
  std::vector<at::Tensor> parts;
  for (std::int64_t i = 0; i < batches.per_epoch(); ++i) parts.push_back(batches.get(epoch, i).index);
  return at::cat(parts);
}

TEST(Batches, CountsWithAndWithoutTheLast) {
  const Dataset set = numbered(10);
  Batches dropped(set, sized(4, true, true), at::kCPU, at::kFloat),
      kept(set, sized(4, true, false), at::kCPU, at::kFloat);
  EXPECT_EQ(dropped.per_epoch(), 2);
  EXPECT_EQ(dropped.samples(), 8);
  EXPECT_EQ(kept.per_epoch(), 3);
  EXPECT_EQ(kept.samples(), 10);
  EXPECT_EQ(kept.get(0, 2).images.sizes(), at::IntArrayRef({2, 2, 3, 4}));
  EXPECT_EQ(kept.get(0, 2).labels.size(0), 2);
}

TEST(Batches, EverySampleOnceInAnEpoch) {
  const Dataset set = numbered(101);
  Batches batches(set, sized(8, true, false), at::kCPU, at::kFloat);
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    const at::Tensor order = order_of(batches, epoch);
    EXPECT_FALSE(at::equal(order, at::arange(101, at::kLong)));
    EXPECT_TRUE(at::equal(std::get<0>(order.sort()), at::arange(101, at::kLong)));
  }
}

TEST(Batches, ImagesLabelsAndIndexBelongTogether) {
  const Dataset set = numbered(50);
  Batches batches(set, sized(8, true, false, 5), at::kCPU, at::kFloat);
  for (std::int64_t i = 0; i < batches.per_epoch(); ++i) {
    const Batch batch = batches.get(3, i);
    EXPECT_TRUE(at::equal(batch.labels, batch.index.remainder(7)));
    const at::Tensor pixels = (batch.images * 255).round();
    EXPECT_TRUE(pixels.eq(batch.index.view({-1, 1, 1, 1})).all().item<bool>());
  }
}

// The numbers themselves: an order that changes would break every run that is resumed across versions.
TEST(Batches, OrderIsPartOfTheFormat) {
  EXPECT_TRUE(at::equal(epoch_order(10, 0, 0), at::tensor({6, 7, 9, 2, 8, 4, 1, 5, 0, 3}, at::kLong)))
      << epoch_order(10, 0, 0);
  EXPECT_TRUE(at::equal(epoch_order(10, 1, 2), at::tensor({4, 1, 5, 8, 6, 2, 3, 7, 0, 9}, at::kLong)))
      << epoch_order(10, 1, 2);
}

TEST(Batches, OrderDependsOnSeedAndEpochOnly) {
  const Dataset set = numbered(60);
  Batches a(set, sized(8, true, false, 1), at::kCPU, at::kFloat),
      b(set, sized(5, true, false, 1), at::kCPU, at::kDouble);
  Batches other(set, sized(8, true, false, 2), at::kCPU, at::kFloat);
  const at::Tensor first = order_of(a, 0), second = order_of(a, 1);
  EXPECT_FALSE(at::equal(first, second));
  EXPECT_FALSE(at::equal(first, order_of(other, 0)));
  EXPECT_TRUE(at::equal(second, order_of(b, 1)));  // another batch size and type, nothing asked before
  EXPECT_TRUE(at::equal(first, order_of(a, 0)));   // back again
  EXPECT_TRUE(at::equal(first, epoch_order(60, 1, 0)));
}

TEST(Batches, EveryPositionIsEquallyLikely) {
  const std::int64_t n = 6, epochs = 6000;
  at::Tensor counts = at::zeros({n, n}, at::kLong);
  const at::Tensor positions = at::arange(n, at::kLong);
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    counts.index_put_({positions, epoch_order(n, 9, epoch)}, at::ones({n}, at::kLong), /*accumulate=*/true);
  }
  // 1000 expected, standard deviation 29.
  EXPECT_GT(counts.min().item<std::int64_t>(), 850);
  EXPECT_LT(counts.max().item<std::int64_t>(), 1150);
}

TEST(Batches, ResumingGivesTheSameBatches) {
  const Dataset set = load({.name = "synthetic", .dir = {}, .synthetic = {.train_size = 64}}, Split::kTrain);
  BatchOptions options = sized(8, true, true, 7);
  options.augment = {.pad_crop = 3, .flip = true, .erase = 0.5};
  Batches whole(set, options, at::kCPU, at::kFloat), resumed(set, options, at::kCPU, at::kFloat);
  for (std::int64_t i = 0; i < 8; ++i) whole.get(0, i);
  for (std::int64_t i = 0; i < 5; ++i) whole.get(1, i);
  const Batch a = whole.get(1, 5), b = resumed.get(1, 5);
  EXPECT_TRUE(at::equal(a.images, b.images));
  EXPECT_TRUE(at::equal(a.labels, b.labels));
  EXPECT_TRUE(at::equal(a.index, b.index));
}

TEST(Batches, EarlierBatchesStayWhenTheEpochChanges) {
  const Dataset set = numbered(16);
  Batches batches(set, sized(4, true, true), at::kCPU, at::kFloat);
  const Batch kept = batches.get(0, 1);
  const at::Tensor before = kept.index.clone();
  batches.get(1, 1);
  EXPECT_TRUE(at::equal(kept.index, before));
}

TEST(Batches, UnshuffledIsTheOrderOfTheSet) {
  const Dataset set = numbered(10);
  Batches batches(set, sized(3, false, false), at::kCPU, at::kFloat);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    EXPECT_TRUE(at::equal(order_of(batches, epoch), at::arange(10, at::kLong)));
  }
}

TEST(Batches, NormalisesByHand) {
  Dataset set = numbered(1);
  set.images = at::tensor({0, 51, 255, 128, 102, 0}, at::kByte).view({1, 2, 1, 3});
  BatchOptions options = sized(1, false, false);
  options.mean = {0.5, 0.2};
  options.std = {0.25, 0.5};
  const at::Tensor expected =
      at::tensor({-2.0, -1.2, 2.0, (128 / 255.0 - 0.2) / 0.5, 0.4, -0.4}, at::kDouble).view({1, 2, 1, 3});
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor got = Batches(set, options, at::kCPU, type).get(0, 0).images;
    EXPECT_EQ(got.scalar_type(), type);
    EXPECT_TRUE(got.is_contiguous());
    const double tolerance = type == at::kDouble  ? 1e-15
                             : type == at::kFloat ? 1e-7
                             : type == at::kHalf  ? 1e-3
                                                  : 8e-3;
    EXPECT_TRUE(at::allclose(got.to(at::kDouble), expected, tolerance, tolerance)) << c10::toString(type) << got;
  }
  // Left out: the set's own.
  options.mean = options.std = {};
  set.mean = {0.5, 0.2};
  set.std = {0.25, 0.5};
  EXPECT_TRUE(at::allclose(Batches(set, options, at::kCPU, at::kDouble).get(0, 0).images, expected, 1e-15, 1e-15));
}

TEST(Batches, Case29NoBatchNamesBothNumbers) {
  const Dataset set = numbered(10);
  expect_parts(error_of([&] { Batches(set, sized(32, true, true), at::kCPU, at::kFloat); }),
               {"numbered", "10", "32"});
  EXPECT_EQ(Batches(set, sized(32, true, false), at::kCPU, at::kFloat).per_epoch(), 1);
  EXPECT_EQ(Batches(set, sized(10, true, true), at::kCPU, at::kFloat).per_epoch(), 1);
  Dataset empty = numbered(10);
  empty.images = empty.images.narrow(0, 0, 0);
  empty.labels = empty.labels.narrow(0, 0, 0);
  expect_parts(error_of([&] { Batches(empty, sized(32, false, false), at::kCPU, at::kFloat); }), {"no samples"});
}

TEST(Batches, BadOptionsAreNamed) {
  const Dataset set = numbered(10);
  const auto error = [&](const std::function<void(BatchOptions&)>& change, at::ScalarType type = at::kFloat) {
    BatchOptions options = sized(2, true, true);
    change(options);
    return error_of([&] { Batches(set, options, at::kCPU, type); });
  };
  expect_parts(error([](BatchOptions& o) { o.batch_size = 0; }), {"batch size 0"});
  expect_parts(error([](BatchOptions& o) { o.mean = {0.5}; }), {"mean of 1", "expected 2"});
  expect_parts(error([](BatchOptions& o) { o.mean = {0.5, 0.5}, o.std = {1, 0}; }), {"std 0"});
  expect_parts(error([](BatchOptions& o) { o.augment.pad_crop = 3; }), {"pad_crop 3", "3 x 4"});
  expect_parts(error([](BatchOptions& o) { o.augment.pad_crop = -1; }), {"pad_crop -1"});
  expect_parts(error([](BatchOptions& o) { o.augment.erase = 1.5; }), {"erase 1.5"});
  expect_parts(error([](BatchOptions& o) { o.augment.erase_max_area = 0.01; }), {"erase areas"});
  expect_parts(error([](BatchOptions&) {}, at::kInt), {"Int"});
  Batches batches(set, sized(4, true, true), at::kCPU, at::kFloat);
  expect_parts(error_of([&] { batches.get(0, 2); }), {"batch 2", "0 to 1"});
  expect_parts(error_of([&] { batches.get(0, -1); }), {"batch -1", "0 to 1"});
}

// Files whose pictures differ in every pixel; label = sample % 3.
Dataset in_files(const TempDir& dir, std::int64_t n) {
  Dataset set;
  set.name = "files";
  const auto pictures = std::make_shared<Pictures>();
  pictures->options = {.channels = 3, .height = 7, .width = 11};
  for (std::int64_t i = 0; i < n; ++i) {
    const auto path = dir / (std::to_string(i) + ".png");
    write_png(path, {.width = 24, .height = 18, .type = PNG_COLOR_TYPE_RGB},
              counting(3 * 24 * 18, static_cast<std::size_t>(100 + i)));
    pictures->files.push_back(path.string());
  }
  set.pictures = pictures;
  set.labels = at::arange(n, at::kLong).remainder(3);
  set.classes.resize(3);
  set.mean = {0.5, 0.4, 0.3};
  set.std = {0.2, 0.3, 0.4};
  return set;
}

void expect_same(const Batch& a, const Batch& b) {
  EXPECT_TRUE(at::equal(a.images, b.images));
  EXPECT_TRUE(at::equal(a.labels, b.labels));
  EXPECT_TRUE(at::equal(a.index, b.index));
  ASSERT_EQ(a.weights.defined(), b.weights.defined());
  if (!a.weights.defined()) return;
  EXPECT_TRUE(at::equal(a.weights, b.weights));
  EXPECT_TRUE(at::equal(a.partner_labels, b.partner_labels));
}

TEST(Batches, FromFilesAreThoseFromMemory) {
  TempDir dir;
  const Dataset files = in_files(dir, 21);
  Dataset memory = files;
  decode(memory, 2);
  EXPECT_FALSE(memory.pictures);
  EXPECT_TRUE(at::equal(image_of(files, 5), image_of(memory, 5)));
  BatchOptions options = sized(4, true, false, 3);
  options.augment = {.pad_crop = 2, .trivial = true, .flip = true, .erase = 0.5, .mixup = 0.8, .cutmix = 1};
  Batches whole(memory, options, at::kCPU, at::kFloat);
  for (const std::int64_t workers : {1, 4}) {
    for (const std::int64_t prefetch : {1, 9}) {
      options.loader = {.workers = workers, .prefetch = prefetch, .cache = CacheKind::kNone};
      Batches streamed(files, options, at::kCPU, at::kFloat);
      for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
        for (std::int64_t i = 0; i < whole.per_epoch(); ++i) expect_same(streamed.get(epoch, i), whole.get(epoch, i));
      }
      // Out of order: what was decoded ahead is not what comes.
      for (const std::int64_t i : {4, 1, 2, 0, 5}) expect_same(streamed.get(1, i), whole.get(1, i));
    }
  }
  const at::Tensor index = at::tensor({20, 3, 3}, at::kLong);
  EXPECT_TRUE(at::equal(image_of(subset(files, index), 0), image_of(subset(memory, index), 0)));
  EXPECT_TRUE(at::equal(subset(files, index).labels, subset(memory, index).labels));
}

TEST(Batches, RandomPartsResumeInMidEpochWithOtherWorkers) {
  TempDir dir;
  Dataset files = in_files(dir, 17);
  files.cache_bytes = 1 << 20;
  BatchOptions options = sized(4, true, true, 3);
  options.augment = {.pad_crop = 1, .flip = true};
  options.augment.scale[0] = 0.2;
  options.augment.scale[1] = 1;
  options.loader.workers = 1;
  Batches whole(files, options, at::kCPU, at::kFloat);
  std::vector<Batch> batches;
  for (std::int64_t i = 0; i < 8; ++i) batches.push_back(whole.get(i / 4, i % 4));
  options.loader = {.workers = 3, .prefetch = 5, .cache = CacheKind::kMemory};
  Batches resumed(files, options, at::kCPU, at::kFloat);
  for (std::int64_t i = 6; i < 8; ++i) expect_same(resumed.get(i / 4, i % 4), batches[static_cast<std::size_t>(i)]);
  // Another epoch cuts other parts: no image comes again.
  const Batch a = whole.get(0, 0);
  for (std::int64_t i = 0; i < 4; ++i) {
    const Batch b = whole.get(1, i);
    for (std::int64_t j = 0; j < 4; ++j) {
      const at::Tensor same = (b.index == a.index[0]).nonzero();
      if (same.numel() == 0) continue;
      EXPECT_FALSE(at::equal(b.images[same[0].item<std::int64_t>()], a.images[0]));
    }
  }
  decode(files, 1);
  expect_parts(error_of([&] { Batches(files, options, at::kCPU, at::kFloat); }), {"random part"});
}

TEST(Batches, Case27ABadFileIsNamedWhenItsBatchComes) {
  TempDir dir;
  const Dataset files = in_files(dir, 12);
  write(dir / "9.png", cut(read_back(dir / "9.png"), 0.5));
  BatchOptions options = sized(4, false, false);
  options.loader = {.workers = 3, .prefetch = 4};
  Batches batches(files, options, at::kCPU, at::kFloat);
  batches.get(0, 0);
  batches.get(0, 1);
  expect_parts(error_of([&] { batches.get(0, 2); }), {(dir / "9.png").string() + ": damaged PNG"});
  batches.get(0, 1);  // the others are still to be had
  Dataset all = files;
  expect_parts(error_of([&] { decode(all, 2); }), {(dir / "9.png").string()});
}

}  // namespace
}  // namespace axial::data::test
