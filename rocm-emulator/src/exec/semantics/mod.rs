//! Semantics tests: every mnemonic that ships, from real code words, against a formula that shares nothing with the
//! executor.
//!
//! A case is an encoding, decoded, and a state ([`inputs`]: edge values in what the instruction reads, lanes partly
//! off, modes). The executor runs it as part of a launch ([`machine`]), the formula ([`formula`]) says what must come
//! out, and everything a program can see is compared ([`state`]): all registers and lanes, SCC, EXEC, the mode, memory,
//! and where control went. Where the ISA leaves a choice, [`tolerance`] does.
//!
//! **A formula for a new mnemonic** is a row of a table in `formula/`: `each("v_add_f32 s_add_f32", "f32 f32 -> f32",
//! |x| ...)` for what happens in a lane or in the scalar unit ([`kind`] has the notation; [`operands`] does constants,
//! modifiers, halves, DPP and SDWA), `whole("v_readlane_b32", |inst, before, after| ...)` for anything else. Names are
//! those of every family that has the operation. What is written there is the ISA's meaning in plain or exact
//! arithmetic ([`number`]), never a call into the executor.
//!
//! The encodings are those of `tests/fixtures/shipped/` (an instruction of every form that ships for a target, which
//! `cargo xtask isa-coverage --write` collects from the code objects) and, of the same mnemonics, the random ones of
//! the decoder's fixtures. [`coverage`] counts from the first how much of what ships is decoded and executed, and from
//! the cases that ran and were right how much is tested.
mod coverage;
mod formula;
mod inputs;
mod kind;
pub mod machine;
mod number;
mod operands;
mod state;
mod tests;
mod tolerance;
mod values;
