// Decoded pictures that need not be decoded again. Inside data/ only; knows no libtorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "data/picture.h"

namespace axial::data {

// Pictures by their place in a set, all of one size. Any number of threads may ask and give.
class PictureCache {
 public:
  virtual ~PictureCache() = default;
  virtual bool get(std::int64_t i, std::uint8_t* out) = 0;       // false: not there
  virtual void put(std::int64_t i, const std::uint8_t* in) = 0;  // may decline
};

// The first pictures that come, up to so many bytes: in a set that is walked in random order nothing keeps more hits.
std::unique_ptr<PictureCache> memory_cache(std::int64_t pictures, std::int64_t bytes_each, std::int64_t most_bytes);

// A file in `folder` with room for all, whose name is a hash of the options and of every file's path, size and time
// of change: what changes is decoded anew. Each picture stands beside its checksum, so that processes may share the
// file and a killed one leaves no harm. Throws DataError where the folder cannot be written or has no room.
std::unique_ptr<PictureCache> disk_cache(const std::filesystem::path& folder, const Pictures& pictures);

}  // namespace axial::data
