#include "app/results/scores.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

#include "app/results/text.h"

namespace axial::app {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kMostRows = 40, kMostMixedUp = 5;

double ratio(double above, double below) { return below > 0 ? above / below : kUndefined; }
double or_zero(double value) { return std::isnan(value) ? 0 : value; }

std::string percent(double value) {
  if (std::isnan(value)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", 100 * value);
  return text;
}

std::string row(const std::string& name, std::size_t width, const ClassScore& c) {
  char numbers[120];
  std::snprintf(numbers, sizeof numbers, "  %9s  %6s  %6s  %8lld", percent(c.precision).c_str(),
                percent(c.recall).c_str(), percent(c.f1).c_str(), static_cast<long long>(c.support));
  return padded(name, width) + numbers;
}

void fill_bins(const std::vector<Prediction>& predictions, Scores* scores) {
  for (int i = 0; i < kCalibrationBins; ++i) {
    CalibrationBin bin;
    bin.low = static_cast<double>(i) / kCalibrationBins;
    bin.high = static_cast<double>(i + 1) / kCalibrationBins;
    scores->bins.push_back(bin);
  }
  for (const Prediction& p : predictions) {
    const double place = std::ceil(p.confidence * kCalibrationBins) - 1;
    CalibrationBin& bin = scores->bins[static_cast<std::size_t>(std::clamp(place, 0.0, kCalibrationBins - 1.0))];
    bin.count += 1;
    bin.accuracy += p.predicted == p.label ? 1 : 0;
    bin.confidence += p.confidence;
  }
  for (CalibrationBin& bin : scores->bins) {
    if (bin.count == 0) continue;
    scores->ece += std::abs(bin.accuracy - bin.confidence) / static_cast<double>(scores->samples);
    bin.accuracy /= static_cast<double>(bin.count);
    bin.confidence /= static_cast<double>(bin.count);
  }
}

}  // namespace

Scores score(const std::vector<Prediction>& predictions, const std::vector<std::string>& classes) {
  Scores scores;
  const std::size_t count = classes.size();
  scores.samples = static_cast<std::int64_t>(predictions.size());
  scores.confusion.assign(count, std::vector<std::int64_t>(count, 0));
  std::int64_t first = 0, fifth = 0;
  for (const Prediction& p : predictions) {
    scores.confusion[static_cast<std::size_t>(p.label)][static_cast<std::size_t>(p.predicted)] += 1;
    first += p.predicted == p.label ? 1 : 0;
    fifth += p.rank < 5 ? 1 : 0;
  }
  const auto samples = static_cast<double>(scores.samples);
  scores.top1 = ratio(static_cast<double>(first), samples);
  scores.top5 = count > 5 ? ratio(static_cast<double>(fifth), samples) : kUndefined;
  fill_bins(predictions, &scores);

  double with_samples = 0;
  for (std::size_t c = 0; c < count; ++c) {
    ClassScore s;
    s.name = classes[c];
    s.correct = scores.confusion[c][c];
    for (std::size_t other = 0; other < count; ++other) {
      s.support += scores.confusion[c][other];
      s.predicted += scores.confusion[other][c];
    }
    const auto correct = static_cast<double>(s.correct);
    s.precision = ratio(correct, static_cast<double>(s.predicted));
    s.recall = ratio(correct, static_cast<double>(s.support));
    s.f1 = ratio(2 * correct, static_cast<double>(s.support + s.predicted));
    if (s.support > 0) {
      with_samples += 1;
      scores.macro_precision += or_zero(s.precision);
      scores.macro_recall += s.recall;
      scores.macro_f1 += s.f1;
    }
    scores.classes.push_back(s);
  }
  scores.macro_precision = ratio(scores.macro_precision, with_samples);
  scores.macro_recall = ratio(scores.macro_recall, with_samples);
  scores.macro_f1 = ratio(scores.macro_f1, with_samples);
  return scores;
}

Json scores_json(const Scores& s) {
  Json classes = Json::array(), bins = Json::array();
  for (const ClassScore& c : s.classes) {
    classes.push_back({{"class", c.name},
                       {"precision", rounded(c.precision, 6)},
                       {"recall", rounded(c.recall, 6)},
                       {"f1", rounded(c.f1, 6)},
                       {"support", c.support},
                       {"predicted", c.predicted},
                       {"correct", c.correct}});
  }
  for (const CalibrationBin& bin : s.bins) {
    const bool empty = bin.count == 0;
    bins.push_back({{"low", rounded(bin.low, 6)},
                    {"high", rounded(bin.high, 6)},
                    {"count", bin.count},
                    {"accuracy", empty ? Json() : rounded(bin.accuracy, 6)},
                    {"confidence", empty ? Json() : rounded(bin.confidence, 6)}});
  }
  return {{"samples", s.samples},
          {"top1", rounded(s.top1, 6)},
          {"top5", rounded(s.top5, 6)},
          {"ece", rounded(s.ece, 6)},
          {"macro",
           {{"precision", rounded(s.macro_precision, 6)},
            {"recall", rounded(s.macro_recall, 6)},
            {"f1", rounded(s.macro_f1, 6)}}},
          {"classes", classes},
          {"confusion", s.confusion},
          {"calibration", bins}};
}

std::vector<std::string> scores_table(const Scores& s) {
  std::vector<std::size_t> order(s.classes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const bool some = order.size() > kMostRows;
  if (some) {
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return or_zero(s.classes[a].f1) < or_zero(s.classes[b].f1);
    });
    order.resize(kMostRows);
  }
  std::size_t width = 7;
  for (const std::size_t c : order) width = std::max(width, columns_of(s.classes[c].name));
  width = std::min<std::size_t>(width, 32);

  std::vector<std::string> lines;
  lines.push_back(padded("class", width) + "  precision  recall      f1   samples");
  for (const std::size_t c : order) lines.push_back(row(s.classes[c].name, width, s.classes[c]));
  if (some) {
    lines.push_back("(the worst " + std::to_string(kMostRows) + " of " + std::to_string(s.classes.size()) +
                    " classes by F1; --json FILE has all)");
  }
  ClassScore mean;
  mean.precision = s.macro_precision;
  mean.recall = s.macro_recall;
  mean.f1 = s.macro_f1;
  mean.support = s.samples;
  lines.push_back(row("mean", width, mean));
  lines.push_back("top1 " + percent(s.top1) + " %" + (std::isnan(s.top5) ? "" : ", top5 " + percent(s.top5) + " %") +
                  ", calibration error " + percent(s.ece) + " %");

  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t a = 0; a < s.confusion.size(); ++a) {
    for (std::size_t b = 0; b < s.confusion.size(); ++b) {
      if (a != b && s.confusion[a][b] > 0) pairs.emplace_back(a, b);
    }
  }
  const std::size_t shown = std::min(kMostMixedUp, pairs.size());
  const auto more = [&](const auto& x, const auto& y) {
    const std::int64_t left = s.confusion[x.first][x.second], right = s.confusion[y.first][y.second];
    return left != right ? left > right : x < y;
  };
  std::partial_sort(pairs.begin(), pairs.begin() + static_cast<std::ptrdiff_t>(shown), pairs.end(), more);
  std::string mixed;
  for (std::size_t i = 0; i < shown; ++i) {
    const auto [a, b] = pairs[i];
    mixed += (i == 0 ? "most often mistaken: " : ", ") + s.classes[a].name + " for " + s.classes[b].name + " (" +
             std::to_string(s.confusion[a][b]) + ")";
  }
  if (!mixed.empty()) lines.push_back(mixed);
  return lines;
}

}  // namespace axial::app
