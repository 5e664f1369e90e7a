#include "io/hdf5/objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "io/hdf5/heaps.h"

namespace espalier::io::hdf5 {
namespace {

/// Of 8 bytes at most, in the order of this machine.
uint64_t word_of(const Datatype& datatype, const uint8_t* element) {
  uint64_t word = 0;
  for (uint64_t i = 0; i < datatype.bytes; ++i) {
    word |= uint64_t{element[datatype.big_endian ? datatype.bytes - 1 - i : i]} << (8 * i);
  }
  return word;
}

uint64_t bits_of(uint64_t word, unsigned at, unsigned count) {
  return word >> at & (count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1);
}

void read_float(Datatype& datatype, Cursor& in, uint64_t bits) {
  datatype.of = Datatype::Class::floating;
  datatype.big_endian = (bits & 1) != 0;
  datatype.sign = static_cast<unsigned>(bits >> 8 & 0xff);
  const uint64_t at = in.number(2);
  const uint64_t precision = in.number(2);
  datatype.exponent_at = in.byte();
  datatype.exponent_bits = in.byte();
  datatype.mantissa_at = in.byte();
  datatype.mantissa_bits = in.byte();
  datatype.bias = in.number(4);
  const unsigned all = datatype.bytes <= 8 ? static_cast<unsigned>(8 * datatype.bytes) : 0;
  const bool hidden_one = (bits >> 4 & 3) == 2 && (bits & 0x40) == 0;
  datatype.ordinary = hidden_one && at == 0 && precision == all && datatype.exponent_bits > 0 &&
                      datatype.exponent_bits < 12 && datatype.mantissa_bits > 0 &&
                      datatype.mantissa_bits < 53 &&
                      datatype.exponent_at + datatype.exponent_bits <= all &&
                      datatype.mantissa_at + datatype.mantissa_bits <= all && datatype.sign < all &&
                      datatype.bias < 2048;
}

Datatype datatype_of(Cursor in, bool of_enumeration = false) {
  Datatype datatype;
  const uint8_t class_and_version = in.byte();
  const uint64_t bits = in.number(3);
  datatype.bytes = in.number(4);
  switch (class_and_version & 0x0f) {
    case 0:
      datatype.of = Datatype::Class::integer;
      datatype.big_endian = (bits & 1) != 0;
      datatype.is_signed = (bits & 8) != 0;
      if (in.number(2) != 0 || in.number(2) != 8 * datatype.bytes) {
        datatype.of = Datatype::Class::other;  // with bits that do not count
      }
      break;
    case 1:
      read_float(datatype, in, bits);
      break;
    case 3:
      datatype.of = Datatype::Class::text;
      break;
    case 5:
      datatype.of = Datatype::Class::opaque;
      break;
    case 8: {  // an enumeration, which begins with its integer type
      const uint64_t bytes = datatype.bytes;
      datatype = of_enumeration ? Datatype{} : datatype_of(in, true);
      if (datatype.of != Datatype::Class::integer || datatype.bytes != bytes) {
        datatype = {.bytes = bytes};
      }
      break;
    }
    case 9:
      datatype.of = (bits & 0x0f) == 1 && datatype.bytes == 16 ? Datatype::Class::texts
                                                               : Datatype::Class::other;
      break;
    default:
      break;
  }
  return datatype;
}

/// Reads the extents of a dataspace into `object`; its count becomes their product. A null space
/// (h5py.Empty) is an array of extent 0.
void read_extents(Cursor in, Object& object) {
  const uint8_t version = in.byte();
  const uint8_t rank = in.byte();
  const uint8_t flags = in.byte();
  expect(version == 1 || version == 2, "a dataspace has an unknown version");
  expect(rank <= 32, "a dataspace has too many dimensions");
  const bool null = version == 2 && in.byte() == 2;
  in.skip(version == 1 ? 5 : 0);
  object.extents.clear();
  object.largest.clear();
  object.count = 1;
  for (uint8_t i = 0; i < rank; ++i) {
    const uint64_t extent = in.number(8);
    expect(extent <= uint64_t{INT64_MAX}, "a dataspace has an impossible extent");
    object.extents.push_back(static_cast<int64_t>(extent));
    object.count *= static_cast<double>(extent);
  }
  for (uint8_t i = 0; i < rank; ++i) {
    const auto extent = static_cast<uint64_t>(object.extents[i]);
    object.largest.push_back((flags & 1) != 0 ? in.number(8) : extent);
    expect(object.largest.back() >= extent, "a dataspace has impossible largest extents");
  }
  if (null) {
    object.extents = {0};
    object.largest = {0};
    object.count = 0;
  }
}

/// Extents of a chunk; the last number is the size of an element.
void read_chunk_extents(Cursor& in, Layout& layout, uint8_t rank, size_t width) {
  expect(rank >= 1 && rank <= 33 && width >= 1 && width <= 8, "chunks have an impossible rank");
  layout.form = Layout::Form::chunked;
  for (uint8_t i = 0; i + 1 < rank; ++i) {
    layout.chunk.push_back(in.number(width));
  }
  in.skip(width);
}

void read_chunk_index(Cursor& in, Layout& layout) {
  const uint8_t flags = in.byte();
  const uint8_t rank = in.byte();
  read_chunk_extents(in, layout, rank, in.byte());
  layout.unfiltered_edges = (flags & 1) != 0;
  const uint8_t index = in.byte();
  expect(index >= 1 && index <= 5, "chunks have an unknown index");
  layout.index = static_cast<ChunkIndex>(index);
  switch (layout.index) {
    case ChunkIndex::single:
      if ((flags & 2) != 0) {
        layout.single_bytes = in.number(8);
        layout.single_skipped = static_cast<uint32_t>(in.number(4));
      }
      break;
    case ChunkIndex::fixed_array:
      in.skip(1);  // the array has these numbers, too
      break;
    case ChunkIndex::extensible_array:
      in.skip(5);
      break;
    case ChunkIndex::tree2:
      in.skip(6);
      break;
    default:
      break;
  }
  layout.address = in.address();
}

void read_compact(Cursor& in, Layout& layout, size_t width) {
  layout.form = Layout::Form::compact;
  const auto data = in.take(in.number(width));
  layout.compact = {data.begin(), data.end()};
}

Layout layout_of(Cursor in) {
  Layout layout;
  const uint8_t version = in.byte();
  expect(version >= 1 && version <= 5, "a layout has an unknown version");
  const uint8_t rank = version < 3 ? in.byte() : uint8_t{0};
  const uint8_t form = in.byte();
  expect(form <= 3, "a layout has an unknown form");
  if (version < 3) {
    in.skip(5);
    layout.address = form == 0 ? kNowhere : in.address();
    if (form == 2) {
      read_chunk_extents(in, layout, rank, 4);
      return layout;
    }
    in.skip(4 * uint64_t{rank});
  }
  if (form == 0) {
    read_compact(in, layout, version < 3 ? 4 : 2);
  } else if (form == 1) {
    layout.form = Layout::Form::contiguous;
    if (version >= 3) {
      layout.address = in.address();
    }
    layout.bytes = version >= 3 ? in.number(8) : ~uint64_t{0};  // else by extents
  } else if (form == 2 && version == 3) {
    const uint8_t dimensions = in.byte();
    layout.address = in.address();
    read_chunk_extents(in, layout, dimensions, 4);
  } else if (form == 2) {
    read_chunk_index(in, layout);
  }
  return layout;
}

std::vector<Filter> filters_of(Cursor in) {
  const uint8_t version = in.byte();
  expect(version == 1 || version == 2, "filters have an unknown version");
  const uint8_t count = in.byte();
  expect(count <= 32, "a dataset has too many filters");
  in.skip(version == 1 ? 6 : 0);
  std::vector<Filter> filters(count);
  for (Filter& filter : filters) {
    filter.id = in.number(2);
    const uint64_t name_bytes = version == 1 || filter.id >= 256 ? in.number(2) : 0;
    in.skip(2);
    const uint64_t parameters = in.number(2);
    const auto name = in.take(version == 1 ? (name_bytes + 7) / 8 * 8 : name_bytes);
    filter.name = {name.begin(), std::ranges::find(name, uint8_t{0})};
    for (uint64_t i = 0; i < parameters; ++i) {
      filter.parameters.push_back(static_cast<uint32_t>(in.number(4)));
    }
    in.skip(version == 1 && parameters % 2 == 1 ? 4 : 0);
  }
  return filters;
}

std::vector<uint8_t> fill_of(Cursor in) {
  const uint8_t version = in.byte();
  expect(version >= 1 && version <= 3, "a fill value has an unknown version");
  bool defined = true;
  if (version == 3) {
    defined = (in.byte() & 0x20) != 0;
  } else {
    in.skip(2);
    defined = in.byte() != 0 || version == 1;
  }
  const uint64_t bytes = defined && in.rest() >= 4 ? in.number(4) : 0;
  const auto value = in.take(bytes < uint64_t{1} << 31 ? bytes : 0);  // negative: undefined
  return {value.begin(), value.end()};
}

std::string text_of(std::span<const uint8_t> bytes) {
  return {bytes.begin(), std::ranges::find(bytes, uint8_t{0})};
}

Attribute attribute_of(Cursor in) {
  Attribute attribute;
  const uint8_t version = in.byte();
  expect(version >= 1 && version <= 3, "an attribute has an unknown version");
  const bool shared = in.byte() != 0 && version > 1;
  const uint64_t name_bytes = in.number(2);
  const uint64_t datatype_bytes = in.number(2);
  const uint64_t space_bytes = in.number(2);
  in.skip(version == 3 ? 1 : 0);
  const auto part = [&](uint64_t bytes) {
    const auto found = in.take(bytes);
    in.skip(version == 1 ? (8 - bytes % 8) % 8 : 0);
    return found;
  };
  attribute.name = text_of(part(name_bytes));
  const Cursor type(part(datatype_bytes));
  Object space;
  const Cursor extents(part(space_bytes));
  if (shared) {  // its type is elsewhere: it has a name only
    return attribute;
  }
  attribute.datatype = datatype_of(type);
  read_extents(extents, space);
  const double bytes = space.count * static_cast<double>(attribute.datatype.bytes);
  expect(bytes <= static_cast<double>(in.rest()), "an attribute is longer than its message");
  attribute.count = static_cast<uint64_t>(space.count);
  const auto data = in.take(attribute.count * attribute.datatype.bytes);
  attribute.data = {data.begin(), data.end()};
  return attribute;
}

Link link_of(Cursor in) {
  Link link;
  expect(in.byte() == 1, "a link has an unknown version");
  const uint8_t flags = in.byte();
  const uint8_t type = (flags & 8) != 0 ? in.byte() : uint8_t{0};
  link.order = (flags & 4) != 0 ? in.number(8) : 0;
  in.skip((flags & 16) != 0 ? 1 : 0);
  const auto name = in.take(in.number(size_t{1} << (flags & 3)));
  link.name = {name.begin(), name.end()};
  if (type == 0) {
    link.object = in.address();
  } else if (type == 1) {
    const auto target = in.take(in.number(2));
    link.target = {target.begin(), target.end()};
  }
  return link;
}

/// Reads the messages of an object header and what they refer to.
class Header {
 public:
  /// `of_type`: of a type that several datasets share.
  Header(BoundedFile& file, uint64_t address, bool of_type = false)
      : file_(file), of_type_(of_type) {
    const auto start = file.read(address, 16);
    if (std::ranges::equal(std::span(start).first(4), std::string_view("OHDR"))) {
      read_new(address, start);
    } else {
      read_old(address, start);
    }
    for (size_t next = 0; next < continued_.size(); ++next) {  // more may be added
      const auto [at, bytes] = continued_[next];
      if (version_ == 1) {
        messages(file.read(at, bytes));
      } else {
        const auto block = file.checked(at, bytes, "a header has a wrong checksum");
        Cursor in(block);
        in.signature("OCHK");
        messages(in.take(in.rest()));
      }
    }
    finish();
  }
  Object take() { return std::move(object_); }

 private:
  void read_new(uint64_t address, std::span<const uint8_t> start) {
    version_ = 2;
    Cursor in(start.subspan(4));
    expect(in.byte() == 2, "an object has an unknown version");
    const uint8_t flags = in.byte();
    ordered_ = (flags & 4) != 0;
    const uint64_t width = uint64_t{1} << (flags & 3);
    const uint64_t prefix =
        6 + ((flags & 0x20) != 0 ? 16U : 0U) + ((flags & 0x10) != 0 ? 4U : 0U) + width;
    const auto head_bytes = file_.read(address, prefix);
    Cursor head(head_bytes);
    head.skip(prefix - width);
    const uint64_t bytes = head.number(static_cast<size_t>(width));
    expect(bytes <= file_.size(), "a header is longer than the file");
    const auto block = file_.checked(address, prefix + bytes + 4, "a header has a wrong checksum");
    messages(std::span(block).subspan(static_cast<size_t>(prefix)));
  }

  void read_old(uint64_t address, std::span<const uint8_t> start) {
    Cursor in(start);
    expect(in.byte() == 1, "an object has an unknown version");
    in.skip(7);
    messages(file_.read(address + 16, in.number(4)));
  }

  void messages(std::span<const uint8_t> bytes) {
    const size_t head = version_ == 1 ? 8 : ordered_ ? 6 : 4;
    Cursor in(bytes);
    while (in.rest() >= head) {
      const uint64_t type = in.number(version_ == 1 ? 2 : 1);
      const uint64_t length = in.number(2);
      const uint8_t flags = in.byte();
      in.skip(version_ == 1 ? 3 : ordered_ ? 2 : 0);
      message(type, flags, in.take(length));
    }
  }

  void message(uint64_t type, uint8_t flags, std::span<const uint8_t> data) {
    Cursor in(data);
    const bool shared = (flags & 2) != 0;
    switch (type) {
      case 0x01:
        expect(!shared, "a dataset has a shared dataspace");
        read_extents(in, object_);
        break;
      case 0x02: {
        object_.group = true;
        expect(in.byte() == 0, "a group has an unknown version");
        const uint8_t kept = in.byte();
        in.skip((kept & 1) != 0 ? 8 : 0);
        link_heap_ = in.address();
        link_tree_ = in.address();
        by_order_ = (kept & 2) != 0;
        break;
      }
      case 0x03:
        object_.datatype = shared ? shared_datatype(in) : datatype_of(in);
        break;
      case 0x04:  // a fill value in files of HDF5 1.4
        if (object_.fill.empty() && !shared && in.rest() >= 4) {
          const auto value = in.take(in.number(4));
          object_.fill = {value.begin(), value.end()};
        }
        break;
      case 0x05:
        if (!shared) {
          object_.fill = fill_of(in);
        }
        break;
      case 0x06:
        object_.links.push_back(link_of(in));
        break;
      case 0x07:
        elsewhere_ = true;
        break;
      case 0x0b:
        expect(!shared, "a dataset has shared filters");
        filters_ = filters_of(in);
        break;
      case 0x08:
        object_.dataset = true;
        object_.layout = layout_of(in);
        break;
      case 0x0a:
        object_.group = true;
        break;
      case 0x0c:
        if (!shared) {
          object_.attributes.push_back(attribute_of(in));
        }
        break;
      case 0x10: {
        const uint64_t at = in.address();
        continued_.emplace_back(at, in.number(8));
        break;
      }
      case 0x11:
        object_.group = true;
        symbol_tree_ = in.address();
        symbol_heap_ = in.address();
        break;
      case 0x15: {
        expect(in.byte() == 0, "attributes have an unknown version");
        in.skip((in.byte() & 1) != 0 ? 2 : 0);
        attribute_heap_ = in.address();
        attribute_tree_ = in.address();
        break;
      }
      default:
        break;
    }
  }

  /// Of a type that has an object of its own (h5py: a named type).
  Datatype shared_datatype(Cursor in) {
    expect(!of_type_, "a type is shared in circles");
    const uint8_t version = in.byte();
    expect(version >= 1 && version <= 3, "a shared type has an unknown version");
    const uint8_t kind = in.byte();
    expect(version < 3 || kind == 2, "a type is in a heap of shared messages");
    in.skip(version == 1 ? 6 : 0);
    return Header(file_, in.address(), true).take().datatype;
  }

  void finish() {
    if (elsewhere_) {
      object_.layout.form = Layout::Form::elsewhere;
    }
    object_.layout.filters = std::move(filters_);
    if (symbol_tree_ != kNowhere) {
      for_each_symbol(file_, symbol_tree_, symbol_heap_, [&](Symbol symbol) {
        object_.links.push_back({.name = std::move(symbol.name),
                                 .object = symbol.object,
                                 .target = std::move(symbol.target)});
      });
    }
    if (link_heap_ != kNowhere) {
      FractalHeap heap(file_, link_heap_);
      for_each_record(file_, link_tree_, [&](std::span<const uint8_t> record) {
        // By name: a hash of 4 bytes, then the id.
        expect(record.size() > 4, "a link has no id");
        const auto bytes = heap.object(record.subspan(4));
        object_.links.push_back(link_of(Cursor(bytes)));
      });
    }
    if (attribute_heap_ != kNowhere) {
      FractalHeap heap(file_, attribute_heap_);
      for_each_record(file_, attribute_tree_, [&](std::span<const uint8_t> record) {
        if ((record[0] & 0x30) != 0) {  // as large as to lie outside of the heap's blocks
          return;
        }
        const auto bytes = heap.object(record);
        object_.attributes.push_back(attribute_of(Cursor(bytes)));
      });
    }
    const auto less = [&](const Link& a, const Link& b) {
      return by_order_ && a.order != b.order ? a.order < b.order : a.name < b.name;
    };
    std::ranges::stable_sort(object_.links, less);
    object_.by_name.resize(object_.links.size());
    std::iota(object_.by_name.begin(), object_.by_name.end(), size_t{0});
    std::ranges::stable_sort(object_.by_name, {},
                             [&](size_t i) -> std::string_view { return object_.links[i].name; });
    std::ranges::stable_sort(object_.attributes, {}, &Attribute::name);
  }

  BoundedFile& file_;
  bool of_type_;
  Object object_;
  std::vector<Filter> filters_;
  int version_ = 1;
  bool ordered_ = false, by_order_ = false, elsewhere_ = false;
  std::vector<std::pair<uint64_t, uint64_t>> continued_;
  uint64_t link_heap_ = kNowhere, link_tree_ = kNowhere;
  uint64_t symbol_tree_ = kNowhere, symbol_heap_ = kNowhere;
  uint64_t attribute_heap_ = kNowhere, attribute_tree_ = kNowhere;
};

}  // namespace

Type Datatype::type() const {
  const auto is = [&](unsigned exponent, unsigned mantissa) {
    return !big_endian && sign + 1 == 8 * bytes && exponent_bits == exponent &&
           mantissa_bits == mantissa && mantissa_at == 0 && exponent_at == mantissa &&
           exponent + mantissa + 1 == 8 * bytes && bias == (uint64_t{1} << (exponent - 1)) - 1;
  };
  if (of == Class::floating && ordinary) {
    return is(5, 10)    ? Type::fp16
           : is(8, 7)   ? Type::bf16
           : is(8, 23)  ? Type::fp32
           : is(11, 52) ? Type::fp64
                        : Type::other_float;
  }
  if (of == Class::integer && bytes == 4 && is_signed && !big_endian) {
    return Type::int32;
  }
  if (of == Class::integer && bytes == 8 && is_signed && !big_endian) {
    return Type::int64;
  }
  if (of == Class::integer && bytes == 1 && !is_signed) {
    return Type::uint8;
  }
  return of == Class::integer && is_number() ? Type::other_integer : Type::other;
}

std::string Datatype::text() const {
  switch (of) {
    case Class::integer:
      return fmt::format("integers of {} byte{}", bytes, bytes == 1 ? "" : "s");
    case Class::floating:
      return fmt::format("floats of {} bytes", bytes);
    case Class::text:
    case Class::texts:
      return "text";
    case Class::opaque:
      return "opaque bytes";
    case Class::other:
      break;
  }
  return "no real numbers";
}

std::string Datatype::fault() const {
  if (of == Class::floating && !ordinary) {
    return fmt::format(
        "it holds floats of {} bytes in a form that is not read, such as longdouble; write "
        "array.astype(\"float32\")",
        bytes);
  }
  return of == Class::opaque && bytes <= 2
             ? "it holds opaque bytes, as h5py writes bfloat16 and float8 of ml_dtypes; write "
               "array.astype(\"float32\")"
             : "";
}

double Datatype::number(const uint8_t* element) const {
  const uint64_t word = word_of(*this, element);
  const uint64_t exponent = bits_of(word, exponent_at, exponent_bits);
  const uint64_t mantissa = bits_of(word, mantissa_at, mantissa_bits);
  const double magnitude =
      exponent == (uint64_t{1} << exponent_bits) - 1
          ? (mantissa == 0 ? HUGE_VAL : std::nan(""))
          : std::ldexp(static_cast<double>(mantissa) +
                           (exponent == 0 ? 0.0 : std::ldexp(1.0, static_cast<int>(mantissa_bits))),
                       static_cast<int>(std::max<uint64_t>(exponent, 1)) - static_cast<int>(bias) -
                           static_cast<int>(mantissa_bits));
  return bits_of(word, sign, 1) != 0 ? -magnitude : magnitude;
}

int64_t Datatype::integer(const uint8_t* element) const {
  const uint64_t word = word_of(*this, element);
  if (is_signed && bytes < 8 && bits_of(word, static_cast<unsigned>(8 * bytes - 1), 1) != 0) {
    return static_cast<int64_t>(word | ~uint64_t{0} << (8 * bytes));
  }
  return is_signed ? static_cast<int64_t>(word)
                   : static_cast<int64_t>(std::min<uint64_t>(word, INT64_MAX));
}

const Link* Object::link(std::string_view name) const {
  const auto name_of = [&](size_t i) -> std::string_view { return links[i].name; };
  const auto found = std::ranges::lower_bound(by_name, name, {}, name_of);
  return found == by_name.end() || name_of(*found) != name ? nullptr : &links[*found];
}

uint64_t root_of(BoundedFile& file) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  const auto begins = [&](uint64_t at) {
    const auto bytes = file.read(at, 8);
    return std::ranges::equal(bytes, kSignature, {}, {},
                              [](char c) { return static_cast<uint8_t>(c); });
  };
  // A user block has 512 bytes, or that times a power of two.
  uint64_t base = 0;
  while (base + 8 <= file.size() && !begins(base)) {
    base = base == 0 ? 512 : 2 * base;
  }
  expect(base + 8 <= file.size(), "it has no HDF5 signature");
  file.set_base(base);
  const auto bytes = file.read(0, std::min<uint64_t>(file.size(), 100));
  Cursor in(bytes);
  in.skip(8);
  const uint8_t version = in.byte();
  expect(version <= 3, "its superblock has an unknown version");
  if (version >= 2) {
    file.checked(0, 48, "its superblock has a wrong checksum");
    expect(in.number(2) == 0x0808, "its numbers are not of 8 bytes");
    in.skip(1);
  } else {
    in.skip(4);
    expect(in.number(2) == 0x0808, "its numbers are not of 8 bytes");
    in.skip(version == 0 ? 9 : 13);
  }
  const uint64_t stated_base = in.address();  // differs if the user block was added later
  in.skip(8);                                 // superblock extension, or free space
  const uint64_t end = in.address();          // in the file, with its stated base
  expect(stated_base <= end && end - stated_base <= file.size(), "it is truncated");
  in.skip(version >= 2 ? 0 : 16);  // driver information; name of the root group
  return in.address();
}

Object object_at(BoundedFile& file, uint64_t address) { return Header(file, address).take(); }

}  // namespace espalier::io::hdf5
