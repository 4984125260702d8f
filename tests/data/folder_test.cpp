// Image folders: what counts as a class and as an image, and errors from any thread.
#include <algorithm>
#include <functional>

#include <ATen/ATen.h>

#include "data/dataset.h"
#include "data/listing.h"
#include "image_files.h"
#include "support.h"

namespace axial::data::test {
namespace {
namespace fs = std::filesystem;

void write_flat(const fs::path& path, std::uint8_t value, int size = 8) {
  fs::create_directories(path.parent_path());
  const std::size_t count = 3 * static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  write_png(path, {.width = size, .height = size, .type = PNG_COLOR_TYPE_RGB}, Bytes(count, value));
}

// Names may hold line ends; the log takes care of those.
std::string error_of_any(const std::function<void()>& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

class Folder : public ::testing::Test {
 protected:
  Folder() {
    write_flat(dir_ / "train/cat/1.png", 10);
    write_flat(dir_ / "train/cat/deep/2.PNG", 20, 16);
    write_flat(dir_ / "train/dog/1.jpeg", 30, 5);
    write_flat(dir_ / "test/dog/1.png", 40);
  }
  Dataset load_split(Split split = Split::kTrain) {
    DatasetOptions options{.name = "image_folder", .dir = dir_.path()};
    options.folder.picture = {.channels = 3, .height = 4, .width = 6};
    Dataset set = load(options, split);
    decode(set, 3);
    return set;
  }
  TempDir dir_;
};

TEST_F(Folder, ReadsClassesInOrder) {
  const Dataset train = load_split(), test = load_split(Split::kTest);
  EXPECT_EQ(train.classes, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(train.images.sizes(), at::IntArrayRef({3, 3, 4, 6}));
  EXPECT_TRUE(at::equal(train.labels, at::tensor({0, 0, 1}, at::kLong)));
  EXPECT_TRUE(
      train.images.select(1, 0).select(1, 0).select(1, 0).eq(at::tensor({10, 20, 30}, at::kByte)).all().item<bool>());
  // The test split lacks a class and keeps the training split's labels.
  EXPECT_EQ(test.classes, train.classes);
  EXPECT_TRUE(at::equal(test.labels, at::tensor({1}, at::kLong)));
}

TEST_F(Folder, Case28HiddenFilesLoopsAndAccents) {
  write(dir_ / "train/cat/._1.jpg", {1, 2, 3});
  write(dir_ / "train/cat/.DS_Store", {1, 2, 3});
  write(dir_ / "train/.DS_Store", {1, 2, 3});
  write(dir_ / "train/cat/notes.txt", {1, 2, 3});
  write_flat(dir_ / "train/cat/.hidden/1.png", 99);
  fs::create_directory_symlink("..", dir_ / "train/cat/loop");
  fs::create_directory_symlink("..", dir_ / "train/loop");
  fs::create_symlink("nowhere.png", dir_ / "train/cat/dangling.png");
  write_flat(dir_ / "train/dog/\xc3\xa9.png", 50);
  write_flat(dir_ / "elsewhere/1.png", 60);
  fs::create_directory_symlink("../elsewhere", dir_ / "train/emu");  // a class that lies elsewhere is one
  fs::create_symlink("../../elsewhere/1.png", dir_ / "train/dog/linked.png");
  const Dataset set = load_split();
  EXPECT_EQ(set.classes, (std::vector<std::string>{"cat", "dog", "emu"}));
  EXPECT_TRUE(at::equal(set.labels, at::tensor({0, 0, 1, 1, 1, 2}, at::kLong)));
  EXPECT_EQ(list_images(dir_ / "train/dog").back(), dir_ / "train/dog/\xc3\xa9.png");
}

TEST_F(Folder, Case27FirstBadFileIsNamedFromAnyWorker) {
  for (int i = 0; i < 40; ++i) write_flat(dir_ / ("train/cat/x" + std::to_string(100 + i) + ".png"), 1);
  write_jpeg(dir_ / "train/cat/x107.jpg", {.width = 32, .height = 32}, counting(3 * 32 * 32));
  write(dir_ / "train/cat/x107.jpg", cut(read_back(dir_ / "train/cat/x107.jpg"), 0.6));
  write(dir_ / "train/cat/x120.png", {});
  write(dir_ / "train/cat/x139.png", {'B', 'M', 0, 0});
  for (int repeat = 0; repeat < 3; ++repeat) {
    expect_parts(error_of([&] { load_split(); }), {(dir_ / "train/cat/x107.jpg").string() + ": damaged JPEG"});
  }
}

TEST_F(Folder, NamesOfClassesAreText) {
  write_flat(dir_ / "train/\xe7\x8c\xab \xc3\xa9/1.png", 1);
  EXPECT_EQ(load_split().classes.size(), 3u);
  for (const std::string name : {"ap\xff", "a\nb", "a\x1b[2J", "\xed\xa0\x80", "\xc3"}) {
    write_flat(dir_ / "train" / name / "1.png", 1);
    const std::string error = error_of_any([&] { load_split(); });
    expect_parts(error, {(dir_ / "train" / name).string(), "must be UTF-8"});
    fs::remove_all(dir_ / "train" / name);
  }
}

TEST_F(Folder, WhatIsNotUsedIsCounted) {
  EXPECT_TRUE(load_split().notes.empty());
  write(dir_ / "train/cat/.hidden.webp", {1});
  EXPECT_TRUE(load_split().notes.empty()) << "hidden files are nobody's pictures";
  write(dir_ / "train/cat/deep/b.webp", {1});
  write(dir_ / "train/cat/deep/c.gif", {1});
  write(dir_ / "train/loose.png", {1});
  const std::vector<std::string> notes = load_split().notes;
  ASSERT_EQ(notes.size(), 1u);
  expect_parts(notes[0], {"3 files were not used", (dir_ / "train/cat/deep/b.webp").string()});
  EXPECT_TRUE(load_split(Split::kTest).notes.empty());
}

TEST_F(Folder, ClassesStandInNaturalOrder) {
  for (const char* name : {"img10", "img2", "img02", "Img3", "img"}) write_flat(dir_ / "train" / name / "1.png", 1);
  EXPECT_EQ(load_split().classes, (std::vector<std::string>{"Img3", "cat", "dog", "img", "img02", "img2", "img10"}));
}

TEST_F(Folder, ATrainedModelBringsItsClasses) {
  fs::remove_all(dir_ / "train");
  DatasetOptions options{.name = "image_folder", .dir = dir_.path()};
  options.folder.classes = {"dog", "cat"};
  EXPECT_EQ(load(options, Split::kTest).classes, options.folder.classes);
  EXPECT_TRUE(at::equal(load(options, Split::kTest).labels, at::tensor({0}, at::kLong)));
  options.folder.classes = {"cat"};
  expect_parts(error_of([&] { load(options, Split::kTest); }), {"a class 'dog' that the model lacks"});
}

TEST_F(Folder, OneFolderIsDividedByNames) {
  TempDir dir;
  for (int i = 0; i < 20; ++i) write_flat(dir / ("a/" + std::to_string(i) + ".png"), 1);
  for (int i = 0; i < 3; ++i) write_flat(dir / ("b/" + std::to_string(i) + ".png"), 2);
  write_flat(dir / "c/0.png", 3);
  DatasetOptions options{.name = "image_folder", .dir = dir.path()};
  options.folder.test_fraction = 0.25;
  const Dataset train = load(options, Split::kTrain), test = load(options, Split::kTest);
  EXPECT_EQ(test.labels.eq(0).sum().item<int>(), 5);
  EXPECT_EQ(test.labels.eq(1).sum().item<int>(), 1);
  EXPECT_EQ(test.labels.eq(2).sum().item<int>(), 0) << "the only one of its class is for training";
  EXPECT_EQ(train.size() + test.size(), 24);
  EXPECT_EQ(test.classes, train.classes);
  std::vector<std::string> all = train.pictures->files;
  for (const std::string& file : test.pictures->files) EXPECT_EQ(std::count(all.begin(), all.end(), file), 0) << file;
  // What is added changes little: of the old test images of a, four or more stay.
  write_flat(dir / "a/new.png", 1);
  const Dataset grown = load(options, Split::kTest);
  int stayed = 0;
  for (const std::string& file : test.pictures->files)
    stayed += static_cast<int>(std::count(grown.pictures->files.begin(), grown.pictures->files.end(), file));
  EXPECT_GE(stayed, 5);
  options.folder.test_fraction = 0;
  expect_parts(error_of([&] { load(options, Split::kTest); }), {dir.path().string(), "data.test_fraction"});
}

TEST_F(Folder, WhatIsMissingIsNamed) {
  write_flat(dir_ / "test/eel/1.png", 1);
  expect_parts(error_of([&] { load_split(Split::kTest); }),
               {(dir_ / "test/eel/1.png").string(), "a class 'eel' that", "lacks"});
  fs::create_directory(dir_ / "train/fox");
  expect_parts(error_of([&] { load_split(); }), {(dir_ / "train/fox").string(), "no .png"});
  fs::remove_all(dir_ / "test");
  expect_parts(error_of([&] { load_split(Split::kTest); }), {dir_.path().string(), "'test' nor 'val'"});
  fs::rename(dir_ / "train", dir_ / "training");
  expect_parts(error_of([&] { load_split(); }), {dir_.path().string(), "'train'", "one class alone, 'training'"});
  expect_parts(error_of([&] { load({.name = "image_folder", .dir = {}}, Split::kTrain); }), {"no folder given"});
  expect_parts(error_of([&] { load({.name = "image_folder", .dir = dir_ / "gone"}, Split::kTrain); }),
               {"gone", "no such folder"});
  expect_parts(error_of([&] { list_images(dir_ / "absent"); }), {"absent", "cannot be listed"});
}

}  // namespace
}  // namespace axial::data::test
