// YAML text as a plain tree with line numbers. Built from yaml-cpp's parser events rather than from its
// nodes: events keep what the checks need (repeated keys, quoting, documents after the first, aliases that
// contain themselves), and scalars stay the text that was written.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace axial::app {

// Where text came from: a file (errors say "file:line") or the command line (errors say just that).
struct Origin {
  std::string name;
  bool lines = true;
  std::string at(int line) const { return lines && line > 0 ? name + ":" + std::to_string(line) : name; }
};

struct Node;
using NodePtr = std::shared_ptr<const Node>;

struct Entry {
  std::string key;
  int line;  // of the key, from 1
  NodePtr value;
};

struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  bool quoted = false;         // kScalar: 'text', "text", | or >
  std::string text;            // kScalar: as written, without quotes
  std::vector<NodePtr> items;  // kList
  std::vector<Entry> entries;  // kMap, in order, no key twice
};

// Text of the user's in an error: its beginning.
std::string excerpt(const std::string& text);

// One document. Empty text gives nullptr. Throws ConfigError with origin and line.
NodePtr parse_yaml(const std::string& text, const Origin& origin);

}  // namespace axial::app
