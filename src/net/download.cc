// SPDX-License-Identifier: Apache-2.0
#include "net/download.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/sha256.h"
#include "net/http_client.h"

namespace lode {
namespace {

std::string PartPath(const std::string& path) {
  return path + ".part";
}

// The open, locked PATH.part.
class PartFile {
 public:
  static Result<PartFile> Open(const std::string& path) {
    PartFile file;
    file.path_ = PartPath(path);
    file.fd_ = ::open(file.path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file.fd_ < 0) return IoError(file.path_ + ": " + std::strerror(errno));
    if (::flock(file.fd_, LOCK_EX | LOCK_NB) != 0) {
      return ResourceExhaustedError(file.path_ + ": another process is fetching this file");
    }
    struct stat info = {};
    if (::fstat(file.fd_, &info) != 0) return IoError(file.path_ + ": " + std::strerror(errno));
    file.size_ = info.st_size;
    file.keep_empty_ = false;
    return file;
  }
  PartFile(PartFile&& other) noexcept
      : path_(std::move(other.path_)),
        fd_(std::exchange(other.fd_, -1)),
        size_(other.size_),
        keep_empty_(other.keep_empty_) {}
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile() {
    // An empty one has nothing to go on with; it is still locked, so nobody else writes to it.
    if (fd_ >= 0 && size_ == 0 && !keep_empty_) ::unlink(path_.c_str());
    if (fd_ >= 0) ::close(fd_);
  }

  int64_t size() const { return size_; }

  Status Restart() {
    if (::ftruncate(fd_, 0) != 0) return IoError(path_ + ": " + std::strerror(errno));
    size_ = 0;
    return OkStatus();
  }

  Status Append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), size_);
      if (written < 0) {
        if (errno == EINTR) continue;
        return IoError(path_ + ": cannot write: " + std::strerror(errno) + " (" +
                       std::to_string(size_) + " bytes are kept; the next download goes on there)");
      }
      size_ += written;
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return OkStatus();
  }

  // All bytes are there and on the disk.
  Status Complete() {
    if (::fsync(fd_) != 0) return IoError(path_ + ": " + std::strerror(errno));
    keep_empty_ = true;
    return OkStatus();
  }

 private:
  PartFile() = default;
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  bool keep_empty_ = true;  // not ours, or complete
};

// Fills the part from the server, request after request.
class Downloader {
 public:
  Downloader(const DownloadRequest& request, PartFile& part,
             FunctionRef<bool(int64_t, int64_t)> progress)
      : request_(request), part_(part), progress_(progress), total_(request.size_bytes) {}

  // Until the part is complete or there is no hope.
  Status FetchAll() {
    double wait = request_.retry_seconds;
    int failures = 0;
    while (total_ < 0 || part_.size() < total_) {
      const int64_t size_before = part_.size();
      final_ = false;
      Status status =
          HttpGet({request_.url, part_.size()},
                  {.on_head = [this](const HttpHead& head) { return OnHead(head); },
                   .on_body = [this](std::span<const std::byte> bytes) { return OnBody(bytes); }});
      if (status.ok() && total_ < 0) total_ = part_.size();  // no length: the end is where it ends
      if (status.ok() && part_.size() < total_) {
        status = IoError(request_.url + ": the connection closed after " +
                         std::to_string(part_.size()) + " of " + std::to_string(total_) + " bytes");
      }
      if (status.ok()) break;
      if (final_ || status.code() != StatusCode::kIo) return status;
      if (part_.size() > size_before) {
        failures = 0;
        wait = request_.retry_seconds;
      } else if (++failures >= request_.max_attempts) {
        return status;
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(wait));
      wait *= 2;
    }
    return OkStatus();
  }

 private:
  Status OnHead(const HttpHead& head) {
    const std::string answered =
        request_.url + ": the server answered " + std::to_string(head.status);
    final_ = true;  // unless found otherwise below
    if (head.status == 404 || head.status == 410) return NotFoundError(answered);
    if (head.status == 416 && part_.size() > 0) {  // our part is longer than the file
      LODE_RETURN_IF_ERROR(part_.Restart());
      final_ = false;
      return IoError(answered);
    }
    if (head.status != 200 && head.status != 206) {
      final_ = head.status < 500 && head.status != 408 && head.status != 429;
      return IoError(answered);
    }
    if (head.total_bytes >= 0) {
      if (request_.size_bytes >= 0 && head.total_bytes != request_.size_bytes) {
        return CorruptionError(request_.url + ": expected " + std::to_string(request_.size_bytes) +
                               " bytes, the server offers " + std::to_string(head.total_bytes));
      }
      total_ = head.total_bytes;
    }
    // A server that ignores the range sends the file from its start.
    if (head.offset != part_.size()) LODE_RETURN_IF_ERROR(part_.Restart());
    if (head.offset != part_.size()) {
      return IoError(request_.url + ": the server sent bytes from " + std::to_string(head.offset));
    }
    if (total_ >= 0) LODE_RETURN_IF_ERROR(CheckFreeSpace(request_.path, total_ - part_.size()));
    final_ = false;
    return OkStatus();
  }

  Status OnBody(std::span<const std::byte> bytes) {
    if (total_ >= 0 && part_.size() + static_cast<int64_t>(bytes.size()) > total_) {
      final_ = true;
      return CorruptionError(request_.url + ": the server sends more than " +
                             std::to_string(total_) + " bytes");
    }
    if (Status status = part_.Append(bytes); !status.ok()) {
      final_ = true;
      return status;
    }
    if (!progress_(part_.size(), total_)) {
      return CancelledError(request_.url + ": stopped; the next download goes on at byte " +
                            std::to_string(part_.size()));
    }
    return OkStatus();
  }

  const DownloadRequest& request_;
  PartFile& part_;
  FunctionRef<bool(int64_t, int64_t)> progress_;
  int64_t total_;
  bool final_ = false;  // another attempt would end the same way
};

}  // namespace

Status CheckFreeSpace(const std::string& path, int64_t needed) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  struct statvfs info = {};
  if (::statvfs(folder.empty() ? "." : folder.c_str(), &info) != 0) return OkStatus();
  const int64_t free = static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  if (free >= needed) return OkStatus();
  return ResourceExhaustedError(path + ": the disk has " + std::to_string(free) +
                                " bytes free, the download needs " + std::to_string(needed));
}

Status FinishDownload(const std::string& path, const std::string& sha256) {
  const std::string part = PartPath(path);
  LODE_ASSIGN_OR_RETURN(const std::string found, Sha256OfFile(part, [](int64_t) { return true; }));
  if (found != sha256) {
    ::unlink(part.c_str());
    return CorruptionError(path + ": expected sha256 " + sha256 + ", found " + found +
                           "; what was fetched is thrown away");
  }
  if (std::rename(part.c_str(), path.c_str()) != 0) {
    return IoError(path + ": cannot rename " + part + ": " + std::strerror(errno));
  }
  return OkStatus();
}

Status Download(const DownloadRequest& request, FunctionRef<bool(int64_t, int64_t)> progress) {
  // Bytes of an earlier download may be the bad ones, so a wrong checksum is worth one fresh start.
  for (int round = 0;; ++round) {
    bool was_resumed = false;
    {
      LODE_ASSIGN_OR_RETURN(PartFile part, PartFile::Open(request.path));
      was_resumed = part.size() > 0;
      if (request.size_bytes >= 0 && part.size() > request.size_bytes) {
        LODE_RETURN_IF_ERROR(part.Restart());
      }
      Downloader downloader(request, part, progress);
      LODE_RETURN_IF_ERROR(downloader.FetchAll());
      LODE_RETURN_IF_ERROR(part.Complete());
    }
    const Status status = FinishDownload(request.path, request.sha256);
    if (status.code() != StatusCode::kCorruption || !was_resumed || round > 0) return status;
  }
}

}  // namespace lode
