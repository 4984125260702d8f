#include <ATen/ATen.h>

#include "data/dataset.h"
#include "support.h"

namespace axial::data::test {
namespace {

// Records whose labels are label(i) and whose pixels count from i.
Bytes records(std::size_t count, std::size_t label_bytes, std::uint8_t first_label) {
  Bytes out;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t b = 1; b < label_bytes; ++b) out.push_back(static_cast<std::uint8_t>(i % 20));
    out.push_back(static_cast<std::uint8_t>(first_label + i));
    for (std::size_t p = 0; p < 3072; ++p) out.push_back(static_cast<std::uint8_t>(i + p));
  }
  return out;
}

std::string batch_name(int i) { return "data_batch_" + std::to_string(i) + ".bin"; }

TEST(Cifar10, ReadsFiveFilesInOrder) {
  TempDir dir;
  for (int i = 1; i <= 5; ++i) write(dir / batch_name(i), records(2, 1, static_cast<std::uint8_t>(2 * (i - 1))));
  write(dir / "data_batch_3.bin", gzip(records(2, 1, 4)));  // content decides
  const Dataset set = load({.name = "cifar10", .dir = dir.path()}, Split::kTrain);
  EXPECT_EQ(set.images.sizes(), at::IntArrayRef({10, 3, 32, 32}));
  EXPECT_TRUE(at::equal(set.labels, at::arange(10, at::kLong)));
  EXPECT_EQ(set.images[7][2][31][31].item<std::uint8_t>(), static_cast<std::uint8_t>(1 + 3071));
  EXPECT_EQ(set.mean.size(), 3u);
  EXPECT_EQ(set.classes[9], "truck");
}

TEST(Cifar10, ReadsTheUnpackedArchive) {
  TempDir dir;
  std::filesystem::create_directory(dir / "cifar-10-batches-bin");
  write(dir / "cifar-10-batches-bin/test_batch.bin", records(3, 1, 0));
  EXPECT_EQ(load({.name = "cifar10", .dir = dir.path()}, Split::kTest).size(), 3);
}

TEST(Cifar10, MissingBatchIsNamed) {
  TempDir dir;
  for (int i = 1; i <= 4; ++i) write(dir / batch_name(i), records(1, 1, 0));
  expect_parts(error_of([&] { load({.name = "cifar10", .dir = dir.path()}, Split::kTrain); }),
               {(dir / "data_batch_5.bin").string(), "no such file"});
}

TEST(Cifar10, Case24CutFile) {
  TempDir dir;
  Bytes bytes = records(2, 1, 0);
  bytes.pop_back();
  write(dir / "test_batch.bin", bytes);
  const auto error = [&] { return error_of([&] { load({.name = "cifar10", .dir = dir.path()}, Split::kTest); }); };
  expect_parts(error(), {"test_batch.bin", "6145 bytes", "multiple of 3073"});
  write(dir / "test_batch.bin", {});
  expect_parts(error(), {"test_batch.bin", "0 bytes", "multiple of 3073"});
  write(dir / "test_batch.bin", cut(gzip(records(2, 1, 0)), 0.5));
  expect_parts(error(), {"test_batch.bin", "gzip stream is cut"});
}

TEST(Cifar10, Case26LabelOutOfRange) {
  TempDir dir;
  write(dir / "test_batch.bin", records(3, 1, 8));
  expect_parts(error_of([&] { load({.name = "cifar10", .dir = dir.path()}, Split::kTest); }),
               {"test_batch.bin", "label 10 at index 2", "0 to 9"});
}

TEST(Cifar100, ReadsFineLabels) {
  TempDir dir;
  write(dir / "train.bin", records(4, 2, 96));
  const Dataset set = load({.name = "cifar100", .dir = dir.path()}, Split::kTrain);
  EXPECT_TRUE(at::equal(set.labels, at::arange(96, 100, at::kLong)));
  EXPECT_EQ(set.images[2][0][0][0].item<std::uint8_t>(), 2);
  ASSERT_EQ(set.classes.size(), 100u);
  EXPECT_EQ(set.classes[0], "apple");
  EXPECT_EQ(set.classes[99], "worm");
  EXPECT_TRUE(std::is_sorted(set.classes.begin(), set.classes.end()));
}

TEST(Cifar100, Case26LabelsOutOfRange) {
  TempDir dir;
  write(dir / "test.bin", records(4, 2, 97));
  const auto error = [&] { return error_of([&] { load({.name = "cifar100", .dir = dir.path()}, Split::kTest); }); };
  expect_parts(error(), {"test.bin", "label 100 at index 3", "0 to 99"});
  Bytes bytes = records(2, 2, 0);
  bytes[3074] = 20;
  write(dir / "test.bin", bytes);
  expect_parts(error(), {"test.bin", "coarse label 20 at index 1", "0 to 19"});
}

}  // namespace
}  // namespace axial::data::test
