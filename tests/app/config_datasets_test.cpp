// The configuration and data/ name the same sets, with the same defaults.
#include <algorithm>

#include <gtest/gtest.h>

#include "app/config/load.h"
#include "app/config/schema.h"
#include "data/dataset.h"

namespace axial::app {
namespace {

TEST(ConfigDatasets, AreThoseThatCanBeRead) {
  std::vector<std::string> named = std::get<Choice>(find_key("data.dataset")->limits.each).names;
  std::vector<std::string> readable = data::dataset_names();
  std::sort(named.begin(), named.end());
  std::sort(readable.begin(), readable.end());
  EXPECT_EQ(named, readable);
}

TEST(ConfigDatasets, DefaultsAgree) {
  const DataConfig config = load_config({}, {}).data;
  const data::DatasetOptions options;
  EXPECT_EQ(config.synthetic_train, options.synthetic.train_size);
  EXPECT_EQ(config.synthetic_test, options.synthetic.test_size);
  EXPECT_EQ(config.synthetic_channels, options.synthetic.channels);
  EXPECT_EQ(config.synthetic_height, options.synthetic.height);
  EXPECT_EQ(config.synthetic_width, options.synthetic.width);
  EXPECT_EQ(config.synthetic_classes, options.synthetic.classes);
  EXPECT_EQ(config.folder_channels, options.folder.picture.channels);
  EXPECT_EQ(config.folder_height, options.folder.picture.height);
  EXPECT_EQ(config.folder_width, options.folder.picture.width);
}

}  // namespace
}  // namespace axial::app
