#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "app/commands/commands.h"
#include "app/config/load.h"
#include "app/config/schema.h"
#include "app/config/suggest.h"
#include "app/config/value.h"
#include "app/counted.h"
#include "app/results/text.h"
#include "app/train/best.h"
#include "app/train/build.h"
#include "app/train/report.h"
#include "app/train/state.h"
#include "app/version.h"
#include "kernels/kernels.h"
#include "model/mlp.h"
#include "model/pass.h"
#if defined(AXIAL_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace axial::app {

namespace {

at::ScalarType parse_type(const std::string& text) {
  if (text == "float64") return at::kDouble;
  if (text == "float32" || text == "tf32") return at::kFloat;
  if (text == "bfloat16" || text == "bf16") return at::kBFloat16;
  if (text == "float16" || text == "fp16") return at::kHalf;
  throw ConfigError("command line: --kernel: dtype " + text +
                    ": expected float64, float32, tf32, bfloat16 or float16" +
                    meant_value(text, {"float64", "float32", "tf32", "bfloat16", "float16"}));
}

// Lines of "cpu:  ..." and, where CUDA can be used, "cuda: ...": of the layer, and of an MLP twice as wide. tf32: the
// GPU's arithmetic, which a CPU has not.
std::string kernel_lines(const std::int64_t (&n)[5], at::ScalarType dtype, bool tf32 = false) {
  const auto on = [&](const std::string& name, at::Device device) {
    return name + describe_pass(n[0], n[1], n[2], n[3], n[4], dtype, device) + "\n" + name + "MLP (ratio 2) " +
           describe_mlp(n[0] * n[1] * n[2], n[3], 2 * n[3], dtype, device) + "\n";
  };
  return (tf32 ? "cpu:  no tf32, which is the GPU's\n" : on("cpu:  ", at::kCPU)) +
         (cuda_problem().empty() ? on("cuda: ", at::kCUDA) : "");
}

void describe_kernel(const std::vector<std::string>& shape) {
  std::int64_t n[5];
  for (int i = 0; i < 5; ++i) {
    const std::string& text = shape[static_cast<std::size_t>(i)];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n[i]);
    if (error != std::errc() || end != text.data() + text.size() || n[i] < 1 ||
        n[i] > std::numeric_limits<std::int32_t>::max()) {
      throw ConfigError("command line: --kernel: expected B H W D HEADS as integers from 1 to 2147483647, found " +
                        text);
    }
  }
  if (n[3] % n[4] != 0) throw ConfigError("command line: --kernel: HEADS must divide D");
  if (n[3] / n[4] > kernels::kMaxHeadDim) {
    throw ConfigError("command line: --kernel: heads have up to " + std::to_string(kernels::kMaxHeadDim) +
                      " channels, found D / HEADS = " + std::to_string(n[3] / n[4]));
  }
  const at::ScalarType dtype = parse_type(shape[5]);
  at::globalContext().setAllowTF32CuBLAS(shape[5] == "tf32");
  std::cout << kernel_lines(n, dtype, shape[5] == "tf32");
  if (const std::string problem = cuda_problem(); !problem.empty()) std::cout << "cuda: " << problem << '\n';
}

void describe_machine() {
  std::cout << "axial " << kVersion << '\n'
            << "libtorch " << TORCH_VERSION << ", CUDA " << (at::hasCUDA() ? "in it" : "not loaded") << '\n';
  if (kernels::cuda::built()) {
    std::cout << "kernels built for CPU and CUDA (" << kernels::cuda::architectures() << ")\n";
  } else {
    std::cout << "kernels built for the CPU alone\n";
  }
  std::cout << "cpu: " << counted(at::get_num_threads(), "thread") << ", libtorch uses " << at::get_cpu_capability()
            << '\n';
  const std::string problem = cuda_problem();
  if (!problem.empty()) std::cout << "cuda: " << problem << '\n';
#if defined(AXIAL_WITH_CUDA)
  int count = 0;
  if (!problem.empty() || cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    std::cout << "cuda:" << i << ": " << p.name << ", compute capability " << p.major << '.' << p.minor << ", "
              << p.multiProcessorCount << " multiprocessors, " << (p.totalGlobalMem >> 20) << " MiB; ";
    const std::string reason = device_problem(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(i)));
    std::cout << (reason.empty() ? "usable" : reason) << '\n';
  }
#endif
  const std::int64_t usual[5] = {512, 32, 32, 64, 4};
  const std::string single = kernel_lines(usual, at::kFloat), half = kernel_lines(usual, at::kBFloat16);
  std::cout << "the layer at B=512, 32x32, D=64, 4 heads (forward / backward), float32"
            << (single == half ? " and bfloat16" : "") << ":\n"
            << single;
  if (single.find("AVX3") != std::string::npos) std::cout << "(AVX3 is what Highway calls AVX-512)\n";
  if (single != half) std::cout << "bfloat16:\n" << half;
}

// A file that is no checkpoint, as axial export writes it: what is in it, and what its metadata says.
void describe_weights(const SafetensorsFile& file, bool whole) {
  for (const auto& [name, tensor] : file.tensors)
    std::cout << "  " << plain_text(name) << " " << shape_text(tensor.sizes()) << " " << c10::toString(tensor.scalar_type()) << "\n";
  if (file.metadata.count("axial.weights") == 0) std::cout << "no weights of axial export: names may be another model's\n";
  for (const auto& [key, value] : file.metadata) {
    if (key == "axial.config" && !whole) {
      std::cout << key << ": " << counted(std::count(value.begin(), value.end(), '\n'), "line")
                << " (--config prints them)\n";
      continue;
    }
    const bool lines = value.find('\n') != std::string::npos;
    std::cout << plain_text(key) << (lines ? ":\n" : ": ") << plain_text(value, true) << (lines ? "" : "\n");
  }
}

// "model.dim=[16]" of each key that is not as it is by default; or all.
void describe_config(const Config& config, bool whole) {
  if (whole) {
    std::cout << "configuration:\n" << to_yaml(config);
    return;
  }
  const std::vector<std::string> keys = differing_keys(load_config({}, {}), config);
  std::cout << (keys.empty() ? "configuration: all of it as by default\n"
                             : "configuration, where it differs from the defaults (--config prints all of it):\n");
  for (const std::string& key : keys) std::cout << "  " << key << '=' << print_value(*find_key(key), config) << '\n';
}

// Of all numbers under `prefix`: batch norms keep statistics beside their parameters.
std::string parameters_of(const SafetensorsFile& file, const std::string& prefix, std::int64_t all) {
  std::int64_t count = 0;
  for (const auto& [name, tensor] : file.tensors) {
    const std::string leaf = name.substr(name.rfind('.') + 1);
    const bool statistic = leaf == "running_mean" || leaf == "running_var" || leaf == "num_batches_tracked";
    if (name.rfind(prefix, 0) == 0 && !statistic) count += tensor.numel();
  }
  return count == all ? " (all parameters)"
                      : " (" + std::to_string(count) + " parameters, the rest statistics of batch norms)";
}

void describe_checkpoint(const std::string& given, bool whole) {
  const auto path = resolve_checkpoint(given);
  const SafetensorsFile file = read_safetensors(path);
  std::size_t bytes = 0;
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> groups;  // prefix -> tensors, elements
  for (const auto& [name, tensor] : file.tensors) {
    bytes += tensor.nbytes();
    auto& group = groups[name.substr(0, name.find('.'))];
    group.first += 1;
    group.second += tensor.numel();
  }
  const bool checkpoint = file.metadata.count("axial.format") != 0;
  const CheckpointInfo info = checkpoint ? checkpoint_info(file, path) : CheckpointInfo{};
  std::cout << path.string() << ": " << counted(file.tensors.size(), "tensor") << " of " << counted(bytes, "byte")
            << ", in a file of " << std::filesystem::file_size(path) << "\n";
  if (!checkpoint) {
    describe_weights(file, whole);
    return;
  }
  const Progress& p = info.progress;
  std::cout << "written by axial " << plain_text(info.version) << ' '
            << position(p.epoch, p.batch, info.config.train.epochs) << " (" << counted(p.updates, "update") << "); ";
  if (p.best_epoch > 0) {
    std::cout << "best top1 " << p.best_top1 << " of the " << chosen_by(info.config) << " (epoch " << p.best_epoch
              << ")\n";
  } else {
    std::cout << "not evaluated yet\n";
  }
  std::cout << counted(info.spec.train_images, "training image") << ", " << counted(info.spec.classes.size(), "class")
            << ":";
  for (const auto& name : info.spec.classes) std::cout << ' ' << plain_text(name) << (&name == &info.spec.classes.back() ? "" : ",");
  std::cout << "\nimages: " << info.spec.channels << 'x' << info.spec.height << 'x' << info.spec.width << '\n';
  for (const auto& [name, group] : groups) {
    std::cout << "  " << plain_text(name) << ": " << counted(group.first, "tensor") << ", "
              << counted(group.second, "number");
    if (name == "model" || name == "ema") std::cout << parameters_of(file, name + ".", group.second);
    std::cout << '\n';
  }
  describe_config(info.config, whole);
}

}  // namespace

int run_info(const InfoArguments& a) {
  if (a.config && a.checkpoint.empty())
    throw ConfigError("command line: --config: is about a checkpoint; name one, or see axial config");
  if (!a.kernel.empty() && !a.checkpoint.empty()) {
    throw ConfigError("command line: --kernel: is about the program, not about " + a.checkpoint +
                      "; give one of the two");
  }
  if (!a.kernel.empty()) {
    describe_kernel(a.kernel);
  } else if (!a.checkpoint.empty()) {
    describe_checkpoint(a.checkpoint, a.config);
  } else {
    describe_machine();
  }
  std::cout << std::flush;
  return 0;
}

}  // namespace axial::app
