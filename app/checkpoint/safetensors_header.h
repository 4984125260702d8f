// The JSON header of a safetensors file: parsing (bounded, strict) and printing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace axial::app {

struct TensorEntry {
  std::string name;
  std::string dtype;  // "F32", ...; not checked here
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, from the end of the header
};

struct Header {
  std::vector<TensorEntry> tensors;  // in the order of the file
  std::map<std::string, std::string> metadata;
};

// "" or what is wrong. Memory stays within a small multiple of text.size(): anything that the format does not
// have (other keys, nested lists, repeated names) ends the parse where it stands.
std::string parse_header(const std::string& text, Header* header);

// Throws std::invalid_argument for text that is not UTF-8.
std::string print_header(const Header& header);

}  // namespace axial::app
