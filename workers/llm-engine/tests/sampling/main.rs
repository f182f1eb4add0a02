//! Sampling, compared with independent formulas in f64.
mod adversarial;
mod bad_input;
mod distributions;
mod reference;
mod rows;
