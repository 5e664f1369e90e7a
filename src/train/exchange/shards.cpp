#include "src/train/exchange/shards.h"

#include <algorithm>

#include "parallel/flat.h"
#include "parallel/transport/collectives.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {

Shards::Shards(const io::Config& config, int rank, int ranks)
    : rank_(rank), ranks_(ranks), bucket_bytes_(bucket_bytes(config)) {}

std::vector<std::vector<Range>> Shards::shares(std::span<const sparse::Extent> extents,
                                               DType gradient) {
  std::vector<parallel::FlatParameter> parameters;
  int64_t total = 0;
  for (const auto& [offset, kept] : extents) {
    parameters.push_back({.offset = offset, .kept = kept});
    const int64_t end = offset + kept;
    total = std::max(
        total, (end + sparse::Store::kAlign - 1) / sparse::Store::kAlign * sparse::Store::kAlign);
  }
  partition_ = parallel::make_partition(parameters, total,
                                        {.ranks = ranks_,
                                         .bucket_bytes = bucket_bytes_,
                                         .element_bytes = size_of(gradient),
                                         .block = kernels::kQuantizeBlock});
  std::vector<std::vector<Range>> all;
  for (const parallel::FlatParameter& parameter : parameters) {
    auto& shares = all.emplace_back();
    for (int rank = 0; rank < ranks_; ++rank) {
      const Range owned = partition_.owned(parameter, rank);
      shares.push_back({.first = owned.first, .count = owned.count});
    }
  }
  return all;
}

void Shards::collect(std::span<const Range> shares, const Tensor& whole) {
  if (!whole || whole.count() == 0) {
    return;
  }
  require(comm_ != nullptr, "shards of a plan cannot collect");
  const auto bytes = static_cast<int64_t>(size_of(whole.dtype));
  std::vector<Range> ranges;
  for (const auto& [first, count] : shares) {
    ranges.push_back({.first = first * bytes, .count = count * bytes});
  }
  const auto array =
      std::span(static_cast<std::byte*>(whole.data), static_cast<size_t>(whole.bytes()));
  const Range mine = ranges[static_cast<size_t>(rank_)];
  parallel::gather_slices(*comm_, {.ranges = ranges,
                                   .mine = array.subspan(static_cast<size_t>(mine.first),
                                                         static_cast<size_t>(mine.count)),
                                   .whole = array});
}

void Shards::collect_on_device(std::span<const sparse::SharedVector> vectors) {
  link_->exchange("gathering norms and biases", [&] {
    for (const auto& [whole, shares] : vectors) {
      const auto of_rank = [&](int rank) {
        const auto [first, count] = shares[static_cast<size_t>(rank)];
        return parallel::flat_bytes(whole.elements(first, count));
      };
      for (int peer = 0; peer < ranks_; ++peer) {
        if (peer != rank_) {
          link_->send(peer, of_rank(rank_), parallel::Traffic::other);
          link_->receive(peer, of_rank(peer));
        }
      }
    }
  });
}

std::shared_ptr<Shards> make_shards(const io::Config& config, parallel::Communicator& comm) {
  return config.parallel.zero != 0 && comm.size() > 1 ? std::make_shared<Shards>(config, comm)
                                                      : nullptr;
}

std::shared_ptr<Shards> plan_shards(const io::Config& config, int rank, int ranks) {
  return config.parallel.zero != 0 && ranks > 1 ? std::make_shared<Shards>(config, rank, ranks)
                                                : nullptr;
}

}  // namespace espalier::train
