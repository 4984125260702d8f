// Sets of image files, as a user meets them: folders, lists, proportions, and what is wrong with a file.

#include <fstream>

#include <nlohmann/json.hpp>

#include "app/config/load.h"
#include "app/train/build.h"
#include "tests/app/pictures.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class PictureSets : public ProgramTest {
 protected:
  std::vector<std::string> train(const std::string& run, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"train",
                                          "-c",
                                          config("image_folder.yaml"),
                                          "-o",
                                          run,
                                          "train.device=cpu",
                                          "train.threads=" + test_threads(),
                                          "data.workers=2",
                                          "data.validation_fraction=0",
                                          "data.folder_height=12",
                                          "data.folder_width=20",
                                          "model.dim=16",
                                          "model.depth=1",
                                          "model.stem_channels=[]",
                                          "data.batch_size=4",
                                          "train.epochs=2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

// They stand in order of class: the first ones would be of one.
TEST_F(PictureSets, ALimitTakesImagesOfAllClasses) {
  write_picture_set(folder_ / "set", {"a", "b"}, 10);
  const app::Config config = app::load_config(
      {}, {"data.dataset=image_folder", "data.dir=" + (folder_ / "set").string(), "data.train_limit=10",
           "data.folder_height=16", "data.folder_width=16", "data.batch_size=4"});
  const at::Tensor labels = app::load_data(config).train.labels;
  ASSERT_EQ(labels.size(0), 10);
  EXPECT_GT(labels.sum().item<std::int64_t>(), 0);
  EXPECT_LT(labels.sum().item<std::int64_t>(), 10);
  EXPECT_TRUE(app::load_data(config).train.labels.equal(labels));
}

TEST_F(PictureSets, OfAnyProportionsTrainEvaluateAndPredict) {
  write_picture_set(folder_ / "set", {"img10", "img2"}, 9);
  for (const std::string crop : {"center", "squash", "border"}) {
    const Outcome trained = run(train(crop, {"data.dir=set", "data.crop_mode=" + crop, "data.crop_pct=0.9"}));
    ASSERT_EQ(trained.code, 0) << trained.err;
    EXPECT_NE(trained.err.find("3x12x20, 2 classes"), std::string::npos) << trained.err;
    const Outcome evaluated = run({"eval", crop + "/checkpoints/last.safetensors"});
    ASSERT_EQ(evaluated.code, 0) << evaluated.err;
    EXPECT_EQ(json::parse(evaluated.out).at("loss"), json::parse(trained.out).at("loss")) << crop;
  }
  // A file is seen as the set's image of the same file was, by every crop mode.
  fs::rename(folder_ / "set" / "train", folder_ / "away");  // the model knows its classes
  for (const std::string crop : {"center", "squash", "border"}) {
    const Outcome file = run({"predict", crop, "set/test/img2/9.png", "set/test/img10/9.png"});
    ASSERT_EQ(file.code, 0) << file.err;
    const Outcome number = run({"predict", crop, "1", "3"});  // img2 stands before img10, 10.png before 9.png
    ASSERT_EQ(number.code, 0) << number.err;
    const auto answers = [](const std::string& text) {
      std::string result;
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) result += line.substr(line.find('\t')) + "\n";
      return result;
    };
    EXPECT_EQ(answers(file.out), answers(number.out)) << crop;
  }
  EXPECT_EQ(run({"eval", "center"}).code, 0);
  write_picture(folder_ / "set/test/img3/1.png", 16, 16, 1, 2);
  expect_error(run({"eval", "center"}), 1, {"set/test/img3/1.png", "a class 'img3' that the model lacks"});
}

TEST_F(PictureSets, LargeImagesGoThroughTheWholeModel) {
  for (const char* name : {"a", "b"}) {
    for (int i = 0; i < 3; ++i)
      write_picture(folder_ / "set" / name / (std::to_string(i) + ".png"), 600, 300, 10 + i, *name);
  }
  const Outcome o = run(train("run", {"data.dir=set", "data.folder_height=256", "data.folder_width=512",
                                      "model.stem=patch", "model.patch_size=16", "model.dim=[16,16]",
                                      "model.heads=[2,2]", "model.depth=[1,1]", "train.epochs=1"}));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("16x32 tokens"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("4 training and 2 test images of 3x256x512"), std::string::npos) << o.err;
}

TEST_F(PictureSets, ListsNameFilesAndClasses) {
  write_picture_set(folder_ / "set", {"x", "y"}, 6);
  std::ofstream train_list(folder_ / "set" / "train.csv"), test_list(folder_ / "set" / "test.csv");
  train_list << "label,path\n";
  for (int i = 0; i < 6; ++i) train_list << "10,train/x/" << i << ".png\n\"9\",\"train/y/" << i << ".png\"\n";
  test_list << "test/x/6.png,10\ntest/y/7.png,9\n";
  train_list.close();
  test_list.close();
  const std::vector<std::string> lists = {"data.dataset=image_list", "data.train_list=set/train.csv",
                                          "data.test_list=set/test.csv"};
  const Outcome o = run(train("run", lists));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("12 training and 2 test images"), std::string::npos) << o.err;
  EXPECT_NE(run({"info", "run"}).out.find("2 classes: 9, 10"), std::string::npos);
  EXPECT_EQ(run({"eval", "run"}).code, 0);
  std::ofstream(folder_ / "set" / "test.csv", std::ios::app) << "../other/1.png,9\n";
  expect_error(run({"eval", "run"}), 1, {"set/test.csv:3: ../other/1.png", "data.list_outside"});
  const Outcome outside = run({"eval", "run", "data.list_outside=true"});
  EXPECT_EQ(outside.code, 1);
  EXPECT_NE(outside.err.find("other/1.png: no such file"), std::string::npos) << outside.err;
  expect_error(run(train("no", {"data.dataset=image_list"})), 2, {"data.train_list"});
  expect_error(run(train("no", {"data.dataset=image_list", "data.train_list=a.csv", "data.dir=set"})), 2,
               {"data.dir"});
  expect_error(run(train("no", {"data.dir=set", "data.train_list=a.csv"})), 2, {"data.train_list", "image_list"});
}

TEST_F(PictureSets, ADamagedFileIsOneLineWheneverItIsMet) {
  write_picture_set(folder_ / "set", {"a", "b"}, 8);
  const fs::path bad = folder_ / "set/train/b/3.png";
  fs::resize_file(bad, fs::file_size(bad) - 20);
  expect_error(run(train("run", {"data.dir=set"})), 1, {"set/train/b/3.png", "damaged PNG"});
  for (const char* cache : {"none", "disk"}) {
    const Outcome o = run(
        train("run", {"data.dir=set", std::string("data.cache=") + cache, "data.cache_dir=cache", "--overwrite"}));
    EXPECT_EQ(o.code, 1) << o.err;
    const std::size_t at = o.err.find("set/train/b/3.png: damaged PNG");
    ASSERT_NE(at, std::string::npos) << o.err;
    EXPECT_EQ(o.err.find("3.png", at + 20), std::string::npos) << o.err;
  }
}

TEST_F(PictureSets, WhatDoesNotFitIsRefused) {
  expect_error(run(small("run", {"augment.scale=[0.1,1]"})), 2, {"augment.scale", "image_folder"});
  expect_error(run(small("run", {"augment.scale=[0.1]"})), 2, {"augment.scale"});
  expect_error(run(small("run", {"augment.ratio=[2,1]"})), 2, {"augment.ratio"});
  expect_error(run(small("run", {"data.crop_mode=fill"})), 2, {"data.crop_mode", "squash"});
  expect_error(run(train("run", {})), 2, {"data.dir: expected the folder of your pictures (data.dir=FOLDER)"});
  expect_error(run(train("run", {"data.dir=nowhere"})), 1, {"data.dir: ", "nowhere: no such folder"});
}

TEST_F(PictureSets, ACacheIsNeverInAFolderThatUsersShare) {
  write_picture_set(folder_ / "set", {"a", "b"}, 9);
  const auto arguments = train("run", {"data.dir=set", "data.cache=disk", "data.cache_memory=0"});
  expect_error(run(arguments, {{"HOME", ""}, {"XDG_CACHE_HOME", "relative"}}), 2, {"data.cache_dir", "HOME"});
  const Outcome o = run(arguments, {{"HOME", folder_.string()}, {"XDG_CACHE_HOME", ""}});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_FALSE(fs::is_empty(folder_ / ".cache" / "axial" / "pictures"));
}

TEST_F(PictureSets, DecodingIsMeasuredAgainstLibjpegAlone) {
  const Outcome o = run(
      {"bench", "--data", "generated", "--size", "32,48", "--workers", "2", "--repeats", "1", "--json", "d.json"});
  ASSERT_EQ(o.code, 0) << o.err;
  for (const char* part : {"500 JPEG files", "32x48", "libjpeg-turbo alone", "axial reaches"}) {
    EXPECT_NE(o.out.find(part), std::string::npos) << part << " in " << o.out;
  }
  const json result = json::parse(read_file(folder_ / "d.json"));
  EXPECT_GT(result.at("ratio").get<double>(), 0.0);
  EXPECT_NEAR(result.at("megapixels").get<double>(), 500 * 0.48 * 0.355, 8);
  fs::create_directory(folder_ / "empty");
  expect_error(run({"bench", "--data", "empty"}), 1, {"empty", "no JPEG files"});
  expect_error(run({"bench", "--data", "empty", "--size", "32"}), 2, {"--size", "HEIGHT,WIDTH"});
  expect_error(run({"bench", "--size", "32,32"}), 2, {"--data"});
}

}  // namespace
}  // namespace axial::test
