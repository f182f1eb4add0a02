//! Execution of one instruction as part of a launch, from a given state.
use super::state::{GLOBAL_BYTES, LDS_BYTES, State};
use crate::exec::memory::{Lds, Private};
use crate::exec::wave::{Lanes, Wave};
use crate::exec::{AddressSpace, FaultKind, Instrumentation, KernelSpec, Launch, Program, Range, run};
use crate::isa::Family;
use std::cell::RefCell;

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// Replaces a wave's initial state by the state under test, if this thread has one.
pub fn load_state<const W: usize>(wave: &mut Wave<W>, private: &mut Private, lds: &mut Lds) {
    STATE.with_borrow(|state| {
        let Some(state) = state else { return };
        (wave.sgpr, wave.scc, wave.mode) = (state.sgpr, state.scc, state.mode);
        for (register, values) in wave.vgpr.iter_mut().zip(&state.vgpr) {
            *register = Lanes(std::array::from_fn(|lane| values[lane]));
        }
        if !state.lds.is_empty() {
            lds.bytes().copy_from_slice(&state.lds);
        }
        for (lane, bytes) in state.private.iter().enumerate() {
            private.bytes(lane).copy_from_slice(bytes);
        }
    });
}

/// Saves a wave's final state.
pub fn save_state<const W: usize>(wave: &Wave<W>, private: &mut Private, lds: &mut Lds) {
    STATE.with_borrow_mut(|state| {
        let Some(state) = state else { return };
        (state.sgpr, state.scc, state.mode) = (wave.sgpr, wave.scc, wave.mode);
        for (register, values) in wave.vgpr.iter().zip(&mut state.vgpr) {
            values[..W].copy_from_slice(&register.0);
        }
        if !state.lds.is_empty() {
            state.lds.copy_from_slice(lds.bytes());
        }
        for (lane, bytes) in state.private.iter_mut().enumerate() {
            bytes.copy_from_slice(private.bytes(lane));
        }
    });
}

/// Memory for global accesses, aligned to 64 bytes.
pub struct Buffer(Vec<[u64; 8]>);

impl Buffer {
    pub fn new() -> Self {
        Self(vec![[0; 8]; GLOBAL_BYTES / 64])
    }

    pub fn base(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    fn fill(&mut self, bytes: &[u8]) {
        for (word, bytes) in self.0.iter_mut().flatten().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Code with the instruction under test in its middle. All other code faults, which shows where control went.
pub struct Code {
    program: Program,
    entry: u64,
    family: Family,
}

/// Bytes before and after the instruction: the range of 16-bit branches.
const MARGIN: usize = 4 * 0x8010;

impl Code {
    /// Creates the code. `branches` must be true if the instruction may branch.
    pub fn new(family: Family, instruction: &[u8], branches: bool) -> Self {
        let margin = if branches { MARGIN } else { 64 };
        let mut text = vec![0xff; margin];
        text.extend(instruction);
        text.resize(text.len() + margin, 0xff);
        Self {
            program: Program::load(family, text, TEXT_ADDRESS),
            entry: TEXT_ADDRESS + margin as u64,
            family,
        }
    }

    /// Returns the address of the instruction.
    pub fn address(&self) -> u64 {
        self.entry
    }

    /// Executes the instruction. Returns `None` if the executor doesn't support it.
    pub fn execute(&self, state: &State, buffer: &mut Buffer) -> Option<Result<State, String>> {
        assert_eq!(state.family, self.family);
        if !state.global.is_empty() {
            buffer.fill(&state.global);
        }
        let range = Range { base: buffer.base(), len: GLOBAL_BYTES as u64, writable: true };
        // SAFETY: the buffer outlives the launch, and nothing else accesses it during the launch.
        let memory = unsafe { AddressSpace::from_ranges(vec![range]) };
        let kernel = KernelSpec {
            name: "semantics".into(),
            entry: self.entry,
            vgprs: 256,
            lds_bytes: if state.lds.is_empty() { 0 } else { LDS_BYTES as u32 },
            private_bytes: state.private.first().map_or(0, Vec::len) as u32,
            wave32: state.lanes == 32,
            ..KernelSpec::default()
        };
        let launch = Launch {
            program: &self.program,
            kernel: &kernel,
            grid: [1; 3],
            block: [state.lanes as u32, 1, 1],
            dynamic_lds: 0,
            kernarg: &[],
            memory: &memory,
            threads: 1,
            instruction_limit: 1000,
            instrumentation: Instrumentation::default(),
        };
        STATE.set(Some(state.clone()));
        let outcome = run(&launch);
        let mut after = STATE.take().expect("the state is still set");
        if !state.global.is_empty() {
            after.global = buffer.bytes();
        }
        let fault = match outcome {
            // s_endpgm ends the wave.
            Ok(_) => {
                after.pc = i64::MAX;
                return Some(Ok(after));
            }
            Err(fault) => fault,
        };
        let offset = |pc: u64| (TEXT_ADDRESS + pc) as i64 - self.entry as i64;
        match fault.kind {
            FaultKind::Undecodable(_) => after.pc = offset(fault.pc),
            FaultKind::BadJump { target } => after.pc = target.wrapping_sub(self.entry) as i64,
            FaultKind::UnknownInstruction => return None,
            kind => return Some(Err(format!("{kind:?}"))),
        }
        Some(Ok(after))
    }
}

const TEXT_ADDRESS: u64 = 0x7f00_1000;
