// Threads that decode pictures ahead of who needs them. Knows no libtorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "data/picture.h"

namespace axial::data {

enum class CacheKind { kMemory, kDisk, kNone };

struct LoaderOptions {
  std::int64_t workers = 0;   // threads; 0: one for each core
  std::int64_t prefetch = 2;  // batches that are decoded ahead
  CacheKind cache = CacheKind::kNone;
  std::int64_t cache_bytes = 0;          // kMemory: as many pictures as fit; Batches takes the set's own number
  std::filesystem::path cache_dir = {};  // kDisk
};

// Which thread decodes a picture, and when, changes none of its bytes.
class Loader {
 public:
  Loader(std::shared_ptr<const Pictures> pictures, const LoaderOptions& options);
  ~Loader();  // what was started and not finished is dropped
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  struct Job {
    std::vector<std::int64_t> samples;  // positions in the set
    std::vector<RandomCrop> crops;      // one for each sample, or none: the middle, which may come from the cache
    std::uint8_t* out = nullptr;        // [samples, channels, height, width]
    std::shared_ptr<void> owner = {};   // of out, kept until the last thread is done with it
  };
  using Ticket = std::uint64_t;
  Ticket start(Job job);       // jobs are worked on in the order in which they came
  void finish(Ticket ticket);  // waits; throws the DataError of the job's first bad sample. Once for each ticket
  void drop(Ticket ticket);    // instead of finish

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace axial::data
