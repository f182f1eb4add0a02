//! Untyped buffers that are no scratch.
use super::*;

/// Where the descriptor lies.
const RESOURCE: u8 = 8;

/// Of a 40-byte buffer that starts a dword into memory of 64 dwords, counted from 100; all lanes' offsets are 4 bytes
/// apart.
fn bench<const W: usize>(memory: &mut Vec<u32>) -> Bench<W> {
    *memory = (100..164).collect();
    let mut bench = Bench::new(true);
    bench.range(memory);
    let base = bench.ranges[0].base + 4;
    bench.wave.sgpr[8..12].copy_from_slice(&[base as u32, (base >> 32) as u32, 40, 0x0002_0000]);
    bench.wave.vgpr[2].0 = std::array::from_fn(|lane| 4 * lane as u32);
    bench
}

fn buffer(name: &'static str, scalar: Operand, offset: i32) -> Inst {
    let dst = name.contains("load").then_some(DST);
    inst(name, Encoding::Mubuf, dst, [ADDRESS, DATA, Operand::Scalar(RESOURCE), scalar], offset)
}

/// What is `n` dwords into the buffer, or zero behind its end.
fn held(n: usize, end: usize) -> u32 {
    if n < end { 101 + n as u32 } else { 0 }
}

#[test]
fn dwords_beyond_the_end_read_as_zero() {
    let mut memory = Vec::new();
    let mut bench = bench::<64>(&mut memory);
    let counters = bench.run(&buffer("buffer_load_b128", Operand::Int(0), 4)).expect("within");
    for lane in 0..64 {
        let got: [u32; 4] = std::array::from_fn(|n| bench.wave.vgpr[usize::from(DST) + n].0[lane]);
        assert_eq!(got, std::array::from_fn(|n| held(lane + 1 + n, 10)), "lane {lane}");
    }
    // Nine, eight, seven and six lanes have dwords of their own.
    assert_eq!(counters.bytes_loaded, 4 * (9 + 8 + 7 + 6));
}

#[test]
fn a_scalar_offset_moves_the_end_too() {
    let mut memory = Vec::new();
    let mut bench = bench::<64>(&mut memory);
    for (scalar, lanes) in [(8, 8), (40, 0), (44, 0)] {
        bench.wave.sgpr[20] = scalar;
        bench.run(&buffer("buffer_load_b32", Operand::Scalar(20), 0)).expect("within");
        let skipped = scalar as usize / 4;
        let expected: [u32; 64] = std::array::from_fn(|lane| held(lane + skipped, skipped + lanes));
        assert_eq!(bench.wave.vgpr[usize::from(DST)].0, expected, "offset {scalar}");
    }
}

#[test]
fn a_half_of_a_register_becomes_zero_beyond_the_end() {
    let mut memory = Vec::new();
    let mut bench = bench::<64>(&mut memory);
    bench.wave.vgpr[usize::from(DST)] = Lanes::splat(0x1234_5678);
    bench.wave.set_sgpr64(126, 0b1100_0000_0001);
    bench.run(&buffer("buffer_load_d16_hi_b16", Operand::Int(0), 0)).expect("within");
    let got = bench.wave.vgpr[usize::from(DST)].0;
    // Lane 1 is off, lanes 10 and 11 are beyond the end.
    assert_eq!([got[0], got[1], got[10], got[11]], [0x0065_5678, 0x1234_5678, 0x0000_5678, 0x0000_5678]);
}

#[test]
fn dwords_beyond_the_end_are_not_written() {
    let mut memory = Vec::new();
    let mut bench = bench::<64>(&mut memory);
    bench.wave.vgpr[2].0 = std::array::from_fn(|lane| 32 * lane as u32 + 4);
    for n in 0..4 {
        bench.wave.vgpr[8 + n] = Lanes::splat(7 + n as u32);
    }
    let counters = bench.run(&buffer("buffer_store_b128", Operand::Int(0), 0)).expect("within");
    // Lane 1 begins at byte 36: one dword of its four.
    let written = [(2, 7), (3, 8), (4, 9), (5, 10), (10, 7)];
    let expected: Vec<u32> = (0..64)
        .map(|n| written.iter().find(|(at, _)| *at == n).map_or(100 + n as u32, |(_, value)| *value))
        .collect();
    assert_eq!((memory, counters.bytes_stored), (expected, 20));
}

#[test]
fn loads_to_lds_write_zero_beyond_the_end() {
    let mut memory = Vec::new();
    let mut bench = bench::<64>(&mut memory);
    bench.wave.sgpr[125] = 512;
    let load = buffer("buffer_load_b32", Operand::Int(0), 0);
    let load = Inst { dst: Operand::None, mods: Mods { lds: true, ..Mods::default() }, ..load };
    bench.run(&load).expect("within");
    bench.addresses(512, 4);
    bench.run(&lds("ds_load_b32")).expect("in bounds");
    assert_eq!(bench.wave.vgpr[usize::from(DST)].0, std::array::from_fn(|lane| held(lane, 10)));
}

#[test]
fn what_the_descriptor_allows_must_exist() {
    let mut memory = Vec::new();
    let mut bench = bench::<64>(&mut memory);
    bench.wave.sgpr[10] = u32::MAX;
    let fault = bench.run(&buffer("buffer_load_b32", Operand::Int(0), 4)).expect_err("past the memory");
    assert!(matches!(*fault, FaultKind::OutOfBounds { lane: 62, bytes: 4, .. }), "{fault}");
}

#[test]
fn other_buffers_are_unknown() {
    // A stride, swizzled addresses, a descriptor of gfx10.
    for (word, bits) in [(9, 16 << 16), (9, 1 << 31), (11, 3 << 28)] {
        let mut memory = Vec::new();
        let mut bench = bench::<64>(&mut memory);
        bench.wave.sgpr[word] |= bits;
        let fault = bench.run(&buffer("buffer_load_b32", Operand::Int(0), 0)).expect_err("unknown");
        assert!(matches!(*fault, FaultKind::UnknownInstruction), "{fault}");
    }
}
