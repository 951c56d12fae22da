// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lode {

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const std::string message = path + ": " + std::strerror(errno);
    return errno == ENOENT ? NotFoundError(message) : IoError(message);
  }
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    const std::string reason = std::strerror(errno);
    ::close(fd);
    return IoError(path + ": " + reason);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return InvalidArgumentError(path + ": expected a regular file, found " +
                                (S_ISDIR(info.st_mode) ? "a folder" : "a special file"));
  }
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ > 0) {
    void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      const std::string reason = std::strerror(errno);
      ::close(fd);
      return IoError(path + ": cannot map " + std::to_string(file.size_) + " bytes: " + reason);
    }
    file.data_ = static_cast<const std::byte*>(data);
  }
  ::close(fd);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::WillNeed(uint64_t offset, uint64_t size) const {
  Advise(offset, size, MADV_WILLNEED);
}
void MappedFile::DontNeed(uint64_t offset, uint64_t size) const {
  Advise(offset, size, MADV_DONTNEED);
}

void MappedFile::Advise(uint64_t offset, uint64_t size, int advice) const {
  if (data_ == nullptr || offset >= size_) return;
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page * page;
  const uint64_t end = std::min<uint64_t>(size_, offset + std::min<uint64_t>(size, size_ - offset));
  // Advice may fail without harm: the mapping stays valid either way.
  (void)::madvise(const_cast<std::byte*>(data_) + begin, end - begin, advice);
}

}  // namespace lode
