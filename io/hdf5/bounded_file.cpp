#include "io/hdf5/bounded_file.h"

#include <algorithm>

#include "src/core/error.h"

namespace espalier::io::hdf5 {

std::span<const uint8_t> Cursor::take(uint64_t bytes) {
  expect(bytes <= rest_.size(), "a structure is shorter than its contents");
  const auto front = rest_.first(static_cast<size_t>(bytes));
  rest_ = rest_.subspan(front.size());
  return front;
}

uint64_t Cursor::number(size_t bytes) {
  uint64_t value = 0;
  const auto from = take(bytes);
  for (size_t i = bytes; i-- > 0;) {
    value = value << 8 | from[i];
  }
  return value;
}

void Cursor::signature(std::string_view text) {
  expect(std::ranges::equal(take(text.size()), text), "a structure has a wrong signature");
}

void BoundedFile::set_base(uint64_t base) {
  expect(base <= file_.size(), "a user block is longer than the file");
  base_ = base;
  page_.clear();
}

void BoundedFile::load(uint64_t address, size_t bytes, void* out) {
  expect(address <= size() && bytes <= size() - address,
         "a structure lies beyond the end of the file");
  if (!file_.read(base_ + address, bytes, out)) {
    throw Unreadable{file_.error()};
  }
}

void BoundedFile::load_structure(uint64_t address, std::span<uint8_t> out) {
  constexpr uint64_t kPage = 4096;
  if (out.size() > kPage || address > size()) {
    load(address, out.size(), out.data());
    return;
  }
  if (address < page_address_ || address + out.size() > page_address_ + page_.size()) {
    page_.clear();  // a failed read leaves no page
    std::vector<uint8_t> page(static_cast<size_t>(std::min(kPage, size() - address)));
    load(address, page.size(), page.data());
    page_ = std::move(page);
    page_address_ = address;
  }
  expect(out.size() <= page_.size(), "a structure lies beyond the end of the file");
  std::copy_n(page_.begin() + static_cast<std::ptrdiff_t>(address - page_address_), out.size(),
              out.begin());
}

std::vector<uint8_t> BoundedFile::read(uint64_t address, uint64_t bytes) {
  constexpr uint64_t kMin = 64;  // the cost of an access
  expect(bytes <= size() && std::max(bytes, kMin) <= budget_,
         "its structures are larger than the file, or lead in circles");
  budget_ -= std::max(bytes, kMin);
  std::vector<uint8_t> out(static_cast<size_t>(bytes));
  load_structure(address, out);
  return out;
}

std::vector<uint8_t> BoundedFile::checked(uint64_t address, uint64_t bytes, const char* what) {
  expect(bytes >= 4, what);
  std::vector<uint8_t> out = read(address, bytes);
  const auto body = std::span(out).first(out.size() - 4);
  const uint64_t stated = Cursor(std::span(out).last(4)).number(4);
  expect(is_metadata_checksum(body, static_cast<uint32_t>(stated)), what);
  out.resize(body.size());
  return out;
}

void BoundedFile::copy(uint64_t address, std::span<std::byte> out) {
  load(address, out.size(), out.data());
}

}  // namespace espalier::io::hdf5
