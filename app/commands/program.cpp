// The command line: what CLI11 parses, and how failures become one line and an exit code.

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>

#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <c10/util/Exception.h>

#include "app/checkpoint/safetensors.h"
#include "app/commands/arguments.h"
#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/option_checks.h"
#include "app/config/load.h"
#include "app/config/schema.h"
#include "app/config/yaml_tree.h"
#include "app/run/log.h"
#include "app/version.h"

namespace axial::app {

namespace {

constexpr int kDone = 0, kFailed = 1, kUsage = 2;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// The flags arrive as key=value (plain_arguments): here they are for the help and for completion.
void add_key_flags(CLI::App* command) {
  for (const Key& key : schema()) {
    for (const std::string& flag : key.flags) {
      const auto ignore = [](const std::string&) {};
      CLI::Option* option = command->add_option_function<std::string>(flag, ignore, key.path);
      offer(option->option_text("VALUE")->group("Keys, as key=value"), completions(key));
    }
  }
}

void add_configuration(CLI::App* command, std::vector<std::string>& configs, std::vector<std::string>& overrides) {
  command
      ->add_option("-c,--config", configs,
                   "YAML file; may be given several times, later ones win; without one every key has its default")
      ->option_text("FILE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("key=value", overrides, "overrides, e.g. optim.lr=1e-3 model.dim=[64,128]")->option_text("...");
  add_key_flags(command);
}

// A pipe whose reader wants no more (axial config --keys | head) is no news.
bool reader_left() {
  pollfd out{STDOUT_FILENO, 0, 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// What libtorch says when the CPU's memory is out, in words that help.
std::string describe(const c10::Error& error) {
  const std::string text = first_line(error.what_without_backtrace()), mark = "you tried to allocate ";
  const std::size_t at = text.find(mark);
  if (text.find("DefaultCPUAllocator") == std::string::npos || at == std::string::npos) return text;
  const std::size_t from = at + mark.size();
  return "out of memory (" + text.substr(from, text.find_first_not_of("0123456789", from) - from) +
         " bytes more were needed); lower data.batch_size, data.eval_batch_size or model.dim, or use fewer or "
         "smaller images";
}

int parse_and_run(int argc, char** argv) {
  CLI::App program{"Trains axial-attention image classifiers from the command line.", "axial"};
  program.set_version_flag("--version", std::string("axial ") + kVersion);
  program.require_subcommand(1);
  program.failure_message(CLI::FailureMessage::simple);
  program.footer("Examples:\n  axial train -c configs/fashion_mnist_cpu.yaml\n  axial eval runs/NAME\n"
                 "  axial predict runs/NAME picture.png\n\nExit codes: 0 done, 1 failed while running, 2 usage or "
                 "configuration,\n130/143 after SIGINT/SIGTERM with a checkpoint written.");

  TrainArguments train;
  CLI::App* train_command = program.add_subcommand("train", "train a classifier; the result is one line of JSON");
  add_configuration(train_command, train.configs, train.overrides);
  train_command->add_option("-o,--output", train.output, "the run's folder (default: a new one under train.output)")
      ->option_text("DIR")
      ->check(check_not_empty);
  train_command
      ->add_option("--resume", train.resume_from,
                   "continue the newest run (or --output's), or the run or checkpoint named")
      ->option_text("[DIR|FILE]");
  train_command->add_flag("--resume-newest", train.resume)->group("");
  train_command->add_flag("--overwrite", train.overwrite, "replace the run in --output");
  train_command->add_flag(
      "--dry-run", train.dry_run,
      "check everything, print the model's parts, operations and memory; train and write nothing");
  train_command
      ->add_option("--stop-after", train.stop_after, "stop (resumably) after so many epochs in all, e.g. 1.5")
      ->option_text("EPOCHS")
      ->check(check_epochs);
  train_command
      ->add_option("--time-limit", train.time_limit,
                   "stop (resumably, exit code 0) after so many minutes, start-up included")
      ->option_text("MINUTES")
      ->check(check_minutes);
  train_command->footer(
      "Without -c: 10 epochs on Fashion-MNIST. Keys: axial config --keys; one: axial config --explain KEY.\n"
      "Example: axial train -c configs/fashion_mnist.yaml --epochs 5 --lr 2e-3 model.drop_path=0.1 -o runs/try");

  EvalArguments eval;
  CLI::App* eval_command = program.add_subcommand("eval", "accuracy on the test set; one line of JSON");
  add_model(eval_command, eval.checkpoint, eval.device);
  eval_command->add_option("key=value", eval.overrides, "overrides, e.g. data.dir=/data")->option_text("...");
  eval_command
      ->add_option("--json", eval.json, "write scores per class, confusion matrix and calibration to a file, too")
      ->option_text("FILE")
      ->check(check_output);
  eval_command->footer("Standard error has a table of the classes, standard output one line of JSON.\n"
                       "Example: axial eval runs/try --json scores.json");

  PredictArguments predict;
  CLI::App* predict_command = program.add_subcommand("predict", "classes of images: input, class, probability");
  add_model(predict_command, predict.checkpoint, predict.device);
  predict_command
      ->add_option("input", predict.inputs,
                   "PNG or JPEG files, folders, numbers of test images, - for a list; overrides, e.g. data.dir=/data")
      ->required()
      ->option_text("...");
  predict_command->add_option("--top", predict.top, "how many classes per input (default 1)")
      ->option_text("N")
      ->check(check_count);
  one_of(predict_command
             ->add_option("--format", predict.format,
                          "text (input, class, probability; tabs between), csv or jsonl (default text)")
             ->option_text("NAME"),
         {"text", "csv", "jsonl"});
  predict_command->footer("- reads paths from standard input, one a line. A file that has a number for its name goes first.\n"
                          "Images are taken in batches of data.eval_batch_size, answers come in their order.\n"
                          "Examples: axial predict runs/try shoe.png 17 --top 3\n"
                          "          find photos -name '*.jpg' | axial predict runs/try - --format csv");

  ConfigArguments config;
  CLI::App* config_command = program.add_subcommand("config", "print the effective configuration");
  add_configuration(config_command, config.configs, config.overrides);
  config_command
      ->add_option("--explain", config.explain,
                   "a key (or a section) at length; without one every key: value, type, range, default, meaning")
      ->option_text("[KEY]");
  config_command->add_flag("--keys", config.keys, "the same as --explain alone");
  config_command->add_flag("--markdown", config.markdown, "all keys as the tables of configs/README.md");
  config_command->footer(
      "A file may stand on another: `base: other.yaml` in it, relative to it.\n"
      "Examples: axial config -c configs/smoke.yaml --lr 0.01\n          axial config --explain optim.lr");

  InfoArguments info;
  CLI::App* info_command = program.add_subcommand("info", "versions, devices and kernels; or what a checkpoint holds");
  info_command->add_option("checkpoint", info.checkpoint, "a checkpoint, or a run's folder")
      ->option_text(" ")
      ->check(check_not_empty);
  info_command->add_option("--kernel", info.kernel, "which code a layer of this shape runs on")
      ->option_text("B H W D HEADS DTYPE")
      ->expected(6);
  info_command->footer("Example: axial info --kernel 512 32 32 64 4 bfloat16");

  GradcheckArguments gradcheck;
  CLI::App* gradcheck_command = program.add_subcommand("gradcheck", "check the hand-written backward");
  gradcheck_command->add_option("--device", gradcheck.device, "cpu, cuda or cuda:N (default cpu)")
      ->option_text("NAME")
      ->check(check_device);
  gradcheck_command->add_option("--json", gradcheck.json, "write every check to a file, too")
      ->option_text("FILE")
      ->check(check_not_empty);
  gradcheck_command->add_option("--seed", gradcheck.seed, "of the random inputs")
      ->option_text("N")
      ->check(check_seed);
  gradcheck_command->add_flag("-v,--verbose", gradcheck.verbose, "print every check, not only those that are wrong");
  gradcheck_command->add_flag("--plant-error", gradcheck.plant_error,
                              "make one gradient wrong by 1e-3, to see that the check catches it");
  gradcheck_command->footer("Exit code 1 on any mismatch.\nExample: axial gradcheck --device cuda --json check.json");

  BenchArguments bench;
  CLI::App* bench_command =
      program.add_subcommand("bench",
                             "time the layer, fused and reference side by side; or the training step (--step), or "
                             "decoding (--data)");
  bench_command
      ->add_option("--shapes", bench.shapes,
                   "seed, train64, 512x28x28, 512x14x14, train128, mid, long, or B,H,W,D,heads")
      ->option_text("SHAPE...");
  bench_command->add_option("--dtype", bench.dtypes, "bfloat16, float16, tf32, float32")->option_text("TYPE...");
  bench_command->add_option("--device", bench.device, "cpu, cuda, cuda:N or auto (default auto)")
      ->option_text("NAME")
      ->check(check_device);
  bench_command->add_option("--backend", bench.backend, "fused, reference or both (default both)")->option_text("NAME");
  bench_command->add_option("--repeats", bench.repeats, "timed calls of each kind (default 50, on the CPU 10)")
      ->option_text("N")
      ->check(check_count);
  bench_command->add_option("--json", bench.json, "write the table as JSON, too")
      ->option_text("FILE")
      ->check(check_not_empty);
  bench_command
      ->add_option(
          "--data", bench.data,
          "instead of the layer: decode and resize the JPEG files of a folder (or generated: 500 that are made), "
          "against libjpeg-turbo alone")
      ->option_text("DIR")
      ->check(check_not_empty);
  bench_command->add_option("--size", bench.size, "with --data: what images are brought to (default 224,224)")
      ->option_text("HEIGHT,WIDTH");
  bench_command->add_option("--workers", bench.workers, "with --data: threads (default one for each core)")
      ->option_text("N")
      ->check(check_count);
  bench_command->add_flag("--step", bench.step,
                          "instead of the layer: the training step of -c FILE, on images of its set's shape that are "
                          "made up");
  bench_command
      ->add_option("-c,--config", bench.configs, "with --step: YAML file; may be given several times, later ones win")
      ->option_text("FILE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  bench_command->add_option("key=value", bench.overrides, "with --step: overrides, e.g. data.batch_size=256")
      ->option_text("...");
  bench_command->footer(
      "Examples: axial bench --shapes train64 4,32,32,64,4 --dtype bfloat16,tf32 --json bench.json\n"
      "          axial bench --step -c configs/bench.yaml train.precision=tf32");

  const std::vector<Command> more = add_result_commands(program);

  program.get_formatter()->label("OPTIONS", "options");
  program.get_formatter()->label("SUBCOMMAND", "COMMAND");
  for (CLI::App* command : program.get_subcommands([](CLI::App*) { return true; })) {
    command->group("Commands")->get_formatter()->label("OPTIONS", "options");
  }

  std::vector<std::string> arguments = plain_arguments(argc, argv);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  const auto commands = program.get_subcommands([](const CLI::App*) { return true; });
  if (!arguments.empty() && arguments.back().rfind('-', 0) != 0 &&
      std::none_of(commands.begin(), commands.end(),
                   [&](const CLI::App* command) { return command->get_name() == arguments.back(); })) {
    std::string names;
    for (const CLI::App* command : commands) {
      names += (names.empty() ? "" : command == commands.back() ? " or " : ", ") + command->get_name();
    }
    throw ConfigError("command line: unknown command " + excerpt(arguments.back()) + "; expected " + names);
  }
  try {
    program.parse(arguments);
  } catch (const CLI::Success& e) {  // --help, --version
    program.exit(e);
    return kDone;
  } catch (const CLI::ParseError& e) {
    std::string message = first_line(e.what());  // holds what was typed, which may be long
    const std::string missing = ": 1 required TEXT missing";  // CLI11's words for an option without its value
    if (const std::size_t at = message.find(missing); at != std::string::npos) {
      message.replace(at, missing.size(), ": expected a value after it");
    }
    log::error("command line: " + message.substr(0, 200) + (message.size() > 200 ? "..." : "") +
               " (see axial --help)");
    return kUsage;
  }

  if (*train_command) {
    train.resume = train.resume || train_command->count("--resume") > 0;
    return run_train(train);
  }
  if (*eval_command) return run_eval(eval);
  if (*predict_command) return run_predict(predict);
  if (*config_command) return run_config(config);
  if (*info_command) return run_info(info);
  if (*gradcheck_command) return run_gradcheck(gradcheck);
  for (const Command& command : more) {
    if (*command.parser) return command.run();
  }
  return run_bench(bench);
}

// The command's exit code; one line and a code for whatever is thrown.
int run_reporting(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const ConfigError& e) {
    log::error(e.what());
    return kUsage;
  } catch (const c10::OutOfMemoryError& e) {
    log::error("out of device memory: " + first_line(e.what_without_backtrace()) + " (lower data.batch_size or model.dim)");
  } catch (const c10::Error& e) {
    log::error(describe(e));
  } catch (const std::bad_alloc&) {
    log::error(
        "out of memory; lower data.batch_size, data.eval_batch_size or model.dim, or use fewer or smaller images");
  } catch (const std::exception& e) {
    log::error(e.what());
  }
  return kFailed;
}

}  // namespace

int run_program(int argc, char** argv) {
  // Deterministic cuBLAS needs a fixed workspace; it reads this when its handle is made.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  // A write past a file-size limit or to a closed pipe is an error to report, not a death.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  const int code = run_reporting(argc, argv);
  if (std::cout.flush().good()) return code;
  if (!reader_left()) log::error("standard output: cannot be written; the result is lost");
  return code == kDone ? kFailed : code;
}

}  // namespace axial::app
