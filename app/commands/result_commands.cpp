// Parsers of the commands that look at what training left, and of completion.

#include <iostream>
#include <memory>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/option_checks.h"

namespace axial::app {
namespace {

Command add_completion(CLI::App& program) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command = program.add_subcommand("completion", "a script that lets bash or zsh complete the command line");
  one_of(command->add_option("shell", *shell, "bash or zsh")->required()->option_text(" "), {"bash", "zsh"});
  command->footer(
      "It completes commands, options, keys (optim.lr=) and their values. For one session:\n"
      "  source <(axial completion bash)\n"
      "For good: axial completion bash > ~/.local/share/bash-completion/completions/axial\n"
      "          axial completion zsh > \"${fpath[1]}/_axial\"   (before compinit)\n"
      "Example: axial completion bash");
  return {command, [&program, shell] {
            std::cout << completion_script(program, *shell) << std::flush;
            return 0;
          }};
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
    return "expected " + names + ", found " + (text.empty() ? "nothing" : text.substr(0, 60));
  });
}

std::vector<std::string> completions(const Key& key) {
  Config scratch{};
  if (std::holds_alternative<bool*>(key.field(scratch))) return {"true", "false"};
  if (const auto* choice = std::get_if<Choice>(&key.limits.each)) return choice->names;
  if (key.path == "train.device") return {"auto", "cpu", "cuda"};
  return {};
}

void add_model(CLI::App* command, std::string& checkpoint, std::string& device) {
  command->add_option("checkpoint", checkpoint, "a checkpoint, or a run's folder (its best)")
      ->required()
      ->option_text(" ")
      ->check(check_not_empty);
  offer(command->add_option("--device", device, "cpu, cuda, cuda:N or auto (default: as trained)")
            ->option_text("NAME")
            ->check(check_device),
        {"auto", "cpu", "cuda"});
}

std::vector<Command> add_result_commands(CLI::App& program) { return {add_completion(program)}; }

}  // namespace axial::app
