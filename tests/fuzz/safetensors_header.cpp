// The JSON header of a checkpoint: parsed, printed and parsed again.
#include "app/checkpoint/safetensors_header.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace axial;
  app::Header header;
  if (!app::parse_header(std::string(reinterpret_cast<const char*>(data), size), &header).empty()) return 0;
  for (const app::TensorEntry& entry : header.tensors) {
    if (entry.dtype.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") != std::string::npos) return 0;
  }
  const std::string text = app::print_header(header);
  app::Header again;
  fuzz::hold(app::parse_header(text, &again).empty(), "a printed header is one");
  fuzz::hold(app::print_header(again) == text, "a printed header reads back");
  return 0;
}
