#include "app/results/prediction_writer.h"

#include <cstdio>
#include <ostream>

#include "app/commands/result.h"
#include "app/results/text.h"

namespace axial::app {
namespace {

std::string number(double probability, int decimals) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*f", decimals, probability);
  return text;
}

}  // namespace

PredictionWriter::PredictionWriter(std::ostream& out, const std::string& format) : out_(out), format_(format) {
  if (format_ == "csv") out_ << "input,rank,class,probability\n";
}

void PredictionWriter::write(const std::string& input, const std::vector<RankedClass>& classes) {
  if (format_ == "jsonl") {
    Json line = {{"input", input}, {"classes", Json::array()}};
    for (const RankedClass& c : classes) {
      line["classes"].push_back({{"class", c.name}, {"probability", rounded(c.probability, 6)}});
    }
    out_ << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    return;
  }
  int rank = 0;
  for (const RankedClass& c : classes) {
    ++rank;
    if (format_ == "csv") {
      out_ << csv_field(input) << ',' << rank << ',' << csv_field(c.name) << ',' << number(c.probability, 6) << '\n';
    } else {
      out_ << plain_text(input) << '\t' << plain_text(c.name) << '\t' << number(c.probability, 4) << '\n';
    }
  }
}

void PredictionWriter::flush() { out_.flush(); }

}  // namespace axial::app
