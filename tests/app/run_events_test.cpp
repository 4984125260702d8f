// TensorBoard event files.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "app/run/event_record.h"
#include "app/run/run_directory.h"
#include "app/run/run_error.h"
#include "tests/app/run_scratch.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;
using testing::get;
using testing::Scratch;

std::string hex(const std::string& bytes) {
  std::string text;
  char digits[3];
  for (const char c : bytes) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

TEST(EventRecord, Crc32cAgreesWithThePublishedValues) {
  EXPECT_EQ(crc32c("", 0), 0u);
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43u);
}

TEST(EventRecord, GoldenBytes) {
  // wall_time 1.5, step 3, summary { value { tag "a", simple_value 0.5 } }
  const std::string event = scalars_event(1.5, 3, {{"a", 0.5}});
  EXPECT_EQ(hex(event),
            "09000000000000f83f"
            "1003"
            "2a0a"
            "0a08"
            "0a0161"
            "150000003f");
  // length 23, its masked crc, the event, its masked crc; worked out apart from this code
  EXPECT_EQ(hex(frame_record(event)),
            "1700000000000000"
            "e7cef81e" +
                hex(event) + "de5768cd");
  EXPECT_EQ(hex(version_event(0)),
            "090000000000000000"
            "1000"
            "1a0d" +
                hex("brain.Event:2"));
  EXPECT_EQ(hex(restart_event(0, 300)),
            "090000000000000000"
            "10ac02"
            "3a02"
            "0801");
}

TEST(EventWriter, EveryRecordIsFramedAndFilesNeverCollide) {
  const Scratch scratch;
  {
    EventWriter first(scratch.path()), second(scratch.path(), 20);
    first.scalars(10, {{"loss", 0.25}, {"top1", std::numeric_limits<double>::quiet_NaN()}});
    second.scalars(20, {});
  }
  const auto names = testing::names_in(scratch.path());
  ASSERT_EQ(names.size(), 2u);
  std::size_t records = 0;
  for (const std::string& name : names) {
    EXPECT_EQ(name.rfind("events.out.tfevents.", 0), 0u);
    std::string bytes = get(scratch / name);
    while (!bytes.empty()) {
      std::uint64_t length = 0;
      ASSERT_GE(bytes.size(), 16u);
      std::memcpy(&length, bytes.data(), sizeof length);
      ASSERT_GE(bytes.size(), 16 + length);
      const std::string payload = bytes.substr(12, length);
      EXPECT_EQ(bytes.substr(0, 16 + length), frame_record(payload));
      bytes.erase(0, 16 + length);
      ++records;
    }
  }
  EXPECT_EQ(records, 5u);
  EXPECT_HAS(testing::message_of<RunError>([&] { EventWriter writer(scratch / "none"); }), "cannot be written");
}

TEST(EventWriter, ARunThatGoesOnElsewhereTakesItsFilesAlong) {
  const Scratch scratch;
  fs::create_directory(scratch / "old");
  fs::create_directory(scratch / "new");
  EventWriter(scratch / "old").scalars(10, {{"loss", 0.25}});
  testing::put(scratch / "old/events.out.tfevents.1.other", "x");
  const auto before = testing::names_in(scratch / "old");
  EventWriter writer(scratch / "new", 20, scratch / "old");
  EXPECT_EQ(testing::names_in(scratch / "old"), before);
  const auto names = testing::names_in(scratch / "new");
  EXPECT_EQ(names.size(), 2u);
  for (const std::string& old : before) {
    const bool ours = old != "events.out.tfevents.1.other";
    EXPECT_EQ(names.count(old), ours ? 1u : 0u) << old;
    if (ours) {
      EXPECT_EQ(get(scratch / "new" / old), get(scratch / "old" / old));
    }
  }
}

TEST(EventWriterPython, TensorBoardReadsIt) {
  if (std::system("python3 -c 'import tensorboard.backend.event_processing.event_accumulator' >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "python3 with the package tensorboard is not installed";
  const Scratch scratch;
  {
    EventWriter writer(scratch.path());
    for (int step = 1; step <= 4; ++step) writer.scalars(step, {{"loss", 1.0 / step}, {"top1", 0.25 * step}});
  }
  {
    EventWriter resumed(scratch.path(), 3);
    resumed.scalars(3, {{"loss", 7}});
  }
  const std::string script =
      "from tensorboard.backend.event_processing import event_accumulator as e\n"
      "a = e.EventAccumulator(\"" +
      scratch.path().string() +
      "\").Reload()\n"
      "print(a.Tags()[\"scalars\"], [(s.step, s.value) for s in a.Scalars(\"loss\")])";
  FILE* pipe = ::popen(("python3 -c '" + script + "' 2>/dev/null").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  char text[4096] = {};
  const std::size_t count = std::fread(text, 1, sizeof text - 1, pipe);
  EXPECT_EQ(::pclose(pipe), 0);
  EXPECT_EQ(std::string(text, count), "['loss', 'top1'] [(1, 1.0), (2, 0.5), (3, 7.0)]\n");
}

}  // namespace
}  // namespace axial::app
