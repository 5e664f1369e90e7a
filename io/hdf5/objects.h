#pragma once
// Objects of an HDF5 file: groups and datasets with their headers, links and attributes. Formats:
// HDF5 File Format Specification 3.0, sections II (superblock) and IV (object headers). Private to
// this folder.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/hdf5/bounded_file.h"
#include "io/hdf5/filters.h"
#include "io/hdf5/hdf5.h"

namespace espalier::io::hdf5 {

/// A type of elements.
struct Datatype {
  enum class Class : uint8_t { integer, floating, text, texts, opaque, other };
  /// integer: also enumerations (h5py: bool); text: of fixed length; texts: of variable length
  Class of = Class::other;
  uint64_t bytes = 0;
  bool big_endian = false, is_signed = false;
  // Of floating numbers, in bits:
  unsigned sign = 0, exponent_at = 0, exponent_bits = 0, mantissa_at = 0, mantissa_bits = 0;
  uint64_t bias = 0;
  bool ordinary = false;  ///< a floating type with a hidden leading one and all bits used

  Type type() const;  ///< other: floats that are not ordinary, too
  /// "integers of 1 byte", "text", …
  std::string text() const;
  /// Why floats of this type are not read, with the fix; empty: they are, or it is another type.
  std::string fault() const;
  bool is_number() const {
    return of == Class::integer ? bytes >= 1 && bytes <= 8 : of == Class::floating && ordinary;
  }
  /// One element as a double (which holds floats of up to 64 bits exactly), or an integer.
  double number(const uint8_t* element) const;
  int64_t integer(const uint8_t* element) const;
};

struct Link {
  std::string name;
  uint64_t order = 0;
  std::optional<uint64_t> object{};  ///< address; none: a soft or external link
  std::string target{};              ///< path of a soft link
};

struct Attribute {
  std::string name;
  Datatype datatype{};
  uint64_t count = 0;
  std::vector<uint8_t> data{};
};

enum class ChunkIndex : uint8_t { tree1, single, implicit, fixed_array, extensible_array, tree2 };

/// A chunk in the file.
struct Chunk {
  uint64_t number = 0;  ///< in the grid of chunks, row-major
  uint64_t address = 0;
  uint64_t bytes = 0;    ///< as stored
  uint32_t skipped = 0;  ///< bit i: filter i was not applied
};

/// Where the data of a dataset are.
struct Layout {
  enum class Form : uint8_t { compact, contiguous, chunked, elsewhere };
  Form form = Form::elsewhere;     ///< elsewhere: in other files
  uint64_t address = kNowhere;     ///< of the data, or of the index of chunks
  uint64_t bytes = 0;              ///< contiguous
  std::vector<uint8_t> compact{};  ///< in the header itself
  // Of chunks:
  std::vector<uint64_t> chunk{};  ///< extents of one
  ChunkIndex index = ChunkIndex::tree1;
  std::vector<Filter> filters{};
  bool unfiltered_edges = false;  ///< chunks across the extents
  uint64_t single_bytes = 0;      ///< index single, with filters
  uint32_t single_skipped = 0;
};

struct Object {
  bool group = false, dataset = false;
  // Of a dataset:
  Datatype datatype{};
  std::vector<int64_t> extents{};
  std::vector<uint64_t> largest{};  ///< extents that it may grow to; kNowhere: unlimited
  std::vector<uint8_t> fill{};      ///< of an element; empty: zero
  double count = 1;                 ///< of elements, more than an integer may hold
  Layout layout{};
  std::shared_ptr<const std::vector<Chunk>> chunks{};  ///< once they are read
  // Of a group or dataset:
  std::vector<Link>
      links{};  ///< by order of creation, if the file keeps an index of it, else by name
  std::vector<size_t> by_name{};        ///< numbers of `links`
  std::vector<Attribute> attributes{};  ///< by name

  const Link* link(std::string_view name) const;  ///< null if there is none
};

/// The address of the root group, after the file's base is set. Throws FormatError unless the file
/// is HDF5 and not truncated.
uint64_t root_of(BoundedFile& file);
Object object_at(BoundedFile& file, uint64_t address);

}  // namespace espalier::io::hdf5
