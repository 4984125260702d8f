#include "tests/stress/compare.h"

#include <cstring>
#include <map>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>

#include "app/checkpoint/safetensors_header.h"
#include "tests/stress/child.h"

namespace axial::stress {

namespace fs = std::filesystem;

namespace {

struct Content {
  std::map<std::string, std::string> tensors;  // type and bytes
  nlohmann::json progress = nlohmann::json::object();
};

std::optional<Content> read(const fs::path& path) {
  const std::string bytes = read_file(path);
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - sizeof length) return std::nullopt;
  app::Header header;
  if (!app::parse_header(bytes.substr(sizeof length, length), &header).empty()) return std::nullopt;
  const std::string data = bytes.substr(sizeof length + length);
  Content content;
  for (const app::TensorEntry& entry : header.tensors) {
    if (entry.end > data.size()) return std::nullopt;
    content.tensors[entry.name] = entry.dtype + data.substr(entry.begin, entry.end - entry.begin);
  }
  const auto progress = header.metadata.find("axial.progress");
  if (progress == header.metadata.end()) return std::nullopt;
  content.progress = nlohmann::json::parse(progress->second);
  content.progress.erase("train_seconds");
  content.progress.erase("epoch_seconds");
  return content;
}

// Without the two columns of time.
std::string rows(const fs::path& run) {
  std::string result;
  std::istringstream text(read_file(run / "metrics.csv"));
  for (std::string line; std::getline(text, line);) {
    for (int i = 0; i < 2; ++i) line.resize(std::min(line.size(), line.rfind(',')));
    result += line + "\n";
  }
  return result;
}

}  // namespace

std::string difference(const fs::path& run, const fs::path& other) {
  const auto a = read(run / "checkpoints" / "last.safetensors"), b = read(other / "checkpoints" / "last.safetensors");
  if (!a || !b) return "no complete last.safetensors";
  if (a->tensors.size() < 20 || a->tensors.size() != b->tensors.size()) {
    return std::to_string(a->tensors.size()) + " and " + std::to_string(b->tensors.size()) + " tensors";
  }
  for (const auto& [name, bytes] : a->tensors) {
    const auto found = b->tensors.find(name);
    if (found == b->tensors.end()) return name + " is missing";
    if (found->second != bytes) return name + " differs";
  }
  if (a->progress != b->progress) return "progress: " + a->progress.dump() + " and " + b->progress.dump();
  if (rows(run) != rows(other)) return "metrics.csv differs";
  return "";
}

long long epochs_done(const fs::path& checkpoint) {
  const auto content = read(checkpoint);
  return content ? content->progress.at("epoch").get<long long>() : -1;
}

}  // namespace axial::stress
