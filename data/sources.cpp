// What is known of each published set before its files are opened.
#include "data/readers.h"

namespace axial::data {
namespace {

const char* const kIdxFiles =
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, with or "
    "without .gz";

std::vector<Source> make_sources() {
  // clang-format off
  return {
      {"fashion_mnist", "fashion-mnist", {"FashionMNIST/raw"},
       std::string("install the Debian package dataset-fashion-mnist, or give a folder with ") + kIdxFiles,
       {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"},
       {0.2860}, {0.3530}, idx_image_files, read_idx_set},
      {"mnist", "mnist", {"MNIST/raw"}, std::string("give a folder with ") + kIdxFiles,
       {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
       {0.1307}, {0.3081}, idx_image_files, read_idx_set},
      {"cifar10", "cifar-10", {"cifar-10-batches-bin"},
       "give the folder of CIFAR-10's binary version, with data_batch_1.bin to data_batch_5.bin and test_batch.bin",
       {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"},
       {0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}, cifar10_first_file, read_cifar10},
      {"cifar100", "cifar-100", {"cifar-100-binary"},
       "give the folder of CIFAR-100's binary version, with train.bin and test.bin",
       {"apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl",
        "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair",
        "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin",
        "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp",
        "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse",
        "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
        "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose",
        "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar",
        "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor", "train", "trout",
        "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm"},
       {0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}, cifar100_first_file, read_cifar100},
  };
  // clang-format on
}

}  // namespace

const std::vector<Source>& sources() {
  static const std::vector<Source> all = make_sources();
  return all;
}

}  // namespace axial::data
