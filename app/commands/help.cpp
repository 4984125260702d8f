#include "app/commands/help.h"

#include <sstream>

#include "app/config/describe.h"

namespace axial::app {
namespace {

constexpr std::size_t kNames = 26;  // columns of what stands left of a description

// "  --name VALUE    what it means", the meaning wrapped under itself; below a name that is too long.
std::string row(const std::string& name, const std::string& meaning) {
  std::string head = "  " + name;
  if (head.size() + 2 <= kNames) {
    head.resize(kNames, ' ');
    return meaning.empty() ? "  " + name + "\n" : wrap(meaning, head, kHelpWidth);
  }
  return head + "\n" + (meaning.empty() ? "" : wrap(meaning, std::string(kNames, ' '), kHelpWidth));
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return row(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return row(command->get_name(), command->get_description());
  }
  std::string make_description(const CLI::App* command) const override {
    return wrap(command->get_description(), "", kHelpWidth);
  }
  std::string make_footer(const CLI::App* command) const override {
    std::istringstream lines(command->get_footer());
    std::string text;
    for (std::string line; std::getline(lines, line);) {
      text += line.empty() || line[0] == ' ' ? line + "\n" : wrap(line, "", kHelpWidth);
    }
    return text;
  }
  std::string make_help(const CLI::App* command, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(command, std::move(name), mode);
    for (std::size_t at = 0; (at = text.find("\n\n\n")) != std::string::npos;) text.erase(at, 1);
    return text;
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() {
  auto formatter = std::make_shared<HelpFormatter>();
  formatter->label("OPTIONS", "options");
  formatter->label("SUBCOMMAND", "COMMAND");
  formatter->label("Positionals", "Arguments");
  return formatter;
}

}  // namespace axial::app
