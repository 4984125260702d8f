// Run directories: new, resumed, overwritten, refused, locked.
#include "app/run/run_directory.h"

#include <chrono>
#include <csignal>
#include <cstring>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include "app/run/run_error.h"
#include "tests/app/run_scratch.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;
using testing::get;
using testing::message_of;
using testing::names_in;
using testing::put;
using testing::Scratch;
using Mode = RunDirectory::Mode;
using Names = std::set<std::string>;

std::string error_of(const fs::path& path, Mode mode) {
  return message_of<RunError>([&] { RunDirectory(path, mode); });
}

TEST(RunDirectory, MakesWhatItNeedsAndNamesItsFiles) {
  const Scratch scratch;
  const RunDirectory run(scratch / "a" / "b", Mode::kNew);
  EXPECT_EQ(run.last(), scratch / "a" / "b" / "checkpoints" / "last.safetensors");
  EXPECT_EQ(run.best().filename(), "best.safetensors");
  EXPECT_EQ(run.epoch(7).filename(), "epoch-0007.safetensors");
  EXPECT_EQ(run.epoch(12345).filename(), "epoch-12345.safetensors");
  run.write_config("train: {epochs: 1}\n");
  run.write_config("train: {epochs: 2}\n");
  EXPECT_EQ(get(run.path() / "config.yaml"), "train: {epochs: 2}\n");
  EXPECT_EQ(names_in(run.path()), (Names{".lock", "checkpoints", "config.yaml"}));
  EXPECT_TRUE(names_in(run.path() / "checkpoints").empty());
}

TEST(RunDirectory, ExistingRunsAreRefusedAndForeignFilesAreKept) {
  const Scratch scratch;
  put(scratch / "notes.txt", "mine");
  {
    const RunDirectory run(scratch.path(), Mode::kNew);  // a folder without a run in it
    run.write_config("x");
    for (const char* name :
         {"train.log", "metrics.csv", "events.out.tfevents.1.h.2.0.axial", "events.out.tfevents.1.other"})
      put(run.path() / name, "x");
    for (const fs::path& path :
         {run.last(), run.best(), run.epoch(1), run.path() / "checkpoints" / "mine.safetensors"})
      put(path, "x");
  }
  const Names before = names_in(scratch.path());
  EXPECT_EQ(
      error_of(scratch.path(), Mode::kNew),
      scratch.path().string() + ": a run is there already; continue it (--resume), replace it (--overwrite), or choose another folder");
  EXPECT_EQ(names_in(scratch.path()), before);
  { const RunDirectory resumed(scratch.path(), Mode::kResume); }
  EXPECT_EQ(names_in(scratch.path()), before);
  const RunDirectory over(scratch.path(), Mode::kOverwrite);
  EXPECT_EQ(names_in(scratch.path()), (Names{".lock", "checkpoints", "events.out.tfevents.1.other", "notes.txt"}));
  EXPECT_EQ(names_in(scratch / "checkpoints"), Names{"mine.safetensors"});
  fs::remove(scratch / "checkpoints" / "mine.safetensors");
  EXPECT_EQ(error_of(scratch.path(), Mode::kNew),
            scratch.path().string() +
                ": a run is there already, which came to no checkpoint; replace it (--overwrite) or choose another folder")
      << "to continue there is nothing";
}

TEST(RunDirectory, NeverAmongSomebodysPicturesOrFolders) {
  const Scratch scratch;
  fs::create_directories(scratch / "pictures" / "cat");
  fs::create_directories(scratch / "inbox");
  put(scratch / "inbox" / "photo.JPG", "x");
  for (const Mode mode : {Mode::kNew, Mode::kOverwrite}) {
    EXPECT_EQ(error_of(scratch / "pictures", mode),
              (scratch / "pictures").string() + ": is no folder for a run: it holds cat/; name a new folder");
    EXPECT_EQ(error_of(scratch / "inbox", mode),
              (scratch / "inbox").string() + ": is no folder for a run: it holds photo.JPG; name a new folder");
  }
  EXPECT_EQ(names_in(scratch / "pictures"), Names{"cat"});
  EXPECT_EQ(names_in(scratch / "inbox"), Names{"photo.JPG"});
  put(scratch / "log.txt", "x");  // a job's own output, say
  fs::remove_all(scratch / "pictures");
  fs::remove_all(scratch / "inbox");
  const RunDirectory run(scratch.path(), Mode::kNew);
}

// What bears the names of a run's files and is none.
TEST(RunDirectory, NeverAmongFilesThatAreNamedAsARunsAre) {
  const Scratch scratch;
  fs::create_directories(scratch / "project" / "notes");
  put(scratch / "project" / "config.yaml", "train: {epochs: 1}\n");
  put(scratch / "project" / "metrics.csv", "my,own\n");
  fs::create_directories(scratch / "models" / "checkpoints");
  put(scratch / "models" / "train.log", "x");
  put(scratch / "models" / "checkpoints" / "last.safetensors", "somebody's");
  for (const Mode mode : {Mode::kNew, Mode::kOverwrite}) {
    for (const auto& [folder, missing] : {std::pair("project", "train.log"), {"models", "config.yaml"}}) {
      EXPECT_EQ(error_of(scratch / folder, mode),
                (scratch / folder).string() +
                    ": is no folder for a run: it holds files that are named as a run's are, but no " + missing +
                    "; name a new folder");
    }
  }
  EXPECT_EQ(names_in(scratch / "project"), (Names{"config.yaml", "metrics.csv", "notes"}));
  EXPECT_EQ(names_in(scratch / "models"), (Names{"checkpoints", "train.log"}));
  EXPECT_EQ(names_in(scratch / "models" / "checkpoints"), Names{"last.safetensors"});
}

TEST(RunDirectory, LeftoversOfKilledWritersGo) {
  const Scratch scratch;
  fs::create_directory(scratch / "checkpoints");
  put(scratch / "config.yaml.tmp-1-0123456789abcdef", "");
  put(scratch / "checkpoints" / "last.safetensors.tmp-1-0123456789abcdef", "");
  const RunDirectory run(scratch.path(), Mode::kResume);
  EXPECT_EQ(names_in(scratch.path()), (Names{".lock", "checkpoints"}));
  EXPECT_TRUE(names_in(scratch / "checkpoints").empty());
}

TEST(RunDirectory, TheLastFewEpochsStay) {
  const Scratch scratch;
  const RunDirectory run(scratch.path(), Mode::kNew);
  for (const std::int64_t number : {1, 2, 9, 10, 9999, 10000}) put(run.epoch(number), "");
  put(run.last(), "");
  put(run.path() / "checkpoints" / "epoch-x.safetensors", "");
  run.keep_last(3, 10000, {2});
  EXPECT_EQ(names_in(scratch / "checkpoints"),
            (Names{"epoch-0002.safetensors", "epoch-0010.safetensors", "epoch-10000.safetensors",
                   "epoch-9999.safetensors", "epoch-x.safetensors", "last.safetensors"}));
  run.keep_last(3, 10000);
  EXPECT_EQ(names_in(scratch / "checkpoints"),
            (Names{"epoch-0010.safetensors", "epoch-10000.safetensors", "epoch-9999.safetensors",
                   "epoch-x.safetensors", "last.safetensors"}));
  run.keep_last(0, 10000);
  EXPECT_EQ(names_in(scratch / "checkpoints"), (Names{"epoch-x.safetensors", "last.safetensors"}));
  // Back at epoch 5 of a run that had come to 8: its new checkpoints count, those of later epochs do not.
  for (const std::int64_t number : {3, 4, 5, 7, 8}) put(run.epoch(number), "");
  run.keep_last(2, 5);
  EXPECT_EQ(names_in(scratch / "checkpoints"),
            (Names{"epoch-0004.safetensors", "epoch-0005.safetensors", "epoch-0007.safetensors",
                   "epoch-0008.safetensors", "epoch-x.safetensors", "last.safetensors"}));
}

TEST(RunDirectory, AnyFileOfARunIsInTheWay) {
  for (const char* name : {"config.yaml", "metrics.csv", "train.log", "events.out.tfevents.1.h.2.0.axial"}) {
    const Scratch scratch;
    put(scratch / name, "mine");
    for (const Mode mode : {Mode::kNew, Mode::kOverwrite})
      EXPECT_HAS(error_of(scratch.path(), mode), "is no folder for a run") << name;
    EXPECT_EQ(get(scratch / name), "mine");
    EXPECT_EQ(names_in(scratch.path()).size(), 1u);
  }
}

TEST(RunDirectory, CheckLeavesNothingBehind) {
  const Scratch scratch;
  EXPECT_NO_THROW(RunDirectory::check(scratch / "a" / "b", Mode::kNew));
  EXPECT_TRUE(names_in(scratch.path()).empty());
  put(scratch / "file", "");
  EXPECT_HAS(message_of<RunError>([&] { RunDirectory::check(scratch / "file" / "run", Mode::kNew); }),
             "cannot be made");
  EXPECT_HAS(message_of<RunError>([&] { RunDirectory::check("/proc/none", Mode::kNew); }), "is not writable");
  { const RunDirectory run(scratch / "run", Mode::kNew); }
  EXPECT_HAS(message_of<RunError>([&] { RunDirectory::check(scratch / "run", Mode::kNew); }),
             "a run is there already");
  EXPECT_NO_THROW(RunDirectory::check(scratch / "run", Mode::kResume));
}

TEST(RunDirectory, OneProcessAtATime) {
  const Scratch scratch;
  auto run = std::make_unique<RunDirectory>(scratch.path(), Mode::kNew);
  const std::string refused = testing::in_child([&] {
    const RunDirectory second(scratch.path(), Mode::kResume);
    return std::string("no error");
  });
  EXPECT_EQ(refused, scratch.path().string() + ": another process (" + std::to_string(::getpid()) +
                         ") is writing this run; wait for it or choose another folder");
  const RunDirectory copy = *run;
  run.reset();
  EXPECT_HAS(error_of(scratch.path(), Mode::kOverwrite), "is writing this run");  // the copy holds the lock
}

TEST(RunDirectory, AKilledProcessLeavesNoLock) {
  const Scratch scratch;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunDirectory run(scratch.path(), Mode::kNew);
    if (::write(ends[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  EXPECT_HAS(error_of(scratch.path(), Mode::kResume), "another process (" + std::to_string(child) + ")");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(RunDirectory(scratch.path(), Mode::kResume));
}

TEST(RunDirectory, Case18UnwritableFoldersAreRefusedAtOnce) {
  const Scratch scratch;
  put(scratch / "file", "");
  EXPECT_EQ(error_of(scratch / "file" / "run", Mode::kNew),
            (scratch / "file" / "run").string() + ": cannot be made: Not a directory");
  EXPECT_EQ(error_of(scratch / "file", Mode::kNew),
            (scratch / "file").string() + ": cannot be made: Not a directory");
  EXPECT_HAS(message_of<RunError>([&] { new_run_path(scratch / "file", "mnist"); }),
             "/file: cannot be made: Not a directory");

  const fs::path folder = scratch / "locked";
  fs::create_directories(folder / "checkpoints");
  const auto attempt = [&](const fs::path& path) {
    return testing::in_child([&] {
      testing::drop_privileges();
      const RunDirectory opened(path, Mode::kResume);
      return std::string("no error");
    });
  };
  fs::permissions(folder, fs::perms(0555));
  EXPECT_EQ(attempt(folder), folder.string() + ": is not writable: Permission denied");
  EXPECT_EQ(attempt(folder / "new"), (folder / "new").string() + ": cannot be made: Permission denied");
  fs::permissions(folder, fs::perms(0777));
  fs::permissions(folder / "checkpoints", fs::perms(0555));
  EXPECT_EQ(attempt(folder), (folder / "checkpoints").string() + ": is not writable: Permission denied");
}

TEST(RunDirectory, Case18FullFileSystem) {
  const Scratch scratch;
  const std::string text = testing::in_child([&]() -> std::string {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", scratch.path().c_str(), "tmpfs", 0, "size=64k") != 0)
      return std::string("skip: ") + std::strerror(errno);
    std::string said;
    {
      const RunDirectory run(scratch.path(), Mode::kNew);
      run.write_config("old");
      MetricsCsv csv(run.path() / "metrics.csv", {"step"});
      EventWriter events(run.path());
      put(run.path() / "filler", std::string(100000, 'x'));
      for (const std::function<void()>& action : std::vector<std::function<void()>>{
               [&] { run.write_config(std::string(5000, 'x')); }, [&] { csv.append({std::string(5000, '1')}); },
               [&] {
                 events.scalars(1, {{std::string(5000, 'x'), 1}});
               }}) {
        try {
          action();
          said += "no error\n";
        } catch (const RunError& error) {
          said += std::string(error.what()).substr(scratch.path().string().size() + 1) + "\n";
        }
      }
      said += get(run.path() / "config.yaml") + "\n" + get(run.path() / "metrics.csv");
    }
    try {
      RunDirectory(scratch.path(), Mode::kResume);
    } catch (const RunError& error) {
      said += error.what();
    }
    return said;
  });
  if (text.rfind("skip: ", 0) == 0) GTEST_SKIP() << "a small file system cannot be mounted: " << text.substr(6);
  const std::string reason = "No space left on device; make room and start again";
  EXPECT_HAS(text,
             "config.yaml: cannot be written: " + reason + "\nmetrics.csv: cannot be written: " + reason + "\n");
  EXPECT_HAS(text, ".axial: cannot be written: " + reason + "\nold\nstep\n" + scratch.path().string() +
                       ": is not writable: " + reason);
}

TEST(NewRunPath, NamesDifferWithinASecond) {
  const Scratch scratch;
  const fs::path root = scratch / "runs";
  Names names;
  for (int i = 0; i < 5; ++i) {
    const fs::path path = new_run_path(root, "mnist");
    EXPECT_EQ(path.parent_path(), root);
    EXPECT_TRUE(names.insert(path.filename().string()).second);
    EXPECT_EQ(path.filename().string().rfind("mnist-2", 0), 0u) << path;
    const RunDirectory run(path, Mode::kNew);
  }
}

}  // namespace
}  // namespace axial::app
