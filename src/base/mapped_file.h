// SPDX-License-Identifier: Apache-2.0
// MappedFile: a whole file as read-only memory (mmap). The pages are the operating system's file
// cache.
#ifndef LODE_BASE_MAPPED_FILE_H_
#define LODE_BASE_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace lode {

class MappedFile {
 public:
  // Errors: NotFound (no such file), Io (the system's reason), InvalidArgument (a folder or a
  // device).
  static Result<MappedFile> Open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // Tells the system that [offset, offset + size) will be read soon / is not needed in our memory
  // any more.
  void WillNeed(uint64_t offset, uint64_t size) const;
  void DontNeed(uint64_t offset, uint64_t size) const;

 private:
  void Advise(uint64_t offset, uint64_t size, int advice) const;
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lode

#endif  // LODE_BASE_MAPPED_FILE_H_
