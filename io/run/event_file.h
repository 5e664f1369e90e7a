#pragma once
// Event files, which TensorBoard reads (docs/formats.md). A file is a sequence of TFRecords
//
//   uint64 length of the data   uint32 masked CRC-32C of these 8 bytes
//   data                        uint32 masked CRC-32C of the data
//
// whose data are protobuf messages `Event`: first the file's version and a START, then one event or
// more a step. Definitions of the messages: event.proto and summary.proto of TensorBoard.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/files/raw_file.h"
#include "io/run/histogram.h"

namespace espalier::io {

/// CRC-32C (Castagnoli's polynomial 0x1EDC6F41, reflected; RFC 3720) of the bytes. Some 400 MB/s.
uint32_t crc32c(std::string_view bytes);

/// Values of a step: the bytes of a protobuf `Summary`. The bytes of two, one behind the other, are
/// a summary with the values of both.
class EventSummary {
 public:
  /// Stored in fp32. May be NaN or infinite.
  void add_scalar(std::string_view tag, double value);
  /// Does nothing without numbers.
  void add_histogram(std::string_view tag, const Histogram& histogram);

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class EventWriter {
 public:
  /// A new file in `folder`, which is made when missing. TensorBoard reads the files of a folder in
  /// the order of their names: this one comes last. For TensorBoard, the START that it begins with
  /// deletes the values of steps from `first_step` on in earlier files.
  EventWriter(const std::filesystem::path& folder, int64_t first_step);

  /// The values are in the file when the call returns, but on the disk only after `sync`.
  void write(int64_t step, std::string_view summary);
  /// Another thread may write meanwhile.
  void sync() const { file_.sync(); }

 private:
  GrowingFile file_;
};

/// Removes the files that EventWriters have made in `folder`.
void remove_event_files(const std::filesystem::path& folder);

}  // namespace espalier::io
