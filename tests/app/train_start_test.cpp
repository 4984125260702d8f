// What is refused before a run starts, what a refused start leaves (nothing), and what a resumed one may be.

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include "app/checkpoint/safetensors.h"
#include "app/config/load.h"
#include "app/train/checks.h"
#include "model/elements.h"
#include "tests/app/pictures.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Start : public ProgramTest {
 protected:
  // `axial train` of pictures in `dir`, made small; no -o.
  std::vector<std::string> pictures(const std::string& dir, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"train",
                                          "-c",
                                          config("image_folder.yaml"),
                                          "data.dir=" + dir,
                                          "train.device=cpu",
                                          "train.threads=" + test_threads(),
                                          "data.folder_height=8",
                                          "data.folder_width=8",
                                          "model.dim=16",
                                          "model.depth=1",
                                          "model.stem_channels=[]",
                                          "data.batch_size=4",
                                          "train.epochs=2",
                                          "augment.pad_crop=0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // Without -o: the run would be in runs/.
  std::vector<std::string> unnamed(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"train", "-c", config("smoke.yaml"), "train.device=cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  json best_progress(const std::string& run) {
    const auto file = app::read_safetensors(folder_ / run / "checkpoints" / "best.safetensors");
    return json::parse(file.metadata.at("axial.progress"));
  }
};

TEST_F(Start, WhatCannotStartLeavesNoFolder) {
  expect_error(run(unnamed({"data.dataset=mnist", "data.dir=nowhere"})), 1,
               {"nowhere", "no such folder", "data.dir="});
  expect_error(run(unnamed({"data.batch_size=5000"})), 2,
               {"data.batch_size", "1024 training images", "data.drop_last=false"});
  expect_error(run(unnamed({"augment.pad_crop=16"})), 2, {"augment.pad_crop", "20x16"});
  expect_error(run(unnamed({"train.device=cuda"}), {{"CUDA_VISIBLE_DEVICES", ""}}), 1,
               {"train.device=cuda", "train.device=cpu"});
  expect_error(
      run(unnamed({"data.synthetic_height=1", "data.synthetic_width=1", "data.batch_size=1", "augment.pad_crop=0"})),
      2, {"model.stem_norm", "data.batch_size is 1"});
  expect_error(run(unnamed({"data.synthetic_height=1", "data.synthetic_width=1", "data.batch_size=31",
                            "augment.pad_crop=0", "data.drop_last=false"})),
               2, {"model.stem_norm", "last batch"});
  write_idx_split(folder_ / "idx", "train", 40, 8);
  write_idx_split(folder_ / "idx", "t10k", 40, 6);
  expect_error(run(unnamed({"data.dataset=mnist", "data.dir=idx", "data.batch_size=4"})), 1, {"1x6x6", "1x8x8"});
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

// 64 images of 1x8x8 are 4096 bytes and four times as many as float32.
TEST(Checks, ABatchThatMemoryCannotHoldIsRefused) {
  data::DatasetOptions options;
  options.name = "synthetic";
  options.synthetic = {.train_size = 64, .test_size = 32, .height = 8, .width = 8};
  const data::Dataset train = data::load(options, data::Split::kTrain),
                      test = data::load(options, data::Split::kTest);
  app::Config config;
  config.data.batch_size = 1 << 20;  // there are but 64
  config.data.eval_batch_size = 32;
  EXPECT_NO_THROW(app::check_memory(config, train, test, 5 * 4096));
  const auto refusal = [&](double memory) {
    try {
      app::check_memory(config, train, test, memory);
    } catch (const app::ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal(5 * 4096 - 1).find("data.batch_size: a batch of 64 images of 8x8 takes 20.0 KiB"),
            std::string::npos)
      << refusal(5 * 4096 - 1);
  config.data.batch_size = 1;
  EXPECT_NE(refusal(5 * 2048 - 1).find("data.eval_batch_size: a batch of 32 images"), std::string::npos);
  EXPECT_GT(app::machine_memory(), 1e8);
}

TEST(Checks, AModelThatMemoryCannotHoldIsRefused) {
  AxialClassifierOptions options;
  options.depth = {2};
  EXPECT_NO_THROW(app::check_model(options, 8 * element_count(options)));
  EXPECT_THROW(app::check_model(options, 8 * element_count(options) - 1), app::ConfigError);
}

// A few words of a checkpoint's metadata describe a model of any size.
TEST_F(Start, ACheckpointThatDescribesALargerModelThanItHoldsIsRefusedUnbuilt) {
  ASSERT_EQ(run(small("run", {"train.epochs=1"})).code, 0);
  app::SafetensorsFile file = app::read_safetensors(folder_ / "run" / "checkpoints" / "last.safetensors");
  app::Config config = app::parse_config(file.metadata.at("axial.config"), "checkpoint");
  config.model.dim = {16384, 16384};
  config.model.heads = {64, 64};
  file.metadata["axial.config"] = app::to_yaml(config);
  app::write_safetensors(folder_ / "huge.safetensors", file);
  for (const std::vector<std::string>& command : {std::vector<std::string>{"eval", "huge.safetensors"},
                                                  {"predict", "huge.safetensors", "0"},
                                                  {"info", "huge.safetensors"},
                                                  {"export", "huge.safetensors", "-o", "x.safetensors"},
                                                  {"train", "--resume=huge.safetensors", "-o", "x"},
                                                  small("x", {"train.init_from=huge.safetensors"})}) {
    expect_error(run(command), 1,
                 {"huge.safetensors: does not fit", "describes a model of 7517392011 numbers", "under model."});
  }
  expect_error(run(small("x", {"model.dim=65536", "model.heads=256", "model.depth=1000"})), 2,
               {"model.dim", "TiB", "this machine has"});
}

// The folders in data.dir are the classes where there is no train/.
TEST_F(Start, NoOutputBecomesAClass) {
  for (const char* name : {"cat", "dog"}) {
    for (int i = 0; i < 10; ++i) write_picture(folder_ / name / (std::to_string(i) + ".png"), 16, 16, i, 200);
  }
  expect_error(run(pictures(".")), 2, {"train.output: runs lies in data.dir", "class"});
  expect_error(run(pictures(".", {"--dry-run"})), 2, {"train.output: runs lies in data.dir"});
  EXPECT_FALSE(fs::exists(folder_ / "runs")) << "it would be a class at the next try";
  for (const char* name : {"set/cat", "set/dog"}) {
    for (int i = 0; i < 10; ++i) write_picture(folder_ / name / (std::to_string(i) + ".png"), 16, 16, i, 200);
  }
  expect_error(run(pictures("set", {"-o", "set/runs/a"})), 2, {"-o", "set/runs/a", "data.dir", "class"});
  expect_error(run(pictures("set", {"-o", "a", "data.cache=disk", "data.cache_dir=set/cache"})), 2,
               {"data.cache_dir", "set/cache", "class"});
  EXPECT_FALSE(fs::exists(folder_ / "set" / "runs"));
  write_picture_set(folder_ / "split", {"cat", "dog"}, 10);
  const Outcome o = run(pictures("split", {"-o", "split/runs/a", "train.epochs=1"}));
  EXPECT_EQ(o.code, 0) << o.err;
}

// Pictures that a model is trained on are not where its results go.
TEST_F(Start, NoResultReplacesAPicture) {
  write_picture_set(folder_ / "set", {"cat", "dog"}, 10);
  ASSERT_EQ(run(pictures("set", {"-o", "run", "train.epochs=1"})).code, 0);
  for (const char* output : {"set/train/cat/0.png", "set/test/dog/../dog/new.png"}) {
    expect_error(run({"explain", "run", "0", "-o", output}), 1, {"lies among the pictures", "data.dir"});
    expect_error(run({"eval", "run", "--json", output}), 1, {"lies among the pictures"});
    expect_error(run({"export", "run", "-o", output}), 1, {"lies among the pictures"});
    expect_error(run({"report", "run", "-o", output}), 1, {"lies among the pictures"});
  }
  EXPECT_FALSE(fs::exists(folder_ / "set/test/dog/new.png"));
  EXPECT_EQ(run({"explain", "run", "0", "-o", "set/map.png"}).code, 0) << "beside train/ and test/ there is room";
  // without train/ each folder is a class
  fs::create_directory(folder_ / "flat");
  for (const char* name : {"cat", "dog"}) fs::rename(folder_ / "set/train" / name, folder_ / "flat" / name);
  expect_error(run({"explain", "run", "flat/cat/1.png", "-o", "flat/cat/map.png", "data.dir=flat"}), 1,
               {"flat/cat/map.png", "lies among the pictures"});
  EXPECT_EQ(run({"explain", "run", "flat/cat/1.png", "-o", "flat/map.png", "data.dir=flat"}).code, 0);
  // what a list names
  std::ofstream list(folder_ / "list.csv");
  for (const char* name : {"cat", "dog"}) {
    for (int i = 0; i < 10; ++i) list << "flat/" << name << "/" << i << ".png," << name << "\n";
  }
  list.close();
  ASSERT_EQ(
      run(pictures("", {"-o", "listed", "data.dataset=image_list", "data.train_list=list.csv", "train.epochs=1"}))
          .code,
      0);
  const std::string before = read_file(folder_ / "flat/dog/2.png");
  expect_error(run({"explain", "listed", "0", "-o", "flat/dog/2.png"}), 1, {"is what is read"});
  EXPECT_EQ(read_file(folder_ / "flat/dog/2.png"), before);
  EXPECT_EQ(run({"explain", "listed", "0", "-o", "flat/dog/map.png"}).code, 0);
}

// Two processes that each believed to be the only one would write one run, or train twice.
TEST_F(Start, Case33_SeveralProcessesAreRefused) {
  expect_error(run(unnamed({}), {{"WORLD_SIZE", "2"}}), 2, {"WORLD_SIZE=2", "one process", "torchrun"});
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
  EXPECT_EQ(run(small("run", {"train.epochs=1"}), {{"WORLD_SIZE", "1"}}).code, 0);
}

TEST_F(Start, ImagesThatAreLeftOutAreCounted) {
  Outcome o = run(small("run", {"data.batch_size=128", "train.epochs=1"}));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("warning: 64 of 192 training images"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("data.drop_last=false"), std::string::npos) << o.err;
  o = run(small("all", {"data.batch_size=128", "data.drop_last=false", "train.epochs=1"}));
  EXPECT_EQ(o.err.find("left out"), std::string::npos) << o.err;
}

TEST_F(Start, DryRunSeesWhatTheRunWouldMeet) {
  ASSERT_EQ(run(small("run", {"train.epochs=1"})).code, 0);
  expect_error(run(small("run", {"--dry-run"})), 1, {"run", "--overwrite"});
  EXPECT_EQ(run(small("run", {"--dry-run", "--overwrite"})).code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "checkpoints" / "last.safetensors"));
  std::ofstream(folder_ / "file").close();
  expect_error(run(small("file/run", {"--dry-run"})), 1, {"file/run", "cannot be made"});
  const Outcome finished = run({"train", "--resume=run", "--dry-run"});
  EXPECT_EQ(finished.code, 0);
  EXPECT_NE(finished.err.find("finished"), std::string::npos) << finished.err;
}

TEST_F(Start, AFolderOfAnyNameIsInNoNewRunsWay) {
  fs::create_directories(folder_ / "runs" / "new" / "sub");
  EXPECT_EQ(run(unnamed({"--dry-run"})).code, 0);
  fs::remove_all(folder_ / "runs");
  std::ofstream(folder_ / "runs") << "a file";
  expect_error(run(unnamed({"--dry-run"})), 1, {"runs", "is no folder"});
}

TEST_F(Start, AResumedRunIsNotShorterThanItIs) {
  ASSERT_EQ(run(unnamed({"-o", "run", "train.epochs=3", "--stop-after", "2"})).code, 0);
  expect_error(run({"train", "--resume=run", "train.epochs=1"}), 2, {"train.epochs: is 1", "2 epochs", "of 3"});
  EXPECT_EQ(run({"train", "--resume=run", "train.epochs=2"}).code, 0) << "it ends where it is";
}

TEST_F(Start, ARunIsNotReplacedByOneThatStartsFromIt) {
  ASSERT_EQ(run(small("run", {"train.epochs=1"})).code, 0);
  const std::string before = read_file(folder_ / "run" / "checkpoints" / "last.safetensors");
  for (const std::string from : {"run", "run/checkpoints/last.safetensors", "./run/"}) {
    expect_error(run(small("run", {"--overwrite", "train.init_from=" + from})), 2,
                 {"train.init_from: ", "lies in the run that --overwrite replaces"});
  }
  EXPECT_EQ(read_file(folder_ / "run" / "checkpoints" / "last.safetensors"), before);
  EXPECT_EQ(run(small("other", {"train.init_from=run"})).code, 0);
}

// Going back to an older checkpoint loses nothing before something is trained anew, and says whose best there is.
TEST_F(Start, AnOlderCheckpointLosesNoRowsUntilItTrains) {
  ASSERT_EQ(run(small("run", {"train.epochs=3", "train.keep_last=3"})).code, 0);
  const std::string rows = read_file(folder_ / "run" / "metrics.csv");
  const std::string older = "run/checkpoints/epoch-0001.safetensors";
  const Outcome nothing = run({"train", "--resume=" + older, "--stop-after", "1"});
  EXPECT_EQ(nothing.code, 0) << nothing.err;
  EXPECT_NE(nothing.err.find("nothing is trained"), std::string::npos) << nothing.err;
  EXPECT_NE(nothing.err.find("--resume=" + older), std::string::npos) << nothing.err;
  EXPECT_EQ(read_file(folder_ / "run" / "metrics.csv"), rows);
  const Outcome again = run({"train", "--resume=" + older, "--stop-after", "2"});
  EXPECT_EQ(again.code, 0) << again.err;
  const std::string cut = read_file(folder_ / "run" / "metrics.csv");
  EXPECT_EQ(std::count(cut.begin(), cut.end(), '\n'), 3) << "the header and two epochs";
}

TEST_F(Start, WhatARunHasLostIsSaidOrRefused) {
  ASSERT_EQ(run(unnamed({"-o", "run", "train.epochs=3", "--stop-after", "2"})).code, 0);
  const auto copy = [&](const char* name) {
    fs::copy(folder_ / "run", folder_ / name, fs::copy_options::recursive);
    return folder_ / name;
  };
  const auto warns = [&](const std::string& name, const std::string& of) {
    const Outcome o = run({"train", "--resume=" + name});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_NE(o.err.find(of), std::string::npos) << o.err;
  };
  const std::string rows = read_file(folder_ / "run" / "metrics.csv");
  std::ofstream(copy("quoted") / "metrics.csv") << '"' << rows;
  expect_error(run({"train", "--resume=quoted", "train.epochs=7"}), 1, {"metrics.csv: expected the columns"});
  EXPECT_EQ(read_file(folder_ / "quoted" / "config.yaml"), read_file(folder_ / "run" / "config.yaml"));
  std::ofstream(copy("emptied") / "metrics.csv").flush();
  warns("emptied", "metrics.csv: there is no row of epoch 1 to 2");
  std::ofstream(copy("cut") / "metrics.csv") << rows.substr(0, rows.rfind('\n', rows.size() - 2) + 5);
  warns("cut", "metrics.csv: there is no row of epoch 2; it goes on without");
  const fs::path log = copy("piped") / "train.log";
  fs::remove(log);
  ASSERT_EQ(::mkfifo(log.c_str(), 0600), 0);
  expect_error(run({"train", "--resume=piped"}), 1, {"train.log: is no ordinary file"});
  fs::remove(copy("without") / "checkpoints" / "best.safetensors");
  warns("without", "best.safetensors: the checkpoint of the best epoch so far");

  const fs::path last = copy("poisoned") / "checkpoints" / "last.safetensors";
  app::SafetensorsFile file = app::read_safetensors(last);
  for (auto& [name, tensor] : file.tensors) {
    if (name.find(".exp_avg_sq.") == std::string::npos) continue;
    tensor = tensor.clone().fill_(-1);
    break;
  }
  app::write_safetensors(last, file);
  expect_error(run({"train", "--resume=poisoned"}), 1,
               {"last.safetensors: optimizer.", ".exp_avg_sq.", "below zero"});
}

TEST_F(Start, WhatIsReplacedAndWhatIsNotTrainedIsSaid) {
  const auto has = [](const Outcome& o, const char* text) { return o.err.find(text) != std::string::npos; };
  const char* const replaces = "] --overwrite: it replaces the run that was there\n";
  const Outcome fresh = run(small("run", {"--stop-after", "1", "--overwrite"}));
  ASSERT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_FALSE(has(fresh, replaces)) << "there was none: " << fresh.err;
  const Outcome again = run(small("run", {"--stop-after", "2", "--overwrite"}));
  EXPECT_TRUE(has(again, replaces)) << again.err;
  EXPECT_FALSE(has(again, "come that far")) << again.err;
  for (const char* passed : {"1.5", "2"}) {
    const Outcome o = run({"train", "--resume=run", "--stop-after", passed});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_TRUE(has(o, (std::string("--stop-after ") + passed + ": the run has come that far already").c_str()))
        << o.err;
  }
}

TEST_F(Start, ResumeTakesAPathWithOrWithoutEquals) {
  ASSERT_EQ(run(small("run", {"--stop-after", "1"})).code, 0);
  const Outcome o = run({"train", "--resume", "run", "train.epochs=2"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("after epoch 1/2"), std::string::npos) << o.err;
  // What changed is written down, with what it means.
  const std::string log = read_file(folder_ / "run" / "train.log");
  EXPECT_NE(log.find("resuming with train.epochs = 2 (was 3)"), std::string::npos) << log;
  EXPECT_NE(log.find("schedule of 2 epochs"), std::string::npos) << log;
  expect_error(run({"train", "--resume="}), 2, {"--resume="});
  const Outcome changed = run({"train", "--resume=run", "optim.lr=7", "train.seed=9", "train.epochs=3"});
  expect_error(changed, 2, {"train.seed is 0, not 9", "optim.lr is ", ", not 7", "run/checkpoints/last.safetensors"});
  EXPECT_EQ(changed.err.find("train.epochs"), std::string::npos) << "that one may change: " << changed.err;
  EXPECT_LT(changed.err.size(), 300u) << changed.err;
}

TEST_F(Start, AResumedRunNeverWritesIntoAnother) {
  ASSERT_EQ(run(small("a", {"--stop-after", "1"})).code, 0);
  ASSERT_EQ(run(small("b", {"train.epochs=1", "train.seed=3"})).code, 0);
  const std::string before = read_file(folder_ / "b" / "checkpoints" / "last.safetensors");
  expect_error(run({"train", "--resume=a", "-o", "b"}), 1, {"b: a run is there already"});
  EXPECT_EQ(read_file(folder_ / "b" / "checkpoints" / "last.safetensors"), before);
  // Into a folder of its own it takes its best along.
  ASSERT_EQ(run({"train", "--resume=a", "-o", "c", "--stop-after", "1.2"}).code, 0);
  EXPECT_EQ(best_progress("c").at("best_epoch"), 1);
  EXPECT_EQ(best_progress("c"), best_progress("a"));
  EXPECT_EQ(read_file(folder_ / "c" / "metrics.csv"), read_file(folder_ / "a" / "metrics.csv"))
      << "so that the best epoch is among those that axial runs sees";
  std::set<std::string> events, copied;  // of TensorBoard
  for (auto [run, names] : {std::pair{"a", &events}, std::pair{"c", &copied}}) {
    for (const auto& entry : fs::directory_iterator(folder_ / run)) {
      if (entry.path().filename().string().rfind("events.", 0) == 0) names->insert(entry.path().filename().string());
    }
  }
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(copied.size(), 2u) << "what was, and what goes on";
  EXPECT_EQ(copied.count(*events.begin()), 1u);
  EXPECT_EQ(read_file(folder_ / "c" / *events.begin()), read_file(folder_ / "a" / *events.begin()));
  EXPECT_EQ(run({"train", "--resume=a", "-o", "./a"}).code, 0) << "the run's own folder under another name";
}

TEST_F(Start, WhereThereIsNoLastCheckpointTheOthersAreNamed) {
  ASSERT_EQ(run(small("run", {"--stop-after", "1"})).code, 0);
  fs::remove(folder_ / "run" / "checkpoints" / "last.safetensors");
  expect_error(run({"train", "--resume=run"}), 1, {"no checkpoints/last.safetensors", "--resume=run/checkpoints/"});
  // and where there is one that is damaged
  const fs::path last = folder_ / "run" / "checkpoints" / "last.safetensors";
  fs::copy_file(folder_ / "run" / "checkpoints" / "best.safetensors", last);
  fs::resize_file(last, fs::file_size(last) / 2);
  const Outcome damaged = run({"train", "--resume=run"});
  expect_error(damaged, 1, {"last.safetensors: ", "cut short", "; there is --resume=run/checkpoints/"});
  EXPECT_EQ(damaged.err.find("--resume=run/checkpoints/last"), std::string::npos) << damaged.err;
}

TEST_F(Start, ASecondProcessIsRefusedAndALockThatIsLeftIsNot) {
  Program first(small("run", {"train.epochs=1000"}), folder_);
  while (first.running() && !fs::exists(folder_ / "run" / "checkpoints" / "last.safetensors")) ::usleep(1000);
  ::kill(first.pid(), SIGSTOP);
  const std::string before = read_file(folder_ / "run" / "train.log");
  const std::string holder = "another process (" + std::to_string(first.pid()) + ") is writing this run";
  for (const std::vector<std::string>& second :
       {std::vector<std::string>{"train", "--resume=run"}, small("run", {"--overwrite"})}) {
    const Outcome o = run(second);
    EXPECT_EQ(o.code, 1);
    EXPECT_NE(o.err.find(holder), std::string::npos) << o.err;
  }
  EXPECT_EQ(read_file(folder_ / "run" / "train.log"), before) << "a refused process wrote";
  ::kill(first.pid(), SIGKILL);
  first.wait();
  ASSERT_TRUE(fs::exists(folder_ / "run" / ".lock")) << "the file stays; what it held died with the process";
  EXPECT_EQ(run({"train", "--resume=run", "--stop-after", "1"}).code, 0);
}

TEST_F(Start, OtherImagesAreNotedOnResumeAndEval) {
  write_picture_set(folder_ / "fruit", {"apple", "banana"}, 10);
  write_picture_set(folder_ / "pets", {"cat", "dog"}, 10);
  write_picture_set(folder_ / "fewer", {"apple", "banana"}, 6);
  auto arguments = pictures("fruit", {"-o", "run"});
  arguments.insert(arguments.end(), {"--stop-after", "1"});
  ASSERT_EQ(run(arguments).code, 0);
  expect_error(run({"train", "--resume=run", "data.dir=pets"}), 1, {"class 0 is cat, expected apple"});
  expect_error(run({"train", "--resume=run", "data.dir=fewer"}), 1, {"11 training images, expected 18"});
  fs::copy(folder_ / "fruit", folder_ / "relabelled", fs::copy_options::recursive);
  fs::rename(folder_ / "relabelled/train/apple/0.png", folder_ / "relabelled/train/banana/a.png");
  expect_error(run({"train", "--resume=run", "data.dir=relabelled"}), 1, {"their labels differ", "data.dir"});
  expect_error(run({"eval", "run", "data.dir=pets"}), 1, {"pets/test/cat/", "a class 'cat' that the model lacks"});
  EXPECT_EQ(run({"eval", "run", "data.dir=fewer"}).code, 0);
  // A moved set is the same set; the run was started with a relative path, and is found from anywhere.
  fs::create_directory(folder_ / "elsewhere");
  const Outcome there = Program({"eval", "../run"}, folder_ / "elsewhere").wait();
  EXPECT_EQ(there.code, 0) << there.err;
  fs::rename(folder_ / "fruit", folder_ / "moved");
  expect_error(run({"eval", "run"}), 1, {(folder_ / "fruit").string() + ": no such folder", "data.dir="});
  EXPECT_EQ(run({"predict", "run", "0", "data.dir=moved"}).code, 0);
  EXPECT_EQ(run({"train", "--resume=run", "data.dir=moved"}).code, 0);
}

TEST_F(Start, PredictionSeesAPictureAsTrainingDid) {
  write_picture_set(folder_ / "set", {"a", "b"}, 10);
  // wide, with edges that a cut leaves out and squashing would not
  write_picture(folder_ / "set" / "test" / "a" / "0wide.png", 64, 16, 0, 255);
  std::ofstream(folder_ / "set" / "train" / "a" / "other.webp").close();
  const Outcome trained = run(pictures("set", {"-o", "run"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.err.find("warning: image_folder: 1 file was not used"), std::string::npos) << trained.err;
  const Outcome o = run({"predict", "run", "0", "set/test/a/0wide.png", "--top", "2"});
  ASSERT_EQ(o.code, 0) << o.err;
  std::string by_number, by_name;
  std::istringstream lines(o.out);
  for (std::string line; std::getline(lines, line);) {
    (line[0] == '0' ? by_number : by_name) += line.substr(line.find('\t')) + "\n";
  }
  EXPECT_EQ(by_number, by_name);
  EXPECT_EQ(lines_of(by_number), 2u);
}

TEST_F(Start, OtherThreadsAreSaid) {
  ASSERT_EQ(run(small("run", {"--stop-after", "1"})).code, 0);
  const Outcome o = run({"train", "--resume=run", "train.threads=4", "--stop-after", "1.2"});
  EXPECT_EQ(o.code, 0);
  EXPECT_NE(o.err.find("train.threads = 4 (was " + test_threads() + "): results may differ"), std::string::npos)
      << o.err;
  EXPECT_EQ(app::read_safetensors(folder_ / "run" / "checkpoints" / "last.safetensors").metadata.at("axial.threads"),
            "4");
}

}  // namespace
}  // namespace axial::test
