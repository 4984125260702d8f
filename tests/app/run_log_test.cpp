// What logging writes, and where.
#include "app/run/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/resource.h>

#include "app/commands/library_warnings.h"
#include "app/run/run_error.h"
#include "tests/app/run_scratch.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;
using testing::get;
using testing::Scratch;

// Standard error of `action`, run in a child (the logger keeps its state for the life of a process).
std::string logged(const fs::path& file, const std::function<void()>& action) {
  testing::in_child([&] {
    const int out = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(out, STDERR_FILENO);
    action();
    return std::string();
  });
  return get(file);
}

std::string without_times(std::string text) {
  for (std::size_t i = 0; (i = text.find('[', i)) != std::string::npos; ++i) {
    if (text.size() > i + 9 && text[i + 9] == ']') text.replace(i + 1, 8, "time");
  }
  return text;
}

TEST(Log, WhatLibtorchWarnsOfIsALine) {
  const Scratch scratch;
  const std::string text = logged(scratch / "stderr", [] {
    LibraryWarnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    TORCH_WARN("something is odd\nand this is the second line");
    TORCH_WARN(
        "Attempting to run cuBLAS, but there was no current CUDA context! Attempting to set the primary context...");
  });
  EXPECT_EQ(text, "axial: warning: libtorch: something is odd\n");
}

TEST(Log, PlainLinesWithoutATerminal) {
  const Scratch scratch;
  const std::string text = logged(scratch / "stderr", [] {
    log::info("one");
    log::progress("never seen");
    log::warning("two");
    log::progress_done();
    log::error("three\nlines\n");
    log::warning("a name\x1b[2J of the user's");
    log::write(log::Level::kDebug, "hidden");
    log::set_level(log::Level::kWarning);
    log::info("hidden");
  });
  EXPECT_EQ(without_times(text),
            "[time] one\naxial: warning: two\naxial: error: three lines\naxial: warning: a name?[2J of the user's\n");
}

TEST(Log, TheFileIsAppendedToAndFlushedAtOnce) {
  const Scratch scratch;
  const fs::path path = scratch / "train.log";
  testing::put(path, "old\n");
  logged(scratch / "stderr", [&] {
    log::info("before");
    log::open_file(path);
    log::info("with {braces} and %v");
    log::warning("two");
    log::write(log::Level::kInfo, get(path).find("two\n") != std::string::npos ? "was there" : "was missing");
    log::close_file();
    log::info("after");
  });
  const std::string text = get(path);
  EXPECT_EQ(text.rfind("old\n20", 0), 0u) << text;
  EXPECT_HAS(text, " info: with {braces} and %v\n");
  EXPECT_HAS(text, " warning: two\n");
  EXPECT_HAS(text, " info: was there\n");
  EXPECT_EQ(text.find("before"), std::string::npos);
  EXPECT_EQ(text.find("after"), std::string::npos);
}

TEST(Log, AFileThatCannotBeOpenedIsNamed) {
  const Scratch scratch;
  testing::put(scratch / "file", "");
  EXPECT_HAS(testing::message_of<RunError>([&] { log::open_file(scratch / "file" / "train.log"); }),
             (scratch / "file" / "train.log").string() + ": cannot be written: ");
}

TEST(Log, AFullFileEndsNothing) {
  const Scratch scratch;
  const std::string text = logged(scratch / "stderr", [&] {
    ::signal(SIGXFSZ, SIG_IGN);
    log::open_file(scratch / "train.log");
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 10; ++i) log::info(std::string(1000, 'x'));
  });
  EXPECT_GT(text.size(), 4000u);
}

TEST(Log, TheProgressLineStaysBelowOnATerminal) {
  int master = -1;
  winsize size{};
  size.ws_col = 20;
  size.ws_row = 5;
  const pid_t child = ::forkpty(&master, nullptr, nullptr, &size);
  if (child == 0) {
    ::setenv("TERM", "xterm", 1);
    ::setenv("NO_COLOR", "1", 1);
    log::progress("progress that is much longer than the terminal");
    log::info("a line");
    log::warning("careful");
    log::progress_done();
    ::_exit(log::is_terminal() ? 0 : 1);
  }
  ASSERT_GT(child, 0) << "no pseudo-terminal";
  std::string text;
  char buffer[1024];
  for (ssize_t count; (count = ::read(master, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const std::string clear = "\r\x1b[K", progress = clear + "progress that is mu";
  EXPECT_EQ(without_times(text), progress + clear + "[time] a line\r\n" + progress + clear +
                                     "axial: warning: careful\r\n" + progress + clear);
}

}  // namespace
}  // namespace axial::app
