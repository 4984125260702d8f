# What else the program stands on; cmake/setup.sh knows the packages' names.
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(JPEG REQUIRED)
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # 0.7
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)

find_path(HWY_INCLUDE hwy/highway.h REQUIRED)
find_library(HWY_LIBRARY NAMES hwy REQUIRED)
add_library(axial_hwy INTERFACE)
target_include_directories(axial_hwy SYSTEM INTERFACE "${HWY_INCLUDE}")
target_link_libraries(axial_hwy INTERFACE "${HWY_LIBRARY}")

if(AXIAL_TESTS)
  find_package(GTest REQUIRED)
endif()
