// CIFAR-10's and CIFAR-100's records.
#include "data/error.h"
#include "data/readers.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace axial;
  fuzz::Input input(data, size);
  const bool fine = input.byte() % 2 == 1;
  const fuzz::MemoryFile file(input.data(), input.size());
  static const fuzz::Links folder;
  folder.turn(fine ? "test.bin" : "test_batch.bin", file);
  static const data::Source source{"set", "", {}, "", std::vector<std::string>(10, "class"), {}, {}, {}, {}};
  try {
    const data::Dataset set = fine ? data::read_cifar100(source, folder.path(), data::Split::kTest)
                                   : data::read_cifar10(source, folder.path(), data::Split::kTest);
    fuzz::hold(set.images.size(0) == set.labels.size(0), "as many labels as images");
  } catch (const data::DataError& error) {
    fuzz::one_line(error);
  }
  return 0;
}
