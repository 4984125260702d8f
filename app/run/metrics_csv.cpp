#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include <fcntl.h>
#include <unistd.h>

#include "app/run/atomic_file.h"
#include "app/run/log.h"
#include "app/run/run_directory.h"
#include "app/run/run_error.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;

std::string quote(const std::string& value) {
  if (value.find_first_of(",\"\r\n") == std::string::npos) return value;
  std::string text = "\"";
  for (const char c : value) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

std::string join(const std::vector<std::string>& values) {
  std::string line;
  for (std::size_t i = 0; i < values.size(); ++i) line += (i > 0 ? "," : "") + quote(values[i]);
  return line + "\n";
}

struct Record {
  std::string raw;  // with its line end
  std::vector<std::string> fields;
};

// Records. What a killed writer left of a last one is dropped; a whole one whose line end an editor took away is not.
// unclosed: the fields of a record in which a quotation mark took in all lines to the end; none: there is none.
std::vector<Record> parse(const std::string& text, std::vector<std::string>& unclosed) {
  std::vector<Record> records;
  Record record;
  std::string field;
  bool quoted = false;
  for (const char c : text) {
    record.raw += c;
    if (c == '"') {
      // a doubled quote leaves and enters again; the second one is the character
      if (!quoted && record.raw.size() > 1 && record.raw[record.raw.size() - 2] == '"') field += '"';
      quoted = !quoted;
    } else if (!quoted && (c == ',' || c == '\n')) {
      record.fields.push_back(std::move(field));
      field.clear();
      if (c == '\n') {
        records.push_back(std::move(record));
        record = {};
      }
    } else if (quoted || c != '\r') {
      field += c;
    }
  }
  if (quoted && record.raw.find('\n') != std::string::npos) {
    unclosed = record.fields;
    unclosed.push_back(field);
  } else if (!quoted && !record.raw.empty() && !records.empty() &&
             record.fields.size() + 1 == records[0].fields.size() && !field.empty()) {
    record.fields.push_back(field);
    record.raw += '\n';
    records.push_back(std::move(record));
  }
  return records;
}

std::string rows_before(const fs::path& path, const std::vector<std::string>& columns, std::int64_t resume_at) {
  const auto fail = [&](const std::string& what) { throw RunError(path.string() + ": " + what); };
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) fail("is a folder, expected a file; move it away");
  if (fs::exists(status) && !fs::is_regular_file(status)) fail("is no ordinary file, expected one; move it away");
  if (!fs::exists(status)) return "";
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) fail("cannot be read: " + describe_error(errno) + "; move it away to start a new one");
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.bad()) fail("cannot be read");
  // Somebody's editor took them, or a full disk did.
  const auto note_missing = [&](std::int64_t last) {
    if (last + 1 >= resume_at) return;
    log::warning(path.string() + ": there is no row of " + columns[0] + " " + std::to_string(last + 1) +
                 (last + 2 < resume_at ? " to " + std::to_string(resume_at - 1) : "") + "; it goes on without");
  };
  std::vector<std::string> unclosed;
  const std::vector<Record> records = parse(text, unclosed);
  std::string expected = join(columns);
  if (records.empty() && expected.starts_with(text)) {  // empty, or its header was being written
    note_missing(0);
    return "";
  }
  if (records.empty() || records[0].fields != columns) {
    constexpr std::size_t kShown = 200;
    std::string found = records.empty() ? text.substr(0, kShown) : records[0].raw;
    if (found.size() > kShown) found.resize(kShown);
    while (!found.empty() && (found.back() == '\n' || found.back() == '\r')) found.pop_back();
    for (char& c : found) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
    }
    expected.pop_back();
    fail("expected the columns " + expected + ", found " + found + "; move the file away to start a new one");
  }

  if (!unclosed.empty()) {  // no harm where it began behind what is kept
    std::int64_t position = 0;
    const std::string& number = unclosed[0];
    const auto result = std::from_chars(number.data(), number.data() + number.size(), position);
    if (unclosed.size() < 2 || result.ec != std::errc() || position < resume_at) {
      fail("row " + std::to_string(records.size() + 1) +
           ": a quotation mark is not closed; take it out, or move the file away to start a new one");
    }
  }

  std::string kept;
  std::int64_t before = 0;
  for (std::size_t i = 1; i < records.size(); ++i) {
    const auto bad = [&](const std::string& what) { fail("row " + std::to_string(i + 1) + ": " + what); };
    const auto& fields = records[i].fields;
    if (fields.size() != columns.size()) {
      bad("expected " + std::to_string(columns.size()) + " values, found " + std::to_string(fields.size()));
    }
    const std::string& number = fields[0];
    std::int64_t position = 0;
    const auto result = std::from_chars(number.data(), number.data() + number.size(), position);
    if (result.ec != std::errc() || result.ptr != number.data() + number.size())
      bad("expected an integer as " + columns[0] + ", found '" + number + "'");
    if (position >= resume_at) continue;
    if (position <= before)
      bad("expected a number above " + std::to_string(before) + " as " + columns[0] + ", found " + number);
    before = position;
    kept += records[i].raw;
  }
  note_missing(before);
  return kept;
}

}  // namespace

MetricsCsv::MetricsCsv(fs::path path, const std::vector<std::string>& columns, std::int64_t resume_at,
                       const fs::path& from)
    : path_(std::move(path)), columns_(columns.size()) {
  const std::string text =
      join(columns) + (resume_at >= 0 ? rows_before(from.empty() ? path_ : from, columns, resume_at) : "");
  // Rows that the run is about to train anew are kept until there is one: it may come to none.
  std::error_code ignored;
  if (resume_at >= 0 && from.empty() && fs::file_size(behind_links(path_), ignored) > text.size() && !ignored) {
    pending_ = text;
  } else {
    replace(text);
  }
}

void MetricsCsv::replace(const std::string& text) const {
  try {
    AtomicFile file(behind_links(path_));  // which append follows, too
    file.write(text);
    file.commit();
  } catch (const FileError& error) {
    throw RunError(error.what());
  }
}

void MetricsCsv::append(const std::vector<std::string>& row) {
  if (row.size() != columns_) throw std::invalid_argument("MetricsCsv: a row has another length than the header");
  const auto fail = [&](int error) {
    throw RunError(path_.string() + ": cannot be written: " + describe_error(error));
  };
  if (!pending_.empty()) {
    replace(pending_ + join(row));
    pending_.clear();
    return;
  }
  // Opened for each row: nothing is buffered, and the file may be moved or edited meanwhile.
  const int file = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) fail(errno);
  const int error = append_all(file, join(row));
  ::close(file);
  if (error != 0) fail(error);
}

}  // namespace axial::app
