#include "src/cli/tokenizer_file.h"

#include <array>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/stored_tokenizer.h"
#include "io/files/raw_file.h"

namespace espalier::cli {
namespace {

/// Whether the file begins as HDF5 files do.
bool begins_as_hdf5(const std::string& path) {
  constexpr std::string_view kBegin = "\x89HDF\r\n\x1a\n";
  std::array<char, kBegin.size()> begin{};
  io::RawFile file = io::RawFile::open(path);
  return file.read(0, begin.size(), begin.data()) &&
         std::string_view(begin.data(), begin.size()) == kBegin;
}

}  // namespace

io::Tokenizer open_tokenizer(const std::string& path) {
  if (!begins_as_hdf5(path)) {
    return io::Tokenizer::from_file(path);
  }
  auto tokenizer = io::tokenizer_of(io::CheckpointReader(path).meta().extra, path);
  check(tokenizer.has_value(),
        "{} holds no tokenizer; name a tokenizer.json or tokenizer.model, or import the model from "
        "a directory that has one",
        path);
  return *std::move(tokenizer);
}

}  // namespace espalier::cli
