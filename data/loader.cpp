#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "data/cache.h"
#include "data/error.h"

namespace axial::data {

namespace {

struct Running {
  Loader::Job job;
  std::size_t next = 0, done = 0;  // samples that were handed out, that are ready
  bool dropped = false;
  // Whatever the threads do, the error is that of the first bad sample.
  std::size_t first_bad = SIZE_MAX;
  std::exception_ptr error;
  bool handed_out() const { return dropped || next == job.samples.size(); }
  bool ready() const { return done == (dropped ? next : job.samples.size()); }
};

std::unique_ptr<PictureCache> make_cache(const Pictures& pictures, const LoaderOptions& options) {
  if (options.cache == CacheKind::kDisk) return disk_cache(options.cache_dir, pictures);
  if (options.cache == CacheKind::kNone || options.cache_bytes < pictures.options.bytes()) return nullptr;
  return memory_cache(static_cast<std::int64_t>(pictures.files.size()), pictures.options.bytes(),
                      options.cache_bytes);
}

}  // namespace

struct Loader::State {
  std::shared_ptr<const Pictures> pictures;
  std::unique_ptr<PictureCache> cache;  // null: none
  std::mutex mutex;
  std::condition_variable work, ready;
  bool stop = false;
  Ticket last = 0;
  std::map<Ticket, std::shared_ptr<Running>> jobs;
  std::deque<std::shared_ptr<Running>> queue;  // those with samples to hand out
  std::vector<std::thread> threads;

  void run();
  void make(const Job& job, std::size_t i);
};

void Loader::State::make(const Job& job, std::size_t i) {
  const std::int64_t sample = job.samples[i];
  std::uint8_t* const out = job.out + static_cast<std::int64_t>(i) * pictures->options.bytes();
  const RandomCrop* crop = job.crops.empty() ? nullptr : &job.crops[i];
  if (crop == nullptr && cache && cache->get(sample, out)) return;
  read_picture(pictures->files[static_cast<std::size_t>(sample)], pictures->options, crop, out);
  if (crop == nullptr && cache) cache->put(sample, out);
}

void Loader::State::run() {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    work.wait(lock, [&] { return stop || !queue.empty(); });
    if (stop) return;
    const std::shared_ptr<Running> running = queue.front();
    if (running->handed_out()) {
      queue.pop_front();
      continue;
    }
    const std::size_t i = running->next++;
    lock.unlock();
    std::exception_ptr error;
    try {
      make(running->job, i);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && i < running->first_bad) {
      running->first_bad = i;
      running->error = error;
    }
    running->done += 1;
    if (running->ready()) ready.notify_all();
  }
}

Loader::Loader(std::shared_ptr<const Pictures> pictures, const LoaderOptions& options) : state_(new State) {
  state_->cache = make_cache(*pictures, options);
  state_->pictures = std::move(pictures);
  std::int64_t count = options.workers;
  if (count <= 0) count = std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  try {
    for (std::int64_t i = 0; i < count; ++i) state_->threads.emplace_back([state = state_.get()] { state->run(); });
  } catch (const std::system_error&) {
    if (state_->threads.empty()) throw DataError("data.workers: the system lets no thread start");
  }
}

Loader::~Loader() {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stop = true;
  }
  state_->work.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

Loader::Ticket Loader::start(Job job) {
  const auto running = std::make_shared<Running>();
  running->job = std::move(job);
  Ticket ticket = 0;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    ticket = ++state_->last;
    state_->jobs[ticket] = running;
    state_->queue.push_back(running);
  }
  state_->work.notify_all();
  return ticket;
}

void Loader::finish(Ticket ticket) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  const auto found = state_->jobs.find(ticket);
  const std::shared_ptr<Running> running = found->second;
  state_->jobs.erase(found);
  state_->ready.wait(lock, [&] { return running->ready(); });
  if (running->error) std::rethrow_exception(running->error);
}

void Loader::drop(Ticket ticket) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto found = state_->jobs.find(ticket);
  found->second->dropped = true;
  state_->jobs.erase(found);
}

}  // namespace axial::data
