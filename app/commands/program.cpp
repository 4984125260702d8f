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
#include "app/commands/help.h"
#include "app/commands/library_warnings.h"
#include "app/commands/option_checks.h"
#include "app/config/load.h"
#include "app/config/schema.h"
#include "app/config/suggest.h"
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
  add_config_files(command, configs);
  command->add_option("key=value", overrides, "overrides, e.g. optim.lr=1e-3 model.dim=[64,128]")->option_text("...");
  add_key_flags(command);
}

// The option or command that was meant is best looked up in that command's help.
std::string help_of(const std::vector<CLI::App*>& commands, const std::string& name) {
  for (const CLI::App* command : commands) {
    if (command->get_name() == name) return "axial " + name + " --help";
  }
  return "axial --help";
}

std::string list_of(const std::vector<CLI::App*>& commands) {
  std::string names;
  for (const CLI::App* command : commands) {
    names += (names.empty() ? "" : command == commands.back() ? " or " : ", ") + command->get_name();
  }
  return names;
}

// CLI11's words in ours; they hold what was typed, which may be long.
std::string plain_message(std::string message, const std::vector<CLI::App*>& commands) {
  if (message.find("subcommand is required") != std::string::npos) return "expected a command: " + list_of(commands);
  const auto replace = [&](const std::string& theirs, const std::string& ours) {
    const std::size_t at = message.find(theirs);
    if (at != std::string::npos) message.replace(at, theirs.size(), ours);
    return at != std::string::npos;
  };
  replace(": 1 required TEXT missing", ": expected a value after it");
  const std::size_t twice = message.find(": At Most 1 required");
  if (twice != std::string::npos) message = message.substr(0, twice) + ": expected once, found more than once";
  if (replace(": At least ", ": expected ")) replace(" required but received ", " values after it, found ");
  return message;
}

// What an unknown flag was meant to be: an option of the command, or a key that it takes.
std::string meant(const std::string& message, const CLI::App* command) {
  const std::string mark = "not expected: --";
  const std::size_t at = message.find(mark);
  if (at == std::string::npos || command == nullptr) return {};
  const std::string argument =
      message.substr(at + mark.size(), message.find(' ', at + mark.size()) - at - mark.size());
  const std::size_t equals = argument.find('=');
  const std::string flag = argument.substr(0, equals);
  std::vector<std::string> names;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  const std::string nearest = nearest_name(flag, names);
  if (!nearest.empty()) return "; did you mean --" + nearest + "?";
  const bool takes_keys = std::find(names.begin(), names.end(), "lr") != names.end();
  const std::string key =
      takes_keys ? meant_key("", flag, equals == std::string::npos ? "=VALUE" : argument.substr(equals)) : "";
  return key.empty() ? "" : "; " + key;
}

// A pipe whose reader wants no more (axial config --keys | head) is no news.
bool reader_left() {
  pollfd out{STDOUT_FILENO, 0, 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// What libtorch says when the CPU's memory is out, in words that help.
std::string describe(const c10::Error& error) {
  const std::string mark = "you tried to allocate ";
  std::string text = first_line(error.what_without_backtrace());
  const std::size_t at = text.find(mark);
  if (text.find("DefaultCPUAllocator") == std::string::npos || at == std::string::npos) return text;
  const std::size_t from = at + mark.size();
  return "out of memory (" + text.substr(from, text.find_first_not_of("0123456789", from) - from) +
         " bytes more were needed); lower data.batch_size, data.eval_batch_size or model.dim, or use fewer or "
         "smaller images";
}

CLI::App* add_train(CLI::App& program, TrainArguments& a) {
  CLI::App* command = program.add_subcommand("train", "train a classifier; the result is one line of JSON");
  add_configuration(command, a.configs, a.overrides);
  command->add_option("-o,--output", a.output, "the run's folder (default: a new one under train.output)")
      ->option_text("DIR")
      ->check(check_not_empty);
  command
      ->add_option("--resume", a.resume_from,
                   "continue the newest run (or --output's), or the run or checkpoint named")
      ->option_text("[DIR|FILE]");
  command->add_flag("--resume-newest", a.resume)->group("");
  command->add_flag("--overwrite", a.overwrite, "replace the run in --output");
  command->add_flag("--dry-run", a.dry_run,
                    "check everything, print the model's parts, operations and memory; train and write nothing");
  command->add_option("--stop-after", a.stop_after, "stop (resumably) after so many epochs in all, e.g. 1.5")
      ->option_text("EPOCHS")
      ->check(check_epochs);
  command
      ->add_option("--time-limit", a.time_limit,
                   "stop (resumably, exit code 0) after so many minutes, start-up included")
      ->option_text("MINUTES")
      ->check(check_minutes);
  command->footer(
      "Without -c: 10 epochs on Fashion-MNIST. All keys: axial config --keys; one: axial config --explain KEY.\n\n"
      "Examples:\n"
      "  axial train -c configs/fashion_mnist.yaml --epochs 5 --lr 2e-3 -o runs/try\n"
      "  axial train --resume runs/try");
  return command;
}

CLI::App* add_eval(CLI::App& program, EvalArguments& a) {
  CLI::App* command = program.add_subcommand("eval", "accuracy on the test set; one line of JSON");
  add_model(command, a.checkpoint, a.device);
  command->add_option("key=value", a.overrides, "overrides, e.g. data.dir=/data train.eval_tta=flip")
      ->option_text("...");
  command->add_option("--json", a.json, "write scores per class, confusion matrix and calibration to a file, too")
      ->option_text("FILE")
      ->check(check_output);
  command->footer(
      "Standard error has a table of the classes, standard output one line of JSON.\n\n"
      "Example:\n  axial eval runs/try --json scores.json");
  return command;
}

CLI::App* add_predict(CLI::App& program, PredictArguments& a) {
  CLI::App* command = program.add_subcommand("predict", "classes of images: input, class, probability");
  add_model(command, a.checkpoint, a.device);
  command
      ->add_option("input", a.inputs,
                   "PNG or JPEG files, folders, numbers of test images, - for a list; overrides, e.g. data.dir=/data")
      ->required()
      ->option_text("...");
  command->add_option("--top", a.top, "how many classes per input (default 1)")->option_text("N")->check(check_count);
  one_of(command
             ->add_option("--format", a.format,
                          "text (input, class, probability; tabs between), csv or jsonl (default text)")
             ->option_text("NAME"),
         {"text", "csv", "jsonl"});
  command->footer(
      "- reads paths from standard input, one a line. A file that has a number for its name goes first. Images are "
      "taken in batches of data.eval_batch_size, answers come in their order.\n\n"
      "Examples:\n"
      "  axial predict runs/try shoe.png 17 --top 3\n"
      "  find photos -name '*.jpg' | axial predict runs/try - --format csv");
  return command;
}

CLI::App* add_config(CLI::App& program, ConfigArguments& a) {
  CLI::App* command = program.add_subcommand("config", "print the effective configuration");
  add_configuration(command, a.configs, a.overrides);
  command
      ->add_option("--explain", a.explain,
                   "a key (or a section) at length; without one every key: value, type, range, default, meaning")
      ->option_text("[KEY]");
  command->add_flag("--keys", a.keys, "the same as --explain alone");
  command->add_flag("--markdown", a.markdown, "all keys as the tables of configs/README.md");
  command->footer(
      "A file may stand on another: `base: other.yaml` in it, relative to it.\n\n"
      "Examples:\n"
      "  axial config -c configs/smoke.yaml --lr 0.01\n"
      "  axial config --explain optim.lr");
  return command;
}

CLI::App* add_info(CLI::App& program, InfoArguments& a) {
  CLI::App* command =
      program.add_subcommand("info", "versions, devices and kernels; or what a file of weights holds");
  command
      ->add_option("checkpoint", a.checkpoint, "a checkpoint, a run's folder (its best), or a file of axial export")
      ->option_text(" ")
      ->check(check_not_empty);
  command->add_flag("--config", a.config,
                    "of a checkpoint: its whole configuration, not only what differs from the default");
  command->add_option("--kernel", a.kernel, "which code a plain layer of this shape runs on")
      ->option_text("B H W D HEADS DTYPE")
      ->expected(6);
  command->footer("Examples:\n  axial info\n  axial info runs/try\n  axial info --kernel 512 32 32 64 4 bfloat16");
  return command;
}

int parse_and_run(int argc, char** argv) {
  CLI::App program{"Trains axial-attention image classifiers from the command line.", "axial"};
  program.formatter(help_formatter());  // commands take theirs from it
  program.set_help_flag("-h,--help", "print this and exit");
  program.set_version_flag("--version", std::string("axial ") + kVersion, "print the version and exit");
  program.require_subcommand(1);
  program.failure_message(CLI::FailureMessage::simple);
  program.footer(
      "Examples:\n  axial train -c configs/fashion_mnist_cpu.yaml\n  axial eval runs/NAME\n"
      "  axial predict runs/NAME picture.png\n\n"
      "Exit codes: 0 done; 1 a file, a data set or a device is not as it should be, or the run failed; 2 the command "
      "line or the configuration is wrong; 130 and 143 after SIGINT and SIGTERM with a checkpoint written.");

  TrainArguments train;
  CLI::App* train_command = add_train(program, train);
  EvalArguments eval;
  CLI::App* eval_command = add_eval(program, eval);
  PredictArguments predict;
  CLI::App* predict_command = add_predict(program, predict);
  ConfigArguments config;
  CLI::App* config_command = add_config(program, config);
  InfoArguments info;
  CLI::App* info_command = add_info(program, info);
  std::vector<Command> more = add_result_commands(program);
  for (const Command& command : add_tool_commands(program)) more.push_back(command);

  const std::vector<CLI::App*> commands = commands_of(program);
  for (CLI::App* command : commands) command->group("Commands");
  std::vector<std::string> arguments = plain_arguments(argc, argv);
  const std::string chosen = arguments.empty() ? "" : arguments.front();
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  const std::string help = help_of(commands, chosen);
  if (!chosen.empty() && chosen[0] != '-' && help == "axial --help")
    throw ConfigError("command line: unknown command " + excerpt(chosen) + "; expected " + list_of(commands) +
                      ", or --help");
  if (chosen.size() > 1 && chosen[0] == '-' && chosen != "--" && program.get_option_no_throw(chosen) == nullptr)
    throw ConfigError("command line: unknown option " + excerpt(chosen) +
                      "; before a command there are --help and --version alone (see axial --help)");
  try {
    program.parse(arguments);
  } catch (const CLI::Success& e) {  // --help, --version
    program.exit(e);
    return kDone;
  } catch (const CLI::ParseError& e) {
    const std::string message = plain_message(first_line(e.what()), commands);
    const auto command = std::find_if(commands.begin(), commands.end(),
                                      [&](const CLI::App* one) { return one->get_name() == chosen; });
    const std::string hint = meant(message, command == commands.end() ? nullptr : *command);
    log::error("command line: " + message.substr(0, 200) + (message.size() > 200 ? "..." : "") + hint + " (see " +
               help + ")");
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
  for (const Command& command : more) {
    if (*command.parser) return command.run();
  }
  return kUsage;  // not reached: CLI11 requires a command
}

// The command's exit code; one line and a code for whatever is thrown.
int run_reporting(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const ConfigError& e) {
    log::error(e.what());
    return kUsage;
  } catch (const c10::OutOfMemoryError& e) {
    log::error("out of device memory: " + first_line(e.what_without_backtrace()) +
               " (lower data.batch_size or model.dim)");
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
  LibraryWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
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
