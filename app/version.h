#pragma once

namespace axial::app {

inline constexpr const char* kVersion = AXIAL_VERSION;

}  // namespace axial::app
