// Host buffers as a backend's kernels see them: themselves on the CPU, exact copies on CUDA.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tests/kernels/attention_harness.h"

namespace axial::kernels::testing {

class DeviceBuffers {
 public:
  explicit DeviceBuffers(Device device) : device_(device) {}
  ~DeviceBuffers();
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;

  // The address of `buffer` on the device; the same for every call with the same buffer. `fill` copies the contents.
  void* put(const std::shared_ptr<Bytes>& buffer, bool fill = true);
  // Copies a buffer's present host contents to the device once more.
  void refresh(const std::shared_ptr<Bytes>& buffer);
  // Waits, and copies all buffers back. Returns what the runtime complained about, or an empty string.
  std::string fetch();

 private:
  Device device_;
  std::vector<std::pair<std::shared_ptr<Bytes>, void*>> buffers_;
  std::string error_;
};

}  // namespace axial::kernels::testing
