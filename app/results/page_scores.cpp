// Scores as parts of a page: a table of classes, a confusion matrix.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "app/results/page.h"
#include "app/results/text.h"

namespace axial::app {
namespace {

constexpr std::size_t kMostInMatrix = 30;  // classes; of more the pairs are listed
constexpr std::size_t kMostWithNumbers = 20, kMostPairs = 25, kMostWithoutScroll = 40;

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[320];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

// White to blue on the diagonal, white to orange off it.
std::string colour(double share, bool diagonal) {
  const double full[3] = {diagonal ? 0.0 : 213.0, diagonal ? 114.0 : 94.0, diagonal ? 178.0 : 0.0};
  // The root shows small shares, which are what one looks for off the diagonal.
  const double weight = std::sqrt(share);
  int rgb[3];
  for (int i = 0; i < 3; ++i) rgb[i] = static_cast<int>(std::lround(255 + (full[i] - 255) * weight));
  return format("#%02x%02x%02x", static_cast<unsigned>(rgb[0]), static_cast<unsigned>(rgb[1]),
                static_cast<unsigned>(rgb[2]));
}

std::string pairs_html(const Scores& s) {
  struct Pair {
    std::int64_t count;
    std::size_t label, predicted;
  };
  std::vector<Pair> pairs;
  for (std::size_t a = 0; a < s.classes.size(); ++a) {
    for (std::size_t b = 0; b < s.classes.size(); ++b) {
      if (a != b && s.confusion[a][b] > 0) pairs.push_back({s.confusion[a][b], a, b});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.count > b.count; });
  if (pairs.size() > kMostPairs) pairs.resize(kMostPairs);
  std::string text =
      "<p class=\"soft\">" + std::to_string(s.classes.size()) +
      " classes are too many for a matrix; these were mistaken most often.</p>\n<table><tr><th>is</th><th>"
      "taken for</th><th class=\"n\">images</th></tr>\n";
  for (const Pair& p : pairs) {
    text += "<tr><td>" + html(s.classes[p.label].name) + "</td><td>" + html(s.classes[p.predicted].name) +
            "</td><td class=\"n\">" + std::to_string(p.count) + "</td></tr>\n";
  }
  return text + "</table>\n";
}

}  // namespace

std::string classes_html(const Scores& s) {
  const auto cell = [](const std::string& value) { return "<td class=\"n\">" + value + "</td>"; };
  std::string text = s.classes.size() > kMostWithoutScroll ? "<div class=\"scroll\">" : "<div>";
  text +=
      "<table><tr><th>class</th><th>recall (accuracy within the class)</th><th class=\"n\">recall</th><th "
      "class=\"n\">"
      "precision</th><th class=\"n\">F1</th><th class=\"n\">images</th></tr>\n";
  for (const ClassScore& c : s.classes) {
    const double share = std::isnan(c.recall) ? 0 : c.recall;
    text += "<tr><td>" + html(c.name) +
            "</td><td><span class=\"track\"><span class=\"bar\" style=\"width:" + format("%.1f%%", 100 * share) +
            "\"></span></span></td>" + cell(percent_text(c.recall)) + cell(percent_text(c.precision)) +
            cell(percent_text(c.f1)) + cell(std::to_string(c.support)) + "</tr>\n";
  }
  return text + "</table></div>\n";
}

std::string confusion_html(const Scores& s) {
  const std::size_t n = s.classes.size();
  if (n > kMostInMatrix) return pairs_html(s);
  std::size_t longest = 4;
  for (const ClassScore& c : s.classes) longest = std::max(longest, columns_of(c.name));
  longest = std::min<std::size_t>(longest, 24);
  const bool numbers = n <= kMostWithNumbers;
  const double cell = numbers ? 46 : 26, left = 30 + 7.2 * static_cast<double>(longest),
               top = 24 + 5.4 * static_cast<double>(longest);
  const double side = cell * static_cast<double>(n), width = left + side + 5.4 * static_cast<double>(longest),
               height = top + side + 8;
  // At its own size: stretched over the page the numbers would be as large as headings.
  std::string text =
      "<p class=\"soft\">Rows: what the images are; columns: what they were taken for. The colour is the share "
      "of the row.</p>\n<div class=\"wide\">" +
      format(
          "<svg style=\"width:%.0fpx\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
          "aria-label=\"Confusion matrix\">\n",
          width, width, height);
  for (std::size_t row = 0; row < n; ++row) {
    const double y = top + cell * static_cast<double>(row);
    text +=
        format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">", left - 8, y + cell / 2 + 4) +
        html(columns_of(s.classes[row].name) > longest ? padded(s.classes[row].name, longest) : s.classes[row].name) +
        "</text>\n";
    const double x_label = left + cell * (static_cast<double>(row) + 0.5);
    text +=
        format("<text transform=\"translate(%.1f %.1f) rotate(-45)\">", x_label, top - 8) +
        html(columns_of(s.classes[row].name) > longest ? padded(s.classes[row].name, longest) : s.classes[row].name) +
        "</text>\n";
    for (std::size_t column = 0; column < n; ++column) {
      const std::int64_t count = s.confusion[row][column];
      const auto support = static_cast<double>(s.classes[row].support);
      const double share = support > 0 ? static_cast<double>(count) / support : 0,
                   x = left + cell * static_cast<double>(column);
      text += format("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" stroke=\"#fff\"><title>",
                     x, y, cell, cell, count == 0 ? "#f6f7f9" : colour(share, row == column).c_str()) +
              html(s.classes[row].name) + " taken for " + html(s.classes[column].name) + ": " +
              std::to_string(count) + "</title></rect>";
      if (numbers && count > 0) {
        // style, since the page's rule for text would win over an attribute
        text += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" style=\"fill:%s\">", x + cell / 2,
                       y + cell / 2 + 4, std::sqrt(share) > 0.65 ? "#fff" : "#1b2228") +
                std::to_string(count) + "</text>";
      }
    }
    text += '\n';
  }
  return text + "</svg></div>\n";
}

}  // namespace axial::app
