// What libtorch warns of becomes a line of our log, instead of its own lines on standard error.
#pragma once

#include <c10/util/Exception.h>

namespace axial::app {

class LibraryWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override;
};

}  // namespace axial::app
