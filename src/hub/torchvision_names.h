#pragma once
// Names in state_dicts of torchvision's convolutional networks (VGG, AlexNet, ResNet): layers stand
// in the order of their names, so that the n-th convolution, norm and linear layer of the file are
// those of the network.
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/plain_hdf5.h"
#include "sparse/store/store.h"

namespace espalier::hub {

/// Modules of a state_dict, each kind in the order of names.
struct TorchNames {
  std::vector<std::string> convolutions{}, norms{}, linears{};
};

struct TorchPlace {
  std::string parameter{};
  std::string array{};
  std::optional<io::ArrayView> view{};  ///< none: the array is missing or has another shape
};

/// "layer2.conv10" after "layer2.conv9": numbers compare as numbers.
bool natural_less(std::string_view a, std::string_view b);

/// None unless the arrays are named as torchvision names them, below one prefix or none.
std::optional<TorchNames> torchvision_names(const io::PlainReader& reader,
                                            const std::map<std::string, Shape>& shapes);

/// The places of all parameters of a network of kind vision.
std::vector<TorchPlace> torchvision_places(const TorchNames& names,
                                           const std::vector<sparse::ParameterSpec>& specs,
                                           const std::map<std::string, Shape>& shapes);

}  // namespace espalier::hub
