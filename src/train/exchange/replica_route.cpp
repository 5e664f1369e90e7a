#include "src/train/exchange/replica_route.h"

#include "parallel/reduction/registry.h"
#include "src/kernels/backend.h"
#include "src/train/stage/stage.h"

namespace espalier::train {
namespace {

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

}  // namespace

ReplicaRoute::ReplicaRoute(const io::Config& config, parallel::Communicator& replicas, Stage& stage,
                           Kind kind)
    : replicas_(replicas),
      stage_(stage),
      reduction_name_(kind == Kind::device && config.parallel.reduction == "auto"
                          ? "sra"
                          : parallel::reduction_for(config.parallel.reduction, replicas.members())),
      link_(kind == Kind::device ? std::make_unique<parallel::NcclLink>(replicas, stage.stream())
                                 : nullptr),
      kernels_(link_ ? stage.kernels() : kernels::beside(stage.kernels())),
      stream_(link_ ? link_->stream() : stage.stream().host()),
      gradient_wire_(kernels_, stream_),
      value_wire_(kernels_, stream_) {
  parallel::BucketOptions options{.overlap = config.parallel.overlap, .compute = &stage.stream()};
  if (link_) {
    reduction_ = std::make_unique<parallel::DeviceReduction>(
        *link_, kernels_, parallel::order_of(config.parallel.reduction));
    gradients_ = std::make_unique<parallel::DeviceBuckets>(*link_, *reduction_, options,
                                                           parallel::kGradientText);
    values_ = std::make_unique<parallel::DeviceBuckets>(*link_, *reduction_, options,
                                                        parallel::kValueText);
    return;
  }
  Arena& arena = stage.store().arena().host();
  options.reduction = reduction_name_;
  gradients_ = std::make_unique<parallel::HostBuckets>(replicas, arena, options);
  options.reduction = "sra";  // gathers only
  values_ = std::make_unique<parallel::HostBuckets>(replicas, arena, options, parallel::kValueText);
}

std::unique_ptr<TimedReduction> ReplicaRoute::timed_reduction(const kernels::WireFormat& format,
                                                              int64_t elements) {
  if (link_) {
    const DeviceTimedReduction::Context context{
        .link = *link_, .reduction = *reduction_, .wire = gradient_wire_, .stage = stage_};
    return std::make_unique<DeviceTimedReduction>(context, format, elements);
  }
  const HostTimedReduction::Context context{.comm = replicas_,
                                            .kernels = kernels_,
                                            .stream = stream_,
                                            .reduction = reduction_name_,
                                            .type = stage_.store().gradient().dtype};
  return std::make_unique<HostTimedReduction>(context, format, elements);
}

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

}  // namespace espalier::train
