// Pipelines whose stages have a device each: every schedule, codec and carrier of messages gives
// the bits and the bytes of stages on the CPU; memory is as planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <mutex>

#include "parallel/transport/collectives.h"
#include "src/kernels/backend.h"
#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::run;
using testing::TempDir;

/// Ranks whose devices advance while hosts wait, with NCCL, and a transport that accepts all
/// memory.
class Pipelines : public ::testing::TestWithParam<std::string> {
 protected:
  Pipelines() {
    testing::while_ranks_wait() = simt::drive_queues;
    testing::copy_of_ranks() = GetParam() == "mpi" ? simt::copy_anywhere : nullptr;
    nccl_.connect(true);
  }
  ~Pipelines() override {
    testing::while_ranks_wait() = {};
    testing::copy_of_ranks() = {};
  }

  io::Config config_for(const std::string& schedule) const {
    io::Config config = testing::tiny_config(dir_);
    config.model.layers = 4;
    config.train.steps = 4;
    config.train.micro_batch = 2;
    config.train.dtype = "bf16";
    config.parallel.pipeline = 2;
    config.parallel.schedule = schedule;
    // A fixed partition: measured times differ from run to run.
    const bool two = schedule == "interleaved" || schedule == "zb-v";
    config.parallel.partition = two ? std::vector<int64_t>{2, 1, 1, 2} : std::vector<int64_t>{3, 3};
    return config;
  }
  /// With devices.
  Outcome run_late(io::Config config, int ranks = 2) const {
    config.parallel.device_link = GetParam();
    train::TrainerOptions late;
    late.kernels = &testing::late_table();
    return run(config, ranks, late);
  }

  TempDir dir_;
  testing::FakeNccl nccl_;
};

/// Bytes sent by rank 0 in each step: between stages, and in total.
std::vector<std::pair<int64_t, int64_t>> bytes_of(const io::Config& config) {
  std::vector<std::pair<int64_t, int64_t>> bytes;
  std::ifstream lines(std::filesystem::path(config.run.out) / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    bytes.emplace_back(json.at("p2p_bytes"), json.at("comm_bytes_sent"));
  }
  return bytes;
}

TEST_P(Pipelines, HaveTheBitsAndBytesOfTheCpu) {
  for (const std::string schedule :
       {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "message-driven"}) {
    for (const std::string codec : {"fp32", "maxmin:8"}) {
      SCOPED_TRACE(schedule + " " + codec);
      io::Config config = config_for(schedule);
      config.parallel.activation_codec = codec;
      const Outcome want = run(config, 2);
      const auto bytes = bytes_of(config);
      EXPECT_EQ(bytes.size(), 4U);
      EXPECT_EQ(run_late(config), want);
      EXPECT_EQ(bytes_of(config), bytes);
    }
  }
}

TEST_P(Pipelines, OfThreeStagesAndReplicas) {
  io::Config config = config_for("1f1b");
  config.train.micro_batch = 1;
  config.parallel.pipeline = 3;
  config.parallel.partition = {2, 2, 2};
  testing::prune_expanded(config);
  config.pruning.at_step = 2;
  EXPECT_EQ(run_late(config, 3), run(config, 3));
  EXPECT_EQ(run_late(config, 6), run(config, 6));
}

/// Both ends sum their shares of a gradient, once per step.
TEST_P(Pipelines, OfTiedEmbeddings) {
  struct Shape {
    std::string schedule;
    int64_t stages = 2;
    int ranks = 2;
    int64_t zero = 0;
  };
  for (const auto& [schedule, stages, ranks, zero] :
       std::vector<Shape>{{"1f1b", 2, 4, 0},
                          {"gpipe", 3, 3, 0},
                          {"interleaved", 2, 2, 0},
                          {"zb-h1", 2, 4, 1},
                          {"zb-v", 2, 2, 0},
                          {"message-driven", 2, 2, 0}}) {
    SCOPED_TRACE(fmt::format("{}, {} ranks, zero {}", schedule, ranks, zero));
    io::Config config = config_for(schedule);
    config.model.tie_embeddings = true;
    config.parallel.zero = zero;
    config.parallel.pipeline = stages;
    if (stages == 3) {
      config.parallel.partition = {2, 2, 2};
    }
    const Outcome want = run(config, ranks);
    const auto bytes = bytes_of(config);
    EXPECT_EQ(run_late(config, ranks), want);
    EXPECT_EQ(bytes_of(config), bytes);
  }
}

TEST_P(Pipelines, OfAsynchronousSteps) {
  for (const std::string prediction : {"none", "stash", "spectrain", "2bw"}) {
    SCOPED_TRACE(prediction);
    io::Config config = config_for("async");
    config.train.steps = 6;
    config.train.eval_every = 3;
    config.parallel.weight_prediction = prediction;
    EXPECT_EQ(run_late(config), run(config, 2));
  }
}

/// For any number of micro-batches.
TEST_P(Pipelines, TheHostWaitsForNoMessage) {
  std::vector<std::array<int64_t, 2>> waits;  // by rank
  for (const int64_t micro_batch : {6, 3, 1}) {
    io::Config config = config_for("1f1b");
    config.train.micro_batch = micro_batch;
    config.parallel.device_link = GetParam();
    config.parallel.check_every = 0;
    waits.emplace_back();
    parallel::run_ranks(
        2,
        [&](parallel::Communicator& comm) {
          train::TrainerOptions late{.resume = "none", .kernels = &testing::late_table()};
          std::optional<train::Trainer> trainer;
          int64_t before = 0;
          int64_t each = 0;
          late.on_step = [&](const train::StepReport&) {
            auto& queue = dynamic_cast<simt::Queue&>(*trainer->stage().stream().queue());
            const int64_t now = queue.waited() + queue.synchronized();
            each = now - before;
            before = now;
          };
          trainer.emplace(config, comm, late);
          trainer->run();
          waits.back().at(static_cast<size_t>(comm.rank())) = each;
        },
        {.while_waiting = testing::while_ranks_wait(), .copy = testing::copy_of_ranks()});
  }
  // Fewer if a mark has already passed.
  EXPECT_THAT(waits, ::testing::Each(::testing::Each(::testing::Le(3))))
      << "losses of the step and of its evaluation, and the norm";
}

/// Buffers of messages are where the plan has them.
TEST_P(Pipelines, HoldWhatWasPlanned) {
  for (const std::string schedule : {"1f1b", "zb-v", "message-driven"}) {
    io::Config config = config_for(schedule);
    config.model.tie_embeddings = schedule == "1f1b";  // and the share of the other end
    config.parallel.device_link = GetParam();
    parallel::run_ranks(
        2,
        [&](parallel::Communicator& comm) {
          train::Trainer trainer(config, comm,
                                 {.resume = "none", .kernels = &testing::late_table()});
          trainer.run();
          const train::MemoryPlan& plan = trainer.fit().plan;
          constexpr auto kMessages = static_cast<size_t>(Memory::communication);
          Arena& arena = trainer.arena();
          std::array<double, 1> most{static_cast<double>(arena.use(Memory::communication).peak)};
          parallel::all_reduce_small(comm, most, parallel::Combine::max);
          EXPECT_EQ(static_cast<size_t>(most[0]), plan.peak.at(kMessages));
          EXPECT_EQ(plan.peak.at(kMessages) > 0,
                    GetParam() != "host" || schedule != "message-driven");
          // Allowance for copies of the inputs and losses of micro-batches.
          constexpr size_t kCopies = 8192;
          EXPECT_EQ(plan.pinned.at(kMessages) > kCopies, GetParam() == "host");
          EXPECT_LT(arena.host().use(Memory::communication).peak,
                    plan.pinned.at(kMessages) + kCopies);
        },
        {.while_waiting = testing::while_ranks_wait(), .copy = testing::copy_of_ranks()});
  }
}

INSTANTIATE_TEST_SUITE_P(Links, Pipelines, ::testing::Values("host", "mpi", "nccl"),
                         [](const auto& one) { return one.param; });

/// The run's note on the route of its messages.
std::string way_of(const io::Config& config, bool device = true) {
  std::mutex mutex;
  std::string notes;
  train::TrainerOptions late;
  late.kernels = device ? &testing::late_table() : nullptr;
  late.on_note = [&](const std::string& note) {
    const std::scoped_lock lock(mutex);
    notes += note + "\n";
  };
  late.stop_after = 1;
  run(config, 2, late);
  return notes;
}

class PipelineLinks : public ::testing::Test {
 protected:
  PipelineLinks() {
    testing::while_ranks_wait() = simt::drive_queues;
    config_.parallel.pipeline = 2;
    config_.train.micro_batch = 6;
  }
  ~PipelineLinks() override {
    testing::while_ranks_wait() = {};
    testing::copy_of_ranks() = {};
  }
  TempDir dir_;
  io::Config config_ = testing::tiny_config(dir_);
};

TEST_F(PipelineLinks, AutoTakesTheShortestWayThereIs) {
  {
    const testing::FakeNccl nccl;
    EXPECT_THAT(way_of(config_),
                HasSubstr("messages between stages go from GPU to GPU by NCCL 2.28.9"));
    config_.parallel.device_link = "host";
    EXPECT_THAT(way_of(config_), HasSubstr("messages between stages go through the host: "
                                           "parallel.device_link = \"host\""));
  }
  const testing::FakeNccl none("/no/such/libnccl.so");
  config_.parallel.device_link = "auto";
  EXPECT_THAT(way_of(config_), HasSubstr("messages between stages go through the host: rank 0: "));
  EXPECT_THAT(way_of(config_), HasSubstr("MPI takes addresses of GPUs on 0 of 2 ranks"));
  testing::copy_of_ranks() = simt::copy_anywhere;
  EXPECT_THAT(way_of(config_), HasSubstr("messages between stages go from GPU to GPU by MPI"));
  EXPECT_THAT(way_of(config_, false), ::testing::Not(HasSubstr("messages between stages")));
}

TEST_F(PipelineLinks, WhatIsAskedForOrAnError) {
  const testing::FakeNccl none("/no/such/libnccl.so");
  const auto expect_failure = [&](const std::string& link, bool device, const std::string& text) {
    config_.parallel.device_link = link;
    EXPECT_THAT([&] { way_of(config_, device); },
                ::testing::ThrowsMessage<Failure>(::testing::AllOf(
                    HasSubstr("parallel.device_link = \"" + link + "\" is not available: "),
                    HasSubstr(text))));
  };
  expect_failure("nccl", true, "/no/such/libnccl.so");
  expect_failure("nccl", false, "it computes on no GPU");
  expect_failure("mpi", true, "MPI takes addresses of GPUs on 0 of 2 ranks");
  expect_failure("mpi", false, "computes on no GPU");
}

}  // namespace
}  // namespace espalier
