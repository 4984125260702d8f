// Pictures from threads and caches: the same bytes whoever makes them, and whatever happens to the cache.
#include "data/loader.h"

#include <fstream>

#include "data/cache.h"
#include "image_files.h"
#include "support.h"

namespace axial::data::test {
namespace {
namespace fs = std::filesystem;

class Loading : public ::testing::Test {
 protected:
  Loading() {
    pictures_->options = {.height = 6, .width = 9};
    for (int i = 0; i < kCount; ++i) {
      const fs::path path = dir_ / (std::to_string(i) + ".png");
      Bytes bytes = counting(3 * 20 * 31, 200 + static_cast<std::size_t>(i));
      write_png(path, {.width = 31, .height = 20, .type = PNG_COLOR_TYPE_RGB}, bytes);
      pictures_->files.push_back(path.string());
    }
  }
  std::vector<std::int64_t> all() const {
    std::vector<std::int64_t> samples;
    for (int i = 0; i < kCount; ++i) samples.push_back((7 * i) % kCount);
    return samples;
  }
  Bytes load(Loader& loader, bool random = false) {
    Loader::Job job;
    job.samples = all();
    if (random) {
      for (const std::int64_t sample : job.samples)
        job.crops.push_back({5, static_cast<std::uint64_t>(sample), {0.2, 0.9}, {0.75, 1.3}});
    }
    Bytes out(job.samples.size() * static_cast<std::size_t>(pictures_->options.bytes()));
    job.out = out.data();
    loader.finish(loader.start(std::move(job)));
    return out;
  }
  Bytes load(const LoaderOptions& options, bool random = false) {
    Loader loader(pictures_, options);
    Bytes first = load(loader, random);
    EXPECT_EQ(load(loader, random), first) << "the second time";
    return first;
  }
  void vandalise(std::uint8_t value) {
    for (const std::string& file : pictures_->files) {
      const auto time = fs::last_write_time(file);
      const std::uintmax_t size = fs::file_size(file);
      write(file, Bytes(size, value));
      fs::last_write_time(file, time);
    }
  }

  static constexpr int kCount = 24;
  TempDir dir_;
  std::shared_ptr<Pictures> pictures_ = std::make_shared<Pictures>();
};

TEST_F(Loading, NeitherThreadsNorCachesChangeABit) {
  const Bytes expected = load({.workers = 1});
  for (const std::int64_t workers : {1, 2, 5}) {
    EXPECT_EQ(load({.workers = workers}), expected);
    EXPECT_EQ(load({.workers = workers, .cache = CacheKind::kMemory, .cache_bytes = 1 << 20}), expected);
    EXPECT_EQ(load({.workers = workers, .cache = CacheKind::kMemory, .cache_bytes = 5 * 3 * 6 * 9}), expected);
    EXPECT_EQ(load({.workers = workers, .cache = CacheKind::kDisk, .cache_dir = dir_ / "cache"}), expected);
  }
  const Bytes random = load({.workers = 1}, true);
  EXPECT_NE(random, expected);
  EXPECT_EQ(load({.workers = 4}, true), random);
  EXPECT_EQ(load({.workers = 4, .cache = CacheKind::kMemory, .cache_bytes = 1 << 20}, true), random);
}

TEST_F(Loading, MemoryKeepsAsManyAsFit) {
  const std::int64_t each = pictures_->options.bytes();
  const auto cache = memory_cache(10, each, 3 * each + each / 2);
  Bytes in(static_cast<std::size_t>(each), 4), out(in.size());
  for (std::int64_t i = 9; i >= 0; --i) cache->put(i, in.data());
  cache->put(9, in.data());
  for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(cache->get(i, out.data()), i >= 7) << i;
  EXPECT_EQ(in, out);
}

TEST_F(Loading, TheDiskCacheOutlivesTheFiles) {
  const LoaderOptions options{.workers = 2, .cache = CacheKind::kDisk, .cache_dir = dir_ / "cache"};
  const Bytes expected = load(options);
  vandalise(0);  // with the old size and time: only the cache knows the pixels now
  EXPECT_EQ(load(options), expected);
  // A change that shows makes a new file of the cache.
  fs::last_write_time(pictures_->files[3], fs::file_time_type::clock::now());
  expect_parts(error_of([&] { load(options); }), {pictures_->files[0]});
}

TEST_F(Loading, DamagedPiecesOfTheCacheAreMadeAnew) {
  const LoaderOptions options{.workers = 2, .cache = CacheKind::kDisk, .cache_dir = dir_ / "cache"};
  const Bytes expected = load(options);
  const fs::path file = fs::directory_iterator(dir_ / "cache")->path();
  Bytes bytes = read_back(file);
  for (std::size_t at = 20; at < bytes.size(); at += 97) bytes[at] ^= 0x10;
  write(file, bytes);
  EXPECT_EQ(load(options), expected);
  write(file, cut(bytes, 0.5));
  EXPECT_EQ(load(options), expected);
  bytes[0] = 'X';
  write(file, bytes);
  EXPECT_EQ(load(options), expected);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / "cache"), {}), 1) << "nothing is left behind";
}

TEST_F(Loading, ACacheThatCannotBeIsNamed) {
  write(dir_ / "file", {1});
  const auto start = [&](const fs::path& folder) {
    return error_of([&] { Loader(pictures_, {.cache = CacheKind::kDisk, .cache_dir = folder}); });
  };
  expect_parts(start(dir_ / "file/cache"), {(dir_ / "file/cache").string()});
  pictures_->files.push_back((dir_ / "absent.png").string());
  expect_parts(start(dir_ / "cache"), {"absent.png", "cannot be read"});
}

TEST_F(Loading, Case27TheFirstBadSampleIsNamedFromAnyThread) {
  write(pictures_->files[7], {'B', 'M', 0, 0});  // sample 7 is second in the order
  write(pictures_->files[14], {});               // 14 third
  for (int repeat = 0; repeat < 20; ++repeat) {
    Loader loader(pictures_, {.workers = 4});
    expect_parts(error_of([&] { load(loader); }), {pictures_->files[7] + ": starts with 42 4d"});
    // The loader lives: the others are still to be had.
    Loader::Job job;
    Bytes out(static_cast<std::size_t>(pictures_->options.bytes()));
    job.samples = {3};
    job.out = out.data();
    loader.finish(loader.start(std::move(job)));
  }
}

TEST_F(Loading, WhatIsDroppedIsNotWaitedFor) {
  for (int repeat = 0; repeat < 30; ++repeat) {
    Loader loader(pictures_, {.workers = 3});
    std::vector<Loader::Ticket> tickets;
    for (int i = 0; i < 5; ++i) {
      const auto out = std::make_shared<Bytes>(static_cast<std::size_t>(kCount * pictures_->options.bytes()));
      Loader::Job job;
      job.samples = all();
      job.out = out->data();
      job.owner = out;
      tickets.push_back(loader.start(std::move(job)));
    }
    loader.drop(tickets[1]);
    loader.drop(tickets[3]);
    loader.finish(tickets[0]);
    loader.finish(tickets[2]);
    // 4 is neither finished nor dropped when the loader goes.
  }
}

}  // namespace
}  // namespace axial::data::test
