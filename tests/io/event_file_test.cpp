// Event files: records, messages and histograms, read back by tests/support/event_files.h.
#include "io/run/event_file.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "io/run/histogram.h"
#include "src/core/rng.h"
#include "tests/support/event_files.h"
#include "tests/support/failure.h"

namespace espalier::io::event_file_test {
namespace {

namespace fs = std::filesystem;
using testing::Event;
using testing::EventHistogram;
using ::testing::Pair;

/// RFC 3720, B.4, and the check value of the catalogue of CRCs.
TEST(Crc32c, OfKnownBytes) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
  std::string rising;
  for (char byte = 0; byte < 32; ++byte) {
    rising += byte;
  }
  EXPECT_EQ(crc32c(rising), 0x46DD794EU);
  EXPECT_EQ(crc32c(std::string(rising.rbegin(), rising.rend())), 0x113FDB5CU);
  EXPECT_EQ(testing::slow_crc32c("123456789"), 0xE3069283U);
}

class EventFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("espalier-events-{}", ::getpid());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// The bytes of the folder's only file.
  std::string bytes() const {
    const auto files = testing::event_files_in(folder_);
    EXPECT_EQ(files.size(), 1U);
    return testing::bytes_of_file(files.at(0));
  }

  fs::path folder_;
};

Histogram histogram_of(std::vector<float> values) {
  Histogram histogram;
  histogram.add(Tensor(values.data(), DType::fp32, Shape{static_cast<int64_t>(values.size())}));
  return histogram;
}

TEST_F(EventFileTest, IsReadBack) {
  const auto seconds = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const double before = seconds();
  EventWriter writer(folder_ / "deep", 7);
  EventSummary first;
  first.add_scalar("train/loss", 2.7182818284590452);
  first.add_scalar("bytes", 3e9);
  first.add_scalar("bad", std::nan(""));
  EventSummary second;
  second.add_histogram("weights/a", histogram_of({-0.5F, 0.25F, 0.26F, 3}));
  second.add_histogram("weights/none", histogram_of({}));
  writer.write(7, first.bytes() + second.bytes());
  writer.write(int64_t{1} << 40, second.bytes());
  writer.write(9, "");
  writer.sync();
  const auto paths = testing::event_files_in(folder_ / "deep");
  ASSERT_EQ(paths.size(), 1U);
  const auto file = testing::event_file_of(testing::bytes_of_file(paths[0]));
  EXPECT_EQ(file.error, "");
  ASSERT_EQ(file.events.size(), 5U);
  EXPECT_EQ(file.events[0].file_version, "brain.Event:2");
  EXPECT_FALSE(file.events[0].starts);
  EXPECT_TRUE(file.events[1].starts);
  EXPECT_EQ(file.events[1].step, 7);
  for (const Event& event : file.events) {
    EXPECT_GE(event.wall_time, before - 1);
    EXPECT_LE(event.wall_time, seconds() + 1);
  }
  const Event& whole = file.events[2];
  EXPECT_EQ(whole.step, 7);
  EXPECT_EQ(whole.scalars.at("train/loss"), 2.7182817F);
  EXPECT_EQ(whole.scalars.at("bytes"), 3e9F);
  EXPECT_TRUE(std::isnan(whole.scalars.at("bad")));
  EXPECT_EQ(whole.scalars.size(), 3U);
  const EventHistogram want{.min = -0.5,
                            .max = 3,
                            .num = 4,
                            .sum = -0.5 + 0.25F + 0.26F + 3.0,
                            .sum_squares = 0.25 + 0.0625 + double{0.26F} * 0.26F + 9,
                            .limits = {-0.5, 0.25, 0.28125, 3, 3.25},
                            .counts = {1, 0, 2, 0, 1}};
  EXPECT_EQ(whole.histograms.at("weights/a"), want);
  EXPECT_EQ(whole.histograms.size(), 1U);
  EXPECT_EQ(file.events[3].step, int64_t{1} << 40);
  EXPECT_EQ(file.events[3].histograms.at("weights/a"), want);
  EXPECT_EQ(file.events[4].step, 9);
}

TEST_F(EventFileTest, EveryChangedByteIsFound) {
  {
    EventWriter writer(folder_, 1);
    EventSummary summary;
    summary.add_scalar("train/loss", 1.5);
    writer.write(1, summary.bytes());
  }
  const std::string good = bytes();
  ASSERT_EQ(testing::event_file_of(good).error, "");
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1 << at % 8);
    EXPECT_EQ(testing::event_file_of(bad).error, "checksum") << at;
  }
  for (size_t size = 1; size < good.size(); ++size) {
    const auto torn = testing::event_file_of(std::string_view(good).substr(0, size));
    EXPECT_LT(torn.events.size(), 3U);
  }
}

TEST_F(EventFileTest, LaterAttemptsReplaceLaterSteps) {
  const auto attempt = [this](int64_t first, int64_t last, double loss) {
    EventWriter writer(folder_, first);
    for (int64_t step = first; step <= last; ++step) {
      EventSummary summary;
      summary.add_scalar("loss", loss);
      writer.write(step, summary.bytes());
    }
  };
  attempt(1, 5, 1);
  attempt(4, 4, 2);  // in the same second
  attempt(5, 6, 3);
  std::ofstream(folder_ / "events.out.tfevents.9999999999.other-program") << "";
  std::ofstream(folder_ / "events.out.tfevents.") << "";
  std::map<int64_t, float> shown;
  for (const auto& [step, event] : testing::shown_events(folder_)) {
    shown[step] = event.scalars.at("loss");
  }
  EXPECT_THAT(shown,
              ElementsAre(Pair(1, 1), Pair(2, 1), Pair(3, 1), Pair(4, 2), Pair(5, 3), Pair(6, 3)));
  remove_event_files(folder_);
  EXPECT_EQ(testing::event_files_in(folder_).size(), 2U) << "those of others stay";
  remove_event_files(folder_ / "none");
}

TEST_F(EventFileTest, AFolderThatIsAFileIsNamed) {
  std::ofstream(folder_.string()) << "text";
  EXPECT_THAT(failure_of([&] { EventWriter(folder_, 1); }), HasSubstr(folder_.string()));
}

/// Counts as the header of Histogram defines the bins.
void expect_counts(const Histogram& histogram, const std::vector<float>& values) {
  const auto buckets = histogram.buckets();
  ASSERT_FALSE(buckets.empty());
  EXPECT_LE(buckets.size(), 193U);
  EXPECT_GT(buckets.front().count, 0);
  EXPECT_GT(buckets.back().count, 0);
  EXPECT_GE(buckets.back().limit, histogram.max());
  double lower = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < buckets.size(); ++i) {
    const double limit = buckets[i].limit;
    ASSERT_LT(lower, limit);
    int64_t count = 0;
    for (const double value : values) {
      const bool below =
          limit < 0 || limit == std::numeric_limits<float>::max() ? value <= limit : value < limit;
      const bool above = lower < 0 ? value > lower : value >= lower;
      count += below && above ? 1 : 0;
    }
    EXPECT_EQ(buckets[i].count, count) << i << " " << lower << " " << limit;
    EXPECT_TRUE(i == 0 || count > 0 || buckets[i - 1].count > 0) << "empty neighbours are joined";
    lower = limit;
  }
}

TEST(Histogram, CountsAsDefined) {
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  constexpr float kMost = std::numeric_limits<float>::max();
  std::vector<std::vector<float>> cases{{0},
                                        {0, -0.0F, kTiny, -kTiny},
                                        {kMost, -kMost, 1},
                                        {1, 1, 1},
                                        {-1},
                                        {-0.5F, -0.5F, -0.25F, 0.25F, 0.5F, 0.5625F},
                                        {1e-20F, 1e-30F, -1e-25F},
                                        {5, 1e-3F, 1e-4F, -1e-3F, 0}};
  std::vector<float> normal;  // and pruned: none is small
  std::vector<float> pruned;
  for (uint32_t i = 0; i < 20'000; ++i) {
    const auto bits = philox(3, 0, i);
    const float value =
        0.02F * static_cast<float>(std::sqrt(-2 * std::log((bits[0] + 1.0) / 0x1p32)) *
                                   std::cos(bits[1] * 0x1p-32 * 6.2831853));
    normal.push_back(value);
    if (std::abs(value) > 0.01F) {
      pruned.push_back(value);
    }
  }
  cases.push_back(normal);
  cases.push_back(pruned);
  for (const auto& values : cases) {
    const Histogram histogram = histogram_of(values);
    expect_counts(histogram, values);
    double sum = 0;
    double squares = 0;
    for (const double value : values) {
      sum += value;
      squares += value * value;
    }
    EXPECT_EQ(histogram.count(), static_cast<int64_t>(values.size()));
    EXPECT_EQ(histogram.sum(), sum);
    EXPECT_EQ(histogram.sum_of_squares(), squares);
    EXPECT_EQ(histogram.min(), *std::ranges::min_element(values));
    EXPECT_EQ(histogram.max(), *std::ranges::max_element(values));
  }
  // The gap that pruning leaves is one empty bucket.
  const auto buckets = histogram_of(pruned).buckets();
  EXPECT_EQ(std::ranges::count(buckets, 0, &Histogram::Bucket::count), 1);
  EXPECT_LT(buckets.size(), 60U);
}

TEST(Histogram, OfHalvesInParts) {
  std::vector<float> values;
  std::vector<bf16> halves;
  for (int i = -50; i < 50; ++i) {
    halves.push_back(to_bf16(static_cast<float>(i) / 7));
    values.push_back(to_float(halves.back()));
  }
  halves.push_back(to_bf16(std::numeric_limits<float>::infinity()));
  halves.push_back(to_bf16(std::nanf("")));
  Histogram histogram;
  const Tensor all(halves.data(), DType::bf16, Shape{static_cast<int64_t>(halves.size())});
  histogram.add(all.elements(0, 30));
  histogram.add(all.elements(30, all.count() - 30));
  EXPECT_EQ(histogram.count(), 100) << "those that are not finite are left out";
  expect_counts(histogram, values);
  EXPECT_TRUE(Histogram().buckets().empty());
}

}  // namespace
}  // namespace espalier::io::event_file_test
