//! Medians, quantiles and intervals.
