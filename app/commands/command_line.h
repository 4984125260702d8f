// What the parsers of commands share; for the sources that see CLI11.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "app/config/schema.h"

namespace axial::app {

// A command's parser, and what runs it once it was chosen.
struct Command {
  CLI::App* parser;
  std::function<int()> run;
};

// Commands that look at what training left.
std::vector<Command> add_result_commands(CLI::App& program);
// Those that check and measure the code, and those that print the command line's own description.
std::vector<Command> add_tool_commands(CLI::App& program);

// -c FILE, of commands that take configurations.
void add_config_files(CLI::App* command, std::vector<std::string>& files, const std::string& before = "");

void add_device(CLI::App* command, std::string& device);
// "checkpoint" and --device, of commands that take a trained model.
void add_model(CLI::App* command, std::string& checkpoint, std::string& device);

// Values that the shell may complete for an option; anything else stays possible.
CLI::Option* offer(CLI::Option* option, const std::vector<std::string>& values);
std::vector<std::string> offered(CLI::Option* option);
// Those and nothing else.
CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& values);

// Values to complete for a key: true and false, the names of a choice, devices; empty where they are without number.
std::vector<std::string> completions(const Key& key);

// Of a program: its commands; of a command: the options with a name that starts with "-" and a place in the help.
std::vector<CLI::App*> commands_of(CLI::App& program);
std::vector<CLI::Option*> options_of(CLI::App* command);
std::vector<std::string> names_of(const CLI::Option* option);  // with their dashes, short ones first

// A script that completes commands, options, keys and their values; `shell`: bash or zsh.
std::string completion_script(CLI::App& program, const std::string& shell);


// axial.1, for man.
std::string manual_page(CLI::App& program);

}  // namespace axial::app
