#pragma once
// The arrays in the datasets of a plain HDF5 file: which datasets are values, masks, or parts of a
// sparse matrix. Names are paths with '/' replaced by '.'.
//
//   NAME_orig + NAME_mask            as of torch.nn.utils.prune
//   NAME + NAME_mask, NAME.mask      also NAME.weight + NAME.mask
//   A.NAME + masks.NAME              a tree of masks (a part that ends in "mask" or "masks")
//                                    beside the weights
//   NAME.data, .indices, .indptr     scipy's CSR and CSC, with NAME.shape and NAME.format, or
//                                    attributes of the group; torch's names of the same parts
//   NAME.data, .row, .col            scipy's COO
//
// A mask has a number type and the shape of its weight; its name is compared without case. These
// are no masks of weights, if no array has the name and shape:
//   NAME.mask_token, mask_decoder.…  parameters, by the word behind "mask"
//   NAME.attn_mask, causal_mask …    masks of positions, of two dimensions or more, whose shape no
//                                    mask of an array of the file can have
// Plain HDF5 only: checkpoints say which is which. Read through plain_hdf5.h.
#include <functional>
#include <map>
#include <string>
#include <string_view>
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

/// A dataset or link that is no array.
struct Unusable {
  std::string why{};  ///< "it holds integers of 1 byte"
  std::string fix{};
  std::vector<int64_t> extents{};  ///< empty: unknown, or a scalar
  hdf5::Type type = hdf5::Type::other;
  bool link = false;  ///< to another file, or to nowhere
};

struct PlainArrays {
  std::map<std::string, PlainArray> arrays{};
  std::map<std::string, Unusable> unusable{};  ///< without masks that are used
  std::vector<std::string> skipped{};          ///< names of these; links with the reason
  std::map<std::string, std::string> masks{};  ///< name of the dataset → name of its array
  /// Datasets, sparse matrices and links with names of masks that are masks of no array.
  std::vector<std::string> loose_masks{};
};

/// Names of datasets and links that are left out of a file.
using LeftOut = std::function<bool(const std::string& name)>;

/// Throws Failure if two datasets would have one name.
PlainArrays plain_arrays(const hdf5::Reader& file, const std::string& label,
                         const LeftOut& left_out = {});

/// Whether a part of the name has the word "mask" or "masks" (any case; a part may end in it, as
/// "WeightMask", and digits may follow).
bool says_mask(std::string_view name);
/// Whether a name is that of an optimizer's state: ".exp_avg", "optimizer.…", …
bool says_optimizer(std::string_view name);

}  // namespace espalier::io
