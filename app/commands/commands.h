// The commands of the program, one source each. Each takes its parsed arguments and returns an exit code;
// failures are exceptions, which main turns into one line and a code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace axial::app {

struct TrainArguments {
  std::vector<std::string> configs, overrides;
  std::string output;         // the run's folder; empty: a new one under train.output
  bool resume = false;
  std::string resume_from;    // folder or file; empty: --output, or the newest run under train.output
  bool overwrite = false, dry_run = false;
  double stop_after = 0, time_limit = 0;
};
int run_train(const TrainArguments& arguments);

struct EvalArguments {
  std::string checkpoint, device, json;
  std::vector<std::string> overrides;
};
int run_eval(const EvalArguments& arguments);

struct PredictArguments {
  std::string checkpoint, device;
  std::vector<std::string> inputs;  // files, folders, "-", indices into the test set, and key=value
  std::int64_t top = 1;
  std::string format = "text";  // text, csv, jsonl
};
int run_predict(const PredictArguments& arguments);

struct ConfigArguments {
  std::vector<std::string> configs, overrides;
  bool keys = false;    // every key with its description
  std::string explain;  // one key, or a section
  bool markdown = false;
};
int run_config(const ConfigArguments& arguments);

struct InfoArguments {
  std::string checkpoint;            // empty: about the program and the machine
  std::vector<std::string> kernel;   // B H W D heads dtype: which code would run
  bool config = false;               // the checkpoint's whole configuration
};
int run_info(const InfoArguments& arguments);

struct ExportArguments {
  std::string checkpoint, output;
  std::string weights = "auto";  // auto: the average where there is one; ema, model
};
int run_export(const ExportArguments& arguments);

struct RunsArguments {
  std::string folder;  // empty: train.output's default
  bool json = false;
};
int run_runs(const RunsArguments& arguments);

struct ReportArguments {
  std::vector<std::string> runs;  // folders, and key=value
  std::string output, device;
};
int run_report(const ReportArguments& arguments);

struct ExplainArguments {
  std::string checkpoint, image, output, device;
  std::string map = "both";  // both, rows, columns, all
  std::vector<std::string> overrides;
};
int run_explain(const ExplainArguments& arguments);

struct GradcheckArguments {
  std::string device = "cpu", json;
  std::uint64_t seed = 0;
  bool verbose = false;
  bool plant_error = false;  // for tests: a gradient that is wrong by 1e-3 must be caught
};
int run_gradcheck(const GradcheckArguments& arguments);

struct BenchArguments {
  std::vector<std::string> shapes, dtypes;  // empty: the device's usual ones
  std::string device = "auto", backend = "both", json;
  int repeats = 0;  // 0: the device's usual number
  std::string data, size;  // a folder of JPEG files instead of the layer, and HEIGHT,WIDTH
  std::int64_t workers = 0;
  bool step = false;  // the training step of a configuration instead of the layer
  std::vector<std::string> configs, overrides;
};
int run_bench(const BenchArguments& arguments);

// Parses the command line and runs the command; never throws.
int run_program(int argc, char** argv);

}  // namespace axial::app
