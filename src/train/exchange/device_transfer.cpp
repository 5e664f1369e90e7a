#include "src/train/exchange/device_transfer.h"

#include "parallel/reduction/flat.h"
#include "parallel/reduction/registry.h"
#include "src/train/exchange/gradient_wire.h"

namespace espalier::train {

std::string host_reason(const io::Config& config) {
  const io::ParallelConfig& parallel = config.parallel;
  const auto* reduction = find_or_null(parallel::reductions(), parallel.reduction);
  if (reduction != nullptr && !reduction->on_device) {  // null: "auto"
    return fmt::format("parallel.reduction = \"{}\" is a way of the host's", parallel.reduction);
  }
  return {};
}

bool sums_on_device(const io::Config& config, parallel::Communicator& world, Stream& stream) {
  const std::string& link = config.parallel.device_link;
  return world.size() > 1 && stream.arena().on_device() && (link == "auto" || link == "nccl") &&
         host_reason(config).empty() && parallel::NcclLink::obstacle(world, stream).empty();
}

DeviceTransfer::DeviceTransfer(const io::Config& config, parallel::Communicator& replicas,
                               Stage& stage)
    : stage_(stage),
      bucket_bytes_(bucket_bytes(config)),
      link_(replicas, stage.stream()),
      gradient_wire_(stage.kernels(), link_.stream()),
      value_wire_(stage.kernels(), link_.stream()),
      low_rank_(stage.kernels(), link_.stream(), parallel::kDevicePanel),
      reduction_(link_, stage.kernels(), parallel::order_of(config.parallel.reduction)),
      factored_(link_, low_rank_, reduction_),
      gradients_(link_, factored_, config.parallel.overlap,
                 {.span = "bucket", .doing = "summing gradients over all ranks"}),
      values_(link_, reduction_, config.parallel.overlap,
              {.span = "gather", .doing = "gathering values from all ranks"}),
      copy_(stage.stream(), true) {}

void DeviceTransfer::follow(const Tensor& gradient) {
  gradient_ = gradient;
  sums_ = false;
}

void DeviceTransfer::sum(const Cut& cut) {
  const parallel::WireView wire{.wire = &gradient_wire_, .first = cut.first};
  gradients_.begin(cut.partition != nullptr
                       ? half_step(gradient_, parallel::Phases::scatter, *cut.partition, wire)
                       : all_reduce_step(gradient_, cut.boundaries, bucket_bytes_, wire));
  sums_ = true;
}

void DeviceTransfer::ready(int64_t end) {
  if (sums_) {
    gradients_.ready(end);
  }
}

const Tensor& DeviceTransfer::on_host() {
  copy_.follow(gradient_);
  copy_.fetch_all();
  return copy_.host();
}

void DeviceTransfer::sum_counts(const Tensor& counts) {
  constexpr std::string_view kDoing = "summing the gradient's norm";
  link_.follow_compute();
  link_.group(kDoing, [&] { link_.sum_counts(counts); });
  link_.lead_compute();
}

void DeviceTransfer::collect(std::span<const sparse::SharedVector> vectors) {
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

void DeviceTransfer::gather(const Tensor& value, const parallel::Partition& partition, bool coded) {
  values_.begin(half_step(value, parallel::Phases::gather, partition,
                          {.wire = coded ? &value_wire_ : nullptr}));
}

std::unique_ptr<TimedSum> DeviceTransfer::timed_sum(const kernels::WireFormat& format,
                                                    int64_t elements) {
  const DeviceTimedSum::Means means{
      .link = link_, .reduction = reduction_, .wire = gradient_wire_, .stage = stage_};
  return std::make_unique<DeviceTimedSum>(means, format, elements);
}

}  // namespace espalier::train
