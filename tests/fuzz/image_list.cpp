// CSV lists of images.
#include <algorithm>

#include "data/listing.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace axial;
  const fuzz::MemoryFile file(data, size);
  for (const bool outside : {false, true}) {
    try {
      const data::Listing listing = data::read_list(file.path(), outside);
      for (const data::Listed& image : listing.images) {
        fuzz::hold(data::is_name(image.label), "a class has a name");
        const bool leaves = image.name.rfind("..", 0) == 0 && (image.name.size() == 2 || image.name[2] == '/');
        fuzz::hold(outside || (!leaves && image.name[0] != '/'), "a list stays in its folder");
      }
      const auto [train, test] = data::divide(listing.images, 0.3);
      fuzz::hold(train.size() + test.size() == listing.images.size(), "a division loses nothing");
      std::vector<std::string> labels;
      for (const data::Listed& image : listing.images) labels.push_back(image.label);
      std::sort(labels.begin(), labels.end(), data::natural_less);
    } catch (const data::DataError& error) {
      fuzz::one_line(error);
    }
  }
  return 0;
}
