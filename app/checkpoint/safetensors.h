// The safetensors format: 8 bytes little-endian header length, a JSON header (name -> dtype, shape, byte
// range; "__metadata__": string -> string), then the tensors' bytes. No code in it; readable by everybody.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace axial::app {

// Path and what is wrong with the file, in one line.
struct CheckpointError : std::runtime_error {
  explicit CheckpointError(const std::string& message);  // made one line of bounded length: names may be anything
};

struct SafetensorsFile {
  std::map<std::string, at::Tensor> tensors;  // on the CPU, contiguous
  std::map<std::string, std::string> metadata;
};

// Written to a temporary file in the same folder, flushed, renamed over `path`, folder flushed: a reader
// sees the old file or the new one. A checksum per tensor (CRC-32, zlib) goes into the metadata as
// "crc32.<name>", and one of the other metadata as "crc32.__metadata__"; entries of these names in `file` are
// replaced. Throws CheckpointError naming path and reason; the old file is then intact and the
// temporary file removed.
void write_safetensors(const std::filesystem::path& path, const SafetensorsFile& file);

// Checks everything before it returns: header length, JSON, types, shapes, byte ranges (inside the file, no
// overlap, no gap), and the checksums (none, or all of them; they do not come back as metadata). Never
// allocates more than the file's own size allows.
SafetensorsFile read_safetensors(const std::filesystem::path& path);

// What load_into checks: the tensors under `prefix` against `targets` (name without prefix -> tensor):
// missing keys, keys too many, shapes and types; named in one error (at most 20 of a kind), nothing changed. Then
// copies (to whatever device the targets live on).
void load_into(const SafetensorsFile& file, const std::filesystem::path& path, const std::string& prefix,
               const std::vector<std::pair<std::string, at::Tensor>>& targets);

std::string shape_text(at::IntArrayRef shape);  // "[3, 224, 224]"

}  // namespace axial::app
