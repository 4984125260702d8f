// What this program loads: it is linked with --as-needed, as some distributions do everything.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace {

std::string loaded() {
  std::ostringstream text;
  text << std::ifstream("/proc/self/maps").rdbuf();
  return text.str();
}

// Nothing calls into libtorch_cuda.so by name: it registers itself when it is loaded.
TEST(Linking, Case35_CudaSurvivesAsNeeded) {
#if defined(AXIAL_WITH_CUDA)
  EXPECT_NE(loaded().find("/libtorch_cuda.so"), std::string::npos);
#else
  GTEST_SKIP() << "built for the CPU alone";
#endif
}

TEST(Linking, Case36_NothingNeedsNvToolsExt) {
  EXPECT_EQ(loaded().find("nvToolsExt"), std::string::npos) << "CUDA 13 does not have it";
  const std::string rules = AXIAL_BUILD_DIR "/build.ninja";
  std::ifstream file(rules);
  if (!file) GTEST_SKIP() << rules << " is not there: built by something else than Ninja";
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str().find("nvToolsExt"), std::string::npos) << rules;
}

}  // namespace
