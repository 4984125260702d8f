// Parsers of the commands that look at what training left, and what all parsers share.

#include <algorithm>
#include <memory>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/option_checks.h"
#include "app/config/suggest.h"

namespace axial::app {
namespace {

Command add_export(CLI::App& program) {
  const auto a = std::make_shared<ExportArguments>();
  CLI::App* command = program.add_subcommand("export", "the weights alone, for PyTorch and others, as safetensors");
  command->add_option("checkpoint", a->checkpoint, "a checkpoint, or a run's folder (its best)")
      ->required()
      ->option_text(" ")
      ->check(check_not_empty);
  command->add_option("-o,--output", a->output, "the file to write")
      ->required()
      ->option_text("FILE")
      ->check(check_output);
  one_of(command->add_option("--weights", a->weights, "ema, model or auto: the average where there is one (default)")
             ->option_text("NAME"),
         {"auto", "ema", "model"});
  command->footer(
      "Names are those of the modules, such as blocks.0.attention.row_qkv.weight [3D, D]; metadata has classes, mean "
      "and standard deviation of the pixels, and the configuration. axial info and train.init_from read such files, "
      "too. The answer's parameters are what training counts; elements are they and the statistics of batch "
      "norms.\n\n"
      "Example:\n  axial export runs/try -o try.safetensors");
  return {command, [a] { return run_export(*a); }};
}

Command add_runs(CLI::App& program) {
  const auto a = std::make_shared<RunsArguments>();
  CLI::App* command = program.add_subcommand("runs", "a table of runs: state, epochs, best accuracy, age");
  command->add_option("folder", a->folder, "folder of runs, or a run (default: runs)")
      ->option_text(" ")
      ->check(check_not_empty);
  command->add_flag("--json", a->json, "as one line of JSON");
  command->footer(
      "States: running (a process holds its lock), finished, stopped (by a signal, --stop-after or --time-limit), "
      "failed (an error, or a death without a word). Stopped and failed ones continue with axial train --resume RUN. "
      "epochs: those done, of those asked for; a finished run with fewer was ended by train.patience. best top1, of, "
      "at: the best accuracy, of the set that chose the epoch (the test set, or what data.validation_fraction holds "
      "out of the training set), and that epoch.\n\n"
      "Example:\n  axial runs runs --json");
  return {command, [a] { return run_runs(*a); }};
}

Command add_report(CLI::App& program) {
  const auto a = std::make_shared<ReportArguments>();
  CLI::App* command = program.add_subcommand("report", "one HTML page of runs: curves, mistakes, attention");
  command->add_option("run", a->runs, "folders of runs, compared in this order; overrides, e.g. data.dir=/data")
      ->required()
      ->option_text("...");
  command->add_option("-o,--output", a->output, "the page to write")
      ->required()
      ->option_text("FILE")
      ->check(check_output);
  add_device(command, a->device);
  command->footer(
      "Curves of loss, accuracy and learning rate, differences between the configurations, and, of each run's best "
      "checkpoint on the test set, accuracy per class, confusion matrix, worst mistakes and attention maps. The page "
      "holds everything itself and opens from a file.\n\n"
      "Example:\n  axial report runs/first runs/second -o report.html");
  return {command, [a] { return run_report(*a); }};
}

Command add_explain(CLI::App& program) {
  const auto a = std::make_shared<ExplainArguments>();
  CLI::App* command = program.add_subcommand("explain", "the attention map of a picture, drawn over it");
  add_model(command, a->checkpoint, a->device);
  command->add_option("image", a->image, "a PNG or JPEG file, or the number of a test image")->required()->option_text(" ")->check(check_not_empty);
  command->add_option("key=value", a->overrides, "overrides, e.g. train.threads=1")->option_text("...");
  command->add_option("-o,--output", a->output, "the PNG to write")
      ->required()
      ->option_text("FILE")
      ->check(check_output);
  one_of(
      command->add_option("--map", a->map, "both, rows, columns, or all: picture, both, rows, columns (default both)")
          ->option_text("NAME"),
      {"both", "rows", "columns", "all"});
  command->footer(
      "Attention rollout: how much of each place arrives in the pooled output, followed back through row and column "
      "passes (or those of one kind alone). The picture turns gray; over it violet is the map's least value, red the "
      "middle, yellow the greatest. peak in the result is that greatest value as a multiple of the map's mean: near 1 "
      "all places count alike, at 5 one counts five times the average. The map shows what is mixed in, not which class "
      "it speaks for.\n\n"
      "Examples:\n"
      "  axial explain runs/try shoe.png -o shoe-attention.png\n"
      "  axial explain runs/try 17 --map all -o image-17.png");
  return {command, [a] { return run_explain(*a); }};
}

}  // namespace

CLI::Option* offer(CLI::Option* option, const std::vector<std::string>& values) {
  std::string names;
  for (const std::string& value : values) names += (names.empty() ? "" : "|") + value;
  // As the name of a check that accepts everything: CLI11 has no other place for it.
  return names.empty() ? option : option->check([](const std::string&) { return std::string(); }, "", names);
}

std::vector<std::string> offered(CLI::Option* option) {
  std::vector<std::string> values;
  for (int i = 0;; ++i) {
    std::string names;
    try {
      names = option->get_validator(i)->get_name();
    } catch (const CLI::OptionNotFound&) {
      return values;
    }
    for (std::size_t from = 0; !names.empty() && from <= names.size();) {
      const std::size_t to = std::min(names.find('|', from), names.size());
      values.push_back(names.substr(from, to - from));
      from = to + 1;
    }
  }
}

CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& values) {
  return offer(option, values)->check([values](const std::string& text) -> std::string {
    std::string names;
    for (const std::string& value : values) {
      if (value == text) return "";
      names += (names.empty() ? "" : value == values.back() ? " or " : ", ") + value;
    }
    return "expected " + names + ", found " + (text.empty() ? "nothing" : text.substr(0, 60)) +
           meant_value(text, values);
  });
}

std::vector<std::string> completions(const Key& key) {
  Config scratch{};
  if (std::holds_alternative<bool*>(key.field(scratch))) return {"true", "false"};
  if (const auto* choice = std::get_if<Choice>(&key.limits.each)) return choice->names;
  if (const auto* rule = std::get_if<Rule>(&key.limits.each)) return rule->names;
  return {};
}

void add_config_files(CLI::App* command, std::vector<std::string>& files, const std::string& before) {
  command
      ->add_option("-c,--config", files,
                   before + "YAML file, the name of an installed one, or - for standard input; may be given several "
                            "times, later ones win; without one every key has its default")
      ->option_text("FILE")
      ->check(check_not_empty)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_device(CLI::App* command, std::string& device) {
  offer(command->add_option("--device", device, "cpu, cuda, cuda:N or auto (default: as trained)")
            ->option_text("NAME")
            ->check(check_device),
        {"auto", "cpu", "cuda"});
}

void add_model(CLI::App* command, std::string& checkpoint, std::string& device) {
  command->add_option("checkpoint", checkpoint, "a checkpoint, or a run's folder (its best)")
      ->required()
      ->option_text(" ")
      ->check(check_not_empty);
  add_device(command, device);
}

std::vector<Command> add_result_commands(CLI::App& program) {
  return {add_export(program), add_runs(program), add_report(program), add_explain(program)};
}

}  // namespace axial::app
