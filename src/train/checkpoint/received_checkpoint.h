#pragma once
// The checkpoint to resume from, on ranks that do not see rank 0's disk: such a rank receives the
// file, and reads its copy.
//
//   ReceivedCheckpoint received(directory.resume_file(), comm);   collective
//   … load from received.file() …
//
// The copy has a temporary name in the same folder of this rank's machine, and is removed with the
// object. Cost: nothing where all ranks see the file; else its bytes are broadcast in pieces of 4
// MiB, and each rank without it needs as much space on its disk.
#include <filesystem>
#include <optional>

#include "parallel/transport/communicator.h"

namespace espalier::train {

class ReceivedCheckpoint {
 public:
  /// Collective. `file` is the same on all ranks; empty: there is none. Throws SharedFailure on all
  /// ranks if one cannot read or write.
  ReceivedCheckpoint(const std::optional<std::filesystem::path>& file,
                     parallel::Communicator& comm);
  ReceivedCheckpoint(const ReceivedCheckpoint&) = delete;
  ReceivedCheckpoint& operator=(const ReceivedCheckpoint&) = delete;

  /// The file that this rank reads.
  const std::optional<std::filesystem::path>& file() const { return file_; }
  /// How many ranks read a copy.
  int copies() const { return copies_; }

 private:
  /// Removes the copy, also where the constructor throws.
  struct Copy {
    parallel::Communicator& comm;
    std::filesystem::path path{};  ///< empty: this rank has none
    ~Copy();
  };
  void receive(bool writes, parallel::Communicator& comm);

  std::optional<std::filesystem::path> file_;
  Copy copy_;
  int copies_ = 0;
};

}  // namespace espalier::train
