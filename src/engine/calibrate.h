// SPDX-License-Identifier: Apache-2.0
// Calibrate: fits the key projections of a model by running it over some text, and their files.
#ifndef LODE_ENGINE_CALIBRATE_H_
#define LODE_ENGINE_CALIBRATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "formats/weight_source.h"
#include "models/model.h"
#include "retrieval/calibration.h"
#include "tokenizer/tokenizer.h"

namespace lode {

struct CalibrateOptions {
  int64_t chunk = 512;        // tokens per step
  int64_t query_stride = 16;  // every so many positions' queries are used
  // Called after each step with tokens done and total. Return false to stop: then Cancelled.
  std::function<bool(int64_t done, int64_t total)> on_progress;
};

// Says which weights a model's keys come from: a hash of its key projections as stored.
Result<ModelFingerprint> FingerprintOf(const WeightSource& source);

// A text of prose and code, to calibrate on when nothing better is at hand.
std::string_view BuiltInCalibrationText();

// Reads a calibration file and checks that it belongs to the model: InvalidArgument names both
// fingerprints, Corruption both sizes. Errors: those of MappedFile::Open and Calibration::Parse.
Result<Calibration> LoadCalibration(const std::string& path, const WeightSource& source,
                                    const ModelConfig& config);
// Writes a temporary file and renames it. Io: the system's reason; what was there stays.
Status SaveCalibration(const Calibration& calibration, const std::string& path);

struct CalibrationPlace {
  std::string path;    // of the file to use; empty: look in the folder, else make one
  std::string folder;  // where those made from the built-in text are kept; empty: not kept
};
// The calibration to use with a model: of the path, else of the folder, else one that is part of
// the program, else a new one. Making one takes some seconds and is said at the warning level; that
// it cannot be kept is no error. Errors: those of LoadCalibration for a given path.
Result<std::shared_ptr<const Calibration>> FindOrMakeCalibration(const CalibrationPlace& place,
                                                                 const WeightSource& source,
                                                                 Model& model,
                                                                 const Tokenizer& tokenizer,
                                                                 ThreadPool& pool);

// Runs each text from an empty context and fits every layer that does not slide. InvalidArgument
// when no text has enough tokens (two pages).
Result<Calibration> Calibrate(const WeightSource& source, Model& model,
                              std::span<const std::vector<int32_t>> texts,
                              const CalibrateOptions& options, ThreadPool& pool);

}  // namespace lode

#endif  // LODE_ENGINE_CALIBRATE_H_
