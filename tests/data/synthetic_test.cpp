#include <ATen/ATen.h>

#include "data/dataset.h"
#include "support.h"
#include "threads.h"

namespace axial::data::test {
namespace {

TEST(Synthetic, SameSeedSameBytes) {
  const DatasetOptions options{.name = "synthetic", .dir = {}, .synthetic = {.train_size = 64, .seed = 3}};
  DatasetOptions other = options;
  other.synthetic.seed = 4;
  const Dataset a = load(options, Split::kTrain), b = load(options, Split::kTrain), c = load(other, Split::kTrain);
  EXPECT_TRUE(at::equal(a.images, b.images));
  EXPECT_FALSE(at::equal(a.images, c.images));
  EXPECT_TRUE(at::equal(a.labels, b.labels));
  for (const int threads : {1, 3}) {
    EXPECT_TRUE(at::equal(a.images, on_threads(threads, [&] { return load(options, Split::kTrain).images; })))
        << threads;
  }
  // A size is a prefix of a larger one, and the splits share nothing but the patterns.
  other = options;
  other.synthetic.train_size = 16;
  EXPECT_TRUE(at::equal(a.images.narrow(0, 0, 16), load(other, Split::kTrain).images));
  other.synthetic.test_size = 64;
  EXPECT_FALSE(at::equal(a.images, load(other, Split::kTest).images));
}

TEST(Synthetic, AnyShape) {
  for (const SyntheticOptions& o : std::vector<SyntheticOptions>{
           {.train_size = 7, .test_size = 5, .channels = 3, .height = 9, .width = 31, .classes = 4, .seed = 0},
           {.train_size = 1, .test_size = 1, .channels = 1, .height = 1, .width = 1, .classes = 1, .seed = 0},
           {.train_size = 3, .test_size = 3, .channels = 2, .height = 1, .width = 64, .classes = 300, .seed = 0}}) {
    const Dataset set = load({.name = "synthetic", .dir = {}, .synthetic = o}, Split::kTrain);
    EXPECT_EQ(set.images.sizes(), at::IntArrayRef({o.train_size, o.channels, o.height, o.width}));
    EXPECT_EQ(set.classes.size(), static_cast<std::size_t>(o.classes));
    EXPECT_EQ(set.mean.size(), static_cast<std::size_t>(o.channels));
    EXPECT_LT(set.labels.max().item<std::int64_t>(), o.classes);
    EXPECT_EQ(load({.name = "synthetic", .dir = {}, .synthetic = o}, Split::kTest).size(), o.test_size);
  }
}

TEST(Synthetic, BadSizesAreNamed) {
  const auto error = [](const SyntheticOptions& o) {
    return error_of([&] { load({.name = "synthetic", .dir = {}, .synthetic = o}, Split::kTrain); });
  };
  expect_parts(error({.train_size = 0}), {"synthetic", "size 0"});
  expect_parts(error({.classes = -1}), {"synthetic", "classes -1"});
  expect_parts(error({.height = std::int64_t{1} << 40}), {"synthetic", "1099511627776", "at most"});
  expect_parts(error({.classes = std::int64_t{1} << 62}), {"synthetic", "4611686018427387904", "at most"});
}

// The nearest of ten noiseless class means separates the test split well, a single pixel does not: enough to
// learn, and not for nothing.
TEST(Synthetic, CanBeLearned) {
  const DatasetOptions options{.name = "synthetic", .dir = {}};
  const Dataset train = load(options, Split::kTrain), test = load(options, Split::kTest);
  const at::Tensor x = train.images.to(at::kFloat).flatten(1), z = test.images.to(at::kFloat).flatten(1);
  EXPECT_NEAR(x.mean().item<double>() / 255, train.mean[0], 0.06);
  EXPECT_NEAR(x.std().item<double>() / 255, train.std[0], 0.03);
  const at::Tensor onehot = at::one_hot(train.labels, 10).to(at::kFloat);      // [N, 10]
  const at::Tensor means = onehot.t().matmul(x) / onehot.sum(0).unsqueeze(1);  // [10, pixels]
  const at::Tensor guess = at::cdist(z, means).argmin(1);
  const double whole = guess.eq(test.labels).to(at::kFloat).mean().item<double>();
  EXPECT_GT(whole, 0.80);
  EXPECT_LT(whole, 0.999);
  const at::Tensor pixel = at::tensor({14 * 28 + 14});
  const at::Tensor one = at::cdist(z.index_select(1, pixel), means.index_select(1, pixel)).argmin(1);
  EXPECT_LT(one.eq(test.labels).to(at::kFloat).mean().item<double>(), 0.40);
}

}  // namespace
}  // namespace axial::data::test
