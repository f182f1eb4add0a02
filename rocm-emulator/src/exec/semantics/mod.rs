//! Semantics tests: every shipped mnemonic, in real encodings, is compared with a formula that shares no code
//! with the executor.
//!
//! A case is a decoded encoding and a state ([`inputs`]: edge values in the operands, inactive lanes, modes).
//! The executor runs it as part of a launch ([`machine`]), and the formula ([`formula`]) computes the
//! expected state. Everything visible to a program is compared ([`state`]): registers of all lanes, SCC,
//! EXEC, mode, memory and the program counter. [`tolerance`] covers results that the ISA leaves open.
//!
//! **To add a mnemonic**, add a row to a table in `formula/`: `each("v_add_f32 s_add_f32", "f32 f32 -> f32",
//! |x| ...)` for a function of one lane or of the scalar unit, or `whole("v_readlane_b32", |inst, before,
//! after| ...)` for anything else. [`kind`] describes the notation, and [`operands`] applies constants,
//! modifiers, halves, DPP and SDWA. List the names in all families that have the operation. Write the ISA's
//! semantics in plain or exact arithmetic ([`number`]), and never call the executor.
//!
//! The encodings come from `tests/fixtures/shipped/`, which `cargo xtask isa-coverage --write` collects from
//! the code objects (an instruction of every form that ships for a target). Random encodings of the same
//! mnemonics come from the decoder's fixtures. [`coverage`] counts which shipped forms are decoded and
//! executed, and which mnemonics passed enough cases to count as tested.
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
