// A run that was stopped and resumed is the run that was not: weights, averages, optimiser, sums and metrics,
// to the last bit.

#include <csignal>
#include <cstring>
#include <random>
#include <thread>

#include <ATen/Context.h>
#include <nlohmann/json.hpp>

#include "app/checkpoint/safetensors.h"
#include "tests/app/pictures.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

using app::SafetensorsFile;

std::filesystem::path last(const std::filesystem::path& run) { return run / "checkpoints" / "last.safetensors"; }

void expect_same_checkpoint(const std::filesystem::path& a, const std::filesystem::path& b) {
  const SafetensorsFile x = app::read_safetensors(a), y = app::read_safetensors(b);
  ASSERT_EQ(x.tensors.size(), y.tensors.size());
  ASSERT_GT(x.tensors.size(), 50u);
  for (const auto& [name, tensor] : x.tensors) {
    ASSERT_TRUE(y.tensors.count(name)) << name;
    const at::Tensor& other = y.tensors.at(name);
    ASSERT_EQ(tensor.nbytes(), other.nbytes()) << name;
    if (tensor.nbytes() == 0) continue;
    EXPECT_EQ(std::memcmp(tensor.const_data_ptr(), other.const_data_ptr(), tensor.nbytes()), 0) << name;
  }
  auto progress = [](const SafetensorsFile& file) {
    nlohmann::json p = nlohmann::json::parse(file.metadata.at("axial.progress"));
    p.erase("train_seconds");
    p.erase("epoch_seconds");
    return p;
  };
  EXPECT_EQ(progress(x), progress(y));
  EXPECT_EQ(x.metadata.at("axial.ema_updates"), y.metadata.at("axial.ema_updates"));
}

// metrics.csv without its two columns of time.
std::string metrics(const std::filesystem::path& run) {
  std::string result;
  std::istringstream text(read_file(run / "metrics.csv"));
  for (std::string line; std::getline(text, line);) {
    for (int i = 0; i < 2; ++i) line.resize(line.rfind(','));
    result += line + "\n";
  }
  return result;
}

class Resume : public ProgramTest, public testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(Resume, IsBitEqualToTheRunThatNeverStopped) {
  for (const std::string& option : GetParam()) {
    if (option == "train.device=cuda" && !at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  }
  Outcome o = run(small("whole", GetParam()));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(lines_of(o.out), 1u);
  for (const std::string stop : {"1", "1.5"}) {
    auto arguments = small("parts" + stop, GetParam());
    arguments.insert(arguments.end(), {"--stop-after", stop});
    o = run(arguments);
    ASSERT_EQ(o.code, 0) << o.err;
    o = run({"train", "--resume=parts" + stop});
    ASSERT_EQ(o.code, 0) << o.err;
    expect_same_checkpoint(last(folder_ / "whole"), last(folder_ / ("parts" + stop)));
    EXPECT_EQ(metrics(folder_ / "whole"), metrics(folder_ / ("parts" + stop)));
  }
  EXPECT_EQ(lines_of(metrics(folder_ / "whole")), 4u);
}

INSTANTIATE_TEST_SUITE_P(
    Options, Resume,
    testing::Values(
        std::vector<std::string>{"optim.name=adamw"},
        std::vector<std::string>{"optim.name=muon", "train.accumulate=4"},
        std::vector<std::string>{"optim.name=muon", "optim.layer_decay=0.7", "train.freeze=stem,norm",
                                 "train.keep_best=2", "train.patience=2", "train.eval_metric=loss"},
        std::vector<std::string>{"optim.name=sgd", "optim.lr=0.05", "optim.nesterov=true", "augment.flip=true",
                                 "augment.erase=0.5", "train.precision=bfloat16"},
        std::vector<std::string>{"augment.mixup=0.8", "augment.cutmix=1", "augment.mix_probability=0.9",
                                 "train.accumulate=2", "augment.trivial=true", "augment.alternate_flip=true"},
        // the first updates overflow and are skipped, some of them before the stop
        std::vector<std::string>{"optim.name=muon", "train.precision=float16", "train.accumulate=2",
                                 "train.loss_scale=16777216", "model.head_dropout=0.1"},
        std::vector<std::string>{"model.rotary=true", "model.layer_scale=0.1", "model.projection_dropout=0.1",
                                 "optim.name=muon", "optim.layer_decay=0.8"},
        std::vector<std::string>{"model.float32_residual=true", "train.precision=bfloat16", "optim.name=muon"},
        std::vector<std::string>{"model.backend=reference", "data.validation_fraction=0.2"},
        std::vector<std::string>{"model.position_sensitive=true", "model.mlp_conv=true", "optim.name=muon",
                                 "optim.layer_decay=0.7"},
        std::vector<std::string>{"train.device=cuda", "optim.name=muon", "train.precision=bfloat16"},
        std::vector<std::string>{"train.device=cuda", "train.precision=float16"},
        std::vector<std::string>{"train.device=cuda"}));

// Steps that are replayed as CUDA graphs are the steps that are not.
class Replayed : public ProgramTest, public testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(Replayed, IsBitEqualToTheRunThatRecordsNothing) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  std::vector<std::string> more = GetParam();
  more.insert(more.end(), {"train.device=cuda", "data.synthetic_train=500"});
  const auto train = [&](const std::string& name, const std::string& option, std::vector<std::string> also = {}) {
    also.insert(also.begin(), more.begin(), more.end());
    also.push_back(option);
    const Outcome o = run(small(name, also));
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(o.err.find("cannot be recorded"), std::string::npos) << o.err;
    return o.err.find("replayed as CUDA graphs") != std::string::npos;
  };
  EXPECT_FALSE(train("eager", "train.cuda_graph=false"));
  EXPECT_TRUE(train("replayed", "train.cuda_graph=true"));
  expect_same_checkpoint(last(folder_ / "eager"), last(folder_ / "replayed"));
  EXPECT_EQ(metrics(folder_ / "eager"), metrics(folder_ / "replayed"));
  // and where the run was interrupted between, with other steps before the recording
  EXPECT_TRUE(train("parts", "train.cuda_graph=true", {"--stop-after", "1.6"}));
  const Outcome o = run({"train", "--resume=parts"});
  ASSERT_EQ(o.code, 0) << o.err;
  expect_same_checkpoint(last(folder_ / "eager"), last(folder_ / "parts"));
}

INSTANTIATE_TEST_SUITE_P(
    Options, Replayed,
    testing::Values(std::vector<std::string>{"optim.name=adamw"},
                    std::vector<std::string>{"optim.name=muon", "train.precision=bfloat16"},
                    std::vector<std::string>{"optim.name=sgd", "optim.lr=0.05", "augment.flip=true"},
                    std::vector<std::string>{"augment.mixup=0.8", "augment.cutmix=1", "augment.mix_probability=0.9"},
                    std::vector<std::string>{"augment.mixup=0.8", "train.accumulate=2", "data.drop_last=false",
                                             "augment.trivial=true"},
                    std::vector<std::string>{"train.precision=float16", "train.loss_scale=16777216"},
                    std::vector<std::string>{"train.on_nonfinite=skip", "optim.clip_norm=0", "train.ema_decay=0"},
                    // last batches that are not full, and last groups that are smaller
                    std::vector<std::string>{"train.accumulate=2", "data.drop_last=false"},
                    std::vector<std::string>{"train.accumulate=3", "train.precision=float16"},
                    std::vector<std::string>{"data.drop_last=false", "model.head_dropout=0.1"},
                    // a width and a type that have fused kernels
                    std::vector<std::string>{"model.dim=[64,64]", "model.heads=[4,4]", "model.relative_bias=false",
                                             "train.precision=bfloat16"},
                    std::vector<std::string>{"model.dim=[64,64]", "model.heads=[4,4]", "model.float32_residual=true",
                                             "train.precision=float16"},
                    std::vector<std::string>{"model.position_sensitive=true", "model.mlp_conv=true",
                                             "train.precision=bfloat16"},
                    std::vector<std::string>{"model.rotary=true", "model.layer_scale=0.1",
                                             "model.projection_dropout=0.1", "train.precision=bfloat16"},
                    std::vector<std::string>{"model.backend=reference", "train.precision=bfloat16"}));

class Training : public ProgramTest {};

TEST_F(Training, PicturesResumeInMidEpochWithOtherWorkersAndCaches) {
  write_picture_set(folder_ / "set", {"a", "b", "c"}, 9);
  for (const std::string scale : {"[]", "[0.3,1]"}) {
    const auto train = [&](const std::string& name, std::vector<std::string> more) {
      std::vector<std::string> arguments = {"train",
                                            "-c",
                                            config("image_folder.yaml"),
                                            "-o",
                                            name + scale,
                                            "data.dir=set",
                                            "train.device=cpu",
                                            "train.threads=" + test_threads(),
                                            "data.folder_height=12",
                                            "data.folder_width=20",
                                            "model.dim=16",
                                            "data.batch_size=4",
                                            "train.epochs=2",
                                            "augment.scale=" + scale,
                                            "data.cache_dir=cache",
                                            "--overwrite"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      const Outcome o = run(arguments);
      ASSERT_EQ(o.code, 0) << o.err;
    };
    train("whole", {"data.workers=1"});  // in memory, where nothing is cut out at random
    for (const std::string cache : {"memory", "disk", "none"}) {
      train("parts", {"data.workers=3", "data.prefetch=5", "data.cache=" + cache, "data.cache_memory=0",
                      "--stop-after", "1.4"});
      const Outcome o = run({"train", "--resume=parts" + scale, "data.workers=2", "data.prefetch=1"});
      ASSERT_EQ(o.code, 0) << o.err;
      expect_same_checkpoint(last(folder_ / ("whole" + scale)), last(folder_ / ("parts" + scale)));
    }
  }
}

TEST_F(Training, SigtermEndsWith143AndACheckpointThatResumesExactly) {
  const std::vector<std::string> more = {"train.epochs=4", "data.synthetic_train=640"};
  ASSERT_EQ(run(small("whole", more)).code, 0);
  Program program(small("parts", more), folder_);
  while (program.running() && program.err().find("epoch 2/4  batch 3/") == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ::kill(program.pid(), SIGTERM);
  const Outcome stopped = program.wait();
  EXPECT_EQ(stopped.code, 143) << stopped.err;
  EXPECT_NE(stopped.err.find("--resume=parts"), std::string::npos) << stopped.err;
  const Outcome resumed = run({"train", "--resume=parts"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  expect_same_checkpoint(last(folder_ / "whole"), last(folder_ / "parts"));
  EXPECT_EQ(metrics(folder_ / "whole"), metrics(folder_ / "parts"));
}

TEST_F(Training, Case17_KilledAtRandomMomentsLosesNothing) {
  const std::vector<std::string> more = {"train.epochs=30"};
  ASSERT_EQ(run(small("whole", more)).code, 0);
  std::mt19937 random(17);
  const auto resumes = [&] { return std::filesystem::exists(last(folder_ / "parts")); };
  auto arguments = [&](bool first) {
    if (resumes()) return std::vector<std::string>{"train", "--resume=parts"};
    return small("parts", first ? more : std::vector<std::string>{"train.epochs=30", "--overwrite"});
  };
  int kills = 0;
  for (int i = 0; i < 12; ++i) {
    Program program(arguments(i == 0), folder_);
    while (program.running() && program.err().find("batch ") == std::string::npos) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
    if (program.running()) ++kills;
    ::kill(program.pid(), SIGKILL);
    program.wait();
  }
  EXPECT_GT(kills, 3);
  const Outcome resumed = run(arguments(false));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  expect_same_checkpoint(last(folder_ / "whole"), last(folder_ / "parts"));
  EXPECT_EQ(metrics(folder_ / "whole"), metrics(folder_ / "parts"));
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "parts" / "checkpoints")) {
    EXPECT_EQ(entry.path().extension(), ".safetensors") << "left behind: " << entry.path();
  }
}

TEST_F(Training, Case16_LearningRatesOfALinearScheduleSurviveAResume) {
  const std::vector<std::string> more = {"train.epochs=10", "data.batch_size=192", "optim.schedule=linear"};
  ASSERT_EQ(run(small("whole", more)).code, 0);
  auto arguments = small("parts", more);
  arguments.insert(arguments.end(), {"--stop-after", "5"});
  ASSERT_EQ(run(arguments).code, 0);
  ASSERT_EQ(run({"train", "--resume=parts"}).code, 0);
  EXPECT_EQ(lines_of(metrics(folder_ / "whole")), 11u);
  EXPECT_EQ(metrics(folder_ / "whole"), metrics(folder_ / "parts"));
  expect_same_checkpoint(last(folder_ / "whole"), last(folder_ / "parts"));
}

TEST_F(Training, Case20_AFinishedRunIsLeftAsItIs) {
  ASSERT_EQ(run(small("run")).code, 0);
  std::map<std::string, std::string> before;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "run")) {
    if (entry.is_regular_file()) before[entry.path().string()] = read_file(entry.path());
  }
  const Outcome again = run({"train", "--resume=run"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.err.find("finished"), std::string::npos) << again.err;
  EXPECT_EQ(lines_of(again.out), 1u);
  for (const auto& [path, bytes] : before) EXPECT_EQ(read_file(path), bytes) << path;
}

TEST_F(Training, ResumeRefusesWhatWouldChangeTheUpdates) {
  auto arguments = small("run");
  arguments.insert(arguments.end(), {"--stop-after", "1"});
  ASSERT_EQ(run(arguments).code, 0);
  expect_error(run({"train", "--resume=run", "optim.lr=0.5"}), 2, {"optim.lr", "resumed"});
  expect_error(run({"train", "--resume=nowhere"}), 1, {"nowhere"});
  // a run that exists is not overwritten unless asked
  expect_error(run({"train", "-c", config("smoke.yaml"), "-o", "run", "train.device=cpu"}), 1,
               {"run", "--overwrite"});
  EXPECT_EQ(run(small("run", {"--overwrite", "train.epochs=1"})).code, 0);
}

}  // namespace
}  // namespace axial::test
