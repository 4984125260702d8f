// Damaged files, and writes that fail or are killed.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "app/checkpoint/safetensors.h"
#include "app/run/atomic_file.h"
#include "tests/app/run_scratch.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;
using testing::get;
using testing::message_of;
using testing::put;
using testing::Scratch;

at::TensorOptions of(at::ScalarType type) { return at::TensorOptions().dtype(type).device(at::kCPU); }

std::string crafted(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

class Damaged : public ::testing::Test {
 protected:
  std::string error_of(const std::string& bytes) {
    put(path_, bytes);
    std::string error = message_of<CheckpointError>([&] { read_safetensors(path_); });
    EXPECT_EQ(error.rfind(path_.string() + ": ", 0), 0u) << error;
    return error;
  }
  std::string small_file() {
    SafetensorsFile file;
    file.tensors["w"] = at::arange(3, of(at::kFloat));
    file.tensors["b"] = at::ones({2}, of(at::kBool));
    file.metadata["step"] = "3";
    write_safetensors(path_, file);
    return get(path_);
  }
  Scratch scratch_;
  fs::path path_ = scratch_ / "x.safetensors";
};

TEST_F(Damaged, Case19EveryTruncationIsNamed) {
  const std::string bytes = small_file();
  for (std::size_t length = 0; length < bytes.size(); ++length) error_of(bytes.substr(0, length));
  EXPECT_HAS(error_of(""), "expected at least 8 bytes, found 0");
  EXPECT_HAS(error_of(bytes.substr(0, bytes.size() / 10)),
             "is cut short or no safetensors file: its header should have");
  EXPECT_HAS(error_of(bytes.substr(0, bytes.size() / 2)), "is cut short");
  EXPECT_HAS(error_of(bytes.substr(0, bytes.size() - 1)),
             "is cut short: 'b' should end at byte 14 of the data, the file has 13");
  EXPECT_HAS(error_of(bytes + "x"), "1 bytes behind its last tensor");
}

TEST_F(Damaged, EveryFlippedBitIsFound) {
  const std::string bytes = small_file();
  // every third bit: all bytes, and time for the other tests
  for (std::size_t i = 0; i < bytes.size() * 8; i += 3) {
    std::string flipped = bytes;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << i % 8));
    SCOPED_TRACE("bit " + std::to_string(i));
    error_of(flipped);
  }
  std::string flipped = bytes;
  flipped.back() ^= 1;
  EXPECT_HAS(error_of(flipped), "'b' is damaged: checksum ");
  flipped = bytes;
  flipped[bytes.find("\"step\":\"3") + 8] = '4';
  EXPECT_HAS(error_of(flipped), "its metadata is damaged: checksum ");
}

TEST_F(Damaged, HeadersThatTheFormatDoesNotHave) {
  const std::string good = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  put(path_, crafted(good, "xy"));
  EXPECT_EQ(read_safetensors(path_).tensors.at("a").numel(), 2);
  const std::string reversed = R"({"b":{"data_offsets":[1,2],"shape":[1],"dtype":"U8"},)"
                               R"("a":{"dtype":"I8","shape":[],"data_offsets":[0,1]}}  )";
  put(path_, crafted(reversed, "xy"));
  EXPECT_EQ(read_safetensors(path_).tensors.size(), 2u);

  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return crafted(R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
                   "xy");
  };
  EXPECT_HAS(error_of(entry("U8", "[3]", "[0,2]")), "expected 3 bytes for U8 [3]");
  EXPECT_HAS(error_of(entry("F8_E4M3", "[2]", "[0,2]")), "'a' has the unsupported type 'F8_E4M3'");
  EXPECT_HAS(error_of(entry("U8", "[2]", "[2,0]")), "2..0 as its byte range");
  EXPECT_HAS(error_of(entry("U8", "[1]", "[1,2]")), "starts at byte 1 of the data, expected 0 (gap)");
  EXPECT_HAS(error_of(entry("U8", "[9]", "[0,9]")), "is cut short");
  EXPECT_HAS(error_of(entry("U8", "[1]", "[18446744073709551615,0]")), "as its byte range");
  EXPECT_HAS(error_of(entry("U8", "[-2]", "[0,2]")), "has a wrong 'shape': found the number -2");
  EXPECT_HAS(error_of(entry("U8", "[2.0]", "[0,2]")), "has a wrong 'shape': found the number 2.0");
  EXPECT_HAS(error_of(entry("U8", "[1e99]", "[0,2]")), "has a wrong 'shape'");
  EXPECT_HAS(error_of(entry("U8", "[18446744073709551615]", "[0,2]")), "found a dimension of 18446744073709551615");
  EXPECT_HAS(error_of(entry("F64", "[4294967296,4294967296]", "[0,2]")), "shape past all bounds");
  EXPECT_HAS(error_of(entry("F64", "[0,4294967296,4294967296]", "[0,0]")), "shape past all bounds");
  EXPECT_HAS(error_of(entry("U8", "[[2]]", "[0,2]")), "found a list");
  EXPECT_HAS(error_of(entry("U8", "\"2\"", "[0,2]")), "found the text '2'");
  EXPECT_HAS(error_of(entry("U8", "[2]", "[0]")), "found one offset");
  EXPECT_HAS(error_of(entry("U8", "[2]", "[0,2,2]")), "found the number 2");
  EXPECT_HAS(error_of(entry("BOOL", "[2]", "[0,2]")), "bytes other than 0 and 1");
  std::string ones = "[1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  EXPECT_HAS(error_of(entry("U8", ones + "]", "[0,1]")), "more than 64 dimensions");

  const std::string a = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  const std::string b = R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_HAS(error_of(crafted("{" + a + "," + a + "}", "xy")), "'a' stands twice");
  EXPECT_HAS(error_of(crafted("{" + a + "," + b + "}", "xy")), "(overlap)");
  EXPECT_HAS(error_of(crafted(R"({"a":{"dtype":"U8","dtype":"U8"}})")), "has 'dtype' twice");
  EXPECT_HAS(error_of(crafted(R"({"a":{"dtype":"U8"}})")), "lacks one of");
  EXPECT_HAS(error_of(crafted(R"({"a":{"type":"U8"}})")), "unknown field 'type'");
  EXPECT_HAS(error_of(crafted(R"({"a\nb":3})")), "expected a map for 'a b', found");
  EXPECT_LT(error_of(crafted("{\"" + std::string(100000, 'x') + "\":3}")).size(), 9000u);
  EXPECT_HAS(error_of(crafted(R"({"a":3})")), "expected a map for 'a', found the number 3");
  EXPECT_HAS(error_of(crafted(R"({"__metadata__":{"a":1}})")), "expected text for metadata 'a'");
  EXPECT_HAS(error_of(crafted(R"({"__metadata__":{"a":"1","a":"1"}})")), "metadata 'a' stands twice");
  EXPECT_HAS(error_of(crafted(R"({"__metadata__":{"a":{}}})")), "found a map");
  EXPECT_HAS(error_of(crafted(R"({"__metadata__":{"crc32.a":"0"}})")), "its metadata is damaged: no checksum");
  for (const std::string header : {"", "[]", "3", "null", " {}", "{", "{}x", "{\"a\":\"\xff\"}", "{\"a\"", "{}{}"})
    EXPECT_HAS(error_of(crafted(header)), "bad header: ");
  EXPECT_HAS(error_of(crafted(std::string("{}\0x", 4))), "bad header: ");
  EXPECT_HAS(error_of(crafted(R"({"a":)" + std::string(1 << 20, '['))), "bad header: ");
  EXPECT_HAS(error_of(std::string(8, '\xff') + good), "its header should have 18446744073709551615 bytes");
}

TEST_F(Damaged, AHugeHeaderLengthAllocatesNothing) {
  // a sparse file of 200 MB that is all header
  const int file = ::open(path_.c_str(), O_WRONLY | O_CREAT, 0644);
  const std::uint64_t length = 200'000'000;
  ASSERT_EQ(::write(file, &length, sizeof length), static_cast<ssize_t>(sizeof length));
  ASSERT_EQ(::ftruncate(file, 8 + 200'000'000), 0);
  ::close(file);
  EXPECT_HAS(message_of<CheckpointError>([&] { read_safetensors(path_); }), "has a header of 200000000 bytes");
}

TEST_F(Damaged, WhatIsNoFile) {
  EXPECT_HAS(message_of<CheckpointError>([&] { read_safetensors(scratch_ / "none"); }), "none: no such file");
  EXPECT_HAS(message_of<CheckpointError>([&] { read_safetensors(scratch_.path()); }), "is not a regular file");
  ASSERT_EQ(::mkfifo((scratch_ / "pipe").c_str(), 0600), 0);
  EXPECT_HAS(message_of<CheckpointError>([&] { read_safetensors(scratch_ / "pipe"); }), "is not a regular file");
}

// 256 KiB, filled by hand: operators on much data start threads, which a forked child does not have.
SafetensorsFile numbered(std::int64_t number) {
  SafetensorsFile file;
  const at::Tensor tensor = at::empty({1 << 15}, of(at::kLong));
  std::fill_n(tensor.mutable_data_ptr<std::int64_t>(), tensor.numel(), number);
  file.tensors["number"] = tensor;
  file.metadata["number"] = std::to_string(number);
  return file;
}

TEST(SafetensorsKilled, Case17ANewestCompleteCheckpointAlwaysLoads) {
  const Scratch scratch;
  const fs::path path = scratch / "last.safetensors";
  write_safetensors(path, numbered(0));
  std::mt19937 random(17);
  std::int64_t newest = 0;
  for (int round = 0; round < 100; ++round) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (std::int64_t number = newest + 1;; ++number) {
        write_safetensors(path, numbered(number));
        if (::write(ends[1], &number, sizeof number) != static_cast<ssize_t>(sizeof number)) ::_exit(1);
      }
    }
    ::close(ends[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<int>(0, 20000)(random)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (std::int64_t number; ::read(ends[0], &number, sizeof number) == static_cast<ssize_t>(sizeof number);)
      newest = number;
    ::close(ends[0]);
    const SafetensorsFile file = read_safetensors(path);
    const std::int64_t found = file.tensors.at("number")[0].item<std::int64_t>();
    ASSERT_TRUE(file.tensors.at("number").eq(found).all().item<bool>());
    ASSERT_EQ(file.metadata.at("number"), std::to_string(found));
    // killed between the rename and the report: one newer than what was reported
    ASSERT_TRUE(found == newest || found == newest + 1) << found << " after " << newest;
    newest = found;
  }
  EXPECT_GT(newest, 0);
  remove_stale_temporaries(scratch.path());
  EXPECT_EQ(testing::names_in(scratch.path()), std::set<std::string>{"last.safetensors"});
}

// Fails to write `path` and tells what was said and what is there now.
std::string failed_write(const fs::path& path) {
  std::string text;
  try {
    write_safetensors(path, numbered(2));
    text = "written";
  } catch (const CheckpointError& error) {
    text = error.what();
  }
  if (fs::exists(path)) text += " | old " + read_safetensors(path).metadata.at("number");
  for (const std::string& name : testing::names_in(path.parent_path())) text += " | " + name;
  return text;
}

TEST(SafetensorsUnwritable, Case18FileSizeLimit) {
  const Scratch scratch;
  const fs::path path = scratch / "x.safetensors";
  write_safetensors(path, numbered(1));
  const std::string text = testing::in_child([&] {
    const rlimit limit{100000, 100000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return failed_write(path);
  });
  EXPECT_EQ(text, path.string() +
                      ": cannot be written: File too large; raise the limit (ulimit -f) or write elsewhere" +
                      " | old 1 | x.safetensors");
}

TEST(SafetensorsUnwritable, Case18FullFileSystem) {
  const Scratch scratch;
  const fs::path folder = scratch / "small";
  fs::create_directory(folder);
  const std::string text = testing::in_child([&]() -> std::string {
    // mounts of a private namespace end with the child
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=400k") != 0)
      return std::string("skip: ") + std::strerror(errno);
    write_safetensors(folder / "x.safetensors", numbered(1));
    return failed_write(folder / "x.safetensors");
  });
  if (text.rfind("skip: ", 0) == 0) GTEST_SKIP() << "a small file system cannot be mounted: " << text.substr(6);
  EXPECT_EQ(text,
            (folder / "x.safetensors").string() +
                ": cannot be written: No space left on device; make room and start again | old 1 | x.safetensors");
}

TEST(SafetensorsUnwritable, Case18FolderWithoutWritePermission) {
  const Scratch scratch;
  const fs::path folder = scratch / "locked";
  fs::create_directory(folder);
  write_safetensors(folder / "x.safetensors", numbered(1));
  fs::permissions(folder,
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  const std::string text = testing::in_child([&] {
    testing::drop_privileges();
    return failed_write(folder / "x.safetensors");
  });
  fs::permissions(folder, fs::perms::owner_all);
  EXPECT_EQ(text,
            (folder / "x.safetensors").string() + ": cannot be written: Permission denied | old 1 | x.safetensors");
}

TEST(SafetensorsUnwritable, OtherPlaces) {
  const Scratch scratch;
  const auto write = [](const fs::path& path) {
    return message_of<CheckpointError>([&] { write_safetensors(path, numbered(1)); });
  };
  put(scratch / "file", "");
  EXPECT_HAS(write(scratch / "file" / "x"), "/file/x: cannot be written: Not a directory");
  EXPECT_HAS(write(scratch / "none" / "x"), "/none/x: cannot be written: No such file or directory");
  fs::create_directories(scratch / "folder" / "x");
  EXPECT_HAS(write(scratch / "folder"), "/folder: cannot be replaced: ");
  EXPECT_EQ(testing::names_in(scratch.path()), (std::set<std::string>{"file", "folder"}));
}

TEST(SafetensorsUnwritable, TheUmaskDecidesWhoMayRead) {
  const Scratch scratch;
  const mode_t old = ::umask(027);
  write_safetensors(scratch / "x", {});
  ::umask(old);
  struct stat status {};
  ASSERT_EQ(::stat((scratch / "x").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(SafetensorsUnwritable, OnlyTemporaryFilesAreSwept) {
  const Scratch scratch;
  for (const char* name : {"x.tmp-12-0123456789abcdef", "x.tmp-12-0123456789abcde", "x.tmp--0123456789abcdef",
                           "x.tmp", "x.tmp-a-0123456789abcdef", "x.tmp-12-0123456789ABCDEF"})
    put(scratch / name, "");
  fs::create_directory(scratch / "y.tmp-12-0123456789abcdef");
  remove_stale_temporaries(scratch.path());
  EXPECT_EQ(testing::names_in(scratch.path()).size(), 6u);
  remove_stale_temporaries(scratch / "none");
}

}  // namespace
}  // namespace axial::app
