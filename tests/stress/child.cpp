#include "tests/stress/child.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "app/commands/commands.h"

namespace axial::stress {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void become(std::vector<std::string> arguments, const fs::path& folder, const fs::path& err,
                         const std::string& program, const Limits& limits) {
  const int out = ::open((folder / "out").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0666);
  const int messages = ::open(err.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0666);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(messages, STDERR_FILENO);
  if (limits.file_size > 0) {
    const rlimit limit{limits.file_size, limits.file_size};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  if (limits.unprivileged && ::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(126);
  if (::chdir(folder.c_str()) != 0) ::_exit(126);
  std::string name = "axial";
  std::vector<char*> argv = {name.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  if (!program.empty()) {
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  std::exit(app::run_program(static_cast<int>(argv.size()) - 1, argv.data()));
}

}  // namespace

Child::Child(const std::vector<std::string>& arguments, const fs::path& folder, const std::string& program,
             const Limits& limits) {
  static int number = 0;
  err_ = folder / ("err-" + std::to_string(number++ % 8));
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("no process can be started");
  if (pid_ == 0) become(arguments, folder, err_, program, limits);
}

Child::~Child() {
  if (waited_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, &status_, 0);
}

bool Child::running() {
  if (!waited_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) waited_ = true;
  return !waited_;
}

void Child::signal(int number) {
  if (running()) ::kill(pid_, number);
}

int Child::wait() {
  if (!waited_) ::waitpid(pid_, &status_, 0);
  waited_ = true;
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
}

bool Child::wait_for(double seconds) {
  for (const double end = now() + seconds; running();) {
    if (now() > end) return false;
    sleep_for(0.002);
  }
  return true;
}

std::string Child::err() const { return read_file(err_); }

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace axial::stress
