// MNIST's two files: the first byte of the input says how much of it is the labels' file.
#include <algorithm>

#include "data/error.h"
#include "data/readers.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace axial;
  fuzz::Input input(data, size);
  const std::size_t labels = std::min<std::size_t>(input.byte(), input.size());
  const fuzz::MemoryFile label_file(input.data(), labels), image_file(input.data() + labels, input.size() - labels);
  static const fuzz::Links folder;
  folder.turn("train-labels-idx1-ubyte", label_file);
  folder.turn("train-images-idx3-ubyte", image_file);
  static const data::Source source{"set", "", {}, "", std::vector<std::string>(10, "class"), {}, {}, {}, {}};
  try {
    const data::Dataset set = data::read_idx_set(source, folder.path(), data::Split::kTrain);
    fuzz::hold(set.images.size(0) == set.labels.size(0), "as many labels as images");
  } catch (const data::DataError& error) {
    fuzz::one_line(error);
  }
  return 0;
}
