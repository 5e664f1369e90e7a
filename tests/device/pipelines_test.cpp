// Pipelines whose stages have a device each: every schedule, codec and carrier of messages gives
// the bits and the bytes of stages on the CPU; memory is as planned.
#include <array>

#include "parallel/transport/collectives.h"
#include "tests/device/late_runs.h"

namespace espalier::pipelines_test {
namespace {

using testing::Outcome;
using testing::run;
using testing::TempDir;

/// Each test runs on the CPU once, and on devices with each carrier: NCCL, the host, and a
/// transport that accepts all memory.
class Pipelines : public ::testing::Test {
 protected:
  io::Config config_for(const std::string& schedule) const {
    io::Config config = testing::tiny_config(dir_);
    config.model.layers = 4;
    config.train.steps = 3;
    config.train.micro_batch = 2;
    config.train.dtype = "bf16";
    config.parallel.pipeline = 2;
    config.parallel.schedule = schedule;
    // A fixed partition: measured times differ from run to run.
    const bool two = schedule == "interleaved" || schedule == "zb-v";
    config.parallel.partition = two ? std::vector<int64_t>{2, 1, 1, 2} : std::vector<int64_t>{3, 3};
    return config;
  }
  /// Calls body(link) with the transport of each carrier.
  template <class Body>
  static void for_links(const Body& body) {
    for (const std::string link : {"host", "mpi", "nccl"}) {
      SCOPED_TRACE(link);
      testing::copy_of_ranks() = link == "mpi" ? simt::copy_anywhere : nullptr;
      body(link);
    }
    testing::copy_of_ranks() = {};
  }
  static void expect_outcome_of_the_cpu(io::Config config, int ranks = 2);

  const TempDir dir_;
  const testing::LinkedDevices linked_;
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

void Pipelines::expect_outcome_of_the_cpu(io::Config config, int ranks) {
  const Outcome want = run(config, ranks);
  const auto bytes = bytes_of(config);
  EXPECT_EQ(std::ssize(bytes), config.train.steps);
  for_links([&](const std::string& link) {
    config.parallel.device_link = link;
    EXPECT_EQ(testing::run_late(config, ranks), want);
    EXPECT_EQ(bytes_of(config), bytes);
  });
}

TEST_F(Pipelines, HaveTheBitsAndBytesOfTheCpu) {
  for (const std::string schedule :
       {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "message-driven"}) {
    for (const std::string codec : {"fp32", "maxmin:8"}) {
      SCOPED_TRACE(schedule + " " + codec);
      io::Config config = config_for(schedule);
      config.parallel.activation_codec = codec;
      expect_outcome_of_the_cpu(config);
    }
  }
}

TEST_F(Pipelines, OfThreeStagesAndReplicas) {
  io::Config config = config_for("1f1b");
  config.train.steps = 4;
  config.train.micro_batch = 1;
  config.parallel.pipeline = 3;
  config.parallel.partition = {2, 2, 2};
  testing::prune_expanded(config);
  config.pruning.at_step = 2;
  expect_outcome_of_the_cpu(config, 3);
  expect_outcome_of_the_cpu(config, 6);
}

/// Both ends sum their shares of a gradient, once per step.
TEST_F(Pipelines, OfTiedEmbeddings) {
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
    expect_outcome_of_the_cpu(config, ranks);
  }
}

TEST_F(Pipelines, OfAsynchronousSteps) {
  for (const std::string prediction : {"none", "stash", "spectrain", "2bw"}) {
    SCOPED_TRACE(prediction);
    io::Config config = config_for("async");
    config.train.steps = 5;
    config.train.eval_every = 3;
    config.parallel.weight_prediction = prediction;
    expect_outcome_of_the_cpu(config);
  }
}

/// For any number of micro-batches.
TEST_F(Pipelines, TheHostWaitsForNoMessage) {
  for_links([&](const std::string& link) {
    for (const int64_t micro_batch : {6, 1}) {
      io::Config config = config_for("1f1b");
      config.train.micro_batch = micro_batch;
      config.parallel.device_link = link;
      config.parallel.check_every = 0;
      testing::on_ranks(2, [&](parallel::Communicator& comm) {
        train::TrainerOptions options = testing::late_options();
        std::optional<train::Trainer> trainer;
        int64_t before = 0;
        int64_t last = 0;
        options.on_step = [&](const train::StepReport&) {
          auto& queue = dynamic_cast<simt::Queue&>(*trainer->stage().stream().queue());
          const int64_t now = queue.waited() + queue.synchronized();
          last = now - std::exchange(before, now);
        };
        trainer.emplace(config, comm, options);
        trainer->run();
        // Fewer if a mark has already passed.
        EXPECT_LE(last, 3) << "losses of the step and of its evaluation, and the norm";
      });
    }
  });
}

/// Buffers of messages are where the plan has them.
TEST_F(Pipelines, HoldWhatWasPlanned) {
  for_links([&](const std::string& link) {
    for (const std::string schedule : {"1f1b", "zb-v", "message-driven"}) {
      io::Config config = config_for(schedule);
      config.train.steps = 2;
      config.model.tie_embeddings = schedule == "1f1b";  // and the share of the other end
      config.parallel.device_link = link;
      testing::train_late(config, 2, [&](train::Trainer& trainer, parallel::Communicator& comm) {
        const train::MemoryPlan& plan = trainer.fit().plan;
        constexpr auto kMessages = static_cast<size_t>(Memory::communication);
        constexpr size_t kCopies = 8192;  // copies of the inputs and losses of micro-batches
        std::array<double, 1> most{
            static_cast<double>(testing::expect_planned_messages(trainer, false))};
        parallel::all_reduce_small(comm, most, parallel::Combine::max);
        EXPECT_EQ(static_cast<size_t>(most[0]), plan.peak.at(kMessages));
        EXPECT_EQ(plan.peak.at(kMessages) > 0, link != "host" || schedule != "message-driven");
        EXPECT_EQ(plan.pinned.at(kMessages) > kCopies, link == "host");
      });
    }
  });
}

class PipelineLinks : public ::testing::Test {
 protected:
  PipelineLinks() {
    config_.parallel.pipeline = 2;
    config_.train.micro_batch = 6;
  }
  const testing::DrivenDevices driven_;
  const TempDir dir_;
  io::Config config_ = testing::tiny_config(dir_);
};

TEST_F(PipelineLinks, AutoTakesTheShortestWayThereIs) {
  {
    const testing::FakeNccl nccl;
    EXPECT_THAT(testing::notes_of(config_),
                HasSubstr("messages between stages go from GPU to GPU by NCCL 2.28.9"));
    config_.parallel.device_link = "host";
    EXPECT_THAT(testing::notes_of(config_),
                HasSubstr("messages between stages go through the host: "
                          "parallel.device_link = \"host\""));
  }
  const testing::FakeNccl none("/no/such/libnccl.so");
  config_.parallel.device_link = "auto";
  EXPECT_THAT(testing::notes_of(config_),
              HasSubstr("messages between stages go through the host: rank 0: "));
  EXPECT_THAT(testing::notes_of(config_), HasSubstr("MPI takes addresses of GPUs on 0 of 2 ranks"));
  testing::copy_of_ranks() = simt::copy_anywhere;
  EXPECT_THAT(testing::notes_of(config_),
              HasSubstr("messages between stages go from GPU to GPU by MPI"));
  EXPECT_THAT(testing::notes_of(config_, 2, false),
              ::testing::Not(HasSubstr("messages between stages")));
}

TEST_F(PipelineLinks, TheRequestedLinkOrAnError) {
  const testing::FakeNccl none("/no/such/libnccl.so");
  const auto expect_failure = [&](const std::string& link, bool device, const std::string& text) {
    config_.parallel.device_link = link;
    EXPECT_THAT([&] { testing::notes_of(config_, 2, device); },
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
}  // namespace espalier::pipelines_test
