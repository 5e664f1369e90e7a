#pragma once
// Reads masks from files of weights: checkpoints, and plain HDF5 files of dense arrays.
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/plain_hdf5.h"
#include "sparse/store/store.h"

namespace espalier::train {

/// The mask of parameter p, in forward order.
using MaskOf = std::function<sparse::Mask(size_t p)>;

/// Reads masks on demand: those of a checkpoint; in a plain file, of prunable parameters their
/// masks or else their non-zero elements, of the others all elements. Throws Failure if the file is
/// of another model.
MaskOf masks_in(const std::filesystem::path& path, std::vector<sparse::ParameterSpec> specs,
                std::vector<bool> prunable);
MaskOf masks_in(std::shared_ptr<const io::PlainReader> reader,
                std::vector<sparse::ParameterSpec> specs, std::vector<bool> prunable);

/// Throws Failure, with the nearest names found, unless a plain file has these parameters in their
/// shapes.
void check_arrays(const io::PlainReader& reader, std::span<const sparse::ParameterSpec> specs);

/// Throws Failure if a plain file has masks of no array, a head that differs from the embedding
/// where the network has none of its own, or parameters of layers that the network lacks: names
/// that differ from those of its parameters only in numbers. `network`: all its parameters.
void check_nothing_left(const io::PlainReader& reader,
                        std::span<const sparse::ParameterSpec> network);

/// Throws Failure if a value of a parameter of a plain file is a NaN or an infinity.
void check_numbers(const io::PlainReader& reader, const std::string& name,
                   std::span<const float> values);

/// The mask of one parameter of a checkpoint. Throws Failure naming file and parameter if the index
/// is damaged.
sparse::Mask read_mask(const io::CheckpointReader& reader, const std::string& name);

/// Throws Failure unless the checkpoint has these parameters; with `whole`, no others.
void check_same_parameters(const io::CheckpointReader& reader,
                           std::span<const sparse::ParameterSpec> specs, bool whole = true);

std::vector<sparse::ParameterSpec> specs_of(const sparse::Store& store);

}  // namespace espalier::train
