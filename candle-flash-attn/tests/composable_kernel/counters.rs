//! Counts the instructions of both kernels for the same calls, and checks that the table of `candle_flash_attn::ck` follows
//! from the counts. Needs the software GPU's profile: `CANDLE_ROCM_EMULATOR=profile=FILE`.
use candle::{DType, Device, Result, Tensor};
use candle_flash_attn::ck::{choose, Choice, Element, TABLE};
use candle_flash_attn::flash_attn;
use serde_json::Value;
use serial_test::serial;

use crate::built;

/// All workgroups do the same work, so a few heads suffice.
const HEADS: usize = 2;
/// Number of queries, and whether the mask is causal.
const CALLS: [(usize, bool); 4] = [(512, true), (512, false), (128, true), (16, true)];

/// Counters summed over all kernels, and resources of the kernel with the most instructions.
struct Counters {
    instructions: u64,
    matrix: u64,
    lds: u64,
    conflicts: u64,
    vgprs: u64,
    lds_bytes: u64,
    /// Waves per SIMD, limited by registers and LDS.
    waves: u64,
    /// Clocks of a compute unit's matrix units, vector units, and LDS.
    clocks: [u64; 3],
}

impl Counters {
    /// Counts the kernels that `call` launches; each of their matrix instructions multiplies `pairs` pairs.
    fn of(device: &Device, arch: &str, pairs: u64, call: impl FnOnce() -> Result<Tensor>) -> Result<Self> {
        device.synchronize()?;
        rocm_emulator::take_profile();
        call()?;
        device.synchronize()?;
        let profile = rocm_emulator::take_profile().expect("CANDLE_ROCM_EMULATOR=profile=FILE");
        let profile: Value = serde_json::from_str(&profile).expect("a profile");
        let kernels = profile["kernels"].as_array().expect("kernels");
        let number = |kernel: &Value, group: &str, field: &str| kernel[group][field].as_u64().expect(field);
        let sum = |group: &str, field: &str| kernels.iter().map(|k| number(k, group, field)).sum::<u64>();
        let first = kernels.iter().max_by_key(|k| number(k, "instructions", "total")).expect("a kernel");
        let (vgprs, lds_bytes) =
            (number(first, "resources", "vgprs"), number(first, "resources", "lds_bytes"));
        let waves =
            first["waves"].as_u64().expect("waves") / first["workgroups"].as_u64().expect("workgroups");
        // 512 registers per lane, allocated in steps of 8, and 64 KiB of LDS for four SIMDs.
        let workgroups = 65536 / lds_bytes.max(1);
        let (matrix, quarter) = (sum("rates", "products"), sum("rates", "quarter_rate"));
        let conflicts = sum("lds", "bank_conflicts");
        // Products per clock of a compute unit, from AMD's peak rates for f16 and bf16.
        let peak = if arch == "gfx90a" { 512 } else { 1024 };
        // Four vector units take four clocks for 64 lanes; LDS serves 32 dwords per clock.
        let vector = sum("instructions", "vector") - matrix + 3 * quarter;
        Ok(Self {
            instructions: sum("instructions", "total"),
            matrix,
            lds: sum("lds", "accesses"),
            conflicts,
            vgprs,
            lds_bytes,
            waves: (512 / vgprs.next_multiple_of(8)).min(8).min((workgroups * waves).div_ceil(4)),
            clocks: [matrix * pairs / peak, vector, sum("lds", "steps") + conflicts],
        })
    }

    /// Returns the clocks if all units overlap, and if none do.
    fn bounds(&self) -> [u64; 2] {
        [self.clocks.into_iter().max().unwrap_or(0), self.clocks.iter().sum()]
    }

    fn row(&self, whose: &str) -> String {
        let Self { instructions, matrix, lds, conflicts, vgprs, lds_bytes, waves, clocks: [a, b, c] } = self;
        let thousand = |n: &u64| (n + 500) / 1000;
        format!(
            "{whose} | {instructions} | {matrix} | {lds} | {conflicts} | {vgprs} | {lds_bytes} | {waves} | {} + {} + {} |",
            thousand(a),
            thousand(b),
            thousand(c)
        )
    }
}

#[test]
#[serial]
#[ignore = "counts what code objects execute that `cargo xtask ck` builds"]
fn the_table_follows_the_counters() -> Result<()> {
    let (rocm, library) = built()?;
    let (device, arch) = (Device::Rocm(rocm), library.arch());
    println!(
        "| {arch}, {HEADS} heads | by | instructions | matrix | LDS accesses | conflicts | registers | LDS | waves | \
         thousand clocks |"
    );
    for (element, dtype) in [(Element::F16, DType::F16), (Element::Bf16, DType::BF16)] {
        for width in [64, 128, 256] {
            let row = TABLE.iter().find(|row| (row.arch, row.element, row.width) == (arch, element, width));
            let (mut wins_all, mut wins_small) = (true, false);
            for (queries, causal) in CALLS {
                let random =
                    |rows| Tensor::randn(0f32, 1.0, (1, rows, HEADS, width), &device)?.to_dtype(dtype);
                let (q, k, v) = (random(queries)?, random(512)?, random(512)?);
                let scale = (width as f32).sqrt().recip();
                let count = |choice, pairs| {
                    choose(choice);
                    let counters =
                        Counters::of(&device, arch, pairs, || flash_attn(&q, &k, &v, scale, causal));
                    choose(Choice::Table);
                    counters
                };
                // Pairs of v_mfma_f32_32x32x8 and v_mfma_f32_16x16x16.
                let ck = count(Choice::ComposableKernel, 32 * 32 * 8)?;
                let candles = count(Choice::Candle, 16 * 16 * 16)?;
                let mask = if causal { ", causal" } else { "" };
                println!("| {} {width}, {queries} x 512{mask} | {}", dtype.as_str(), ck.row("CK"));
                println!("| | {}", candles.row("Candle"));
                let wins =
                    ck.bounds().iter().zip(candles.bounds()).all(|(ck, candles)| 10 * ck <= 9 * candles);
                if queries >= 128 {
                    wins_all &= wins;
                } else {
                    wins_small |= wins;
                }
            }
            let is_row = row.is_some_and(|row| row.queries == 128);
            assert_eq!((is_row, row.is_some()), (wins_all, wins_all), "{arch} {dtype:?} {width}: {row:?}");
            assert!(!wins_small, "{arch} {dtype:?} {width} with few queries");
        }
    }
    Ok(())
}
