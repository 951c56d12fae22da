// SPDX-License-Identifier: Apache-2.0
// What csa_hca must compute whatever it selects, against `eager`.
//
// Two cases are exact by construction: when every page is read, and when all keys of a page are
// equal (then a page's summary says all there is about it). In between, the share of mass that
// summaries carry bounds what can be wrong.
#include "csa_hca_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "attention/phased.h"
#include "kernels/targets.h"
#include "kv/kv_cache.h"
#include "retrieval/page_index.h"

namespace lode {
namespace {

constexpr double kTolerance = 2e-4;      // of the largest output, as in attention_test
constexpr double kMeanTolerance = 2e-2;  // means of keys and values have 8 bits

TEST(CsaHca, ReadingEveryPageIsExact) {
  for (const int64_t length : {1, 31, 32, 33, 64, 65, 287, 288, 289, 320, 321, 700, 1300}) {
    for (const int64_t window : {int64_t{1}, int64_t{64}, int64_t{256}}) {
      const Case c = {.length = length};
      Fixture f(c);
      const auto attention =
          CreateCsaHcaAttention({.top_k = 1 << 20, .window = window}, SomeCalibration(c));
      const int64_t n = std::min<int64_t>(length, 40);
      EXPECT_LT(RelativeError(f.Run(*attention, length - n, n, 17), f.Truth(length - n, n)),
                kTolerance)
          << length << " window " << window;
      EXPECT_EQ(attention->counters().rows, 0);
    }
  }
}

TEST(CsaHca, SummariesOfEqualKeysAreExact) {
  for (const int64_t top_k : {0, 1, 32, 33, 64, 128}) {
    for (const int64_t length : {400, 416, 417, 1000}) {
      for (const int32_t head_dim : {8, 64, 80, 256}) {
        const Case c = {
            .num_heads = 6, .head_dim = head_dim, .length = length, .equal_pages = true};
        Fixture f(c);
        const auto attention = CreateCsaHcaAttention(
            {.top_k = top_k, .max_error = 0, .window = 100}, SomeCalibration(c));
        EXPECT_LT(RelativeError(f.Run(*attention, length - 9, 9, 9), f.Truth(length - 9, 9)),
                  kMeanTolerance)
            << top_k << " " << length << " " << head_dim;
        const AttentionCounters counters = attention->counters();
        EXPECT_GT(counters.unread_share, 0);
        EXPECT_LT(counters.unread_share, counters.rows);
        EXPECT_LT(counters.keys_read, counters.keys);
      }
    }
  }
}

// One key that a query points at, far back, among random ones: its page must be the one that is
// read.
TEST(CsaHca, FindsTheKeyThatCounts) {
  const Case c = {.length = 2000, .needle = 777};
  Fixture f(c);
  const auto first_heads = [&](Attention& attention) {
    const std::vector<float> all = f.Run(attention, 1999, 1, 1);
    std::vector<float> heads(all.begin(), all.begin() + 64);
    heads.insert(heads.end(), all.begin() + 7 * 64, all.begin() + 8 * 64);
    return heads;
  };
  const std::vector<float> truth = first_heads(*CreateAttention("eager").value());
  const auto attention =
      CreateCsaHcaAttention({.top_k = 96, .max_error = 0, .window = 64}, SomeCalibration(c));
  const auto blind =
      CreateCsaHcaAttention({.top_k = 0, .max_error = 0, .window = 64}, SomeCalibration(c));
  EXPECT_LT(RelativeError(first_heads(*attention), truth), 0.01);
  EXPECT_GT(RelativeError(first_heads(*blind), truth), 0.3) << "a test that cannot fail";
}

TEST(CsaHca, GrowingStepByStepEqualsStartingAnew) {
  const Case c = {.length = 500};
  Fixture f(c);
  const SparseOptions options = {.top_k = 64, .max_error = 0, .window = 64};
  const auto grown = CreateCsaHcaAttention(options, SomeCalibration(c));
  for (int64_t first = 0; first < 500; ++first) f.Run(*grown, first, 1, 1);
  const auto fresh = CreateCsaHcaAttention(options, SomeCalibration(c));
  EXPECT_EQ(f.Run(*grown, 499, 1, 1), f.Run(*fresh, 499, 1, 1));
  // Tokens written anew replace what the index knew.
  EXPECT_EQ(f.cache().Truncate(0, 300), 300);
  f.Grow(200);
  f.Run(*grown, 300, 200, 200);
  f.Run(*fresh, 300, 200, 200);
  const auto other = CreateCsaHcaAttention(options, SomeCalibration(c));
  EXPECT_EQ(f.Run(*grown, 499, 1, 1), f.Run(*other, 499, 1, 1));
}

TEST(CsaHca, ResultDoesNotDependOnThreads) {
  const Case c = {.length = 900};
  Fixture f(c);
  for (const SparseOptions& options :
       {SparseOptions{.top_k = 128}, SparseOptions{.top_k = 128, .oversample = 3},
        SparseOptions{.top_k = 128, .summary_ratio = 0.4}}) {
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 4}) {
      const auto attention = CreateCsaHcaAttention(options, SomeCalibration(c));
      results.push_back(f.Run(*attention, 800, 100, 100, threads));
      attention->KeepExact(0, std::vector<TokenRange>{{100, 300}, {401, 401}});
      for (const int64_t chunk : {1, 100}) {
        const std::vector<float> exact = f.Run(*attention, 800, 100, chunk, threads);
        results.back().insert(results.back().end(), exact.begin(), exact.end());
      }
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

// With every page a candidate, what ranks them does not matter any more.
TEST(CsaHca, CandidatesAreChosenByTrueScores) {
  using Scores = SparseOptions::Scores;
  const Case c = {.length = 2000};
  Fixture f(c);
  for (const double max_unread : {0.0, 0.3}) {
    const auto run = [&](Scores scores, int64_t oversample) {
      const auto attention = CreateCsaHcaAttention({.top_k = 160,
                                                    .max_error = 0,
                                                    .max_unread = max_unread,
                                                    .oversample = oversample,
                                                    .window = 64,
                                                    .scores = scores},
                                                   SomeCalibration(c));
      std::vector<float> out = f.Run(*attention, 1990, 10, 1);
      const std::vector<float> together = f.Run(*attention, 1990, 10, 10);
      out.insert(out.end(), together.begin(), together.end());
      return std::pair(out, attention->counters());
    };
    const auto [expected, exact] = run(Scores::kExact, 1);
    for (const Scores scores : {Scores::kCodes, Scores::kMeans, Scores::kHamming}) {
      const auto [out, counters] = run(scores, 1000);
      EXPECT_LT(RelativeError(out, expected), 1e-5);
      EXPECT_EQ(counters.keys_read, exact.keys_read);
      const auto [estimated, few] = run(scores, 1);
      EXPECT_GT(RelativeError(estimated, expected), 1e-3) << "a test that cannot fail";
      EXPECT_GT(counters.bytes_read, few.bytes_read);
    }
  }
}

// Between means alone and all codes; and where keys of a page are equal codes say no more than
// means.
TEST(CsaHca, SummaryRatioLeavesCodesAside) {
  const Case c = {.length = 4000};
  Fixture f(c);
  std::vector<std::vector<float>> outputs;
  std::vector<int64_t> bytes;
  for (const double ratio : {0.0, 1e-9, 0.5, 1.0}) {
    SparseOptions options = {.top_k = 96, .max_error = 0, .window = 64};
    if (ratio > 0.0) options.summary_ratio = ratio;
    if (ratio == 0.0) options.scores = SparseOptions::Scores::kMeans;
    const auto attention = CreateCsaHcaAttention(options, SomeCalibration(c));
    outputs.push_back(f.Run(*attention, 3999, 1, 1));
    bytes.push_back(attention->counters().bytes_read);
  }
  for (size_t i = 1; i < outputs.size(); ++i) {
    EXPECT_GT(RelativeError(outputs[i], outputs[i - 1]), 1e-3);
    EXPECT_GE(bytes[i], bytes[i - 1]);
  }
  EXPECT_LT(bytes[2], bytes[3]);

  const Case equal = {.length = 2000, .equal_pages = true};
  Fixture g(equal);
  for (const double ratio : {1e-20, 0.5, 0.999}) {
    const auto attention =
        CreateCsaHcaAttention({.top_k = 96, .max_error = 0, .window = 64, .summary_ratio = ratio},
                              SomeCalibration(equal));
    EXPECT_LT(RelativeError(g.Run(*attention, 1990, 10, 10), g.Truth(1990, 10)), kMeanTolerance);
  }
}

// Of the twice as many pages that get true scores; no other page is read, however many are asked
// for.
TEST(CsaHca, ThereAreAsManyCandidatesAsAskedFor) {
  using Scores = SparseOptions::Scores;
  const Case c = {.length = 4000};
  Fixture f(c);
  constexpr int64_t kKeyBytes = kPageTokens * 64 * 2;
  for (const Scores scores : {Scores::kCodes, Scores::kMeans, Scores::kHamming}) {
    const auto run = [&](int64_t top_k, double max_unread, int64_t oversample) {
      const auto attention = CreateCsaHcaAttention({.top_k = top_k,
                                                    .max_error = 0,
                                                    .max_unread = max_unread,
                                                    .oversample = oversample,
                                                    .window = 64,
                                                    .scores = scores},
                                                   SomeCalibration(c));
      f.Run(*attention, 3999, 1, 1);
      return attention->counters();
    };
    const AttentionCounters once = run(320, 0, 1), twice = run(320, 0, 2);
    EXPECT_EQ(twice.keys_read, once.keys_read);
    EXPECT_EQ(twice.bytes_read - once.bytes_read, 2 * 10 * kKeyBytes);  // of two KV heads
    // A limit for what is left unread makes candidates too.
    const AttentionCounters limited = run(0, 0.5, 1), more = run(0, 0.5, 3);
    EXPECT_GT(more.bytes_read - more.keys_read * 64 * 4,
              limited.bytes_read - limited.keys_read * 64 * 4 + 2 * kKeyBytes);
  }
}

TEST(CsaHca, TokensLeaveTheWindowTogether) {
  const Case c = {.length = 1000};
  Fixture f(c);
  for (const int64_t interval : {1, 32, 33, 128, 500, 5000}) {
    for (const int64_t position : {300, 563, 564, 999}) {
      const SparseOptions options = {
          .top_k = 64, .max_error = 0, .window = 64, .update_interval = interval};
      const int64_t left = (position + 1 - 64) / interval * interval;
      SparseOptions plain = options;
      plain.update_interval = 1;
      plain.window = position + 1 - left;
      const auto run = [&](const SparseOptions& with) {
        const auto attention = CreateCsaHcaAttention(with, SomeCalibration(c));
        return f.Run(*attention, position, 1, 1);
      };
      EXPECT_EQ(run(options), run(plain)) << interval << " " << position;
    }
  }
}

// What is kept exact is read in addition to the budget, whatever ranks the others; of a border only
// a page that it cuts.
TEST(CsaHca, PagesKeptExactAreReadBesides) {
  using Scores = SparseOptions::Scores;
  const Case c = {.length = 2000};
  Fixture f(c);
  const std::vector<TokenRange> ranges = {{0, 10}, {400, 500}, {500, 501}, {777, 777}, {800, 800}};
  constexpr int64_t kPages = 4 + 1;
  for (const Scores scores : {Scores::kCodes, Scores::kMeans, Scores::kExact, Scores::kHamming}) {
    for (const int64_t top_k : {0, 96}) {
      const auto read = [&](std::span<const TokenRange> kept) {
        const auto attention = CreateCsaHcaAttention(
            {.top_k = top_k, .max_error = 0, .window = 64, .scores = scores}, SomeCalibration(c));
        attention->KeepExact(0, kept);
        f.Run(*attention, 1999, 1, 1);
        return attention->counters().keys_read;
      };
      EXPECT_EQ(read(ranges) - read({}), 2 * kPages * kPageTokens) << top_k;
    }
  }
}

TEST(CsaHca, PagesKeptExactAreExact) {
  const Case c = {.length = 2000, .needle = 777};
  Fixture f(c);
  const std::vector<float> truth = f.Truth(1999, 1);
  // Nothing but the page of the key that counts, for the queries that it counts for.
  const auto error = [&](Attention& attention) {
    const std::vector<float> out = f.Run(attention, 1999, 1, 1);
    return RelativeError({out.begin(), out.begin() + 64}, {truth.begin(), truth.begin() + 64});
  };
  const SparseOptions options = {.top_k = 0, .max_error = 0, .window = 64};
  const auto attention = CreatePhasedAttention(CreateAttention("flash").value(),
                                               CreateCsaHcaAttention(options, SomeCalibration(c)));
  attention->KeepExact(0, std::vector<TokenRange>{{777, 778}});
  EXPECT_LT(error(*attention), 0.01);
  attention->Truncate(0, 800);
  EXPECT_LT(error(*attention), 0.01);
  attention->Truncate(0, 799);
  EXPECT_GT(error(*attention), 0.3) << "the page is forgotten with its last token";
  attention->KeepExact(0, std::vector<TokenRange>{{700, 900}});
  EXPECT_LT(error(*attention), 0.01);
  attention->KeepExact(0, {});
  EXPECT_GT(error(*attention), 0.3) << "ranges replace earlier ones";
}

TEST(CsaHca, KeepingEverythingExactIsFlash) {
  const Case c = {.length = 900};
  Fixture f(c);
  const auto flash = CreateAttention("flash").value();
  const auto sparse =
      CreateCsaHcaAttention({.top_k = 0, .max_error = 0, .window = 64}, SomeCalibration(c));
  sparse->KeepExact(0, std::vector<TokenRange>{{0, 900}});
  for (const int64_t chunk : {1, 7, 100}) {
    EXPECT_EQ(f.Run(*sparse, 800, 100, chunk), f.Run(*flash, 800, 100, chunk));
  }
  EXPECT_EQ(sparse->counters().rows, 0);
  // For the first queries of a chunk everything, for the last ones all but a few pages.
  const Case equal = {.length = 900, .equal_pages = true};
  Fixture pages(equal);
  sparse->Truncate(0, 0);
  sparse->KeepExact(0, std::vector<TokenRange>{{0, 750}});
  const std::vector<float> truth = pages.Truth(700, 200), out = pages.Run(*sparse, 700, 200, 200);
  EXPECT_LT(RelativeError(out, truth), kMeanTolerance);
  const auto early = static_cast<std::ptrdiff_t>(40) * 14 * 64;
  EXPECT_LT(
      RelativeError({out.begin(), out.begin() + early}, {truth.begin(), truth.begin() + early}),
      kTolerance);
  EXPECT_GT(sparse->counters().unread_share, 0);
}

TEST(CsaHca, SlidingLayersAndLayersWithoutProjectionAreExact) {
  Case c = {.length = 900, .window = 300};
  Fixture sliding(c);
  const auto attention = CreateCsaHcaAttention({.top_k = 0, .window = 32}, SomeCalibration(c));
  EXPECT_LT(RelativeError(sliding.Run(*attention, 890, 10, 10), sliding.Truth(890, 10)),
            kTolerance);
  c.window = 0;
  Fixture global(c);
  const auto empty =
      std::make_shared<Calibration>(2, c.num_kv_heads, c.head_dim, ModelFingerprint{});
  const auto exact = CreateCsaHcaAttention({.top_k = 0, .window = 32}, empty);
  EXPECT_LT(RelativeError(global.Run(*exact, 890, 10, 10), global.Truth(890, 10)), kTolerance);
}

// What summaries get wrong falls with the limit for it, until all that counts is read. Of any page
// that is not read the share, in root mean square over the rows, is below limit / sqrt(pages): so
// rows leave no more unread than sqrt(pages) times the limit, on average.
TEST(CsaHca, SmallerErrorsReadMore) {
  const Case c = {.length = 3000};
  Fixture f(c);
  const std::vector<float> truth = f.Truth(2990, 10);
  int64_t keys_before = 0;
  double error_before = 1e9;
  for (const double max_error : {1.0, 0.4, 0.15, 0.08, 1e-9}) {
    const auto attention = CreateCsaHcaAttention({.top_k = 32,
                                                  .max_error = max_error,
                                                  .window = 64,
                                                  .scores = SparseOptions::Scores::kExact},
                                                 SomeCalibration(c));
    const double error = RelativeError(f.Run(*attention, 2990, 10, 1), truth);
    const AttentionCounters counters = attention->counters();
    EXPECT_GT(counters.keys_read, keys_before) << max_error;
    EXPECT_LT(error, error_before) << max_error;
    EXPECT_LE(counters.unread_share / counters.rows, max_error * std::sqrt(3000.0 / 32));
    keys_before = counters.keys_read;
    error_before = error;
  }
  EXPECT_LT(error_before, kTolerance);
}

// With true scores the estimate of what is left unread is what an audit finds, the budget keeps it
// small, and reading more misses less.
TEST(CsaHca, AuditsAgreeWithTheEstimateAndTheBudget) {
  const Case c = {.length = 3000};
  Fixture f(c);
  double missed_before = 1.0;
  for (const double max_unread : {0.5, 0.2, 0.05}) {
    const auto attention = CreateCsaHcaAttention({.top_k = 400,
                                                  .max_error = 0,
                                                  .max_unread = max_unread,
                                                  .window = 64,
                                                  .scores = SparseOptions::Scores::kExact,
                                                  .audit_interval = 1},
                                                 SomeCalibration(c));
    // Position 2998 audits layer 1, KV head 0; the estimate is of both heads.
    f.Run(*attention, 2998, 1, 1);
    const AttentionCounters counters = attention->counters();
    ASSERT_EQ(counters.audits.rows, 7);
    const double missed = counters.audits.missed_mass / 7;
    EXPECT_NEAR(missed, counters.unread_share / 14, 0.05);
    EXPECT_LT(counters.unread_share / 14, max_unread + 0.01);
    EXPECT_LT(missed, missed_before);
    EXPECT_GT(counters.audits.output_error, 0);
    EXPECT_LT(counters.audits.output_error / 7, 1.5 * max_unread + 0.1);
    EXPECT_GT(counters.audits.recall / 7, 0.3);
    EXPECT_LT(counters.keys_read, counters.keys);
    missed_before = missed;
  }
}

// An audit of what summaries get right by construction.
TEST(CsaHca, AuditOfEqualPages) {
  const Case c = {.length = 1999, .equal_pages = true};
  Fixture f(c);
  const auto attention = CreateCsaHcaAttention(
      {.top_k = 0, .max_error = 0, .window = 64, .audit_interval = 2}, SomeCalibration(c));
  f.Run(*attention, 1994, 5, 1);  // 1994 and 1998 audit layer 0 and 1 in turn
  const AuditCounters audits = attention->counters().audits;
  EXPECT_GT(audits.rows, 0);
  EXPECT_GT(audits.missed_mass / audits.rows, 0.5);
  EXPECT_LT(audits.output_error / audits.rows, kMeanTolerance);
  EXPECT_LT(audits.recall / audits.rows, 0.9);
}

// What codes find before anything is chosen: far more than 1,024 keys of 4,600 at random would
// hold, and nothing is said where all keys are candidates or no codes rank them.
TEST(CsaHca, AuditsSayWhatCodesFind) {
  const auto audit = [](int64_t length, SparseOptions::Scores scores) {
    const Case c = {.length = length};
    Fixture f(c);
    const auto attention = CreateCsaHcaAttention(
        {.top_k = 0, .window = 64, .scores = scores, .audit_interval = 1}, SomeCalibration(c));
    f.Run(*attention, length - 1, 1, 1);
    return attention->counters().audits;
  };
  const AuditCounters codes = audit(4700, SparseOptions::Scores::kCodes);
  ASSERT_EQ(codes.code_rows, 7);
  EXPECT_GT(codes.code_recall / 7, 0.6);
  EXPECT_EQ(audit(1000, SparseOptions::Scores::kCodes).code_rows, 0);
  EXPECT_EQ(audit(4700, SparseOptions::Scores::kExact).code_rows, 0);
}

TEST(CsaHca, ManyNodesStillCount) {
  const Case c = {.length = 5000, .equal_pages = true};
  Fixture f(c);
  const auto attention = CreateCsaHcaAttention({.top_k = 96, .max_error = 0}, SomeCalibration(c));
  EXPECT_LT(RelativeError(f.Run(*attention, 4991, 9, 9), f.Truth(4991, 9)), kMeanTolerance);
}

TEST(CsaHca, EveryTargetOfTheMachine) {
  const Case c = {.length = 1500, .equal_pages = true};
  Fixture f(c);
  const std::vector<float> truth = f.Truth(1490, 10);
  for (const kernels::Target target : kernels::SupportedTargets()) {
    const kernels::ScopedTarget scoped(target);
    const auto attention = CreateCsaHcaAttention({.top_k = 96, .max_error = 0}, SomeCalibration(c));
    EXPECT_LT(RelativeError(f.Run(*attention, 1490, 10, 10), truth), kMeanTolerance)
        << kernels::TargetName(target);
  }
}

TEST(CsaHca, PromptsMayHaveAnotherAttention) {
  const Case c = {.length = 900};
  Fixture f(c);
  const SparseOptions options = {.top_k = 64, .max_error = 0, .window = 64};
  const auto phased = CreatePhasedAttention(CreateAttention("flash").value(),
                                            CreateCsaHcaAttention(options, SomeCalibration(c)));
  const auto flash = CreateAttention("flash").value();
  const auto sparse = CreateCsaHcaAttention(options, SomeCalibration(c));
  EXPECT_EQ(f.Run(*phased, 890, 10, 10), f.Run(*flash, 890, 10, 10));
  EXPECT_EQ(f.Run(*phased, 890, 10, 1), f.Run(*sparse, 890, 10, 1));
  EXPECT_EQ(phased->counters().keys_read, sparse->counters().keys_read);
}

// A query that is no number spoils its own head's output and nothing else.
TEST(CsaHca, QueriesThatAreNotFinite) {
  const Case c = {.length = 1200};
  for (const float bad : {NAN, -NAN, INFINITY}) {
    Fixture f(c);
    const auto attention = CreateCsaHcaAttention({.top_k = 64, .window = 64}, SomeCalibration(c));
    const std::vector<float> before = f.Run(*attention, 1199, 1, 1);
    f.SpoilQuery(1199, 3, bad);
    const std::vector<float> after = f.Run(*attention, 1199, 1, 1);
    EXPECT_TRUE(std::isnan(after[3 * 64]));
    EXPECT_TRUE(std::equal(before.begin() + 7 * 64, before.end(), after.begin() + 7 * 64));
    for (const int64_t head : {0, 6}) EXPECT_FALSE(std::isnan(after[head * 64]));
  }
}

TEST(CsaHca, EveryTypeOfTheCache) {
  for (const KvCodec& codec : KvCodecs()) {
    Case c = {.length = 600};
    c.dtypes = codec.dtype;
    Fixture f(c);
    const auto attention = CreateCsaHcaAttention({.top_k = 1 << 20}, SomeCalibration(c));
    EXPECT_LT(RelativeError(f.Run(*attention, 590, 10, 10), f.Truth(590, 10)), 1e-3) << codec.name;
  }
}

}  // namespace
}  // namespace lode
