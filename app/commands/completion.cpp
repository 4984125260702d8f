// Scripts for the shells, from the same description that parses: CLI11's commands and options, and the table of keys.

#include <algorithm>

#include "app/commands/command_line.h"

namespace axial::app {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& between = " ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// Options whose value may be left out stand alone.
bool takes_value(const CLI::Option* option) { return option->get_items_expected_max() > 0; }

// The keys that may stand among a command's arguments.
std::vector<const Key*> keys_of(CLI::App* command) {
  std::vector<const Key*> keys;
  const std::string name = command->get_name();
  const bool mixed = name == "predict" || name == "report";  // among files and folders
  const bool some = mixed || command->get_option_no_throw("key=value") != nullptr;
  const bool trained = mixed || command->get_option_no_throw("checkpoint") != nullptr;
  for (const Key& key : schema()) {
    if (some && (!trained || key.may_change_on_eval)) keys.push_back(&key);
  }
  return keys;
}

// In single quotes.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// "name:meaning" for zsh's _describe, where a colon of the name is escaped.
std::string described(const std::string& name, const std::string& meaning) {
  std::string escaped;
  for (const char c : name) escaped += (c == ':' ? "\\" : "") + std::string(1, c);
  return quoted(escaped + ":" + meaning);
}

// Patterns "train:--opt|train:-o" of a case, each with `then` of its values; and of keys "optim.name".
std::string value_cases(CLI::App& program, const std::string& values, const std::string& anything) {
  std::string text;
  for (CLI::App* command : commands_of(program)) {
    for (CLI::Option* option : options_of(command)) {
      if (!takes_value(option)) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : names_of(option)) patterns.push_back(command->get_name() + ":" + name);
      const std::vector<std::string> words = offered(option);
      text += "    " + joined(patterns, "|") + ") " + (words.empty() ? anything : values + joined(words)) +
              "; return ;;\n";
    }
  }
  return text;
}

std::string key_cases(const std::string& values, const std::string& anything) {
  std::string text;
  for (const Key& key : schema()) {
    const std::vector<std::string> words = completions(key);
    if (!words.empty()) text += "      " + key.path + ") " + values + joined(words) + " ;;\n";
  }
  return text + "      *) " + anything + " ;;\n";
}

std::string bash_script(CLI::App& program) {
  std::vector<std::string> names;
  std::string words;
  for (CLI::App* command : commands_of(program)) {
    names.push_back(command->get_name());
    std::vector<std::string> options, keys;
    for (const CLI::Option* option : options_of(command)) {
      for (const std::string& name : names_of(option)) options.push_back(name);
    }
    for (const Key* key : keys_of(command)) keys.push_back(key->path);
    words += "    " + command->get_name() + ")\n      options=" + quoted(joined(options)) +
             "\n      keys=" + quoted(joined(keys)) + " ;;\n";
    for (CLI::Option* option : command->get_options([](const CLI::Option* o) { return o->get_positional(); })) {
      if (const auto choices = offered(option); !choices.empty()) {
        words.insert(words.size() - 4, "\n      words=" + quoted(joined(choices)));
      }
    }
  }
  return R"(# bash completion for axial, made by `axial completion bash`
# For one session: source <(axial completion bash)
# For good:        axial completion bash > ~/.local/share/bash-completion/completions/axial

# Those of the arguments that start with $cur become the reply: values of $head, where there is one. Where "=" parts
# words for bash, the reply is the part after it, elsewhere the whole word. No space follows what is not finished.
_axial_reply() {
  local word before=
  [[ -z $head || $COMP_WORDBREAKS == *=* ]] || before=$head=
  for word; do
    [[ $word == "$cur"* ]] && COMPREPLY+=("$before$word")
  done
  [[ ${#COMPREPLY[@]} == 0 || ${COMPREPLY[0]} != *[.=] ]] || compopt -o nospace 2> /dev/null
}

_axial() {
  COMPREPLY=()
  # Words between blanks, whatever bash thinks of "=" and ":" in them.
  local line=${COMP_LINE:0:COMP_POINT}
  local cur=${line##*[[:space:]]} head= prev command options keys words
  local -a before
  read -ra before <<< "${line%"$cur"}"
  command=${before[1]}
  prev=${before[${#before[@]} - 1]}
  if [[ ${#before[@]} == 1 ]]; then
    _axial_reply )" +
         joined(names) + R"( --help --version
    return
  fi
  case $command in
)" + words +
         R"(    *) return ;;
  esac
  if [[ $cur == *=* ]]; then
    head=${cur%%=*}
    cur=${cur#*=}
    [[ $head != --* ]] || prev=$head
  fi
  case $command:$prev in
)" + value_cases(program, "_axial_reply ", ":") +
         R"(  esac
  if [[ -n $head ]]; then
    case $head in
)" + key_cases("_axial_reply ", ":") +
         R"(    esac
  elif [[ $cur == -* ]]; then
    _axial_reply $options
  elif [[ $cur == *.* ]]; then
    _axial_reply ${keys// /= }${keys:+=}
  else
    local key sections=
    for key in $keys; do
      [[ $sections == *" ${key%%.*}. "* ]] || sections+=" ${key%%.*}. "
    done
    _axial_reply $words $sections
  fi
}

# Nothing in the reply: files, as always.
complete -o bashdefault -o default -F _axial axial
)";
}

std::string zsh_script(CLI::App& program) {
  std::string commands, words;
  for (CLI::App* command : commands_of(program)) {
    commands += "    " + described(command->get_name(), command->get_description()) + "\n";
    words += "    " + command->get_name() + ")\n      options=(\n";
    for (const CLI::Option* option : options_of(command)) {
      for (const std::string& name : names_of(option)) {
        words += "        " + described(name, option->get_description()) + "\n";
      }
    }
    words += "      )\n      keys=(\n";
    for (const Key* key : keys_of(command)) words += "        " + described(key->path, key->help) + "\n";
    words += "      )\n";
    for (CLI::Option* option : command->get_options([](const CLI::Option* o) { return o->get_positional(); })) {
      if (const auto choices = offered(option); !choices.empty()) words += "      given=(" + joined(choices) + ")\n";
    }
    words += "      ;;\n";
  }
  return R"(#compdef axial
# zsh completion for axial, made by `axial completion zsh`
# For one session: source <(axial completion zsh)   (after compinit)
# For good:        axial completion zsh > "${fpath[1]}/_axial"

_axial() {
  local -a commands options keys given
  local command=${words[2]} previous=${words[CURRENT-1]} current=${words[CURRENT]}
  commands=(
)" + commands +
         R"(  )
  if (( CURRENT == 2 )); then
    _describe -t commands 'command' commands
    return
  fi
  case $command in
)" + words +
         R"(    *) return 1 ;;
  esac
  if [[ $current == --*=* ]]; then
    previous=${current%%=*}
    compset -P '*='
  fi
  case $command:$previous in
)" + value_cases(program, "compadd -- ", "_files") +
         R"(  esac
  if [[ $current == *=* ]]; then
    compset -P '*='
    case ${current%%=*} in
)" + key_cases("compadd -- ", "_files") +
         R"(    esac
  elif [[ $current == -* ]]; then
    _describe -t options 'option' options
  else
    (( $#given )) && compadd -- $given
    (( $#keys )) && _describe -t keys 'key' keys -S '='
    (( $#given )) || _files
  fi
}

# Sourced, it registers itself; from a folder of $fpath it is the function.
if [[ $zsh_eval_context == *file* || $zsh_eval_context == *source* ]]; then
  (( $+functions[compdef] )) && compdef _axial axial
else
  _axial "$@"
fi
)";
}

}  // namespace

std::vector<CLI::App*> commands_of(CLI::App& program) {
  return program.get_subcommands([](CLI::App*) { return true; });
}

std::vector<CLI::Option*> options_of(CLI::App* command) {
  return command->get_options([](const CLI::Option* o) { return o->nonpositional() && !o->get_group().empty(); });
}

std::vector<std::string> names_of(const CLI::Option* option) {
  std::vector<std::string> names;
  for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string completion_script(CLI::App& program, const std::string& shell) {
  return shell == "bash" ? bash_script(program) : zsh_script(program);
}

}  // namespace axial::app
