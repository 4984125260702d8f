// Lists of images in CSV files.
#include <algorithm>
#include <unordered_map>

#include "data/files.h"
#include "data/listing.h"

namespace axial::data {
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 32;

struct Record {
  std::vector<std::string> fields;
  std::int64_t line = 0;  // of its first character, from 1
};

[[noreturn]] void fail_at(const fs::path& file, std::int64_t line, const std::string& what) {
  throw DataError(file.string() + ":" + std::to_string(line) + ": " + what);
}

// RFC 4180; lines may end with LF or CR LF, and an empty line is none.
std::vector<Record> parse(const fs::path& file, const std::vector<std::uint8_t>& text) {
  std::vector<Record> records;
  std::size_t at =
      text.size() >= 3 && text[0] == 0xef && text[1] == 0xbb && text[2] == 0xbf ? 3 : 0;  // byte order mark
  std::int64_t line = 1;
  while (at < text.size()) {
    Record record;
    record.line = line;
    bool more = true;
    while (more) {
      std::string field;
      if (at < text.size() && text[at] == '"') {
        ++at;
        for (;; ++at) {
          if (at >= text.size()) fail_at(file, record.line, "a quoted field does not end");
          if (text[at] == '\n') ++line;
          if (text[at] != '"') {
            field += static_cast<char>(text[at]);
          } else if (at + 1 < text.size() && text[at + 1] == '"') {
            field += static_cast<char>(text[++at]);
          } else {
            break;
          }
        }
        ++at;
        if (at < text.size() && text[at] == '\r' && at + 1 < text.size() && text[at + 1] == '\n') ++at;
        if (at < text.size() && text[at] != ',' && text[at] != '\n')
          fail_at(file, line, "text after the closing quote of a field, expected a comma");
      } else {
        for (; at < text.size() && text[at] != ',' && text[at] != '\n'; ++at) {
          if (text[at] == '"') fail_at(file, line, "a quote within a field, expected the whole field in quotes");
          field += static_cast<char>(text[at]);
        }
        if (!field.empty() && field.back() == '\r' && (at >= text.size() || text[at] == '\n')) field.pop_back();
      }
      record.fields.push_back(std::move(field));
      more = at < text.size() && text[at] == ',';
      if (at < text.size() && text[at] == '\n') ++line;
      ++at;
    }
    if (record.fields.size() > 1 || !record.fields[0].empty()) records.push_back(std::move(record));
  }
  return records;
}

struct Columns {
  std::size_t path = 0, label = 1, count = 2;
  bool named = false;
};

// A first record that holds the words path and label is a header, whose other columns are not looked at.
Columns columns_of(const Record& first) {
  const auto find = [&](const char* name) {
    return static_cast<std::size_t>(std::find_if(first.fields.begin(), first.fields.end(),
                                                 [&](std::string field) {
                                                   for (char& c : field)
                                                     c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
                                                   return field == name;
                                                 }) -
                                    first.fields.begin());
  };
  const std::size_t path = find("path"), label = find("label"), count = first.fields.size();
  if (path == count || label == count) return {};
  return {path, label, count, true};
}

}  // namespace

Listing read_list(const fs::path& file, bool outside) {
  InputFile input(file);
  if (input.compressed()) fail(file, "is compressed with gzip, expected CSV as it is");  // a bomb, perhaps
  const std::vector<Record> records = parse(file, input.read(kMostBytes));
  const fs::path folder = file.parent_path();
  const Columns columns = records.empty() ? Columns{} : columns_of(records[0]);
  Listing listing;
  std::unordered_map<std::string, std::string> classes;  // by path
  for (std::size_t i = columns.named ? 1 : 0; i < records.size(); ++i) {
    const Record& record = records[i];
    if (record.fields.size() != columns.count) {
      fail_at(
          file, record.line,
          "found " + std::to_string(record.fields.size()) + " fields, expected " +
              (columns.named ? std::to_string(columns.count) + " as in the header" : std::string("2: path,label")));
    }
    const std::string& path = record.fields[columns.path];
    const std::string& label = record.fields[columns.label];
    if (path.empty()) fail_at(file, record.line, "an empty path");
    if (path.find('\0') != std::string::npos) fail_at(file, record.line, "the path holds a zero byte");
    if (label.empty() || !is_name(label) || label.front() == ' ' || label.back() == ' ') {
      fail_at(file, record.line,
              "the label '" + (is_name(label) ? label : "") +
                  "' must be UTF-8 without control characters, not empty, without blanks around it");
    }
    const fs::path normal = fs::path(path).lexically_normal();
    if (!outside && (normal.is_absolute() || *normal.begin() == "..")) {
      fail_at(file, record.line,
              path + ": " + (normal.is_absolute() ? "an absolute path" : "leaves the list's folder") +
                  "; data.list_outside=true accepts it");
    }
    const auto [known, fresh] = classes.emplace(normal.generic_string(), label);
    if (!fresh && known->second != label) {
      fail_at(file, record.line, path + ": of class '" + label + "', but '" + known->second + "' on a line before");
    }
    listing.images.push_back({(folder / normal).string(), label, normal.generic_string()});
  }
  if (listing.images.empty()) fail(file, "lists no images, expected lines of path,label");
  return listing;
}

}  // namespace axial::data
