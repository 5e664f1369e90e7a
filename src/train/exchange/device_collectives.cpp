// Collectives over the replicas from device to device by NCCL: no array crosses the bus, codecs run
// on the devices, and the host waits for nothing. Error feedback and master copies stay in device
// memory.
#include "parallel/reduction/device/buckets.h"
#include "parallel/reduction/flat.h"
#include "parallel/reduction/registry.h"
#include "src/train/exchange/replica_collectives.h"
#include "src/train/stage/stage.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {

std::string device_obstacle(const io::Config& config) {
  const io::ParallelConfig& parallel = config.parallel;
  if (parallel.device_link == "host" || parallel.device_link == "mpi") {
    return fmt::format("parallel.device_link = \"{}\"", parallel.device_link);
  }
  const auto* reduction = find_or_null(parallel::reductions(), parallel.reduction);
  if (reduction != nullptr && !reduction->on_device) {  // null: "auto"
    return fmt::format("parallel.reduction = \"{}\" runs on the host only", parallel.reduction);
  }
  return {};
}

std::string device_obstacle(const io::Config& config, parallel::Communicator& ranks,
                            Stream& stream) {
  const std::string why = device_obstacle(config);
  return why.empty() ? parallel::NcclLink::obstacle(ranks, stream) : why;
}

namespace {

class DeviceCollectives final : public ReplicaCollectives {
 public:
  DeviceCollectives(const io::Config& config, parallel::Communicator& replicas, Stage& stage)
      : stage_(stage),
        bucket_bytes_(bucket_bytes(config)),
        link_(replicas, stage.stream()),
        gradient_wire_(stage.kernels(), link_.stream()),
        value_wire_(stage.kernels(), link_.stream()),
        reduction_(link_, stage.kernels(), parallel::order_of(config.parallel.reduction)),
        gradients_(link_, reduction_, config.parallel.overlap, parallel::kGradientText),
        values_(link_, reduction_, config.parallel.overlap, parallel::kValueText),
        copy_(stage.stream(), true) {}

  parallel::Wire& gradient_wire() override { return gradient_wire_; }
  parallel::Wire& value_wire() override { return value_wire_; }

  void begin(const Tensor& gradient) override {
    gradient_ = gradient;
    reducing_ = false;
  }

  void start_reduce(const Buckets& buckets) override {
    const parallel::WireView wire{.wire = &gradient_wire_, .first = buckets.first};
    gradients_.begin(buckets.partition != nullptr
                         ? half_step(gradient_, parallel::Phases::scatter, *buckets.partition, wire)
                         : all_reduce_step(gradient_, buckets.boundaries, bucket_bytes_, wire));
    reducing_ = true;
  }

  void gradient_ready(int64_t end) override {
    if (reducing_) {
      gradients_.ready(end);
    }
  }

  const Tensor& gradient_on_host() override {
    copy_.begin(gradient_);
    copy_.fetch_all();
    return copy_.host();
  }

  void finish_reduce() override { gradients_.finish(); }

  void start_gather(const Tensor& value, const parallel::Partition& partition,
                    bool coded) override {
    values_.begin(half_step(value, parallel::Phases::gather, partition,
                            {.wire = coded ? &value_wire_ : nullptr}));
  }
  void value_ready(int64_t end) override { values_.ready(end); }
  void finish_gather() override { values_.finish(); }

  std::unique_ptr<TimedReduction> timed_reduction(const kernels::WireFormat& format,
                                                  int64_t elements) override {
    const DeviceTimedReduction::Context context{
        .link = link_, .reduction = reduction_, .wire = gradient_wire_, .stage = stage_};
    return std::make_unique<DeviceTimedReduction>(context, format, elements);
  }

  bool on_device() const override { return true; }

  void all_reduce_counts(const Tensor& counts) override {
    link_.follow_compute();
    link_.group("summing the gradient's norm", [&] { link_.sum_counts(counts); });
    link_.lead_compute();
  }

  void all_gather(std::span<const sparse::SharedVector> vectors) override {
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

 private:
  Stage& stage_;
  size_t bucket_bytes_;
  parallel::NcclLink link_;
  parallel::Wire gradient_wire_, value_wire_;
  parallel::DeviceReduction reduction_;
  parallel::DeviceBuckets gradients_, values_;
  Tensor gradient_;
  HostCopy copy_;          ///< for codecs that are chosen by gradients
  bool reducing_ = false;  ///< `start_reduce` was called for this gradient
};

}  // namespace

std::unique_ptr<ReplicaCollectives> device_collectives(const io::Config& config,
                                                       parallel::Communicator& replicas,
                                                       Stage& stage) {
  return std::make_unique<DeviceCollectives>(config, replicas, stage);
}

}  // namespace espalier::train
