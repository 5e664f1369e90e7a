#include "src/train/exchange.h"

#include <algorithm>

#include "parallel/collectives.h"

namespace espalier::train {
namespace {

size_t bucket_bytes(const io::Config& config) {
  return static_cast<size_t>(config.parallel.bucket_mb * 1024 * 1024);
}

parallel::BucketOptions bucket_options(const io::Config& config) {
  parallel::BucketOptions options;
  options.bucket_bytes = bucket_bytes(config);
  options.overlap = config.parallel.overlap;
  return options;
}

}  // namespace

std::shared_ptr<Shards> make_shards(const io::Config& config, parallel::Communicator& comm) {
  if (config.parallel.zero == 0 || comm.size() == 1) {
    return {};
  }
  const size_t element = size_of(store_options(config, true).gradient);
  return std::make_shared<Shards>(
      comm, Shards::Options{.bucket_bytes = bucket_bytes(config), .element_bytes = element});
}

Exchange::Exchange(const io::Config& config, parallel::Communicator& comm, Stage& stage,
                   std::shared_ptr<Shards> shards)
    : comm_(comm),
      stage_(stage),
      shards_(std::move(shards)),
      buckets_(comm, stage.store().arena(), bucket_options(config)),
      gather_(comm, stage.store().arena(), bucket_options(config)) {}

void Exchange::begin() {
  const Tensor gradient = stage_.store().gradient();
  if (shards_) {
    buckets_.begin(gradient, shards_->partition());
  } else {
    buckets_.begin(gradient, stage_.boundaries());
  }
}

optim::StepResult Exchange::update(int64_t step, double lr) {
  return shards_ ? sharded_update(step, lr) : stage_.update(step, lr);
}

/// A bucket's values travel while the next are stepped.
optim::StepResult Exchange::sharded_update(int64_t step, double lr) {
  const parallel::Partition& partition = shards_->partition();
  sparse::Store& store = stage_.store();
  bool begun = false;
  const optim::StepHooks hooks{
      .sum =
          [&](std::span<double> values) {
            parallel::all_reduce_small(comm_, values, parallel::Combine::sum);
          },
      .stepped =
          [&](int64_t end) {
            if (!begun) {
              gather_.begin(store.value(), partition);
              begun = true;
            }
            const auto open = std::ranges::upper_bound(partition.ends, end);
            if (open != partition.ends.begin()) {
              gather_.ready(static_cast<size_t>(open - partition.ends.begin()) - 1);
            }
          }};
  const optim::StepResult result = stage_.update(step, lr, hooks);
  if (result.applied) {
    gather_.finish();
    store.refresh_all();
  }
  return result;
}

}  // namespace espalier::train
