#include "app/results/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "app/results/text.h"

namespace axial::app {
namespace {

constexpr double kWidth = 600, kHeight = 300;                       // of the drawing, in its own units
constexpr double kLeft = 64, kRight = 14, kTop = 16, kBottom = 44;  // around the axes
constexpr std::size_t kMostDots = 60;                               // more would hide the line

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

// "0.001", "2e-05", "1.5": as short as it reads well.
std::string short_number(double value) { return format("%.4g", value); }

struct Range {
  double low = 0, high = 0;
  bool any = false;
  void take(double value) {
    if (!std::isfinite(value)) return;
    low = any ? std::min(low, value) : value;
    high = any ? std::max(high, value) : value;
    any = true;
  }
};

class Plot {
 public:
  Plot(const Chart& chart, std::vector<double> x_ticks, std::vector<double> y_ticks)
      : chart_(chart), x_ticks_(std::move(x_ticks)), y_ticks_(std::move(y_ticks)) {}

  std::string svg() const {
    std::string text = format("<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"", kWidth, kHeight) +
                       html(chart_.title) + "\">\n";
    for (const double tick : y_ticks_) {
      text += format("<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", kLeft, kWidth - kRight,
                     y(tick), y(tick)) +
              format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">", kLeft - 8, y(tick) + 4) + label(tick) +
              "</text>\n";
    }
    for (const double tick : x_ticks_) {
      text += format("<line class=\"tick\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x(tick), x(tick),
                     kHeight - kBottom, kHeight - kBottom + 5) +
              format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", x(tick), kHeight - kBottom + 19) +
              short_number(tick) + "</text>\n";
    }
    text += format("<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", kLeft, kWidth - kRight,
                   kHeight - kBottom, kHeight - kBottom);
    text +=
        format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", (kLeft + kWidth - kRight) / 2, kHeight - 6) +
        html(chart_.x_name) + "</text>\n";
    for (const Series& series : chart_.series) text += line(series);
    return text + "</svg>\n";
  }

 private:
  double x(double value) const {
    return kLeft + (value - x_ticks_.front()) / (x_ticks_.back() - x_ticks_.front()) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kHeight - kBottom -
           (value - y_ticks_.front()) / (y_ticks_.back() - y_ticks_.front()) * (kHeight - kTop - kBottom);
  }
  std::string label(double value) const {
    return chart_.percent ? short_number(100 * value) + " %" : short_number(value);
  }

  std::string line(const Series& series) const {
    std::string path, dots;
    bool open = false;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!std::isfinite(series.y[i])) {
        open = false;
        continue;
      }
      const double px = x(series.x[i]), py = y(series.y[i]);
      path += format("%s%.1f %.1f", open ? "L" : "M", px, py);
      open = true;
      if (series.x.size() > kMostDots) continue;
      dots += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"%s\"><title>", px, py, series.dashed ? 2 : 3,
                     series.colour.c_str()) +
              html(series.name) + ", " + html(chart_.x_name) + " " + short_number(series.x[i]) + ": " +
              label(series.y[i]) + "</title></circle>";
    }
    if (path.empty()) return {};
    return format("<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s d=\"", series.colour.c_str(),
                  series.dashed ? " stroke-dasharray=\"5 4\"" : "") +
           path + "\"><title>" + html(series.name) + "</title></path>" + dots + "\n";
  }

  const Chart& chart_;
  std::vector<double> x_ticks_, y_ticks_;
};

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count) {
  if (high - low <= 1e-9 * std::max(std::abs(low), std::abs(high))) {  // the same but for roundings
    const double margin = low != 0 ? std::abs(low) * 0.1 : 1;
    low -= margin;
    high += margin;
  }
  const double rough = (high - low) / count, power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough / power <= 1 ? 1 : rough / power <= 2 ? 2 : rough / power <= 5 ? 5 : 10);
  // A little less than a step of slack: 0.30000000000000004 / 0.1 must not count as past 3.
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  std::vector<double> ticks;
  for (double i = first; i <= last; i += 1) ticks.push_back(i * step);
  if (ticks.size() < 2) ticks.push_back((last + 1) * step);
  return ticks;
}

std::string chart_svg(const Chart& chart) {
  Range xs, ys;
  for (const Series& series : chart.series) {
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!std::isfinite(series.y[i])) continue;
      xs.take(series.x[i]);
      ys.take(series.y[i]);
    }
  }
  if (!ys.any) return {};
  std::vector<double> x_ticks = nice_ticks(std::min(xs.low, 1.0), std::max(xs.high, 2.0), 8);
  // Epochs are whole, and there is none before the first.
  x_ticks.erase(std::remove_if(x_ticks.begin(), x_ticks.end(), [](double t) { return t != std::floor(t); }),
                x_ticks.end());
  const std::string svg = Plot(chart, x_ticks, nice_ticks(ys.low, ys.high, 5)).svg();
  return "<figure class=\"chart\"><figcaption>" + html(chart.title) + "</figcaption>\n" + svg + "</figure>\n";
}

}  // namespace axial::app
