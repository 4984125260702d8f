// How good a classifier is, from what it said of each sample. Knows no libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/commands/result.h"

namespace axial::app {

struct Prediction {
  std::int64_t label = 0, predicted = 0;
  std::int64_t rank = 0;  // of the label among all classes, from 0; of equals the first comes first
  double confidence = 0;  // probability of the predicted class
  double label_probability = 0;
};

// Of one class; NaN where nothing stands below the fraction line.
struct ClassScore {
  std::string name;
  std::int64_t support = 0;    // samples of the class
  std::int64_t predicted = 0;  // samples that were taken for it
  std::int64_t correct = 0;
  double precision = 0;  // correct / predicted
  double recall = 0;     // correct / support: the accuracy within the class
  double f1 = 0;         // 2 correct / (support + predicted)
};

struct CalibrationBin {
  double low = 0, high = 0;  // confidences in (low, high]
  std::int64_t count = 0;
  double accuracy = 0, confidence = 0;  // means; 0 in an empty bin
};

struct Scores {
  std::int64_t samples = 0;
  double top1 = 0, top5 = 0;  // fractions; top5 is NaN where there are no more than five classes
  double ece = 0;  // expected calibration error: sum over bins of count / samples * |accuracy - confidence|
  std::vector<CalibrationBin> bins;
  // Means over the classes that have samples, with 0 for a precision or F1 that is not defined.
  double macro_precision = 0, macro_recall = 0, macro_f1 = 0;
  std::vector<ClassScore> classes;
  std::vector<std::vector<std::int64_t>> confusion;  // [label][predicted]
};

// Confidences are sorted into bins of equal width (Guo et al. 2017), 15 as usual.
inline constexpr int kCalibrationBins = 15;
Scores score(const std::vector<Prediction>& predictions, const std::vector<std::string>& classes);

// What of the scores goes into a file. NaN becomes null.
Json scores_json(const Scores& scores);

// Per class and in all, for people: a line each, without line ends. Of many classes only the worst (by F1).
std::vector<std::string> scores_table(const Scores& scores);

}  // namespace axial::app
