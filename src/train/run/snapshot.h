#pragma once
// A stage <-> a checkpoint. Parameters are stored by name, whatever the ranks: rank 0 writes, all
// ranks read. While rank 0 writes, the others follow parameter by parameter, so that a slow disk is
// no timeout and a full one is an error on every rank.
#include <filesystem>
#include <functional>

#include "io/checkpoint/checkpoint.h"
#include "io/config/config.h"
#include "io/data/tokens.h"
#include "parallel/reduction/powersgd/factors.h"
#include "parallel/transport/communicator.h"
#include "sparse/store/store.h"

namespace espalier::train {

struct Progress {
  int64_t step = 0;  ///< steps done
  io::Config config;
  io::Vocabulary characters;   ///< empty where there is no text
  std::string codec_choice{};  ///< of codec_choice.h
  std::string loss_scale{};    ///< of loss_scale.h
};

/// Over a pipeline: the parameters of the network in forward order, and the rank of `comm` that has
/// each. Empty: rank 0 has all.
struct Owners {
  std::vector<sparse::ParameterSpec> network{};
  std::vector<int> ranks{};
  /// What each of so many replicas keeps of codecs' errors is saved, too: replica r of a
  /// parameter's owner is rank owner + r `replica_stride`.
  int replicas = 1;
  int replica_stride = 1;
  /// What codec powersgd keeps of the store's matrices is saved, too. The same on all replicas.
  const parallel::LowRank* low_rank = nullptr;
};

/// Collective. Writes all of the model state to `path`, atomically. What rank 0 does not have is
/// sent to it, one parameter at a time.
void save(const std::filesystem::path& path, sparse::Store& store, const Progress& progress,
          parallel::Communicator& comm, const Owners& owners = {});

/// What a checkpoint says of itself: the config it was made with, its vocabulary, its step.
Progress progress_of(const io::CheckpointReader& reader);

/// What a checkpoint keeps of one parameter. Throws Failure naming file and parameter when the
/// index does not fit.
sparse::Mask read_mask(const io::CheckpointReader& reader, const std::string& name);

std::vector<sparse::ParameterSpec> specs_of(const sparse::Store& store);

/// The mask of parameter p, in forward order.
using MaskOf = std::function<sparse::Mask(size_t p)>;
/// The masks of a file of weights, read when asked for: those of a checkpoint; in a plain file of
/// dense arrays a prunable parameter keeps what is not zero. Throws Failure when the file is of
/// another model.
MaskOf masks_in(const std::filesystem::path& path, std::vector<sparse::ParameterSpec> specs,
                std::vector<bool> prunable);

/// Masks and values; with `optimizer` also master copies and moments, bit for bit: of each the part
/// that this rank owns. Not collective. Throws Failure when the file is of another model. Masks
/// that the store has already stay where they are. `whole`: the store has all parameters of the
/// network.
void load(const io::CheckpointReader& reader, sparse::Store& store, bool optimizer,
          bool whole = true);

/// What codecs lost of this replica's gradients, as it was if as many replicas saved theirs; else
/// an even share of what all of them lacked together, so that nothing of it is forgotten.
void load_feedback(const io::CheckpointReader& reader, sparse::Store& store, int replica,
                   int replicas);

/// What codec powersgd kept of the matrices, as far as the file has them. With another rank the
/// columns that both have. Throws Failure when a shape does not fit.
void load_low_rank(const io::CheckpointReader& reader, const sparse::Store& store,
                   parallel::LowRank& low_rank);

/// Masks and values from a plain HDF5 file of dense arrays: a prunable parameter keeps what is not
/// zero.
void load_plain(const std::filesystem::path& path, sparse::Store& store,
                const std::vector<bool>& prunable);

/// `load` or `load_plain`, by what the file is: weights and masks, no optimizer.
void load_weights(const std::filesystem::path& path, sparse::Store& store,
                  const std::vector<bool>& prunable, bool whole = true);

}  // namespace espalier::train
