#include "app/results/test_images.h"

#include <charconv>
#include <filesystem>

#include "app/run/log.h"
#include "app/train/build.h"
#include "app/train/checks.h"
#include "app/train/report.h"

namespace axial::app {

std::optional<std::int64_t> test_index(const std::string& input) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(input.data(), input.data() + input.size(), value);
  if (error != std::errc() || end != input.data() + input.size()) return std::nullopt;
  std::error_code ignored;
  if (!std::filesystem::exists(input, ignored)) return value;
  log::warning(input + ": taken as the file of that name, not as the test image of that number");
  return std::nullopt;
}

at::Tensor TestImages::get(std::int64_t index) {
  if (test_.size() == 0) {
    test_ = load_test(info_.config, info_.spec.classes);
    check_images(test_, info_.spec);
    log_notes(test_);
  }
  if (index < 0 || index >= test_.size()) {
    throw data::DataError(std::to_string(index) + ": no such test image (0 to " + std::to_string(test_.size() - 1) +
                          ")");
  }
  return data::image_of(test_, index);
}

}  // namespace axial::app
