// The commands, as a user meets them.

#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <ATen/Context.h>
#include <png.h>
#include <nlohmann/json.hpp>

#include "app/checkpoint/safetensors.h"
#include "app/config/load.h"
#include "tests/app/pictures.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Commands : public ProgramTest {};

TEST_F(Commands, AWorkingFolderThatIsGoneIsOneLine) {
  const std::string gone = (folder_ / "gone").string(), err = (folder_ / "err").string();
  const std::string line = "mkdir '" + gone + "' && cd '" + gone + "' && rmdir '" + gone +
                           "' && '" AXIAL_PROGRAM "' --version > /dev/null 2> '" + err + "'";
  EXPECT_EQ(WEXITSTATUS(std::system(line.c_str())), 1);
  EXPECT_EQ(read_file(err), "axial: error: the working folder is not there any more; change into one that is\n");
}

TEST_F(Commands, AMisspeltFlagNamesTheOneThatWasMeant) {
  expect_error(run({"config", "--batchsize", "3"}), 2,
               {"--batchsize", "did you mean --batch-size?", "axial config --help"});
  expect_error(run({"train", "--resme"}), 2, {"--resme", "did you mean --resume?"});
  expect_error(run({"config", "--learning-rate", "3"}), 2, {"--learning-rate", "optim.lr"});
  expect_error(run({"train", "--mixup=0.5"}), 2, {"--mixup=0.5; write augment.mixup=0.5 "});
  expect_error(run({"train", "--mixup", "0.5"}), 2, {"--mixup; write augment.mixup=VALUE "});
  const Outcome o = run({"eval", "runs/x", "--xyzzy"});
  expect_error(o, 2, {"--xyzzy"});
  EXPECT_EQ(o.err.find("did you mean"), std::string::npos) << o.err;
}

TEST_F(Commands, TrainEvalAndPredictAgree) {
  const Outcome trained = run(small("run", {"train.epochs=2"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const json result = json::parse(trained.out);
  for (const char* key : {"top1", "loss", "epochs", "images_per_second", "train_seconds", "run"}) {
    EXPECT_TRUE(result.contains(key)) << key;
  }
  EXPECT_EQ(result.at("epochs"), 2);
  EXPECT_EQ(result.at("run"), "run");
  for (const char* name : {"config.yaml", "train.log", "metrics.csv", "checkpoints/last.safetensors",
                           "checkpoints/best.safetensors", "checkpoints/epoch-0002.safetensors"}) {
    EXPECT_TRUE(fs::exists(folder_ / "run" / name)) << name;
  }
  const Outcome evaluated = run({"eval", "run/checkpoints/last.safetensors"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(json::parse(evaluated.out).at("top1"), result.at("top1"));
  EXPECT_EQ(json::parse(evaluated.out).at("loss"), result.at("loss"));
  // The best epoch is what a run's folder stands for; train tells both.
  const Outcome best = run({"eval", "run"});
  ASSERT_EQ(best.code, 0) << best.err;
  EXPECT_EQ(json::parse(best.out).at("top1"), result.at("best_top1"));
  EXPECT_EQ(json::parse(best.out).at("epochs"), result.at("best_epoch"));
  EXPECT_EQ(json::parse(best.out).at("checkpoint"), "run/checkpoints/best.safetensors");
  EXPECT_LT(trained.out.size(), 250u) << "numbers as people read them: " << trained.out;

  const Outcome predicted = run({"predict", "run", "0", "3", "--top", "2"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  EXPECT_EQ(lines_of(predicted.out), 4u) << predicted.out;
  EXPECT_EQ(predicted.out.substr(0, 2), "0\t");

  const Outcome described = run({"info", "run"});
  EXPECT_EQ(described.code, 0) << described.err;
  for (const char* part :
       {"model", "optimizer", "after epoch ", "192 training images", "of the test set (epoch ",
        "configuration, where it differs from the defaults (--config prints all of it):\n",
        "  data.synthetic_train=192\n", "10 classes", " parameters, the rest statistics of batch norms)"}) {
    EXPECT_NE(described.out.find(part), std::string::npos) << part << " in " << described.out;
  }
  EXPECT_EQ(described.out.find("train.patience"), std::string::npos) << "it has its default: " << described.out;
  const Outcome whole = run({"info", "run", "--config"});
  EXPECT_NE(whole.out.find("configuration:\nmodel:\n"), std::string::npos) << whole.out;
  EXPECT_NE(whole.out.find("  patience: 0\n"), std::string::npos) << whole.out;
  expect_error(run({"info", "--config"}), 2, {"--config", "name one"});
  expect_error(run({"info", "runs/none"}), 1, {"error: runs/none: no such file or folder\n"});
  fs::create_directory(folder_ / "configs");
  std::ofstream(folder_ / "configs" / "some.yaml") << "train: {epochs: 1}\n";
  expect_error(run({"config", "-c", "some"}), 2,
               {"error: some: no such file in this folder", "; there is configs/some.yaml"});
}

TEST_F(Commands, WhatIsNotKnownYetIsNull) {
  auto arguments = small("run");
  arguments.insert(arguments.end(), {"--stop-after", "0.001"});  // one batch
  const Outcome o = run(arguments);
  ASSERT_EQ(o.code, 0) << o.err;
  const json result = json::parse(o.out);
  for (const char* key : {"top1", "loss", "best_top1", "best_epoch"}) EXPECT_TRUE(result.at(key).is_null()) << key;
  EXPECT_EQ(result.at("epochs"), 0);
  EXPECT_NE(o.err.find("stopped within epoch 1/3, after batch 1/6"), std::string::npos) << o.err;
  const Outcome described = run({"info", "run"});
  EXPECT_NE(described.out.find("within epoch 1/3, after batch 1 (1 update); not evaluated yet"), std::string::npos)
      << described.out;
}

TEST_F(Commands, OverridesThatATrainedModelCannotHonourAreRefused) {
  ASSERT_EQ(run(small("run", {"train.epochs=1"})).code, 0);
  for (const char* command : {"eval", "predict"}) {
    for (const char* override : {"optim.lr=7", "data.train_limit=9", "model.dim=[8,8]", "train.seed=5"}) {
      std::vector<std::string> arguments = {command, "run", override};
      if (command == std::string("predict")) arguments.insert(arguments.begin() + 2, "0");
      expect_error(run(arguments), 2,
                   {std::string(override).substr(0, std::string(override).find('=')) + " is ",
                    "a trained model is taken as it is"});
    }
  }
  EXPECT_EQ(run({"eval", "run", "data.synthetic_test=32", "data.eval_batch_size=7"}).code, 0);
  expect_error(run({"predict", "run", "data.dir=x"}), 2, {"input"});
}

TEST_F(Commands, AFileWithANumberForItsNameIsSaid) {
  ASSERT_EQ(run(small("run", {"train.epochs=1"})).code, 0);
  std::ofstream(folder_ / "7").close();
  const Outcome o = run({"predict", "run", "7", std::string(300, '8'), "3"});
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("7: taken as the file of that name"), std::string::npos) << o.err;
  EXPECT_EQ(o.out.rfind("3\t", 0), 0u) << "the others still get their answer: " << o.out << o.err;
}

TEST_F(Commands, OutputThatIsLostIsAFailure) {
  const std::string program = std::string("\"") + AXIAL_PROGRAM + "\" ", err = (folder_ / "err").string();
  const auto status = [&](const std::string& line) { return WEXITSTATUS(std::system((program + line).c_str())); };
  for (const std::string command : {"config", "config --keys", "--help", "info"}) {
    EXPECT_EQ(status(command + " >/dev/full 2>" + err), 1) << command;
    EXPECT_EQ(read_file(err), "axial: error: standard output: cannot be written; the result is lost\n") << command;
  }
  EXPECT_EQ(status("config >&- 2>" + err), 1) << "closed";
  EXPECT_EQ(lines_of(read_file(err)), 1u) << read_file(err);
}

TEST_F(Commands, PredictReadsPicturesAndNamesTheOnesItCannot) {
  ASSERT_EQ(run(small("run", {"train.epochs=1"})).code, 0);
  const std::vector<unsigned char> pixels(40 * 30 * 3, 128);
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = 40;
  image.height = 30;
  image.format = PNG_FORMAT_RGB;
  ASSERT_TRUE(png_image_write_to_file(&image, (folder_ / "gray \xc3\xa9.png").c_str(), 0, pixels.data(), 0, nullptr));
  std::ofstream(folder_ / "empty.png").close();
  const Outcome o = run({"predict", "run", "gray \xc3\xa9.png", "empty.png", "missing.jpg", "99999999"});
  EXPECT_EQ(o.code, 1);
  EXPECT_EQ(lines_of(o.out), 1u) << o.out;
  EXPECT_EQ(o.out.rfind("gray", 0), 0u) << o.out;
  EXPECT_EQ(lines_of(o.err), 3u) << o.err;
  for (const char* part : {"empty.png", "missing.jpg", "99999999"})
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
}

TEST_F(Commands, WrongCommandLinesAreOneLineAndExit2) {
  expect_error(run({}), 2, {"expected a command: train, eval, "});
  expect_error(run({"--"}), 2, {"expected a command: train, eval, "});
  expect_error(run({"trian"}), 2, {"trian"});
  expect_error(run({"train", "--no-such"}), 2, {"--no-such"});
  expect_error(run({"train", "-c"}), 2, {"-c"});
  expect_error(run({"train", "--stop-after", "-1"}), 2, {"--stop-after"});
  expect_error(run({"train", "optim.learning_rte=0.1"}), 2, {"optim.learning_rte", "optim.lr"});
  expect_error(run({"train", "oops"}), 2, {"oops", "key=value"});
  expect_error(run({"train", "-c", "missing.yaml"}), 2, {"missing.yaml"});
  expect_error(run({"train", "-c", ""}), 2, {"--config: expected a path, found nothing"});
  expect_error(run({"train", "-o", "a", "-o", "b"}), 2, {"--output: expected once, found more than once"});
  expect_error(run({"train", "--resume", "--overwrite"}), 2, {"--resume", "--overwrite"});
  expect_error(run({"train", "model.heads=3"}), 2, {"model.heads"});
  const Outcome kernel = run({"info", "--kernel", "2", "7", "7", "64", "4", "bfloat16"});
  EXPECT_EQ(kernel.code, 0) << kernel.err;
  EXPECT_NE(kernel.out.find("cpu:  fused cpu "), std::string::npos) << kernel.out;
  EXPECT_NE(kernel.out.find("cpu:  MLP (ratio 2) composed"), std::string::npos) << kernel.out;
  expect_error(run({"info", "--kernel", "1", "2", "3", "4", "3", "float32"}), 2, {"HEADS"});
  expect_error(run({"info", "--kernel", "1", "1", "5000000000", "64", "4", "float32"}), 2,
               {"2147483647", "5000000000"});
  expect_error(run({"info", "--kernel", "1", "1", "1", "100000", "1", "float32"}), 2, {"D / HEADS = 100000", "256"});
  EXPECT_NE(run({"info", "--kernel", "2", "7", "7", "64", "4", "tf32"}).out.find("cpu:  no tf32"), std::string::npos);
  expect_error(run({"info", "--kernel", "1", "2"}), 2, {"--kernel: expected 6 values after it, found 2"});
  expect_error(run({"info", "run", "--kernel", "1", "2", "3", "4", "2", "float32"}), 2,
               {"--kernel", "one of the two"});
  for (const char* value : {"0", "nan", "1e300", "abc"}) {
    expect_error(run({"train", "--stop-after", value}), 2,
                 {"--stop-after: expected a number of epochs above 0, found "});
  }
  expect_error(run({"predict", "run", "0", "--top", "0"}), 2, {"--top: expected an integer from 1, found 0"});
  for (const char* seed : {"-1", "99999999999999999999"}) {
    expect_error(run({"gradcheck", "--seed", seed}), 2, {"--seed: expected an integer in 0..", seed});
  }
  expect_error(run({"eval", "run", "--device", "tpu"}), 2,
               {"--device: expected auto, cpu, cuda or cuda:N, found tpu"});
  expect_error(run({"train", "-o", ""}), 2, {"--output"});
  expect_error(run({"config", "--keys", "foo=1"}), 2, {"foo"});
  const Outcome echo = run({std::string(100000, 'x')});
  expect_error(echo, 2, {"unknown command xxx"});
  EXPECT_LT(echo.err.size(), 320u);
  expect_error(run({"--verison"}), 2, {"unknown option --verison", "--version"});
  EXPECT_LT(run({"train", "--" + std::string(100000, 'x')}).err.size(), 400u);
  expect_error(run({"gradcheck", "--device", "tpu"}), 2, {"--device: ", "tpu", "cuda:N"});
  expect_error(run({"gradcheck", "--json", "nowhere/x.json"}), 1, {"nowhere/x.json"});
}

TEST_F(Commands, OverridesAfterAConfigAreNotSwallowed) {
  const Outcome o =
      run({"config", "-c", config("smoke.yaml"), "optim.lr=1e-3", "-c", config("smoke.yaml"), "train.seed=7"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("seed: 7"), std::string::npos) << o.out;
  const app::Config parsed = app::parse_config(o.out, "printed");
  EXPECT_EQ(parsed.train.seed, 7u);
  EXPECT_EQ(parsed.optim.lr, 1e-3);
}

TEST_F(Commands, FlagsOfKeysAreKeyEqualsValueInTheOrderGiven) {
  const Outcome o = run({"config", "-c", config("smoke.yaml"), "--lr", "0.5", "optim.lr=0.25", "--epochs=7",
                         "train.seed=1", "--seed", "9", "--batch-size", "16", "--opt", "sgd"});
  ASSERT_EQ(o.code, 0) << o.err;
  const app::Config parsed = app::parse_config(o.out, "printed");
  EXPECT_EQ(parsed.optim.lr, 0.25);
  EXPECT_EQ(parsed.train.epochs, 7);
  EXPECT_EQ(parsed.train.seed, 9u);
  EXPECT_EQ(parsed.data.batch_size, 16);
  EXPECT_EQ(parsed.optim.name, "sgd");
  expect_error(run({"train", "--lr", "-1"}), 2, {"optim.lr: expected a number in [0, 1000], found -1"});
  expect_error(run({"train", "--epochs"}), 2, {"--epochs: expected a value after it"});
  expect_error(run({"train", "--epochs", "--lr", "1"}), 2, {"--epochs: expected a value after it"});
  auto arguments = small("run", {"--epochs", "1", "--device", "cpu"});
  EXPECT_EQ(run(arguments).code, 0);
  EXPECT_NE(read_file(folder_ / "run" / "config.yaml").find("epochs: 1\n"), std::string::npos);
}

TEST_F(Commands, OneKeyIsExplained) {
  EXPECT_EQ(run({"config", "--explain"}).out, run({"config", "--keys"}).out);
  const Outcome o = run({"config", "--explain", "optim.lr", "optim.lr=3"});
  EXPECT_EQ(o.out.rfind("optim.lr\n", 0), 0u) << o.out << o.err;
  EXPECT_NE(o.out.find("value       3\n"), std::string::npos) << o.out;
  expect_error(run({"config", "--explain=optim.lrr"}), 2, {"--explain", "optim.lr?"});
}

TEST_F(Commands, HelpGoesToStandardOutputAndFitsAScreen) {
  for (const std::string command : {"", "train", "eval", "predict", "config", "info", "gradcheck", "bench", "man",
                                    "completion", "export", "runs", "report", "explain"}) {
    const Outcome o = command.empty() ? run({"--help"}) : run({command, "--help"});
    EXPECT_EQ(o.code, 0);
    EXPECT_EQ(o.err, "");
    EXPECT_LE(lines_of(o.out), 45u) << "more than a screen: " << o.out;
    std::istringstream lines(o.out);
    std::string line, last;
    while (std::getline(lines, line)) {
      EXPECT_LE(line.size(), 80u) << command << ": " << line;
      last = line;
    }
    EXPECT_NE(o.out.find("\nExample"), std::string::npos) << o.out;
    if (!command.empty()) {
      EXPECT_NE(last.find("axial " + command), std::string::npos) << "ends with an example: " << o.out;
    }
    for (const char* jargon :
         {"TEXT", "REQUIRED", " INT", "POSITIVE", "OPTIONS", " x 6", "ubcommand", "SUBCOMMAND"}) {
      EXPECT_EQ(o.out.find(jargon), std::string::npos) << jargon << " in " << o.out;
    }
  }
}

// 2: what was written is wrong, whatever is on the disk; 1: what it names is not as it should be.
TEST_F(Commands, ExitCodesFollowOneRule) {
  ASSERT_EQ(run(small("run", {"train.epochs=1"})).code, 0);
  fs::create_directory(folder_ / "folder");
  const std::vector<std::vector<std::string>> writers = {
      {"eval", "run", "--json"}, {"gradcheck", "--json"}, {"bench", "--data", "generated", "--json"},
      {"export", "run", "-o"},   {"report", "run", "-o"}, {"explain", "run", "0", "-o"}};
  for (std::vector<std::string> command : writers) {
    command.push_back("folder");
    expect_error(run(command), 1, {"folder: is a folder, expected a file to write"});
    command.back() = "nowhere/file";
    expect_error(run(command), 1, {"nowhere/file"});
    command.back() = "-";
    expect_error(run(command), 2, {"expected the name of a file to write", "found -"});
    command.back() = "";
    expect_error(run(command), 2, {"expected a path, found nothing"});
  }
  for (const std::string command : {"eval", "export", "predict", "explain", "train"}) {
    expect_error(run({command, "--no-such"}), 2, {"(see axial " + command + " --help)"});
  }
  expect_error(run({"--no-such"}), 2, {"(see axial --help)"});
}

TEST_F(Commands, AConfigurationIsAFileOrStandardInput) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", folder_ / "link");
  expect_error(run({"config", "-c", "pipe"}), 2, {"pipe: is a pipe, expected a configuration file"});
  expect_error(run({"config", "-c", "link"}), 2, {"link: is a pipe, expected a configuration file"});
  expect_error(run({"config", "-c", "."}), 2, {".: is a folder, expected a configuration file"});
  expect_error(run({"config", "-c", "/dev/zero"}), 2, {"/dev/zero: is a device"});
  for (const char* how : {"-c - < file", "-c <(cat file)", "-c /dev/stdin < <(cat file)", "-c /dev/stdin < file"}) {
    std::ofstream(folder_ / "file") << "train: {seed: 77}\n";
    const std::string line =
        "cd '" + folder_.string() + "' && bash -c \"'" AXIAL_PROGRAM "' config " + how + "\" > out 2>&1";
    EXPECT_EQ(std::system(line.c_str()), 0) << how << read_file(folder_ / "out");
    EXPECT_NE(read_file(folder_ / "out").find("seed: 77 "), std::string::npos) << how;
  }
  const std::string wrong =
      "cd '" + folder_.string() + "' && echo 'train: {sed: 7}' | '" AXIAL_PROGRAM "' config -c - 2> out";
  EXPECT_EQ(WEXITSTATUS(std::system(wrong.c_str())), 2);
  EXPECT_NE(read_file(folder_ / "out").find("standard input:1: train.sed"), std::string::npos)
      << read_file(folder_ / "out");
}

TEST_F(Commands, TheManualPageHoldsEveryCommandAndKey) {
  const Outcome o = run({"man"});
  ASSERT_EQ(o.code, 0) << o.err;
  for (const char* part : {".TH AXIAL 1", ".SS \"axial train\"", "\\fB\\-\\-time\\-limit\\fR",
                           "\\fBoptim.lr\\fR = 0.001", "axial explain runs/try 17", "Exit codes: 0 done"}) {
    EXPECT_NE(o.out.find(part), std::string::npos) << part;
  }
  if (std::system("command -v groff > /dev/null 2>&1") != 0) GTEST_SKIP() << "groff is not installed";
  std::ofstream(folder_ / "axial.1") << o.out;
  const std::string line = "cd '" + folder_.string() + "' && groff -man -Tutf8 -ww axial.1 > page 2> warnings";
  EXPECT_EQ(std::system(line.c_str()), 0);
  EXPECT_EQ(read_file(folder_ / "warnings"), "");
}

TEST_F(Commands, DryRunChecksEverythingAndWritesNothing) {
  auto arguments = small("run");
  arguments.push_back("--dry-run");
  const Outcome o = run(arguments);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("parameters"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  arguments.push_back("data.dataset=mnist");
  arguments.push_back("data.dir=nowhere");
  expect_error(run(arguments), 1, {"nowhere"});
}

TEST_F(Commands, Case14_ACheckpointOfAnotherModelIsNamedNotLoaded) {
  ASSERT_EQ(run(small("run", {"train.epochs=1"})).code, 0);
  const fs::path last = folder_ / "run" / "checkpoints" / "last.safetensors";
  app::SafetensorsFile file = app::read_safetensors(last);
  const std::string yaml = file.metadata.at("axial.config");
  app::Config wider = app::parse_config(yaml, "checkpoint");
  wider.model.dim = {32, 64};
  file.metadata["axial.config"] = app::to_yaml(wider);
  app::write_safetensors(folder_ / "other.safetensors", file);
  expect_error(run({"eval", "other.safetensors"}), 1, {"other.safetensors", "[32", "[16"});
  expect_error(run({"eval", config("smoke.yaml")}), 1, {"smoke.yaml"});
}

TEST_F(Commands, Case34_CudaThatIsNotThereIsNamed) {
  const Outcome o = run(small("run", {"train.device=cuda"}), {{"CUDA_VISIBLE_DEVICES", ""}});
  expect_error(o, 1, {"train.device=cuda", "train.device=cpu"});
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  expect_error(run({"gradcheck", "--device", "cuda"}, {{"CUDA_VISIBLE_DEVICES", ""}}), 1,
               {"--device cuda", "--device cpu"});
}

// What the runtime calls an insufficient driver is most often none.
TEST_F(Commands, AMachineWithoutADriverIsCalledThat) {
  const Outcome o = run({"info"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out.find("insufficient"), std::string::npos) << o.out;
}

// Every configuration that ships trains for some steps.
class Configurations : public ProgramTest, public testing::WithParamInterface<const char*> {};

TEST_P(Configurations, Trains) {
  const std::string name = GetParam();
  std::vector<std::string> arguments = {"train",           "-c", config(name), "-o", "run", "train.epochs=1",
                                        "train.device=cpu"};
  if (name == "image_folder.yaml") {
    write_picture_set(folder_, {"cat", "dog"}, 10);
    arguments.insert(arguments.end(), {"data.dir=.", "data.folder_height=16", "data.folder_width=16"});
  } else if (name == "cifar10.yaml") {
    for (const char* file : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                             "data_batch_5.bin", "test_batch.bin"}) {
      std::ofstream out(folder_ / file, std::ios::binary);
      for (int i = 0; i < 12; ++i) {
        std::string record(3073, static_cast<char>(i * 20));
        record[0] = static_cast<char>(i % 10);
        out << record;
      }
    }
    arguments.insert(arguments.end(), {"data.dir=.", "data.batch_size=4"});
  } else if (name == "bench.yaml") {
    arguments.insert(arguments.end(), {"data.synthetic_train=32", "data.synthetic_test=8", "data.batch_size=16"});
  } else if (name != "smoke.yaml") {
    // Of its format; the whole test set would take minutes.
    write_idx_split(folder_, "train", 40, 28);
    write_idx_split(folder_, "t10k", 20, 28);
    arguments.insert(arguments.end(), {"data.dir=.", "data.batch_size=10"});
  }
  const Outcome o = run(arguments);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(lines_of(o.out), 1u);
  if (name == "bench.yaml") {
    EXPECT_NE(o.err.find(" 204426 parameters"), std::string::npos)
        << "as many as its peer, tests/bench/classifier.py";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Configurations,
                         testing::Values("smoke.yaml", "fashion_mnist_cpu.yaml", "fashion_mnist.yaml",
                                         "fashion_mnist_speed.yaml", "cifar10.yaml", "image_folder.yaml",
                                         "bench.yaml"));

TEST(ConfigurationsList, IsComplete) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(std::string(AXIAL_SOURCE_DIR) + "/configs")) {
    count += entry.path().extension() == ".yaml" ? 1 : 0;
  }
  EXPECT_EQ(count, 7) << "add the new configuration to the test above";
}

}  // namespace
}  // namespace axial::test
