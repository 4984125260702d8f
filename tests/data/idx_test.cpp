#include <ATen/ATen.h>

#include "data/dataset.h"
#include "support.h"

namespace axial::data::test {
namespace {

const char* const kImages = "train-images-idx3-ubyte";
const char* const kLabels = "train-labels-idx1-ubyte";

class Idx : public ::testing::Test {
 protected:
  // Ten images of 4 x 5 with labels 0 to 9, as they should be.
  Bytes images_ = idx({10, 4, 5}, counting(200));
  Bytes labels_ = idx({10}, counting(10));
  TempDir dir_;

  Dataset load_train() { return load({.name = "fashion_mnist", .dir = dir_.path()}, Split::kTrain); }
  std::string error() {
    return error_of([&] { load_train(); });
  }
  void expect_the_ten() {
    const Dataset set = load_train();
    EXPECT_EQ(set.name, "fashion_mnist");
    EXPECT_EQ(set.size(), 10);
    EXPECT_EQ(set.images.sizes(), at::IntArrayRef({10, 1, 4, 5}));
    EXPECT_TRUE(set.images.is_contiguous());
    EXPECT_TRUE(at::equal(set.images.view(-1), at::arange(200, at::kByte)));
    EXPECT_TRUE(at::equal(set.labels, at::arange(10, at::kLong)));
    EXPECT_EQ(set.classes.size(), 10u);
    EXPECT_EQ(set.mean, std::vector<double>{0.2860});
    EXPECT_EQ(set.std, std::vector<double>{0.3530});
  }
};

TEST_F(Idx, ReadsRawFiles) {
  write(dir_ / kImages, images_);
  write(dir_ / kLabels, labels_);
  expect_the_ten();
}

TEST_F(Idx, ReadsGzipFiles) {
  write(dir_ / (std::string(kImages) + ".gz"), gzip(images_));
  write(dir_ / (std::string(kLabels) + ".gz"), gzip(labels_));
  expect_the_ten();
}

TEST_F(Idx, ReadsNamesWithADot) {
  write(dir_ / "train-images.idx3-ubyte", images_);
  write(dir_ / "train-labels.idx1-ubyte.gz", gzip(labels_));
  expect_the_ten();
}

TEST_F(Idx, ReadsTheFolderThatOtherToolsMake) {
  std::filesystem::create_directories(dir_ / "FashionMNIST/raw");
  write(dir_ / "FashionMNIST/raw/train-images-idx3-ubyte", images_);
  write(dir_ / "FashionMNIST/raw/train-labels-idx1-ubyte", labels_);
  expect_the_ten();
}

TEST_F(Idx, PrefersAFileToAFolderOfTheSameName) {
  std::filesystem::create_directories(dir_ / kImages);  // what some unpackers leave
  write(dir_ / (std::string(kImages) + ".gz"), gzip(images_));
  write(dir_ / kLabels, labels_);
  expect_the_ten();
}

TEST_F(Idx, ReadsTheTestSplit) {
  write(dir_ / "t10k-images-idx3-ubyte", idx({1, 2, 2}, {1, 2, 3, 4}));
  write(dir_ / "t10k-labels-idx1-ubyte", idx({1}, {7}));
  const Dataset set = load({.name = "mnist", .dir = dir_.path()}, Split::kTest);
  EXPECT_EQ(set.images.sizes(), at::IntArrayRef({1, 1, 2, 2}));
  EXPECT_EQ(set.labels.item<std::int64_t>(), 7);
  EXPECT_EQ(set.mean, std::vector<double>{0.1307});
}

TEST_F(Idx, Case24HeaderPromisesMoreThanTheFileHolds) {
  write(dir_ / kLabels, labels_);
  write(dir_ / kImages, idx({11, 4, 5}, counting(200)));  // within the size of the file, header and all
  expect_parts(error(), {kImages, "11 x 4 x 5 = 220 bytes", "holds at most 200"});
  write(dir_ / kImages, idx({60000, 4, 5}, counting(200)));
  expect_parts(error(), {kImages, "60000 x 4 x 5", "holds at most 200"});
  std::filesystem::remove(dir_ / kImages);
  write(dir_ / (std::string(kImages) + ".gz"), gzip(idx({60, 4, 5}, counting(200))));
  expect_parts(error(), {".gz", "60 x 4 x 5 = 1200 bytes", "holds 200"});
}

TEST_F(Idx, Case24InsaneSizesAreRefusedFromTheHeader) {
  write(dir_ / kLabels, labels_);
  const std::uint32_t most = 0xffffffffu;
  for (const auto& sizes : std::vector<std::vector<std::uint32_t>>{
           {most, most, most}, {1u << 31, 1u << 31, 4}, {1u << 16, 1u << 16, 1u << 31}, {10, 1u << 31, 1}}) {
    write(dir_ / kImages, idx(sizes, counting(200)));
    expect_parts(error(), {kImages, std::to_string(sizes[0]) + " x " + std::to_string(sizes[1]), "holds at most"});
    write(dir_ / kImages, gzip(idx(sizes, counting(200))));
    expect_parts(error(), {kImages, std::to_string(sizes[0]) + " x " + std::to_string(sizes[1]), "holds at most"});
  }
  write(dir_ / kImages, idx({0, 4, 5}, {}));
  expect_parts(error(), {kImages, "0 x 4 x 5", "expected"});
}

TEST_F(Idx, Case24DifferentCountsNameBothNumbersAndBothFiles) {
  write(dir_ / kImages, images_);
  write(dir_ / kLabels, idx({9}, counting(9)));
  expect_parts(error(), {(dir_ / kImages).string(), "10 images", (dir_ / kLabels).string(), "9 labels"});
}

TEST_F(Idx, Case24TrailingBytesAndShortHeaders) {
  write(dir_ / kLabels, labels_);
  Bytes longer = images_;
  longer.push_back(0);
  write(dir_ / kImages, longer);
  expect_parts(error(), {kImages, "4 x 5 = 200 bytes", "holds more"});
  write(dir_ / kImages, Bytes(images_.begin(), images_.begin() + 15));
  expect_parts(error(), {kImages, "holds 15 bytes", "header of 16"});
  write(dir_ / kImages, {});
  expect_parts(error(), {kImages, "holds 0 bytes", "header of 16"});
  write(dir_ / kImages, idx({10, 20}, counting(200)));
  expect_parts(error(), {kImages, "00000802", "00000803"});
}

TEST_F(Idx, Case25ContentDecidesNotTheName) {
  write(dir_ / kImages, gzip(images_));                   // gzip under the raw name
  write(dir_ / (std::string(kLabels) + ".gz"), labels_);  // raw under the gzip name
  expect_the_ten();
}

TEST_F(Idx, Case25GzipCutInMidStream) {
  write(dir_ / kLabels, labels_);
  const Bytes whole = gzip(images_);
  for (std::size_t size : {whole.size() - 1, whole.size() - 8, whole.size() / 2, std::size_t{12}, std::size_t{3}}) {
    write(dir_ / kImages, Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
    expect_parts(error(), {kImages, "gzip stream is cut"});
  }
}

TEST_F(Idx, Case25GzipDamaged) {
  write(dir_ / kLabels, labels_);
  Bytes damaged = gzip(images_);
  damaged[damaged.size() - 6] ^= 0x10;  // in the checksum
  write(dir_ / kImages, damaged);
  expect_parts(error(), {kImages, "gzip stream is damaged", "incorrect data check"});
  damaged = gzip(images_);
  damaged[12] ^= 0xff;
  write(dir_ / kImages, damaged);
  expect_parts(error(), {kImages, "gzip stream is"});
}

TEST_F(Idx, Case26LabelOutOfRange) {
  write(dir_ / kImages, images_);
  Bytes values = counting(10);
  values[3] = 10;
  write(dir_ / kLabels, idx({10}, values));
  expect_parts(error(), {(dir_ / kLabels).string(), "label 10 at index 3", "0 to 9"});
}

TEST_F(Idx, WhatIsNoFileIsNamed) {
  write(dir_ / kLabels, labels_);
  std::filesystem::create_directory(dir_ / kImages);
  expect_parts(error(), {(dir_ / kImages).string(), "is a folder, expected a file"});
  std::filesystem::remove(dir_ / kImages);
  ASSERT_EQ(mkfifo((dir_ / kImages).c_str(), 0600), 0);  // opening it would wait for ever
  expect_parts(error(), {kImages, "is a pipe"});
  std::filesystem::remove(dir_ / kImages);
  write(dir_ / kImages, images_);
  std::filesystem::remove(dir_ / kLabels);
  expect_parts(error(), {(dir_ / kLabels).string(), "no such file"});
}

TEST(Datasets, MissingFolderSaysWhereItLookedAndWhatIsNeeded) {
  TempDir dir;
  expect_parts(error_of([&] { load({.name = "fashion_mnist", .dir = dir / "absent"}, Split::kTrain); }),
               {(dir / "absent").string() + " (absent)", kImages, "dataset-fashion-mnist", "t10k-labels-idx1-ubyte"});
  write(dir / "file", {1});
  expect_parts(error_of([&] { load({.name = "cifar10", .dir = dir / "file"}, Split::kTest); }),
               {(dir / "file").string() + " (no folder)", "test_batch.bin"});
  expect_parts(error_of([&] { load({.name = "fashion_mist", .dir = {}}, Split::kTrain); }),
               {"'fashion_mist'", "fashion_mnist", "synthetic"});
}

TEST(Datasets, DefaultFoldersFollowTheEnvironment) {
  TempDir dir;
  const char* before = std::getenv("AXIAL_DATA");
  const std::string kept = before ? before : "";
  setenv("AXIAL_DATA", dir.path().c_str(), 1);
  const auto dirs = default_dirs("mnist");
  ASSERT_FALSE(dirs.empty());
  EXPECT_EQ(dirs.front(), dir / "mnist");
  EXPECT_EQ(dirs.back(), std::filesystem::path("/usr/share/datasets/mnist"));
  std::filesystem::create_directory(dir / "mnist");
  write(dir / "mnist/train-images-idx3-ubyte", idx({1, 2, 2}, {1, 2, 3, 4}));
  write(dir / "mnist/train-labels-idx1-ubyte", idx({1}, {7}));
  EXPECT_EQ(load({.name = "mnist", .dir = {}}, Split::kTrain).size(), 1);
  before ? setenv("AXIAL_DATA", kept.c_str(), 1) : unsetenv("AXIAL_DATA");
  EXPECT_TRUE(default_dirs("synthetic").empty());
}

TEST(Datasets, FashionMnistOfTheSystem) {
  const std::filesystem::path dir = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is absent (Debian package dataset-fashion-mnist)";
  const Dataset train = load({.name = "fashion_mnist", .dir = dir}, Split::kTrain);
  const Dataset test = load({.name = "fashion_mnist", .dir = dir}, Split::kTest);
  EXPECT_EQ(train.images.sizes(), at::IntArrayRef({60000, 1, 28, 28}));
  EXPECT_EQ(test.images.sizes(), at::IntArrayRef({10000, 1, 28, 28}));
  EXPECT_EQ(train.labels[0].item<std::int64_t>(), 9);  // an ankle boot each
  EXPECT_EQ(test.labels[0].item<std::int64_t>(), 9);
  EXPECT_EQ(train.classes[9], "Ankle boot");
  const at::Tensor counts = at::bincount(train.labels);
  EXPECT_TRUE(counts.eq(6000).all().item<bool>());
  const at::Tensor pixels = train.images.to(at::kDouble) / 255;
  EXPECT_NEAR(pixels.mean().item<double>(), train.mean[0], 1e-4);
  EXPECT_NEAR(pixels.std().item<double>(), train.std[0], 1e-4);
}

}  // namespace
}  // namespace axial::data::test
