// Runs the built program as a user would, and what tests look at afterwards.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace axial::test {

struct Outcome {
  int code = -1;  // exit code; 128 + signal where a signal ended it
  std::string out, err;
};

// A started program; its output goes to files.
class Program {
 public:
  Program(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
          const std::map<std::string, std::string>& environment = {});
  ~Program();  // kills what still runs
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  pid_t pid() const { return pid_; }
  bool running();
  Outcome wait();
  std::string err() const;  // so far

 private:
  pid_t pid_ = -1;
  std::filesystem::path out_, err_;
  bool waited_ = false;
  int status_ = 0;
};

std::string read_file(const std::filesystem::path& path);
std::size_t lines_of(const std::string& text);

// What trainings of tests are given as train.threads: AXIAL_TEST_THREADS, else 1, as tests run beside one another.
// Under ThreadSanitizer it is more, so that parallel loops are parallel.
std::string test_threads();

// A folder of the test's own, removed afterwards; the program runs in it.
class ProgramTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  Outcome run(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment = {});
  // `axial train` of configs/smoke.yaml, made smaller still.
  std::vector<std::string> small(const std::string& run, std::vector<std::string> more = {});
  std::string config(const std::string& name) const;

  std::filesystem::path folder_;
};

// One line on standard error that holds every part, and that exit code.
void expect_error(const Outcome& outcome, int code, const std::vector<std::string>& parts);

}  // namespace axial::test
