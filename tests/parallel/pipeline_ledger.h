#pragma once
// Work for pipelines that can be checked to the bit: messages are rows of hashes. A stage's ledger
// depends on the messages it received and their order.
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "parallel/pipeline/runner.h"
#include "src/core/rng.h"

namespace espalier::parallel {

/// Output of a stage with another number of values on each side, computed from the message before.
inline std::vector<uint64_t> through(std::span<const uint64_t> values, uint64_t key, size_t count) {
  std::vector<uint64_t> result(count);
  for (size_t i = 0; i < count; ++i) {
    result[i] = mix(values[i % values.size()], mix(key, i));
  }
  return result;
}

struct Ledger {
  uint64_t forwards = 0, inputs = 0, weights = 0;
  bool operator==(const Ledger&) const = default;
};

class LedgerWork final : public PipelineWork {
 public:
  LedgerWork(int stages, std::vector<size_t> message_bytes, uint64_t seed)
      : stages_(stages), bytes_(std::move(message_bytes)), seed_(seed) {}

  Mark run(const Action& action, std::span<const std::byte> in, std::span<std::byte> out) override {
    if (before) {
      before(action);
    }
    Ledger& ledger = ledgers[action.stage];
    const auto key = mix(static_cast<uint64_t>(action.stage), 17);
    auto add = [&](uint64_t& to, std::span<const uint64_t> values) {
      for (const uint64_t value : values) {
        to = mix(to, value);
      }
    };
    if (action.kind == ActionKind::forward) {
      const auto x = in.empty() ? std::vector<uint64_t>{mix(seed_, action.micro_batch)} : read(in);
      add(ledger.forwards, x);
      write(through(x, key, count_of(action.stage)), out);
      kept_[{action.stage, action.micro_batch}] = x;
    }
    if (makes_input_gradient(action.kind)) {
      const auto x = kept_.at({action.stage, action.micro_batch});
      const auto dy = in.empty() ? through(x, mix(key, 3), 3) : read(in);
      add(ledger.inputs, dy);
      write(through(dy, mix(key, x[0]), count_of(action.stage - 1)), out);
      gradients_[{action.stage, action.micro_batch}] = dy;
    }
    if (makes_weight_gradient(action.kind)) {
      add(ledger.weights, gradients_.at({action.stage, action.micro_batch}));
      add(ledger.weights, kept_.at({action.stage, action.micro_batch}));
      kept_.erase({action.stage, action.micro_batch});
    }
    reduces += action.kind == ActionKind::reduce ? 1 : 0;
    steps += action.kind == ActionKind::step ? 1 : 0;
    return 0;
  }

  std::map<int, Ledger> ledgers;  ///< by stage
  int reduces = 0, steps = 0;
  std::function<void(const Action&)> before;

 private:
  static std::vector<uint64_t> read(std::span<const std::byte> bytes) {
    std::vector<uint64_t> values(bytes.size() / sizeof(uint64_t));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  static void write(const std::vector<uint64_t>& values, std::span<std::byte> to) {
    if (!to.empty()) {
      std::memcpy(to.data(), values.data(), to.size());
    }
  }
  /// Values between stages `boundary` and `boundary` + 1.
  size_t count_of(int boundary) const {
    const bool inside = boundary >= 0 && boundary + 1 < stages_;
    return inside ? bytes_[boundary] / sizeof(uint64_t) : 1;
  }

  int stages_;
  std::vector<size_t> bytes_;
  uint64_t seed_;
  std::map<std::pair<int, int>, std::vector<uint64_t>> kept_, gradients_;
};

/// Boundaries of different sizes: small ones, and ones that a transport sends without a copy.
inline std::vector<size_t> ledger_bytes(int stages) {
  std::vector<size_t> bytes;
  for (int boundary = 0; boundary + 1 < stages; ++boundary) {
    bytes.push_back(boundary % 3 == 1 ? 40008 : 8 * (static_cast<size_t>(boundary) + 3));
  }
  return bytes;
}

/// Expected ledgers of all stages, from one loop over micro-batches.
inline std::map<int, Ledger> serial_ledgers(int stages, int micro_batches, uint64_t seed) {
  const std::vector<size_t> bytes = ledger_bytes(stages);
  LedgerWork work(stages, bytes, seed);
  std::vector<std::byte> message, next;
  auto resized = [&](int boundary) {
    const bool inside = boundary >= 0 && boundary + 1 < stages;
    next.assign(inside ? bytes[boundary] : 0, {});
  };
  for (int i = 0; i < micro_batches; ++i) {
    message.clear();
    for (int stage = 0; stage < stages; ++stage) {
      resized(stage);
      work.run({ActionKind::forward, stage, i}, message, next);
      message = next;
    }
    message.clear();
    for (int stage = stages - 1; stage >= 0; --stage) {
      resized(stage - 1);
      work.run({ActionKind::backward, stage, i}, message, next);
      message = next;
    }
  }
  return work.ledgers;
}

}  // namespace espalier::parallel
