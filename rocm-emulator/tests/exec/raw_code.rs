//! Tests with hand-written machine code: invalid code faults only when it is reached.
use rocm_emulator::exec::{
    AddressSpace, Counters, DEFAULT_INSTRUCTION_LIMIT, Fault, FaultKind, Instrumentation, KernelSpec, Launch,
    Program,
};
use rocm_emulator::isa::Family;

const S_ENDPGM: u32 = 0xbfb0_0000;
/// Return from a trap handler, which decodes but is not supported by the executor.
const S_RFE_B64: u32 = 0xbe80_4a00;
const S_SETPC_B64_S0: u32 = 0xbe80_4800;
const S_BRANCH: u32 = 0xbfa0_0000;
const S_CBRANCH_SCC1: u32 = 0xbfa2_0000;
const RESERVED: u32 = 0xffff_ffff;

/// Runs one wave of 32 lanes on the code.
fn run(words: &[u32]) -> Result<Counters, Fault> {
    let text = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let address = 0x1000;
    let program = Program::load(Family::Rdna3, text, address);
    let kernel = KernelSpec { name: "raw".into(), entry: address, wave32: true, ..KernelSpec::default() };
    rocm_emulator::exec::run(&Launch {
        program: &program,
        kernel: &kernel,
        grid: [1; 3],
        block: [32, 1, 1],
        dynamic_lds: 0,
        kernarg: &[],
        memory: &AddressSpace::default(),
        threads: 1,
        instruction_limit: DEFAULT_INSTRUCTION_LIMIT.min(1000),
        instrumentation: Instrumentation::default(),
    })
}

#[test]
fn unreached_invalid_code_does_not_fault() {
    run(&[S_ENDPGM, RESERVED]).expect("ends first");
    run(&[S_CBRANCH_SCC1 | 1, S_ENDPGM, S_RFE_B64]).expect("not taken");
    run(&[S_BRANCH | 1, RESERVED, S_ENDPGM]).expect("jumped over");
}

#[test]
fn unknown_instructions_are_named() {
    let fault = run(&[S_BRANCH, S_RFE_B64]).expect_err("unknown");
    assert_eq!((fault.kind.clone(), fault.pc), (FaultKind::UnknownInstruction, 4));
    let text = fault.to_string();
    assert!(text.contains("s_rfe_b64") && text.contains("raw") && text.contains("0x4"), "{text}");
}

#[test]
fn undecodable_bytes_fault() {
    let fault = run(&[RESERVED]).expect_err("undecodable");
    assert!(matches!(fault.kind, FaultKind::Undecodable(_)), "{fault}");
    // Execution runs past the end of the code.
    let fault = run(&[S_BRANCH]).expect_err("the code ends");
    assert!(matches!(fault.kind, FaultKind::Undecodable(_)), "{fault}");
    // A branch to an address before the code.
    let fault = run(&[S_BRANCH | 0x8000]).expect_err("outside the code");
    assert!(matches!(fault.kind, FaultKind::Undecodable(_)), "{fault}");
}

#[test]
fn jumps_out_of_the_text() {
    let fault = run(&[S_SETPC_B64_S0]).expect_err("s[0:1] is zero");
    assert_eq!(fault.kind, FaultKind::BadJump { target: 0 });
}

#[test]
fn a_branch_to_itself() {
    let fault = run(&[S_BRANCH | 0xffff]).expect_err("does not end");
    assert!(matches!(fault.kind, FaultKind::InstructionLimit(1000)), "{fault}");
}
