#include "app/bench/decoding.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <ctime>
#include <deque>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include <stdlib.h>

#include <jpeglib.h>  // needs <cstdio> before it

#include "app/counted.h"
#include "app/run/run_error.h"
#include "data/listing.h"
#include "data/loader.h"
#include "data/random.h"

namespace axial::app::bench {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPhotographs = 500, kBatch = 32, kAhead = 3;

double median(const std::vector<double>& sorted) { return sorted[sorted.size() / 2]; }

// libjpeg's own way out of an error would end the program.
struct Errors : jpeg_error_mgr {
  std::jmp_buf jump;
};
[[noreturn]] void on_error(j_common_ptr jpeg) { std::longjmp(static_cast<Errors*>(jpeg->err)->jump, 1); }

// A folder that goes when it is no longer needed.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "axial-photographs-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw RunError(name + ": cannot be made");
    path = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  fs::path path;
};

// Something like a photograph: slow waves, edges of things, and a sensor's noise, which is what JPEG files consist
// of.
std::vector<std::uint8_t> photograph(std::uint64_t number, int width, int height) {
  std::vector<std::uint8_t> pixels;
  pixels.reserve(3 * static_cast<std::size_t>(width) * static_cast<std::size_t>(height));
  const kernels::Philox4 look = data::draw(2026, number, 0);
  const double across = 0.004 + 0.02 * data::unit(look.x[0]), down = 0.004 + 0.02 * data::unit(look.x[1]);
  const int thing = 30 + static_cast<int>(data::below(look.x[2], 60));
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const std::int64_t pixel = std::int64_t{y} * width + x;
      const kernels::Philox4 noise = data::draw(number, static_cast<std::uint64_t>(pixel), 1);
      const double edge = (x / thing + y / thing) % 2 ? 22 : -22;
      for (int c = 0; c < 3; ++c) {
        const double wave = 80 * std::sin(across * x * (1 + 0.3 * c)) * std::cos(down * y + c);
        const double value = 128 + wave + edge + 16 * (data::unit(noise.x[c]) + data::unit(noise.x[3]) - 1);
        pixels.push_back(static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0)));
      }
    }
  }
  return pixels;
}

void write_photograph(const fs::path& path, std::uint64_t number) {
  const kernels::Philox4 size = data::draw(1, number, 0);
  const int width = 500 - static_cast<int>(data::below(size.x[0], 40)),
            height = 375 - static_cast<int>(data::below(size.x[1], 40));
  std::vector<std::uint8_t> pixels = photograph(number, width, height);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw RunError(path.string() + ": cannot be written");
  jpeg_compress_struct jpeg{};
  Errors errors;
  jpeg.err = jpeg_std_error(&errors);
  errors.error_exit = on_error;
  if (setjmp(errors.jump)) {
    jpeg_destroy_compress(&jpeg);
    std::fclose(file);
    throw RunError(path.string() + ": cannot be written");
  }
  jpeg_create_compress(&jpeg);
  jpeg_stdio_dest(&jpeg, file);
  jpeg.image_width = static_cast<JDIMENSION>(width);
  jpeg.image_height = static_cast<JDIMENSION>(height);
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 90, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row = pixels.data() + static_cast<std::size_t>(3 * width) * jpeg.next_scanline;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  if (std::fclose(file) != 0) throw RunError(path.string() + ": cannot be written");
}

// What libjpeg-turbo takes to decode a file as it is stored; the number of its pixels, 0 where it is damaged.
class PlainDecoder {
 public:
  PlainDecoder() {
    jpeg_.err = jpeg_std_error(&errors_);
    errors_.error_exit = on_error;
    errors_.emit_message = [](j_common_ptr, int) {};
    jpeg_create_decompress(&jpeg_);
  }
  ~PlainDecoder() { jpeg_destroy_decompress(&jpeg_); }
  PlainDecoder(const PlainDecoder&) = delete;
  PlainDecoder& operator=(const PlainDecoder&) = delete;

  std::int64_t decode(const std::string& path) {
    if (!read(path)) return 0;
    if (setjmp(errors_.jump)) {
      jpeg_abort_decompress(&jpeg_);
      return 0;
    }
    jpeg_mem_src(&jpeg_, file_.data(), static_cast<unsigned long>(size_));
    jpeg_read_header(&jpeg_, TRUE);
    jpeg_start_decompress(&jpeg_);
    const std::size_t row =
        static_cast<std::size_t>(jpeg_.output_width) * static_cast<std::size_t>(jpeg_.output_components);
    if (pixels_.size() < row * jpeg_.output_height) pixels_.resize(row * jpeg_.output_height);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      JSAMPROW to = pixels_.data() + row * jpeg_.output_scanline;
      jpeg_read_scanlines(&jpeg_, &to, 1);
    }
    const auto count = static_cast<std::int64_t>(jpeg_.output_width) * jpeg_.output_height;
    jpeg_finish_decompress(&jpeg_);
    return count;
  }

 private:
  bool read(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) return false;
    std::fseek(file, 0, SEEK_END);
    const long size = std::ftell(file);
    std::rewind(file);
    if (size > 0 && file_.size() < static_cast<std::size_t>(size)) file_.resize(static_cast<std::size_t>(size));
    size_ = size > 0 ? std::fread(file_.data(), 1, static_cast<std::size_t>(size), file) : 0;
    std::fclose(file);
    return size_ > 0;
  }

  jpeg_decompress_struct jpeg_{};
  Errors errors_;
  std::vector<std::uint8_t> file_, pixels_;
  std::size_t size_ = 0;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double plain_pass(const std::vector<std::string>& files, std::int64_t workers, std::int64_t& pixels) {
  std::atomic<std::size_t> next = 0;
  std::atomic<std::int64_t> sum = 0;
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (std::int64_t i = 0; i < workers; ++i) {
    threads.emplace_back([&] {
      PlainDecoder decoder;
      for (std::size_t file = next++; file < files.size(); file = next++) sum += decoder.decode(files[file]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  pixels = sum;
  return static_cast<double>(files.size()) / seconds_since(start);
}

double pipeline_pass(const std::shared_ptr<const data::Pictures>& pictures, std::int64_t workers) {
  const auto count = static_cast<std::int64_t>(pictures->files.size());
  // Used again and again, as Batches does; they outlive the threads.
  std::unique_ptr<std::uint8_t[]> buffers[kAhead];
  for (auto& buffer : buffers)
    buffer.reset(new std::uint8_t[static_cast<std::size_t>(kBatch * pictures->options.bytes())]);
  std::int64_t started = 0;
  const auto start = Clock::now();
  data::LoaderOptions options;
  options.workers = workers;
  data::Loader loader(pictures, options);
  std::deque<data::Loader::Ticket> ahead;
  for (std::int64_t begin = 0; begin < count || !ahead.empty();) {
    while (begin < count && static_cast<std::int64_t>(ahead.size()) < kAhead) {
      data::Loader::Job job;
      for (std::int64_t i = begin; i < std::min(count, begin + kBatch); ++i) job.samples.push_back(i);
      job.out = buffers[started++ % kAhead].get();
      begin += static_cast<std::int64_t>(job.samples.size());
      ahead.push_back(loader.start(std::move(job)));
    }
    loader.finish(ahead.front());
    ahead.pop_front();
  }
  return static_cast<double>(count) / seconds_since(start);
}

double processor_milliseconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

bool is_jpeg(const fs::path& path) {
  char magic[3] = {};
  return std::ifstream(path, std::ios::binary).read(magic, 3) && std::string(magic, 3) == "\xff\xd8\xff";
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", value < 100 ? 1 : 0, value);
  return text;
}

}  // namespace

double Decoding::ratio() const { return median(pipeline) / median(plain); }
double Decoding::work_ratio() const { return median(plain_work) / median(pipeline_work); }

Decoding measure_decoding(const DecodingOptions& options) {
  std::unique_ptr<Scratch> scratch;
  fs::path folder = options.data;
  if (folder == kGenerated) {
    scratch = std::make_unique<Scratch>();
    folder = scratch->path;
    for (std::int64_t i = 0; i < kPhotographs; ++i)
      write_photograph(folder / (std::to_string(i) + ".jpg"), static_cast<std::uint64_t>(i));
  }
  Decoding result;
  const auto pictures = std::make_shared<data::Pictures>();
  pictures->options.height = result.height = options.height;
  pictures->options.width = result.width = options.width;
  for (const fs::path& path : data::list_images(folder)) {
    if (!is_jpeg(path)) {
      result.others += 1;
      continue;
    }
    pictures->files.push_back(path.string());
    result.megabytes += static_cast<double>(fs::file_size(path)) / 1e6;
  }
  if (pictures->files.empty()) throw data::DataError(folder.string() + ": no JPEG files in it");
  result.files = static_cast<std::int64_t>(pictures->files.size());
  result.workers =
      options.workers > 0 ? options.workers : std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  // A first pass of each brings the files into the system's memory, and names those that are damaged.
  std::int64_t pixels = 0;
  pipeline_pass(pictures, result.workers);
  plain_pass(pictures->files, result.workers, pixels);
  result.megapixels = static_cast<double>(pixels) / 1e6;
  for (int i = 0; i < options.repeats; ++i) {
    const double begin = processor_milliseconds();
    result.pipeline.push_back(pipeline_pass(pictures, result.workers));
    const double middle = processor_milliseconds();
    result.plain.push_back(plain_pass(pictures->files, result.workers, pixels));
    result.pipeline_work.push_back((middle - begin) / static_cast<double>(result.files));
    result.plain_work.push_back((processor_milliseconds() - middle) / static_cast<double>(result.files));
  }
  for (auto* values : {&result.pipeline, &result.plain, &result.pipeline_work, &result.plain_work})
    std::sort(values->begin(), values->end());
  return result;
}

std::string decoding_table(const Decoding& d, const std::string& processor) {
  const auto row = [](const std::string& name, const std::vector<double>& rates) {
    char line[160];
    std::snprintf(line, sizeof line, "%-34s %9s  (%s to %s)\n", name.c_str(), number(median(rates)).c_str(),
                  number(rates.front()).c_str(), number(rates.back()).c_str());
    return std::string(line);
  };
  std::string text = counted(d.files, "JPEG file") + ", " + number(d.megabytes) + " MB, " + number(d.megapixels) +
                     " megapixels; " + counted(d.workers, "thread") + " of " + processor + "\n";
  if (d.others > 0) text += std::to_string(d.others) + " other files were left out\n";
  const std::string size = std::to_string(d.height) + "x" + std::to_string(d.width);
  text += "images/s, median of " + std::to_string(d.pipeline.size()) + " passes (least to most)\n";
  text += row("axial: decoded, cut, resized " + size, d.pipeline) + row("libjpeg-turbo alone: decoded", d.plain);
  char work[160];
  std::snprintf(work, sizeof work, "processor time an image: %.3f ms against %.3f ms, %s %%\n",
                median(d.pipeline_work), median(d.plain_work), number(100 * d.work_ratio()).c_str());
  return text + "axial reaches " + number(100 * d.ratio()) + " % of libjpeg-turbo alone\n" + work;
}

nlohmann::ordered_json decoding_json(const Decoding& d, const std::string& processor, const std::string& date) {
  return {{"date", date},
          {"processor", processor},
          {"threads", d.workers},
          {"files", d.files},
          {"megabytes", d.megabytes},
          {"megapixels", d.megapixels},
          {"height", d.height},
          {"width", d.width},
          {"pipeline", d.pipeline},
          {"plain", d.plain},
          {"ratio", d.ratio()},
          {"pipeline_work_ms", d.pipeline_work},
          {"plain_work_ms", d.plain_work},
          {"work_ratio", d.work_ratio()}};
}

}  // namespace axial::app::bench
