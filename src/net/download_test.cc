// SPDX-License-Identifier: Apache-2.0
// Downloads from a server in this process that cuts, corrupts and misbehaves as told.
#include "net/download.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/sha256.h"

namespace lode {
namespace {

using testing::HasSubstr;

// How the server answers one request; the last one given is used for all further requests.
struct Answer {
  int status = 200;        // 200 becomes 206 when a range is asked for and honoured
  int64_t cut_after = -1;  // bytes of body until the connection is closed
  bool honours_range = true;
  bool corrupts = false;  // flips one bit of the body
  bool says_length = true;
  int64_t extra_length = 0;  // added to the file's size in the header
};

class TestServer {
 public:
  TestServer(std::string body, std::vector<Answer> answers)
      : body_(std::move(body)), answers_(std::move(answers)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~TestServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/model.gguf"; }
  // Where each request asked to start.
  std::vector<int64_t> offsets() {
    std::lock_guard lock(mutex_);
    return offsets_;
  }

 private:
  void Serve() {
    while (true) {
      const int connection = ::accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      HandleOne(connection);
      ::close(connection);
    }
  }

  void HandleOne(int connection) {
    std::string request;
    char buffer[4096];
    while (request.find("\r\n\r\n") == std::string::npos) {
      const ssize_t got = ::recv(connection, buffer, sizeof(buffer), 0);
      if (got <= 0) return;
      request.append(buffer, got);
    }
    int64_t offset = 0;
    if (const size_t at = request.find("Range: bytes="); at != std::string::npos) {
      offset = std::stoll(request.substr(at + 13));
    }
    Answer answer;
    {
      std::lock_guard lock(mutex_);
      answer = answers_[std::min(offsets_.size(), answers_.size() - 1)];
      offsets_.push_back(offset);
    }
    Reply(connection, answer, answer.honours_range ? offset : 0);
  }

  void Reply(int connection, const Answer& answer, int64_t offset) {
    const int64_t size = static_cast<int64_t>(body_.size()) + answer.extra_length;
    int status = answer.status;
    if (status == 200 && offset > 0) status = offset < size ? 206 : 416;
    std::string body = status == 206 || status == 200
                           ? body_.substr(std::min<size_t>(offset, body_.size()))
                           : "no";
    std::string head = "HTTP/1.1 " + std::to_string(status) + " x\r\nConnection: close\r\n";
    if (status == 206) {
      head += "Content-Range: bytes " + std::to_string(offset) + "-" + std::to_string(size - 1) +
              "/" + std::to_string(size) + "\r\n";
    }
    if (answer.says_length) {
      const int64_t length = static_cast<int64_t>(body.size()) +
                             (status == 200 || status == 206 ? answer.extra_length : 0);
      head += "Content-Length: " + std::to_string(length) + "\r\n";
    }
    if (answer.corrupts) body[body.size() / 2] ^= 1;
    if (answer.cut_after >= 0) body.resize(std::min<size_t>(body.size(), answer.cut_after));
    const std::string all = head + "\r\n" + body;
    (void)::send(connection, all.data(), all.size(), MSG_NOSIGNAL);
    ::shutdown(connection, SHUT_WR);
    (void)::recv(connection, const_cast<char*>(all.data()), 0, 0);
  }

  const std::string body_;
  const std::vector<Answer> answers_;
  int listener_;
  int port_;
  std::mutex mutex_;
  std::vector<int64_t> offsets_;
  std::thread thread_;
};

class DownloadTest : public testing::Test {
 protected:
  DownloadTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    Random random(1);
    for (int i = 0; i < 300000; ++i) body_ += static_cast<char>(random.NextU64());
    Sha256 hash;
    hash.Update(std::as_bytes(std::span(body_)));
    sha256_ = hash.HexDigest();
  }
  ~DownloadTest() override { std::filesystem::remove_all(folder_); }

  Status Fetch(const std::string& url) {
    return Download({.url = url,
                     .path = path_,
                     .size_bytes = size_bytes_,
                     .sha256 = sha256_,
                     .max_attempts = 3,
                     .retry_seconds = 0.01},
                    [](int64_t, int64_t) { return true; });
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  const std::string folder_ = testing::TempDir() + "/download_t\u00e9st";
  const std::string path_ = folder_ + "/model.gguf";
  std::string body_;
  std::string sha256_;
  int64_t size_bytes_ = 300000;
};

TEST_F(DownloadTest, WholeFile) {
  TestServer server(body_, {{}});
  ASSERT_TRUE(Fetch(server.url()).ok());
  EXPECT_EQ(Read(path_), body_);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

TEST_F(DownloadTest, ContinuesWhereTheConnectionWasCut) {
  TestServer server(body_, {{.cut_after = 1000}, {.cut_after = 100000}, {}});
  ASSERT_TRUE(Fetch(server.url()).ok());
  EXPECT_EQ(Read(path_), body_);
  EXPECT_EQ(server.offsets(), (std::vector<int64_t>{0, 1000, 101000}));
}

TEST_F(DownloadTest, ContinuesInALaterCall) {
  {
    TestServer server(body_, {{.cut_after = 5000}, {.status = 403}});
    EXPECT_EQ(Fetch(server.url()).code(), StatusCode::kIo);
  }
  EXPECT_EQ(std::filesystem::file_size(path_ + ".part"), 5000u);
  TestServer server(body_, {{}});
  ASSERT_TRUE(Fetch(server.url()).ok());
  EXPECT_EQ(server.offsets(), (std::vector<int64_t>{5000}));
  EXPECT_EQ(Read(path_), body_);
}

TEST_F(DownloadTest, GivesUpWhenNothingArrivesAndKeepsThePart) {
  TestServer server(body_, {{.cut_after = 7000}, {.cut_after = 0}});
  const Status status = Fetch(server.url());
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(server.offsets().size(), 4u);  // the first, and three in a row without a byte
  EXPECT_EQ(std::filesystem::file_size(path_ + ".part"), 7000u);
}

TEST_F(DownloadTest, StartsOverWhenTheServerIgnoresTheRange) {
  TestServer server(body_, {{.cut_after = 5000}, {.honours_range = false}});
  ASSERT_TRUE(Fetch(server.url()).ok());
  EXPECT_EQ(Read(path_), body_);
}

TEST_F(DownloadTest, WorksWithoutAKnownSize) {
  size_bytes_ = -1;
  TestServer server(body_, {{.says_length = false}});
  ASSERT_TRUE(Fetch(server.url()).ok());
  EXPECT_EQ(Read(path_), body_);
}

TEST_F(DownloadTest, CorruptBytesNeverReplaceAGoodFile) {
  std::ofstream(path_) << "good";
  TestServer server(body_, {{.corrupts = true}});
  const Status status = Fetch(server.url());
  EXPECT_EQ(status.code(), StatusCode::kCorruption);
  EXPECT_THAT(status.message(), HasSubstr("expected sha256 " + sha256_ + ", found "));
  EXPECT_EQ(Read(path_), "good");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

TEST_F(DownloadTest, ABadPartOfYesterdayIsFetchedAfresh) {
  std::ofstream(path_ + ".part") << std::string(2000, 'x');
  TestServer server(body_, {{}});
  ASSERT_TRUE(Fetch(server.url()).ok());
  EXPECT_EQ(server.offsets(), (std::vector<int64_t>{2000, 0}));
  EXPECT_EQ(Read(path_), body_);
}

TEST_F(DownloadTest, APartThatIsTooLongIsFetchedAfresh) {
  std::ofstream(path_ + ".part") << std::string(400000, 'x');
  TestServer server(body_, {{}});
  ASSERT_TRUE(Fetch(server.url()).ok());
  EXPECT_EQ(Read(path_), body_);
}

TEST_F(DownloadTest, ErrorsOfTheServer) {
  {
    TestServer server(body_, {{.status = 404}});
    const Status status = Fetch(server.url());
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_THAT(status.message(), HasSubstr("404"));
    EXPECT_EQ(server.offsets().size(), 1u);
  }
  {
    TestServer server(body_, {{.status = 503}, {.status = 429}, {}});
    EXPECT_TRUE(Fetch(server.url()).ok());
  }
  std::filesystem::remove(path_);
  {
    TestServer server(body_, {{.extra_length = 5}});
    const Status status = Fetch(server.url());
    EXPECT_EQ(status.code(), StatusCode::kCorruption);
    EXPECT_THAT(status.message(), HasSubstr("expected 300000 bytes, the server offers 300005"));
  }
  EXPECT_EQ(Fetch("ftp://127.0.0.1/x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Fetch("http://127.0.0.1:1/x").code(), StatusCode::kIo);
}

TEST_F(DownloadTest, AFullDiskKeepsWhatIsThere) {
  // Every write to this device fails as on a full disk.
  std::filesystem::create_symlink("/dev/full", path_ + ".part");
  TestServer server(body_, {{}});
  const Status status = Fetch(server.url());
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_THAT(status.message(), HasSubstr("No space left"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(DownloadTest, RefusesWhatTheDiskCannotHold) {
  size_bytes_ = int64_t{1} << 60;
  TestServer server(body_, {{.extra_length = size_bytes_ - 300000}});
  const Status status = Fetch(server.url());
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("bytes free"));
}

TEST_F(DownloadTest, CancelKeepsThePart) {
  TestServer server(body_, {{}});
  const Status status =
      Download({.url = server.url(), .path = path_, .size_bytes = 300000, .sha256 = sha256_},
               [](int64_t done, int64_t) { return done < 10000; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_GE(std::filesystem::file_size(path_ + ".part"), 10000u);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace lode
