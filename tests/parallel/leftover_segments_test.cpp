// Files of killed jobs are removed from shared memory; those of living ones stay.
#include "parallel/transport/leftover_segments.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "tests/support/support.h"

namespace espalier::parallel::leftover_segments_test {
namespace {

namespace fs = std::filesystem;

class LeftoverSegments : public ::testing::Test {
 protected:
  fs::path make(const std::string& name, std::chrono::minutes age) const {
    const fs::path path = dir_ / name;
    std::ofstream(path) << std::string(4096, 'x');
    fs::last_write_time(path, fs::file_time_type::clock::now() - age);
    return path;
  }
  static std::string segment(int job, const char* transport = "vader") {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    return fmt::format("{}_segment.{}.{}.{:x}.0", transport, host.data(), ::getuid(), job);
  }
  int remove() const {
    return remove_leftover_segments(fs::canonical(dir_ / "."), std::chrono::minutes(1));
  }

  testing::TempDir dir_;
};

TEST_F(LeftoverSegments, AreRemovedOnceTheyAreOldAndUnmapped) {
  const fs::path old = make(segment(0x1a2b0001), std::chrono::minutes(2));
  const fs::path newer = make(segment(0x1a2b0003, "sm"), std::chrono::minutes(2));
  const fs::path roll = make(fmt::format("espalier-{}-4711", ::getuid()), std::chrono::hours(3));
  EXPECT_EQ(remove(), 3);
  EXPECT_FALSE(fs::exists(old));
  EXPECT_FALSE(fs::exists(newer));
  EXPECT_FALSE(fs::exists(roll));
  EXPECT_EQ(remove(), 0);
}

TEST_F(LeftoverSegments, StayWhileAProcessMapsThem) {
  const fs::path path = make(segment(0x1a2b0002), std::chrono::hours(3));
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0);
  void* memory = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ::close(file);
  EXPECT_EQ(remove(), 0);
  ::munmap(memory, 4096);
  EXPECT_EQ(remove(), 1);
}

TEST_F(LeftoverSegments, StayIfTheyAreNewOrNotOurs) {
  make(segment(0x1a2b0003), std::chrono::minutes(0));
  make(fmt::format("vader_segment.another-host.{}.1a2b0001.0", ::getuid()), std::chrono::hours(3));
  make(fmt::format("espalier-{}-4711", ::getuid() + 1), std::chrono::hours(3));
  make("data", std::chrono::hours(3));
  fs::create_directory(dir_ / fmt::format("espalier-{}-folder", ::getuid()));
  EXPECT_EQ(remove(), 0);
  EXPECT_EQ(remove_leftover_segments(dir_ / "missing", std::chrono::minutes(1)), 0);
}

}  // namespace
}  // namespace espalier::parallel::leftover_segments_test
