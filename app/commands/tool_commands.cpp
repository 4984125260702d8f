// Parsers of the commands that check and measure the code, and of those that print the command line's own description.

#include <iostream>
#include <memory>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/option_checks.h"

namespace axial::app {
namespace {

Command add_gradcheck(CLI::App& program) {
  const auto a = std::make_shared<GradcheckArguments>();
  CLI::App* command = program.add_subcommand("gradcheck", "check the hand-written backward");
  command->add_option("--device", a->device, "cpu, cuda or cuda:N (default cpu)")
      ->option_text("NAME")
      ->check(check_device);
  command->add_option("--json", a->json, "write every check to a file, too")->option_text("FILE")->check(check_output);
  command->add_option("--seed", a->seed, "of the random inputs")->option_text("N")->check(check_seed);
  command->add_flag("-v,--verbose", a->verbose, "print every check, not only those that are wrong");
  command->add_flag("--plant-error", a->plant_error,
                    "make one gradient wrong by 1e-3, to see that the check catches it");
  command->footer(
      "A case is a pass, an MLP or a model with random inputs; a check is one of its "
      "outputs or gradients, against\n"
      "  reference           library operators in float64\n"
      "  finite differences  slopes of the output in float64\n"
      "  float64 reference   library operators in float64, for a narrower type\n"
      "  bias                the same, by the error that all elements share\n"
      "  finite              no infinity and no NaN\n"
      "Of each the largest error is told as a part of its limit: 1 is just allowed.\n"
      "Exit code 1 on any mismatch.\n\nExample:\n  axial gradcheck --device cuda --json check.json");
  return {command, [a] { return run_gradcheck(*a); }};
}

Command add_bench(CLI::App& program) {
  const auto a = std::make_shared<BenchArguments>();
  CLI::App* command = program.add_subcommand(
      "bench", "time the layer, fused and reference; or the training step (--step), or decoding (--data)");
  command
      ->add_option("--shapes", a->shapes,
                   "seed, train64, 512x28x28, 512x14x14, train128, mid, long, or B,H,W,D,heads")
      ->option_text("SHAPE...");
  command->add_option("--dtype", a->dtypes, "bfloat16, float16, tf32, float32")->option_text("TYPE...");
  command->add_option("--device", a->device, "cpu, cuda, cuda:N or auto (default auto)")
      ->option_text("NAME")
      ->check(check_device);
  command->add_option("--backend", a->backend, "fused, reference or both (default both)")->option_text("NAME");
  command->add_option("--repeats", a->repeats, "timed calls of each kind (default 50, on the CPU 10)")
      ->option_text("N")
      ->check(check_count);
  command->add_option("--json", a->json, "write the table as JSON, too")->option_text("FILE")->check(check_output);
  command
      ->add_option("--data", a->data,
                   "instead of the layer: decode and resize the JPEG files of a folder (or generated: 500 that are "
                   "made), against libjpeg-turbo alone")
      ->option_text("DIR")
      ->check(check_not_empty);
  command->add_option("--size", a->size, "with --data: what images are brought to (default 224,224)")
      ->option_text("HEIGHT,WIDTH");
  command->add_option("--workers", a->workers, "with --data: threads (default one for each core)")
      ->option_text("N")
      ->check(check_count);
  command->add_flag("--step", a->step,
                    "instead of the layer: the training step of -c FILE, on images of its set's shape that are made up");
  add_config_files(command, a->configs, "with --step: ");
  command->add_option("key=value", a->overrides, "with --step: overrides, e.g. data.batch_size=256")->option_text("...");
  command->footer(
      "What the columns mean stands below the table.\n\n"
      "Examples:\n"
      "  axial bench --shapes train64 4,32,32,64,4 --dtype bfloat16,tf32\n"
      "  axial bench --step -c configs/bench.yaml train.precision=tf32\n"
      "  axial bench --data photos --json decoding.json");
  return {command, [a] { return run_bench(*a); }};
}

Command add_completion(CLI::App& program) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command =
      program.add_subcommand("completion", "a script that lets bash or zsh complete the command line");
  one_of(command->add_option("shell", *shell, "bash or zsh")->required()->option_text(" "), {"bash", "zsh"});
  command->footer(
      "It completes commands, options, keys (optim.lr=) and their values.\n\n"
      "For one session:\n"
      "  source <(axial completion bash)\n"
      "For good (zsh's before compinit):\n"
      "  axial completion bash > ~/.local/share/bash-completion/completions/axial\n"
      "  axial completion zsh > \"${fpath[1]}/_axial\"\n\n"
      "Example:\n  axial completion bash");
  return {command, [&program, shell] {
            std::cout << completion_script(program, *shell) << std::flush;
            return 0;
          }};
}

Command add_man(CLI::App& program) {
  CLI::App* command = program.add_subcommand("man", "the manual page: these helps and all keys");
  command->footer("Example:\n  axial man | man -l -");
  return {command, [&program] {
            std::cout << manual_page(program) << std::flush;
            return 0;
          }};
}

}  // namespace

std::vector<Command> add_tool_commands(CLI::App& program) {
  return {add_gradcheck(program), add_bench(program), add_completion(program), add_man(program)};
}

}  // namespace axial::app
