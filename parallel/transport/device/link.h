#pragma once
// Interface that sums between devices need from a group of ranks: messages between the memories of
// their devices, in queue order (nccl_link.h). PlannedLink implements it for plans, without moving
// data.
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "src/core/stream.h"

namespace espalier::parallel {

class DeviceLink {
 public:
  DeviceLink() = default;
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;
  virtual ~DeviceLink() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// For kernels between messages.
  virtual Stream& stream() = 0;
  /// Orders the following messages after all work enqueued on the compute stream so far.
  virtual void follow_compute() = 0;
  /// Orders the kernels enqueued on the compute stream from now on after these messages.
  virtual void lead_compute() = 0;
  /// Groups the messages that `calls` starts. `doing` is text for PeerLost, as in "summing
  /// gradients".
  virtual void group(std::string_view doing, const std::function<void()>& calls) = 0;
  virtual void send(int to, std::span<const std::byte> data) = 0;
  virtual void receive(int from, std::span<std::byte> data) = 0;
  /// In place, summed in an order that all ranks share; fp32, bf16 or fp16.
  virtual void all_reduce(const Tensor& data) = 0;
  /// As all_reduce, but only rank `root` gets the sum; data of the other ranks is unchanged.
  virtual void reduce(int root, const Tensor& data) = 0;
  /// Makes the work enqueued since the last `follow_compute` a span on Track::allreduce of the
  /// current trace, which must outlive the link.
  virtual void trace(std::string name) = 0;
};

/// One rank of `size` ranks, on a dry arena.
class PlannedLink final : public DeviceLink {
 public:
  PlannedLink(int rank, int size, Stream& stream) : rank_(rank), size_(size), stream_(stream) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Stream& stream() override { return stream_; }
  void follow_compute() override {}
  void lead_compute() override {}
  void group(std::string_view, const std::function<void()>& calls) override { calls(); }
  void send(int, std::span<const std::byte>) override {}
  void receive(int, std::span<std::byte>) override {}
  void all_reduce(const Tensor&) override {}
  void reduce(int, const Tensor&) override {}
  void trace(std::string) override {}

 private:
  int rank_, size_;
  Stream& stream_;
};

}  // namespace espalier::parallel
