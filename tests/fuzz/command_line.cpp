// The command line, an argument a line: every one ends in a command that would run, or in exit code 2. The commands
// themselves are replaced by these.
#include <iostream>
#include <sstream>

#include "app/commands/commands.h"
#include "tests/fuzz/input.h"

namespace axial::app {

int run_train(const TrainArguments&) { return 0; }
int run_eval(const EvalArguments&) { return 0; }
int run_predict(const PredictArguments&) { return 0; }
int run_config(const ConfigArguments&) { return 0; }
int run_info(const InfoArguments&) { return 0; }
int run_export(const ExportArguments&) { return 0; }
int run_runs(const RunsArguments&) { return 0; }
int run_report(const ReportArguments&) { return 0; }
int run_explain(const ExplainArguments&) { return 0; }
int run_gradcheck(const GradcheckArguments&) { return 0; }
int run_bench(const BenchArguments&) { return 0; }

}  // namespace axial::app

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> arguments = {"axial"};
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  for (std::string line; std::getline(lines, line);) arguments.push_back(line.substr(0, line.find('\0')));
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::ostringstream out;
  std::streambuf* const before = std::cout.rdbuf(out.rdbuf());
  const int code = axial::app::run_program(static_cast<int>(arguments.size()), argv.data());
  std::cout.rdbuf(before);
  axial::fuzz::hold(code == 0 || code == 2, "a command line is taken, or wrong");
  return 0;
}
