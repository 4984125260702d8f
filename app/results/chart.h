// Line charts as SVG that stands in a page: no scripts, no fonts of its own.
#pragma once

#include <string>
#include <vector>

namespace axial::app {

struct Series {
  std::string name, colour;  // colour: "#0072b2"
  bool dashed = false;
  std::vector<double> x, y;  // of equal length; where y is not finite the line is broken
};

struct Chart {
  std::string title, x_name, y_name;
  bool percent = false;  // y is a fraction, shown in per cent
  std::vector<Series> series;
};

// Empty where there is nothing to draw. Values show where the pointer rests.
std::string chart_svg(const Chart& chart);

// Multiples of 1, 2 or 5 times a power of ten that cover [low, high] in about `count` steps.
std::vector<double> nice_ticks(double low, double high, int count);

}  // namespace axial::app
