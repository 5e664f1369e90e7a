#include "src/train/exchange/device_collectives.h"

#include "parallel/reduction/flat.h"
#include "parallel/reduction/registry.h"
#include "src/train/exchange/gradient_wire.h"

namespace espalier::train {

std::string device_obstacle(const io::Config& config) {
  const io::ParallelConfig& parallel = config.parallel;
  const auto* reduction = find_or_null(parallel::reductions(), parallel.reduction);
  if (reduction != nullptr && !reduction->on_device) {  // null: "auto"
    return fmt::format("parallel.reduction = \"{}\" runs on the host only", parallel.reduction);
  }
  return {};
}

bool reduces_on_device(const io::Config& config, parallel::Communicator& world, Stream& stream) {
  const std::string& link = config.parallel.device_link;
  return world.size() > 1 && stream.arena().on_device() && (link == "auto" || link == "nccl") &&
         device_obstacle(config).empty() && parallel::NcclLink::obstacle(world, stream).empty();
}

DeviceCollectives::DeviceCollectives(const io::Config& config, parallel::Communicator& replicas,
                                     Stage& stage)
    : stage_(stage),
      bucket_bytes_(bucket_bytes(config)),
      link_(replicas, stage.stream()),
      gradient_wire_(stage.kernels(), link_.stream()),
      value_wire_(stage.kernels(), link_.stream()),
      low_rank_(stage.kernels(), link_.stream(), parallel::kDevicePanel),
      reduction_(link_, stage.kernels(), parallel::order_of(config.parallel.reduction)),
      factored_(link_, low_rank_, reduction_),
      gradients_(link_, factored_, config.parallel.overlap, parallel::kGradientText),
      values_(link_, reduction_, config.parallel.overlap, parallel::kValueText),
      copy_(stage.stream(), true) {}

void DeviceCollectives::begin(const Tensor& gradient) {
  gradient_ = gradient;
  reducing_ = false;
}

void DeviceCollectives::start_reduce(const Buckets& buckets) {
  const parallel::WireView wire{.wire = &gradient_wire_, .first = buckets.first};
  gradients_.begin(buckets.partition != nullptr
                       ? half_step(gradient_, parallel::Phases::scatter, *buckets.partition, wire)
                       : all_reduce_step(gradient_, buckets.boundaries, bucket_bytes_, wire));
  reducing_ = true;
}

void DeviceCollectives::gradient_ready(int64_t end) {
  if (reducing_) {
    gradients_.ready(end);
  }
}

const Tensor& DeviceCollectives::gradient_on_host() {
  copy_.begin(gradient_);
  copy_.fetch_all();
  return copy_.host();
}

void DeviceCollectives::all_reduce_counts(const Tensor& counts) {
  constexpr std::string_view kDoing = "summing the gradient's norm";
  link_.follow_compute();
  link_.group(kDoing, [&] { link_.sum_counts(counts); });
  link_.lead_compute();
}

void DeviceCollectives::all_gather(std::span<const sparse::SharedVector> vectors) {
  link_.follow_compute();
  link_.group("gathering norms and biases", [&] {
    for (const auto& [whole, shares] : vectors) {
      const auto of_rank = [&](int rank) {
        const auto [first, count] = shares[static_cast<size_t>(rank)];
        return parallel::flat_bytes(whole.elements(first, count));
      };
      for (int peer = 0; peer < link_.size(); ++peer) {
        if (peer != link_.rank()) {
          link_.send(peer, of_rank(link_.rank()), parallel::Traffic::other);
          link_.receive(peer, of_rank(peer));
        }
      }
    }
  });
  link_.lead_compute();
}

void DeviceCollectives::start_gather(const Tensor& value, const parallel::Partition& partition,
                                     bool coded) {
  values_.begin(half_step(value, parallel::Phases::gather, partition,
                          {.wire = coded ? &value_wire_ : nullptr}));
}

std::unique_ptr<TimedReduction> DeviceCollectives::timed_reduction(
    const kernels::WireFormat& format, int64_t elements) {
  const DeviceTimedReduction::Context context{
      .link = link_, .reduction = reduction_, .wire = gradient_wire_, .stage = stage_};
  return std::make_unique<DeviceTimedReduction>(context, format, elements);
}

}  // namespace espalier::train
