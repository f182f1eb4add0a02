//! Drawing the next tokens, against formulas in f64 that share nothing with the code.
mod bad_input;
mod distributions;
mod reference;
mod rows;
