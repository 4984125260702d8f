#include "app/checkpoint/safetensors_header.h"

#include <limits>
#include <set>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace axial::app {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDimensions = 64;

// A state machine over the parser's events; no tree of JSON values is ever built.
class HeaderParser : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderParser(Header* header) : header_(header) {}

  const std::string& error() const { return error_; }

  bool null() override { return fail("found null"); }
  bool boolean(bool) override { return fail("found a boolean"); }
  bool number_float(number_float_t, const string_t& text) override { return fail("found the number " + text); }
  bool number_integer(number_integer_t value) override { return fail("found the number " + std::to_string(value)); }
  bool binary(binary_t&) override { return fail("found binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return fail("found a dimension of " + std::to_string(value));
      if (entry_.shape.size() == kMaxDimensions) return fail("found more than 64 dimensions");
      entry_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ == State::kOffsets && offsets_ < 2) {
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return fail("found the number " + std::to_string(value));
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      header_->metadata[key_] = value;
      return true;
    }
    if (state_ == State::kTensor && key_ == "dtype") {
      entry_.dtype = value;
      return true;
    }
    return fail("found the text '" + value.substr(0, 40) + "'");
  }

  bool start_object(std::size_t) override {
    if (state_ == State::kStart) {
      state_ = State::kRoot;
    } else if (state_ == State::kRoot && key_ == "__metadata__") {
      state_ = State::kMetadata;
    } else if (state_ == State::kRoot) {
      entry_ = {};
      entry_.name = key_;
      fields_.clear();
      state_ = State::kTensor;
    } else {
      return fail("found a map");
    }
    return true;
  }

  bool key(string_t& value) override {
    if (state_ == State::kRoot) {
      if (!names_.insert(value).second) return fail_with("'" + value + "' stands twice");
    } else if (state_ == State::kMetadata) {
      if (header_->metadata.count(value) != 0) return fail_with("metadata '" + value + "' stands twice");
    } else {
      if (value != "dtype" && value != "shape" && value != "data_offsets")
        return fail_with("'" + entry_.name + "' has an unknown field '" + value.substr(0, 40) + "'");
      if (!fields_.insert(value).second) return fail_with("'" + entry_.name + "' has '" + value + "' twice");
    }
    key_ = value;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      if (fields_.size() != 3) return fail_with("'" + entry_.name + "' lacks one of dtype, shape, data_offsets");
      header_->tensors.push_back(std::move(entry_));
      state_ = State::kRoot;
    } else {
      state_ = state_ == State::kMetadata ? State::kRoot : State::kEnd;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || key_ == "dtype") return fail("found a list");
    state_ = key_ == "shape" ? State::kShape : State::kOffsets;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets && offsets_ != 2) return fail("found one offset");
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail_with("not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class State { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool fail_with(const std::string& message) {
    if (error_.empty()) error_ = message;
    return false;
  }

  bool fail(const std::string& found) {
    switch (state_) {
      case State::kStart:
      case State::kEnd:
        return fail_with("expected a map of tensors, " + found);
      case State::kRoot:
        return fail_with("expected a map for '" + key_ + "', " + found);
      case State::kMetadata:
        return fail_with("expected text for metadata '" + key_ + "', " + found);
      default:
        return fail_with("'" + entry_.name + "' has a wrong '" + key_ + "': " + found);
    }
  }

  Header* header_;
  State state_ = State::kStart;
  std::string key_, error_;
  std::set<std::string> names_, fields_;
  TensorEntry entry_;
  int offsets_ = 0;
};

// One JSON string; the strict handler throws for text that is not UTF-8.
std::string quote(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    throw std::invalid_argument("'" + text.substr(0, 40) + "' is not UTF-8");
  }
}

}  // namespace

std::string parse_header(const std::string& text, Header* header) {
  if (text.empty() || text[0] != '{') return "expected a map of tensors";
  // to the JSON parser a zero is the end, whatever follows
  if (text.find('\0') != std::string::npos) return "not valid JSON: a zero byte";
  HeaderParser parser(header);
  if (Json::sax_parse(text, &parser)) return "";
  return parser.error().empty() ? "not valid JSON" : parser.error();
}

std::string print_header(const Header& header) {
  std::string text = "{";
  if (!header.metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : header.metadata)
      text += (text.back() == '{' ? "" : ",") + quote(key) + ":" + quote(value);
    text += "}";
  }
  for (const TensorEntry& entry : header.tensors) {
    if (text.size() > 1) text += ",";
    text += quote(entry.name) + ":{\"dtype\":\"" + entry.dtype + "\",\"shape\":[";
    for (std::size_t i = 0; i < entry.shape.size(); ++i) text += (i > 0 ? "," : "") + std::to_string(entry.shape[i]);
    text += "],\"data_offsets\":[" + std::to_string(entry.begin) + "," + std::to_string(entry.end) + "]}";
  }
  return text + "}";
}

}  // namespace axial::app
