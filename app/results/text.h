// Text in tables and files.
#pragma once

#include <cstddef>
#include <string>

namespace axial::app {

// Characters of UTF-8 text: what a table counts as columns.
std::size_t columns_of(const std::string& text);

// In exactly so many columns: cut (with a mark) or filled up with blanks.
std::string padded(const std::string& text, std::size_t columns);

// Names may hold anything, and a terminal would obey it: control characters become question marks.
std::string plain_text(std::string text, bool keep_lines = false);

// A field of a CSV file (RFC 4180): in quotes where it needs them.
std::string csv_field(const std::string& text);

// For HTML and SVG, in text and in quoted attributes; what is not UTF-8 becomes U+FFFD.
std::string html(const std::string& text);

// RFC 4648, with padding.
std::string base64(const std::string& bytes);

// "12.5 %"; "-" for NaN.
std::string percent_text(double fraction, int decimals = 2);

}  // namespace axial::app
