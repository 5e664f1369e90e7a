// Collectives over the replicas through the host: the communicator's messages, the host's codecs.
// On a device each array has a pinned copy on the host (HostCopy).
#include "parallel/reduction/buckets.h"
#include "parallel/reduction/registry.h"
#include "src/kernels/backend.h"
#include "src/train/exchange/replica_collectives.h"
#include "src/train/stage/stage.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {
namespace {

/// The reduction that `parallel.reduction` selects for these ranks.
std::string reduction_name(const io::Config& config, const parallel::Communicator& comm) {
  const std::string& wanted = config.parallel.reduction;
  return wanted == "auto" ? std::string(parallel::best_reduction(comm.members())) : wanted;
}

parallel::HostBuckets::MakeReduction reduction_of(const io::Config& config,
                                                  parallel::Communicator& comm) {
  return [name = reduction_name(config, comm)](parallel::Communicator& among, Arena& arena) {
    return parallel::make_reduction(name, among, arena);
  };
}

/// A reduction on memory of its own.
class HostTimedReduction final : public TimedReduction {
 public:
  struct Context {
    parallel::Communicator& comm;
    const kernels::Kernels& kernels;
    Stream& stream;
    std::string reduction;  ///< parallel/reduction/registry.h
    DType type;             ///< of the values
  };
  HostTimedReduction(const Context& context, const kernels::WireFormat& format, int64_t elements)
      : context_(context),
        format_(format),
        memory_(random_values(context.type, elements)),
        x_{memory_.data(), context.type, Shape{elements}},
        wire_(context.kernels, context.stream, one_segment(format, elements)),
        reduction_(
            parallel::make_reduction(context.reduction, context.comm, context.stream.arena())) {}

  void reduce() override {
    reduction_->start({.data = x_, .wire = &wire_});
    reduction_->wait(context_.comm);
  }

  /// The codec kernels read fp32.
  void encode_decode() override {
    if (codes_.empty()) {
      values_ = random_values(DType::fp32, x_.count());
      codes_.resize(kernels::wire_bytes(format_, x_.count()));
    }
    const Tensor values{values_.data(), DType::fp32, x_.shape};
    context_.kernels.encode(context_.stream, {.x = values, .wire = codes_, .format = format_});
    context_.kernels.decode(context_.stream, {.wire = codes_, .y = values, .format = format_});
  }

 private:
  Context context_;
  kernels::WireFormat format_;
  std::vector<std::byte> memory_, values_, codes_;
  Tensor x_;
  parallel::Wire wire_;
  std::unique_ptr<parallel::Reduction> reduction_;
};

class HostCollectives final : public ReplicaCollectives {
 public:
  HostCollectives(const io::Config& config, parallel::Communicator& replicas, Stage& stage)
      : timing_{.comm = replicas,
                .kernels = kernels::beside(stage.kernels()),
                .stream = stage.stream().host(),
                .reduction = reduction_name(config, replicas),
                .type = stage.store().gradient().dtype},
        gradient_wire_(timing_.kernels, timing_.stream),
        value_wire_(timing_.kernels, timing_.stream),
        bucket_bytes_(bucket_bytes(config)),
        buckets_(replicas, stage.store().arena().host(), {.overlap = config.parallel.overlap},
                 parallel::kGradientText, reduction_of(config, replicas)),
        gather_(replicas, stage.store().arena().host(), {.overlap = config.parallel.overlap},
                parallel::kValueText),
        gradient_(stage.stream(), replicas.size() > 1),
        value_(stage.stream(), replicas.size() > 1) {}

  parallel::Wire& gradient_wire() override { return gradient_wire_; }
  parallel::Wire& value_wire() override { return value_wire_; }

  void begin(const Tensor& gradient) override {
    gradient_.begin(gradient);
    reducing_ = false;
  }

  void start_reduce(const Buckets& buckets) override {
    const parallel::WireView wire{.wire = &gradient_wire_, .first = buckets.first};
    buckets_.begin(
        buckets.partition != nullptr
            ? half_step(gradient_.host(), parallel::Phases::scatter, *buckets.partition, wire)
            : all_reduce_step(gradient_.host(), buckets.boundaries, bucket_bytes_, wire));
    reducing_ = true;
  }

  void gradient_ready(int64_t end) override {
    gradient_.fetch(end);
    if (reducing_) {
      buckets_.ready(gradient_.arrived());
    }
  }

  const Tensor& gradient_on_host() override {
    gradient_.fetch_all();
    return gradient_.host();
  }

  void finish_reduce() override {
    gradient_.fetch_all();
    buckets_.finish();
    gradient_.write_back();
  }

  void start_gather(const Tensor& value, const parallel::Partition& partition,
                    bool coded) override {
    value_.begin(value);
    gather_.begin(half_step(value_.host(), parallel::Phases::gather, partition,
                            {.wire = coded ? &value_wire_ : nullptr}));
  }

  void value_ready(int64_t end) override {
    value_.fetch(end);
    gather_.ready(value_.arrived());
  }

  void finish_gather() override {
    value_.fetch_all();
    gather_.finish();
    value_.write_back();
  }

  std::unique_ptr<TimedReduction> timed_reduction(const kernels::WireFormat& format,
                                                  int64_t elements) override {
    return std::make_unique<HostTimedReduction>(timing_, format, elements);
  }

 private:
  HostTimedReduction::Context timing_;
  parallel::Wire gradient_wire_, value_wire_;
  size_t bucket_bytes_;
  parallel::HostBuckets buckets_, gather_;
  HostCopy gradient_, value_;
  bool reducing_ = false;  ///< `start_reduce` was called for this gradient
};

}  // namespace

std::unique_ptr<ReplicaCollectives> host_collectives(const io::Config& config,
                                                     parallel::Communicator& replicas,
                                                     Stage& stage) {
  return std::make_unique<HostCollectives>(config, replicas, stage);
}

}  // namespace espalier::train
