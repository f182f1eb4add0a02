//! Parsers of tool calls and reasoning: texts of model families with the expected deltas. Each text is parsed as a
//! whole, by characters, and split at every character.
mod checked;
mod detection;
mod marks;
mod names;
mod python;
mod reasoning;
mod splits;
mod tags;
