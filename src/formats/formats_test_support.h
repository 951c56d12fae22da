// SPDX-License-Identifier: Apache-2.0
// Support for this folder's tests: temporary folders, shapes, and the rule for hostile files: a
// refusal must be quick, small and say what it found.
#ifndef LODE_FORMATS_FORMATS_TEST_SUPPORT_H_
#define LODE_FORMATS_FORMATS_TEST_SUPPORT_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace lode {

// Peak resident memory of this process in bytes.
inline int64_t PeakMemoryBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// Processor time of this process in seconds: unlike the clock's, not stretched by other processes.
inline double CpuSeconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Calls open(), which must fail with `code` and a message that holds every one of `parts`, in under
// 100 ms and 10 MB.
template <class Open>
void ExpectRefusedCheaply(const Open& open, StatusCode code,
                          const std::vector<std::string>& parts) {
  const int64_t memory_before = PeakMemoryBytes();
  const double start = CpuSeconds();
  const Status status = open();
  const double elapsed = CpuSeconds() - start;
  EXPECT_EQ(status.code(), code) << status.ToString();
  for (const std::string& part : parts) EXPECT_THAT(status.message(), testing::HasSubstr(part));
  EXPECT_LT(elapsed, 0.1);
  EXPECT_LT(PeakMemoryBytes() - memory_before, 10'000'000);
}

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

inline Shape MakeShape(std::initializer_list<int64_t> dims) {
  Shape shape;
  for (const int64_t dim : dims) shape.dims[shape.num_dims++] = dim;
  return shape;
}

// A folder with a name beyond ASCII, removed at the end.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lode_tést_XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string File(const std::string& name) const { return (path_ / name).string(); }
  void Write(const std::string& name, std::string_view bytes) const {
    std::ofstream file(File(name), std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(file.good()) << name;
  }

 private:
  std::filesystem::path path_;
};

// A safetensors file of this JSON header and data.
inline std::string MakeSafetensors(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file.append(header).append(data);
}

}  // namespace lode

#endif  // LODE_FORMATS_FORMATS_TEST_SUPPORT_H_
