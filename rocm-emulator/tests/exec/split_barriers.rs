//! Tests of gfx12's split barriers, with hand-written machine code.
use rocm_emulator::exec::{
    AddressSpace, Counters, Fault, FaultKind, Instrumentation, KernelSpec, Launch, Program, run,
};
use rocm_emulator::isa::Family;

const S_ENDPGM: u32 = 0xbfb0_0000;
const S_BARRIER_SIGNAL: u32 = 0xbe80_4ec1;
const S_BARRIER_SIGNAL_ISFIRST: u32 = 0xbe80_4fc1;
const S_BARRIER_WAIT: u32 = 0xbf94_ffff;
const S_CBRANCH_SCC1: u32 = 0xbfa2_0000;
/// v_readfirstlane_b32 s2, v0: 0 in the first wave.
const FIRST_ITEM: u32 = 0x7e04_0500;
/// s_cmp_lg_u32 s2, 0
const NOT_FIRST_WAVE: u32 = 0xbf07_8002;
/// v_mov_b32 v1, 0
const V1_ZERO: u32 = 0x7e02_0280;
/// ds_load_b32 v3, v1 and v_readfirstlane_b32 s3, v3
const LOAD_S3: [u32; 3] = [0xd8d8_0000, 0x0300_0001, 0x7e06_0503];

/// Runs a workgroup of `waves` waves with 4 bytes of LDS.
fn launch(waves: u32, words: &[u32]) -> Result<Counters, Fault> {
    let text = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let address = 0x1000;
    let program = Program::load(Family::Rdna4, text, address);
    let kernel = KernelSpec { name: "raw".into(), entry: address, wave32: true, ..KernelSpec::default() };
    run(&Launch {
        program: &program,
        kernel: &kernel,
        grid: [1; 3],
        block: [32 * waves, 1, 1],
        dynamic_lds: 4,
        kernarg: &[],
        memory: &AddressSpace::default(),
        threads: 1,
        instruction_limit: 10_000_000,
        instrumentation: Instrumentation::default(),
    })
}

#[test]
fn a_wave_continues_between_signal_and_wait() {
    // The first wave passes its wait when the second has signalled, and stores 7. The second spins until it
    // reads the 7, and only then waits.
    let mut words = vec![FIRST_ITEM, S_BARRIER_SIGNAL, NOT_FIRST_WAVE, S_CBRANCH_SCC1 | 6];
    // v_mov_b32 v2, 7; ds_store_b32 v1, v2
    words.extend([S_BARRIER_WAIT, V1_ZERO, 0x7e04_0287, 0xd834_0000, 0x0000_0201, S_ENDPGM]);
    words.push(V1_ZERO);
    words.extend(LOAD_S3);
    // s_cmp_lg_u32 s3, 7, and a branch to the load.
    words.extend([0xbf07_8703, S_CBRANCH_SCC1 | 0xfffb, S_BARRIER_WAIT, S_ENDPGM]);
    let counters = launch(2, &words).expect("the second wave sees the first one's store");
    assert_eq!(counters.waves, 2);
}

#[test]
fn a_wave_that_ends_without_signalling_is_a_divergence() {
    let words = [
        FIRST_ITEM,
        NOT_FIRST_WAVE,
        S_CBRANCH_SCC1 | 1,
        S_BARRIER_SIGNAL,
        S_CBRANCH_SCC1 | 1,
        S_BARRIER_WAIT,
        S_ENDPGM,
    ];
    let fault = launch(2, &words).expect_err("the barrier never completes");
    assert_eq!(fault.kind, FaultKind::BarrierDivergence { waiting: 1, ended: 1 });
    assert_eq!((fault.wave, fault.pc), (0, 20), "{fault}");
    launch(1, &words).expect("a single wave does not wait");
}

#[test]
fn waiting_without_a_signal_never_ends() {
    let fault = launch(2, &[S_BARRIER_SIGNAL, S_BARRIER_WAIT, S_BARRIER_WAIT, S_ENDPGM])
        .expect_err("no wave signals again");
    assert_eq!(fault.kind, FaultKind::BarrierDivergence { waiting: 2, ended: 0 });
}

#[test]
fn one_wave_is_the_first_to_signal() {
    // Every wave adds its SCC to LDS. After a barrier the sum must be 1; otherwise the wave traps.
    // ds_store_b32 v1, v1
    let mut words = vec![V1_ZERO, 0xd834_0000, 0x0000_0101, S_BARRIER_SIGNAL, S_BARRIER_WAIT];
    words.push(S_BARRIER_SIGNAL_ISFIRST);
    // s_cselect_b32 s4, 1, 0; v_mov_b32 v2, s4; s_mov_b32 exec_lo, 1; ds_add_u32 v1, v2
    words.extend([0x9804_8081, 0x7e04_0204, 0xbefe_0081, 0xd800_0000, 0x0000_0201]);
    words.extend([S_BARRIER_WAIT, S_BARRIER_SIGNAL, S_BARRIER_WAIT]);
    words.extend(LOAD_S3);
    // s_cmp_eq_u32 s3, 1; s_trap 2
    words.extend([0xbf06_8103, S_CBRANCH_SCC1 | 1, 0xbf90_0002, S_ENDPGM]);
    for waves in [1, 2, 4] {
        launch(waves, &words).unwrap_or_else(|fault| panic!("{waves} waves: {fault}"));
    }
}
