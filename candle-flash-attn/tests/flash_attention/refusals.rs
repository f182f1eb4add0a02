//! Invalid inputs: errors of the call, and errors found by the GPU.
use candle::{DType, Device, Result, Tensor};
use candle_flash_attn::*;

use crate::attention_formula::wide;
use crate::device;

fn zeros(dims: &[usize], dtype: DType, device: &Device) -> Tensor {
    Tensor::zeros(dims, dtype, device).unwrap()
}

#[track_caller]
fn assert_refused<T>(made: Result<T>, text: &str) {
    let Err(error) = made else { panic!("not refused, though {text}") };
    let error = error.to_string();
    assert!(error.contains(text), "{error}\nlacks: {text}");
}

#[test]
fn invalid_batches_are_rejected() -> Result<()> {
    let device = device();
    let (f16, f32) = (DType::F16, DType::F32);
    let fits = [1, 4, 2, 64];
    // Dims of q, k and v, their dtype, and the expected error.
    type Refused<'a> = ([&'a [usize]; 3], DType, &'a str);
    let table: [Refused; 11] = [
        ([&[4, 2, 64], &fits, &fits], f16, "flash-attn expects input tensors of rank 4 (q: 3, k: 4, v: 4"),
        ([&fits, &[4, 2, 64], &fits], f16, "(q: 4, k: 3, v: 4"),
        ([&fits, &[2, 4, 2, 64], &fits], f16, "shape mismatch q [1, 4, 2, 64] and k [2, 4, 2, 64]"),
        ([&fits, &[1, 4, 2, 32], &fits], f16, "shape mismatch q [1, 4, 2, 64] and k [1, 4, 2, 32]"),
        ([&fits, &fits, &[1, 5, 2, 64]], f16, "shape mismatch q [1, 4, 2, 64] and v [1, 5, 2, 64]"),
        ([&fits, &fits, &[1, 4, 1, 64]], f16, "shape mismatch q [1, 4, 2, 64] and v [1, 4, 1, 64]"),
        (
            [&[1, 4, 2, 520], &[1, 4, 2, 520], &fits],
            f16,
            "only supports head dimension at most 512 (got 520)",
        ),
        (
            [&[1, 4, 2, 36], &[1, 4, 2, 36], &fits],
            f32,
            "only supports head sizes that are a multiple of 8 (got 36)",
        ),
        ([&fits, &fits, &[1, 4, 2, 12]], f16, "only supports head sizes that are a multiple of 8 (got 12)"),
        ([&[1, 4, 3, 64], &fits, &fits], f16, "number of k/v heads 2 must divide number of heads in query 3"),
        ([&fits, &fits, &fits], DType::F64, "flash-attn is only supported for f16/bf16"),
    ];
    for (dims, dtype, text) in table {
        let [q, k, v] = dims.map(|dims| zeros(dims, dtype, &device));
        assert_refused(flash_attn(&q, &k, &v, 1.0, false), text);
        assert_refused(flash_attn_with_statistics(&q, &k, &v, None, 1.0, None, None, None), text);
    }
    let q = zeros(&fits, f16, &device);
    let other = q.to_dtype(f32)?;
    assert_refused(flash_attn(&q, &q, &other, 1.0, false), "dtype mismatch");
    let turned = zeros(&[1, 4, 64, 2], f16, &device).transpose(2, 3)?;
    for (name, [q, k, v]) in [("q", [&turned, &q, &q]), ("k", [&q, &turned, &q]), ("v", [&q, &q, &turned])] {
        let text = format!("the last dim of {name} must be contiguous [512, 128, 1, 2]");
        assert_refused(flash_attn(q, k, v, 1.0, true), &text);
    }
    let slopes = [
        (zeros(&[2], f16, &device), "DType mismatch alibi_slopes F16, expected F32"),
        (zeros(&[3], f32, &device), "shape mismatch alibi_slopes [3], expected 2"),
        (zeros(&[2], f32, &Device::Cpu), "alibi_slopes must be a rocm tensor"),
    ];
    for (slopes, text) in slopes {
        assert_refused(flash_attn_alibi(&q, &q, &q, &slopes, 1.0, false), text);
    }
    let there = q.to_device(&Device::Cpu)?;
    assert_refused(flash_attn(&there, &there, &there, 1.0, false), "no cpu support for flash-attn");
    assert_refused(
        flash_attn_with_statistics(&there, &there, &there, None, 1.0, None, None, None),
        "no cpu support",
    );
    assert_refused(flash_attn(&q, &there, &q, 1.0, false), "device mismatch");
    assert_refused(
        flash_attn_with_statistics(&q, &there, &q, None, 1.0, None, None, None),
        "device mismatch",
    );
    Ok(())
}

#[test]
fn invalid_sequences_are_rejected() -> Result<()> {
    let device = device();
    let rows = zeros(&[8, 2, 64], DType::F16, &device);
    let starts = Tensor::new(&[0u32, 3, 8], &device)?;
    let with = |q: &Tensor, k: &Tensor, v: &Tensor, starts: &Tensor, key_starts: &Tensor| {
        flash_attn_varlen(q, k, v, starts, key_starts, 5, 5, 1.0, false)
    };
    with(&rows, &rows, &rows, &starts, &starts)?;
    let batch = rows.unsqueeze(0)?;
    let text = "flash-attn-varlen expects input tensors of rank 3 (q: 4, k: 3, v: 3";
    assert_refused(with(&batch, &rows, &rows, &starts, &starts), text);
    let short = rows.narrow(0, 0, 7)?;
    let text = "shape mismatch q [8, 2, 64] and v [7, 2, 64]";
    assert_refused(with(&rows, &rows, &short, &starts, &starts), text);
    let table = [
        (Tensor::new(&[0u32], &device)?, None, "seqlens_q should have a len >= 2 1"),
        (
            starts.clone(),
            Some(Tensor::new(&[0u32, 8], &device)?),
            "should have the same number of elements 3 <> 2",
        ),
        (starts.to_device(&Device::Cpu)?, None, "seqlens_q must be a rocm tensor"),
        (starts.clone(), Some(starts.to_device(&Device::Cpu)?), "seqlens_k must be a rocm tensor"),
    ];
    for (starts, key_starts, text) in &table {
        assert_refused(with(&rows, &rows, &rows, starts, key_starts.as_ref().unwrap_or(starts)), text);
    }
    let apart = Tensor::new(&[[0u32, 1], [3, 1], [8, 1]], &device)?.narrow(1, 0, 1)?.squeeze(1)?;
    assert_refused(with(&rows, &rows, &rows, &apart, &starts), "seqlens_q has to be contiguous");
    assert_refused(with(&rows, &rows, &rows, &starts, &apart), "seqlens_k has to be contiguous");
    let there = rows.to_device(&Device::Cpu)?;
    assert_refused(with(&there, &there, &there, &starts, &starts), "no cpu support for flash-attn");
    Ok(())
}

/// Arguments of a paged call, of which a test changes one.
struct Paged {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    key_starts: Tensor,
    table: Tensor,
    ranges: Option<Tensor>,
    page: usize,
}

impl Paged {
    fn of(device: &Device) -> Result<Self> {
        Ok(Self {
            q: zeros(&[8, 2, 64], DType::F16, device),
            k: zeros(&[4, 16, 1, 64], DType::F16, device),
            v: zeros(&[4, 16, 1, 64], DType::F16, device),
            starts: Tensor::new(&[0u32, 3, 8], device)?,
            key_starts: Tensor::new(&[0u32, 20, 40], device)?,
            table: Tensor::new(&[[0u32, 2], [3, 1]], device)?,
            ranges: None,
            page: 16,
        })
    }

    fn call(&self) -> Result<Tensor> {
        let Self { q, k, v, starts, key_starts, table, ranges, page } = self;
        let ranges = ranges.as_ref();
        flash_attn_varlen_paged_windowed(
            q,
            k,
            v,
            starts,
            key_starts,
            table,
            ranges,
            5,
            20,
            1.0,
            None,
            Some(0),
            *page,
            None,
        )
    }
}

#[test]
fn invalid_pages_are_rejected() -> Result<()> {
    let device = device();
    let (right, f16) = (|| Paged::of(&device), DType::F16);
    right()?.call()?;
    let wide = zeros(&[4, 16, 1, 72], f16, &device);
    let odd = zeros(&[4, 24, 1, 64], f16, &device);
    let rows = zeros(&[64, 1, 64], f16, &device);
    let i32s = |dims: &[usize]| Some(zeros(dims, DType::I32, &device));
    let table = [
        (
            Paged { k: rows.clone(), ..right()? },
            "flash-attn-varlen paged expects k/v tensors of rank 4 (k: 3, v: 4)",
        ),
        (Paged { k: wide, ..right()? }, "shape mismatch q [8, 2, 64] and k [4, 16, 1, 72]"),
        (Paged { v: odd.clone(), ..right()? }, "shape mismatch k [4, 16, 1, 64] and v [4, 24, 1, 64]"),
        (Paged { page: 32, ..right()? }, "page_block_size 32 does not match k shape [4, 16, 1, 64]"),
        (
            Paged { k: odd.clone(), v: odd, page: 24, ..right()? },
            "paged flash-attn requires page_block_size to be a multiple of 16 (got 24)",
        ),
        (
            Paged { table: zeros(&[2, 2], DType::I64, &device), ..right()? },
            "block_table must be u32 or i32, got I64",
        ),
        (
            Paged { table: zeros(&[2, 2], DType::U32, &Device::Cpu), ..right()? },
            "block_table must be a rocm tensor",
        ),
        (
            Paged { table: zeros(&[2, 2], DType::U32, &device).t()?, ..right()? },
            "block_table last dimension must be contiguous",
        ),
        (
            Paged { ranges: Some(zeros(&[2, 1, 2], DType::U32, &device)), ..right()? },
            "mm_prefix_ranges must be i32, got U32",
        ),
        (
            Paged { ranges: i32s(&[3, 1, 2]), ..right()? },
            "mm_prefix_ranges shape must be (2, max_ranges, 2), got [3, 1, 2]",
        ),
        (
            Paged { ranges: Some(zeros(&[2, 1, 2], DType::I32, &Device::Cpu)), ..right()? },
            "mm_prefix_ranges must be a rocm tensor",
        ),
    ];
    for (paged, text) in table {
        assert_refused(paged.call(), text);
    }
    Ok(())
}

/// The next synchronization returns the error, and afterwards the device works as before.
#[test]
fn invalid_device_data_is_an_error_of_the_next_synchronization() -> Result<()> {
    // A separate stream, so that other tests do not see the errors.
    device();
    let device = Device::new_rocm_with_stream(0)?;
    let right = || Paged::of(&device);
    let starts = |starts: [u32; 3]| Tensor::new(&starts, &device);
    let calls = [
        Paged { table: Tensor::new(&[[0u32, 4], [3, 1]], &device)?, ..right()? },
        Paged { table: Tensor::new(&[[0i32, 2], [-1, 1]], &device)?, ..right()? },
        Paged { key_starts: starts([0, 20, 10])?, ..right()? },
        Paged { key_starts: starts([0, 20, 60])?, ..right()? },
        Paged { starts: starts([0, 9, 8])?, ..right()? },
        Paged { starts: starts([0, 3, 11])?, ..right()? },
        Paged { starts: starts([0, u32::MAX, 8])?, ..right()? },
    ];
    for (i, call) in calls.iter().enumerate() {
        let made = call.call().and_then(|_| device.synchronize());
        assert!(made.is_err(), "call {i} is not refused");
        let out = wide(&right()?.call()?)?;
        assert!(out.iter().all(|x| *x == 0.0), "after call {i}");
    }
    let rows = zeros(&[8, 1, 64], DType::F32, &device);
    let right = starts([0, 3, 8])?;
    for wrong in [[0, 9, 8], [0, 3, 9], [5, 3, 8]] {
        let wrong = starts(wrong)?;
        for (starts, key_starts) in [(&wrong, &right), (&right, &wrong)] {
            let made = flash_attn_varlen(&rows, &rows, &rows, starts, key_starts, 8, 8, 1.0, true);
            assert!(made.and_then(|_| device.synchronize()).is_err(), "{starts} {key_starts}");
        }
    }
    Ok(())
}
