// SPDX-License-Identifier: Apache-2.0
#include "attention/sparse_tile.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <numbers>
#include <numeric>
#include <span>

#include "attention/kv_chunk.h"
#include "attention/page_means.h"
#include "kernels/attention_tile.h"
#include "kernels/code_scan.h"
#include "kernels/rotation.h"
#include "kernels/softmax.h"

namespace lode {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2PageTokens = 5.0f;
static_assert(kPageTokens == 32);

// Sizes of parts: some 20 to 50 us of work each.
constexpr int64_t kScanNodes = 16;
constexpr int64_t kReadPages = 32;
constexpr int64_t kSummaryNodes = 64;

// Pages whose codes are looked at together, or not at all.
constexpr int64_t kGroupPages = 8;

// Between rows of masses, which would share cache sets at a distance that is a power of two.
constexpr int64_t kRowGap = 16;

constexpr int64_t Parts(int64_t work, int64_t size) {
  return (work + size - 1) / size;
}

// Appends a run, or makes the last one longer when it ends where this begins.
void AppendRun(const KeyRun& run, std::vector<KeyRun>& runs) {
  if (!runs.empty() && runs.back().end == run.begin) {
    runs.back().end = run.end;
  } else {
    runs.push_back(run);
  }
}

// Pages as runs of keys.
std::vector<KeyRun> RunsOf(std::span<const int64_t> pages) {
  std::vector<KeyRun> runs;
  for (const int64_t page : pages) {
    AppendRun({page * kPageTokens, (page + 1) * kPageTokens}, runs);
  }
  return runs;
}

}  // namespace

MiddlePages MiddlePages::Of(const SparseOptions& options, int64_t position) {
  MiddlePages pages;
  pages.end = std::max(pages.begin, options.SummarisedTokens(position + 1) / kPageTokens);
  if (pages.count() * kPageTokens <= options.top_k) pages.end = pages.begin;
  return pages;
}

void SparseTile::Begin(const AttentionInputs& inputs, const KvCache& cache,
                       const SparseIndex& index, const FlashShape& shape, const QueryTile& tile,
                       const SparseOptions& options) {
  inputs_ = &inputs;
  cache_ = &cache;
  index_ = &index.Pages(inputs.layer, tile.kv_head);
  signs_ = index.Signs(inputs.layer, tile.kv_head);
  shape_ = &shape;
  options_ = &options;
  tile_ = tile;
  middle_ = MiddlePages::Of(options, inputs.first_position + tile.first_token);
  exact_ = index.ExactPages(middle_.begin, middle_.end);
  nodes_ = middle_.count() > 0 ? Parts(middle_.end, kNodePages) : 0;
  columns_ = nodes_ * kNodePages;
  stride_ = columns_ + kRowGap;
  queries_ =
      ScaleQueries(inputs, shape, tile, inputs.scale * std::numbers::log2e_v<float>, query_buffer_);
  masses_.resize(static_cast<size_t>(rows() * stride_));
  scanned_.assign(static_cast<size_t>(num_scans()), 0);
  candidates_.clear();
  read_.clear();
  states_.resize(std::max<size_t>(states_.size(), 1));
}

void SparseTile::Prepare() {
  const bool uses_codes = signs_ == nullptr && options_->scores == SparseOptions::Scores::kCodes;
  if (nodes_ > 0 && uses_codes) index_->Prepare(queries_, rows(), prepared_);
}

// ---- Scan

int64_t SparseTile::num_scans() const {
  return 1 + Parts(nodes_, kScanNodes);
}

void SparseTile::Scan(int64_t part, FlashScratch& scratch) {
  if (part == 0) return AttendAlways(scratch);
  const int64_t first = (part - 1) * kScanNodes;
  ScoreNodes(first, std::min(first + kScanNodes, nodes_), scratch);
}

kernels::SoftmaxState SparseTile::StateOf(int64_t part) {
  kernels::SoftmaxState state =
      shape_->StateIn(states_[static_cast<size_t>(part)].Reserve<float>(shape_->state_floats));
  state.rows = rows();
  return state;
}

void SparseTile::AttendAlways(FlashScratch& scratch) {
  kernels::SoftmaxState state = StateOf(0);
  const std::array<KeyRun, 2> apart = {
      {{0, middle_.begin * kPageTokens}, {middle_.end * kPageTokens, end()}}};
  const KeyRun whole = {0, end()};
  const std::span<const KeyRun> runs =
      middle_.count() > 0 ? std::span<const KeyRun>(apart) : std::span<const KeyRun>(&whole, 1);
  AttendRuns(*inputs_, *cache_, *shape_, tile_, runs, scratch, state);
}

void SparseTile::ScoreNodes(int64_t first_node, int64_t last_node, FlashScratch& scratch) {
  using Scores = SparseOptions::Scores;
  const int64_t first = first_node * kNodePages, last = last_node * kNodePages;
  // Pages outside the middle count for nothing.
  const int64_t begin = std::max(first, middle_.begin), end = std::min(last, middle_.end);
  PageMeans(*index_, queries_, rows(), scratch)
      .Score(first_node, last_node, MassesOf(0) + first, stride_);
  for (int64_t r = 0; r < rows(); ++r) {
    std::fill(MassesOf(r) + first, MassesOf(r) + begin, -kInfinity);
    std::fill(MassesOf(r) + end, MassesOf(r) + last, -kInfinity);
  }
  if (signs_ != nullptr || options_->scores == Scores::kMeans) {  // the mass of equal keys
    for (int64_t r = 0; r < rows(); ++r) {
      for (int64_t page = begin; page < end; ++page) MassesOf(r)[page] += kLog2PageTokens;
    }
  } else if (options_->scores == Scores::kExact) {
    for (int64_t page = begin; page < end; ++page) ScoreExactly(page, scratch, MassesOf(0) + page);
  } else {
    int64_t& scanned = scanned_[static_cast<size_t>(first_node / kScanNodes)];
    if (options_->summary_ratio < 1.0) {
      scanned = ScoreCodesOfLargest(begin, end);
    } else {
      scanned = end - begin;
      kernels::AddPageMasses(index_->Codes(begin, end), prepared_.Tables(), MassesOf(0) + begin,
                             stride_);
    }
  }
}

// Of pages whose masses are scores of their means, summary_ratio of them get masses by codes: the
// groups of pages one of which comes nearest to the largest score of some row. The others get those
// of equal keys.
int64_t SparseTile::ScoreCodesOfLargest(int64_t begin, int64_t end) {
  const int64_t num_groups = Parts(end - begin, kGroupPages);
  if (num_groups <= 0) return 0;
  std::vector<float> ranks(static_cast<size_t>(num_groups), -kInfinity);
  for (int64_t r = 0; r < rows(); ++r) {
    const float* row = MassesOf(r);
    const float largest = *std::max_element(row + begin, row + end);
    for (int64_t group = 0; group < num_groups; ++group) {
      const int64_t first = begin + group * kGroupPages, last = std::min(first + kGroupPages, end);
      float& rank = ranks[static_cast<size_t>(group)];
      for (int64_t page = first; page < last; ++page) rank = std::max(rank, row[page] - largest);
    }
  }
  std::vector<int64_t> groups(static_cast<size_t>(num_groups));
  std::iota(groups.begin(), groups.end(), 0);
  const auto num_large =
      std::max<int64_t>(1, std::llround(options_->summary_ratio * static_cast<double>(num_groups)));
  const auto others = groups.begin() + num_large;
  std::nth_element(groups.begin(), others, groups.end(), [&](int64_t a, int64_t b) {
    const float rank_a = ranks[static_cast<size_t>(a)], rank_b = ranks[static_cast<size_t>(b)];
    return rank_a != rank_b ? rank_a > rank_b : a < b;
  });
  std::sort(groups.begin(), others);
  int64_t scanned = 0;
  for (auto group = groups.begin(); group != others;) {  // neighbours in one call
    const int64_t first = begin + *group * kGroupPages;
    int64_t last = first;
    for (; group != others && begin + *group * kGroupPages == last; ++group) last += kGroupPages;
    last = std::min(last, end);
    kernels::AddPageMasses(index_->Codes(first, last), prepared_.Tables(), MassesOf(0) + first,
                           stride_);
    scanned += last - first;
  }
  for (auto group = others; group != groups.end(); ++group) {
    const int64_t first = begin + *group * kGroupPages, last = std::min(first + kGroupPages, end);
    for (int64_t r = 0; r < rows(); ++r) {
      for (int64_t page = first; page < last; ++page) MassesOf(r)[page] += kLog2PageTokens;
    }
  }
  return scanned;
}

// masses[row * stride_] = log2 of the true mass of a page.
void SparseTile::ScoreExactly(int64_t page, FlashScratch& scratch, float* masses) {
  const int64_t head_dim = shape_->head_dim;
  float* keys = scratch.decoded.Reserve<float>(head_dim * kPageTokens);
  float* scores = scratch.float_scores.Reserve<float>(rows() * kPageTokens);
  KvChunk(*cache_, inputs_->sequence, inputs_->layer, tile_.kv_head, page * kPageTokens,
          (page + 1) * kPageTokens)
      .DecodeKeys(keys);
  kernels::MultiplyTile(queries_, head_dim, keys, rows(), head_dim, kPageTokens, false, scores,
                        kPageTokens);
  for (int64_t r = 0; r < rows(); ++r) {
    masses[r * stride_] = kernels::LogSumExp2(scores + r * kPageTokens, kPageTokens);
  }
}

// ---- Select

void SparseTile::Select() {
  if (nodes_ == 0) return;
  SumShares();
  if (signs_ != nullptr) RankBySigns();
  ChoosePages(signs_ != nullptr ? ranks_ : squares_, signs_ != nullptr, options_->oversample);
  if (options_->oversample == 1) {
    FinishSelection();
  } else {
    std::sort(read_.begin(), read_.end());
    candidates_.swap(read_);
  }
}

int64_t SparseTile::num_rescores() const {
  return Parts(std::ssize(candidates_), kReadPages);
}

void SparseTile::Rescore(int64_t part, FlashScratch& scratch) {
  const int64_t first = part * kReadPages;
  const int64_t last = std::min(first + kReadPages, std::ssize(candidates_));
  for (int64_t i = first; i < last; ++i) {
    const int64_t page = candidates_[static_cast<size_t>(i)];
    ScoreExactly(page, scratch, MassesOf(0) + page);
  }
}

void SparseTile::SelectRescored() {
  if (nodes_ == 0 || options_->oversample == 1) return;
  SumShares();
  ranks_.assign(static_cast<size_t>(columns_), 0.0f);
  for (const int64_t page : candidates_) {
    ranks_[static_cast<size_t>(page)] = squares_[static_cast<size_t>(page)];
  }
  read_.clear();
  ChoosePages(ranks_, true, 1);
  FinishSelection();
}

// Pages that are kept exact are read too, and those that are read have no summary.
void SparseTile::FinishSelection() {
  read_.insert(read_.end(), exact_.begin(), exact_.end());
  std::sort(read_.begin(), read_.end());
  for (int64_t r = 0; r < rows(); ++r) {
    for (const int64_t page : read_) MassesOf(r)[page] = -kInfinity;
  }
  const size_t num_states = static_cast<size_t>(1 + num_attends());
  states_.resize(std::max(states_.size(), num_states));
}

// shares_[page] = the page's share of a row's mass, summed over rows; squares_[page] = the sum of
// its square. All mass of a row is that of what is always read and what the middle is estimated to
// have.
void SparseTile::SumShares() {
  const kernels::SoftmaxState always = StateOf(0);
  shares_.assign(static_cast<size_t>(columns_), 0.0f);
  squares_.assign(static_cast<size_t>(columns_), 0.0f);
  for (int64_t r = 0; r < rows(); ++r) {
    const float read = always.max[r] + std::log2(always.sum[r]);
    const float middle = kernels::LogSumExp2(MassesOf(r), columns_);
    const float larger = std::max(read, middle);
    const float all = larger + std::log2(std::exp2(read - larger) + std::exp2(middle - larger));
    kernels::AddShares(MassesOf(r), columns_, all, shares_.data(), squares_.data());
  }
}

void SparseTile::RankBySigns() {
  ranks_.assign(static_cast<size_t>(columns_), 0.0f);
  signs_->Rank(queries_, rows(), middle_.begin,
               {ranks_.data() + middle_.begin, static_cast<size_t>(middle_.count())});
}

// Sets read_ to the pages of largest rank among those that are not kept exact: as many as top_k
// keys have, as have a larger share than max_error allows, and until the rest's share of the mass
// of all rows is max_unread; all that times `oversample`. With only_ranked a page of rank 0 is
// never one. Rank is the sum of squared shares, as a summary's error grows with its page's share,
// and errors of different pages add up as squares; or what signs_ say.
void SparseTile::ChoosePages(const AlignedVector<float>& ranks, bool only_ranked,
                             int64_t oversample) {
  const auto rank = [&](int64_t page) { return ranks[static_cast<size_t>(page)]; };
  const auto larger = [&](int64_t a, int64_t b) {
    return rank(a) != rank(b) ? rank(a) > rank(b) : a > b;
  };
  const auto for_others = [&](auto use) {  // than the exact ones
    auto exact = exact_.begin();
    for (int64_t page = middle_.begin; page < middle_.end; ++page) {
      if (exact != exact_.end() && *exact == page) {
        ++exact;
      } else {
        use(page);
      }
    }
  };
  const auto num_rows = static_cast<double>(rows());
  const auto num_pages = static_cast<double>(middle_.count());
  const double max_error = options_->max_error > 0.0 ? options_->max_error : num_pages;
  const auto min_square = static_cast<float>(num_rows * max_error * max_error / num_pages);
  double unread = 0.0;
  int64_t large = 0;
  for_others([&](int64_t page) {
    unread += shares_[static_cast<size_t>(page)];
    large += squares_[static_cast<size_t>(page)] > min_square ? 1 : 0;
  });
  int64_t wanted = std::max(Parts(options_->top_k, kPageTokens), large);
  // Ordering all pages of a long context would take longer than reading the chosen ones. With a
  // limit for what stays unread, those below the cutoff hold less than an eighth of that.
  const double allowed = options_->max_unread * num_rows;
  float cutoff = min_square;
  if (allowed > 0.0) {
    const double share = allowed / (8.0 * num_pages);
    cutoff = static_cast<float>(std::min<double>(min_square, share * share / num_rows));
  }
  if (wanted > large || oversample > 1) cutoff = -1.0f;
  if (only_ranked) cutoff = 0.0f;
  for_others([&](int64_t page) {
    if (rank(page) > cutoff) read_.push_back(page);
  });
  wanted = std::min(wanted, std::ssize(read_));
  if (allowed > 0.0) {
    std::sort(read_.begin(), read_.end(), larger);
    int64_t count = 0;
    while (count < std::ssize(read_) && (count < wanted || unread > allowed)) {
      unread -= shares_[static_cast<size_t>(read_[static_cast<size_t>(count++)])];
    }
    wanted = count;
  }
  wanted = std::min(wanted * std::min(oversample, middle_.count()), std::ssize(read_));
  if (allowed == 0.0 && wanted < std::ssize(read_)) {
    std::partial_sort(read_.begin(), read_.begin() + wanted, read_.end(), larger);
  }
  read_.resize(static_cast<size_t>(wanted));
}

// ---- Attend

int64_t SparseTile::num_read_parts() const {
  return Parts(static_cast<int64_t>(read_.size()), kReadPages);
}
int64_t SparseTile::num_summary_parts() const {
  return options_->summary == SparseOptions::Summary::kMean ? Parts(nodes_, kSummaryNodes) : 0;
}
int64_t SparseTile::num_attends() const {
  return num_read_parts() + num_summary_parts();
}

void SparseTile::Attend(int64_t part, FlashScratch& scratch) {
  kernels::SoftmaxState state = StateOf(1 + part);
  if (part < num_read_parts()) {
    const std::span<const int64_t> pages(read_);
    const auto first = static_cast<size_t>(part * kReadPages);
    const std::vector<KeyRun> runs = RunsOf(
        pages.subspan(first, std::min(static_cast<size_t>(kReadPages), pages.size() - first)));
    AttendRuns(*inputs_, *cache_, *shape_, tile_, runs, scratch, state);
    return;
  }
  ClearState(*shape_, state);
  const int64_t begin = (part - num_read_parts()) * kSummaryNodes;
  PageMeans(*index_, queries_, rows(), scratch)
      .Attend(begin, std::min(begin + kSummaryNodes, nodes_), MassesOf(0) + begin * kNodePages,
              stride_, state);
  if (!shape_->rotated) {
    kernels::Rotate(state.output, state.rows, shape_->head_dim, state.output_stride);
  }
}

// ---- Finish

std::vector<KeyRun> SparseTile::ReadRuns() const {
  std::vector<KeyRun> runs = {{0, middle_.begin * kPageTokens}};
  for (const KeyRun& run : RunsOf(read_)) AppendRun(run, runs);
  AppendRun({middle_.end * kPageTokens, end()}, runs);
  return runs;
}

AlignedVector<float> SparseTile::EstimateKeys(FlashScratch& scratch) const {
  const int64_t num_keys = middle_.count() * kPageTokens;
  if (num_keys == 0 || prepared_.rows == 0) return {};
  AlignedVector<float> means(static_cast<size_t>(rows() * columns_));
  PageMeans(*index_, queries_, rows(), scratch).Score(0, nodes_, means.data(), columns_);
  AlignedVector<float> estimates(static_cast<size_t>(rows() * num_keys));
  AlignedVector<float> residuals(static_cast<size_t>(rows() * kPageTokens));
  for (int64_t page = middle_.begin; page < middle_.end; ++page) {
    kernels::ScanPage(index_->Codes(page, page + 1), prepared_.Tables(), residuals.data());
    for (int64_t r = 0; r < rows(); ++r) {
      const float* residual = &residuals[static_cast<size_t>(r * kPageTokens)];
      float* out =
          &estimates[static_cast<size_t>(r * num_keys + (page - middle_.begin) * kPageTokens)];
      const float mean = means[static_cast<size_t>(r * columns_ + page)];
      for (int64_t t = 0; t < kPageTokens; ++t) out[t] = mean + residual[t];
    }
  }
  return estimates;
}

void SparseTile::Finish(float* out, int64_t out_stride, AttentionCounters& counters) {
  std::vector<kernels::SoftmaxState> states;
  for (int64_t part = 0; part <= num_attends(); ++part) states.push_back(StateOf(part));
  WriteMerged(*shape_, tile_, states, out, out_stride);

  const KvCacheOptions& options = cache_->options();
  const KvTileShape page = {.head_dim = shape_->head_dim,
                            .value_group = shape_->values.value_group};
  const int64_t key_bytes = CodecFor(options.dtypes.key).key_tile_bytes(page);
  const int64_t page_bytes = key_bytes + CodecFor(options.dtypes.value).value_tile_bytes(page);
  std::vector<int64_t> only_scored;
  std::set_difference(candidates_.begin(), candidates_.end(), read_.begin(), read_.end(),
                      std::back_inserter(only_scored));
  const int64_t keys_read =
      end() - (middle_.count() - static_cast<int64_t>(read_.size())) * kPageTokens;
  counters.keys += end();
  counters.keys_read += keys_read;
  const int64_t scanned = std::accumulate(scanned_.begin(), scanned_.end(), int64_t{0});
  counters.bytes_read += keys_read * page_bytes / kPageTokens +
                         std::ssize(only_scored) * key_bytes + scanned * PageIndex::kCodeBytes +
                         nodes_ * index_->node_bytes() +
                         (signs_ ? middle_.count() * signs_->page_bytes() : 0);
  if (middle_.count() == 0) return;
  counters.rows += static_cast<double>(rows());
  for (int64_t r = 0; r < rows(); ++r) {
    float max = -kInfinity;
    for (const auto& state : states) max = std::max(max, state.max[r]);
    double all = 0.0, unread = 0.0;
    for (size_t part = 0; part < states.size(); ++part) {
      const double mass = states[part].sum[r] * std::exp2(states[part].max[r] - max);
      all += mass;
      if (part > static_cast<size_t>(num_read_parts())) unread += mass;
    }
    counters.unread_share += unread / all;
  }
}

}  // namespace lode
