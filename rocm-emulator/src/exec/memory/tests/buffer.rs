//! Tests of untyped buffers that are not scratch memory.
use super::*;

/// First scalar register of the descriptor.
const RESOURCE: u8 = 8;

/// Creates a harness with a 40-byte buffer that starts one dword into a memory of 64 dwords with values from
/// 100 on. The lanes' offsets are 4 bytes apart.
fn harness<const W: usize>(memory: &mut Vec<u32>) -> Harness<W> {
    *memory = (100..164).collect();
    let mut harness = Harness::new(true);
    harness.range(memory);
    let base = harness.ranges[0].base + 4;
    harness.wave.sgpr[8..12].copy_from_slice(&[base as u32, (base >> 32) as u32, 40, 0x0002_0000]);
    harness.wave.vgpr[2].0 = std::array::from_fn(|lane| 4 * lane as u32);
    harness
}

fn buffer(name: &'static str, scalar: Operand, offset: i32) -> Inst {
    let dst = name.contains("load").then_some(DST);
    inst(name, Encoding::Mubuf, dst, [ADDRESS, DATA, Operand::Scalar(RESOURCE), scalar], offset)
}

/// Returns the dword at index `n` of the buffer, or zero beyond its end.
fn expected_dword(n: usize, end: usize) -> u32 {
    if n < end { 101 + n as u32 } else { 0 }
}

#[test]
fn dwords_beyond_the_end_read_as_zero() {
    let mut memory = Vec::new();
    let mut harness = harness::<64>(&mut memory);
    let counters = harness.run(&buffer("buffer_load_b128", Operand::Int(0), 4)).expect("within");
    for lane in 0..64 {
        let got: [u32; 4] = std::array::from_fn(|n| harness.wave.vgpr[usize::from(DST) + n].0[lane]);
        assert_eq!(got, std::array::from_fn(|n| expected_dword(lane + 1 + n, 10)), "lane {lane}");
    }
    // The four dwords are in bounds for nine, eight, seven and six lanes.
    assert_eq!(counters.bytes_loaded, 4 * (9 + 8 + 7 + 6));
}

#[test]
fn a_scalar_offset_reduces_the_size() {
    let mut memory = Vec::new();
    let mut harness = harness::<64>(&mut memory);
    for (scalar, lanes) in [(8, 8), (40, 0), (44, 0)] {
        harness.wave.sgpr[20] = scalar;
        harness.run(&buffer("buffer_load_b32", Operand::Scalar(20), 0)).expect("within");
        let skipped = scalar as usize / 4;
        let expected: [u32; 64] = std::array::from_fn(|lane| expected_dword(lane + skipped, skipped + lanes));
        assert_eq!(harness.wave.vgpr[usize::from(DST)].0, expected, "offset {scalar}");
    }
}

#[test]
fn loads_of_halves_beyond_the_end_are_zero() {
    let mut memory = Vec::new();
    let mut harness = harness::<64>(&mut memory);
    harness.wave.vgpr[usize::from(DST)] = Lanes::splat(0x1234_5678);
    harness.wave.set_sgpr64(126, 0b1100_0000_0001);
    harness.run(&buffer("buffer_load_d16_hi_b16", Operand::Int(0), 0)).expect("within");
    let got = harness.wave.vgpr[usize::from(DST)].0;
    // Lane 1 is inactive, lanes 10 and 11 are beyond the end.
    assert_eq!([got[0], got[1], got[10], got[11]], [0x0065_5678, 0x1234_5678, 0x0000_5678, 0x0000_5678]);
}

#[test]
fn dwords_beyond_the_end_are_not_written() {
    let mut memory = Vec::new();
    let mut harness = harness::<64>(&mut memory);
    harness.wave.vgpr[2].0 = std::array::from_fn(|lane| 32 * lane as u32 + 4);
    for n in 0..4 {
        harness.wave.vgpr[8 + n] = Lanes::splat(7 + n as u32);
    }
    let counters = harness.run(&buffer("buffer_store_b128", Operand::Int(0), 0)).expect("within");
    // Lane 1 begins at byte 36, so only one of its four dwords is in bounds.
    let written = [(2, 7), (3, 8), (4, 9), (5, 10), (10, 7)];
    let expected: Vec<u32> = (0..64)
        .map(|n| written.iter().find(|(at, _)| *at == n).map_or(100 + n as u32, |(_, value)| *value))
        .collect();
    assert_eq!((memory, counters.bytes_stored), (expected, 20));
}

#[test]
fn loads_to_lds_write_zero_beyond_the_end() {
    let mut memory = Vec::new();
    let mut harness = harness::<64>(&mut memory);
    harness.wave.sgpr[125] = 512;
    let load = buffer("buffer_load_b32", Operand::Int(0), 0);
    let load = Inst { dst: Operand::None, mods: Mods { lds: true, ..Mods::default() }, ..load };
    harness.run(&load).expect("within");
    harness.addresses(512, 4);
    harness.run(&lds("ds_load_b32")).expect("in bounds");
    assert_eq!(harness.wave.vgpr[usize::from(DST)].0, std::array::from_fn(|lane| expected_dword(lane, 10)));
}

#[test]
fn buffers_must_lie_within_allocations() {
    let mut memory = Vec::new();
    let mut harness = harness::<64>(&mut memory);
    harness.wave.sgpr[10] = u32::MAX;
    let fault = harness.run(&buffer("buffer_load_b32", Operand::Int(0), 4)).expect_err("past the memory");
    assert!(matches!(*fault, FaultKind::OutOfBounds { lane: 62, bytes: 4, .. }), "{fault}");
}

#[test]
fn unsupported_descriptors_are_unknown() {
    // A stride, swizzled addresses, a descriptor of gfx10.
    for (word, bits) in [(9, 16 << 16), (9, 1 << 31), (11, 3 << 28)] {
        let mut memory = Vec::new();
        let mut harness = harness::<64>(&mut memory);
        harness.wave.sgpr[word] |= bits;
        let fault = harness.run(&buffer("buffer_load_b32", Operand::Int(0), 0)).expect_err("unknown");
        assert!(matches!(*fault, FaultKind::UnknownInstruction), "{fault}");
    }
}
