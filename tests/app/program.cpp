#include "tests/app/program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace axial::test {

namespace fs = std::filesystem;

Program::Program(const std::vector<std::string>& arguments, const fs::path& folder,
                 const std::map<std::string, std::string>& environment) {
  static int number = 0;
  out_ = folder / ("out-" + std::to_string(++number));
  err_ = folder / ("err-" + std::to_string(number));
  std::vector<char*> argv;
  std::string program = AXIAL_PROGRAM;
  argv.push_back(program.data());
  std::vector<std::string> copies = arguments;
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  const int out = ::open(out_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  const int err = ::open(err_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  if (::chdir(folder.c_str()) == 0) ::execv(program.c_str(), argv.data());
  ::_exit(127);
}

Program::~Program() {
  if (waited_ || pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, &status_, 0);
}

bool Program::running() {
  if (!waited_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) waited_ = true;
  return !waited_;
}

Outcome Program::wait() {
  if (!waited_) ::waitpid(pid_, &status_, 0);
  waited_ = true;
  const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  return {code, read_file(out_), read_file(err_)};
}

std::string Program::err() const { return read_file(err_); }

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::string test_threads() {
  const char* const threads = std::getenv("AXIAL_TEST_THREADS");
  return threads == nullptr ? "1" : threads;
}

void ProgramTest::SetUp() {
  std::string pattern = (fs::temp_directory_path() / "axial-test-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  folder_ = pattern;
}

void ProgramTest::TearDown() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

Outcome ProgramTest::run(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment) {
  return Program(arguments, folder_, environment).wait();
}

std::string ProgramTest::config(const std::string& name) const {
  return std::string(AXIAL_SOURCE_DIR) + "/configs/" + name;
}

std::vector<std::string> ProgramTest::small(const std::string& run, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"train",
                                        "-c",
                                        config("smoke.yaml"),
                                        "-o",
                                        run,
                                        "train.threads=" + test_threads(),
                                        "train.device=cpu",
                                        "data.synthetic_train=192",
                                        "data.synthetic_test=64",
                                        "data.batch_size=32",
                                        "train.log_every=1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void expect_error(const Outcome& outcome, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_EQ(lines_of(outcome.err), 1u) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in " << outcome.err;
  }
}

}  // namespace axial::test
