// Sums over stages once per step, from device to device: each wait between queues is needed, and a
// rank that is silent or fails during a sum ends all ranks with a message.
#include <cmath>

#include "parallel/transport/collectives.h"
#include "parallel/transport/device/nccl_api.h"
#include "src/core/exact_sum.h"
#include "src/core/mirror.h"
#include "src/kernels/backend.h"
#include "src/train/exchange/pipeline_reduction.h"
#include "src/train/run/source.h"
#include "src/train/stage/layer_times.h"
#include "tests/device/late_runs.h"
#include "tests/support/failure.h"

namespace espalier::pipeline_reduction_test {
namespace {

using ::testing::AnyOf;
using testing::TempDir;

/// Two stages of a network whose embeddings are tied, with NCCL between their devices.
class PipelineReduction : public ::testing::Test {
 protected:
  PipelineReduction() {
    config_.model.tie_embeddings = true;
    config_.train.steps = 3;
    config_.parallel.pipeline = 2;
    config_.parallel.partition = {2, 2};
    config_.parallel.check_every = 0;
  }

  /// Error of the first rank that ends; `after` runs on its device after a backward.
  std::string error(const std::function<bool(parallel::Communicator&)>& after);

  const TempDir dir_;
  const testing::LinkedDevices linked_;
  io::Config config_ = testing::tiny_config(dir_);
};

/// Both ends fill their gradients and counts, and read the sums.
std::vector<float> sums_of(const io::Config& config) {
  std::vector<float> found;
  testing::on_ranks(2, [&](parallel::Communicator& comm) {
    const kernels::Kernels& table = testing::late_table();
    kernels::Backend backend(table, 1);
    Stream& stream = backend.stream();
    const auto make = [&](DType dtype, const Shape& shape) {
      return stream.arena().allocate(Memory::scratch, "array", dtype, shape);
    };
    const auto source = train::open_source(config);
    const train::ProblemShape problem = source->problem();
    const train::Layout layout =
        train::make_layout(config, 2, 1, train::estimated_times(config, problem));
    train::Ranks ranks(comm, layout.grid);
    train::Stage stage(config, problem, stream, table,
                       {.micro_batch = 1, .parts = layout.parts(ranks.stage())});
    train::PipelineReduction reduction(layout, ranks, stage, parallel::CarrierKind::nccl);
    sparse::Store& store = stage.store();
    const Tensor gradient = store.full_gradient(store.find(stage.tied_parameter()));
    const Buffer counts = make(DType::uint64, Shape{ExactSum::kWords});
    const Buffer read = make(DType::fp32, gradient.shape);
    const Buffer norm = make(DType::fp32, Shape{2});
    for (int step = 0; step < 2; ++step) {
      const auto value = static_cast<float>(1 + comm.rank() + step);
      table.fill(stream, {.x = gradient, .value = value});
      reduction.reduce_tied();
      table.cast(stream, {.x = gradient, .y = read.tensor()});
      table.fill(stream,
                 {.x = counts.tensor().as(DType::fp32, Shape{2 * ExactSum::kWords}), .value = 0});
      table.sum_squares(stream, kernels::SumSquaresArgs{.x = gradient, .counts = counts.tensor()});
      reduction.reduce_counts(counts.tensor());
      table.clip(stream, {.counts = counts.tensor(),
                          .norm = norm.tensor().elements(0, 1),
                          .factor = norm.tensor().elements(1, 1),
                          .clip = 1,
                          .scale = 1});
    }
    stream.synchronize();
    const Mirror sum(stream, read.tensor());
    const Mirror both(stream, norm.tensor());
    if (comm.rank() == 0) {
      found = {sum.read().host().get<float>()[0], both.read().host().get<float>()[0],
               static_cast<float>(gradient.count())};
    }
    parallel::barrier(comm);
  });
  return found;
}

/// Removing any of the waits gives a race.
TEST_F(PipelineReduction, NeedTheirWaits) {
  simt::forget_follow(-1);
  const std::vector<float> whole = sums_of(config_);
  const int64_t waits = simt::follows();
  EXPECT_EQ(waits, 2 * 2 * 4);  // ranks, steps; before and after shares and norm
  EXPECT_EQ(whole.at(0), 2 + 3);
  EXPECT_FLOAT_EQ(whole.at(1), std::sqrt(2 * 25 * whole.at(2)));
  for (int64_t number = 0; number < waits; ++number) {
    simt::forget_follow(number);
    try {
      EXPECT_EQ(sums_of(config_), whole);
      ADD_FAILURE() << "no race without wait " << number;
    } catch (const Error& error) {  // from the rank itself, or the error it received from the other
      EXPECT_THAT(error.what(), HasSubstr("race: "));
    }
  }
  simt::forget_follow(-1);
}

/// Called on the device of the first stage after its last backward of a step, until it returns
/// true.
thread_local std::function<bool()> after_backward;

void embed(Stream& stream, const kernels::EmbeddingBackwardArgs& args) {
  testing::late_table().embedding_backward(stream, args);
  if (auto* queue = dynamic_cast<simt::Queue*>(stream.queue()); queue != nullptr) {
    queue->enqueue_until(after_backward);
  }
}

const kernels::Kernels& table() {
  static const kernels::Kernels made = [] {
    kernels::Kernels table = testing::late_table();
    table.embedding_backward = embed;
    return table;
  }();
  return made;
}

std::string PipelineReduction::error(const std::function<bool(parallel::Communicator&)>& after) {
  config_.run.graphs = false;
  return failure_of([&] {
    testing::on_ranks(2, [&](parallel::Communicator& comm) {
      after_backward = [&] { return after(comm); };
      train::Trainer(config_, comm, {.resume = "none", .kernels = &table()}).run();
    });
  });
}

/// The last stage's device waits for the other share, and its host for the next message.
TEST_F(PipelineReduction, ADeviceThatHangsIsNamed) {
  config_.train.micro_batch = config_.train.global_batch;
  config_.parallel.timeout_s = 0.4;
  EXPECT_THAT(error([](parallel::Communicator& comm) { return comm.broken(); }),
              AllOf(HasSubstr("rank 0 did not answer rank 1 within 0.4 s while "),
                    AnyOf(HasSubstr("summing the gradient of tied embeddings"),
                          HasSubstr("receiving the activation of micro-batch 0 at stage 1"))));
}

TEST_F(PipelineReduction, AnErrorOfNccl) {
  EXPECT_THAT(error([this](parallel::Communicator&) {
                linked_.nccl.fail(1, parallel::nccl::kRemoteError);
                return true;
              }),
              AllOf(HasSubstr("NCCL 2.28.9 failed while"), HasSubstr("remote process exited")));
}

}  // namespace
}  // namespace espalier::pipeline_reduction_test
