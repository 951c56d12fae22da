// SPDX-License-Identifier: Apache-2.0
// Download: a large file from a URL to a path, so that nothing is ever lost or half there.
//
// Bytes go to PATH.part; an interrupted download continues there, in this call (a few attempts) or
// in a later one. Only a file whose size and sha256 are right is renamed to PATH, atomically; a
// file that is at PATH already is never touched before. A .part whose checksum is wrong is thrown
// away, since nobody can tell which of its bytes are bad.
#ifndef LODE_NET_DOWNLOAD_H_
#define LODE_NET_DOWNLOAD_H_

#include <cstdint>
#include <string>

#include "base/function_ref.h"
#include "base/status.h"

namespace lode {

struct DownloadRequest {
  std::string url;
  std::string path;          // its folder must exist
  int64_t size_bytes = -1;   // -1: whatever the server says
  std::string sha256;        // 64 lower-case hexadecimal digits
  int max_attempts = 5;      // in a row without a new byte
  double retry_seconds = 1;  // before the second attempt; doubled for each further one
};

// progress(bytes_done, bytes_total) is called now and then; false stops (Cancelled, .part is kept).
// Errors: NotFound (404, 410), Io (connection lost for good, disk write), ResourceExhausted (the
// disk cannot hold the file; another process is fetching it), Corruption (size or checksum:
// expected and found). One thread.
Status Download(const DownloadRequest& request,
                FunctionRef<bool(int64_t done, int64_t total)> progress);

// ResourceExhausted, with both numbers, unless the disk that holds `path` has room for `needed`
// more bytes.
Status CheckFreeSpace(const std::string& path, int64_t needed);

// Puts a finished PATH.part in place if its sha256 is right; else removes it and returns
// Corruption. For files that were put together by other means.
Status FinishDownload(const std::string& path, const std::string& sha256);

}  // namespace lode

#endif  // LODE_NET_DOWNLOAD_H_
