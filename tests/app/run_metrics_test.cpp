// metrics.csv
#include <array>
#include <stdexcept>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "app/run/atomic_file.h"
#include "app/run/run_directory.h"
#include "app/run/run_error.h"
#include "tests/app/run_scratch.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;
using testing::get;
using testing::message_of;
using testing::put;
using testing::Scratch;

TEST(MetricsCsv, HeaderAndRows) {
  const Scratch scratch;
  const fs::path path = scratch / "metrics.csv";
  MetricsCsv csv(path, {"epoch", "step", "note"});
  EXPECT_EQ(get(path), "epoch,step,note\n");
  csv.append({"1", "10", ""});
  csv.append({"2", "20", "a,b \"c\"\nd"});
  EXPECT_EQ(get(path), "epoch,step,note\n1,10,\n2,20,\"a,b \"\"c\"\"\nd\"\n");
  EXPECT_THROW(csv.append({"1"}), std::invalid_argument);
}

TEST(MetricsCsv, AResumedFileReadsAsIfItHadNeverStopped) {
  const Scratch scratch;
  const fs::path path = scratch / "metrics.csv";
  const std::string start = "step,note\n10,\"x,\"\"\n9,y\"\n20,\n";
  for (const std::string rest : {"", "30,\n", "30,\n40,\n", "30,\n4", "30,\"\n40,\n", "3"}) {
    put(path, start + rest);
    MetricsCsv csv(path, {"step", "note"}, 30);
    EXPECT_EQ(get(path), start + rest) << "rows are lost to new ones alone";
    csv.append({"30", "again"});
    EXPECT_EQ(get(path), start + "30,again\n");
  }
  put(path, "step,note\n10,a\n20,b");  // an editor took the last line end away
  EXPECT_EQ((MetricsCsv(path, {"step", "note"}, 30), get(path)), "step,note\n10,a\n20,b\n");
  for (const std::string nothing : {"", "ste"}) {
    put(path, nothing);
    MetricsCsv csv(path, {"step", "note"}, 30);
    EXPECT_EQ(get(path), "step,note\n");
  }
  fs::remove(path);
  MetricsCsv csv(path, {"step", "note"}, 30);
  EXPECT_EQ(get(path), "step,note\n");
  put(path, "step,note\r\n1,a\r\n2,b\r\n");
  MetricsCsv edited(path, {"step", "note"}, 2);
  edited.append({"2", "c"});
  EXPECT_EQ(get(path), "step,note\n1,a\r\n2,c\n");
}

TEST(MetricsCsv, WhatCannotBeResumedIsNamedAndKept) {
  const Scratch scratch;
  const fs::path path = scratch / "metrics.csv";
  const auto error_of = [&](const std::string& text) {
    put(path, text);
    const std::string error = message_of<RunError>([&] { MetricsCsv(path, {"step", "note"}, 30); });
    EXPECT_EQ(get(path), text);
    return error.substr(path.string().size());
  };
  EXPECT_EQ(error_of("step,loss\n1,2\n"),
            ": expected the columns step,note, found step,loss; move the file away to start a new one");
  EXPECT_EQ(error_of("step,note\n1,2\n1\n"), ": row 3: expected 2 values, found 1");
  EXPECT_EQ(error_of("step,note\n1.5,2\n"), ": row 2: expected an integer as step, found '1.5'");
  for (const char* stray : {"step,note\n1,a\n\"2,b\n3,c\n", "step,note\n1,a\n2,b\"\n3,c\n"}) {
    EXPECT_EQ(error_of(stray),
              ": row 3: a quotation mark is not closed; take it out, or move the file away to start a new one");
  }
  for (const auto& [rows, row, above] : std::vector<std::array<std::string, 3>>{
           {"-1,a\n", "2", "0"}, {"0,a\n", "2", "0"}, {"3,a\n2,b\n", "3", "3"}, {"3,a\n3,b\n", "3", "3"}}) {
    EXPECT_EQ(
        error_of("step,note\n" + rows).rfind(": row " + row + ": expected a number above " + above + " as step", 0),
        0u)
        << rows;
  }
  EXPECT_EQ(error_of("step,note\n1e30,a\n"), ": row 2: expected an integer as step, found '1e30'");
  fs::permissions(path, fs::perms::none);
  const std::string unreadable = testing::in_child([&] {
    testing::drop_privileges();
    const MetricsCsv opened(path, {"step", "note"}, 30);
    return std::string("replaced");
  });
  EXPECT_HAS(unreadable, "metrics.csv: cannot be read: Permission denied; move it away");
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const std::string error = message_of<RunError>([&] { MetricsCsv(path, {"step", "note"}, 30); });
  EXPECT_EQ(error.substr(path.string().size()), ": is no ordinary file, expected one; move it away");
}

// As train.log and the outputs of commands do.
TEST(MetricsCsv, LinksAreFollowed) {
  const Scratch scratch;
  const fs::path path = scratch / "metrics.csv";
  fs::create_directory(scratch / "disk");
  fs::create_symlink("disk/rows", path);
  MetricsCsv fresh(path, {"step"});
  fresh.append({"1"});
  fresh.append({"2"});
  MetricsCsv resumed(path, {"step"}, 2);
  resumed.append({"2"});
  EXPECT_TRUE(fs::is_symlink(path));
  EXPECT_EQ(get(scratch / "disk/rows"), "step\n1\n2\n");
  EXPECT_EQ(testing::names_in(scratch / "disk").size(), 1u);
}

TEST(MetricsCsv, NoHalfRowsAtAFileSizeLimit) {
  const Scratch scratch;
  const fs::path path = scratch / "metrics.csv";
  const std::string text = testing::in_child([&] {
    MetricsCsv csv(path, {"step"});
    csv.append({"1"});
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string said;
    try {
      csv.append({std::string(2000, '2')});
    } catch (const RunError& error) {
      said = error.what();
    }
    csv.append({"3"});
    return said;
  });
  EXPECT_HAS(text, path.string() + ": cannot be written: File too large");
  EXPECT_EQ(get(path), "step\n1\n3\n");
}

TEST(AtomicFile, WithoutCommitNothingChanges) {
  const Scratch scratch;
  put(scratch / "x", "old");
  {
    AtomicFile file(scratch / "x");
    file.write("new");
    EXPECT_EQ(get(scratch / "x"), "old");
    EXPECT_EQ(testing::names_in(scratch.path()).size(), 2u);
  }
  EXPECT_EQ(get(scratch / "x"), "old");
  EXPECT_EQ(testing::names_in(scratch.path()).size(), 1u);
}

}  // namespace
}  // namespace axial::app
