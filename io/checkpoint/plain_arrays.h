#pragma once
// The arrays in the datasets of a plain HDF5 file: which datasets are values, masks, or parts of a
// sparse matrix. Names are paths with '/' replaced by '.'.
//
//   NAME_orig + NAME_mask            as of torch.nn.utils.prune
//   NAME + NAME_mask, NAME.mask      also NAME.weight + NAME.mask
//   A.NAME + masks.NAME              a tree of masks (a part "mask" or "masks") beside the weights
//   NAME.data, .indices, .indptr     scipy's CSR and CSC, with NAME.shape and NAME.format, or
//                                    attributes of the group; torch's names of the same parts
//   NAME.data, .row, .col            scipy's COO
//
// A mask has a number type and the shape of its weight. Plain HDF5 only: checkpoints say which is
// which. Private to this folder and its tests.
#include <map>
#include <string>
#include <vector>

#include "io/hdf5/reader.h"
#include "src/core/types.h"

namespace espalier::io {

struct PlainArray {
  enum class Form : uint8_t { dense, csr, csc, coo };
  Form form = Form::dense;
  std::string place{};  ///< path of the values: the dataset, or the kept ones of a sparse matrix
  std::string mask{};   ///< path; empty: none
  std::string rows{}, columns{};  ///< csr: indptr and indices; csc: indices and indptr; coo: both
  std::vector<int64_t> extents{};
  std::string fault{};  ///< why it cannot be read; empty: it can
};

struct PlainArrays {
  std::map<std::string, PlainArray> arrays{};
  std::vector<std::string> skipped{};          ///< with the reason: "step (no floats)"
  std::map<std::string, std::string> masks{};  ///< name of the dataset → name of its array
  /// Arrays that look like masks, without an array that they belong to.
  std::vector<std::string> loose_masks{};
};

/// Throws Failure if two datasets would have one name.
PlainArrays plain_arrays(const hdf5::Reader& file, const std::string& label);

}  // namespace espalier::io
