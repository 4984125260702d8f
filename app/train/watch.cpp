#include "app/train/watch.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace axial::app {

Watch::Watch(at::Device device)
    : device_(device),
      rows_(at::empty({static_cast<std::int64_t>(kMost), Control::kSlots},
                      at::TensorOptions(at::kDouble).pinned_memory(device.is_cuda()))) {
  if (!device.is_cuda()) return;
  for (std::size_t i = 0; i < kMost; ++i) arrived_.emplace_back(device.type());
}

void Watch::ask(const at::Tensor& values, const Moment& moment) {
  rows_.select(0, static_cast<std::int64_t>(next_)).copy_(values, /*non_blocking=*/true);
  if (!arrived_.empty()) arrived_[next_].record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  coming_.push_back({moment, next_});
  next_ = (next_ + 1) % kMost;
}

std::optional<Sighting> Watch::take(bool wait) {
  if (coming_.empty()) return {};
  const Coming first = coming_.front();
  if (!arrived_.empty()) {
    if (wait) {
      arrived_[first.row].synchronize();
    } else if (!arrived_[first.row].query()) {
      return {};
    }
  }
  coming_.pop_front();
  return Sighting{first.moment, Control::read(rows_.const_data_ptr<double>() +
                                              first.row * static_cast<std::size_t>(Control::kSlots))};
}

}  // namespace axial::app
