// What a dry run says of the model: parameters, operations, memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace axial {
class AxialClassifierImpl;
}

namespace axial::app {

// A part of the model in the order of the forward pass.
struct ModelPart {
  std::string name;                    // stem, position, stage 1, ..., head
  std::int64_t rows = 0, columns = 0;  // tokens that come out
  std::int64_t channels = 0;
  std::int64_t parameters = 0, trained = 0;  // of them, those that are not frozen
  double operations = 0;  // multiplications and additions of an image's forward pass, in matrix products
};
std::vector<ModelPart> model_parts(const AxialClassifierImpl& model);

// A table of the parts and their sum, with line ends. A step, forward and backward, takes about three times the
// operations.
std::string summary_table(const std::vector<ModelPart>& parts);

// Counts what libtorch allocates on the CPU and on devices while it lives, in this thread and in those of the
// backward.
class MemoryMeter {
 public:
  MemoryMeter();
  std::int64_t now() const { return counts_->now.load(); }    // bytes more than at the start
  std::int64_t peak() const { return counts_->peak.load(); }  // the most of them

 private:
  struct Counts : c10::MemoryReportingInfoBase {
    std::atomic<std::int64_t> now = 0, peak = 0;
    void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override;
    bool memoryProfilingEnabled() const override { return true; }
  };
  std::shared_ptr<Counts> counts_;
  c10::DebugInfoGuard guard_;
};

std::string size_text(double bytes);  // 3.2 MiB

}  // namespace axial::app
