// `axial bench --data`: the pipeline that feeds training, against libjpeg-turbo alone on the same files and cores.
// Knows no libtorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace axial::app::bench {

struct DecodingOptions {
  std::filesystem::path data;  // a folder whose JPEG files are taken, in any depth; kGenerated: 500 are made for it
  std::int64_t height = 224, width = 224;
  std::int64_t workers = 0;  // threads of both sides; 0: one for each core
  int repeats = 5;           // passes over all files, of both sides in turn
};
inline constexpr const char* kGenerated = "generated";

struct Decoding {
  std::int64_t files = 0, others = 0;  // others: no JPEG, left out
  double megabytes = 0, megapixels = 0;
  std::int64_t height = 0, width = 0, workers = 0;
  // images/s of each pass, sorted: read, decoded, cut and resized; read and decoded
  std::vector<double> pipeline, plain;
  // milliseconds of processor time an image, sorted: what a busy machine does not blur
  std::vector<double> pipeline_work, plain_work;
  double ratio() const;       // of the medians of the rates
  double work_ratio() const;  // of plain's processor time to the pipeline's
};

// Throws data::DataError naming the file that is damaged, RunError where none can be made.
Decoding measure_decoding(const DecodingOptions& options);

std::string decoding_table(const Decoding& d, const std::string& processor);
nlohmann::ordered_json decoding_json(const Decoding& d, const std::string& processor, const std::string& date);

}  // namespace axial::app::bench
