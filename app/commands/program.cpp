// The command line: what CLI11 parses, and how failures become one line and an exit code.

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>

#include <CLI/CLI.hpp>

#include <c10/util/Exception.h>

#include "app/checkpoint/safetensors.h"
#include "app/commands/commands.h"
#include "app/config/load.h"
#include "app/run/log.h"
#include "app/version.h"

namespace axial::app {

namespace {

constexpr int kDone = 0, kFailed = 1, kUsage = 2;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// CLI11 lets an option with an optional value swallow the next argument (--resume key=value would take the
// override); so a bare --resume becomes a flag of its own, and --resume=PATH stays an option.
std::vector<std::string> split_resume(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::string& argument : arguments) {
    if (argument == "--resume") argument = "--resume-newest";
  }
  return arguments;
}

void add_configuration(CLI::App* command, std::vector<std::string>& configs, std::vector<std::string>& overrides) {
  command->add_option("-c,--config", configs, "YAML file; may be given several times, later ones win")
      ->type_name("FILE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("key=value", overrides, "overrides, e.g. optim.lr=1e-3 model.dim=[64,128]")->type_name("");
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
      ->type_name("DIR");
  train_command->add_option("--resume", train.resume_from,
                            "--resume continues the newest run (or --output's); --resume=DIR or =FILE that one")
      ->type_name("[=DIR|FILE]");
  train_command->add_flag("--resume-newest", train.resume)->group("");
  train_command->add_flag("--overwrite", train.overwrite, "replace the run in --output");
  train_command->add_flag("--dry-run", train.dry_run, "check everything, train and write nothing");
  train_command->add_option("--stop-after", train.stop_after, "stop (resumably) after so many epochs, e.g. 1.5")
      ->type_name("EPOCHS")
      ->check(CLI::PositiveNumber);
  train_command->footer("Keys: axial config --keys.\nExample: axial train -c configs/fashion_mnist.yaml train.epochs=5 "
                        "-o runs/try");

  EvalArguments eval;
  CLI::App* eval_command = program.add_subcommand("eval", "accuracy on the test set; one line of JSON");
  eval_command->add_option("checkpoint", eval.checkpoint, "a checkpoint, or a run's folder (its best)")->required();
  eval_command->add_option("--device", eval.device, "cpu, cuda, cuda:N or auto (default: as trained)");
  eval_command->add_option("key=value", eval.overrides, "overrides, e.g. data.dir=/data")->type_name("");
  eval_command->footer("Example: axial eval runs/try --device cpu");

  PredictArguments predict;
  CLI::App* predict_command = program.add_subcommand("predict", "classes of images: input, class, probability");
  predict_command->add_option("checkpoint", predict.checkpoint, "a checkpoint, or a run's folder (its best)")->required();
  predict_command->add_option("input", predict.inputs, "PNG or JPEG files, or indices into the test set")->required();
  predict_command->add_option("--top", predict.top, "how many classes per input (default 1)")->check(CLI::PositiveNumber);
  predict_command->add_option("--device", predict.device, "cpu, cuda, cuda:N or auto (default: as trained)");
  predict_command->footer("Example: axial predict runs/try shoe.png 17 --top 3");

  ConfigArguments config;
  CLI::App* config_command = program.add_subcommand("config", "print the effective configuration");
  add_configuration(config_command, config.configs, config.overrides);
  config_command->add_flag("--keys", config.keys, "describe every key: type, range, default, meaning");
  config_command->footer("Example: axial config -c configs/smoke.yaml optim.lr=0.01");

  InfoArguments info;
  CLI::App* info_command = program.add_subcommand("info", "versions, devices and kernels; or what a checkpoint holds");
  info_command->add_option("checkpoint", info.checkpoint, "a checkpoint, or a run's folder");
  info_command->add_option("--kernel", info.kernel, "which code a layer of this shape runs on")
      ->type_name("B H W D HEADS DTYPE")
      ->expected(6);
  info_command->footer("Example: axial info --kernel 512 32 32 64 4 bfloat16");

  GradcheckArguments gradcheck;
  CLI::App* gradcheck_command = program.add_subcommand("gradcheck", "check the hand-written backward");
  gradcheck_command->add_option("--device", gradcheck.device, "cpu or cuda (default cpu)");
  gradcheck_command->add_option("--json", gradcheck.json, "write the table as JSON, too")->type_name("FILE");
  gradcheck_command->add_option("--seed", gradcheck.seed, "of the random inputs");
  gradcheck_command->add_option("--dtype", gradcheck.dtype, "of the finite differences (float64 is what they need)");
  gradcheck_command->add_flag("--plant-error", gradcheck.plant_error,
                              "make one gradient wrong by 1e-3, to see that the check catches it");
  gradcheck_command->footer("Exit code 1 on any mismatch.\nExample: axial gradcheck --device cuda --json check.json");

  BenchArguments bench;
  CLI::App* bench_command = program.add_subcommand("bench", "time the layer, fused and reference side by side");
  bench_command->add_option("--shapes", bench.shapes, "seed, train64, 512x28x28, 512x14x14, train128, mid, long, or B,H,W,D,heads")
      ->type_name("SHAPE");
  bench_command->add_option("--dtype", bench.dtypes, "bfloat16, float16, tf32, float32")->type_name("TYPE");
  bench_command->add_option("--device", bench.device, "cpu, cuda, cuda:N or auto (default auto)");
  bench_command->add_option("--backend", bench.backend, "fused, reference or both (default both)");
  bench_command->add_option("--repeats", bench.repeats, "timed calls of each kind (default 50, on the CPU 10)")
      ->check(CLI::Range(1, 100000));
  bench_command->add_option("--json", bench.json, "write the table as JSON, too")->type_name("FILE");
  bench_command->footer("Example: axial bench --shapes train64 4,32,32,64,4 --dtype bfloat16,tf32 --json bench.json");

  std::vector<std::string> arguments = split_resume(argc, argv);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  const auto commands = program.get_subcommands([](const CLI::App*) { return true; });
  if (!arguments.empty() && arguments.back().rfind('-', 0) != 0 &&
      std::none_of(commands.begin(), commands.end(),
                   [&](const CLI::App* command) { return command->get_name() == arguments.back(); })) {
    throw ConfigError("command line: unknown command " + arguments.back() +
                      "; expected train, eval, predict, config, info, gradcheck or bench");
  }
  try {
    program.parse(arguments);
  } catch (const CLI::Success& e) {  // --help, --version
    program.exit(e);
    return kDone;
  } catch (const CLI::ParseError& e) {
    log::error("command line: " + first_line(e.what()) + " (see axial --help)");
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
  return run_bench(bench);
}

}  // namespace

int run_program(int argc, char** argv) {
  // Deterministic cuBLAS needs a fixed workspace; it reads this when its handle is made.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  // A write past a file-size limit or to a closed pipe is an error to report, not a death.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return parse_and_run(argc, argv);
  } catch (const ConfigError& e) {
    log::error(e.what());
    return kUsage;
  } catch (const c10::OutOfMemoryError& e) {
    log::error("out of device memory: " + first_line(e.what_without_backtrace()) + " (lower data.batch_size or model.dim)");
  } catch (const c10::Error& e) {
    log::error(first_line(e.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    log::error("out of memory (lower data.batch_size)");
  } catch (const std::exception& e) {
    log::error(first_line(e.what()));
  }
  return kFailed;
}

}  // namespace axial::app
