#include "src/train/exchange/agreement.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "parallel/transport/collectives.h"
#include "parallel/transport/digest.h"
#include "src/config/dump.h"
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

void agree(parallel::Communicator& comm, const std::string& error) {
  if (const std::string text = broadcast_text(comm, error); !text.empty()) {
    throw SharedFailure(text);
  }
}

void compare_settings(const io::Config& config, parallel::Communicator& comm) {
  std::vector<std::string> names;
  std::vector<uint64_t> digests;
  const nlohmann::json settings = config::to_json(config);
  for (const auto& [section, keys] : settings.items()) {
    for (const auto& [key, value] : keys.items()) {
      if (section != "run") {
        const std::string text = value.dump();
        names.push_back(section + "." + key);
        digests.push_back(XXH64(text.data(), text.size(), 0));
      }
    }
  }
  const auto [entry, ranks] = parallel::first_difference(comm, digests);
  if (entry >= 0) {
    throw SharedFailure(fmt::format(
        "ranks have different settings of {} (not the same on rank {}): start all ranks "
        "with the same config and --set",
        names[static_cast<size_t>(entry)], fmt::join(ranks, ", ")));
  }
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
      digests.push_back(XXH64(mirror.read().host().data, tensor.bytes(), 0));
    }
  };
  for (const sparse::Parameter& parameter : store.parameters()) {
    const std::string& name = parameter.spec.name;
    add(name, store.part(store.value(), parameter));
    if (parameter.exact_copy()) {
      add(name + " (exact copy)", parameter.dense);
    }
    if (!store.options().sharding) {
      const sparse::OptimizerState state = store.state(parameter);
      add(name + " (low half)", state.low);
      add(name + " (moment1)", state.moment1);
      add(name + " (moment2)", state.moment2);
    }
  }
  parallel::compare_digests(comm, names, digests);
}

}  // namespace espalier::train
