#include "app/results/text.h"

#include <cmath>
#include <cstdint>
#include <cstdio>

namespace axial::app {
namespace {

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Length of the UTF-8 character that starts at i; 0 where none does.
std::size_t character_at(const std::string& text, std::size_t i) {
  const auto first = static_cast<unsigned char>(text[i]);
  const std::size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || i + length > text.size()) return 0;
  for (std::size_t k = 1; k < length; ++k) {
    if (!continues(text[i + k])) return 0;
  }
  return length;
}

}  // namespace

std::size_t columns_of(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += continues(c) ? 0 : 1;
  return count;
}

std::string padded(const std::string& text, std::size_t columns) {
  const std::size_t has = columns_of(text);
  if (has <= columns) return text + std::string(columns - has, ' ');
  std::string cut;
  std::size_t count = 0;
  for (const char c : text) {
    if (!continues(c) && ++count >= columns) break;
    cut += c;
  }
  return cut + "~";
}

std::string plain_text(std::string text, bool keep_lines) {
  for (char& c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    if (control && !(keep_lines && c == '\n')) c = '?';
  }
  return text;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string html(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_at(text, i);
    const char c = text[i];
    if (length == 0) {
      result += "\xef\xbf\xbd";
    } else if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '"') {
      result += "&quot;";
    } else {
      result.append(text, i, length);
    }
    i += length == 0 ? 1 : length;
  }
  return result;
}

std::string base64(const std::string& bytes) {
  static const char* const kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t k) -> std::uint32_t {
      return i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0;
    };
    const std::uint32_t word = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (int k = 0; k < 4; ++k) text += kDigits[word >> (18 - 6 * k) & 63];
  }
  for (std::size_t rest = (3 - bytes.size() % 3) % 3, k = 0; k < rest; ++k) text[text.size() - 1 - k] = '=';
  return text;
}

std::string percent_text(double fraction, int decimals) {
  if (std::isnan(fraction)) return "-";
  char text[40];
  std::snprintf(text, sizeof text, "%.*f %%", decimals, 100 * fraction);
  return text;
}

}  // namespace axial::app
