// The manual page, from the same description that parses and that --help prints.

#include <sstream>

#include "app/commands/command_line.h"
#include "app/config/load.h"
#include "app/config/value.h"
#include "app/version.h"

namespace axial::app {
namespace {

// Text that groff takes as it stands.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool starts_line = result.empty() || result.back() == '\n';
    if (starts_line && (c == '.' || c == '\'')) result += "\\&";
    result += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  }
  return result;
}

std::string bold(const std::string& text) { return "\\fB" + plain(text) + "\\fR"; }
std::string italic(const std::string& text) { return text.empty() ? "" : "\\fI" + plain(text) + "\\fR"; }

std::string entry(const std::string& head, const std::string& text) { return ".TP\n" + head + "\n" + plain(text) + "\n"; }

std::string value_of(const CLI::Option* option) {
  const std::string& text = option->get_option_text();
  return text == " " ? "" : text;
}

std::string option_entry(const CLI::Option* option) {
  if (option->get_positional()) {
    const std::string value = value_of(option);
    return entry(italic(option->get_name(true)) + (value.empty() ? "" : " " + plain(value)), option->get_description());
  }
  std::string names;
  for (const std::string& name : names_of(option)) names += (names.empty() ? "" : ", ") + bold(name);
  const std::string value = italic(value_of(option));
  return entry(names + (value.empty() ? "" : " " + value), option->get_description());
}

// Paragraphs, and examples as they stand.
std::string footer(const std::string& text) {
  std::istringstream lines(text);
  std::string result;
  bool example = false;
  const auto enter = [&](bool now) {
    if (now != example) result += now ? ".nf\n" : ".fi\n";
    example = now;
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    enter(line[0] == ' ');
    result += (example ? "" : ".PP\n") + plain(line) + "\n";
  }
  enter(false);
  return result;
}

std::string usage(CLI::App* command) {
  std::string text = bold("axial " + command->get_name()) + " [options]";
  for (const CLI::Option* option : command->get_options([](const CLI::Option* o) { return o->get_positional(); })) {
    const bool many = option->get_expected_max() >= CLI::detail::expected_max_vector_size;
    const std::string name = italic(option->get_name(true)) + (many ? "..." : "");
    text += option->get_required() ? " " + name : " [" + name + "]";
  }
  return text + "\n";
}

std::string about(CLI::App* command) {
  std::string text = ".SS \"axial " + command->get_name() + "\"\n" + usage(command) + ".PP\n" +
                     plain(command->get_description()) + ".\n";
  const auto shown = [](const CLI::Option* o) { return !o->get_group().empty(); };
  for (const CLI::Option* option : command->get_options(shown)) {
    if (option->get_positional()) text += option_entry(option);
  }
  for (const CLI::Option* option : command->get_options(shown)) {
    if (!option->get_positional() && option != command->get_help_ptr()) text += option_entry(option);
  }
  return text + footer(command->get_footer());
}

std::string keys() {
  std::string text;
  for (const Key& key : schema()) {
    text += entry(bold(key.path) + " = " + plain(key.preset),
                  key.help + ". Expected: " + print_limits(key) + (key.unit.empty() ? "" : " (" + key.unit + ")") +
                      (key.may_change_on_resume ? "; may change on resume" : "") + ".");
  }
  return text;
}

}  // namespace

std::string manual_page(CLI::App& program) {
  std::string text = ".\\\" made by `axial man`\n.TH AXIAL 1 \"\" \"axial " + std::string(kVersion) +
                     "\" \"User Commands\"\n.SH NAME\naxial \\- train axial\\-attention image classifiers\n" +
                     ".SH SYNOPSIS\n" + bold("axial") + " " + italic("COMMAND") + " [options] [arguments]\n" +
                     ".SH DESCRIPTION\n" + plain(program.get_description()) +
                     "\nResults go to standard output, everything else to standard error.\n.SH COMMANDS\n";
  for (CLI::App* command : commands_of(program)) text += about(command);
  text += ".SH CONFIGURATION KEYS\nIn YAML files (" + bold("-c") + " " + italic("FILE") +
          ") as sections and keys, on the command line as " + italic("section.key=value") +
          "; with their defaults:\n" + keys();
  return text + ".SH EXAMPLES AND EXIT STATUS\n" + footer(program.get_footer()) +
         ".SH ENVIRONMENT\n" +
         entry(bold("AXIAL_DATA"), "a folder of data sets, each in a folder of its name") +
         entry(bold("LIBTORCH"), "where the installed program finds libtorch: a folder with lib/libtorch_cpu.so") +
         entry(bold("XDG_CACHE_HOME"), "instead of ~/.cache: data sets, decoded pictures, libtorch in axial/");
}

}  // namespace axial::app
