#include "tests/kernels/device_buffers.h"

#include <cstdlib>

#ifdef AXIAL_WITH_CUDA
#include <cuda_runtime.h>
#endif

namespace axial::kernels::testing {

#ifdef AXIAL_WITH_CUDA

namespace {
void note(cudaError_t code, const char* what, std::string& error) {
  if (code != cudaSuccess && error.empty()) error = std::string(what) + ": " + cudaGetErrorString(code);
}
}  // namespace

DeviceBuffers::~DeviceBuffers() {
  if (device_ == Device::kCpu) return;
  for (auto& [buffer, address] : buffers_) (void)cudaFree(address);
}

void* DeviceBuffers::put(const std::shared_ptr<Bytes>& buffer, bool fill) {
  if (buffer == nullptr) return nullptr;
  for (auto& [known, address] : buffers_) {
    if (known == buffer) return address;
  }
  if (device_ == Device::kCpu) {
    buffers_.emplace_back(buffer, buffer->data());  // lives as long as its copy on a device would
    return buffer->data();
  }
  void* address = nullptr;
  if (!buffer->empty()) note(cudaMalloc(&address, buffer->size()), "cudaMalloc", error_);
  buffers_.emplace_back(buffer, address);
  if (fill) refresh(buffer);
  return address;
}

void DeviceBuffers::refresh(const std::shared_ptr<Bytes>& buffer) {
  if (device_ == Device::kCpu) return;
  for (auto& [known, address] : buffers_) {
    if (known != buffer || address == nullptr) continue;
    note(cudaMemcpy(address, buffer->data(), buffer->size(), cudaMemcpyHostToDevice), "upload", error_);
  }
}

std::string DeviceBuffers::fetch() {
  if (device_ == Device::kCpu) return "";
  note(cudaDeviceSynchronize(), "cudaDeviceSynchronize", error_);
  for (auto& [buffer, address] : buffers_) {
    if (address == nullptr) continue;
    note(cudaMemcpy(buffer->data(), address, buffer->size(), cudaMemcpyDeviceToHost), "download", error_);
  }
  return error_;
}

const char* unavailable(const Backend& backend) {
  if (backend.device == Device::kCpu) return nullptr;
  if (!cuda::built()) return "built without CUDA";
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    return "no CUDA device";
  }
  return nullptr;
}

#else

DeviceBuffers::~DeviceBuffers() = default;
void* DeviceBuffers::put(const std::shared_ptr<Bytes>& buffer, bool) {
  if (buffer == nullptr || device_ == Device::kCuda) return nullptr;
  buffers_.emplace_back(buffer, buffer->data());
  return buffer->data();
}
void DeviceBuffers::refresh(const std::shared_ptr<Bytes>&) {}
std::string DeviceBuffers::fetch() { return error_; }

const char* unavailable(const Backend& backend) {
  return backend.device == Device::kCpu ? nullptr : "built without CUDA";
}

#endif

}  // namespace axial::kernels::testing
