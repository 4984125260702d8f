// The one source that includes spdlog; it must not see torch (see log.h).
#include "app/run/log.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "app/run/run_error.h"

namespace axial::app::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      break;
  }
  return spdlog::level::err;
}

// Standard error, shared between lines and the progress line: a line is written where the progress line
// was, which is drawn again below it.
class Console : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // Asked each time: standard error may be redirected after the first message.
  static bool is_terminal() {
    const char* term = std::getenv("TERM");
    return ::isatty(STDERR_FILENO) == 1 && !(term != nullptr && std::strcmp(term, "dumb") == 0);
  }

  void progress(const std::string& line) {
    if (!is_terminal()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    progress_ = line;
    put(draw());
  }

  void progress_done() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!progress_.empty()) put(kClear);
    progress_.clear();
  }

 protected:
  // info: "[12:00:01] message"; the others, as compilers do, "axial: warning: message"
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string text;
    if (!progress_.empty()) text += kClear;
    const bool warning = message.level == spdlog::level::warn, error = message.level == spdlog::level::err;
    if (warning || error) {
      const char* no_colour = std::getenv("NO_COLOR");
      const bool colour = is_terminal() && (no_colour == nullptr || *no_colour == '\0');
      text += std::string("axial: ") + (colour ? (error ? "\x1b[31m" : "\x1b[33m") : "") +
              (error ? "error:" : "warning:") + (colour ? "\x1b[0m" : "") + " ";
    } else {
      const std::time_t seconds = spdlog::log_clock::to_time_t(message.time);
      std::tm local{};
      ::localtime_r(&seconds, &local);
      char stamp[16];
      std::strftime(stamp, sizeof stamp, "[%H:%M:%S] ", &local);
      text += stamp;
    }
    text.append(message.payload.data(), message.payload.size());
    text += '\n';
    if (!progress_.empty()) text += draw();
    put(text);
  }
  void flush_() override {}

 private:
  static constexpr const char* kClear = "\r\x1b[K";

  // One call, so that lines of several processes do not mix; nobody can be told that it failed.
  static void put(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }

  // Cut to the terminal's width, since a wrapped line cannot be redrawn in place.
  std::string draw() const {
    winsize size{};
    const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    const std::size_t width = known ? size.ws_col - 1u : 79;
    std::size_t columns = 0, end = 0;
    while (end < progress_.size()) {
      // bytes 10xxxxxx continue a character
      if ((static_cast<unsigned char>(progress_[end]) & 0xc0) != 0x80 && ++columns > width) break;
      ++end;
    }
    return kClear + progress_.substr(0, end);
  }

  std::string progress_;
};

struct State {
  std::mutex mutex;
  std::shared_ptr<Console> console = std::make_shared<Console>();
  std::shared_ptr<spdlog::sinks::basic_file_sink_mt> file;
  bool file_failed = false;
  Level level = Level::kInfo;
};

// Never destroyed: messages may come from other objects' destructors at exit.
State& state() {
  static State* const instance = new State;
  return *instance;
}

spdlog::details::log_msg record(Level level, const std::string& text) {
  return spdlog::details::log_msg(spdlog::string_view_t("axial"), to_spdlog(level),
                                  spdlog::string_view_t(text.data(), text.size()));
}

std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

// Names of files may hold anything, and a terminal would obey it.
std::string without_controls(std::string text) {
  for (char& c : text) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace

void set_level(Level level) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().level = level;
}

void open_file(const std::filesystem::path& path) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))  // a pipe would be waited for
    throw RunError(path.string() + ": is no ordinary file, expected one; move it away");
  try {
    state().file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string(), /*truncate=*/false);
    state().file->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
    state().file_failed = false;
  } catch (const spdlog::spdlog_ex& error) {
    throw RunError(path.string() + ": cannot be written: " + error.what());
  }
}

void close_file() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().file.reset();
}

void write(Level level, const std::string& message) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (level < s.level) return;
  const std::string text = without_controls(level >= Level::kWarning ? one_line(message) : message);
  s.console->log(record(level, text));
  if (s.file == nullptr) return;
  try {
    s.file->log(record(level, text));
    s.file->flush();
  } catch (const spdlog::spdlog_ex& error) {
    // A full disk must not end a run for the sake of its log; said once.
    if (!s.file_failed) s.console->log(record(Level::kWarning, one_line(error.what())));
    s.file_failed = true;
  }
}

bool is_terminal() { return Console::is_terminal(); }
void progress(const std::string& line) { state().console->progress(line); }
void progress_done() { state().console->progress_done(); }

}  // namespace axial::app::log
