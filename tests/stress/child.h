// The program in a process of its own, forked with everything loaded: a start takes milliseconds, not the second that
// loading libtorch takes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace axial::stress {

struct Limits {
  std::uint64_t file_size = 0;  // RLIMIT_FSIZE in bytes; 0: none
  bool unprivileged = false;    // as root: as nobody, whom permissions concern
};

// Runs `axial ARGUMENTS...` in `folder`; its standard output and error go to files there. Where `program` is given,
// that file is executed instead of the code that is linked in. The parent must not have started threads.
class Child {
 public:
  Child(const std::vector<std::string>& arguments, const std::filesystem::path& folder, const std::string& program,
        const Limits& limits = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool running();
  void signal(int number);
  int wait();               // exit code; 128 + signal where a signal ended it
  bool wait_for(double s);  // false: it still runs after so many seconds
  std::string err() const;

 private:
  std::filesystem::path err_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool waited_ = false;
};

std::string read_file(const std::filesystem::path& path);
void sleep_for(double seconds);
double now();  // seconds of a clock that only goes forward

}  // namespace axial::stress
