#include "src/train/exchange/agreement.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "parallel/transport/collectives.h"
#include "parallel/transport/digest.h"
#include "src/config/dump.h"
#include "src/core/checksum.h"
#include "src/core/mirror.h"
#include "src/core/trace.h"

namespace espalier::train {

std::string broadcast_text(parallel::Communicator& comm, std::string text) {
  uint64_t length = text.size();
  parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(&length, 1)));
  text.resize(length);
  if (length > 0) {
    parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(text)));
  }
  return text;
}

void agree(parallel::Communicator& comm, const std::optional<Failure>& failure) {
  // One broadcast in the usual case: the text begins with the kind, and is empty without a failure.
  const std::string text = broadcast_text(
      comm, failure ? fmt::format("{}{}", failure->retryable() ? 'R' : 'F', failure->what()) : "");
  if (!text.empty()) {
    throw SharedFailure(text.substr(1), text[0] == 'R');
  }
}

void agree_on_any(parallel::Communicator& comm, std::optional<Failure> failure) {
  const std::string mine =
      failure ? fmt::format("{}{}", failure->retryable() ? 'R' : 'F', failure->what()) : "";
  for (const auto& text : parallel::gather(comm, std::as_bytes(std::span(mine)))) {
    if (!failure && !text.empty()) {
      const std::string_view all(reinterpret_cast<const char*>(text.data()), text.size());
      failure.emplace(std::string(all.substr(1)), all[0] == 'R');
    }
  }
  agree(comm, failure);
}

void compare_facts(std::span<const Fact> facts, parallel::Communicator& comm) {
  std::vector<uint64_t> digests;
  for (const Fact& fact : facts) {
    digests.push_back(XXH64(fact.value.data(), fact.value.size(), 0));
  }
  const auto [entry, ranks] = parallel::first_difference(comm, digests);
  if (entry < 0) {
    return;
  }
  const Fact& fact = facts[static_cast<size_t>(entry)];
  const auto values = parallel::gather(comm, std::as_bytes(std::span(fact.value)));
  std::optional<Failure> difference;
  if (comm.rank() == 0) {
    const auto value = [&values](int rank) {
      const auto& bytes = values[static_cast<size_t>(rank)];
      return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    int other = 0;  // a rank of the majority
    while (std::ranges::find(ranks, other) != ranks.end()) {
      ++other;
    }
    difference.emplace(fmt::format(
        "ranks have different {} (not the same on rank {}): {} on rank {}, {} on rank {}; {}",
        fact.name, fmt::join(ranks, ", "), value(ranks.front()), ranks.front(), value(other), other,
        fact.fix));
  }
  agree(comm, difference);
}

void compare_settings(const io::Config& config, parallel::Communicator& comm) {
  const char* of_tests = std::getenv("ESPALIER_TEST");
  std::vector<Fact> facts{{.name = "settings of ESPALIER_TEST",
                           .value = of_tests == nullptr ? "" : of_tests,
                           .fix = "start all ranks with the same environment"}};
  const nlohmann::json settings = config::to_json(config);
  for (const auto& [section, keys] : settings.items()) {
    for (const auto& [key, value] : keys.items()) {
      if (section != "run") {
        facts.push_back({.name = fmt::format("settings of {}.{}", section, key),
                         .value = value.dump(),
                         .fix = "start all ranks with the same config and --set"});
      }
    }
  }
  compare_facts(facts, comm);
}

void compare_ranks(const sparse::Store& store, parallel::Communicator& comm) {
  if (comm.size() == 1) {
    return;
  }
  const Span span(Track::allreduce, "compare ranks");
  std::vector<std::string> names;
  std::vector<uint64_t> digests;
  auto add = [&](const std::string& name, const Tensor& tensor) {
    if (tensor && tensor.count() > 0) {
      names.push_back(name);
      const Mirror mirror(store.stream(), tensor);
      digests.push_back(
          checksum({static_cast<const std::byte*>(mirror.read().host().data), tensor.bytes()}));
    }
  };
  for (const sparse::Parameter& parameter : store.parameters()) {
    const std::string& name = parameter.spec.name;
    add(name, store.part(store.value(), parameter));
    if (parameter.exact_copy()) {
      add(name + " (exact copy)", parameter.dense);
    }
    for (const Tensor& part : parameter.index.memory()) {
      add(name + " (index)", part);
    }
    add(name + " (list of blocks)", parameter.blocks.array());
    if (!store.options().sharding) {
      const sparse::OptimizerState state = store.state(parameter);
      add(name + " (low half)", state.low);
      add(name + " (moment1)", state.moment1);
      add(name + " (moment2)", state.moment2);
      add(name + " (scales of moment1)", state.scale1);
      add(name + " (scales of moment2)", state.scale2);
      add(name + " (pruning array 1)", state.pruning1);
      add(name + " (pruning array 2)", state.pruning2);
    }
  }
  parallel::compare_digests(comm, names, digests);
}

}  // namespace espalier::train
