// Values of the device that the host looks at a few updates later, when they have arrived by themselves: training
// does not wait for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include "app/train/control.h"

namespace axial::app {

// Where a run stood after an update, as the host knows it.
struct Moment {
  std::int64_t epoch = 0, batch = 0;  // as in Progress
  std::int64_t tried = 0;             // updates, skipped ones too
  std::int64_t images = 0;
  bool ends_epoch = false;
};

struct Sighting {
  Moment moment;
  Readout readout;
};

class Watch {
 public:
  static constexpr std::size_t kMost = 8;  // updates that the host is ahead at most

  explicit Watch(at::Device device);

  // Asks for Control::values() as they are after what was issued so far; coming() is less than kMost.
  void ask(const at::Tensor& values, const Moment& moment);
  std::size_t coming() const { return coming_.size(); }  // asked for and not taken
  // The oldest that has not been taken. wait: until it arrives; else empty while it is under way.
  std::optional<Sighting> take(bool wait);

 private:
  struct Coming {
    Moment moment;
    std::size_t row;
  };
  at::Device device_;
  at::Tensor rows_;  // float64 [kMost, Control::kSlots], on the CPU, pinned where the device is a GPU
  std::vector<c10::Event> arrived_;
  std::deque<Coming> coming_;
  std::size_t next_ = 0;
};

}  // namespace axial::app
