// `axial report`: one HTML page that needs nothing but itself. Knows no libtorch.
#pragma once

#include <string>
#include <vector>

#include "app/results/runs.h"
#include "app/results/scores.h"

namespace axial::app {

// A test image that was taken for another class.
struct Mistake {
  std::string png;     // bytes of the file
  bool small = false;  // shown larger than it is: each pixel a square
  std::int64_t index = 0;
  std::string label, predicted;
  double confidence = 0;
};

// A test image and where the model looks (model/attention_map.h). Maps lie over the picture; `peak`: their greatest
// value as a multiple of the mean.
struct Attended {
  std::int64_t index = 0;
  bool small = false;  // the picture, as above
  std::string label, predicted;
  double confidence = 0;
  std::string picture, both, rows, columns;  // bytes of PNG files
  double both_peak = 0, rows_peak = 0, columns_peak = 0;
};

// What the test set says of a run's best checkpoint.
struct RunResults {
  std::string problem;  // why there is nothing, in one line; empty: all is there
  std::string checkpoint, weights;
  Scores scores;
  double loss = 0;
  std::int64_t mistakes_in_all = 0;
  std::vector<Mistake> mistakes;  // the surest first
  std::vector<Attended> attended;
};

struct ReportedRun {
  std::string name;  // as the page calls it
  RunSummary summary;
  RunResults results;
};

std::string report_page(const std::vector<ReportedRun>& runs, const std::string& date);

// Parts of it.
std::string confusion_html(const Scores& scores);
std::string classes_html(const Scores& scores);

}  // namespace axial::app
