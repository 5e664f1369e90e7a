// The files of a run directory: metrics lines through crash and resume, atomic JSON, trace, lock.
#include "io/run/metrics.h"

#include <unistd.h>

#include <cmath>

#include "src/core/error.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace espalier::io::metrics_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

class MetricsTest : public ::testing::Test {
 protected:
  static ordered_json line(int64_t step, double loss) { return {{"step", step}, {"loss", loss}}; }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> out;
    for (const auto& entry : read_metrics(path_)) {
      out.push_back(entry["step"]);
    }
    return out;
  }

  const testing::TempDir folder_;
  const fs::path path_ = folder_ / "metrics.jsonl";
};

TEST_F(MetricsTest, EachLineIsThereAsSoonAsItIsWritten) {
  MetricsWriter writer(path_);
  EXPECT_TRUE(read_metrics(path_).empty());
  writer.write(line(1, 2.5));
  EXPECT_EQ(steps(), (std::vector<int64_t>{1}));
  writer.write(line(2, std::nan("")));
  EXPECT_EQ(read_metrics(path_)[0]["loss"], 2.5);
  EXPECT_TRUE(read_metrics(path_)[1]["loss"].is_null());
  EXPECT_THROW(writer.write({{"loss", 1.0}}), Bug);
}

TEST_F(MetricsTest, AfterAResumeEachStepStandsOnce) {
  {
    MetricsWriter writer(path_);
    for (int64_t step = 1; step <= 6; ++step) {
      writer.write(line(step, 1.0));
    }
  }
  std::ofstream(path_, std::ios::app) << R"({"step": 7, "lo)";
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 4, 5, 6})) << "a torn line is no line";
  {
    MetricsWriter writer(path_, 4);
    writer.write(line(5, 2.0));
  }
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(read_metrics(path_)[4]["loss"], 2.0);
  { const MetricsWriter writer(path_, 0); }
  EXPECT_TRUE(steps().empty());
  { MetricsWriter(path_, 3).write(line(4, 1.0)); }
  { const MetricsWriter fresh(path_); }
  EXPECT_TRUE(steps().empty()) << "a run that does not resume starts over";
  { MetricsWriter(folder_ / "other.jsonl", 3).write(line(4, 1.0)); }
  EXPECT_EQ(read_metrics(folder_ / "other.jsonl").size(), 1U);
}

TEST_F(MetricsTest, LinesWithZerosOfACrashAreIgnored) {
  const std::string zeros(20, '\0');
  std::ofstream(path_) << "{\"step\":1}\n{\"ste" << zeros << "{\"step\":3}\n{\"step\":4}\n"
                       << zeros;
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 4}));
  { const MetricsWriter writer(path_, 3); }
  EXPECT_EQ(steps(), (std::vector<int64_t>{1}));
}

TEST_F(MetricsTest, ALockFileThatACrashHasLeftIncompleteIsOne) {
  const fs::path run = folder_ / "run";
  fs::create_directories(run);
  const std::string zeros(9, '\0');
  for (const std::string& left : {std::string(), zeros, std::string("12"), "12 o" + zeros,
                                  "12 on" + zeros, std::string("12 on here"), "12 on he" + zeros}) {
    std::ofstream(run / ".lock") << left;
    EXPECT_EQ(failure_of([&] { const RunLock lock(run); }), "") << left;
  }
  for (const std::string& other : {std::string("12 apples"), std::string("years of work"),
                                   zeros + "12 on here", std::string(" on here")}) {
    std::ofstream(run / ".lock") << other;
    EXPECT_NE(failure_of([&] { const RunLock lock(run); }), "") << other;
  }
}

TEST_F(MetricsTest, ABadLineInTheMiddleIsNamed) {
  std::ofstream(path_) << "{\"step\":1}\nnonsense\n{\"step\":2}\n";
  EXPECT_THAT(failure_of([&] { read_metrics(path_); }), HasSubstr(":2:"));
  EXPECT_THAT(failure_of([&] { read_metrics(folder_ / "none"); }), HasSubstr("No such file"));
}

TEST_F(MetricsTest, JsonIsReplacedAsAWhole) {
  const fs::path path = folder_ / "deep" / "summary.json";
  write_json_atomically(path, {{"b", 1}, {"a", "\xff"}});
  write_json_atomically(path, {{"b", 2}, {"a", "text"}});
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(path))["b"], 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(path.parent_path()), fs::directory_iterator()), 1)
      << "no temporary file stays";
}

TEST_F(MetricsTest, TraceHasOneProcessARankAndOneThreadATrack) {
  Trace first;
  first.add(Track::compute, "forward \"x\"", 10.0, 10.5);
  first.add(Track::allreduce, "bucket 0", 10.25, 10.75);
  Trace second;
  second.add(Track::optimizer, "adamw\n", 3.0, 3.5);
  const std::vector<nlohmann::ordered_json> arguments{{{"stage", 0}}, {{"text", "\"\xff"}}};
  const std::array ranks{RankTrace{.rank = 0, .events = first.events(), .arguments = arguments},
                         RankTrace{.rank = 1, .events = second.events(), .clock_offset = 8.0}};
  const fs::path path = folder_ / "trace.json";
  write_trace(path, ranks);
  const auto trace = nlohmann::json::parse(std::ifstream(path));
  std::map<std::string, nlohmann::json> spans;
  std::map<std::pair<int, int>, std::string> threads;
  std::map<int, std::string> processes;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") {
      spans[event["name"]] = event;
    } else if (event["name"] == "thread_name") {
      threads[{event["pid"], event["tid"]}] = event["args"]["name"];
    } else if (event["name"] == "process_name") {
      processes[event["pid"]] = event["args"]["name"];
    }
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  EXPECT_EQ(threads.size(), 2U * kTracks);
  ASSERT_EQ(spans.size(), 3U);
  const auto& bucket = spans["bucket 0"];
  EXPECT_EQ(bucket["ts"], 250'000.0);
  EXPECT_EQ(bucket["dur"], 500'000.0);
  EXPECT_EQ((threads[{bucket["pid"], bucket["tid"]}]), name_of(Track::allreduce));
  EXPECT_EQ(spans["forward \"x\""]["ts"], 0.0);
  EXPECT_EQ(spans["adamw\n"]["ts"], 1'000'000.0);
  EXPECT_EQ(spans["forward \"x\""]["args"]["stage"], 0);
  EXPECT_TRUE(bucket["args"].contains("text"));
  EXPECT_FALSE(spans["adamw\n"].contains("args"));
  write_trace(path, {});
  EXPECT_TRUE(nlohmann::json::parse(std::ifstream(path))["traceEvents"].empty());
}

TEST_F(MetricsTest, ARunDirectoryHasOneUser) {
  const fs::path run = folder_ / "run";
  {
    const RunLock lock(run);
    const std::string message = failure_of([&] { const RunLock second(run); });
    EXPECT_THAT(message, HasSubstr(run.string()));
    EXPECT_THAT(message, HasSubstr(std::to_string(::getpid())));
    EXPECT_THAT(message, HasSubstr("--out"));
  }
  EXPECT_NO_THROW(RunLock{run}) << "the lock goes with its holder";
}

}  // namespace
}  // namespace espalier::io::metrics_test
