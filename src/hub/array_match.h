#pragma once
// Which arrays of a plain HDF5 file are the parameters of a network. In this order:
//
//   1. lines of --map
//   2. arrays with the parameters' names
//   3. names of a known program: each family of families.h as transformers writes it, or with
//      linear layers [out, in] and perhaps without biases (nanoGPT); torchvision's state_dicts
//   4. shapes, where one array, or one row of numbered arrays, fits one parameter only; never
//      arrays that are named like masks or an optimizer's state
//
// A dataset or link with a parameter's name that cannot be used is an error.
//
// Convolutions [out, in, height, width] become matrices [out, height width in] wherever they fit.
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/plain_hdf5.h"
#include "io/config/config.h"
#include "sparse/store/store.h"
#include "src/hub/array_map.h"
#include "src/hub/array_names.h"
#include "src/model/networks/registry.h"

namespace espalier::hub {

struct ArrayMatch {
  std::map<std::string, io::ArrayView> views{};  ///< by parameter
  model::ProblemShape problem{};
  std::string names{};  ///< whose names the file has: "nanoGPT"; empty: the parameters' own
  std::vector<std::string> notes{};
};

/// `reader` is without what `lines` leave out. Throws Failure that lists expected and found names,
/// nearest first, unless each parameter has its array, no layer of the file is left over, and each
/// mask has its array.
ArrayMatch match_arrays(const io::PlainReader& reader, const io::Config& config,
                        std::span<const MapLine> lines);

}  // namespace espalier::hub
