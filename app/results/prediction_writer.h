// Predictions as lines: for people, for spreadsheets, for programs.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace axial::app {

struct RankedClass {
  std::string name;
  double probability = 0;
};

// text:  input, class, probability, with tabs between; a line for each class of each input
// csv:   the same with a header and a rank from 1: input,rank,class,probability
// jsonl: a line for each input: {"input":"a.png","classes":[{"class":"shoe","probability":0.91}]}
// A control character in an input's name becomes ? in text, which has no way to write it.
class PredictionWriter {
 public:
  PredictionWriter(std::ostream& out, const std::string& format);
  void write(const std::string& input, const std::vector<RankedClass>& classes);  // the likeliest first
  void flush();

 private:
  std::ostream& out_;
  std::string format_;
};

}  // namespace axial::app
