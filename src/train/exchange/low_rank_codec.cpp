#include "src/train/exchange/low_rank_codec.h"

#include <algorithm>

#include "parallel/reduction/partition.h"
#include "src/core/rng.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {
namespace {

constexpr int64_t kRank = 4;
constexpr uint64_t kFactors = 0x51;  // key of a separate random stream

bool is_low_rank(const std::string& codec) {
  return parallel::parse_codec(codec).kind() == parallel::CodecKind::matrices;
}

/// Key of a matrix: the same on all ranks.
uint64_t random_key(const io::Config& config, const std::string& name) {
  uint64_t key = mix(static_cast<uint64_t>(config.train.seed), kFactors);
  for (const char letter : name) {
    key = mix(key, static_cast<unsigned char>(letter));
  }
  return key;
}

}  // namespace

int64_t low_rank_of(const io::Config& config, const sparse::Parameter& parameter) {
  const io::ParallelConfig& parallel = config.parallel;
  const sparse::ParameterSpec& spec = parameter.spec;
  const parallel::CodecSpec codec = parallel::parse_codec(parallel.codec.for_name(spec.name));
  const bool small =
      parameter.size() < parallel.codec_min_size && !parallel.codec.matches(spec.name);
  if (codec.kind() != parallel::CodecKind::matrices || spec.shape.rank() != 2 ||
      !parameter.full() || small) {
    return 0;
  }
  const int64_t rows = spec.shape.rows();
  const int64_t cols = spec.shape.cols();
  const int64_t rank = std::min({codec.rank > 0 ? codec.rank : kRank, rows, cols});
  return 2 * rank * (rows + cols) < rows * cols ? rank : 0;
}

size_t low_rank_bytes(const io::Config& config, const sparse::Store& store) {
  if (!uses_low_rank(config)) {
    return 0;
  }
  size_t factors = 0;
  size_t rest = 0;
  const size_t element = size_of(store.gradient().dtype);
  for (const sparse::Parameter& parameter : store.parameters()) {
    const auto rank = static_cast<size_t>(low_rank_of(config, parameter));
    if (rank == 0) {
      rest += static_cast<size_t>(parameter.kept()) * element;
      continue;
    }
    const Shape& shape = parameter.spec.shape;
    factors += 4 * rank * static_cast<size_t>(shape.rows() + 3 * shape.cols());
  }
  const auto wanted = bucket_bytes(config);
  const size_t bucket =
      wanted > 0 ? wanted : parallel::usual_bucket_bytes(store.gradient().bytes());
  rest = std::min(rest, 2 * bucket);
  return factors + rest + (config.parallel.error_feedback ? rest / element * 4 : 0);
}

size_t summed_factor_bytes(const io::Config& config, const sparse::Store& store) {
  if (!uses_low_rank(config)) {
    return 0;
  }
  size_t bytes = 0;
  for (const sparse::Parameter& parameter : store.parameters()) {
    if (const auto rank = static_cast<size_t>(low_rank_of(config, parameter)); rank > 0) {
      const Shape& shape = parameter.spec.shape;
      bytes +=
          size_of(DType::fp32) * rank * static_cast<size_t>(std::max(shape.rows(), shape.cols()));
    }
  }
  return bytes;
}

void set_low_rank(parallel::LowRank& low_rank, const io::Config& config, Stage& stage,
                  int64_t step) {
  const sparse::Store& store = stage.store();
  const bool active = step >= config.parallel.powersgd_warmup;
  std::vector<parallel::LowRankMatrix> matrices;
  std::vector<Range> released;
  for (size_t p = store.parameters().size(); p-- > 0;) {
    const sparse::Parameter& parameter = store.parameters()[p];
    const int64_t rank =
        parameter.spec.name == stage.tied_parameter() ? 0 : low_rank_of(config, parameter);
    if (rank > 0) {
      matrices.push_back({.first = parameter.offset,
                          .rows = parameter.spec.shape.rows(),
                          .cols = parameter.spec.shape.cols(),
                          .rank = rank,
                          .key = random_key(config, parameter.spec.name)});
    }
    const bool other_codec = !is_low_rank(config.parallel.codec.for_name(parameter.spec.name));
    if ((rank == 0 || !active) && !other_codec) {
      released.push_back({.first = parameter.offset, .count = parameter.kept()});
    }
  }
  low_rank.set_matrices(std::move(matrices));
  low_rank.set_released(std::move(released));
  low_rank.set_active(active);
  low_rank.set_feedback(store.feedback());
}

void check_low_rank(const io::Config& config, const sparse::Store& store,
                    const std::vector<bool>& prunable) {
  const io::Patterned& codec = config.parallel.codec;
  const bool prunes = config.pruning.prunes();
  for (size_t p = 0; p < store.parameters().size(); ++p) {
    const sparse::Parameter& parameter = store.parameters()[p];
    const std::string& name = parameter.spec.name;
    const bool pruned = !parameter.full() || (prunes && prunable[p]);
    check(!pruned || !codec.matches(name) || !is_low_rank(codec.for_name(name)),
          "parallel.codec = \"{}\" supports only unpruned matrices, and {} is pruned; add it to "
          "pruning.exclude, or set another codec for it",
          codec.for_name(name), name);
  }
}

}  // namespace espalier::train
