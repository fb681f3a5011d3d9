/// Draws from distributions, the same to the last bit on every platform: they use no function of
/// the C library whose rounding may differ.
#pragma once

#include "model/base/random.h"

namespace kvcast::simulate {

/// Of a number above 0, within 4e-16 of it.
double portable_log(double x);
/// Within |x| 2e-16 of it, relative.
double portable_exp(double x);

/// Mean 1.
double exponential(Random& random);
/// Mean 0, deviation 1: the polar method (Marsaglia and Bray 1964).
double normal(Random& random);
/// Scale 1, mean `shape`: Marsaglia and Tsang 2000, "A simple method for generating gamma
/// variables", section 6 for a shape below 1.
double gamma(Random& random, double shape);

}  // namespace kvcast::simulate
