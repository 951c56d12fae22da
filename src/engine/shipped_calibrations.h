// SPDX-License-Identifier: Apache-2.0
// Calibrations that are part of the program, of models that many use: src/engine/calibrations.
#ifndef LODE_ENGINE_SHIPPED_CALIBRATIONS_H_
#define LODE_ENGINE_SHIPPED_CALIBRATIONS_H_

#include <array>
#include <cstddef>
#include <span>

namespace lode {

// Their files, as Calibration::Parse reads them.
std::array<std::span<const std::byte>, 2> ShippedCalibrations();

}  // namespace lode

#endif  // LODE_ENGINE_SHIPPED_CALIBRATIONS_H_
